package directory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func names(elements []ringstore.Element) []string {
	var all []string
	for _, element := range elements {
		all = append(all, element.Name)
	}
	return all
}

func write(t *testing.T, path, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(path, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestMissingDirectoryIsEmptyAndIsNotCreatedByReading(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "keys")
	repository := New(path)
	elements, err := repository.Elements(t.Context())
	if err != nil || len(elements) != 0 {
		t.Errorf("%v, %v", elements, err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
}

func TestAdd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	repository := New(path)
	if err := repository.Add(t.Context(), "key-1", []byte("<key/>")); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(path, "key-1.xml"))
	if want := "\xef\xbb\xbf<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<key/>"; err != nil || string(content) != want {
		t.Errorf("file %q, %v, want %q", content, err, want)
	}
	for name, want := range map[string]fs.FileMode{path: 0o700, filepath.Join(path, "key-1.xml"): 0o600} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
	}
	if err := repository.Add(t.Context(), "key-1", []byte("<other/>")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("the same name again: %v", err)
	}
	for _, bad := range []string{"../escape", "a/b", "", "a.b", strings.Repeat("a", 300)} {
		if err := repository.Add(t.Context(), bad, []byte("<key/>")); err != nil {
			t.Errorf("name %q: %v", bad, err)
		}
	}
	entries, err := os.ReadDir(path)
	if err != nil || len(entries) != 6 {
		t.Errorf("%v, %v", entries, err)
	}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".xml") {
			t.Errorf("%s is left over", entry.Name())
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := repository.Add(cancelled, "late", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestElements(t *testing.T) {
	path := t.TempDir()
	write(t, path, "b.xml", "<b/>")
	write(t, path, "a.xml", "\xef\xbb\xbf<a/>")
	write(t, path, "any name at all.xml", "not XML")
	write(t, path, "key.xml.tmp", "half")
	write(t, path, lockName, "held")
	write(t, path, "README", "")
	if err := os.MkdirAll(filepath.Join(path, "sub.xml"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(path, "sub.xml"), "c.xml", "<c/>")
	// A mounted secret shows its files as links.
	write(t, path, "data", "<d/>")
	if err := os.Symlink("data", filepath.Join(path, "d.xml")); err != nil {
		t.Fatal(err)
	}
	elements, err := New(path).Elements(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := names(elements), []string{"a", "any name at all", "b", "d"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := string(elements[0].XML); got != "\xef\xbb\xbf<a/>" {
		t.Errorf("got %q", got)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New(path).Elements(cancelled); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestOneBadFileFailsTheReading(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"too large":    func(p string) error { return os.WriteFile(p, make([]byte, maxFileBytes+1), 0o600) },
		"pipe":         func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"outside link": func(p string) error { return os.Symlink("/etc/hostname", p) },
		"linked directory": func(p string) error {
			return errors.Join(os.Mkdir(filepath.Join(filepath.Dir(p), "d"), 0o700), os.Symlink("d", p))
		},
		"dangling link": func(p string) error { return os.Symlink("nowhere", p) },
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			write(t, path, "good.xml", "<a/>")
			if err := spoil(filepath.Join(path, "bad.xml")); err != nil {
				t.Fatal(err)
			}
			elements, err := New(path).Elements(t.Context())
			if err == nil || errors.Is(err, ringstore.ErrUnavailable) {
				t.Errorf("%q, %v", names(elements), err)
			}
		})
	}
}

func TestVanishedDirectoryIsUnavailable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	repository := New(path)
	if err := repository.Add(t.Context(), "a", []byte("<a/>")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if elements, err := repository.Elements(t.Context()); !errors.Is(err, ringstore.ErrUnavailable) {
		t.Errorf("%v, %v", elements, err)
	}
}

func TestNotADirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(path).Elements(t.Context()); err == nil || errors.Is(err, ringstore.ErrUnavailable) {
		t.Errorf("reading: %v", err)
	}
	if err := New(path).Add(t.Context(), "a", nil); err == nil {
		t.Error("writing succeeded")
	}
}

func TestClassify(t *testing.T) {
	for err, want := range map[error]bool{
		&fs.PathError{Err: syscall.ESTALE}:    true,
		&fs.PathError{Err: syscall.ETIMEDOUT}: true,
		&fs.PathError{Err: syscall.EACCES}:    false,
		&fs.PathError{Err: syscall.EIO}:       false,
	} {
		if got := errors.Is(classify(err), ringstore.ErrUnavailable); got != want || !errors.Is(classify(err), err) {
			t.Errorf("%v: unavailable %v", err, got)
		}
	}
}

// TestReadersSeeWholeElements reads while others write.
func TestReadersSeeWholeElements(t *testing.T) {
	path := t.TempDir()
	body := strings.Repeat("x", 100_000)
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for i := range 20 {
				if err := New(path).Add(t.Context(), fmt.Sprintf("key-%d-%d", w, i), []byte(body)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	reader := New(path)
	for finished := false; !finished; {
		select {
		case <-done:
			finished = true
		default:
		}
		elements, err := reader.Elements(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, element := range elements {
			if len(element.XML) != len(header)+len(body) {
				t.Fatalf("%s has %d bytes", element.Name, len(element.XML))
			}
		}
	}
}

func TestLockExcludes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	var inside, most, total int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			unlock, err := New(path).Lock(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			inside++
			total++
			most = max(most, inside)
			mu.Unlock()
			if elements, err := New(path).Elements(t.Context()); err != nil || len(elements) > 0 {
				t.Errorf("the lock shows as an element: %v, %v", elements, err)
			}
			mu.Lock()
			inside--
			mu.Unlock()
			unlock()
		})
	}
	wg.Wait()
	if most != 1 || total != 8 {
		t.Errorf("%d held it, %d at once", total, most)
	}
	if entries, err := os.ReadDir(path); err != nil || len(entries) > 0 {
		t.Errorf("left over: %v, %v", entries, err)
	}
}

func TestLockOfADeadHolderIsTakenOver(t *testing.T) {
	for _, content := range []string{"somebody", ""} {
		synctest.Test(t, func(t *testing.T) {
			path := t.TempDir()
			write(t, path, lockName, content)
			// An old file of an old clock must not count as stale by itself,
			// nor one of a clock that is ahead as fresh.
			ahead := time.Now().Add(24 * time.Hour)
			if err := os.Chtimes(filepath.Join(path, lockName), ahead, ahead); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			held := 0
			var mu sync.Mutex
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					unlock, err := New(path).Lock(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					held++
					mu.Unlock()
					unlock()
				})
			}
			wg.Wait()
			if took := time.Since(start); held != 4 || took < staleAfter || took > 10*time.Second {
				t.Errorf("%d got it, after %v", held, took)
			}
			if entries, err := os.ReadDir(path); err != nil || len(entries) > 0 {
				t.Errorf("left over: %v, %v", entries, err)
			}
		})
	}
}

func TestLockIsNotTakenFromASuccessor(t *testing.T) {
	path := t.TempDir()
	root, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	write(t, path, lockName, "dead")
	dead, err := identify(root)
	if err != nil {
		t.Fatal(err)
	}
	// Another waiter was faster and holds the lock now.
	write(t, path, lockName, "alive")
	if err := evict(root, dead); err != nil {
		t.Fatal(err)
	}
	if now, err := identify(root); err != nil || now.mark != "alive" {
		t.Errorf("the lock is %+v, %v", now, err)
	}
	if entries, err := os.ReadDir(path); err != nil || len(entries) != 1 {
		t.Errorf("left over: %v, %v", entries, err)
	}
}

func TestUnlockLeavesAnothersLock(t *testing.T) {
	path := t.TempDir()
	unlock, err := New(path).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, lockName, "taken over")
	unlock()
	if content, err := os.ReadFile(filepath.Join(path, lockName)); err != nil || string(content) != "taken over" {
		t.Errorf("%q, %v", content, err)
	}
}

func TestLockWaitEndsWithItsContext(t *testing.T) {
	path := t.TempDir()
	unlock, err := New(path).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
	defer cancel()
	if _, err := New(path).Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
