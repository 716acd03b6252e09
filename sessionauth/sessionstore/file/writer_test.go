package file

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// transactions returns how many transactions were written so far.
func transactions(t testing.TB, s *Store) (n int) {
	t.Helper()
	must(t, s.open.db.View(func(tx *bbolt.Tx) error { n = tx.ID(); return nil }))
	return n
}

// hold keeps the writer busy until release is called.
func hold(t *testing.T, s *Store) (release func()) {
	t.Helper()
	gate, entered, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	h := s.open
	go func() {
		defer close(left)
		_ = h.submit(context.Background(), func(*txn) error { close(entered); <-gate; return nil })
	}()
	<-entered
	return func() { close(gate); <-left }
}

func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s in vain", what)
		}
	}
}

func (h *handle) queued() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.pending)
}

func TestWritesThatWaitShareASync(t *testing.T) {
	s := openAt(t, newPath(t))
	keys := startMany(t, s, 50, time.Hour)
	release := hold(t, s)
	before := transactions(t, s)
	var wg sync.WaitGroup
	for i, key := range keys {
		wg.Go(func() {
			_, err := s.Refresh(t.Context(), key, sessionstore.Refresh{Generation: uint32(i % 2), Lifetime: time.Hour})
			if want := []error{nil, sessionstore.ErrConflict}[i%2]; !errors.Is(err, want) {
				t.Errorf("refresh %d: %v, want %v", i, err, want)
			}
		})
	}
	await(t, "fifty waiting refreshes", func() bool { return s.open.queued() == len(keys) })
	release()
	wg.Wait()
	if got := transactions(t, s) - before; got != 1 {
		t.Errorf("%d transactions for 50 refreshes that waited, want 1", got)
	}
}

func TestRefusalsAreNotSynced(t *testing.T) {
	s := openAt(t, newPath(t))
	key := mustStart(t, s, "u1")
	before := transactions(t, s)
	_, err := s.Refresh(t.Context(), key, sessionstore.Refresh{Generation: 7, Lifetime: time.Hour})
	_, err2 := s.End(t.Context(), key.Site, sessionstore.End{User: "u2"})
	if !errors.Is(err, sessionstore.ErrConflict) || err2 != nil {
		t.Fatal(err, err2)
	}
	if got := transactions(t, s) - before; got != 0 {
		t.Errorf("%d transactions for writes that changed nothing", got)
	}
}

// TestOneBrokenWriteTakesNoOtherAlong puts steps that fail half-way among
// others of the same transaction.
func TestOneBrokenWriteTakesNoOtherAlong(t *testing.T) {
	s := openAt(t, newPath(t))
	mustStart(t, s, "u0")
	refused := errors.New("disk says no")
	half := startOf("half")
	breaks := map[int]func(*txn) error{
		3: func(x *txn) error {
			_, _, err := x.start(half, nil)
			return errors.Join(err, fault{refused})
		},
		7: func(x *txn) error {
			_, _, _ = x.start(half, nil)
			panic("page 17 is no leaf")
		},
	}
	release := hold(t, s)
	errs := make([]error, 10)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			if step := breaks[i]; step != nil {
				errs[i] = s.open.submit(context.Background(), step)
			} else {
				_, _, errs[i] = s.Start(context.Background(), startOf(fmt.Sprint("u", i)))
			}
		})
	}
	await(t, "ten waiting writes", func() bool { return s.open.queued() == len(errs) })
	release()
	wg.Wait()
	for i, err := range errs {
		if want := map[int]error{3: refused, 7: ErrDamaged}[i]; !errors.Is(err, want) {
			t.Errorf("write %d: %v, want %v", i, err, want)
		}
	}
	if list, err := s.List(t.Context(), half.Key.Site, "half"); err != nil || len(list) != 0 {
		t.Errorf("of the broken writes is left: %v, %v", list, err)
	}
	if list, err := s.List(t.Context(), half.Key.Site, "u9"); err != nil || len(list) != 1 {
		t.Errorf("of another write is left: %v, %v", list, err)
	}
}

// TestPanicInACommit checks that the file is let go and opened anew.
func TestPanicInACommit(t *testing.T) {
	s := openAt(t, newPath(t))
	key := mustStart(t, s, "u1")
	first := s.open
	err := first.submit(t.Context(), func(x *txn) error {
		x.records.Tx().OnCommit(func() { panic("page 17 is no leaf") })
		_, _, err := x.start(startOf("u2"), nil)
		return err
	})
	if !errors.Is(err, ErrDamaged) {
		t.Errorf("the write says %v, want ErrDamaged", err)
	}
	await(t, "the handle to be given up", first.retired)
	if err := first.submit(t.Context(), func(*txn) error { return nil }); !errors.Is(err, ErrDamaged) {
		t.Errorf("a write to the old handle says %v, want ErrDamaged", err)
	}
	if _, err := s.Refresh(t.Context(), key, sessionstore.Refresh{Lifetime: time.Hour}); err != nil {
		t.Errorf("Refresh afterwards: %v", err)
	}
	if s.open == first {
		t.Error("the old handle is still in use")
	}
}

