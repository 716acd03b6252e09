package caddymodule

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/gatehouse-gateway/gatehouse/internal/redisconn"
	"github.com/gatehouse-gateway/gatehouse/ratelimit"
	limitmemory "github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore/memory"
	limitredis "github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore/redis"
	sessionredis "github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore/redis"
	"github.com/gatehouse-gateway/gatehouse/shortlived"
	valuememory "github.com/gatehouse-gateway/gatehouse/shortlived/memory"
	valueredis "github.com/gatehouse-gateway/gatehouse/shortlived/redis"
)

// defaultMemory is what the memory store may take.
const defaultMemory = Size(64 << 20)

// MemoryStore keeps limits and short-lived values in this process. It is
// bounded in bytes: expired entries make room first, and when it is full of
// live ones it refuses new ones rather than forget any. Its content survives a
// reload, also one that changes max_size, and is gone at a restart.
type MemoryStore struct {
	// How many bytes it may take, half of it for limits, half for values.
	// Default: 64MiB.
	MaxSize Size `json:"max_size,omitempty"`

	entry *memoryEntry
	held  held
}

type memoryEntry struct {
	limitStore *limitmemory.Store
	limits     *ratelimit.Shared
	values     *valuememory.Store
}

// Destruct stops the background work.
func (e *memoryEntry) Destruct() error { return closeAll(e.limits.Close, e.values.Close) }

// CaddyModule returns the module's ID and constructor.
func (MemoryStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "gatehouse.stores.memory", New: func() caddy.Module { return new(MemoryStore) }}
}

// Provision takes the process's one memory store.
func (s *MemoryStore) Provision(caddy.Context) error {
	const key = "memory"
	entry, err := acquire(memoryPool, key, newMemoryEntry)
	if err != nil {
		return err
	}
	s.entry, s.held = entry, held{memoryPool, key}
	return nil
}

func newMemoryEntry() (*memoryEntry, error) {
	limitStore := limitmemory.New(limitmemory.Options{MaxBytes: int64(defaultMemory / 2)})
	return &memoryEntry{
		limitStore: limitStore,
		limits:     ratelimit.NewShared(limitStore, ratelimit.SharedOptions{Local: limitStore}),
		values:     valuememory.New(valuememory.Options{MaxBytes: int64(defaultMemory / 2)}),
	}, nil
}

// Begin applies max_size: a configuration that is only validated, or fails,
// leaves the running store as it is.
func (s *MemoryStore) Begin() error {
	size := s.MaxSize
	if size == 0 {
		size = defaultMemory
	}
	s.entry.limitStore.SetMaxBytes(int64(size / 2))
	s.entry.values.SetMaxBytes(int64(size / 2))
	return nil
}

// Validate refuses a size in which nothing would fit.
func (s *MemoryStore) Validate() error {
	if s.MaxSize != 0 && s.MaxSize < 1<<20 {
		return fmt.Errorf("max_size: at least 1MiB")
	}
	return nil
}

// Cleanup gives the store back.
func (s *MemoryStore) Cleanup() error { return s.held.release() }

// Values is the short-lived store.
func (s *MemoryStore) Values() shortlived.Store { return s.entry.values }

// Limits counts requests.
func (s *MemoryStore) Limits() *ratelimit.Shared { return s.entry.limits }

// Shared is false: no other gateway sees this store.
func (s *MemoryStore) Shared() bool { return false }

// Sessions is nil: sessions must survive a restart.
func (s *MemoryStore) Sessions() *SessionKeeper { return nil }

// Ping always succeeds.
func (s *MemoryStore) Ping(context.Context) error { return nil }

// UnmarshalCaddyfile reads the store:
//
//	store memory {
//		max_size <size>
//	}
func (s *MemoryStore) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // module name
	if d.NextArg() {
		return d.ArgErr()
	}
	seen := once{}
	for d.NextBlock(0) {
		if d.Val() != "max_size" {
			return unknownWord(d, "max_size")
		}
		if err := seen.check(d); err != nil {
			return err
		}
		if err := parseSize(d, &s.MaxSize); err != nil {
			return err
		}
	}
	return nil
}

