// Package redis keeps sessions in Redis 6.2 or later, or Valkey, for any number
// of gateways.
//
// # Guarantees
//
//   - Every operation is one Lua script and one round trip (a second one when
//     the server does not know the script yet, after its start). The server
//     runs scripts one at a time, so each operation is atomic over all
//     gateways: of many refreshes of one generation one wins, and nothing
//     revives a session that was ended.
//   - The server's TIME decides, never a gateway's clock.
//   - Every key expires with what it holds: a session at its end, a user's
//     index with the last of its sessions. Nothing needs cleaning.
//   - A full server (maxmemory, noeviction) refuses starts, refreshes and
//     updates whole and still ends sessions.
//   - A reply or a stored session that is not as expected is an error. A session
//     of another format version counts as absent, is logged as a warning once a
//     minute at most, and can be ended.
//
// # Limits
//
// As durable as the server: a fail-over may forget the last writes. A server
// that evicts keys may lose sessions, or a user's index, in which case ending
// all sessions of that user misses some until their next refresh.
//
// An operation that answers with another error than the contract's may have
// happened or not; nothing is tried again here. What a lost reply leaves:
//
//   - Start: a session whose secret id nobody was told, which expires unused;
//     the ends that came with it hold.
//   - Refresh: a generation that no client has; its client is one behind, which
//     the grace period covers.
//   - Update with a new id: a session that its client cannot name any more; the
//     client is signed out, and the session expires.
//   - End: ended, or not; ending it again is right in both cases.
//
// # Keys
//
//	<prefix>s:<site>:<id>      a session, a hash
//	<prefix>u:<site>:<user>    the ids of a user's sessions by expiry, a sorted set
//
// Site and user are 192 bits of SHA-256 in base64url, the id is 128 bits in
// base64url: parts of fixed length in an alphabet without the separator, so
// nothing that a client chooses can stand for something else.
//
// # Rights
//
// A user for this store alone needs:
//
//	~<prefix>s:* ~<prefix>u:* +evalsha +eval +time +exists +pttl +pexpireat
//	+hget +hmget +hset +del +rename +zadd +zrem +zscore +zrevrange
//	+zrangebyscore +zremrangebyscore
//
// # Cluster
//
// Scripts are given the keys that are known beforehand; those of a user's
// further sessions, and the index of a session that is found by its id, are
// built inside the script. A cluster needs all of them in one slot, that is a
// hash tag around the site, and with it one site on one shard; spreading a site
// needs operations in several steps.
package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse-gateway/gatehouse/internal/redisconn"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

var (
	//go:embed lua/lib.lua
	luaLib string
	//go:embed lua/get.lua
	luaGet string
	//go:embed lua/start.lua
	luaStart string
	//go:embed lua/refresh.lua
	luaRefresh string
	//go:embed lua/update.lua
	luaUpdate string
	//go:embed lua/end.lua
	luaEnd string
	//go:embed lua/remove.lua
	luaRemove string
	//go:embed lua/list.lua
	luaList string

	scriptGet     = redis.NewScript(luaLib + luaGet)
	scriptStart   = redis.NewScript(luaLib + luaStart)
	scriptRefresh = redis.NewScript(luaLib + luaRefresh)
	scriptUpdate  = redis.NewScript(luaLib + luaUpdate)
	scriptEnd     = redis.NewScript(luaLib + luaEnd)
	scriptRemove  = redis.NewScript(luaLib + luaRemove)
	scriptList    = redis.NewScript(luaLib + luaList)
)

// Options of a Store.
type Options struct {
	Conn   *redisconn.Conn // stays the caller's, who closes it
	Logger *slog.Logger    // nil discards
}

// Store is a sessionstore.Store and sessionstore.Finder on one Redis server.
type Store struct {
	conn *redisconn.Conn
	log  *slog.Logger

	lastWarning atomic.Int64 // milliseconds
}

var (
	_ sessionstore.Store  = (*Store)(nil)
	_ sessionstore.Finder = (*Store)(nil)
)

// New makes a Store. It does no I/O.
func New(o Options) *Store {
	s := &Store{conn: o.Conn, log: o.Logger}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return s
}

// Get implements sessionstore.Store.
func (s *Store) Get(ctx context.Context, key sessionstore.Key) (sessionstore.Record, time.Time, error) {
	if err := key.Check(); err != nil {
		return sessionstore.Record{}, time.Time{}, err
	}
	r, err := s.run(ctx, "get", scriptGet, []string{s.site(key.Site).record(key.ID)})
	if err != nil {
		return sessionstore.Record{}, time.Time{}, err
	}
	return r.timedRecord()
}

