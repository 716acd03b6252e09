package dataprotection

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// resolutionCase is a ring and what the real resolver and ring provider made
// of it at a set time.
type resolutionCase struct {
	Keys   []resolutionKey
	NoAuto struct {
		Default        *string
		Fallback       *string
		ShouldGenerate bool    `json:"should_generate"`
		RingDefault    *string `json:"ring_default"`
		Error          string
	} `json:"no_auto_generate"`
	Auto struct {
		RingDefault string                                       `json:"ring_default"`
		Created     []struct{ Activation, Expiration time.Time } `json:"created_keys"`
	} `json:"auto_generate"`
	AmbiguousTie bool `json:"ambiguous_tie"`
}

type resolutionVectors struct {
	Now   time.Time
	Cases []resolutionCase
}

type resolutionKey struct {
	ID                               string
	Creation, Activation, Expiration time.Time
	Revoked                          bool
}

// documents writes the case's ring.
func (c resolutionCase) documents(t testing.TB) []string {
	var all []string
	for i, k := range c.Keys {
		id, err := ParseKeyID(k.ID)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(newKeyXML(id, k.Creation, k.Activation, k.Expiration, []byte{byte(i + 1)})))
		if k.Revoked {
			all = append(all, revocationOf(k.ID, k.Creation))
		}
	}
	return all
}

func name(k *listedKey) string {
	if k == nil {
		return "none"
	}
	return k.id.String()
}

func nameOf(id *string) string {
	if id == nil {
		return "none"
	}
	return *id
}

func TestRealDefaultKeyResolution(t *testing.T) {
	vectors := testdata[resolutionVectors](t, "real-default-key-resolution.json")
	for i, c := range vectors.Cases {
		ring := newRing(t, Options{Repository: holding(c.documents(t)...)})
		if err := ring.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		keys := ring.current.Load().keys
		def, fallback := resolveDefault(keys, vectors.Now)
		if name(def) != nameOf(c.NoAuto.Default) || name(fallback) != nameOf(c.NoAuto.Fallback) {
			t.Errorf("case %d: default %s, fallback %s, want %s, %s", i, name(def), name(fallback),
				nameOf(c.NoAuto.Default), nameOf(c.NoAuto.Fallback))
		}
		if (def == nil) != c.NoAuto.ShouldGenerate {
			t.Errorf("case %d: should generate %v", i, c.NoAuto.ShouldGenerate)
		}
		// What the ring provider does with and without auto-generation.
		generate := def == nil || needsSuccessor(keys, def, vectors.Now)
		if generate != (len(c.Auto.Created) > 0) {
			t.Errorf("case %d: generates %v, want %v", i, generate, c.Auto.Created)
		}
	}
}

// TestRealRingCreation drives whole rings through the same cases.
func TestRealRingCreation(t *testing.T) {
	vectors := testdata[resolutionVectors](t, "real-default-key-resolution.json")
	now := func() time.Time { return vectors.Now }
	for i, c := range vectors.Cases {
		// Without generation.
		ring := newRing(t, Options{Repository: holding(c.documents(t)...), Now: now})
		s, err := ring.sealing(t.Context())
		if c.NoAuto.Error != "" {
			if !errors.Is(err, ErrNoKey) {
				t.Errorf("case %d: %v, want ErrNoKey", i, err)
			}
		} else if err != nil || name(s.key) != nameOf(c.NoAuto.RingDefault) {
			t.Errorf("case %d: seals with %s (%v), want %s", i, name(s.key), err, nameOf(c.NoAuto.RingDefault))
		}

		// With generation: the first use makes what .NET made, also when it
		// does so in the background, and further uses make nothing.
		repository := holding(c.documents(t)...)
		ring = newRing(t, Options{Repository: repository, AutoGenerate: true, Now: now})
		before := len(repository.elements)
		for range 3 {
			if s, err = ring.sealing(t.Context()); err != nil {
				t.Fatalf("case %d: %v", i, err)
			}
			ring.awaitMaking(t.Context())
		}
		if _, adds := repository.counts(); adds != len(c.Auto.Created) {
			t.Errorf("case %d: made %d keys, want %d", i, adds, len(c.Auto.Created))
		}
		for j, want := range c.Auto.Created {
			made, err := parseKeyDocument(repository.elements[before+j].XML)
			if err != nil || !made.activates.Equal(want.Activation) || !made.expires.Equal(want.Expiration) || !made.created.Equal(vectors.Now) {
				t.Errorf("case %d: made %v to %v (%v), want %v to %v", i, made.activates, made.expires, err, want.Activation, want.Expiration)
			}
		}
		got := name(s.key)
		if !slices.ContainsFunc(c.Keys, func(k resolutionKey) bool { return k.ID == got }) {
			got = "new"
		}
		if !c.AmbiguousTie && got != c.Auto.RingDefault {
			t.Errorf("case %d: seals with %s, want %s", i, got, c.Auto.RingDefault)
		}
	}
}

