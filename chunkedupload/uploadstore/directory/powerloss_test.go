//go:build unix

package directory

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// strictDisk keeps what a disk must still hold after the power failed: of each
// file the content at its last sync, of each folder the names at its last
// sync, and nothing else. Real file systems keep more.
type strictDisk struct {
	path string

	mu      sync.Mutex
	pending [2]string // the step under way: done when the next one begins
	content map[uint64][]byte
	names   map[uint64]map[string]uint64
	isDir   map[uint64]bool
}

func newStrictDisk(path string) *strictDisk {
	return &strictDisk{path: path, content: map[uint64][]byte{}, names: map[uint64]map[string]uint64{}, isDir: map[uint64]bool{}}
}

// fault watches the steps.
func (d *strictDisk) fault(step, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settleLocked()
	d.pending = [2]string{step, name}
	return nil
}

func (d *strictDisk) settleLocked() {
	step, name := d.pending[0], filepath.Join(d.path, d.pending[1])
	switch step {
	case "sync":
		if b, err := os.ReadFile(name); err == nil {
			d.content[inode(name)] = b
		}
	case "syncdir":
		d.syncFolder(name)
	}
	d.pending = [2]string{}
}

func (d *strictDisk) syncFolder(path string) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return
	}
	names := map[string]uint64{}
	for _, e := range entries {
		n := inode(filepath.Join(path, e.Name()))
		names[e.Name()], d.isDir[n] = n, e.IsDir()
	}
	d.names[inode(path)] = names
}

func inode(path string) uint64 {
	info, err := os.Lstat(path)
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

// afterPowerLoss writes what is left to a new folder.
func (d *strictDisk) afterPowerLoss(t *testing.T) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settleLocked()
	to := filepath.Join(quickDir(t), "after")
	d.restore(t, inode(d.path), to)
	return to
}

func (d *strictDisk) restore(t *testing.T, folder uint64, to string) {
	if err := os.Mkdir(to, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, n := range d.names[folder] {
		path := filepath.Join(to, name)
		if d.isDir[n] {
			d.restore(t, n, path)
		} else if err := os.WriteFile(path, d.content[n], 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The power fails after every step of an upload's life, on a disk that keeps
// only what was synced: all that was acknowledged is there.
func TestPowerLossLosesNothing(t *testing.T) {
	t.Parallel()
	for _, chunkSize := range []int64{0, 8} {
		path := filepath.Join(quickDir(t), "uploads")
		disk := newStrictDisk(path)
		var promised promise
		a := testStore(t, Options{Path: path, Fault: disk.fault})
		b := testStore(t, Options{Path: path, Fault: disk.fault})
		check := func(what string) {
			t.Helper()
			promised.check(t, what, disk.afterPowerLoss(t))
		}
		info := uploadstore.Info{ID: killedID, Length: 48, ChunkSize: chunkSize, Created: time.Now()}
		if _, err := a.Create(t.Context(), info); err != nil {
			t.Fatal(err)
		}
		promised.created = true
		check("create")
		for at := int64(0); at < 48; at += 8 {
			s := []*Store{a, a, b, b, a, a}[at/8]
			promised.fill(t, s, at, chunkSize, check)
		}
		promised.end(t, a, b, check)
	}
}

type promise struct {
	created bool
	offset  int64
	claimed bool
	outcome int
	deleted bool
}

func (p *promise) fill(t *testing.T, s *Store, at, size int64, check func(string)) {
	u, err := s.Open(t.Context(), killedID)
	if err != nil {
		t.Fatal(err)
	}
	unused, err := u.Write(t.Context(), uploadstore.WriteOptions{Offset: at, Size: size})
	if err != nil {
		t.Fatal(err)
	}
	if err := unused.Close(); err != nil {
		t.Fatal(err)
	}
	w, err := u.Write(t.Context(), uploadstore.WriteOptions{Offset: at, Size: size})
	if err != nil {
		t.Fatal(err)
	}
	check("write")
	if _, err := w.Write(pattern(at, at+8)); err != nil {
		t.Fatal(err)
	}
	check("bytes")
	if _, err := w.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.offset = at + 8
	check("commit")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	check("close")
}

func (p *promise) end(t *testing.T, a, b *Store, check func(string)) {
	u, err := a.Open(t.Context(), killedID)
	if err != nil {
		t.Fatal(err)
	}
	c, err := u.Claim(t.Context(), uploadstore.ClaimOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.claimed = true
	check("claim")
	if err := c.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.claimed = false
	check("release")
	if c, err = u.Claim(t.Context(), uploadstore.ClaimOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Finish(t.Context(), uploadstore.Outcome{State: uploadstore.StateDone, Status: 207}); err != nil {
		t.Fatal(err)
	}
	p.outcome = 207
	check("finish")
	if u, err = b.Open(t.Context(), killedID); err != nil {
		t.Fatal(err)
	}
	if err := u.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.deleted = true
	check("delete")
}

func (p *promise) check(t *testing.T, what, path string) {
	t.Helper()
	s := testStore(t, Options{Path: path})
	u, err := s.Open(t.Context(), killedID)
	if p.deleted {
		if !errors.Is(err, uploadstore.ErrNotFound) {
			t.Fatalf("after %s: a deleted upload is back: %v", what, err)
		}
		return
	}
	if err != nil {
		t.Fatalf("after %s: Open: %v", what, err)
	}
	got, err := u.Status(t.Context())
	if err != nil || got.Offset() < p.offset {
		t.Fatalf("after %s: offset %d, %v; acknowledged %d", what, got.Offset(), err, p.offset)
	}
	if p.outcome == 0 && got.Outcome == nil && p.claimed != (got.Claimed || got.Lapsed) {
		t.Fatalf("after %s: claimed %v, lapsed %v, want a claim: %v", what, got.Claimed, got.Lapsed, p.claimed)
	}
	if p.outcome != 0 && (got.Outcome == nil || got.Outcome.Status != p.outcome) {
		t.Fatalf("after %s: outcome %+v", what, got.Outcome)
	}
	r, err := u.Reader(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b, err := io.ReadAll(r); err != nil || !bytes.Equal(b, pattern(0, got.Offset())) {
		t.Fatalf("after %s: %d bytes differ, %v", what, len(b), err)
	}
}

// The test of the test: without the sync of a folder its names are lost.
func TestStrictDiskForgets(t *testing.T) {
	path := filepath.Join(quickDir(t), "uploads")
	disk := newStrictDisk(path)
	s := testStore(t, Options{Path: path, Fault: func(step, name string) error {
		if step == "syncdir" && name == killedID[:2] {
			return nil // not seen by the strict disk
		}
		return disk.fault(step, name)
	}})
	if _, err := s.Create(t.Context(), uploadstore.Info{ID: killedID, Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	after := disk.afterPowerLoss(t)
	if _, err := os.Stat(filepath.Join(after, place(killedID))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an unsynced name is there: %v", err)
	}
}
