package directory

import (
	"os"
	"testing"
)

// A trimmed chain stays short and its end is found at every length.
func TestChainIsTrimmedAndStillFound(t *testing.T) {
	t.Parallel()
	f := testFolder(t)
	for n := int64(0); n < 2000; n++ {
		file, err := f.create(writerChain.name(n))
		if err != nil {
			t.Fatal(err)
		}
		if err := file.close(); err != nil {
			t.Fatal(err)
		}
		for _, gone := range trimmed(n) {
			if gone >= n {
				t.Fatalf("trimmed(%d) names %d", n, gone)
			}
			_ = f.remove(writerChain.name(gone))
		}
		if got, err := writerChain.last(f); got != n || err != nil {
			t.Fatalf("last = %d, %v, want %d", got, err, n)
		}
	}
	entries, err := os.ReadDir(f.root.Name())
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) > 2000/segmentSize+2*groupSize+2 {
		t.Errorf("%d files are left of 2000", len(entries))
	}
}

// Whoever stops anywhere in a chain notices that the chain went on.
func TestChainFollowNoticesWhatWasTrimmed(t *testing.T) {
	f := testFolder(t)
	const end = 600
	for n := int64(0); n <= end; n++ {
		file, err := f.create(writerChain.name(n))
		if err != nil {
			t.Fatal(err)
		}
		_ = file.close()
		for _, gone := range trimmed(n) {
			_ = f.remove(writerChain.name(gone))
		}
	}
	for n := int64(0); n < end; n++ {
		if next, err := writerChain.follow(f, n); next <= n || err != nil {
			t.Fatalf("follow(%d) = %d, %v", n, next, err)
		}
	}
	if next, err := writerChain.follow(f, end); next != end || err != nil {
		t.Fatalf("follow(%d) = %d, %v", end, next, err)
	}
}

func testFolder(t *testing.T) *folder {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return &folder{&disk{}, root, ""}
}