// awaitMaking waits for the making of a key that is under way.
func (r *Ring) awaitMaking(ctx context.Context) {
	r.mu.Lock()
	f := r.makes.running
	r.mu.Unlock()
	if f != nil {
		_ = f.wait(ctx)
	}
}

func parseKeyDocument(document []byte) (*key, error) {
	n, err := parseXML(document)
	if err != nil {
		return nil, err
	}
	return parseKey(n)
}

// TestChoiceHoldsUntilItsEnd compares the cached choice with a fresh one
// around every moment at which it may change.
func TestChoiceHoldsUntilItsEnd(t *testing.T) {
	vectors := testdata[resolutionVectors](t, "real-default-key-resolution.json")
	for i, c := range vectors.Cases {
		ring := newRing(t, Options{Repository: holding(c.documents(t)...)})
		if err := ring.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		keys := ring.current.Load().keys
		now := vectors.Now
		for range 40 {
			c := choose(keys, now)
			if !c.until.After(now) {
				t.Fatalf("case %d: a choice of no duration at %v", i, now)
			}
			for _, at := range []time.Time{now.Add(c.until.Sub(now) / 2), c.until.Add(-1)} {
				later := choose(keys, at)
				if later.seal != c.seal || later.generate != c.generate || later.standby != c.standby {
					t.Fatalf("case %d: the choice of %v changed by %v, before %v", i, now, at, c.until)
				}
			}
			now = c.until
		}
	}
}

// TestLifeOfARing follows a ring for a year: rotations happen ahead of time,
// nothing is ever sealed with an expired key, and keys are few.
func TestLifeOfARing(t *testing.T) {
	at := &clock{at: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	repository := holding()
	ring := newRing(t, Options{Repository: repository, AutoGenerate: true, Now: at.now})
	p := ring.Protector("p")
	first, err := p.Seal(t.Context(), []byte("first"))
	if err != nil {
		t.Fatal(err)
	}
	for range 365 * 2 {
		at.set(at.now().Add(12 * time.Hour))
		s, err := ring.sealing(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !s.key.expires.After(at.now()) || s.key.activates.After(at.now().Add(clockSkew)) {
			t.Fatalf("%v: seals with a key of %v to %v", at.now(), s.key.activates, s.key.expires)
		}
		ring.awaitMaking(t.Context())
	}
	if got, err := p.Open(t.Context(), first); err != nil || got != "first" {
		t.Errorf("the first token: %q, %v", got, err)
	}
	if _, adds := repository.counts(); adds != 5 {
		t.Errorf("%d keys in a year, want 5", adds)
	}
}

func TestCreationDate(t *testing.T) {
	now := atStart()
	for _, c := range []struct {
		name    string
		revoked time.Time
		want    time.Time
	}{
		{"no mass revocation", time.Time{}, now},
		{"one in the past", now.Add(-time.Hour), now},
		{"one by a faster clock", now.Add(time.Minute), now.Add(time.Minute)},
		{"one in the future", now.Add(time.Hour), time.Time{}},
	} {
		got, err := creationDate(now, c.revoked)
		if !got.Equal(c.want) || errors.Is(err, ErrNoKey) != c.want.IsZero() {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
}
