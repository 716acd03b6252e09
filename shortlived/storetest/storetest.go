// Package storetest is the conformance suite of the short-lived stores. Every
// store passes it, so that callers need not know which one they have.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/shortlived"
)

// Open makes an empty store and returns the handles by which several servers
// reach it: at least one, more where the store can be shared. The store ends
// with the test.
type Open func(t *testing.T) []shortlived.Store

// Lifetimes of the suite, which sees expiry by real time: short ones end
// within a test, a long one never does.
const (
	short = 120 * time.Millisecond
	long  = time.Hour
)

// Run runs the suite.
func Run(t *testing.T, open Open) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, servers []shortlived.Store)
	}{
		{"values of any bytes come back as they were", testValues},
		{"what is absent is ErrNotFound and nothing else", testAbsent},
		{"a live value is not replaced", testAddTwice},
		{"keys are told apart byte by byte", testKeys},
		{"of many adders one wins", testOneWinner},
		{"of many takers one gets the value", testOneTaker},
		{"increments under contention add up", testSums},
		{"add, take and increment together lose nothing", testHandOver},
		{"a count is decimal text", testCountText},
		{"a value that is no count is refused and stays", testNotCounter},
		{"a count that would overflow stays", testOverflow},
		{"a value expires after its lifetime, not before", testExpiry},
		{"an expired key can be added again", testAddAfterExpiry},
		{"an expired count begins anew", testCountAfterExpiry},
		{"each increment renews the lifetime", testRenewal},
		{"an increment can shorten the lifetime", testShortening},
		{"an increment that is refused renews nothing", testNoRenewalOnRefusal},
		{"keys, values and lifetimes have limits", testLimits},
		{"a cancelled call changes nothing", testCancelled},
		{"slices are the caller's own", testAliasing},
	} {
		t.Run(c.name, func(t *testing.T) {
			servers := open(t)
			if len(servers) == 0 {
				t.Fatal("open returned no store")
			}
			c.test(t, servers)
		})
	}
}

func testValues(t *testing.T, servers []shortlived.Store) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	values := [][]byte{
		{}, []byte("v"), []byte("A"), []byte("AA"), []byte("B"), []byte("\x00"), []byte("\xff\xfe"), all,
		[]byte("0"), []byte("-1"), []byte("42"), []byte("042"), []byte("+42"), []byte("4.2"), []byte("-"), []byte("-0"),
		[]byte("9223372036854775807"), []byte("9223372036854775808"), []byte("99999999999999999999"),
		[]byte(`{"json":true}`), []byte("line\r\nline\r\n"), bytes.Repeat([]byte("x"), shortlived.MaxValue),
	}
	for i, value := range values {
		key := fmt.Sprintf("value-%d", i)
		mustAdd(t, at(servers, i), key, value, long)
		for range 2 { // reading does not take
			wantValue(t, at(servers, i+1), key, value)
		}
		got, err := at(servers, i+1).Take(t.Context(), key)
		if err != nil || !bytes.Equal(got, value) {
			t.Errorf("Take of %.20q: got %.20q, %v", value, got, err)
		}
		wantAbsent(t, at(servers, i), key)
	}
}

func testAbsent(t *testing.T, servers []shortlived.Store) {
	s := servers[0]
	wantAbsent(t, s, "nothing")
	if v, err := s.Take(t.Context(), "nothing"); !errors.Is(err, shortlived.ErrNotFound) || v != nil {
		t.Errorf("Take of what is absent: got %q, %v, want ErrNotFound", v, err)
	}
	if err := s.Remove(t.Context(), "nothing"); err != nil {
		t.Errorf("Remove of what is absent: got %v, want none", err)
	}
	mustAdd(t, s, "removed", []byte("v"), long)
	if err := at(servers, 1).Remove(t.Context(), "removed"); err != nil {
		t.Errorf("Remove: %v", err)
	}
	wantAbsent(t, s, "removed")
	mustAdd(t, s, "removed", []byte("w"), long)
}

