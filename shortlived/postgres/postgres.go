// Package postgres is the short-lived store in a PostgreSQL table (12 or
// later), shared by all gateways that use the database. It is safe behind
// PgBouncer in transaction mode.
//
// Guarantees: each of the five operations is one statement, a transaction of
// its own, atomic over all gateways; lifetimes run by the database's clock. A
// statement whose reply is lost is an error and is never sent again, so it
// cannot be counted twice or refused because of itself: the caller knows that
// the outcome is unknown. After a lost Take the value may be gone; it was
// given to nobody. (While the table is missing a statement fails before it does
// anything, and is sent again once the table has been created.)
//
// The table is LOGGED: what was answered survives a crash of the server, and a
// fail-over as far as the replica had got (synchronous_commit decides). An
// UNLOGGED table would be faster and empty after both: a code that was taken
// stays taken, but a mark that a token has been used would be gone, and the
// token good again. Who needs the speed more can ALTER TABLE … SET UNLOGGED.
//
// Limits: an isolation level above READ COMMITTED as the database's default
// makes operations on the same key at once fail. Keys that are counted often
// leave dead rows, which autovacuum removes; old transactions elsewhere in the
// database keep it from doing so. A server whose disk is full refuses with
// shortlived.ErrFull.
//
// # Format
//
// A count is decimal text; any other value is "A" and its bytes. What begins
// otherwise was written by another version: it counts as absent, is overwritten
// by TryAdd and Increment, and is logged as a warning.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/pgconn"
	"github.com/gatehouse-gateway/gatehouse/shortlived"
)

// Options of a store.
type Options struct {
	// Conn is the connection, which the caller opens, and closes after the
	// store. Required.
	Conn *pgconn.Conn
	// Table is "table" or "schema.table", taken as written; default
	// DefaultTable. It is created when it is missed, if the user may.
	Table string
	// Logger gets a warning for each value that cannot be read and each
	// clean-up that failed. Nil: none.
	Logger *slog.Logger
	// CleanEvery is the time between two clean-ups of expired rows; default a
	// minute. Below 0: none but those by Cleanup.
	CleanEvery time.Duration
}

// Store is a shortlived.Store in PostgreSQL. It is safe for concurrent use.
type Store struct {
	conn       *pgconn.Conn
	sql        statements
	log        *slog.Logger
	table      creation
	cleaner    cleaner
	unreadable *shortlived.Unreadable
}

// New makes a store and starts its clean-up, which Close ends. It does no I/O.
func New(o Options) (*Store, error) {
	sql, err := statementsFor(o.Table)
	if err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{conn: o.Conn, sql: sql, log: o.Logger, unreadable: shortlived.NewUnreadable(o.Logger)}
	s.startCleaner(o.CleanEvery)
	return s, nil
}

// Close ends the clean-up and waits for it. The connection stays open.
func (s *Store) Close() error {
	s.cleaner.stop()
	return nil
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
	var replaced bool
	added, err := s.row(ctx, []any{&replaced}, s.sql.tryAdd, []byte(key), shortlived.Encode(value), lifetime.Microseconds())
	if err != nil {
		return false, fault("adding", err)
	}
	if replaced {
		s.unreadable.Met(key)
	}
	return added, nil
}

// Get returns the value or ErrNotFound.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	return s.read(ctx, key, "reading", s.sql.get)
}

// Take returns the value and deletes it, or ErrNotFound.
func (s *Store) Take(ctx context.Context, key string) ([]byte, error) {
	return s.read(ctx, key, "taking", s.sql.take)
}

func (s *Store) read(ctx context.Context, key, doing, sql string) ([]byte, error) {
	if err := shortlived.CheckKey(key); err != nil {
		return nil, err
	}
	var stored []byte
	found, err := s.row(ctx, []any{&stored}, sql, []byte(key))
	if err != nil {
		return nil, fault(doing, err)
	}
	if !found {
		return nil, shortlived.ErrNotFound
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
	err := s.run(ctx, func(ctx context.Context) error {
		_, err := s.conn.Exec(ctx, s.sql.remove, []byte(key))
		return err
	})
	if err != nil {
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
	var text []byte
	var replaced bool
	found, err := s.row(ctx, []any{&text, &replaced}, s.sql.increment, []byte(key), amount, lifetime.Microseconds())
	switch {
	case pgconn.Code(err) == pgconn.CodeOutOfRange:
		return 0, shortlived.ErrOverflow
	case err != nil:
		return 0, fault("incrementing", err)
	case !found:
		return 0, shortlived.ErrNotCounter
	}
	if replaced {
		s.unreadable.Met(key)
	}
	count, ok := shortlived.ParseCount(text)
	if !ok {
		return 0, errors.New("shortlived: postgres: the server answered something else than a count")
	}
	return count, nil
}

// row runs a statement that gives one row or none.
func (s *Store) row(ctx context.Context, dest []any, sql string, args ...any) (found bool, err error) {
	err = s.run(ctx, func(ctx context.Context) error {
		found, err = s.conn.QueryRow(ctx, dest, sql, args...)
		return err
	})
	return found, err
}

// run bounds a statement in time. When the table is missing, the statement has
// done nothing: the table is created and the statement sent again. A call that
// was cancelled before is not sent. Only the call that meets a missing table
// may take longer than the connection's timeout, up to 5 s.
func (s *Store) run(ctx context.Context, statement func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	once := func() error {
		ctx, cancel := s.conn.WithTimeout(ctx)
		defer cancel()
		return statement(ctx)
	}
	err := once()
	if pgconn.Code(err) != pgconn.CodeUndefinedTable {
		return err
	}
	if err := s.create(ctx); err != nil {
		return err
	}
	return once()
}

// fault names what failed and turns an error of the server into an answer where
// it is one.
func fault(doing string, err error) error {
	if errors.Is(err, pgconn.ErrDiskFull) {
		return fmt.Errorf("%w: %w", shortlived.ErrFull, err)
	}
	return fmt.Errorf("shortlived: postgres: %s: %w", doing, err)
}

var _ shortlived.Store = (*Store)(nil)
