// Package storetest is the conformance suite of limit stores.
package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
)

// Opener opens the store. Every call gives a gateway of its own on the same
// counts, if the store can be shared; else the same store.
type Opener func(t *testing.T) limitstore.Store

// Run runs the suite. open is called in each subtest.
func Run(t *testing.T, open Opener) {
	t.Run("decisions follow the table", func(t *testing.T) { testTable(t, open(t)) })
	t.Run("all limits or none", func(t *testing.T) { testAllOrNothing(t, open(t)) })
	t.Run("an advisory limit changes no decision", func(t *testing.T) { testAdvisory(t, open(t)) })
	t.Run("changed events keep the count", func(t *testing.T) { testChangedEvents(t, open(t)) })
	t.Run("amounts up to the bound are exact", func(t *testing.T) { testLargeAmounts(t, open(t)) })
	t.Run("a window ends when it says", func(t *testing.T) { testWindowEdge(t, open(t)) })
	t.Run("invalid decisions are refused", func(t *testing.T) { testInvalid(t, open(t)) })
	t.Run("an ended context asks nothing", func(t *testing.T) { testEndedContext(t, open(t)) })
	t.Run("exactly the limit under contention", func(t *testing.T) { testContention(t, open(t), open(t)) })
	t.Run("several keys under contention", func(t *testing.T) { testSeveralKeysContended(t, open(t), open(t)) })
	t.Run("model", func(t *testing.T) { testModel(t, open(t)) })
}

// Key returns a key that nothing else uses.
func Key() limitstore.Key {
	var k limitstore.Key
	_, _ = rand.Read(k[:])
	return k
}

// Limit returns a limit with a fresh key and a window so long that a test does
// not meet its end, but at one moment a year.
func Limit(events, cost int64) limitstore.Limit {
	return limitstore.Limit{Key: Key(), Algorithm: limitstore.FixedWindow, Window: limitstore.MaxWindow, Events: events, Cost: cost}
}

// Ask makes a decision and fails the test on an error.
func Ask(t testing.TB, s limitstore.Store, limits ...limitstore.Limit) *limitstore.Decision {
	t.Helper()
	d, err := Try(t.Context(), s, limits...)
	if err != nil {
		t.Fatalf("Decide: %v", err)
	}
	return d
}

// Try makes a decision.
func Try(ctx context.Context, s limitstore.Store, limits ...limitstore.Limit) (*limitstore.Decision, error) {
	d := &limitstore.Decision{Limits: limits, States: make([]limitstore.State, len(limits)), Timeout: 10 * time.Second}
	return d, s.Decide(ctx, d)
}

func testTable(t *testing.T, s limitstore.Store) {
	tests := []struct {
		name      string
		events    int64
		costs     []int64
		admitted  []bool
		remaining []int64
	}{
		{"the last place is given", 2, []int64{1, 1, 1, 1}, []bool{true, true, false, false}, []int64{1, 0, 0, 0}},
		{"a cost that does not fit leaves room for one that does", 10, []int64{7, 4, 3, 1}, []bool{true, false, true, false}, []int64{3, 3, 0, 0}},
		{"cost 0 is admitted and uncharged", 1, []int64{0, 1, 0, 1}, []bool{true, true, true, false}, []int64{1, 0, 0, 0}},
		{"a cost above events never fits", 5, []int64{6, 5, 6}, []bool{false, true, false}, []int64{5, 0, 0}},
	}
	for _, tt := range tests {
		l := Limit(tt.events, 0)
		for i, cost := range tt.costs {
			l.Cost = cost
			d := Ask(t, s, l)
			if d.Admitted != tt.admitted[i] || d.States[0].Remaining != tt.remaining[i] || d.States[0].Refused == d.Admitted {
				t.Errorf("%s: request %d: got %v, %+v; want %v, %d left", tt.name, i, d.Admitted, d.States[0], tt.admitted[i], tt.remaining[i])
			}
			if reset := d.States[0].Reset; reset < time.Millisecond || reset > l.Window {
				t.Errorf("%s: request %d: reset %v", tt.name, i, reset)
			}
		}
	}
}