// Start implements sessionstore.Store.
func (s *Store) Start(ctx context.Context, start sessionstore.Start, ends ...sessionstore.End) (sessionstore.Record, []sessionstore.Ended, error) {
	if err := errors.Join(start.Check(), sessionstore.CheckEnds(start.Key.Site, ends)); err != nil {
		return sessionstore.Record{}, nil, err
	}
	site := s.site(start.Key.Site)
	owner := hash(start.User)
	keys := []string{site.record(start.Key.ID), site.indexes + owner}
	args := []any{
		idText(start.Key.ID), site.records, owner, start.User, start.Claims, millis(start.Lifetime), millis(start.MaxAge),
		flag(start.Persistent), start.Device, start.IP,
	}
	keys, args = site.appendEnds(keys, args, ends)
	r, err := s.run(ctx, "start", scriptStart, keys, args...)
	if err != nil {
		return sessionstore.Record{}, nil, err
	}
	return r.recordAndEnded(ends)
}

// Refresh implements sessionstore.Store.
func (s *Store) Refresh(ctx context.Context, key sessionstore.Key, f sessionstore.Refresh) (sessionstore.Record, error) {
	if err := errors.Join(key.Check(), f.Check()); err != nil {
		return sessionstore.Record{}, err
	}
	site := s.site(key.Site)
	r, err := s.run(ctx, "refresh", scriptRefresh, []string{site.record(key.ID)},
		idText(key.ID), site.indexes, strconv.FormatUint(uint64(f.Generation), 10), millis(f.Lifetime), f.Device, f.IP)
	if err != nil {
		return sessionstore.Record{}, err
	}
	rec, _, err := r.timedRecord()
	return rec, err
}

// Update implements sessionstore.Store.
func (s *Store) Update(ctx context.Context, key sessionstore.Key, u sessionstore.Update, ends ...sessionstore.End) (sessionstore.Record, []sessionstore.Ended, error) {
	if err := errors.Join(key.Check(), u.Check(), sessionstore.CheckEnds(key.Site, ends)); err != nil {
		return sessionstore.Record{}, nil, err
	}
	site := s.site(key.Site)
	keys := []string{site.record(key.ID), site.record(key.ID)}
	moved := ""
	if !u.NewID.IsZero() {
		moved, keys[1] = idText(u.NewID), site.record(u.NewID)
	}
	args := []any{idText(key.ID), moved, site.records, site.indexes, flag(u.Claims != nil), u.Claims}
	keys, args = site.appendEnds(keys, args, ends)
	r, err := s.run(ctx, "update", scriptUpdate, keys, args...)
	if err != nil {
		return sessionstore.Record{}, nil, err
	}
	return r.recordAndEnded(ends)
}

// End implements sessionstore.Store.
func (s *Store) End(ctx context.Context, site string, ends ...sessionstore.End) ([]sessionstore.Ended, error) {
	if err := sessionstore.CheckEnds(site, ends); err != nil {
		return nil, err
	}
	at := s.site(site)
	keys, args := at.appendEnds(nil, []any{at.records}, ends)
	r, err := s.run(ctx, "end", scriptEnd, keys, args...)
	if err != nil {
		return nil, err
	}
	return r.ended(1, ends)
}

// Remove implements sessionstore.Finder.
func (s *Store) Remove(ctx context.Context, key sessionstore.Key) ([]sessionstore.Ended, error) {
	if err := key.Check(); err != nil {
		return nil, err
	}
	site := s.site(key.Site)
	r, err := s.run(ctx, "remove", scriptRemove, []string{site.record(key.ID)}, idText(key.ID), site.indexes)
	if errors.Is(err, sessionstore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	user, err := r.user()
	if err != nil {
		return nil, err
	}
	return []sessionstore.Ended{{ID: key.ID, User: user}}, nil
}

// List implements sessionstore.Store.
func (s *Store) List(ctx context.Context, site, user string) ([]sessionstore.Listed, error) {
	if err := sessionstore.CheckUser(site, user); err != nil {
		return nil, err
	}
	at := s.site(site)
	r, err := s.run(ctx, "list", scriptList, []string{at.indexes + hash(user)}, at.records)
	if err != nil {
		return nil, err
	}
	list, versions, err := r.listed()
	if err != nil {
		return nil, err
	}
	for _, v := range versions {
		s.warn(v)
	}
	slices.SortFunc(list, sessionstore.CompareNewest)
	return list, nil
}

// run runs a script and returns its reply, if it is one of success.
func (s *Store) run(ctx context.Context, name string, script *redis.Script, keys []string, args ...any) (reply, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := s.conn.WithTimeout(ctx)
	defer cancel()
	v, err := s.conn.Run(ctx, script, keys, args...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("redis session store: %s: %w", name, err)
	}
	r, err := parse(v) // no script answers nil, and in no case does nil mean absence
	if v, ok := errors.AsType[versionError](err); ok {
		s.warn(string(v))
		return nil, sessionstore.ErrNotFound
	}
	return r, err
}

// warn logs a session of another version, once a minute at most.
func (s *Store) warn(version string) {
	now, last := time.Now().UnixMilli(), s.lastWarning.Load()
	if last != 0 && now-last < time.Minute.Milliseconds() && now >= last || !s.lastWarning.CompareAndSwap(last, now) {
		return
	}
	s.log.Warn("session record cannot be read", slog.String("version", version[:min(len(version), 20)]))
}