// RedisSettings are how a Redis or Valkey server is reached. Strings may hold
// {env.NAME}, {file./absolute/path} and {system.*} placeholders.
type RedisSettings struct {
	// redis://user:password@host:port/database, or rediss:// for TLS. Give this
	// or addresses.
	URL string `json:"url,omitempty"`

	// The server's host:port, or the path of its Unix socket.
	Addresses []string `json:"addresses,omitempty"`

	// User of Redis's access control lists. Default: the default user.
	Username string `json:"username,omitempty"`

	// Password of the user.
	Password string `json:"password,omitempty"`

	// Number of the database. Default: 0.
	DB int `json:"db,omitempty"`

	// Connect by TLS, the certificate checked against the system's roots.
	TLS bool `json:"tls,omitempty"`

	// What every key begins with. Default: gatehouse:.
	KeyPrefix string `json:"key_prefix,omitempty"`

	// How long a command may take. Default: 250ms.
	Timeout caddy.Duration `json:"timeout,omitempty"`
}

// options expands the settings. Errors never repeat a secret.
func (s *RedisSettings) options() (redisconn.Options, error) {
	var o redisconn.Options
	rawURL, err := expand("redis url", s.URL)
	if err != nil {
		return o, err
	}
	switch {
	case rawURL != "" && len(s.Addresses) > 0:
		return o, errors.New("redis: give a URL or addresses, not both")
	case rawURL != "":
		if o, err = redisconn.ParseURL(rawURL); err != nil {
			return o, err
		}
	case len(s.Addresses) == 1:
		if o.Address, err = expand("redis address", s.Addresses[0]); err != nil {
			return o, err
		}
	case len(s.Addresses) > 1:
		return o, errors.New("redis: this version takes one address")
	default:
		return o, errors.New("redis: no address")
	}
	username, err := expand("redis username", s.Username)
	if err != nil {
		return o, err
	}
	password, err := expand("redis password", s.Password)
	if err != nil {
		return o, err
	}
	if username != "" {
		o.Username = username
	}
	if password != "" {
		o.Password = password
	}
	if s.DB != 0 {
		o.DB = s.DB
	}
	if s.TLS && o.TLS == nil {
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	o.Prefix = "gatehouse:"
	if s.KeyPrefix != "" {
		o.Prefix = s.KeyPrefix
	}
	o.Timeout = time.Duration(s.Timeout)
	return o, nil
}

// pooledRedis takes the connection with these settings.
func pooledRedis(module caddy.Module, s *RedisSettings) (*redisEntry, held, error) {
	o, err := s.options()
	if err != nil {
		return nil, held{}, err
	}
	shape := struct {
		redisconn.Options
		TLS bool
	}{o, o.TLS != nil}
	shape.Options.TLS = nil
	key := poolKey("redis", shape)
	entry, err := acquire(redisPool, key, func() (*redisEntry, error) { return newRedisEntry(o, processLogger(module)) })
	return entry, held{redisPool, key}, err
}

type redisEntry struct {
	conn     *redisconn.Conn
	server   string // its address
	log      *slog.Logger
	begun    sync.Once
	policy   *policyWatch
	limits   *ratelimit.Shared
	values   shortlived.Store
	sessions *SessionKeeper
}

func newRedisEntry(o redisconn.Options, log *slog.Logger) (*redisEntry, error) {
	conn, err := redisconn.Open(o)
	if err != nil {
		return nil, err
	}
	local := limitmemory.New(limitmemory.Options{MaxBytes: int64(defaultMemory / 2)})
	return &redisEntry{
		conn:     conn,
		server:   o.Address,
		log:      log,
		limits:   ratelimit.NewShared(limitredis.New(conn), ratelimit.SharedOptions{Timeout: conn.Timeout(), Local: local}),
		values:   valueredis.New(valueredis.Options{Conn: conn, Logger: log}),
		sessions: newSessionKeeper(sessionredis.New(sessionredis.Options{Conn: conn, Logger: log})),
	}, nil
}

// begin starts what must not run for a configuration that is only validated.
func (e *redisEntry) begin() {
	e.begun.Do(func() { e.policy = watchPolicy(e.conn, e.server, e.log) })
}

// Destruct closes the connections.
func (e *redisEntry) Destruct() error {
	e.begun.Do(func() {}) // a begin at the same time is over then, and none comes later
	return closeAll(e.policy.stop, e.limits.Close, e.sessions.Shared.Close, e.conn.Close)
}

// RedisStore keeps limits, short-lived values and (unless configured
// otherwise) session records in Redis 6.2 or later, or Valkey, shared by all
// gateways. Its connections survive a reload.
type RedisStore struct {
	RedisSettings

	entry *redisEntry
	held  held
}

// CaddyModule returns the module's ID and constructor.
func (RedisStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "gatehouse.stores.redis", New: func() caddy.Module { return new(RedisStore) }}
}

