package memory

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	s := New(Options{})
	storetest.Run(t, func(*testing.T) limitstore.Store { return s })
}

// clock is set by tests.
type clock struct{ ms atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.ms.Store(1_800_000_000_000)
	return c
}

func (c *clock) now() time.Time          { return time.UnixMilli(c.ms.Load()) }
func (c *clock) advance(d time.Duration) { c.ms.Add(d.Milliseconds()) }

func minute(k limitstore.Key) limitstore.Limit {
	return limitstore.Limit{Key: k, Algorithm: limitstore.FixedWindow, Window: time.Minute, Events: 2, Cost: 1}
}

func ask(s *Store, limits ...limitstore.Limit) (*limitstore.Decision, error) {
	d := &limitstore.Decision{Limits: limits, States: make([]limitstore.State, len(limits))}
	return d, s.Decide(context.Background(), d)
}

// fill adds keys until the store is full and returns those that it took.
func fill(t *testing.T, s *Store) (taken []limitstore.Key) {
	t.Helper()
	for range 1 << 20 {
		k := storetest.Key()
		switch _, err := ask(s, minute(k)); {
		case err == nil:
			taken = append(taken, k)
		case errors.Is(err, limitstore.ErrFull):
			return taken
		default:
			t.Fatalf("Decide: %v", err)
		}
	}
	t.Fatal("the store is not bounded")
	return nil
}

func TestFullOfLiveCounts(t *testing.T) {
	c := newClock()
	s := New(Options{MaxBytes: 1 << 20, Now: c.now})
	taken := fill(t, s)
	if got := s.Bytes(); got > 1<<20 {
		t.Errorf("the table takes %d bytes of %d", got, 1<<20)
	}
	if per := float64(1<<20) / float64(len(taken)); per > 70 {
		t.Errorf("%d counts found room, %.0f bytes each", len(taken), per)
	}
	for _, k := range taken {
		if d, err := ask(s, minute(k)); err != nil || !d.Admitted || d.States[0].Remaining != 0 {
			t.Fatalf("a live count was lost: %v, %+v", err, d)
		}
	}
	fresh := minute(storetest.Key())
	for range 3 * pageSlots { // some page may have room left; no request is charged halfway
		fresh.Key = storetest.Key()
		known := minute(taken[0])
		if _, err := ask(s, known, fresh); err != nil && !errors.Is(err, limitstore.ErrFull) {
			t.Fatal(err)
		}
	}
	c.advance(time.Minute)
	for i := range 1000 {
		if _, err := ask(s, minute(storetest.Key())); err != nil {
			t.Fatalf("the place of ended counts is not used, key %d: %v", i, err)
		}
	}
}

func TestFullChargesNobody(t *testing.T) {
	c := newClock()
	s := New(Options{MaxBytes: MinMaxBytes, Now: c.now})
	known := minute(storetest.Key())
	known.Events = 1 << 30
	admitted := int64(0)
	for full := 0; full < 100; {
		d, err := ask(s, known, minute(storetest.Key()))
		if err != nil {
			full++
			continue
		}
		admitted++
		if got := known.Events - d.States[0].Remaining; got != admitted {
			t.Fatalf("charged %d for %d admitted requests", got, admitted)
		}
	}
	known.Cost = 0
	d, err := ask(s, known)
	if got := known.Events - d.States[0].Remaining; err != nil || got != admitted {
		t.Fatalf("charged %d for %d admitted requests (%v)", got, admitted, err)
	}
}

func TestSetMaxBytesKeepsCounts(t *testing.T) {
	c := newClock()
	s := New(Options{MaxBytes: 2 << 20, Now: c.now})
	taken := fill(t, s)
	s.SetMaxBytes(1 << 20)
	for _, k := range taken {
		if d, err := ask(s, minute(k)); err != nil || d.States[0].Remaining != 0 {
			t.Fatalf("lowering the bound lost a count: %v, %+v", err, d)
		}
	}
	s.SetMaxBytes(4 << 20)
	more := fill(t, s)
	if len(more) < len(taken)/2 {
		t.Errorf("raising the bound made room for %d counts beside %d", len(more), len(taken))
	}
	for _, k := range taken {
		if d, err := ask(s, minute(k)); err != nil || d.Admitted {
			t.Fatalf("raising the bound lost a count: %v, %+v", err, d)
		}
	}
}

