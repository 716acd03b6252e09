package directory

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

func newUpload(t testing.TB, s *Store, length, chunkSize int64) uploadstore.Upload {
	t.Helper()
	u, err := s.Create(t.Context(), uploadstore.Info{ID: killedID, Length: length, ChunkSize: chunkSize, Created: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// A live writer is never taken for dead, however long it is idle; a chunk's
// neither.
func TestLiveWritersStayAlive(t *testing.T) {
	for _, chunkSize := range []int64{0, 8} {
		synctest.Test(t, func(t *testing.T) {
			path := filepath.Join(quickDir(t), "uploads")
			u := newUpload(t, testStore(t, Options{Path: path}), 8, chunkSize)
			w, err := u.Write(t.Context(), uploadstore.WriteOptions{Size: chunkSize})
			if err != nil {
				t.Fatal(err)
			}
			other := reopened(t, path)
			for range 4 {
				time.Sleep(50 * time.Second)
				if s, err := other.Status(t.Context()); err != nil || !s.Writing {
					t.Errorf("a live writer is not shown: %+v, %v", s, err)
				}
				if _, err := other.Claim(t.Context(), uploadstore.ClaimOptions{}); !errors.Is(err, uploadstore.ErrBusy) {
					t.Errorf("claim beside a live writer: %v", err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// An idle writer yields three seconds after its last byte; a wish that was
// withdrawn is forgotten; one that ignores the wish is taken over.
func TestYieldAndStuckWriter(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			path := filepath.Join(quickDir(t), "uploads")
			u := newUpload(t, testStore(t, Options{Path: path}), 8, 0)
			other := u
			if elsewhere {
				other = reopened(t, path)
			}
			w, err := u.Write(t.Context(), uploadstore.WriteOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			yields := func() bool {
				select {
				case <-w.Yield():
					return true
				default:
					return false
				}
			}
			if _, err := other.Write(t.Context(), uploadstore.WriteOptions{}); !errors.Is(err, uploadstore.ErrBusy) {
				t.Fatalf("beside a new writer: %v", err)
			}
			for range 15 { // it receives, and the wish grows old
				time.Sleep(time.Second)
				if _, err := w.Write(nil); err != nil {
					t.Fatal(err)
				}
				w.(*serialWriter).received.Store(w.(*serialWriter).since())
			}
			time.Sleep(5 * time.Second)
			if yields() {
				t.Fatal("yields to a wish that is 20 seconds old")
			}
			began := time.Now()
			second, err := other.Write(t.Context(), uploadstore.WriteOptions{Patience: 30 * time.Second})
			if err != nil {
				t.Fatalf("a writer that does not yield was not taken over: %v", err)
			}
			if took := time.Since(began); took > 12*time.Second || !yields() {
				t.Errorf("taken over after %v, asked: %v", took, yields())
			}
			time.Sleep(tickEvery + time.Millisecond) // it looks every second
			if _, err := w.Write([]byte("x")); !errors.Is(err, uploadstore.ErrFenced) {
				t.Errorf("Write of the stuck writer: %v, want ErrFenced", err)
			}
			if err := second.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A gateway whose clock is wrong agrees with the others about who lives.
func TestClocksThatDiffer(t *testing.T) {
	path := filepath.Join(quickDir(t), "uploads")
	ahead := testStore(t, Options{Path: path, Now: func() time.Time { return time.Now().Add(10 * time.Minute) }})
	u := newUpload(t, testStore(t, Options{Path: path}), 0, 0)
	c, err := u.Claim(t.Context(), uploadstore.ClaimOptions{})
	if err != nil {
		t.Fatal(err)
	}
	other, err := ahead.Open(t.Context(), killedID)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := other.Status(t.Context()); err != nil || !s.Claimed || s.Lapsed {
		t.Errorf("a clock ten minutes ahead makes a claim lapse: %+v, %v", s, err)
	}
	if err := c.Renew(t.Context()); err != nil {
		t.Error(err)
	}
}

// Hundreds of changes of writer, and hundreds of pieces by one gateway, leave
// few files.
func TestFilesStayFew(t *testing.T) {
	path := filepath.Join(quickDir(t), "uploads")
	a := newUpload(t, testStore(t, Options{Path: path}), 300, 0)
	b := reopened(t, path)
	for at := int64(0); at < 300; at++ {
		u := []uploadstore.Upload{a, b}[at%2]
		if at >= 200 {
			u = a
		}
		w, err := u.Write(t.Context(), uploadstore.WriteOptions{Offset: at})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(path, place(killedID)))
	if err != nil || len(entries) > 40 {
		t.Errorf("%d files are left, %v", len(entries), err)
	}
	temp, err := os.ReadDir(filepath.Join(path, tempFolder))
	if err != nil || len(temp) != 0 {
		t.Errorf("%d temporary files are left, %v", len(temp), err)
	}
}

// Many chunks at once through two gateways, each sync shared.
func TestChunksInParallel(t *testing.T) {
	const chunk, count = 1 << 10, 200
	path := filepath.Join(quickDir(t), "uploads")
	a := newUpload(t, testStore(t, Options{Path: path}), chunk*count, chunk)
	b := reopened(t, path)
	var wg sync.WaitGroup
	next := make(chan int64)
	for i := range 8 {
		wg.Go(func() {
			for n := range next {
				u := []uploadstore.Upload{a, b}[i%2]
				w, err := u.Write(t.Context(), uploadstore.WriteOptions{Offset: n * chunk, Size: chunk})
				if err != nil {
					t.Error(err)
					continue
				}
				_, err = w.Write(pattern(n*chunk, (n+1)*chunk))
				_, commitErr := w.Commit(t.Context())
				if err := errors.Join(err, commitErr, w.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for n := range int64(count) {
		next <- (n*7 + 3) % count
	}
	close(next)
	wg.Wait()
	s, err := b.Status(t.Context())
	if err != nil || !s.Complete() || s.Writing {
		t.Fatalf("%+v, %v", s, err)
	}
	wantIntact(t, a, chunk*count)
	journals, err := filepath.Glob(filepath.Join(path, place(killedID), "j.*"))
	if err != nil || len(journals) != 2 {
		t.Errorf("%d journals, want one a gateway", len(journals))
	}
}

// A store that is closed ends its writers, so that others go on at once.
func TestCloseEndsWriters(t *testing.T) {
	for _, chunkSize := range []int64{0, 8} {
		path := filepath.Join(quickDir(t), "uploads")
		s, err := Open(Options{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		u := newUpload(t, s, 8, chunkSize)
		w, err := u.Write(t.Context(), uploadstore.WriteOptions{Size: chunkSize})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.Commit(t.Context()); err == nil {
			t.Error("Commit after the store was closed succeeded")
		}
		_ = w.Close()
		if _, err := u.Status(t.Context()); err == nil {
			t.Error("Status after the store was closed succeeded")
		}
		second, err := reopened(t, path).Write(t.Context(), uploadstore.WriteOptions{Size: chunkSize})
		if err != nil {
			t.Fatalf("after the store was closed: %v", err)
		}
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	}
}

// An upload that is deleted and looked at the same time is there or not, and
// never there with less than it had.
func TestDeleteIsAllOrNothing(t *testing.T) {
	path := filepath.Join(quickDir(t), "uploads")
	s, elsewhere := testStore(t, Options{Path: path}), testStore(t, Options{Path: path})
	for i := range 50 {
		id := fmt.Sprintf("%032d", i)
		u, err := s.Create(t.Context(), uploadstore.Info{ID: id, Length: 8, Created: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		fillDirectly(t, u)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				u, err := elsewhere.Open(t.Context(), id)
				if err == nil {
					var status uploadstore.Status
					if status, err = u.Status(t.Context()); err == nil && (status.Offset() != 8 || status.Length != 8) {
						t.Errorf("shown while being deleted: %+v", status)
					}
				}
				if errors.Is(err, uploadstore.ErrNotFound) {
					return
				}
				if err != nil {
					t.Errorf("while being deleted: %v", err)
				}
				select {
				case <-stop:
				default:
				}
			}
		})
		if err := u.Delete(t.Context()); err != nil {
			t.Error(err)
		}
		close(stop)
		wg.Wait()
	}
	if left, _ := filepath.Glob(filepath.Join(path, trashFolder, "*")); len(left) != 0 {
		t.Errorf("left in the trash: %s", strings.Join(left, " "))
	}
}

func fillDirectly(t *testing.T, u uploadstore.Upload) {
	t.Helper()
	w, err := u.Write(t.Context(), uploadstore.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Write(pattern(0, 8))
	_, commitErr := w.Commit(t.Context())
	if err := errors.Join(err, commitErr, w.Close()); err != nil {
		t.Fatal(err)
	}
}

// wantIntact reads all that was acknowledged.
func wantIntact(t *testing.T, u uploadstore.Upload, acked int64) {
	t.Helper()
	s, err := u.Status(t.Context())
	if err != nil || s.Offset() != acked {
		t.Fatalf("offset %d, %v, acknowledged %d", s.Offset(), err, acked)
	}
	r, err := u.Reader(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b, err := io.ReadAll(r); err != nil || !bytes.Equal(b, pattern(0, acked)) {
		t.Fatalf("%d bytes differ, %v", len(b), err)
	}
}
