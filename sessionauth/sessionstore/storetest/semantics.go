package storetest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

func (s *suite) startAndGet() {
	key := s.key()
	s.wantAbsent(key)
	s.wantListed(s.site, "u1")
	rec := s.mustStart(template(key, "u1"))
	s.wantEqual(rec, sessionstore.Record{
		User: "u1", Claims: []byte(`{"role":"admin"}`), ClaimsVersion: 1, Generation: 0,
		Created: rec.Created, Refreshed: rec.Created, Lifetime: time.Hour, Until: rec.Created.Add(24 * time.Hour),
		Persistent: true, Device: "Agent/1.0", IP: "192.0.2.1",
	})
	s.wantStored(key, rec)
	if _, now := s.mustGet(key); now.Before(rec.Created) || now.Sub(rec.Created) > time.Minute {
		s.Errorf("the store's time is %v, the session began at %v", now, rec.Created)
	}
	if !rec.Created.Equal(rec.Created.Truncate(time.Millisecond)) {
		s.Errorf("Created %v is finer than a millisecond", rec.Created)
	}

	plain := sessionstore.Start{Key: s.key(), User: "u2", Lifetime: 90*time.Minute + 1500*time.Microsecond}
	rec = s.mustStart(plain)
	s.wantEqual(rec, sessionstore.Record{
		User: "u2", ClaimsVersion: 1, Created: rec.Created, Refreshed: rec.Created, Lifetime: 90*time.Minute + time.Millisecond,
	})
	s.wantStored(plain.Key, rec)
	s.wantAbsent(sessionstore.Key{Site: "other.example", ID: key.ID})
}

func (s *suite) startTaken() {
	key, rec := s.begin("u1")
	other, _ := s.begin("u2")
	again := template(key, "u2")
	again.Claims = []byte(`{}`)
	_, ended, err := s.store.Start(s.ctx, again, sessionstore.End{User: "u2"}, sessionstore.End{User: "u1", ID: key.ID})
	s.wantError(err, sessionstore.ErrExists)
	s.wantEnded(ended, "")
	s.wantStored(key, rec)
	s.wantPresent(other)
	s.wantListed(s.site, "u2", other)
}

func (s *suite) refresh() {
	key, rec := s.begin("u1")
	other, otherRec := s.begin("u1")
	for generation := range uint32(3) {
		s.tick(2 * time.Millisecond)
		got, err := s.store.Refresh(s.ctx, key, sessionstore.Refresh{
			Generation: generation, Lifetime: 2 * time.Hour, Device: "Agent/2.0", IP: "2001:db8::1",
		})
		if err != nil {
			s.Fatal(err)
		}
		if !got.Refreshed.After(rec.Refreshed) {
			s.Errorf("Refreshed stays at %v", got.Refreshed)
		}
		rec.Generation, rec.Refreshed = generation+1, got.Refreshed
		rec.Lifetime, rec.Device, rec.IP = 2*time.Hour, "Agent/2.0", "2001:db8::1"
		s.wantEqual(got, rec)
		s.wantStored(key, rec)
	}
	for _, generation := range []uint32{0, 2, 4, 1 << 31, 1<<32 - 1} {
		_, err := s.store.Refresh(s.ctx, key, sessionstore.Refresh{Generation: generation, Lifetime: time.Minute})
		s.wantError(err, sessionstore.ErrConflict)
	}
	s.wantStored(key, rec)
	s.wantStored(other, otherRec)
	_, err := s.store.Refresh(s.ctx, s.key(), sessionstore.Refresh{Lifetime: time.Hour})
	s.wantError(err, sessionstore.ErrNotFound)
}

