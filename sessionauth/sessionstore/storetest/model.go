package storetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// model is what a store should hold: the contract, without time and sharing.
type model map[sessionstore.Key]sessionstore.Record

// model runs random operations, one after the other, and compares what the
// store and the model say and hold.
func (s *suite) model() {
	rapid.Check(s.T, func(t *rapid.T) {
		m := &machine{T: t, s: s, m: model{}}
		for i := range 2 {
			m.sites = append(m.sites, fmt.Sprintf("model-%d-%d", siteNumber.Add(1), i))
		}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			m.step()
		}
		m.compare()
	})
}

type machine struct {
	*rapid.T
	s     *suite
	m     model
	sites []string
	known []sessionstore.Key // every key that ever was, in the order of making
}

var modelUsers = []string{"a", "b", "a:b"}

func (m *machine) newID() (id sessionstore.ID) {
	return sessionstore.ID(rapid.SliceOfN(rapid.Byte(), len(id), len(id)).Filter(func(b []byte) bool {
		return !slices.ContainsFunc(m.known, func(k sessionstore.Key) bool { return k.ID == sessionstore.ID(b) }) &&
			sessionstore.ID(b) != sessionstore.ID{}
	}).Draw(m.T, "id"))
}

// pick returns a key that was used before, live or not.
func (m *machine) pick(site string) sessionstore.Key {
	if len(m.known) == 0 {
		return sessionstore.Key{Site: site, ID: m.newID()}
	}
	return rapid.SampledFrom(m.known).Draw(m.T, "key")
}

func (m *machine) ends(site string) []sessionstore.End {
	var ends []sessionstore.End
	for range rapid.IntRange(0, 2).Draw(m.T, "ends") {
		e := sessionstore.End{User: rapid.SampledFrom(modelUsers).Draw(m.T, "end user")}
		switch rapid.IntRange(0, 2).Draw(m.T, "end kind") {
		case 0:
			e.ID = m.pick(site).ID
		case 1:
			e.Except = m.pick(site).ID
		}
		ends = append(ends, e)
	}
	return ends
}

func (m *machine) claims() []byte {
	if rapid.Bool().Draw(m.T, "no claims") {
		return nil
	}
	return rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(m.T, "claims")
}

func (m *machine) step() {
	site := rapid.SampledFrom(m.sites).Draw(m.T, "site")
	switch rapid.SampledFrom([]string{"start", "start", "refresh", "refresh", "update", "rotate", "end"}).Draw(m.T, "op") {
	case "start":
		m.start(site)
	case "refresh":
		m.refresh(m.pick(site))
	case "update":
		m.update(m.pick(site), sessionstore.Update{Claims: m.claims()})
	case "rotate":
		m.rotate(m.pick(site))
	case "end":
		ends := m.ends(site)
		got, err := m.s.store.End(m.s.ctx, site, ends...)
		m.same(err, nil)
		m.sameEnded(got, m.m.end(site, ends))
	}
}

func (m *machine) start(site string) {
	key := sessionstore.Key{Site: site, ID: m.newID()}
	start := template(key, rapid.SampledFrom(modelUsers).Draw(m.T, "user"))
	start.Claims = m.claims()
	ends := m.ends(site)
	m.known = append(m.known, key)
	got, ended, err := m.s.store.Start(m.s.ctx, start, ends...)
	m.same(err, nil)
	m.m[key] = sessionstore.Record{
		User: start.User, Claims: start.Claims, ClaimsVersion: 1, Created: got.Created, Refreshed: got.Created,
		Lifetime: start.Lifetime, Until: got.Created.Add(start.MaxAge), Persistent: true, Device: start.Device, IP: start.IP,
	}
	m.sameRecord(got, m.m[key])
	m.sameEnded(ended, m.m.end(site, ends, key.ID))
}

