package memory

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gatehouse-gateway/gatehouse/shortlived"
	"github.com/gatehouse-gateway/gatehouse/shortlived/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) []shortlived.Store {
		s := New(Options{})
		t.Cleanup(func() { s.Close() })
		return []shortlived.Store{s}
	})
}

// clock is a clock that a test moves.
type clock struct{ ns atomic.Int64 }

func (c *clock) now() time.Time          { return time.Unix(0, c.ns.Load()) }
func (c *clock) advance(d time.Duration) { c.ns.Add(int64(d)) }

func newStore(maxBytes int64) (*Store, *clock) {
	c := new(clock)
	return New(Options{MaxBytes: maxBytes, Now: c.now}), c
}

// fill adds values of 100 bytes until the store refuses and returns how many.
func fill(t *testing.T, s *Store, prefix string, lifetime time.Duration) int {
	t.Helper()
	for n := 0; ; n++ {
		added, err := s.TryAdd(t.Context(), fmt.Sprintf("%s-%d", prefix, n), make([]byte, 100), lifetime)
		if errors.Is(err, shortlived.ErrFull) {
			return n
		}
		if err != nil || !added {
			t.Fatalf("TryAdd: got %v, %v", added, err)
		}
	}
}

func TestExpiryIsExact(t *testing.T) {
	s, c := newStore(0)
	for _, lifetime := range []time.Duration{time.Millisecond, time.Second, 90 * 24 * time.Hour} {
		if added, err := s.TryAdd(t.Context(), "k", nil, lifetime); err != nil || !added {
			t.Fatalf("TryAdd for %v: got %v, %v", lifetime, added, err)
		}
		c.advance(lifetime - 1)
		if _, err := s.Get(t.Context(), "k"); err != nil {
			t.Errorf("a nanosecond before %v: got %v, want the value", lifetime, err)
		}
		c.advance(1)
		if _, err := s.Get(t.Context(), "k"); !errors.Is(err, shortlived.ErrNotFound) {
			t.Errorf("after %v: got %v, want ErrNotFound", lifetime, err)
		}
	}
}

func TestFullOfLiveValuesRefuses(t *testing.T) {
	const maxBytes = 100 << 10
	s, _ := newStore(maxBytes)
	n := fill(t, s, "live", time.Hour)
	if want := maxBytes / (100 + Overhead + 8); n < want {
		t.Errorf("got %d entries, want at least %d", n, want)
	}
	if st := s.Stats(); st.Bytes > maxBytes || st.Entries != int64(n) || st.Refused != 1 {
		t.Errorf("got %+v, want %d entries within %d bytes and one refusal", st, n, maxBytes)
	}
	if _, err := s.Increment(t.Context(), strings.Repeat("new", 40), 1, time.Hour); !errors.Is(err, shortlived.ErrFull) {
		t.Errorf("Increment of a new count: got %v, want ErrFull", err)
	}
	for i := range n {
		if _, err := s.Get(t.Context(), fmt.Sprintf("live-%d", i)); err != nil {
			t.Fatalf("value %d after the refusals: %v", i, err)
		}
	}
	if added, err := s.TryAdd(t.Context(), "live-0", nil, time.Hour); err != nil || added {
		t.Errorf("TryAdd at a live key of a full store: got %v, %v, want false", added, err)
	}
	if _, err := s.Take(t.Context(), "live-0"); err != nil {
		t.Errorf("Take: %v", err)
	}
	if added, err := s.TryAdd(t.Context(), "live-0", make([]byte, 100), time.Hour); err != nil || !added {
		t.Errorf("TryAdd where one was taken: got %v, %v, want true", added, err)
	}
}

func TestCountsGoOnWhenFull(t *testing.T) {
	s, _ := newStore(10 << 10)
	if _, err := s.Increment(t.Context(), "n", 1, time.Hour); err != nil {
		t.Fatal(err)
	}
	fill(t, s, "live", time.Hour)
	if n, err := s.Increment(t.Context(), "n", math.MaxInt64-1, time.Hour); err != nil || n != math.MaxInt64 {
		t.Errorf("got %d, %v, want the largest count", n, err)
	}
}