func TestCancelledWhileWaiting(t *testing.T) {
	s := openAt(t, newPath(t))
	key := mustStart(t, s, "u1")
	release := hold(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := s.Refresh(ctx, key, sessionstore.Refresh{Lifetime: time.Hour})
		done <- err
	}()
	await(t, "a waiting refresh", func() bool { return s.open.queued() == 1 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Refresh: %v", err)
	}
	release()
	rec, _, err := s.Get(t.Context(), key)
	if err != nil || rec.Generation != 0 {
		t.Errorf("generation %d, %v: a cancelled write was done", rec.Generation, err)
	}
}

// TestBegunWriteTellsItsOutcome cancels a write whose transaction runs.
func TestBegunWriteTellsItsOutcome(t *testing.T) {
	s := openAt(t, newPath(t))
	mustStart(t, s, "u1")
	ctx, cancel := context.WithCancel(t.Context())
	start := startOf("u2")
	err := s.open.submit(ctx, func(x *txn) error {
		cancel()
		_, _, err := x.start(start, nil)
		return err
	})
	if err != nil {
		t.Errorf("a write that was done says %v", err)
	}
	if _, _, err := s.Get(t.Context(), start.Key); err != nil {
		t.Error(err)
	}
}

func TestClose(t *testing.T) {
	s := openAt(t, newPath(t))
	key := mustStart(t, s, "u1")
	release := hold(t, s)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			_, _, err := s.Start(context.Background(), startOf("u2"))
			if err != nil && !errors.Is(err, ErrClosed) {
				t.Errorf("a waiting write at Close: %v", err)
			}
		})
	}
	await(t, "waiting writes", func() bool { return s.open.queued() == 5 })
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	release()
	must(t, <-closed)
	wg.Wait()
	must(t, s.Close())
	for use, err := range everyUse(s) {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v", use, err)
		}
	}
	again := openAt(t, s.path)
	if _, _, err := again.Get(t.Context(), key); err != nil {
		t.Errorf("Get after opening again: %v", err)
	}
}

// TestCleanUp runs in a bubble, where a minute costs nothing.
func TestCleanUp(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(Options{Path: filepath.Join(dir, "sessions.db")})
		must(t, err)
		defer s.Close()
		const n = 3*cleanBatch + 7
		startMany(t, s, n, 30*time.Second)
		kept := startOf("kept")
		kept.Lifetime = 30 * time.Second
		_, _, err = s.Start(t.Context(), kept)
		must(t, err)
		time.Sleep(20 * time.Second)
		_, err = s.Refresh(t.Context(), kept.Key, sessionstore.Refresh{Lifetime: 5 * time.Minute})
		must(t, err)

		count := func() (records, users, queue int) {
			must(t, s.open.db.View(func(tx *bbolt.Tx) error {
				records, users, queue = len(all(tx.Bucket(bucketRecords))), len(all(tx.Bucket(bucketUsers))), len(all(tx.Bucket(bucketQueue)))
				return nil
			}))
			return
		}
		if r, u, q := count(); r != n+1 || u != n+1 || q != n+1 {
			t.Fatalf("%d records, %d user entries, %d queue entries, want %d each", r, u, q, n+1)
		}
		time.Sleep(70 * time.Second)
		if r, u, q := count(); r != 1 || u != 1 || q != 1 {
			t.Errorf("%d records, %d user entries, %d queue entries after a minute, want 1 each", r, u, q)
		}
		if _, _, err := s.Get(t.Context(), kept.Key); err != nil {
			t.Errorf("the refreshed session: %v", err)
		}
		time.Sleep(7 * time.Minute)
		if r, u, q := count(); r+u+q != 0 {
			t.Errorf("%d records, %d user entries, %d queue entries at the end, want none", r, u, q)
		}
	})
}

// tamper changes the stored bytes of a record.
func tamper(t *testing.T, s *Store, key sessionstore.Key, change func([]byte) []byte) {
	t.Helper()
	must(t, s.open.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketRecords)
		k := recordKey(key.Site, key.ID)
		return b.Put(k, change(bytes.Clone(b.Get(k))))
	}))
}