func testAllOrNothing(t *testing.T, s limitstore.Store) {
	narrow, wide := Limit(1, 1), Limit(100, 1)
	for _, order := range [][]limitstore.Limit{{narrow, wide}, {wide, narrow}} {
		Ask(t, s, order...) // the first of all takes the narrow one's place
	}
	for range 5 {
		d := Ask(t, s, wide, narrow)
		if d.Admitted || d.States[0].Refused || !d.States[1].Refused {
			t.Fatalf("got %v, %+v; want refused by the narrow limit alone", d.Admitted, d.States)
		}
		if d.States[0].Remaining != 99 {
			t.Fatalf("a refused request was charged: %d left of the wide limit, want 99", d.States[0].Remaining)
		}
	}
	if d := Ask(t, s, wide); !d.Admitted || d.States[0].Remaining != 98 {
		t.Fatalf("the wide limit alone: got %v, %+v", d.Admitted, d.States)
	}
}

func testAdvisory(t *testing.T, s limitstore.Store) {
	dry, hard := Limit(2, 1), Limit(4, 1)
	dry.Advisory = true
	want := []struct{ admitted, dryRefused bool }{{true, false}, {true, false}, {true, true}, {true, true}, {false, true}}
	for i, w := range want {
		d := Ask(t, s, dry, hard)
		if d.Admitted != w.admitted || d.States[0].Refused != w.dryRefused {
			t.Errorf("request %d: got %v, %+v; want %+v", i, d.Admitted, d.States, w)
		}
	}
	// A request that another limit refuses is charged to no dry run.
	dry = Limit(10, 1)
	dry.Advisory = true
	for range 3 {
		Ask(t, s, hard, dry)
	}
	if d := Ask(t, s, dry); d.States[0].Remaining != 9 {
		t.Errorf("a refused request was charged to a dry run: %d left, want 9", d.States[0].Remaining)
	}
}

func testChangedEvents(t *testing.T, s limitstore.Store) {
	l := Limit(10, 6)
	Ask(t, s, l)
	l.Events, l.Cost = 4, 1
	if d := Ask(t, s, l); d.Admitted || d.States[0].Remaining != 0 {
		t.Errorf("lowered below the count: got %v, %+v", d.Admitted, d.States[0])
	}
	l.Events = 8
	if d := Ask(t, s, l); !d.Admitted || d.States[0].Remaining != 1 {
		t.Errorf("raised again: got %v, %+v; want admitted with 1 left", d.Admitted, d.States[0])
	}
}

func testLargeAmounts(t *testing.T, s limitstore.Store) {
	l := Limit(limitstore.MaxAmount, limitstore.MaxAmount-1)
	if d := Ask(t, s, l); !d.Admitted || d.States[0].Remaining != 1 {
		t.Fatalf("got %v, %+v", d.Admitted, d.States[0])
	}
	l.Cost = 2
	if d := Ask(t, s, l); d.Admitted {
		t.Fatal("2 fitted into 1")
	}
	l.Cost = 1
	if d := Ask(t, s, l); !d.Admitted || d.States[0].Remaining != 0 {
		t.Fatalf("got %v, %+v", d.Admitted, d.States[0])
	}
	if d := Ask(t, s, l); d.Admitted {
		t.Fatal("1 fitted into 0")
	}
}

// testWindowEdge uses real time: refused until the reset that a refusal names,
// less what a clock in whole milliseconds hides, admitted after it.
func testWindowEdge(t *testing.T, s limitstore.Store) {
	l := Limit(1, 1)
	l.Window = 300 * time.Millisecond
	for round := 0; round < 3; {
		Ask(t, s, l)
		before := time.Now()
		d := Ask(t, s, l)
		after := time.Now()
		if d.Admitted {
			continue // the edge lay between the two
		}
		edge := before.Add(d.States[0].Reset)
		for {
			asked := time.Now()
			if Ask(t, s, l).Admitted {
				if answered := time.Now(); answered.Add(time.Millisecond).Before(edge) {
					t.Fatalf("admitted %v before the reset", edge.Sub(answered))
				}
				break
			}
			if late := asked.Sub(after.Add(d.States[0].Reset)); late > 0 {
				t.Fatalf("refused %v after the reset", late)
			}
		}
		round++
	}
}