func TestExpiredAreDroppedFirst(t *testing.T) {
	s, c := newStore(100 << 10)
	brief := fill(t, s, "brief", time.Second) / 2
	for i := range brief { // half of them make room for lasting ones
		if err := s.Remove(t.Context(), fmt.Sprintf("brief-%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	lasting := fill(t, s, "lasting", time.Hour)
	c.advance(time.Second)
	again := fill(t, s, "again", time.Hour)
	if again < brief-1 {
		t.Errorf("got room for %d, want that of the %d that had expired", again, brief)
	}
	for i := range lasting {
		if _, err := s.Get(t.Context(), fmt.Sprintf("lasting-%d", i)); err != nil {
			t.Fatalf("live value %d: %v", i, err)
		}
	}
	if st := s.Stats(); st.Bytes > st.MaxBytes {
		t.Errorf("got %+v, over the bound", st)
	}
}

func TestARenewedCountIsNotDropped(t *testing.T) {
	s, c := newStore(10 << 10)
	for range 10 {
		if _, err := s.Increment(t.Context(), "n", 1, time.Second); err != nil {
			t.Fatal(err)
		}
		c.advance(900 * time.Millisecond)
		fill(t, s, "filler", time.Millisecond)
		s.Sweep()
	}
	if n, err := s.Increment(t.Context(), "n", 0, time.Second); err != nil || n != 10 {
		t.Errorf("got %d, %v, want 10", n, err)
	}
}

func TestTooLargeForTheStore(t *testing.T) {
	s, _ := newStore(4 << 10)
	if _, err := s.TryAdd(t.Context(), "k", make([]byte, 8<<10), time.Hour); !errors.Is(err, shortlived.ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
	if st := s.Stats(); st.Bytes != 0 || st.Entries != 0 {
		t.Errorf("got %+v, want nothing", st)
	}
}

func TestSetMaxBytesKeepsContent(t *testing.T) {
	s, c := newStore(100 << 10)
	n := fill(t, s, "first", time.Minute)
	s.SetMaxBytes(10 << 10)
	for i := range n {
		if _, err := s.Get(t.Context(), fmt.Sprintf("first-%d", i)); err != nil {
			t.Fatalf("value %d under the smaller bound: %v", i, err)
		}
	}
	if more := fill(t, s, "second", time.Minute); more != 0 {
		t.Errorf("got room for %d over the bound, want none", more)
	}
	s.SetMaxBytes(200 << 10)
	if more := fill(t, s, "third", time.Minute); more < n-1 {
		t.Errorf("got room for %d under the larger bound, want about %d", more, n)
	}
	s.SetMaxBytes(10 << 10)
	c.advance(time.Minute)
	if more := fill(t, s, "fourth", time.Minute); more == 0 {
		t.Error("got no room although all had expired")
	}
	if st := s.Stats(); st.Bytes > 10<<10 {
		t.Errorf("got %d bytes, want at most %d", st.Bytes, 10<<10)
	}
	s.SetMaxBytes(0)
	if st := s.Stats(); st.MaxBytes != DefaultMaxBytes {
		t.Errorf("got a bound of %d, want the default", st.MaxBytes)
	}
}

func TestWritesSweep(t *testing.T) {
	s, c := newStore(0)
	const n = 10_000
	for i := range n {
		if _, err := s.TryAdd(t.Context(), fmt.Sprintf("old-%d", i), nil, time.Second); err != nil {
			t.Fatal(err)
		}
	}
	c.advance(time.Second)
	for i := range n / 2 {
		if _, err := s.TryAdd(t.Context(), fmt.Sprintf("new-%d", i), nil, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if st := s.Stats(); st.Entries > n/2+n/50 {
		t.Errorf("got %d entries, want nearly all of the %d expired ones dropped", st.Entries, n)
	}
	s.Sweep()
	if st := s.Stats(); st.Entries != n/2 {
		t.Errorf("got %d entries after Sweep, want %d", st.Entries, n/2)
	}
	c.advance(time.Hour)
	s.Sweep()
	if st := s.Stats(); st.Entries != 0 || st.Bytes != 0 {
		t.Errorf("got %+v after Sweep, want nothing", st)
	}
}

func TestExpiredValuesDoNotLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		defer s.Close()
		for round := range 3 {
			if _, err := s.TryAdd(t.Context(), "value", nil, time.Second); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Increment(t.Context(), "count", 1, 3*SweepInterval/2); err != nil {
				t.Fatal(err)
			}
			for i, want := range []int64{1, 0} {
				time.Sleep(SweepInterval)
				synctest.Wait()
				if st := s.Stats(); st.Entries != want {
					t.Errorf("round %d, %d intervals later: got %d entries, want %d", round, i+1, st.Entries, want)
				}
			}
			time.Sleep(10 * SweepInterval) // empty, without a timer
		}
	})
}

func TestCloseEndsTheSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		if _, err := s.TryAdd(t.Context(), "k", nil, time.Second); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Close(), s.Close()); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * SweepInterval)
		synctest.Wait()
		if st := s.Stats(); st.Entries != 1 {
			t.Errorf("got %d entries, want the expired one that no sweep came for", st.Entries)
		}
		if added, err := s.TryAdd(t.Context(), "k", nil, time.Second); err != nil || !added {
			t.Errorf("TryAdd after Close: got %v, %v", added, err)
		}
	})
}