func (s *suite) update() {
	key, rec := s.begin("u1")
	for _, claims := range [][]byte{[]byte(`{"a":1}`), {}, []byte(`{}`)} {
		got, ended, err := s.store.Update(s.ctx, key, sessionstore.Update{Claims: claims})
		if err != nil {
			s.Fatal(err)
		}
		s.wantEnded(ended, "")
		rec.Claims, rec.ClaimsVersion = claims, rec.ClaimsVersion+1
		s.wantEqual(got, rec)
		s.wantStored(key, rec)
	}
	got, _, err := s.store.Update(s.ctx, key, sessionstore.Update{})
	s.wantError(err, nil)
	s.wantEqual(got, rec)
	s.wantStored(key, rec)

	mine, _ := s.begin("u1")
	_, _, err = s.store.Update(s.ctx, s.key(), sessionstore.Update{Claims: []byte(`{}`)}, sessionstore.End{User: "u1"})
	s.wantError(err, sessionstore.ErrNotFound)
	s.wantPresent(key, mine)
}

func (s *suite) rotate() {
	old, rec := s.begin("u1")
	if _, err := s.store.Refresh(s.ctx, old, sessionstore.Refresh{Lifetime: 3 * time.Hour, Device: "d", IP: "i"}); err != nil {
		s.Fatal(err)
	}
	s.tick(2 * time.Millisecond)
	moved := s.key()
	got, ended, err := s.store.Update(s.ctx, old, sessionstore.Update{Claims: []byte(`{"b":2}`), NewID: moved.ID})
	if err != nil {
		s.Fatal(err)
	}
	s.wantEnded(ended, "")
	if !got.Refreshed.After(rec.Refreshed) {
		s.Errorf("Refreshed stays at %v", got.Refreshed)
	}
	rec.Claims, rec.ClaimsVersion, rec.Generation, rec.Refreshed = []byte(`{"b":2}`), 2, 0, got.Refreshed
	rec.Lifetime, rec.Device, rec.IP = 3*time.Hour, "d", "i"
	s.wantEqual(got, rec)
	s.wantStored(moved, rec)
	s.wantAbsent(old)
	s.wantListed(s.site, "u1", moved)

	_, err = s.store.Refresh(s.ctx, old, sessionstore.Refresh{Generation: 1, Lifetime: time.Hour})
	s.wantError(err, sessionstore.ErrNotFound)
	_, _, err = s.store.Update(s.ctx, old, sessionstore.Update{NewID: NewID()})
	s.wantError(err, sessionstore.ErrNotFound)
	s.wantEnded(s.mustEnd(sessionstore.End{User: "u1", ID: old.ID}), "")

	taken, takenRec := s.begin("u2")
	for _, id := range []sessionstore.ID{taken.ID, moved.ID} {
		_, _, err = s.store.Update(s.ctx, moved, sessionstore.Update{Claims: []byte(`{}`), NewID: id}, sessionstore.End{User: "u2"})
		s.wantError(err, sessionstore.ErrExists)
	}
	s.wantStored(moved, rec)
	s.wantStored(taken, takenRec)

	later := s.key()
	if got, _, err = s.store.Update(s.ctx, moved, sessionstore.Update{NewID: later.ID}); err != nil {
		s.Fatal(err)
	}
	rec.Refreshed = got.Refreshed
	s.wantStored(later, rec)
	s.wantEnded(s.mustEnd(sessionstore.End{User: "u1"}), "u1", later)
	s.wantAbsent(moved, later)
}