func testAddTwice(t *testing.T, servers []shortlived.Store) {
	mustAdd(t, servers[0], "k", []byte("first"), long)
	for i := range servers {
		added, err := servers[i].TryAdd(t.Context(), "k", []byte("second"), time.Millisecond)
		if err != nil || added {
			t.Errorf("TryAdd at a live key: got %v, %v, want false", added, err)
		}
	}
	wantValue(t, at(servers, 1), "k", []byte("first")) // nor has its lifetime changed
	mustIncrement(t, servers[0], "n", 5, long, 5)
	if added, err := servers[0].TryAdd(t.Context(), "n", []byte("v"), long); err != nil || added {
		t.Errorf("TryAdd at a count: got %v, %v, want false", added, err)
	}
}

func testKeys(t *testing.T, servers []shortlived.Store) {
	keys := []string{"k", "K", "k ", " k", "k\x00", "k\n", "\xff", "\xfe", "{k}", "k:1", "k*", strings.Repeat("k", shortlived.MaxKey)}
	for i, key := range keys {
		mustAdd(t, at(servers, i), key, fmt.Appendf(nil, "value %d", i), long)
	}
	for i, key := range keys {
		wantValue(t, at(servers, i+1), key, fmt.Appendf(nil, "value %d", i))
	}
}

func testOneWinner(t *testing.T, servers []shortlived.Store) {
	for round := range 20 {
		key := fmt.Sprintf("winner-%d", round)
		winners := make([]bool, 16)
		together(len(winners), func(i int) {
			added, err := at(servers, i).TryAdd(t.Context(), key, fmt.Appendf(nil, "from %d", i), long)
			if err != nil {
				t.Errorf("TryAdd: %v", err)
			}
			winners[i] = added
		})
		winner := -1
		for i, won := range winners {
			if won && winner >= 0 {
				t.Fatalf("both %d and %d won", winner, i)
			}
			if won {
				winner = i
			}
		}
		wantValue(t, servers[0], key, fmt.Appendf(nil, "from %d", winner))
	}
}

func testOneTaker(t *testing.T, servers []shortlived.Store) {
	for round := range 20 {
		key := fmt.Sprintf("taker-%d", round)
		mustAdd(t, servers[0], key, []byte("v"), long)
		var mu sync.Mutex
		takers := 0
		together(16, func(i int) {
			switch v, err := at(servers, i).Take(t.Context(), key); {
			case err == nil && string(v) == "v":
				mu.Lock()
				takers++
				mu.Unlock()
			case !errors.Is(err, shortlived.ErrNotFound):
				t.Errorf("Take: got %q, %v", v, err)
			}
		})
		if takers != 1 {
			t.Fatalf("got %d takers, want 1", takers)
		}
	}
}

func testSums(t *testing.T, servers []shortlived.Store) {
	const callers, each = 8, 50
	var mu sync.Mutex
	seen := make(map[int64]bool)
	together(callers, func(i int) {
		for range each {
			n, err := at(servers, i).Increment(t.Context(), "sum", 3, long)
			if err != nil {
				t.Errorf("Increment: %v", err)
				return
			}
			mu.Lock()
			if seen[n] {
				t.Errorf("two callers got the count %d", n)
			}
			seen[n] = true
			mu.Unlock()
		}
	})
	mustIncrement(t, servers[0], "sum", -1, long, 3*callers*each-1)
}

// testHandOver passes one value around: whoever takes it puts it back, one
// higher. At the end every turn must be in it.
func testHandOver(t *testing.T, servers []shortlived.Store) {
	const callers, turns = 6, 20
	mustAdd(t, servers[0], "ball", []byte("0"), long)
	together(callers, func(i int) {
		s := at(servers, i)
		for turn := 0; turn < turns; {
			v, err := s.Take(t.Context(), "ball")
			if errors.Is(err, shortlived.ErrNotFound) {
				continue
			}
			n, ok := shortlived.ParseCount(v)
			if err != nil || !ok {
				t.Errorf("Take: got %q, %v", v, err)
				return
			}
			if added, err := s.TryAdd(t.Context(), "ball", fmt.Append(nil, n+1), long); err != nil || !added {
				t.Errorf("TryAdd of what was taken: got %v, %v", added, err)
				return
			}
			turn++
		}
	})
	wantValue(t, servers[0], "ball", fmt.Append(nil, callers*turns))
}