func testInvalid(t *testing.T, s limitstore.Store) {
	good := Limit(1, 1)
	change := func(f func(*limitstore.Limit)) []limitstore.Limit {
		l := good
		f(&l)
		return []limitstore.Limit{l}
	}
	for name, limits := range map[string][]limitstore.Limit{
		"no limits":            {},
		"a key twice":          {good, good},
		"too many limits":      make([]limitstore.Limit, limitstore.MaxLimits+1),
		"an unknown algorithm": change(func(l *limitstore.Limit) { l.Algorithm = 0 }),
		"no window":            change(func(l *limitstore.Limit) { l.Window = 0 }),
		"a broken millisecond": change(func(l *limitstore.Limit) { l.Window = 1500 * time.Microsecond }),
		"a window too long":    change(func(l *limitstore.Limit) { l.Window = limitstore.MaxWindow + time.Second }),
		"no events":            change(func(l *limitstore.Limit) { l.Events = 0 }),
		"too many events":      change(func(l *limitstore.Limit) { l.Events = limitstore.MaxAmount + 1 }),
		"a negative cost":      change(func(l *limitstore.Limit) { l.Cost = -1 }),
		"a cost too high":      change(func(l *limitstore.Limit) { l.Cost = limitstore.MaxAmount + 1 }),
	} {
		if _, err := Try(t.Context(), s, limits...); !errors.Is(err, limitstore.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	if !Ask(t, s, good).Admitted {
		t.Error("an invalid decision was charged")
	}
}

func testEndedContext(t *testing.T, s limitstore.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l := Limit(1, 1)
	if _, err := Try(ctx, s, l); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if !Ask(t, s, l).Admitted {
		t.Error("a request whose caller had left was charged")
	}
}

func testContention(t *testing.T, gateways ...limitstore.Store) {
	const limit, callers = 100, 300
	for range 5 {
		l := Limit(limit, 1)
		if got := race(t, callers, func(i int) []limitstore.Limit { return []limitstore.Limit{l} }, gateways); got != limit {
			t.Fatalf("admitted %d of %d callers, want %d", got, callers, limit)
		}
	}
}

// testSeveralKeysContended lets callers with keys of their own share one limit
// that is narrower than all of theirs together.
func testSeveralKeysContended(t *testing.T, gateways ...limitstore.Store) {
	shared := Limit(50, 1)
	var own [20]limitstore.Limit
	for i := range own {
		own[i] = Limit(5, 1)
	}
	got := race(t, 200, func(i int) []limitstore.Limit {
		if i%2 == 0 {
			return []limitstore.Limit{own[i%20], shared}
		}
		return []limitstore.Limit{shared, own[i%20]}
	}, gateways)
	charged := int64(0)
	for _, l := range own {
		l.Cost = 0
		charged += 5 - Ask(t, gateways[0], l).States[0].Remaining
	}
	if got != 50 || charged != 50 {
		t.Fatalf("admitted %d, charged %d to the callers' own limits; want 50 of each", got, charged)
	}
}

// race makes the decisions at once, over the gateways in turn, and returns how
// many were admitted.
func race(t *testing.T, callers int, limits func(i int) []limitstore.Limit, gateways []limitstore.Store) int64 {
	var admitted atomic.Int64
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range callers {
		wg.Go(func() {
			<-start
			d, err := Try(t.Context(), gateways[i%len(gateways)], limits(i)...)
			if err != nil {
				t.Errorf("Decide: %v", err)
			} else if d.Admitted {
				admitted.Add(1)
			}
		})
	}
	close(start)
	wg.Wait()
	return admitted.Load()
}