// TestOverheadIsReal holds what an entry is charged to what the heap grows by.
func TestOverheadIsReal(t *testing.T) {
	for _, c := range []struct {
		name       string
		key, value int
		n          int
	}{
		{"short keys and values", 16, 32, 20_000},
		{"counts", 40, 0, 20_000},
		{"just after the maps have grown", 24, 8, 30_000},
		{"just before the maps grow", 24, 8, 28_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := New(Options{MaxBytes: 1 << 30})
			before := heapBytes()
			value := []byte(strings.Repeat("v", c.value))
			for i := range c.n {
				if _, err := s.TryAdd(t.Context(), fmt.Sprintf("%0*d", c.key, i), value, time.Hour); err != nil {
					t.Fatal(err)
				}
			}
			per := float64(heapBytes()-before)/float64(c.n) - float64(c.key+c.value)
			t.Logf("%.0f bytes over key and value", per)
			if per > 150 {
				t.Errorf("got %.0f bytes over key and value, want at most 150", per)
			}
			runtime.KeepAlive(s)
		})
	}
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestMemoryIsGivenBack(t *testing.T) {
	before := heapBytes()
	s, c := newStore(0)
	for i := range 40_000 {
		if _, err := s.Increment(t.Context(), fmt.Sprintf("%032d", i), 1, time.Second); err != nil {
			t.Fatal(err)
		}
	}
	c.advance(time.Second)
	s.Sweep()
	if kept := heapBytes() - before; kept > 1<<20 {
		t.Errorf("got %d bytes kept by an empty store, want less than 1 MiB", kept)
	}
	runtime.KeepAlive(s)
}

// TestBoundUnderContention adds, takes and expires from many goroutines and
// looks at the bound all the while.
func TestBoundUnderContention(t *testing.T) {
	s, c := newStore(64 << 10)
	stop := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if st := s.Stats(); st.Bytes > st.MaxBytes || st.Bytes < 0 {
				t.Errorf("got %+v, out of bounds", st)
				return
			}
			c.advance(time.Millisecond)
			runtime.Gosched()
		}
	})
	var work sync.WaitGroup
	for w := range 4 {
		work.Go(func() {
			for i := range 5000 {
				key := fmt.Sprintf("%d-%d", w, i)
				_, err := s.TryAdd(t.Context(), key, make([]byte, i%300), time.Duration(1+i%50)*time.Millisecond)
				if err != nil && !errors.Is(err, shortlived.ErrFull) {
					t.Errorf("TryAdd: %v", err)
				}
				if _, err := s.Increment(t.Context(), "shared", 1, time.Hour); err != nil && !errors.Is(err, shortlived.ErrFull) {
					t.Errorf("Increment: %v", err)
				}
				if i%3 == 0 {
					_, _ = s.Take(t.Context(), key)
				}
			}
		})
	}
	work.Wait()
	close(stop)
	watch.Wait()
	if err := s.Remove(t.Context(), "shared"); err != nil {
		t.Error(err)
	}
	c.advance(time.Hour)
	s.Sweep()
	if st := s.Stats(); st.Entries != 0 || st.Bytes != 0 {
		t.Errorf("got %+v at the end, want nothing", st)
	}
}

