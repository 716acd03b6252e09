package file

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore/storetest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestNothingIsCreatedBeforeTheFirstSession(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "a", "b", "sessions.db")
	s := openAt(t, path)
	ctx := t.Context()
	key := startOf("u1").Key
	_, _, get := s.Get(ctx, key)
	_, refresh := s.Refresh(ctx, key, sessionstore.Refresh{Lifetime: time.Hour})
	_, _, update := s.Update(ctx, key, sessionstore.Update{Claims: []byte(`{}`)})
	for name, err := range map[string]error{"Get": get, "Refresh": refresh, "Update": update} {
		if !errors.Is(err, sessionstore.ErrNotFound) {
			t.Errorf("%s without a file: %v, want ErrNotFound", name, err)
		}
	}
	ended, err := s.End(ctx, key.Site, sessionstore.End{User: "u1"})
	removed, err2 := s.Remove(ctx, key)
	list, err3 := s.List(ctx, key.Site, "u1")
	if err := errors.Join(err, err2, err3); err != nil || len(ended)+len(removed)+len(list) != 0 {
		t.Errorf("End, Remove, List without a file: %v, %v, %v, %v", ended, removed, list, err)
	}
	if entries, _ := os.ReadDir(root); len(entries) != 0 {
		t.Fatalf("created: %v", entries)
	}

	mustStart(t, s, "u1")
	for name, want := range map[string]fs.FileMode{"a": 0o700 | fs.ModeDir, "a/b": 0o700 | fs.ModeDir, "a/b/sessions.db": 0o600} {
		info, err := os.Stat(filepath.Join(root, name))
		must(t, err)
		if runtime.GOOS != "windows" && info.Mode() != want {
			t.Errorf("mode of %s is %v, want %v", name, info.Mode(), want)
		}
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("beside the file: %v", entries)
	}
}

// TestForeignAndDamagedFiles checks that such a file is named, never read as
// empty and never changed.
func TestForeignAndDamagedFiles(t *testing.T) {
	whole := wholeFile(t)
	bolt := func(fill func(tx *bbolt.Tx) error) []byte {
		path := filepath.Join(t.TempDir(), "bolt")
		db, err := bbolt.Open(path, 0o600, nil)
		must(t, err)
		must(t, errors.Join(db.Update(fill), db.Close()))
		b, err := os.ReadFile(path)
		must(t, err)
		return b
	}
	noMetas := bytes.Clone(whole)
	clear(noMetas[:2*os.Getpagesize()])
	flipped := bytes.Clone(whole)
	flipped[16+20] ^= 1 // in one meta page
	flipped[os.Getpagesize()+16+20] ^= 1
	for name, content := range map[string][]byte{
		"one byte":            {'x'},
		"text":                []byte(strings.Repeat("not a database\n", 5000)),
		"zeros":               make([]byte, 64<<10),
		"no meta pages":       noMetas,
		"damaged meta pages":  flipped,
		"cut off":             whole[:len(whole)/4], // up to half of it may be room for growth
		"cut off behind meta": whole[:2*os.Getpagesize()],
		"another's database": bolt(func(tx *bbolt.Tx) error {
			_, err := tx.CreateBucket([]byte("theirs"))
			return err
		}),
		"a later layout": bolt(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucket(bucketMark)
			return errors.Join(err, b.Put(markKey, []byte("layout 2")))
		}),
		"a bucket is missing": bolt(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucket(bucketMark)
			return errors.Join(err, b.Put(markKey, markValue))
		}),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "sessions.db")
			must(t, os.WriteFile(path, content, 0o600))
			s := openAt(t, path)
			for range 2 {
				for use, err := range everyUse(s) {
					if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "damaged or foreign") {
						t.Errorf("%s: %v, want ErrDamaged", use, err)
					}
				}
			}
			if got, _ := os.ReadFile(path); !bytes.Equal(got, content) {
				t.Error("the file was changed")
			}
			must(t, os.Remove(path))
			mustStart(t, s, "u1") // the next operation tries again
		})
	}
}

// everyUse calls every operation.
func everyUse(s *Store) map[string]error {
	ctx := context.Background()
	key := startOf("u1").Key
	_, _, get := s.Get(ctx, key)
	_, _, start := s.Start(ctx, startOf("u1"))
	_, refresh := s.Refresh(ctx, key, sessionstore.Refresh{Lifetime: time.Hour})
	_, _, update := s.Update(ctx, key, sessionstore.Update{})
	_, end := s.End(ctx, key.Site, sessionstore.End{User: "u1"})
	_, remove := s.Remove(ctx, key)
	_, list := s.List(ctx, key.Site, "u1")
	return map[string]error{
		"Get": get, "Start": start, "Refresh": refresh, "Update": update, "End": end, "Remove": remove, "List": list,
	}
}

// wholeFile returns a database of some dozen pages.
func wholeFile(t *testing.T) []byte {
	path := newPath(t)
	s := openAt(t, path)
	startMany(t, s, 300, time.Hour)
	must(t, s.Close())
	b, err := os.ReadFile(path)
	must(t, err)
	return b
}

