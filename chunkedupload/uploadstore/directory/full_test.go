//go:build linux

package directory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// smallDisk mounts a small file system, or, where that is not allowed, limits
// the size of files that this process writes; both end in the system's own
// errors.
func smallDisk(t *testing.T, size int64) string {
	t.Helper()
	path := t.TempDir()
	if err := syscall.Mount("tmpfs", path, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err == nil {
		t.Cleanup(func() {
			if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		return path
	}
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: uint64(size), Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before) })
	return path
}

// A disk that is full costs nothing that was acknowledged, keeps Status,
// Release and Delete working, and the upload goes on when there is room again.
func TestDiskFull(t *testing.T) {
	const size = 4 << 20
	for _, chunkSize := range []int64{0, 256 << 10} {
		path := smallDisk(t, size)
		s := testStore(t, Options{Path: filepath.Join(path, "uploads")})
		u, err := s.Create(t.Context(), uploadstore.Info{ID: killedID, Length: 2 * size, ChunkSize: chunkSize, Created: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		acked := fillDisk(t, u, chunkSize)
		ballast := filepath.Join(path, "ballast") // not even one page is left
		if b, err := os.Create(ballast); err == nil {
			_, _ = b.ReadFrom(strings.NewReader(strings.Repeat("x", size)))
			_ = b.Close()
		}
		wantIntact(t, u, acked)
		if _, err := u.Write(t.Context(), uploadstore.WriteOptions{Offset: acked + 1, Size: 1}); err == nil {
			t.Error("Write at a wrong offset succeeded")
		}
		if _, err := s.Create(t.Context(), uploadstore.Info{ID: strings.Repeat("n", 32)}); err != nil && !errors.Is(err, uploadstore.ErrFull) {
			t.Errorf("Create on a full disk: %v, want ErrFull", err)
		}
		other := reopened(t, filepath.Join(path, "uploads"))
		for range 3 {
			if w, err := other.Write(t.Context(), uploadstore.WriteOptions{Offset: acked, Size: chunkSize}); err == nil {
				_ = w.Close()
			} else if !errors.Is(err, uploadstore.ErrFull) {
				t.Errorf("Write on a full disk: %v, want ErrFull", err)
			}
			wantIntact(t, other, acked)
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		if err := other.Delete(t.Context()); err != nil {
			t.Errorf("Delete on a full disk: %v", err)
		}
		free, total, err := s.Free(t.Context())
		if err != nil || free > total {
			t.Errorf("Free = %d of %d, %v", free, total, err)
		}
	}
}

// fillDisk writes and commits until there is no space, and returns what was
// acknowledged.
func fillDisk(t *testing.T, u uploadstore.Upload, chunkSize int64) (acked int64) {
	t.Helper()
	const piece = 256 << 10
	for {
		w, err := u.Write(t.Context(), uploadstore.WriteOptions{Offset: acked, Size: chunkSize})
		if err == nil {
			_, err = w.Write(pattern(acked, acked+piece))
			if err == nil {
				var offset int64
				if offset, err = w.Commit(t.Context()); err == nil {
					acked = offset
				}
			}
			if closeErr := w.Close(); err == nil {
				err = closeErr
			}
		}
		if errors.Is(err, uploadstore.ErrFull) {
			return acked
		}
		if err != nil {
			t.Fatalf("after %d bytes: %v, want ErrFull", acked, err)
		}
	}
}
