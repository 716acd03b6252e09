package caddymodule

import (
	"errors"
	"path/filepath"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	sessionfile "github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore/file"
)

// dataPath is a place below Caddy's data directory.
func dataPath(elem ...string) string {
	return filepath.Join(append([]string{caddy.AppDataDir(), "gatehouse"}, elem...)...)
}

// FileSessionStore keeps session records in an embedded database file. It is
// for a single gateway: one process holds the file at a time.
type FileSessionStore struct {
	// The file. Default: gatehouse/sessions.db in Caddy's data directory. It is
	// made when the first session starts.
	Path string `json:"path,omitempty"`

	entry *sessionFileEntry
	held  held
}

type sessionFileEntry struct {
	store  *sessionfile.Store
	keeper *SessionKeeper
}

// Destruct closes the file.
func (e *sessionFileEntry) Destruct() error { return closeAll(e.keeper.Shared.Close, e.store.Close) }

// CaddyModule returns the module's ID and constructor.
func (FileSessionStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "gatehouse.session_stores.file", New: func() caddy.Module { return new(FileSessionStore) }}
}

// Provision takes the file's store; the file is not touched.
func (s *FileSessionStore) Provision(caddy.Context) error {
	path, err := expand("session_store file path", s.Path)
	if err != nil {
		return err
	}
	if path == "" {
		path = dataPath("sessions.db")
	}
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	key := poolKey("sessionfile", path)
	entry, err := acquire(sessionFilePool, key, func() (*sessionFileEntry, error) {
		store, err := sessionfile.Open(sessionfile.Options{Path: path, Logger: processLogger(s)})
		if err != nil {
			return nil, err
		}
		return &sessionFileEntry{store, newSessionKeeper(store)}, nil
	})
	if err != nil {
		return err
	}
	s.entry, s.held = entry, held{sessionFilePool, key}
	return nil
}

// Cleanup gives the store back.
func (s *FileSessionStore) Cleanup() error { return s.held.release() }

// Sessions returns the store.
func (s *FileSessionStore) Sessions() *SessionKeeper { return s.entry.keeper }

// UnmarshalCaddyfile reads the store:
//
//	session_store file [<path>]
func (s *FileSessionStore) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // module name
	if d.NextArg() {
		s.Path = d.Val()
		if d.NextArg() {
			return d.ArgErr()
		}
	}
	return noBlock(d, "session_store file")
}

// RedisSessionStore keeps session records in Redis. Without an address it uses
// the connection of the store.
type RedisSessionStore struct {
	RedisSettings

	sessions *SessionKeeper
	entry    *redisEntry // nil: the store's
	held     held
}

// CaddyModule returns the module's ID and constructor.
func (RedisSessionStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "gatehouse.session_stores.redis", New: func() caddy.Module { return new(RedisSessionStore) }}
}

// Provision takes a connection of its own, where an address is given.
func (s *RedisSessionStore) Provision(caddy.Context) error {
	if s.URL == "" && len(s.Addresses) == 0 {
		return nil
	}
	entry, h, err := pooledRedis(s, &s.RedisSettings)
	if err != nil {
		return err
	}
	s.sessions, s.entry, s.held = entry.sessions, entry, h
	return nil
}

// Begin starts to watch whether the server may evict keys.
func (s *RedisSessionStore) Begin() error {
	if s.entry != nil {
		s.entry.begin()
	}
	return nil
}

func (s *RedisSessionStore) useStore(store StoreProvider) error {
	if s.sessions != nil {
		return nil
	}
	if s.sessions = store.Sessions(); s.sessions == nil {
		return errors.New("redis without an address needs store redis")
	}
	return nil
}

// Cleanup gives the connection back.
func (s *RedisSessionStore) Cleanup() error { return s.held.release() }

// Sessions returns the store.
func (s *RedisSessionStore) Sessions() *SessionKeeper { return s.sessions }

// UnmarshalCaddyfile reads the store:
//
//	session_store redis [<url>] { … }
//
// with the subdirectives of store redis.
func (s *RedisSessionStore) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // module name
	return s.RedisSettings.parse(d)
}

var (
	_ SessionStoreProvider  = (*FileSessionStore)(nil)
	_ caddy.Provisioner     = (*FileSessionStore)(nil)
	_ caddy.CleanerUpper    = (*FileSessionStore)(nil)
	_ caddyfile.Unmarshaler = (*FileSessionStore)(nil)
	_ SessionStoreProvider  = (*RedisSessionStore)(nil)
	_ needsStore            = (*RedisSessionStore)(nil)
	_ beginner              = (*RedisSessionStore)(nil)
	_ caddy.Provisioner     = (*RedisSessionStore)(nil)
	_ caddy.CleanerUpper    = (*RedisSessionStore)(nil)
	_ caddyfile.Unmarshaler = (*RedisSessionStore)(nil)
)
