package storetest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// together runs functions at the same time and waits for them.
func together(fs ...func()) {
	var wg sync.WaitGroup
	gate := make(chan struct{})
	for _, f := range fs {
		wg.Go(func() {
			<-gate
			f()
		})
	}
	close(gate)
	wg.Wait()
}

// stores returns the store, twice or with another one on the same data.
func (s *suite) stores() [2]sessionstore.Store {
	if s.o.Second != nil && s.o.Shared {
		return [2]sessionstore.Store{s.store, s.o.Second(s.T, s.store)}
	}
	return [2]sessionstore.Store{s.store, s.store}
}

func (s *suite) raceRefresh() {
	stores := s.stores()
	key, _ := s.begin("u1")
	for generation := range uint32(5) {
		errs := make([]error, 50)
		var fs []func()
		for i := range errs {
			fs = append(fs, func() {
				_, errs[i] = stores[i%2].Refresh(s.ctx, key, sessionstore.Refresh{
					Generation: generation, Lifetime: time.Hour, Device: fmt.Sprint(i),
				})
			})
		}
		together(fs...)
		winner := -1
		for i, err := range errs {
			switch {
			case err == nil && winner >= 0:
				s.Fatalf("refreshes %d and %d of generation %d both won", winner, i, generation)
			case err == nil:
				winner = i
			case !errors.Is(err, sessionstore.ErrConflict):
				s.Fatalf("refresh %d: %v, want ErrConflict", i, err)
			}
		}
		rec, _ := s.mustGet(key)
		if winner < 0 || rec.Generation != generation+1 || rec.Device != fmt.Sprint(winner) {
			s.Fatalf("winner %d, generation %d, device %q", winner, rec.Generation, rec.Device)
		}
	}
}

// raceEnd lets an end run against everything that writes to a session.
func (s *suite) raceEnd() {
	stores := s.stores()
	for round := range s.o.Rounds {
		key, _ := s.begin("u1")
		moved := s.key()
		var endErr, writeErr error
		var ended []sessionstore.Ended
		together(func() {
			end := sessionstore.End{User: "u1"}
			if round%2 == 0 {
				end.ID = key.ID
			}
			ended, endErr = stores[0].End(s.ctx, s.site, end)
		}, func() {
			switch round % 3 {
			case 0:
				_, writeErr = stores[1].Refresh(s.ctx, key, sessionstore.Refresh{Lifetime: time.Hour})
			case 1:
				_, _, writeErr = stores[1].Update(s.ctx, key, sessionstore.Update{Claims: []byte(`{"x":1}`)})
			case 2:
				_, _, writeErr = stores[1].Update(s.ctx, key, sessionstore.Update{NewID: moved.ID})
			}
		})
		s.wantError(endErr, nil)
		if writeErr != nil {
			s.wantError(writeErr, sessionstore.ErrNotFound)
		}
		s.wantAbsent(key)
		switch {
		case round%6 == 2 && writeErr == nil:
			// Rotated first: the end named the old id, and the session lives on
			// under one that its caller did not know.
			s.wantEnded(ended, "u1")
			s.wantEnded(s.mustEnd(sessionstore.End{User: "u1"}), "u1", moved)
		case round%3 == 2 && writeErr == nil:
			s.wantEnded(ended, "u1", moved)
		default:
			s.wantEnded(ended, "u1", key)
		}
		s.wantListed(s.site, "u1")
	}
}

func (s *suite) raceRotate() {
	stores := s.stores()
	for range s.o.Rounds / 4 {
		key, _ := s.begin("u1")
		ids := [2]sessionstore.ID{NewID(), NewID()}
		var errs [2]error
		rotate := func(i int) func() {
			return func() {
				_, _, errs[i] = stores[i].Update(s.ctx, key, sessionstore.Update{NewID: ids[i]})
			}
		}
		together(rotate(0), rotate(1))
		winner := 0
		if errs[0] != nil {
			winner = 1
		}
		s.wantError(errs[winner], nil)
		s.wantError(errs[1-winner], sessionstore.ErrNotFound)
		won := sessionstore.Key{Site: s.site, ID: ids[winner]}
		s.wantAbsent(key, sessionstore.Key{Site: s.site, ID: ids[1-winner]})
		s.wantListed(s.site, "u1", won)
		s.wantEnded(s.mustEnd(sessionstore.End{User: "u1"}), "u1", won)
	}
}

func (s *suite) raceRotateRefresh() {
	stores := s.stores()
	for range s.o.Rounds / 4 {
		key, _ := s.begin("u1")
		moved := s.key()
		var rotateErr, refreshErr error
		together(
			func() { _, _, rotateErr = stores[0].Update(s.ctx, key, sessionstore.Update{NewID: moved.ID}) },
			func() { _, refreshErr = stores[1].Refresh(s.ctx, key, sessionstore.Refresh{Lifetime: time.Hour}) },
		)
		s.wantError(rotateErr, nil)
		if refreshErr != nil {
			s.wantError(refreshErr, sessionstore.ErrNotFound)
		}
		if rec, _ := s.mustGet(moved); rec.Generation != 0 {
			s.Fatalf("generation %d after a rotation, want 0", rec.Generation)
		}
		s.wantAbsent(key)
		s.wantEnded(s.mustEnd(sessionstore.End{User: "u1"}), "u1", moved)
	}
}

// raceEndAllStart checks that each start came before the end of all (and was
// ended) or after it (and lives): never neither, never both.
func (s *suite) raceEndAllStart() {
	stores := s.stores()
	for range s.o.Rounds / 8 {
		const n = 8
		keys := make([]sessionstore.Key, n)
		errs := make([]error, n+1)
		var ended []sessionstore.Ended
		fs := []func(){func() { ended, errs[n] = stores[0].End(s.ctx, s.site, sessionstore.End{User: "u1"}) }}
		for i := range n {
			keys[i] = s.key()
			fs = append(fs, func() { _, _, errs[i] = stores[i%2].Start(s.ctx, template(keys[i], "u1")) })
		}
		together(fs...)
		s.wantError(errors.Join(errs...), nil)
		gone := map[sessionstore.ID]bool{}
		for _, e := range ended {
			gone[e.ID] = true
		}
		var alive []sessionstore.Key
		for _, key := range keys {
			if gone[key.ID] {
				s.wantAbsent(key)
			} else {
				s.wantPresent(key)
				alive = append(alive, key)
			}
		}
		s.wantEnded(s.mustEnd(sessionstore.End{User: "u1"}), "u1", alive...)
	}
}
