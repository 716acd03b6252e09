// Package storetest is the conformance suite of session stores. A store that
// passes it keeps the promises of package sessionstore: what it tells of a
// session, what it never does (revive an ended session, let two refreshes of
// one generation win, touch another user or site, read a fault as absence),
// and what it leaves behind.
package storetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// Options say what the suite can do with a store.
type Options struct {
	// Advance moves the store's clock. Nil: real time passes.
	Advance func(d time.Duration)
	// Second opens another store on the data of the first. Unless Shared, the
	// first is not used any more. Nil: there is no such thing.
	Second func(t *testing.T, first sessionstore.Store) sessionstore.Store
	// Shared says that both stores are good at the same time.
	Shared bool
	// Leftovers names what is still stored after its clean-up had time to run.
	// Nil: cannot be told.
	Leftovers func(t *testing.T, s sessionstore.Store) []string
	// Outages are ways in which the store can be away.
	Outages []Outage
	// Timeout is how long an operation may take while the store is away.
	// Default: 2s.
	Timeout time.Duration
	// Rounds of each race. Default: 200.
	Rounds int
}

// Outage is a way in which a store can be away.
type Outage struct {
	Name string
	// Open returns a store, with a function that begins the outage and one
	// that ends it. The session that the suite starts before may be lost by it.
	Open func(t *testing.T) (s sessionstore.Store, begin, end func())
}

// Run runs the suite. open returns an empty store, or one whose content is out
// of the way (another prefix), and closes it when its test ends.
func Run(t *testing.T, open func(t *testing.T) sessionstore.Store, o Options) {
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Second
	}
	if o.Rounds == 0 {
		o.Rounds = 200
	}
	for _, test := range []struct {
		name string
		run  func(*suite)
	}{
		{"start and get", (*suite).startAndGet},
		{"start on a taken id changes nothing", (*suite).startTaken},
		{"refresh", (*suite).refresh},
		{"update", (*suite).update},
		{"rotate", (*suite).rotate},
		{"end", (*suite).end},
		{"start and update with ends", (*suite).withEnds},
		{"remove whoever owns it", (*suite).remove},
		{"list", (*suite).list},
		{"sliding expiry", (*suite).slidingExpiry},
		{"the id of an expired session", (*suite).takenAgain},
		{"absolute expiry", (*suite).absoluteExpiry},
		{"sizes and odd bytes", (*suite).sizes},
		{"out of bounds", (*suite).outOfBounds},
		{"cancelled context", (*suite).cancelled},
		{"one of fifty refreshes wins", (*suite).raceRefresh},
		{"an ended session is never revived", (*suite).raceEnd},
		{"one of two rotations wins", (*suite).raceRotate},
		{"rotation and refresh", (*suite).raceRotateRefresh},
		{"end all and start are in some order", (*suite).raceEndAllStart},
		{"two stores", (*suite).secondStore},
		{"nothing is left behind", (*suite).leftovers},
		{"random operations against a model", (*suite).model},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(newSuite(t, open(t), o)) })
	}
	for _, outage := range o.Outages {
		t.Run("away: "+outage.Name, func(t *testing.T) { runOutage(t, outage, o) })
	}
}

var siteNumber atomic.Int64

// suite is one test on one store, with a site of its own.
type suite struct {
	*testing.T
	store sessionstore.Store
	o     Options
	site  string
	ctx   context.Context
}

func newSuite(t *testing.T, store sessionstore.Store, o Options) *suite {
	site := fmt.Sprintf("site-%d.example", siteNumber.Add(1))
	return &suite{T: t, store: store, o: o, site: site, ctx: t.Context()}
}

// NewID returns a random id.
func NewID() (id sessionstore.ID) {
	_, _ = rand.Read(id[:])
	return id
}

func (s *suite) key() sessionstore.Key { return sessionstore.Key{Site: s.site, ID: NewID()} }

func template(key sessionstore.Key, user string) sessionstore.Start {
	return sessionstore.Start{
		Key: key, User: user, Claims: []byte(`{"role":"admin"}`), Lifetime: time.Hour, MaxAge: 24 * time.Hour,
		Persistent: true, Device: "Agent/1.0", IP: "192.0.2.1",
	}
}

func (s *suite) begin(user string) (sessionstore.Key, sessionstore.Record) {
	s.Helper()
	key := s.key()
	return key, s.mustStart(template(key, user))
}

func (s *suite) mustStart(start sessionstore.Start, ends ...sessionstore.End) sessionstore.Record {
	s.Helper()
	rec, _, err := s.store.Start(s.ctx, start, ends...)
	if err != nil {
		s.Fatalf("Start: %v", err)
	}
	return rec
}

func (s *suite) mustGet(key sessionstore.Key) (sessionstore.Record, time.Time) {
	s.Helper()
	rec, now, err := s.store.Get(s.ctx, key)
	if err != nil {
		s.Fatalf("Get: %v", err)
	}
	return rec, now
}