func (s *suite) end() {
	a, _ := s.begin("u1")
	b, _ := s.begin("u1")
	c, _ := s.begin("u1")
	foreign, _ := s.begin("u2")
	abroad := sessionstore.Key{Site: "abroad." + s.site, ID: a.ID}
	s.mustStart(template(abroad, "u1"))

	s.wantEnded(s.mustEnd(), "")
	s.wantEnded(s.mustEnd(sessionstore.End{User: "u1", ID: NewID()}), "")
	s.wantEnded(s.mustEnd(sessionstore.End{User: "u1", ID: foreign.ID}), "")
	s.wantEnded(s.mustEnd(sessionstore.End{User: "u", ID: a.ID}, sessionstore.End{User: "u11", ID: a.ID}), "")
	s.wantEnded(s.mustEnd(sessionstore.End{User: "nobody"}), "")
	s.wantPresent(a, b, c, foreign, abroad)

	s.wantEnded(s.mustEnd(sessionstore.End{User: "u1", ID: a.ID}, sessionstore.End{User: "u1", ID: a.ID}), "u1", a)
	s.wantAbsent(a)
	s.wantPresent(abroad)
	s.wantEnded(s.mustEnd(sessionstore.End{User: "u1", ID: a.ID}), "")

	d, _ := s.begin("u1")
	s.wantEnded(s.mustEnd(sessionstore.End{User: "u1", Except: c.ID}), "u1", b, d)
	s.wantAbsent(b, d)
	s.wantListed(s.site, "u1", c)
	s.wantEnded(s.mustEnd(sessionstore.End{User: "u1", Except: c.ID}), "")
	s.wantEnded(s.mustEnd(sessionstore.End{User: "u1", ID: c.ID}, sessionstore.End{User: "u1"}), "u1", c)
	s.wantPresent(foreign, abroad)
	s.wantListed(abroad.Site, "u1", abroad)

	e, _ := s.begin("u3")
	ended := s.mustEnd(sessionstore.End{User: "u2"}, sessionstore.End{User: "u3"})
	if len(ended) != 2 {
		s.Fatalf("ended %v, want a session of u2 and one of u3", ended)
	}
	for _, x := range ended {
		if want := map[sessionstore.ID]string{foreign.ID: "u2", e.ID: "u3"}[x.ID]; x.User != want {
			s.Errorf("ended %x of %q, want of %q", x.ID, x.User, want)
		}
	}
	for _, op := range s.writes(e) {
		s.wantError(op.run(s.ctx), sessionstore.ErrNotFound)
	}
	s.wantAbsent(e)
}

// writes are operations that need a live session.
func (s *suite) writes(key sessionstore.Key) []operation {
	return []operation{
		{"Refresh", func(ctx context.Context) error {
			_, err := s.store.Refresh(ctx, key, sessionstore.Refresh{Lifetime: time.Hour})
			return err
		}},
		{"Update", func(ctx context.Context) error {
			_, _, err := s.store.Update(ctx, key, sessionstore.Update{Claims: []byte(`{"u":1}`)})
			return err
		}},
		{"rotate", func(ctx context.Context) error {
			_, _, err := s.store.Update(ctx, key, sessionstore.Update{NewID: NewID()})
			return err
		}},
	}
}

type operation struct {
	name string
	run  func(ctx context.Context) error
}

func (s *suite) withEnds() {
	a, _ := s.begin("u1")
	b, _ := s.begin("u1")
	foreign, _ := s.begin("u2")
	key := s.key()
	rec, ended, err := s.store.Start(s.ctx, template(key, "u1"),
		sessionstore.End{User: "u2", ID: foreign.ID}, sessionstore.End{User: "u2", ID: a.ID})
	s.wantError(err, nil)
	s.wantEnded(ended, "u2", foreign)
	s.wantStored(key, rec)
	s.wantPresent(a, b)

	last := s.key()
	rec, ended, err = s.store.Start(s.ctx, template(last, "u1"),
		sessionstore.End{User: "u1", ID: last.ID}, sessionstore.End{User: "u1"})
	s.wantError(err, nil)
	s.wantEnded(ended, "u1", a, b, key)
	s.wantStored(last, rec)
	s.wantListed(s.site, "u1", last)

	c, _ := s.begin("u1")
	rec, ended, err = s.store.Update(s.ctx, c, sessionstore.Update{Claims: []byte(`{"c":1}`)},
		sessionstore.End{User: "u1"}, sessionstore.End{User: "u1", ID: c.ID})
	s.wantError(err, nil)
	s.wantEnded(ended, "u1", last)
	s.wantStored(c, rec)

	d, _ := s.begin("u1")
	kept, _ := s.begin("u1")
	moved := s.key()
	rec, ended, err = s.store.Update(s.ctx, c, sessionstore.Update{NewID: moved.ID},
		sessionstore.End{User: "u1", ID: moved.ID}, sessionstore.End{User: "u1", Except: kept.ID})
	s.wantError(err, nil)
	s.wantEnded(ended, "u1", d)
	s.wantStored(moved, rec)
	s.wantPresent(kept)
	s.wantAbsent(c, d)
	if rec.ClaimsVersion != 2 {
		s.Errorf("claims version %d after a rotation without claims, want 2", rec.ClaimsVersion)
	}
	_, ended, err = s.store.Update(s.ctx, moved, sessionstore.Update{}, sessionstore.End{User: "u1"})
	s.wantError(err, nil)
	s.wantEnded(ended, "u1", kept)
	s.wantListed(s.site, "u1", moved)
}