func (m *machine) refresh(key sessionstore.Key) {
	generation := rapid.Uint32Range(0, 3).Draw(m.T, "generation")
	got, err := m.s.store.Refresh(m.s.ctx, key, sessionstore.Refresh{Generation: generation, Lifetime: 2 * time.Hour, Device: "r"})
	rec, ok := m.m[key]
	switch {
	case !ok:
		m.same(err, sessionstore.ErrNotFound)
		return
	case rec.Generation != generation:
		m.same(err, sessionstore.ErrConflict)
		return
	}
	m.same(err, nil)
	rec.Generation++
	rec.Refreshed, rec.Lifetime, rec.Device, rec.IP = got.Refreshed, 2*time.Hour, "r", ""
	m.m[key] = rec
	m.sameRecord(got, rec)
}

func (m *machine) rotate(key sessionstore.Key) {
	u := sessionstore.Update{Claims: m.claims(), NewID: m.pick(key.Site).ID}
	if rapid.IntRange(0, 3).Draw(m.T, "taken") > 0 {
		u.NewID = m.newID()
	}
	m.update(key, u)
}

func (m *machine) update(key sessionstore.Key, u sessionstore.Update) {
	ends := m.ends(key.Site)
	got, ended, err := m.s.store.Update(m.s.ctx, key, u, ends...)
	rec, ok := m.m[key]
	moved := sessionstore.Key{Site: key.Site, ID: u.NewID}
	_, taken := m.m[moved]
	switch {
	case !ok:
		m.same(err, sessionstore.ErrNotFound)
		return
	case taken:
		m.same(err, sessionstore.ErrExists)
		return
	}
	m.same(err, nil)
	if u.Claims != nil {
		rec.Claims = u.Claims
		rec.ClaimsVersion++
	}
	if !u.NewID.IsZero() {
		rec.Generation, rec.Refreshed = 0, got.Refreshed
		delete(m.m, key)
		key = moved
		m.known = append(m.known, key)
	}
	m.m[key] = rec
	m.sameRecord(got, rec)
	m.sameEnded(ended, m.m.end(key.Site, ends, key.ID))
}

// end is what ending means.
func (m model) end(site string, ends []sessionstore.End, keep ...sessionstore.ID) []sessionstore.Ended {
	var ended []sessionstore.Ended
	for _, e := range ends {
		for key, rec := range maps.Clone(m) {
			if key.Site != site || rec.User != e.User || slices.Contains(keep, key.ID) ||
				!e.ID.IsZero() && key.ID != e.ID || e.ID.IsZero() && key.ID == e.Except {
				continue
			}
			delete(m, key)
			ended = append(ended, sessionstore.Ended{ID: key.ID, User: rec.User})
		}
	}
	return ended
}

// compare holds everything against the model.
func (m *machine) compare() {
	for _, key := range m.known {
		rec, _, err := m.s.store.Get(m.s.ctx, key)
		want, ok := m.m[key]
		if !ok {
			m.same(err, sessionstore.ErrNotFound)
			continue
		}
		m.same(err, nil)
		m.sameRecord(rec, want)
	}
	listed := 0
	for _, site := range m.sites {
		for _, user := range modelUsers {
			list, err := m.s.store.List(m.s.ctx, site, user)
			m.same(err, nil)
			for _, l := range list {
				m.sameRecord(l.Record, m.m[sessionstore.Key{Site: site, ID: l.ID}])
			}
			if !slices.IsSortedFunc(list, sessionstore.CompareNewest) {
				m.Fatalf("List is out of order")
			}
			listed += len(list)
		}
	}
	if listed != len(m.m) {
		m.Fatalf("%d sessions listed, want %d", listed, len(m.m))
	}
}

func (m *machine) same(got, want error) {
	m.Helper()
	if !errors.Is(got, want) {
		m.Fatalf("error %v, want %v", got, want)
	}
}

func (m *machine) sameRecord(got, want sessionstore.Record) {
	m.Helper()
	if diff := differ(got, want); diff != "" {
		m.Fatalf("record: %s", diff)
	}
}

func (m *machine) sameEnded(got, want []sessionstore.Ended) {
	m.Helper()
	order := func(e []sessionstore.Ended) []string {
		var s []string
		for _, x := range e {
			s = append(s, fmt.Sprintf("%x %q", x.ID, x.User))
		}
		return slices.Sorted(slices.Values(s))
	}
	if g, w := order(got), order(want); !slices.Equal(g, w) {
		m.Fatalf("ended %v, want %v", g, w)
	}
}
