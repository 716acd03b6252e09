package storetest

import (
	"errors"
	"testing"

	"github.com/gatehouse-gateway/gatehouse/shortlived"
)

// Flaky is a store that is reached in two ways.
type Flaky struct {
	// Direct reaches the store undisturbed.
	Direct shortlived.Store
	// Lossy reaches the same store over a connection that can be cut.
	Lossy shortlived.Store
	// LoseNextReply lets the next operation of Lossy reach the store and be
	// carried out there, but cuts the connection instead of passing the reply.
	LoseNextReply func()
	// Down refuses and cuts all connections of Lossy from now on.
	Down func()
}

// RunLost checks that a lost reply never turns into a wrong answer: the caller
// is told that the outcome is unknown, and nothing is done a second time.
func RunLost(t *testing.T, open func(t *testing.T) Flaky) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, f Flaky)
	}{
		{"a lost TryAdd is unknown, and has one winner", testLostAdd},
		{"a lost Take is unknown, and gives the value out once at most", testLostTake},
		{"a lost Increment is unknown, and counts once", testLostIncrement},
		{"a lost Get and Remove are unknown", testLostRead},
		{"a store out of reach is never an absent value", testDown},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

func testLostAdd(t *testing.T, f Flaky) {
	f.LoseNextReply()
	added, err := f.Lossy.TryAdd(t.Context(), "k", []byte("lost"), long)
	wantUnknown(t, "TryAdd", err)
	if added {
		t.Error("TryAdd whose reply was lost said true")
	}
	wantValue(t, f.Direct, "k", []byte("lost")) // it was carried out
	if added, err := f.Lossy.TryAdd(t.Context(), "k", []byte("second"), long); err != nil || added {
		t.Errorf("TryAdd after the lost one: got %v, %v, want false", added, err)
	}
	f.LoseNextReply()
	_, err = f.Lossy.TryAdd(t.Context(), "k", []byte("third"), long)
	wantUnknown(t, "TryAdd at a live key", err)
	wantValue(t, f.Direct, "k", []byte("lost"))
}

func testLostTake(t *testing.T, f Flaky) {
	mustAdd(t, f.Direct, "k", []byte("v"), long)
	f.LoseNextReply()
	v, err := f.Lossy.Take(t.Context(), "k")
	wantUnknown(t, "Take", err)
	if v != nil {
		t.Errorf("Take whose reply was lost gave %q", v)
	}
	wantAbsent(t, f.Direct, "k")
	wantAbsent(t, f.Lossy, "k")
}

func testLostIncrement(t *testing.T, f Flaky) {
	mustIncrement(t, f.Direct, "n", 10, long, 10)
	f.LoseNextReply()
	_, err := f.Lossy.Increment(t.Context(), "n", 1, long)
	wantUnknown(t, "Increment", err)
	wantValue(t, f.Direct, "n", []byte("11"))
	mustIncrement(t, f.Lossy, "n", 1, long, 12)
}

func testLostRead(t *testing.T, f Flaky) {
	mustAdd(t, f.Direct, "k", []byte("v"), long)
	f.LoseNextReply()
	_, err := f.Lossy.Get(t.Context(), "k")
	wantUnknown(t, "Get", err)
	wantValue(t, f.Lossy, "k", []byte("v"))
	f.LoseNextReply()
	wantUnknown(t, "Remove", f.Lossy.Remove(t.Context(), "k"))
	wantAbsent(t, f.Lossy, "k")
}

func testDown(t *testing.T, f Flaky) {
	mustAdd(t, f.Direct, "k", []byte("v"), long)
	f.Down()
	for range 3 { // whatever connections were pooled
		_, err := f.Lossy.Get(t.Context(), "k")
		wantUnknown(t, "Get", err)
		_, err = f.Lossy.Take(t.Context(), "k")
		wantUnknown(t, "Take", err)
		_, err = f.Lossy.TryAdd(t.Context(), "other", nil, long)
		wantUnknown(t, "TryAdd", err)
		_, err = f.Lossy.Increment(t.Context(), "n", 1, long)
		wantUnknown(t, "Increment", err)
		wantUnknown(t, "Remove", f.Lossy.Remove(t.Context(), "k"))
	}
	wantValue(t, f.Direct, "k", []byte("v"))
	wantAbsent(t, f.Direct, "other")
	wantAbsent(t, f.Direct, "n")
}

// wantUnknown checks for an error that callers cannot take for an answer.
func wantUnknown(t *testing.T, op string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s without a reply: got no error", op)
	}
	for _, answer := range []error{shortlived.ErrNotFound, shortlived.ErrNotCounter, shortlived.ErrOverflow, shortlived.ErrFull, shortlived.ErrInvalid} {
		if errors.Is(err, answer) {
			t.Errorf("%s without a reply: got the answer %v", op, err)
		}
	}
}
