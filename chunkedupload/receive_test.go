package chunkedupload

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// dripping yields a byte now and then, until it is interrupted.
type dripping struct {
	every time.Duration
	cut   chan struct{}
}

func (d *dripping) Read(p []byte) (int, error) {
	select {
	case <-time.After(d.every):
		p[0] = 'x'
		return 1, nil
	case <-d.cut:
		return 0, io.EOF
	}
}

func (d *dripping) interrupt() {
	select {
	case <-d.cut:
	default:
		close(d.cut)
	}
}

func newUpload(t *testing.T, store uploadstore.Store, length int64) uploadstore.Upload {
	t.Helper()
	up, err := store.Create(t.Context(), uploadstore.Info{ID: newID(), Length: length, Created: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return up
}

func received(t *testing.T, up uploadstore.Upload) int64 {
	t.Helper()
	st, err := up.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st.Offset()
}

func TestReceiveCommitsWhileItGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := newUpload(t, newFakeStore(), 1<<20)
		src := &dripping{10 * time.Second, make(chan struct{})}
		go func() { _, _ = receive(t.Context(), up, 0, 0, src, src.interrupt) }()
		time.Sleep(10*time.Second + commitEvery)
		if n := received(t, up); n != 1 {
			t.Errorf("a silent client's byte is not committed: %d", n)
		}
		src.interrupt()
	})
}

func TestReceiveYieldsWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := newUpload(t, newFakeStore(), 1<<20)
		src := &dripping{time.Hour, make(chan struct{})}
		ended := make(chan error, 1)
		go func() {
			_, err := receive(t.Context(), up, 0, 0, src, src.interrupt)
			ended <- err
		}()
		time.Sleep(10 * time.Second)
		other := &dripping{time.Second, make(chan struct{})}
		go func() { time.Sleep(5500 * time.Millisecond); other.interrupt() }()
		n, err := receive(t.Context(), up, 0, writePatience, other, other.interrupt)
		if err != nil || n != 5 {
			t.Errorf("the newcomer wrote %d, %v", n, err)
		}
		if err := <-ended; !errors.Is(err, errYielded) {
			t.Errorf("the idle one ended with %v", err)
		}
		if e := storeRefusal(errYielded); e.Status != 423 {
			t.Errorf("a client that yielded is told %d", e.Status)
		}
	})
}

func TestReceiveKeepsASlowDrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := newUpload(t, newFakeStore(), 1<<20)
		src := &dripping{2 * time.Second, make(chan struct{})}
		done := make(chan error, 1)
		go func() {
			_, err := receive(t.Context(), up, 0, 0, src, src.interrupt)
			done <- err
		}()
		time.Sleep(21 * time.Second)
		if _, err := receive(t.Context(), up, received(t, up), writePatience, src, src.interrupt); !errors.Is(err, uploadstore.ErrBusy) {
			t.Errorf("the newcomer got %v, want ErrBusy", err)
		}
		src.interrupt()
		if err := <-done; err != nil {
			t.Errorf("the running one: %v", err)
		}
	})
}

func TestReceiveStopsWhenTheStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		up := newUpload(t, store, 1<<20)
		src := &dripping{100 * time.Millisecond, make(chan struct{})}
		commits := 0
		store.setFail(func(op string) error {
			if op == "commit" {
				if commits++; commits > 2 {
					return uploadstore.ErrFull
				}
			}
			return nil
		})
		n, err := receive(t.Context(), up, 0, 0, src, src.interrupt)
		if !errors.Is(err, uploadstore.ErrFull) || n != received(t, up) || n == 0 {
			t.Errorf("received %d, committed %d, %v", n, received(t, up), err)
		}
		if commits != 3 {
			t.Errorf("%d commits: none may follow one that failed", commits)
		}
	})
}
