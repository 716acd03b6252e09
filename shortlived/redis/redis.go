// Package redis is the short-lived store on a Redis or Valkey server, shared
// by all gateways that use the server. It needs Redis 6.2 (GETDEL) and Lua
// scripts.
//
// Guarantees: each of the five operations is one command (or one script) in
// one round trip, atomic over all gateways; lifetimes run by the server's
// clock. A command whose reply is lost is an error and is never sent again, so
// it cannot be counted twice or refused because of itself: the caller knows
// that the outcome is unknown. After a lost Take the value may be gone; it was
// given to nobody.
//
// Limits: as durable as the server. A fail-over may forget its last writes,
// and a server that evicts keys (maxmemory-policy) can break every promise. A
// server that is out of memory refuses with shortlived.ErrFull.
//
// # Format
//
// The value lies at the connection's prefix, "short:" and the key. A count is
// decimal text, so that INCRBY works on it; any other value is "A" and its
// bytes. What begins otherwise was written by another version: it counts as
// absent and is logged as a warning.
package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse-gateway/gatehouse/internal/redisconn"
	"github.com/gatehouse-gateway/gatehouse/shortlived"
)

// Namespace stands between the connection's prefix and every key, apart from
// what else is kept on the same server.
const Namespace = "short:"

//go:embed try_add.lua
var tryAddSource string

//go:embed increment.lua
var incrementSource string

var (
	tryAddScript    = redis.NewScript(tryAddSource)
	incrementScript = redis.NewScript(incrementSource)
)

// Options of a store.
type Options struct {
	// Conn is the connection, which the caller opens and closes. Required.
	Conn *redisconn.Conn
	// Logger gets a warning for each value that cannot be read. Nil: none.
	Logger *slog.Logger
}

// Store is a shortlived.Store on Redis. It is safe for concurrent use and
// needs no closing.
type Store struct {
	conn       *redisconn.Conn
	prefix     string
	unreadable *shortlived.Unreadable
}

// New makes a store. It does no I/O.
func New(o Options) *Store {
	return &Store{conn: o.Conn, prefix: o.Conn.Prefix() + Namespace, unreadable: shortlived.NewUnreadable(o.Logger)}
}

// Unreadable returns how many values this store has met that it could not
// read.
func (s *Store) Unreadable() uint64 { return s.unreadable.Count() }

// TryAdd stores the value unless the key holds a live one. An error other than
// shortlived.ErrInvalid and ErrFull means that the outcome is unknown.
func (s *Store) TryAdd(ctx context.Context, key string, value []byte, lifetime time.Duration) (bool, error) {
	if err := errors.Join(shortlived.CheckKey(key), shortlived.CheckValue(value), shortlived.CheckLifetime(lifetime)); err != nil {
		return false, err
	}
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return false, err
	}
	defer cancel()
	result, err := s.conn.Run(ctx, tryAddScript, []string{s.prefix + key}, shortlived.Encode(value), lifetime.Milliseconds()).Int()
	if err != nil {
		return false, fault("adding", err)
	}
	if result == 2 {
		s.unreadable.Met(key)
	}
	return result > 0, nil
}

// Get returns the value or ErrNotFound.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	return s.read(ctx, key, "reading", redis.UniversalClient.Get)
}

// Take returns the value and deletes it, or ErrNotFound.
func (s *Store) Take(ctx context.Context, key string) ([]byte, error) {
	return s.read(ctx, key, "taking", redis.UniversalClient.GetDel)
}

type readCommand func(c redis.UniversalClient, ctx context.Context, key string) *redis.StringCmd

func (s *Store) read(ctx context.Context, key, doing string, command readCommand) ([]byte, error) {
	if err := shortlived.CheckKey(key); err != nil {
		return nil, err
	}
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	stored, err := command(s.conn.Client(), ctx, s.prefix+key).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, shortlived.ErrNotFound
	}
	if err != nil {
		return nil, fault(doing, err)
	}
	value, ok := shortlived.Decode(stored)
	if !ok {
		s.unreadable.Met(key)
		return nil, shortlived.ErrNotFound
	}
	return value, nil
}

// Remove deletes the value, if there is one.
func (s *Store) Remove(ctx context.Context, key string) error {
	if err := shortlived.CheckKey(key); err != nil {
		return err
	}
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	if err := s.conn.Client().Del(ctx, s.prefix+key).Err(); err != nil {
		return fault("removing", err)
	}
	return nil
}

// Increment adds amount to the count at the key and renews its lifetime. An
// error that is none of shortlived's means that it is unknown whether the
// amount was added.
func (s *Store) Increment(ctx context.Context, key string, amount int64, lifetime time.Duration) (int64, error) {
	if err := errors.Join(shortlived.CheckKey(key), shortlived.CheckLifetime(lifetime)); err != nil {
		return 0, err
	}
	ctx, cancel, err := s.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer cancel()
	reply, err := s.conn.Run(ctx, incrementScript, []string{s.prefix + key}, amount, lifetime.Milliseconds()).Slice()
	if err != nil {
		return 0, fault("incrementing", err)
	}
	count, replaced, err := readCount(reply)
	if err != nil {
		return 0, err
	}
	if replaced {
		s.unreadable.Met(key)
	}
	return count, nil
}

// readCount reads the reply of the increment script.
func readCount(reply []any) (count int64, replaced bool, err error) {
	if len(reply) == 2 {
		text, isText := reply[0].(string)
		mark, isMark := reply[1].(int64)
		count, err := strconv.ParseInt(text, 10, 64)
		if isText && isMark && err == nil {
			return count, mark == 1, nil
		}
	}
	return 0, false, errors.New("shortlived: redis: the increment script answered something else than a count")
}

// begin bounds a command in time. A call that was cancelled before is not
// sent.
func (s *Store) begin(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := s.conn.WithTimeout(ctx)
	return ctx, cancel, nil
}

// fault turns an error of the server into an answer where it is one.
func fault(doing string, err error) error {
	text := err.Error()
	switch {
	case strings.HasPrefix(text, "NOTCOUNT"):
		return shortlived.ErrNotCounter
	case strings.Contains(text, "increment or decrement would overflow"):
		return shortlived.ErrOverflow
	case strings.Contains(text, "OOM command not allowed"):
		return fmt.Errorf("%w: redis is out of memory", shortlived.ErrFull)
	}
	return fmt.Errorf("shortlived: redis: %s: %w", doing, err)
}

var _ shortlived.Store = (*Store)(nil)
