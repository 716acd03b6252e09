// Package redisconn opens the Redis connections that the stores share, with
// the settings that their guarantees need: no automatic retries (a lost reply
// must not turn into a wrong answer) and a deadline on every command.
package redisconn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// DefaultTimeout bounds a command, connecting included.
const DefaultTimeout = 250 * time.Millisecond

// Options describe one Redis (or Valkey) server.
type Options struct {
	Address  string // host:port, or a path of a Unix socket
	Username string // ACL user; empty: the default user
	Password string
	DB       int
	TLS      *tls.Config   // nil: plain TCP
	Prefix   string        // begins every key
	Timeout  time.Duration // of a command; default DefaultTimeout
	PoolSize int           // connections; default: the client's own choice
}

// The client prints failed connections to standard error by itself; here every
// failure is returned by the command that met it.
func init() { redis.SetLogger(silent{}) }

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// Conn is an open pool of connections. It is safe for concurrent use.
type Conn struct {
	client  redis.UniversalClient
	prefix  string
	timeout time.Duration
}

// Open makes a Conn. It does no I/O: a server that is down is found out by the
// first command.
func Open(o Options) (*Conn, error) {
	if o.Address == "" {
		return nil, errors.New("redis: no address")
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	network := "tcp"
	if strings.HasPrefix(o.Address, "/") {
		network = "unix"
	} else if _, _, err := net.SplitHostPort(o.Address); err != nil {
		return nil, fmt.Errorf("redis: address %q is not host:port", o.Address)
	}
	client := redis.NewClient(&redis.Options{
		Network: network, Addr: o.Address, Username: o.Username, Password: o.Password, DB: o.DB,
		TLSConfig: o.TLS, PoolSize: o.PoolSize,
		MaxRetries: -1, ContextTimeoutEnabled: true,
		DialTimeout: o.Timeout, ReadTimeout: o.Timeout, WriteTimeout: o.Timeout, PoolTimeout: o.Timeout,
		DialerRetries: 1,
	})
	return &Conn{client: client, prefix: o.Prefix, timeout: o.Timeout}, nil
}

// ParseURL reads redis://user:pass@host:port/db and rediss:// (TLS). Errors do
// not repeat the URL, which holds a password.
func ParseURL(raw string) (Options, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return Options{}, errors.New("redis: the URL cannot be read")
	}
	var o Options
	switch u.Scheme {
	case "redis":
	case "rediss":
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: u.Hostname()}
	default:
		return Options{}, fmt.Errorf("redis: URL scheme %q is not redis or rediss", u.Scheme)
	}
	if u.Hostname() == "" {
		return Options{}, errors.New("redis: the URL names no host")
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return Options{}, errors.New("redis: the URL may not have a query")
	}
	port := u.Port()
	if port == "" {
		port = "6379"
	}
	o.Address = net.JoinHostPort(u.Hostname(), port)
	if u.User != nil {
		o.Username = u.User.Username()
		o.Password, _ = u.User.Password()
	}
	if db := strings.Trim(u.Path, "/"); db != "" {
		if o.DB, err = strconv.Atoi(db); err != nil || o.DB < 0 {
			return Options{}, fmt.Errorf("redis: database %q in the URL is not a number", db)
		}
	}
	return o, nil
}

// Client returns the client, for commands and pipelines.
func (c *Conn) Client() redis.UniversalClient { return c.client }

// Prefix returns what begins every key.
func (c *Conn) Prefix() string { return c.prefix }

// Timeout returns the bound of a command.
func (c *Conn) Timeout() time.Duration { return c.timeout }

// WithTimeout returns a context that ends after the command bound. A command
// whose outcome matters after its client has gone (a write) is given a context
// without the client's cancellation by the caller.
func (c *Conn) WithTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.timeout)
}

// Run runs a script by its hash (EVALSHA) and, when the server does not know
// it, by its text (EVAL).
func (c *Conn) Run(ctx context.Context, s *redis.Script, keys []string, args ...any) *redis.Cmd {
	cmd := s.EvalSha(ctx, c.client, keys, args...)
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		return s.Eval(ctx, c.client, keys, args...)
	}
	return cmd
}

// Ping asks the server for a sign of life.
func (c *Conn) Ping(ctx context.Context) error {
	ctx, cancel := c.WithTimeout(ctx)
	defer cancel()
	return c.client.Ping(ctx).Err()
}

// Close closes the connections.
func (c *Conn) Close() error { return c.client.Close() }
