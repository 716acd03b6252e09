// Package sessionstore is the contract of the stores that keep session
// records. A store knows keys, bytes and times, nothing of HTTP or tokens.
//
// A record is found by its site and the session's public id. Every method is
// one atomic step over all gateways that share the store, and is safe for
// concurrent use. An expired record is absent. A session that was ended is
// absent for good: no method brings it back.
//
// Absent is not broken: a store answers ErrNotFound for what is not there, and
// another error only when it cannot tell. After such an error a write may have
// happened or not.
//
// Ids are used once: whoever makes a new session draws a new id, also when it
// tries a start again whose outcome it was not told.
//
// A context that is done before a method began leaves everything as it is, and
// its error is returned.
package sessionstore

import (
	"context"
	"errors"
	"time"
)

// Errors that callers branch on.
var (
	// ErrNotFound means that the session does not exist, has expired, or was
	// ended.
	ErrNotFound = errors.New("sessionstore: not found")
	// ErrConflict means that the session is there, but not in the generation
	// that the caller had seen.
	ErrConflict = errors.New("sessionstore: generation has moved on")
	// ErrExists means that the id of a new session is taken.
	ErrExists = errors.New("sessionstore: id is taken")
)

// ID is the public id of a session: 128 bits derived one way from its secret
// id. It is good for logs and look-ups and useless as a credential.
type ID [16]byte

// IsZero reports whether the id is unset.
func (id ID) IsZero() bool { return id == ID{} }

// Key finds a record.
type Key struct {
	Site string // lower-case host or configured name; part of every stored key
	ID   ID
}

// Record is what is kept of a session. Times have millisecond precision and
// come from the store's clock, unless the caller is said to set them.
type Record struct {
	User          string // 1 to 255 bytes of UTF-8
	Claims        []byte // a JSON object, at most 4 KiB
	ClaimsVersion uint32 // 1 at start, +1 whenever the claims are replaced
	Generation    uint32 // 0 at start, +1 at each refresh; after the last comes 0
	Created       time.Time
	Refreshed     time.Time     // when the generation last moved
	Lifetime      time.Duration // sliding: the record expires that long after Refreshed
	Until         time.Time     // absolute end; zero means none
	Persistent    bool
	Device        string // User-Agent, at most 512 bytes
	IP            string
}

// Expires returns when the record expires if nothing refreshes it.
func (r *Record) Expires() time.Time {
	end := r.Refreshed.Add(r.Lifetime)
	if !r.Until.IsZero() && r.Until.Before(end) {
		return r.Until
	}
	return end
}

// End names sessions to end: one of them, or all of a user but one.
type End struct {
	// User owns the sessions. A session of another user is left alone.
	User string
	// ID is the one session to end. Zero: every session of the user.
	ID ID
	// Except is left alone when ID is zero.
	Except ID
}

// Ended is a session that a call has ended.
type Ended struct {
	ID   ID
	User string
}

// Start is a session to be created.
type Start struct {
	Key        Key
	User       string
	Claims     []byte
	Lifetime   time.Duration
	MaxAge     time.Duration // absolute lifetime; zero means none
	Persistent bool
	Device     string
	IP         string
}

// Refresh is what a refresh writes.
type Refresh struct {
	// Generation is the one that the caller has seen. The write happens only
	// if the record is still in it.
	Generation uint32
	Lifetime   time.Duration
	Device     string
	IP         string
}

// Update is a change to a live session.
type Update struct {
	// Claims replace the record's; nil leaves them unchanged.
	Claims []byte
	// NewID, when not zero, moves the session to a new id in the same step:
	// the old id is ended, the generation of the new one is 0, and Refreshed is
	// now.
	NewID ID
}

// Listed is a session of a user.
type Listed struct {
	ID     ID
	Record Record
}

// Store keeps session records.
type Store interface {
	// Get returns the record and the store's present time, in one round trip.
	Get(ctx context.Context, key Key) (Record, time.Time, error)

	// Start creates a session in generation 0 and ends others, in one step.
	// It returns the record as stored and the sessions that it ended. Nothing
	// is changed when it fails, ErrExists included. The new session is never
	// among the ended, whatever ends name.
	Start(ctx context.Context, s Start, ends ...End) (Record, []Ended, error)

	// Refresh moves the record to the next generation if it is still in the
	// one that the caller has seen: Generation+1, Refreshed now. It returns
	// the record as stored, ErrConflict or ErrNotFound.
	Refresh(ctx context.Context, key Key, r Refresh) (Record, error)

	// Update changes a live session and ends others, in one step. It returns
	// the record as stored (under NewID when set) and what it ended, the old
	// id not included, or ErrNotFound, or ErrExists for a NewID that is taken;
	// nothing is changed then. The session itself is never among the ended,
	// whatever ends name.
	Update(ctx context.Context, key Key, u Update, ends ...End) (Record, []Ended, error)

	// End ends sessions of a site and returns those that were alive, each once,
	// in no particular order. Ending what is not there succeeds. It ends also
	// what this version cannot read.
	End(ctx context.Context, site string, ends ...End) ([]Ended, error)

	// List returns the live sessions of a user, the newest first.
	List(ctx context.Context, site, user string) ([]Listed, error)
}

// Finder is an optional ability: to end or find a session by its public id
// alone, for operators.
type Finder interface {
	// Remove ends the session with that id, whoever owns it.
	Remove(ctx context.Context, key Key) ([]Ended, error)
}
