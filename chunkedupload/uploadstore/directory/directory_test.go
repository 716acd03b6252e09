package directory

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore/storetest"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(childVariable); path != "" {
		writeUntilKilled(path)
		return
	}
	goleak.VerifyTestMain(m)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t testing.TB) storetest.Place {
		path := quickDir(t) + "/uploads"
		return func(t testing.TB, g storetest.Gateway) uploadstore.Store {
			return testStore(t, Options{Path: path, Now: g.Now, Fault: g.Fault})
		}
	}, storetest.Options{Killed: ErrKilled, Torn: ErrTorn, Full: fmt.Errorf("write: %w", syscall.ENOSPC)})
}

// quickDir is a folder in memory where there is one: the suite syncs thousands
// of times, and what a sync means is tested elsewhere.
func quickDir(t testing.TB) string {
	path, err := os.MkdirTemp("/dev/shm", "gatehouse-uploads-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(path) })
	return path
}

// testStore opens a store that ends with the test.
func testStore(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