func TestAnotherVersionIsAbsentAndCanBeEnded(t *testing.T) {
	var log bytes.Buffer
	s, err := Open(Options{Path: newPath(t), Now: testNow, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	defer s.Close()
	ctx := t.Context()
	newer := func(user string) sessionstore.Key {
		key := mustStart(t, s, user)
		tamper(t, s, key, func(b []byte) []byte {
			b[0] = 2
			return seal(append(b[:headSize], "something new"...))
		})
		return key
	}
	a, b, c := newer("u1"), newer("u1"), newer("u1")
	later := newer("u2")
	_, _, get := s.Get(ctx, a)
	_, refresh := s.Refresh(ctx, a, sessionstore.Refresh{Lifetime: time.Hour})
	_, _, update := s.Update(ctx, a, sessionstore.Update{})
	for name, err := range map[string]error{"Get": get, "Refresh": refresh, "Update": update} {
		if !errors.Is(err, sessionstore.ErrNotFound) {
			t.Errorf("%s: %v, want ErrNotFound", name, err)
		}
	}
	if list, err := s.List(ctx, a.Site, "u1"); err != nil || len(list) != 0 {
		t.Errorf("List: %v, %v", list, err)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings, want 1 a minute: %s", n, log.String())
	}
	again := startOf("u1")
	again.Key = a
	if _, _, err := s.Start(ctx, again); !errors.Is(err, sessionstore.ErrExists) {
		t.Errorf("Start over it: %v, want ErrExists", err)
	}
	if ended, err := s.Remove(ctx, a); err != nil || len(ended) != 1 || ended[0].User != "u1" {
		t.Errorf("Remove: %v, %v", ended, err)
	}
	if ended, err := s.End(ctx, b.Site, sessionstore.End{User: "u1", ID: b.ID}); err != nil || len(ended) != 1 {
		t.Errorf("End: %v, %v", ended, err)
	}
	if ended, err := s.End(ctx, c.Site, sessionstore.End{User: "u1"}); err != nil || len(ended) != 1 {
		t.Errorf("End of all: %v, %v", ended, err)
	}

	// Clean-up knows when it expires, by the head.
	ahead.Add(int64(50 * time.Minute))
	s.open.clean()
	if got := leftovers(t, s); len(got) != 3 {
		t.Errorf("before it expires there is %v", got)
	}
	tamper(t, s, later, func(b []byte) []byte {
		binary.BigEndian.PutUint64(b[5:], uint64(testNow().Add(time.Hour).UnixMilli())) // as a refresh does
		return seal(b)
	})
	ahead.Add(int64(30 * time.Minute))
	if got := leftovers(t, s); len(got) != 3 {
		t.Errorf("once refreshed there is %v", got)
	}
	ahead.Add(int64(time.Hour))
	if got := leftovers(t, s); len(got) != 0 {
		t.Errorf("after it expired there is %v", got)
	}
}

func TestDamagedRecord(t *testing.T) {
	s := openAt(t, newPath(t))
	ctx := t.Context()
	damaged := func(user string) sessionstore.Key {
		key := mustStart(t, s, user)
		tamper(t, s, key, func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
		return key
	}
	a, b := damaged("u1"), damaged("u2")
	whole := mustStart(t, s, "u3")
	_, _, get := s.Get(ctx, a)
	_, refresh := s.Refresh(ctx, a, sessionstore.Refresh{Lifetime: time.Hour})
	_, list := s.List(ctx, a.Site, "u1")
	for name, err := range map[string]error{"Get": get, "Refresh": refresh, "List": list} {
		if err == nil || errors.Is(err, sessionstore.ErrNotFound) {
			t.Errorf("%s: %v, want a fault", name, err)
		}
	}
	if _, _, err := s.Get(ctx, whole); err != nil {
		t.Errorf("a session beside it: %v", err)
	}
	if ended, err := s.End(ctx, a.Site, sessionstore.End{User: "u1", ID: a.ID}); err != nil || len(ended) != 1 {
		t.Errorf("End: %v, %v", ended, err)
	}
	if _, _, err := s.Get(ctx, a); !errors.Is(err, sessionstore.ErrNotFound) {
		t.Errorf("Get after the end: %v", err)
	}
	ahead.Add(int64(2 * time.Hour))
	if got := leftovers(t, s); len(got) != 0 {
		t.Errorf("after all is due there is %v", got)
	}
	if _, _, err := s.Get(ctx, b); !errors.Is(err, sessionstore.ErrNotFound) {
		t.Errorf("Get once it was due: %v", err)
	}
}