// TestIdleMemoryReturns checks that a flood of keys does not hold its memory
// for ever: later traffic, also on a few keys, sweeps the ended counts away.
func TestIdleMemoryReturns(t *testing.T) {
	c := newClock()
	s := New(Options{MaxBytes: 4 << 20, Now: c.now})
	fill(t, s)
	high := s.Bytes()
	c.advance(time.Minute)
	var few [512]limitstore.Key
	for i := range few {
		few[i] = storetest.Key()
	}
	for i := range 400_000 {
		if _, err := ask(s, minute(few[i%len(few)])); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Bytes(); got > high/4 || s.Len() > 2*len(few) {
		t.Errorf("after the flood %d bytes and %d counts remain of %d bytes", got, s.Len(), high)
	}
}

// TestUnevenKeys feeds keys that agree in all bits that choose a page.
func TestUnevenKeys(t *testing.T) {
	s := New(Options{MaxBytes: 1 << 20})
	var err error
	for i := uint64(0); i < 1000 && err == nil; i++ {
		var k limitstore.Key
		binary.LittleEndian.PutUint64(k[8:], i)
		_, err = ask(s, minute(k))
	}
	if !errors.Is(err, limitstore.ErrFull) || s.Bytes() > 1<<20 {
		t.Fatalf("got %v and %d bytes; want ErrFull within the bound", err, s.Bytes())
	}
}

// TestTableAgainstMap runs the table through splits, joins and drops beside a
// plain map.
func TestTableAgainstMap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	c := newClock()
	s := New(Options{MaxBytes: 8 << 20, Now: c.now})
	counts := map[limitstore.Key]int64{}
	var keys []limitstore.Key
	for step := range 200_000 {
		if step%40_000 == 39_999 {
			c.advance(time.Minute)
			clear(counts)
		}
		if len(keys) < 20_000 || random.IntN(50) == 0 {
			keys = append(keys, storetest.Key())
		}
		l := minute(keys[random.IntN(len(keys))])
		l.Events = 3
		d, err := ask(s, l)
		if err != nil {
			t.Fatal(err)
		}
		if want := counts[l.Key] < 3; d.Admitted != want {
			t.Fatalf("step %d: admitted %v at count %d", step, d.Admitted, counts[l.Key])
		}
		if d.Admitted {
			counts[l.Key]++
		}
	}
	if s.Len() < len(counts) {
		t.Errorf("the table holds %d counts, want at least %d", s.Len(), len(counts))
	}
}

func TestConcurrentGrowthLosesNothing(t *testing.T) {
	c := newClock()
	s := New(Options{Now: c.now})
	var wg sync.WaitGroup
	var admitted atomic.Int64
	keys := make([]limitstore.Key, 5000)
	for i := range keys {
		keys[i] = storetest.Key()
	}
	for range 4 {
		wg.Go(func() {
			for _, k := range keys {
				if d, err := ask(s, minute(k), minute(keys[0])); k != keys[0] && err == nil && d.Admitted {
					admitted.Add(1)
				}
				if d, err := ask(s, minute(k)); err == nil && d.Admitted {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if got, want := admitted.Load(), int64(2*len(keys)); got > want || got < want-2 {
		t.Errorf("admitted %d, want %d", got, want)
	}
}

func TestDecideTakesNoMemory(t *testing.T) {
	s := New(Options{})
	d := &limitstore.Decision{Limits: []limitstore.Limit{minute(storetest.Key()), minute(storetest.Key())}, States: make([]limitstore.State, 2)}
	ctx := t.Context()
	if got := testing.AllocsPerRun(100, func() { _ = s.Decide(ctx, d) }); got != 0 {
		t.Errorf("a decision takes %v allocations", got)
	}
}

func benchmarkKeys(b *testing.B, s *Store) []limitstore.Key {
	keys := make([]limitstore.Key, 100_000)
	for i := range keys {
		keys[i] = storetest.Key()
		if _, err := ask(s, minute(keys[i])); err != nil {
			b.Fatal(err)
		}
	}
	return keys
}

func BenchmarkDecide100kKeys(b *testing.B) {
	s := New(Options{})
	keys := benchmarkKeys(b, s)
	d := &limitstore.Decision{Limits: make([]limitstore.Limit, 1), States: make([]limitstore.State, 1)}
	d.Limits[0] = minute(keys[0])
	d.Limits[0].Events = 1 << 40
	b.ReportAllocs()
	i := uint64(0)
	for b.Loop() {
		i += 7919
		d.Limits[0].Key = keys[i%uint64(len(keys))]
		if err := s.Decide(b.Context(), d); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecide100kKeysParallel(b *testing.B) {
	s := New(Options{})
	keys := benchmarkKeys(b, s)
	ctx := b.Context()
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		d := &limitstore.Decision{Limits: make([]limitstore.Limit, 1), States: make([]limitstore.State, 1)}
		d.Limits[0] = minute(keys[0])
		d.Limits[0].Events = 1 << 40
		i := rand.Uint64N(1 << 30)
		for pb.Next() {
			i += 7919
			d.Limits[0].Key = keys[i%uint64(len(keys))]
			if err := s.Decide(ctx, d); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
