package dataprotection

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore"
)

// fakeRepository is a repository in memory that can fail and be counted.
type fakeRepository struct {
	mu       sync.Mutex
	elements []ringstore.Element
	fail     error
	failAdd  error
	reads    int
	adds     int
	entered  chan struct{} // receives at each reading, when set
	gate     chan struct{} // holds each reading up, when set
}

func (f *fakeRepository) Elements(ctx context.Context) ([]ringstore.Element, error) {
	f.mu.Lock()
	f.reads++
	entered, gate := f.entered, f.gate
	f.mu.Unlock()
	if entered != nil {
		entered <- struct{}{}
	}
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return nil, f.fail
	}
	return append([]ringstore.Element(nil), f.elements...), nil
}

func (f *fakeRepository) Add(_ context.Context, name string, xml []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.adds++
	if f.failAdd != nil {
		return f.failAdd
	}
	f.elements = append(f.elements, ringstore.Element{Name: name, XML: bytes.Clone(xml)})
	return nil
}

func (f *fakeRepository) set(change func(f *fakeRepository)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *fakeRepository) counts() (reads, adds int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads, f.adds
}

// holding returns a repository that holds the documents.
func holding(documents ...string) *fakeRepository {
	f := &fakeRepository{}
	for _, document := range documents {
		f.elements = append(f.elements, ringstore.Element{Name: "element", XML: []byte(document)})
	}
	return f
}

// newRing opens a ring that the test closes.
func newRing(t testing.TB, o Options) *Ring {
	t.Helper()
	ring, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ring.Close(); err != nil {
			t.Errorf("closing the ring: %v", err)
		}
	})
	return ring
}

// testdata reads a JSON file of vectors.
func testdata[T any](t testing.TB, name string) T {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var v T
	if err := json.Unmarshal(content, &v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

// keyAt writes a key with a known secret that is created and active at a time.
func keyAt(id KeyID, at time.Time) string {
	return string(newKeyXML(id, at, at, at.Add(DefaultKeyLifetime), bytes.Repeat([]byte{id[0], id[15]}, 32)))
}

func revocationOf(id string, at time.Time) string {
	return `<revocation version="1"><revocationDate>` + formatDate(at) + `</revocationDate><key id="` + id + `" /><reason>test</reason></revocation>`
}

// clock is a settable clock.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) set(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = at
}