// wantStored fails unless Get and List give exactly that record.
func (s *suite) wantStored(key sessionstore.Key, want sessionstore.Record) {
	s.Helper()
	got, _ := s.mustGet(key)
	s.wantEqual(got, want)
	for _, l := range s.mustList(key.Site, want.User) {
		if l.ID == key.ID {
			s.wantEqual(l.Record, want)
			return
		}
	}
	s.Fatalf("List does not show the session")
}

func (s *suite) wantAbsent(keys ...sessionstore.Key) {
	s.Helper()
	for _, key := range keys {
		if _, _, err := s.store.Get(s.ctx, key); !errors.Is(err, sessionstore.ErrNotFound) {
			s.Fatalf("Get of an absent session: %v, want ErrNotFound", err)
		}
	}
}

func (s *suite) wantPresent(keys ...sessionstore.Key) {
	s.Helper()
	for _, key := range keys {
		s.mustGet(key)
	}
}

func (s *suite) wantEqual(got, want sessionstore.Record) {
	s.Helper()
	if diff := differ(got, want); diff != "" {
		s.Fatalf("record: %s", diff)
	}
}

// differ says in what two records differ.
func differ(got, want sessionstore.Record) string {
	if !bytes.Equal(got.Claims, want.Claims) {
		return fmt.Sprintf("claims %q, want %q", got.Claims, want.Claims)
	}
	type rest struct {
		user, device, ip               string
		claimsVersion, generation      uint32
		created, refreshed, until, end int64
		noUntil, persistent            bool
		lifetime                       time.Duration
	}
	flat := func(r sessionstore.Record) rest {
		return rest{r.User, r.Device, r.IP, r.ClaimsVersion, r.Generation, r.Created.UnixMicro(), r.Refreshed.UnixMicro(),
			r.Until.UnixMicro(), r.Expires().UnixMicro(), r.Until.IsZero(), r.Persistent, r.Lifetime}
	}
	if g, w := flat(got), flat(want); g != w {
		return fmt.Sprintf("%+v, want %+v", g, w)
	}
	return ""
}

func (s *suite) mustList(site, user string) []sessionstore.Listed {
	s.Helper()
	list, err := s.store.List(s.ctx, site, user)
	if err != nil {
		s.Fatalf("List: %v", err)
	}
	return list
}

// wantListed fails unless the user has exactly these sessions, in this order.
func (s *suite) wantListed(site, user string, want ...sessionstore.Key) {
	s.Helper()
	list := s.mustList(site, user)
	if len(list) != len(want) {
		s.Fatalf("List of %q: %d sessions, want %d", user, len(list), len(want))
	}
	for i, l := range list {
		if l.ID != want[i].ID || l.Record.User != user {
			s.Fatalf("List of %q, place %d: %x of %q, want %x", user, i, l.ID, l.Record.User, want[i].ID)
		}
	}
}

func (s *suite) mustEnd(ends ...sessionstore.End) []sessionstore.Ended {
	s.Helper()
	ended, err := s.store.End(s.ctx, s.site, ends...)
	if err != nil {
		s.Fatalf("End: %v", err)
	}
	return ended
}

// wantEnded fails unless the ended sessions are those, in any order.
func (s *suite) wantEnded(got []sessionstore.Ended, user string, want ...sessionstore.Key) {
	s.Helper()
	left := map[sessionstore.ID]bool{}
	for _, key := range want {
		left[key.ID] = true
	}
	for _, e := range got {
		if !left[e.ID] || e.User != user {
			s.Fatalf("ended %x of %q, want %d sessions of %q, each once", e.ID, e.User, len(want), user)
		}
		delete(left, e.ID)
	}
	if len(left) != 0 {
		s.Fatalf("%d sessions are missing among the ended", len(left))
	}
}

func (s *suite) wantError(err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Fatalf("error %v, want %v", err, want)
	}
}

// tick lets at least d pass by the store's clock.
func (s *suite) tick(d time.Duration) {
	s.Helper()
	if s.o.Advance != nil {
		s.o.Advance(d)
		return
	}
	clock := sessionstore.Key{Site: s.site + ".clock", ID: NewID()}
	s.mustStart(template(clock, "clock"))
	_, begin := s.mustGet(clock)
	s.await("the store's clock", func() bool {
		_, now := s.mustGet(clock)
		return now.Sub(begin) >= d
	})
	if _, err := s.store.End(s.ctx, clock.Site, sessionstore.End{User: "clock", ID: clock.ID}); err != nil {
		s.Fatal(err)
	}
}

// await polls a condition for up to ten seconds.
func (s *suite) await(what string, cond func() bool) {
	s.Helper()
	for deadline := time.Now().Add(10 * time.Second); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("waited for %s in vain", what)
		}
	}
}