func TestUnreadablePathsAreFaults(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	for name, path := range map[string]string{
		"a folder":     dir,
		"below a file": filepath.Join(dir, "file", "sessions.db"),
	} {
		for use, err := range everyUse(openAt(t, path)) {
			if err == nil || errors.Is(err, sessionstore.ErrNotFound) {
				t.Errorf("%s, %s: %v, want a fault", name, use, err)
			}
		}
	}
	if _, err := Open(Options{}); err == nil {
		t.Error("Open without a path succeeds")
	}
}

// TestFileCutOffInUse checks that pages which vanish under an open database
// are an error and not the end of the process.
func TestFileCutOffInUse(t *testing.T) {
	path := newPath(t)
	s := openAt(t, path)
	keys := startMany(t, s, 300, time.Hour)
	must(t, os.Truncate(path, int64(2*os.Getpagesize())))
	for _, key := range keys[:5] {
		if _, _, err := s.Get(t.Context(), key); !errors.Is(err, ErrDamaged) {
			t.Errorf("Get: %v, want ErrDamaged", err)
		}
	}
	if _, _, err := s.Start(t.Context(), startOf("u1")); !errors.Is(err, ErrDamaged) {
		t.Errorf("Start: %v, want ErrDamaged", err)
	}
	if _, err := s.End(t.Context(), "example.com", sessionstore.End{User: "u1"}); !errors.Is(err, ErrDamaged) {
		t.Errorf("End: %v, want ErrDamaged", err)
	}
}

func TestTwoStoresCreateAtOnce(t *testing.T) {
	for range 4 {
		path := newPath(t)
		stores := []*Store{openAt(t, path), openAt(t, path)}
		starts := []sessionstore.Start{startOf("u1"), startOf("u1")}
		errs := make([]error, 2)
		var wg sync.WaitGroup
		for i, s := range stores {
			wg.Go(func() { _, _, errs[i] = s.Start(t.Context(), starts[i]) })
		}
		wg.Wait()
		won := 0
		if errs[0] != nil {
			won = 1
		}
		if errs[won] != nil || !errors.Is(errs[1-won], ErrLocked) {
			t.Fatalf("errors %v, want one success and one ErrLocked", errs)
		}
		must(t, stores[won].Close())
		if _, _, err := stores[1-won].Get(t.Context(), starts[won].Key); err != nil {
			t.Fatalf("Get by the other store, once the file is free: %v", err)
		}
		must(t, stores[1-won].Close())
	}
}

// TestManyWaitForOneLock checks that operations share the wait for a lock.
func TestManyWaitForOneLock(t *testing.T) {
	s, begin, end := openLocked(t)
	begin()
	defer end()
	started := time.Now()
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			if _, _, err := s.Get(t.Context(), startOf("u1").Key); !errors.Is(err, ErrLocked) {
				t.Errorf("Get: %v, want ErrLocked", err)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, _, err := s.Get(ctx, startOf("u1").Key); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Get with a short deadline: %v", err)
	}
	wg.Wait()
	if took := time.Since(started); took > 2*time.Second {
		t.Errorf("40 look-ups waited %v", took)
	}
}

// TestKilledProcess lets another process start sessions and kills it: what it
// was told is stored, is, and the file is free again.
func TestKilledProcess(t *testing.T) {
	path := newPath(t)
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+path)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var keys []sessionstore.Key
	lines := bufio.NewScanner(out)
	for len(keys) < 100 && lines.Scan() {
		var id []byte
		if _, err := fmt.Sscanf(lines.Text(), "%x", &id); err != nil || len(id) != 16 {
			t.Fatalf("child says %q", lines.Text())
		}
		keys = append(keys, sessionstore.Key{Site: "example.com", ID: sessionstore.ID(id)})
	}
	s := openAt(t, path)
	started := time.Now()
	_, _, err = s.Get(t.Context(), keys[0])
	if !errors.Is(err, ErrLocked) || time.Since(started) > 2*time.Second {
		t.Errorf("Get while another process has the file: %v after %v", err, time.Since(started))
	}
	must(t, cmd.Process.Kill())
	for lines.Scan() { // lets it go on until it is dead
	}
	_ = cmd.Wait()
	for i, key := range keys {
		if _, _, err := s.Get(t.Context(), key); err != nil {
			t.Fatalf("session %d of %d is lost: %v", i, len(keys), err)
		}
	}
}

const childEnv = "GATEHOUSE_TEST_SESSION_FILE"

// child starts sessions and names each once it is stored, until it is killed.
func child(path string) {
	s, err := Open(Options{Path: path})
	if err != nil {
		panic(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				start := startOf("u1")
				start.Key.ID = storetest.NewID()
				if _, _, err := s.Start(context.Background(), start); err != nil {
					panic(err)
				}
				fmt.Printf("%x\n", start.Key.ID)
			}
		})
	}
	wg.Wait()
}
