// Package redis keeps the counts of rate limits in one Redis or Valkey server
// (6.2 or later) that any number of gateways share.
//
// Guarantees. The server's clock decides. A decision over several limits is
// one atomic step, and costs at most one command; under load one command
// carries the decisions of all requests that came while the previous one was
// under way. A refused request writes nothing. Every key expires, a second
// after its window at the latest. Nothing is ever sent twice: a script that the
// server does not know is sent again because the server said that it ran
// nothing.
//
// Limits. Counts are as durable as the server: one that restarts empty, or a
// fail-over that forgets its last writes, gives those places out again. When
// the reply to a command is lost its requests may have been charged though
// they got an error. A request whose caller leaves is not charged if its
// command has not been sent yet, else it is.
//
// The ACL user needs +evalsha +eval +time +get +set on the keys that begin
// with the connection's prefix and "limit:", written ~prefixlimit:*.
package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/gatehouse-gateway/gatehouse/internal/redisconn"
	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
)

//go:embed decide.lua
var decideSource string

var decideScript = goredis.NewScript(decideSource)

// ErrTimeout means that the server did not answer in time.
var ErrTimeout = errors.New("limitstore/redis: no answer in time")

// Store is a limitstore.Store. It runs no goroutine of its own.
type Store struct {
	conn *redisconn.Conn
	line line
	// work belongs to whoever leads the line.
	work batch

	waiters sync.Pool
}

// New makes a Store on conn, which the caller closes after the last decision.
func New(conn *redisconn.Conn) *Store {
	s := &Store{conn: conn, work: newBatch(conn.Prefix() + "limit:")}
	s.waiters.New = func() any { return newWaiter() }
	return s
}

// Decide implements limitstore.Store.
func (s *Store) Decide(ctx context.Context, d *limitstore.Decision) error {
	if err := d.Check(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	timeout := d.Timeout
	if timeout <= 0 {
		timeout = s.conn.Timeout()
	}
	w := s.waiters.Get().(*waiter)
	w.ask(d, time.Now().Add(timeout))
	return s.wait(ctx, w, d, timeout)
}

// call sends the batch in one command and returns the reply.
func (s *Store) call(deadline time.Time) ([]int64, error) {
	if len(s.work.groups) == 0 {
		return nil, nil
	}
	// Not the leader's context: the call is also that of all who wait for it.
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	reply, err := s.send(ctx, evalSHA, decideScript.Hash())
	if goredis.HasErrorPrefix(err, "NOSCRIPT") {
		reply, err = s.send(ctx, eval, decideSource)
	}
	if err != nil {
		return nil, explain(ctx, err)
	}
	return reply, nil
}

const (
	evalSHA = "evalsha"
	eval    = "eval"
)

func (s *Store) send(ctx context.Context, command, script string) ([]int64, error) {
	cmd := goredis.NewIntSliceCmd(ctx, s.work.command(command, script)...)
	_ = s.conn.Client().Process(ctx, cmd)
	return cmd.Result()
}

// explain names what went wrong in words that help an operator. It repeats
// what the server said, which holds no key and no secret.
func explain(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		return fmt.Errorf("%w: %v", ErrTimeout, err)
	}
	for _, known := range explanations {
		if strings.HasPrefix(err.Error(), known.prefix) {
			return fmt.Errorf("limitstore/redis: %s: %w", known.meaning, err)
		}
	}
	return fmt.Errorf("limitstore/redis: deciding: %w", err)
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && t.Timeout()
}

const lackingRights = "the ACL user lacks a right (it needs +evalsha +eval +time +get +set on the limit keys)"

var explanations = []struct{ prefix, meaning string }{
	{"LOADING", "the server is still loading its data"},
	{"OOM", "the server has reached maxmemory and takes no new counts"},
	{"READONLY", "the server is a read-only replica"},
	{"MISCONF", "the server refuses writes because it cannot persist them"},
	{"MASTERDOWN", "the server is a replica without its master"},
	{"NOREPLICAS", "the server has too few replicas to take writes"},
	{"BUSY", "the server is busy with another script"},
	{"NOAUTH", "the server wants a password"},
	{"WRONGPASS", "the server does not accept the user or the password"},
	{"NOPERM", lackingRights},
	{"ERR The user executing the script", lackingRights},
}

// appendName writes the key's name in Redis.
func appendName(b []byte, prefix string, k limitstore.Key) []byte {
	b = append(b, prefix...)
	return keyEncoding.AppendEncode(b, k[:])
}