func testCountText(t *testing.T, servers []shortlived.Store) {
	s, other := servers[0], at(servers, 1)
	mustIncrement(t, s, "n", 0, long, 0)
	wantValue(t, other, "n", []byte("0"))
	mustIncrement(t, other, "n", 41, long, 41)
	mustIncrement(t, s, "n", 1, long, 42)
	wantValue(t, other, "n", []byte("42"))
	mustIncrement(t, s, "n", -50, long, -8)
	wantValue(t, other, "n", []byte("-8"))
	if v, err := other.Take(t.Context(), "n"); err != nil || string(v) != "-8" {
		t.Errorf("Take of a count: got %q, %v", v, err)
	}
	mustIncrement(t, s, "n", 7, long, 7)
	mustAdd(t, s, "begun", []byte("100"), long)
	mustIncrement(t, other, "begun", 1, long, 101)
	// Exact where a float would not be.
	const big = int64(1)<<53 + 1
	mustIncrement(t, s, "big", big, long, big)
	mustIncrement(t, s, "big", 2, long, big+2)
}

func testNotCounter(t *testing.T, servers []shortlived.Store) {
	s := servers[0]
	for i, value := range []string{"", "text", "1.5", "007", "+1", " 1", "1 ", "-0", "9223372036854775808", "\x00"} {
		key := fmt.Sprintf("text-%d", i)
		mustAdd(t, s, key, []byte(value), long)
		n, err := at(servers, 1).Increment(t.Context(), key, 1, long)
		if !errors.Is(err, shortlived.ErrNotCounter) || n != 0 {
			t.Errorf("Increment of %q: got %d, %v, want ErrNotCounter", value, n, err)
		}
		wantValue(t, s, key, []byte(value))
	}
}

func testOverflow(t *testing.T, servers []shortlived.Store) {
	s := servers[0]
	mustIncrement(t, s, "max", math.MaxInt64, long, math.MaxInt64)
	mustIncrement(t, s, "min", math.MinInt64, long, math.MinInt64)
	for key, amount := range map[string]int64{"max": 1, "min": -1} {
		if n, err := s.Increment(t.Context(), key, amount, long); !errors.Is(err, shortlived.ErrOverflow) || n != 0 {
			t.Errorf("Increment of %s: got %d, %v, want ErrOverflow", key, n, err)
		}
	}
	wantValue(t, s, "max", []byte("9223372036854775807"))
	wantValue(t, s, "min", []byte("-9223372036854775808"))
}

func testExpiry(t *testing.T, servers []shortlived.Store) {
	begin := time.Now()
	mustAdd(t, servers[0], "brief", []byte("v"), short)
	mustAdd(t, servers[0], "kept", []byte("v"), long)
	awaitAbsent(t, at(servers, 1), "brief")
	if lived := time.Since(begin); lived < short {
		t.Errorf("the value was gone after %v, want at least %v", lived, short)
	}
	if v, err := servers[0].Take(t.Context(), "brief"); !errors.Is(err, shortlived.ErrNotFound) {
		t.Errorf("Take of an expired value: got %q, %v, want ErrNotFound", v, err)
	}
	if err := servers[0].Remove(t.Context(), "brief"); err != nil {
		t.Errorf("Remove of an expired value: %v", err)
	}
	wantValue(t, at(servers, 1), "kept", []byte("v"))
}

func testAddAfterExpiry(t *testing.T, servers []shortlived.Store) {
	mustAdd(t, servers[0], "again", []byte("first"), short)
	await(t, "the key to be free", func() bool {
		added, err := at(servers, 1).TryAdd(t.Context(), "again", []byte("second"), long)
		if err != nil {
			t.Fatalf("TryAdd: %v", err)
		}
		return added
	})
	wantValue(t, servers[0], "again", []byte("second"))
}

