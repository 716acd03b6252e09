// Package storetest is the conformance suite of upload stores. It holds every
// store to the contract of package uploadstore: alone, with a second gateway
// on the same place, in races, and cut off at every step.
package storetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// Gateway says how one gateway opens its store.
type Gateway struct {
	// Now is the gateway's clock. The store may compare it with its servers'
	// clock once; what passes on it afterwards must count as time passed.
	Now func() time.Time
	// Fault is called before every step that changes the store's state. Its
	// error makes the step fail.
	Fault func(step, name string) error
}

// Place opens a store for one more gateway on the same place. The store is
// closed with the test.
type Place func(t testing.TB, g Gateway) uploadstore.Store

// Options say what the suite can ask of the store's faults.
type Options struct {
	// Killed, returned by a Fault, stops all that the store does, as if its
	// process had been killed. Torn does so in the middle of a write. Full is
	// what the system says when there is no space.
	Killed, Torn, Full error
}

// Run runs the suite; place makes a fresh place.
func Run(t *testing.T, place func(t testing.TB) Place, o Options) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Place)
	}{
		{"creation", testCreation}, {"exact info", testExactInfo}, {"ids", testIDs}, {"all", testAll},
		{"serial writing", testSerial}, {"uncommitted bytes", testUncommitted}, {"too long", testTooLong},
		{"deferred length", testDeferredLength}, {"reader", testReader}, {"writers in turn", testWritersInTurn},
		{"chunks", testChunks}, {"chunk repeats", testChunkRepeats}, {"chunk refusals", testChunkRefusals},
		{"claims", testClaims}, {"claim and writers", testClaimAndWriters}, {"lapse", testLapse}, {"outcomes", testOutcomes},
		{"settle", testSettle}, {"deletion", testDeletion}, {"contexts", testContexts},
		{"busy and yield", testBusyAndYield}, {"fencing", testFencing}, {"gateways alternate", testAlternation},
		{"race to create", testCreateRace}, {"race to claim", testClaimRace}, {"race to settle", testSettleRace},
		{"race to write", testWriterRace}, {"race of chunk and claim", testChunkClaimRace},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, place(t)) })
	}
	t.Run("dead writer", func(t *testing.T) { testDeadWriter(t, place(t), o) })
	t.Run("cut at every step", func(t *testing.T) { testCuts(t, place, o) })
	t.Run("no space at every step", func(t *testing.T) { testFull(t, place, o) })
}

// Clock is a clock that a test moves on. Its zero value tells the time.
type Clock struct{ ahead atomic.Int64 }

// Now returns the clock's time.
func (c *Clock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// Advance moves the clock on.
func (c *Clock) Advance(d time.Duration) { c.ahead.Add(int64(d)) }

// NewID returns an id of the contract's form.
func NewID() string { return (rand.Text() + rand.Text())[:32] }

func serial(length int64) uploadstore.Info {
	return uploadstore.Info{ID: NewID(), Site: "site.example", Protocol: "tus", Length: length, Created: time.Now().UTC().Truncate(time.Millisecond)}
}

func chunked(length, chunk int64) uploadstore.Info {
	info := serial(length)
	info.Protocol, info.ChunkSize = "chunks", chunk
	return info
}

// content is byte i of every upload in the suite.
func content(from, to int64) []byte {
	b := make([]byte, to-from)
	for i := range b {
		at := from + int64(i)
		b[i] = byte(at*31 + at>>8*7 + 5)
	}
	return b
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: got error %v, want %v", what, err, want)
	}
}

func create(t testing.TB, s uploadstore.Store, info uploadstore.Info) uploadstore.Upload {
	t.Helper()
	return must[uploadstore.Upload](t)(s.Create(t.Context(), info))
}

func open(t testing.TB, s uploadstore.Store, id string) uploadstore.Upload {
	t.Helper()
	return must[uploadstore.Upload](t)(s.Open(t.Context(), id))
}

func status(t testing.TB, u uploadstore.Upload) uploadstore.Status {
	t.Helper()
	return must[uploadstore.Status](t)(u.Status(t.Context()))
}

func write(t testing.TB, u uploadstore.Upload, o uploadstore.WriteOptions) uploadstore.Writer {
	t.Helper()
	return must[uploadstore.Writer](t)(u.Write(t.Context(), o))
}

// fill writes and commits [from, to).
func fill(ctx context.Context, u uploadstore.Upload, from, to, size int64) error {
	w, err := u.Write(ctx, uploadstore.WriteOptions{Offset: from, Size: size})
	if err != nil {
		return err
	}
	_, err = w.Write(content(from, to))
	if err == nil {
		var offset int64
		if offset, err = w.Commit(ctx); err == nil && offset != to {
			err = errors.New("commit returned another offset")
		}
	}
	return errors.Join(err, w.Close())
}

func fillSerial(t testing.TB, u uploadstore.Upload, from, to int64) {
	t.Helper()
	if err := fill(t.Context(), u, from, to, 0); err != nil {
		t.Fatal(err)
	}
}

func fillChunk(t testing.TB, u uploadstore.Upload, from, to int64) {
	t.Helper()
	if err := fill(t.Context(), u, from, to, to-from); err != nil {
		t.Fatal(err)
	}
}

func readAll(t testing.TB, u uploadstore.Upload, offset int64) []byte {
	t.Helper()
	r := must[io.ReadCloser](t)(u.Reader(t.Context(), offset))
	defer r.Close()
	return must[[]byte](t)(io.ReadAll(r))
}

func wantReceived(t testing.TB, u uploadstore.Upload, want ...uploadstore.Range) {
	t.Helper()
	got := status(t, u).Received
	if len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
		t.Fatalf("Received = %v, want %v", got, want)
	}
	for _, r := range want {
		if b := readAll(t, u, r.From); !bytes.Equal(b, content(r.From, r.To)) {
			t.Fatalf("bytes %v differ: %d bytes read", r, len(b))
		}
	}
}

func done(status int) uploadstore.Outcome {
	return uploadstore.Outcome{State: uploadstore.StateDone, Status: status,
		Header: http.Header{"Location": {"/x"}, "X-Odd": {"a", "\xff\x00b"}}, Body: []byte("body\x00\xff"), Time: time.Now().UTC().Truncate(time.Millisecond)}
}