func (s *suite) remove() {
	finder, ok := s.store.(sessionstore.Finder)
	if !ok {
		return
	}
	a, _ := s.begin("u1")
	b, _ := s.begin("u1")
	ended, err := finder.Remove(s.ctx, sessionstore.Key{Site: "other.example", ID: a.ID})
	s.wantError(err, nil)
	s.wantEnded(ended, "")
	ended, err = finder.Remove(s.ctx, a)
	s.wantError(err, nil)
	s.wantEnded(ended, "u1", a)
	s.wantAbsent(a)
	s.wantListed(s.site, "u1", b)
	ended, err = finder.Remove(s.ctx, a)
	s.wantError(err, nil)
	s.wantEnded(ended, "")
}

func (s *suite) list() {
	var want []sessionstore.Key
	for range 3 {
		key, _ := s.begin("u1")
		want = append([]sessionstore.Key{key}, want...)
		s.tick(2 * time.Millisecond)
	}
	s.begin("u2")
	s.begin("u")
	abroad := sessionstore.Key{Site: "abroad." + s.site, ID: NewID()}
	s.mustStart(template(abroad, "u1"))
	if _, err := s.store.Refresh(s.ctx, want[2], sessionstore.Refresh{Lifetime: time.Hour}); err != nil {
		s.Fatal(err)
	}
	s.wantListed(s.site, "u1", want...)
	s.wantListed(s.site, "u3")
}

const short = 300 * time.Millisecond

func (s *suite) slidingExpiry() {
	start := template(s.key(), "u1")
	start.Lifetime, start.MaxAge = short, 0
	s.mustStart(start)
	sibling, _ := s.begin("u1")
	for generation := range uint32(3) {
		s.tick(short / 2)
		_, err := s.store.Refresh(s.ctx, start.Key, sessionstore.Refresh{Generation: generation, Lifetime: short})
		s.wantError(err, nil)
	}
	s.wantPresent(start.Key)
	s.tick(short)
	s.wantExpired(start.Key, "u1")
	s.wantListed(s.site, "u1", sibling)
	s.wantEnded(s.mustEnd(sessionstore.End{User: "u1"}), "u1", sibling)

	// A refresh may also shorten a life.
	key, _ := s.begin("u1")
	_, err := s.store.Refresh(s.ctx, key, sessionstore.Refresh{Lifetime: short})
	s.wantError(err, nil)
	s.tick(short)
	s.wantExpired(key, "u1")
}

// takenAgain checks that the id of an expired session is free, whether or not
// the store has deleted it yet, and that its former user has no hold on it.
func (s *suite) takenAgain() {
	start := template(s.key(), "u1")
	start.Lifetime = short
	s.mustStart(start)
	old := template(s.key(), "u2")
	s.mustStart(old)
	s.tick(short)
	again := template(start.Key, "u2")
	rec := s.mustStart(again)
	s.wantListed(s.site, "u1")
	s.wantEnded(s.mustEnd(sessionstore.End{User: "u1", ID: start.Key.ID}, sessionstore.End{User: "u1"}), "u1")
	s.wantStored(again.Key, rec)
	s.wantEnded(s.mustEnd(sessionstore.End{User: "u2"}), "u2", again.Key, old.Key)
}

func (s *suite) absoluteExpiry() {
	start := template(s.key(), "u1")
	start.Lifetime, start.MaxAge = time.Hour, 2*short
	rec := s.mustStart(start)
	if got := rec.Expires().Sub(rec.Created); got != 2*short {
		s.Errorf("expires after %v, want %v", got, 2*short)
	}
	s.tick(short)
	moved := s.key()
	rec, _, err := s.store.Update(s.ctx, start.Key, sessionstore.Update{NewID: moved.ID})
	s.wantError(err, nil)
	s.wantStored(moved, rec)
	rec, err = s.store.Refresh(s.ctx, moved, sessionstore.Refresh{Lifetime: time.Hour})
	s.wantError(err, nil)
	if got := rec.Expires().Sub(rec.Created); got != 2*short {
		s.Errorf("expires %v after its start once rotated and refreshed, want %v", got, 2*short)
	}
	s.tick(short)
	s.wantExpired(moved, "u1")
}