func testCountAfterExpiry(t *testing.T, servers []shortlived.Store) {
	mustIncrement(t, servers[0], "count", 10, short, 10)
	mustAdd(t, servers[0], "text", []byte("no count"), short)
	awaitAbsent(t, servers[0], "count")
	mustIncrement(t, at(servers, 1), "count", 1, long, 1)
	awaitAbsent(t, servers[0], "text")
	mustIncrement(t, at(servers, 1), "text", 1, long, 1)
}

func testRenewal(t *testing.T, servers []shortlived.Store) {
	const lifetime = 3 * short
	tick := time.NewTicker(short / 4)
	defer tick.Stop()
	begin, last, n := time.Now(), time.Now(), int64(0)
	for time.Since(begin) < 3*lifetime {
		asked := time.Now()
		got, err := at(servers, int(n)).Increment(t.Context(), "renewed", 1, lifetime)
		if n++; err != nil || got != n {
			if err != nil || time.Since(last) < lifetime {
				t.Fatalf("got the count %d, %v, want %d: it expired while it was renewed", got, err, n)
			}
			begin, n = asked, got // this process stood still for a lifetime
		}
		last = asked
		<-tick.C
	}
	mustAdd(t, servers[0], "seeded", []byte("5"), short)
	mustIncrement(t, servers[0], "seeded", 1, long, 6)
	mustAdd(t, servers[0], "marker", nil, 2*short)
	awaitAbsent(t, servers[0], "marker")
	wantValue(t, servers[0], "seeded", []byte("6"))
}

func testShortening(t *testing.T, servers []shortlived.Store) {
	mustIncrement(t, servers[0], "shortened", 1, long, 1)
	mustIncrement(t, at(servers, 1), "shortened", 1, short, 2)
	awaitAbsent(t, servers[0], "shortened")
}

func testNoRenewalOnRefusal(t *testing.T, servers []shortlived.Store) {
	mustAdd(t, servers[0], "text", []byte("no count"), short)
	mustIncrement(t, servers[0], "max", math.MaxInt64, short, math.MaxInt64)
	if _, err := servers[0].Increment(t.Context(), "text", 1, long); !errors.Is(err, shortlived.ErrNotCounter) {
		t.Errorf("Increment of a text: got %v, want ErrNotCounter", err)
	}
	if _, err := servers[0].Increment(t.Context(), "max", 1, long); !errors.Is(err, shortlived.ErrOverflow) {
		t.Errorf("Increment of the largest count: got %v, want ErrOverflow", err)
	}
	awaitAbsent(t, servers[0], "text")
	awaitAbsent(t, servers[0], "max")
}

func testLimits(t *testing.T, servers []shortlived.Store) {
	s, ctx := servers[0], t.Context()
	tooLong := strings.Repeat("k", shortlived.MaxKey+1)
	for _, key := range []string{"", tooLong} {
		_, addErr := s.TryAdd(ctx, key, nil, long)
		_, getErr := s.Get(ctx, key)
		_, takeErr := s.Take(ctx, key)
		_, incErr := s.Increment(ctx, key, 1, long)
		for op, err := range map[string]error{"TryAdd": addErr, "Get": getErr, "Take": takeErr, "Remove": s.Remove(ctx, key), "Increment": incErr} {
			if !errors.Is(err, shortlived.ErrInvalid) {
				t.Errorf("%s with a key of %d bytes: got %v, want ErrInvalid", op, len(key), err)
			}
		}
	}
	if added, err := s.TryAdd(ctx, "big", make([]byte, shortlived.MaxValue+1), long); added || !errors.Is(err, shortlived.ErrInvalid) {
		t.Errorf("TryAdd of too large a value: got %v, %v, want ErrInvalid", added, err)
	}
	for _, lifetime := range []time.Duration{0, -1, -time.Hour, time.Millisecond - 1} {
		if added, err := s.TryAdd(ctx, "brief", nil, lifetime); added || !errors.Is(err, shortlived.ErrInvalid) {
			t.Errorf("TryAdd for %v: got %v, %v, want ErrInvalid", lifetime, added, err)
		}
		if _, err := s.Increment(ctx, "brief", 1, lifetime); !errors.Is(err, shortlived.ErrInvalid) {
			t.Errorf("Increment for %v: got %v, want ErrInvalid", lifetime, err)
		}
	}
	wantAbsent(t, s, "big")
	wantAbsent(t, s, "brief")
	mustAdd(t, s, "ages", []byte("v"), math.MaxInt64)
	wantValue(t, s, "ages", []byte("v"))
	mustIncrement(t, s, "eternal", 1, math.MaxInt64, 1)
	mustIncrement(t, s, "eternal", 1, math.MaxInt64, 2)
	if _, err := s.TryAdd(ctx, "blink", nil, time.Millisecond); err != nil {
		t.Errorf("TryAdd for a millisecond: %v", err)
	}
	awaitAbsent(t, s, "blink")
}

