// Package pgconn opens the PostgreSQL connections that the stores share, with
// the settings that their guarantees need: a deadline on every operation,
// nothing that is sent twice, and servers that take writes
// (target_session_attrs=read-write).
//
// It is safe behind PgBouncer in transaction mode. Statements run in
// QueryExecModeExec: parse, bind and execute of the unnamed statement in one
// round trip, so nothing is kept in a server session that the next statement
// may not have. (CacheDescribe would need a second round trip for each new
// statement, and what it remembers turns wrong when the table changes.)
// Of the settings only application_name is sent when connecting; PgBouncer
// knows it.
package pgconn

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DefaultTimeout bounds an operation, waiting for a connection included.
const DefaultTimeout = 250 * time.Millisecond

const (
	// defaultPoolSize is meant for a database that several gateways share.
	defaultPoolSize = 10
	// connectTimeout bounds connecting, which goes on when the operation that
	// asked for it has given up: a slow handshake serves the next one.
	connectTimeout = 3 * time.Second
)

// Options describe one database.
type Options struct {
	// URL is postgres://user:pass@host:port/database?sslmode=…, several hosts
	// separated by commas. Required.
	URL string
	// Timeout of an operation; default DefaultTimeout.
	Timeout time.Duration
	// ApplicationName shows in pg_stat_activity; default "gatehouse".
	ApplicationName string
	// PoolSize is the largest number of connections; default: pool_max_conns
	// of the URL, or 10.
	PoolSize int
}

// Conn is an open pool of connections. It is safe for concurrent use.
type Conn struct {
	pool    *pgxpool.Pool
	timeout time.Duration
}

// Open makes a Conn. It does no I/O: a server that is down is found out by the
// first operation. Errors do not repeat the URL, which holds a password.
func Open(o Options) (*Conn, error) {
	if !strings.HasPrefix(o.URL, "postgres://") && !strings.HasPrefix(o.URL, "postgresql://") {
		return nil, errors.New("postgres: the URL does not begin with postgres://")
	}
	config, err := pgxpool.ParseConfig(o.URL)
	if err != nil {
		return nil, errors.New("postgres: the URL cannot be read")
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.ApplicationName == "" {
		o.ApplicationName = "gatehouse"
	}
	switch {
	case o.PoolSize > 0:
		config.MaxConns = int32(min(o.PoolSize, 10_000))
	case !strings.Contains(o.URL, "pool_max_conns="):
		config.MaxConns = defaultPoolSize
	}
	config.MinConns, config.MinIdleConns = 0, 0
	config.PingTimeout = o.Timeout
	cc := config.ConnConfig
	cc.ConnectTimeout = max(connectTimeout, o.Timeout)
	cc.RuntimeParams["application_name"] = o.ApplicationName
	cc.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	cc.DefaultQueryExecMode = pgx.QueryExecModeExec
	cc.StatementCacheCapacity, cc.DescriptionCacheCapacity = 0, 0
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, errors.New("postgres: the pool's settings do not fit together")
	}
	return &Conn{pool: pool, timeout: o.Timeout}, nil
}

// Timeout returns the bound of an operation.
func (c *Conn) Timeout() time.Duration { return c.timeout }

// WithTimeout returns a context that ends after the operation bound.
func (c *Conn) WithTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.timeout)
}

// Exec runs one statement, once, and returns how many rows it changed. Errors
// are of type *Error.
func (c *Conn) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	tag, err := c.pool.Exec(ctx, sql, args...)
	return tag.RowsAffected(), c.fault(ctx, err)
}

// QueryRow runs one statement, once, and reads its row into dest. Without a
// row it returns false. Columns come in binary form. Errors are of type *Error.
func (c *Conn) QueryRow(ctx context.Context, dest []any, sql string, args ...any) (bool, error) {
	args = append([]any{pgx.QueryResultFormats{pgx.BinaryFormatCode}}, args...)
	err := c.pool.QueryRow(ctx, sql, args...).Scan(dest...)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, c.fault(ctx, err)
}

// Script runs several statements as one transaction, in one round trip, without
// arguments. Errors are of type *Error.
func (c *Conn) Script(ctx context.Context, sql string) error {
	_, err := c.pool.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return c.fault(ctx, err)
}

// Ping asks the server for a sign of life.
func (c *Conn) Ping(ctx context.Context) error {
	ctx, cancel := c.WithTimeout(ctx)
	defer cancel()
	return c.fault(ctx, c.pool.Ping(ctx))
}

// fault classifies an error. A server that became read-only is a demoted one:
// its connections are given up, so that the next operation looks for a server
// that takes writes.
func (c *Conn) fault(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	fault := Classify(ctx, err)
	if fault.Kind == ErrReadOnly {
		c.pool.Reset()
	}
	return fault
}

// Close closes the connections. It waits for those in use.
func (c *Conn) Close() { c.pool.Close() }