// wantExpired fails unless a session is absent for every operation.
func (s *suite) wantExpired(key sessionstore.Key, user string) {
	s.Helper()
	s.wantAbsent(key)
	for _, op := range s.writes(key) {
		if err := op.run(s.ctx); !errors.Is(err, sessionstore.ErrNotFound) {
			s.Fatalf("%s of an expired session: %v, want ErrNotFound", op.name, err)
		}
	}
	for _, l := range s.mustList(key.Site, user) {
		if l.ID == key.ID {
			s.Fatal("List shows an expired session")
		}
	}
	s.wantEnded(s.mustEnd(sessionstore.End{User: user, ID: key.ID}), user)
}

func (s *suite) sizes() {
	users := []string{
		"u", strings.Repeat("u", sessionstore.MaxUser), strings.Repeat("ü", 127), "a:b", "a", "b", ":", "a:", "a\nb", "a\x00b", "a\x00",
		"\x00", " ", "*", "{a}", "a}b{", "%00", "u1\r\n",
	}
	var keys []sessionstore.Key
	for _, user := range users {
		start := template(s.key(), user)
		start.Device = "Agent \xff\xfe\x00\n:" + user
		start.Claims = []byte("{\"a\":\"\\u0000\x00\xff\n:\"}")
		s.wantStored(start.Key, s.mustStart(start))
		keys = append(keys, start.Key)
	}
	big := template(sessionstore.Key{Site: strings.Repeat("s", sessionstore.MaxSite), ID: NewID()}, strings.Repeat("x", sessionstore.MaxUser))
	big.Claims = []byte(`{"c":"` + strings.Repeat("c", sessionstore.MaxClaims-8) + `"}`)
	big.Device = strings.Repeat("\xff", sessionstore.MaxDevice)
	big.IP = strings.Repeat("f", sessionstore.MaxIP)
	s.wantStored(big.Key, s.mustStart(big))
	for i, user := range users {
		s.wantListed(s.site, user, keys[i])
	}
	for i, user := range users {
		s.wantEnded(s.mustEnd(sessionstore.End{User: user}), user, keys[i])
		s.wantAbsent(keys[i])
	}
	s.oddSites()
}

func (s *suite) oddSites() {
	sites := []string{"a", "a:b", "a:", ":a", "a\x00", "a\nb", "A", "[2001:db8::1]"}
	id := NewID() // the same at every site
	for _, site := range sites {
		s.mustStart(template(sessionstore.Key{Site: s.site + site, ID: id}, "b:u"))
	}
	for _, site := range sites {
		key := sessionstore.Key{Site: s.site + site, ID: id}
		s.wantListed(key.Site, "b:u", key)
		ended, err := s.store.End(s.ctx, key.Site, sessionstore.End{User: "b:u"})
		s.wantError(err, nil)
		s.wantEnded(ended, "b:u", key)
	}
	// One text, cut into site and user at different places.
	parts := [][2]string{{"a", "bcd"}, {"ab", "cd"}, {"abc", "d"}}
	for _, p := range parts {
		s.mustStart(template(sessionstore.Key{Site: s.site + p[0], ID: id}, p[1]))
	}
	for _, p := range parts {
		key := sessionstore.Key{Site: s.site + p[0], ID: id}
		s.wantListed(key.Site, p[1], key)
		ended, err := s.store.End(s.ctx, key.Site, sessionstore.End{User: p[1]})
		s.wantError(err, nil)
		s.wantEnded(ended, p[1], key)
	}
}

