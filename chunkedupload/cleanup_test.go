package chunkedupload

import (
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

func TestCleanup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		h := newHandler(t, store, func(c *Config) { c.ExpireAfter = time.Hour })
		h.Start()
		h.Start()
		open := newUpload(t, store, 10)
		done, refused := heldUpload(t, h, "abc"), heldUpload(t, h, "abc")
		if _, e := completing(t, h, done, slow(0)); e != nil {
			t.Fatal(e)
		}
		long := heldUpload(t, h, "abc")
		_, _ = completing(t, h, long, slow(3*time.Hour))
		crashed := heldUpload(t, h, "abc")
		if _, err := crashed.Claim(t.Context(), uploadstore.ClaimOptions{}); err != nil {
			t.Fatal(err)
		}

		time.Sleep(2*time.Minute + time.Second)
		wantState(t, h, crashed, standingInterrupted)
		time.Sleep(time.Hour)
		for name, up := range map[string]uploadstore.Upload{"open": open, "held": refused, "done": done} {
			if _, err := up.Status(t.Context()); !errors.Is(err, uploadstore.ErrNotFound) {
				t.Errorf("the %s upload was kept: %v", name, err)
			}
		}
		wantState(t, h, long, standingRunning)
		time.Sleep(2*time.Hour - 2*time.Minute)
		wantState(t, h, long, standingSucceeded)
		time.Sleep(time.Hour + 2*time.Minute)
		n := 0
		for l, err := range h.List(t.Context()) {
			t.Errorf("still there: %+v, %v", l, err)
			n++
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCleanupLeavesAnUploadThatMovedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		h := newHandler(t, store, func(c *Config) { c.ExpireAfter = time.Hour })
		up := heldUpload(t, h, "abc")
		time.Sleep(2 * time.Hour)
		store.setFail(func(op string) error {
			if op == "claim" { // between the look and the claim
				up.(*fakeUpload).progress = time.Now()
			}
			return nil
		})
		if err := h.Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantState(t, h, up, standingHeld)
	})
}

func TestCleanupReportsFaults(t *testing.T) {
	store := newFakeStore()
	h := newHandler(t, store, nil)
	for range 20 {
		newUpload(t, store, 10)
	}
	var asked atomic.Int32
	away := errors.New("away")
	store.setFail(func(op string) error {
		if op == "status" {
			asked.Add(1)
			return away
		}
		return nil
	})
	if err := h.Cleanup(t.Context()); !errors.Is(err, away) {
		t.Errorf("got %v", err)
	}
	if n := asked.Load(); n > 10 {
		t.Errorf("a store that is down was asked %d times", n)
	}
	store.setFail(func(op string) error {
		if op == "status" {
			return uploadstore.ErrBroken
		}
		return nil
	})
	if err := h.Cleanup(t.Context()); err != nil {
		t.Errorf("a broken upload: %v", err)
	}
	store.setFail(nil)
	n := 0
	for l, err := range h.List(t.Context()) {
		if err != nil || l.Length != 10 || l.State != uploadstore.StateOpen {
			t.Errorf("listed %+v, %v", l, err)
		}
		n++
	}
	if n != 20 {
		t.Errorf("%d uploads listed, want 20", n)
	}
}

// A gateway dies during a delivery; another one takes over the store.
func TestRestartWithALapsedClaim(t *testing.T) {
	eachStoreAt(t, func(t *testing.T, open func(now func() time.Time) uploadstore.Store) {
		start := time.Now()
		var ahead atomic.Int64
		now := func() time.Time { return start.Add(time.Duration(ahead.Load())).Add(time.Since(start)) }
		store := open(now)
		first := newGateway(t, store, func(c *Config) { c.Now = now; c.Wait = 100 * time.Millisecond })
		path := first.create(3)
		held := heldAt(t, store, path, "abc")
		if _, err := held.Claim(t.Context(), uploadstore.ClaimOptions{}); err != nil { // and dies
			t.Fatal(err)
		}
		second := newGateway(t, open(now), func(c *Config) { c.Now = now; c.Wait = 100 * time.Millisecond })
		second.head(path).want(t, http.StatusOK).wantHeader(t, "Upload-Offset", "2")
		second.patch(path, 2, []byte("c")).want(t, http.StatusLocked)
		ahead.Store(int64(2 * uploadstore.ClaimLapse))
		second.patch(path, 2, []byte("c")).want(t, http.StatusConflict).wantCode(t, "upload-interrupted")
		second.head(path).want(t, http.StatusGone)
		if n := len(first.backend.all()) + len(second.backend.all()); n != 0 {
			t.Errorf("%d deliveries", n)
		}
		ahead.Store(int64(25 * time.Hour))
		if err := second.h.Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
		second.head(path).want(t, http.StatusNotFound)
	})
}

// heldAt fills an upload without completing it, as a gateway does that dies.
func heldAt(t *testing.T, store uploadstore.Store, path, data string) uploadstore.Upload {
	t.Helper()
	up, err := store.Open(t.Context(), idOf(path))
	if err != nil {
		t.Fatal(err)
	}
	w, err := up.Write(t.Context(), uploadstore.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(data)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return up
}