// Provision takes the connections; it does not connect.
func (s *RedisStore) Provision(caddy.Context) error {
	entry, h, err := pooledRedis(s, &s.RedisSettings)
	if err != nil {
		return err
	}
	s.entry, s.held = entry, h
	return nil
}

// Cleanup gives the connections back.
func (s *RedisStore) Cleanup() error { return s.held.release() }

// Values is the short-lived store.
func (s *RedisStore) Values() shortlived.Store { return s.entry.values }

// Limits counts requests.
func (s *RedisStore) Limits() *ratelimit.Shared { return s.entry.limits }

// Shared is true: all gateways see this store.
func (s *RedisStore) Shared() bool { return true }

// Sessions keeps sessions in the same Redis.
func (s *RedisStore) Sessions() *SessionKeeper { return s.entry.sessions }

// Begin starts to watch whether the server may evict keys.
func (s *RedisStore) Begin() error {
	s.entry.begin()
	return nil
}

// Ping asks Redis for a sign of life.
func (s *RedisStore) Ping(ctx context.Context) error { return s.entry.conn.Ping(ctx) }

// UnmarshalCaddyfile reads the store:
//
//	store redis [<url>] {
//		addresses <host:port>
//		username <user>
//		password <password>
//		db <number>
//		tls
//		key_prefix <prefix>
//		timeout <duration>
//	}
func (s *RedisStore) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // module name
	return s.RedisSettings.parse(d)
}

// parse reads the URL and the block.
func (s *RedisSettings) parse(d *caddyfile.Dispenser) error {
	if d.NextArg() {
		s.URL = d.Val()
		if d.NextArg() {
			return d.ArgErr()
		}
	}
	seen := once{}
	for d.NextBlock(0) {
		if err := seen.check(d); err != nil {
			return err
		}
		var err error
		switch d.Val() {
		case "addresses":
			err = parseList(d, &s.Addresses)
		case "username":
			err = parseString(d, &s.Username)
		case "password":
			err = parseString(d, &s.Password)
		case "db":
			var n int64
			err = parseCount(d, &n, 0)
			s.DB = int(n)
		case "tls":
			err = parseFlag(d, &s.TLS)
		case "key_prefix":
			err = parseString(d, &s.KeyPrefix)
		case "timeout":
			err = parseDuration(d, &s.Timeout)
		default:
			err = unknownWord(d, "addresses", "username", "password", "db", "tls", "key_prefix", "timeout")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var (
	_ StoreProvider         = (*MemoryStore)(nil)
	_ caddy.Provisioner     = (*MemoryStore)(nil)
	_ caddy.Validator       = (*MemoryStore)(nil)
	_ caddy.CleanerUpper    = (*MemoryStore)(nil)
	_ caddyfile.Unmarshaler = (*MemoryStore)(nil)
	_ StoreProvider         = (*RedisStore)(nil)
	_ caddy.Provisioner     = (*RedisStore)(nil)
	_ caddy.CleanerUpper    = (*RedisStore)(nil)
	_ caddyfile.Unmarshaler = (*RedisStore)(nil)
)