func testCancelled(t *testing.T, servers []shortlived.Store) {
	s := servers[0]
	mustAdd(t, s, "kept", []byte("v"), long)
	mustIncrement(t, s, "count", 1, long, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, addErr := s.TryAdd(ctx, "new", nil, long)
	_, getErr := s.Get(ctx, "kept")
	_, takeErr := s.Take(ctx, "kept")
	_, incErr := s.Increment(ctx, "count", 1, long)
	for op, err := range map[string]error{"TryAdd": addErr, "Get": getErr, "Take": takeErr, "Remove": s.Remove(ctx, "kept"), "Increment": incErr} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s when cancelled: got %v, want context.Canceled", op, err)
		}
	}
	wantAbsent(t, s, "new")
	wantValue(t, s, "kept", []byte("v"))
	wantValue(t, s, "count", []byte("1"))
}

func testAliasing(t *testing.T, servers []shortlived.Store) {
	s := servers[0]
	given := []byte("value")
	mustAdd(t, s, "k", given, long)
	copy(given, "XXXXX")
	got, err := s.Get(t.Context(), "k")
	if err != nil || string(got) != "value" {
		t.Fatalf("Get after the caller's slice changed: got %q, %v", got, err)
	}
	copy(got, "YYYYY")
	_ = append(got, "ZZZZZ"...)
	wantValue(t, s, "k", []byte("value"))
}

// at returns a server in turn.
func at(servers []shortlived.Store, i int) shortlived.Store { return servers[i%len(servers)] }

// together runs f n times at once and waits.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}

func mustAdd(t *testing.T, s shortlived.Store, key string, value []byte, lifetime time.Duration) {
	t.Helper()
	if added, err := s.TryAdd(t.Context(), key, value, lifetime); err != nil || !added {
		t.Fatalf("TryAdd(%.40q): got %v, %v, want true", key, added, err)
	}
}

func mustIncrement(t *testing.T, s shortlived.Store, key string, amount int64, lifetime time.Duration, want int64) {
	t.Helper()
	if n, err := s.Increment(t.Context(), key, amount, lifetime); err != nil || n != want {
		t.Fatalf("Increment(%q, %d): got %d, %v, want %d", key, amount, n, err, want)
	}
}

func wantValue(t *testing.T, s shortlived.Store, key string, want []byte) {
	t.Helper()
	if got, err := s.Get(t.Context(), key); err != nil || !bytes.Equal(got, want) {
		t.Errorf("Get(%.40q): got %.40q, %v, want %.40q", key, got, err, want)
	}
}

func wantAbsent(t *testing.T, s shortlived.Store, key string) {
	t.Helper()
	if got, err := s.Get(t.Context(), key); !errors.Is(err, shortlived.ErrNotFound) || got != nil {
		t.Errorf("Get(%.40q): got %.40q, %v, want ErrNotFound", key, got, err)
	}
}

func awaitAbsent(t *testing.T, s shortlived.Store, key string) {
	t.Helper()
	await(t, key+" to expire", func() bool {
		_, err := s.Get(t.Context(), key)
		if err != nil && !errors.Is(err, shortlived.ErrNotFound) {
			t.Fatalf("Get(%q): %v", key, err)
		}
		return err != nil
	})
}

// await polls until the condition holds.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
