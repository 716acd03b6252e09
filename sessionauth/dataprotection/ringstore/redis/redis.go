// Package redis keeps a key ring in a Redis list (Redis 6.2 or later, or
// Valkey), exactly as ASP.NET Core's PersistKeysToStackExchangeRedis does: one
// entry is the text of one element, added by RPUSH and read by LRANGE 0 -1.
//
// # Guarantees
//
//   - Elements is one command, so it returns the list as it was at one moment.
//     It is whole, or an error: a list of more than 10,000 entries or 4 MiB is
//     ErrTooLarge and never cut short, and at most that much of it is held.
//   - Add stores an element once. A script looks for an equal entry before
//     RPUSH, so an Add whose reply was lost is sent again (three times in all)
//     without being doubled, also when the first one comes late. An element
//     that stands in the list twice would break the ring for .NET as well.
//   - What Add cannot read as one XML element it refuses: one bad entry fails
//     the loading of the ring for every server.
//   - Entries are written in .NET's form, without byte order mark, declaration
//     and indentation. Entries are read in any form.
//
// # Limits
//
// As durable as the server. A fail-over may forget the key that was made last,
// and a server without persistence all of them; then the tokens of those keys
// do not open any more. Use appendonly, and no maxmemory-policy that evicts.
//
// A list that is gone is an empty ring, since Redis has no empty lists: someone
// removed its last entry.
//
// A command ends after the time limit of the connection, reading included.
//
// # Keys
//
//	<key>         the list, "DataProtection-Keys" if not set
//	<key>:lock    the lock of who makes a key; expires after ten seconds
//
// The connection's key prefix is not applied: .NET has none either.
//
// # Rights
//
// A user for this repository alone needs:
//
//	~DataProtection-Keys ~DataProtection-Keys:lock
//	+lrange +lpos +rpush +set +get +del +evalsha +eval
//
// and where no keys are made, no more than:
//
//	%R~DataProtection-Keys +lrange   (Redis 7 and Valkey; before: ~ instead of %R~)
//
// # Cluster
//
// Every command and script has one key, so list and lock need no common hash
// tag. After a slot has moved, readings may be ringstore.ErrUnavailable until
// the client has read the cluster's map anew.
package redis

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse-gateway/gatehouse/internal/redisconn"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore"
)

// DefaultKey is the list that .NET uses if not told otherwise.
const DefaultKey = "DataProtection-Keys"

// addAttempts is how often an Add is sent whose outcome is not known.
const addAttempts = 3

// Options of a Repository.
type Options struct {
	Conn *redisconn.Conn // stays the caller's, who closes it
	Key  string          // of the list, without any prefix; default DefaultKey
}

// Repository is a Redis list of elements. It is safe for concurrent use.
type Repository struct {
	conn *redisconn.Conn
	key  string
}

var (
	_ ringstore.Repository = (*Repository)(nil)
	_ ringstore.Locker     = (*Repository)(nil)
)

// New makes a Repository. It does no I/O.
func New(o Options) *Repository {
	if o.Key == "" {
		o.Key = DefaultKey
	}
	return &Repository{conn: o.Conn, key: o.Key}
}

// Elements implements ringstore.Repository. An element's name is its place in
// the list, as LINDEX counts. Errors are ringstore.ErrUnavailable and those of
// this package.
func (r *Repository) Elements(ctx context.Context) ([]ringstore.Element, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	elements, err := r.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the list %s: %w", r.key, classify(err))
	}
	return elements, nil
}

// read streams the reply as it comes: any other way the client would take in a
// reply of any size.
func (r *Repository) read(ctx context.Context) ([]ringstore.Element, error) {
	ctx, cancel := r.conn.WithTimeout(ctx)
	defer cancel()
	var reply bounded
	if err := r.conn.Client().Process(ctx, redis.NewRawWriteToCmd(ctx, &reply, "lrange", r.key, 0, -1)); err != nil {
		return nil, err
	}
	return parseList(reply.bytes)
}

// addScript adds an entry that is not there yet. It hands errors on as they
// are, because Redis 6 would wrap those of redis.call.
const addScript = `
local at = redis.pcall('LPOS', KEYS[1], ARGV[1])
if at then
	return at
end
return redis.pcall('RPUSH', KEYS[1], ARGV[1])
`

var scriptAdd = redis.NewScript(addScript)

// Add implements ringstore.Repository; the name is not kept. It is
// ringstore.ErrUnavailable when it is not known whether the element was stored;
// adding the same element again is then safe.
func (r *Repository) Add(ctx context.Context, _ string, xml []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	entry, err := compact(xml)
	if err != nil {
		return fmt.Errorf("adding to the list %s: %w", r.key, err)
	}
	for attempt := 1; ; attempt++ {
		err = classify(r.run(ctx, scriptAdd, r.key, entry))
		if !errors.Is(err, errUnknownOutcome) || attempt == addAttempts || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("adding to the list %s: %w", r.key, err)
	}
	return nil
}

// run runs a script whose result does not matter.
func (r *Repository) run(ctx context.Context, script *redis.Script, key string, args ...any) error {
	ctx, cancel := r.conn.WithTimeout(ctx)
	defer cancel()
	return r.conn.Run(ctx, script, []string{key}, args...).Err()
}
