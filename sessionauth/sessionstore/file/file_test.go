package file

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore/storetest"
)

// ahead is how far the clock of the tests is ahead of the real one.
var ahead atomic.Int64

func testNow() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }

func openAt(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(Options{Path: path, Now: testNow})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func newPath(t testing.TB) string { return filepath.Join(t.TempDir(), "a", "b", "sessions.db") }

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) sessionstore.Store { return openAt(t, newPath(t)) }, storetest.Options{
		Advance: func(d time.Duration) { ahead.Add(int64(d)) },
		Second: func(t *testing.T, first sessionstore.Store) sessionstore.Store {
			if err := first.(*Store).Close(); err != nil {
				t.Fatal(err)
			}
			return openAt(t, first.(*Store).path)
		},
		Leftovers: leftovers,
		Outages:   []storetest.Outage{{Name: "locked by another process", Open: openLocked}},
		Rounds:    60,
	})
}

// leftovers cleans up and names what is still in the buckets.
func leftovers(t *testing.T, store sessionstore.Store) (keys []string) {
	s := store.(*Store)
	s.open.clean()
	err := s.open.db.View(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketRecords, bucketUsers, bucketQueue} {
			for k := range all(tx.Bucket(name)) {
				keys = append(keys, fmt.Sprintf("%s %x", name, k))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func all(b *bbolt.Bucket) map[string]string {
	m := map[string]string{}
	_ = b.ForEach(func(k, v []byte) error { m[string(k)] = string(v); return nil })
	return m
}

// openLocked holds the file as another process would: a lock of flock belongs
// to the open file, not to the process.
func openLocked(t *testing.T) (sessionstore.Store, func(), func()) {
	path := newPath(t)
	first := openAt(t, path)
	mustStart(t, first, "u1")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	var holder *bbolt.DB
	begin := func() {
		var err error
		if holder, err = bbolt.Open(path, 0o600, nil); err != nil {
			t.Fatal(err)
		}
	}
	end := func() {
		if err := holder.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return openAt(t, path), begin, end
}

func startOf(user string) sessionstore.Start {
	return sessionstore.Start{
		Key:  sessionstore.Key{Site: "example.com", ID: storetest.NewID()},
		User: user, Claims: []byte(`{"a":1}`), Lifetime: time.Hour, Device: "Agent/1.0", IP: "192.0.2.1",
	}
}

func mustStart(t testing.TB, s *Store, user string) sessionstore.Key {
	t.Helper()
	start := startOf(user)
	if _, _, err := s.Start(context.Background(), start); err != nil {
		t.Fatal(err)
	}
	return start.Key
}

// startMany starts n sessions of as many users at the same time: they share
// syncs.
func startMany(t testing.TB, s *Store, n int, lifetime time.Duration) []sessionstore.Key {
	t.Helper()
	keys := make([]sessionstore.Key, n)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			start := startOf(fmt.Sprint("many", i))
			start.Lifetime = lifetime
			keys[i] = start.Key
			if _, _, err := s.Start(context.Background(), start); err != nil {
				t.Errorf("Start: %v", err)
			}
		})
	}
	wg.Wait()
	return keys
}