func (s *suite) outOfBounds() {
	key, rec := s.begin("u1")
	long := strings.Repeat
	starts := map[string]func(*sessionstore.Start){
		"no id":            func(x *sessionstore.Start) { x.Key.ID = sessionstore.ID{} },
		"no site":          func(x *sessionstore.Start) { x.Key.Site = "" },
		"long site":        func(x *sessionstore.Start) { x.Key.Site = long("s", sessionstore.MaxSite+1) },
		"no user":          func(x *sessionstore.Start) { x.User = "" },
		"long user":        func(x *sessionstore.Start) { x.User = long("u", sessionstore.MaxUser+1) },
		"user not UTF-8":   func(x *sessionstore.Start) { x.User = "\xff" },
		"long claims":      func(x *sessionstore.Start) { x.Claims = make([]byte, sessionstore.MaxClaims+1) },
		"no lifetime":      func(x *sessionstore.Start) { x.Lifetime = 0 },
		"tiny lifetime":    func(x *sessionstore.Start) { x.Lifetime = time.Microsecond },
		"negative max age": func(x *sessionstore.Start) { x.MaxAge = -time.Hour },
		"tiny max age":     func(x *sessionstore.Start) { x.MaxAge = time.Microsecond },
		"long device":      func(x *sessionstore.Start) { x.Device = long("d", sessionstore.MaxDevice+1) },
		"long address":     func(x *sessionstore.Start) { x.IP = long("1", sessionstore.MaxIP+1) },
	}
	for name, change := range starts {
		start := template(s.key(), "u1")
		change(&start)
		if _, _, err := s.store.Start(s.ctx, start, sessionstore.End{User: "u1"}); !errors.Is(err, sessionstore.ErrInvalid) {
			s.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	none := sessionstore.Key{Site: s.site}
	for name, call := range map[string]func() error{
		"Get": func() error { _, _, err := s.store.Get(s.ctx, none); return err },
		"Refresh": func() error {
			_, err := s.store.Refresh(s.ctx, none, sessionstore.Refresh{Lifetime: time.Hour})
			return err
		},
		"Refresh lifetime": func() error { _, err := s.store.Refresh(s.ctx, key, sessionstore.Refresh{}); return err },
		"Update":           func() error { _, _, err := s.store.Update(s.ctx, none, sessionstore.Update{}); return err },
		"Update claims": func() error {
			_, _, err := s.store.Update(s.ctx, key, sessionstore.Update{Claims: make([]byte, sessionstore.MaxClaims+1)})
			return err
		},
		"Update ends": func() error {
			_, _, err := s.store.Update(s.ctx, key, sessionstore.Update{Claims: []byte(`{}`)}, sessionstore.End{})
			return err
		},
		"End without a user": func() error {
			_, err := s.store.End(s.ctx, s.site, sessionstore.End{User: "u1"}, sessionstore.End{ID: key.ID})
			return err
		},
		"End without a site": func() error { _, err := s.store.End(s.ctx, "", sessionstore.End{User: "u1"}); return err },
		"List":               func() error { _, err := s.store.List(s.ctx, s.site, ""); return err },
	} {
		if err := call(); !errors.Is(err, sessionstore.ErrInvalid) {
			s.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	s.wantStored(key, rec)
}

// all are all operations, each of which would succeed on a live session.
func (s *suite) all(key sessionstore.Key) []operation {
	ops := append(s.writes(key),
		operation{"Get", func(ctx context.Context) error { _, _, err := s.store.Get(ctx, key); return err }},
		operation{"Start", func(ctx context.Context) error {
			_, _, err := s.store.Start(ctx, template(s.key(), "u1"), sessionstore.End{User: "u1"})
			return err
		}},
		operation{"End", func(ctx context.Context) error {
			_, err := s.store.End(ctx, s.site, sessionstore.End{User: "u1"})
			return err
		}},
		operation{"List", func(ctx context.Context) error { _, err := s.store.List(ctx, s.site, "u1"); return err }},
	)
	if finder, ok := s.store.(sessionstore.Finder); ok {
		ops = append(ops, operation{"Remove", func(ctx context.Context) error { _, err := finder.Remove(ctx, key); return err }})
	}
	return ops
}

func (s *suite) cancelled() {
	key, rec := s.begin("u1")
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	late, cancelLate := context.WithDeadline(s.ctx, time.Now().Add(-time.Second))
	defer cancelLate()
	for _, op := range s.all(key) {
		if err := op.run(ctx); !errors.Is(err, context.Canceled) {
			s.Errorf("%s with a cancelled context: %v", op.name, err)
		}
		if err := op.run(late); !errors.Is(err, context.DeadlineExceeded) {
			s.Errorf("%s after its deadline: %v", op.name, err)
		}
	}
	s.wantStored(key, rec)
	s.wantListed(s.site, "u1", key)
}

func (s *suite) secondStore() {
	if s.o.Second == nil {
		return
	}
	key, rec := s.begin("u1")
	ended, _ := s.begin("u1")
	s.wantEnded(s.mustEnd(sessionstore.End{User: "u1", ID: ended.ID}), "u1", ended)
	first := s.store
	s.store = s.o.Second(s.T, first)
	s.wantStored(key, rec)
	s.wantAbsent(ended)
	rec, err := s.store.Refresh(s.ctx, key, sessionstore.Refresh{Lifetime: time.Hour, Device: "second"})
	s.wantError(err, nil)
	s.wantStored(key, rec)
	if !s.o.Shared {
		return
	}
	second := s.store
	s.store = first
	s.wantStored(key, rec)
	_, err = s.store.Refresh(s.ctx, key, sessionstore.Refresh{Lifetime: time.Hour})
	s.wantError(err, sessionstore.ErrConflict)
	s.wantEnded(s.mustEnd(sessionstore.End{User: "u1"}), "u1", key)
	s.store = second
	s.wantExpired(key, "u1")
}

func (s *suite) leftovers() {
	if s.o.Leftovers == nil {
		return
	}
	// Sessions that ended in every way there is: expired, ended, rotated away,
	// replaced, expired after a refresh, expired absolutely.
	for i := range 5 {
		start := template(s.key(), "u1")
		start.Lifetime = short
		s.mustStart(start)
		switch i {
		case 1:
			s.mustEnd(sessionstore.End{User: "u1", ID: start.Key.ID})
		case 2:
			_, _, err := s.store.Update(s.ctx, start.Key, sessionstore.Update{NewID: NewID()}, sessionstore.End{User: "u1"})
			s.wantError(err, nil)
		case 3:
			_, err := s.store.Refresh(s.ctx, start.Key, sessionstore.Refresh{Lifetime: short})
			s.wantError(err, nil)
		}
	}
	long := template(s.key(), "u2")
	long.MaxAge = 2 * short
	s.mustStart(long, sessionstore.End{User: "u1", ID: NewID()}, sessionstore.End{User: "u3"})
	_, err := s.store.Refresh(s.ctx, long.Key, sessionstore.Refresh{Lifetime: time.Hour})
	s.wantError(err, nil)
	if len(s.o.Leftovers(s.T, s.store)) == 0 {
		s.Fatal("Leftovers sees nothing while sessions are alive")
	}
	s.tick(2*short + 2*time.Millisecond)
	s.await("an empty store", func() bool { return len(s.o.Leftovers(s.T, s.store)) == 0 })
}

func runOutage(t *testing.T, outage Outage, o Options) {
	store, begin, end := outage.Open(t)
	s := newSuite(t, store, o)
	key := s.key()
	begin()
	for _, op := range s.all(key) {
		started := time.Now()
		err := op.run(s.ctx)
		switch {
		case err == nil:
			t.Errorf("%s succeeds", op.name)
		case errors.Is(err, sessionstore.ErrNotFound), errors.Is(err, sessionstore.ErrConflict),
			errors.Is(err, sessionstore.ErrExists), errors.Is(err, sessionstore.ErrInvalid):
			t.Errorf("%s answers %v, which is no fault", op.name, err)
		}
		if took := time.Since(started); took > o.Timeout {
			t.Errorf("%s took %v, the bound is %v", op.name, took, o.Timeout)
		}
	}
	end()
	s.await("the store after its outage", func() bool {
		_, _, err := s.store.Start(s.ctx, template(s.key(), "u9"))
		return err == nil
	})
	s.wantAbsent(key)
}