// TestModel compares the store with the simplest thing that does the same.
func TestModel(t *testing.T) {
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		const maxBytes = 1500
		s, c := newStore(maxBytes)
		type value struct {
			text    string
			expires time.Time
		}
		model := map[string]value{}
		live := func(key string) (string, bool) {
			v, ok := model[key]
			return v.text, ok && v.expires.After(c.now())
		}
		used := func() (n int64) {
			for key := range model {
				if text, ok := live(key); ok {
					n += newEntry(key, []byte(text)).cost()
				}
			}
			return n
		}
		keys := rapid.SampledFrom([]string{"a", "b", "c", "dd", "eee", "f", "g", "h", "i"})
		lifetimes := rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.IntRange(1, 20).Draw(t, "ms")) * time.Millisecond
		})
		fits := func(key, text string) bool { return used()+newEntry(key, []byte(text)).cost() <= maxBytes }
		t.Repeat(map[string]func(*rapid.T){
			"TryAdd": func(t *rapid.T) {
				key, lifetime := keys.Draw(t, "key"), lifetimes.Draw(t, "lifetime")
				text := rapid.SampledFrom([]string{"", "v", "7", "-1", "07", strings.Repeat("x", 300)}).Draw(t, "value")
				_, present := live(key)
				wantFull := !present && !fits(key, text)
				added, err := s.TryAdd(ctx, key, []byte(text), lifetime)
				if errors.Is(err, shortlived.ErrFull) != wantFull || added != (!present && !wantFull) {
					t.Fatalf("TryAdd(%q): got %v, %v; present %v, full %v", key, added, err, present, wantFull)
				}
				if added {
					model[key] = value{text, c.now().Add(lifetime)}
				}
			},
			"Increment": func(t *rapid.T) {
				key, lifetime := keys.Draw(t, "key"), lifetimes.Draw(t, "lifetime")
				amount := int64(rapid.IntRange(-3, 3).Draw(t, "amount"))
				text, present := live(key)
				if !present {
					text = "0"
				}
				was, isCount := shortlived.ParseCount([]byte(text))
				wantFull := !present && !fits(key, "0")
				n, err := s.Increment(ctx, key, amount, lifetime)
				switch {
				case wantFull:
					if !errors.Is(err, shortlived.ErrFull) {
						t.Fatalf("Increment(%q): got %d, %v, want ErrFull", key, n, err)
					}
				case !isCount:
					if !errors.Is(err, shortlived.ErrNotCounter) {
						t.Fatalf("Increment(%q): got %d, %v, want ErrNotCounter", key, n, err)
					}
				case err != nil || n != was+amount:
					t.Fatalf("Increment(%q): got %d, %v, want %d", key, n, err, was+amount)
				default:
					model[key] = value{fmt.Sprint(n), c.now().Add(lifetime)}
				}
			},
			"Get": func(t *rapid.T) {
				key := keys.Draw(t, "key")
				text, present := live(key)
				got, err := s.Get(ctx, key)
				if string(got) != text && present || present != (err == nil) {
					t.Fatalf("Get(%q): got %q, %v, want %q, present %v", key, got, err, text, present)
				}
			},
			"Take": func(t *rapid.T) {
				key := keys.Draw(t, "key")
				text, present := live(key)
				got, err := s.Take(ctx, key)
				if string(got) != text && present || present != (err == nil) {
					t.Fatalf("Take(%q): got %q, %v, want %q, present %v", key, got, err, text, present)
				}
				delete(model, key)
			},
			"Remove": func(t *rapid.T) {
				key := keys.Draw(t, "key")
				if err := s.Remove(ctx, key); err != nil {
					t.Fatal(err)
				}
				delete(model, key)
			},
			"Advance": func(t *rapid.T) { c.advance(lifetimes.Draw(t, "time")) },
			"Sweep": func(t *rapid.T) {
				s.Sweep()
				if st := s.Stats(); st.Bytes != used() {
					t.Fatalf("after Sweep: got %d bytes, want %d", st.Bytes, used())
				}
			},
			"": func(t *rapid.T) {
				if st := s.Stats(); st.Bytes > maxBytes || st.Bytes < used() {
					t.Fatalf("got %d bytes, want from %d to %d", st.Bytes, used(), maxBytes)
				}
			},
		})
	})
}

func BenchmarkIncrementOneKey(b *testing.B) {
	s := New(Options{})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Increment(b.Context(), "key", 1, time.Minute); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkIncrementManyKeys(b *testing.B) {
	s := New(Options{})
	keys := make([]string, 100_000)
	for i := range keys {
		keys[i] = fmt.Sprintf("zone:client-%08d", i)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if _, err := s.Increment(b.Context(), keys[i*7919%len(keys)], 1, time.Minute); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkAddGetTake(b *testing.B) {
	s := New(Options{})
	value := make([]byte, 200)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = s.TryAdd(b.Context(), "key", value, time.Minute)
		_, _ = s.Get(b.Context(), "key")
		if _, err := s.Take(b.Context(), "key"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAddExpiring is the steady state: each value that comes finds others
// that have expired.
func BenchmarkAddExpiring(b *testing.B) {
	s, c := newStore(1 << 20)
	keys := make([]string, 1<<16)
	for i := range keys {
		keys[i] = fmt.Sprintf("%016d", i)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		c.advance(time.Millisecond)
		if _, err := s.TryAdd(b.Context(), keys[i&(1<<16-1)], nil, time.Second); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

// BenchmarkRefuse is what a flood costs that has filled the store.
func BenchmarkRefuse(b *testing.B) {
	s, _ := newStore(8 << 20)
	for i := 0; ; i++ {
		if _, err := s.TryAdd(b.Context(), fmt.Sprint(i), nil, time.Hour); err != nil {
			break
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Increment(b.Context(), "another", 1, time.Hour); !errors.Is(err, shortlived.ErrFull) {
			b.Fatal(err)
		}
	}
}
