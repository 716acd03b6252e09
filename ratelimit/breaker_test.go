package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore/memory"
	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore/storetest"
)

func TestBreaker(t *testing.T) {
	const ms = time.Millisecond
	type step struct {
		at   time.Duration
		do   string // fail, ok, ask
		want bool   // changed, or allowed
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"three failures open it", []step{{0, "fail", false}, {100 * ms, "fail", false}, {200 * ms, "fail", true}, {201 * ms, "ask", false}}},
		{"failures of one moment are one", []step{{0, "fail", false}, {1 * ms, "fail", false}, {5 * ms, "fail", false}, {9 * ms, "fail", false}, {9 * ms, "ask", true}}},
		{"a success between starts the count anew", []step{{0, "fail", false}, {100 * ms, "fail", false}, {150 * ms, "ok", false}, {200 * ms, "fail", false}, {300 * ms, "ask", true}}},
		{"failures far apart do not add up", []step{{0, "fail", false}, {1500 * ms, "fail", false}, {2001 * ms, "fail", false}, {2002 * ms, "ask", true}}},
		{"one probe a second", []step{
			{0, "fail", false}, {20 * ms, "fail", false}, {40 * ms, "fail", true},
			{1039 * ms, "ask", false}, {1040 * ms, "ask", true}, {1041 * ms, "ask", false}, {2039 * ms, "ask", false}, {2040 * ms, "ask", true},
		}},
		{"a failed probe keeps it open", []step{
			{0, "fail", false}, {20 * ms, "fail", false}, {40 * ms, "fail", true}, {1040 * ms, "ask", true}, {1290 * ms, "fail", false}, {1300 * ms, "ask", false},
		}},
		{"an answer closes it", []step{
			{0, "fail", false}, {20 * ms, "fail", false}, {40 * ms, "fail", true}, {1040 * ms, "ask", true}, {1050 * ms, "ok", true}, {1051 * ms, "ask", true}, {1052 * ms, "ok", false},
		}},
		{"late failures of calls that began before do not open it again", []step{
			{0, "fail", false}, {20 * ms, "fail", false}, {40 * ms, "fail", true}, {60 * ms, "fail", false}, {1040 * ms, "ask", true}, {1041 * ms, "ok", true}, {1042 * ms, "fail", false}, {1043 * ms, "ask", true},
		}},
	}
	for _, tt := range tests {
		var b breaker
		for i, s := range tt.steps {
			var got bool
			switch s.do {
			case "fail":
				got = b.failed(s.at)
			case "ok":
				got = b.succeeded()
			case "ask":
				got = b.allow(s.at)
			}
			if got != s.want {
				t.Errorf("%s: step %d, %s at %v: got %v, want %v", tt.name, i, s.do, s.at, got, s.want)
			}
		}
	}
}

// TestDeadStore runs in virtual time: a store that never answers costs the
// first requests the timeout, and the others nothing but one a second.
func TestDeadStore(t *testing.T) {
	for _, policy := range []FailurePolicy{Reject, Allow, Local} {
		t.Run(policy.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testDeadStore(t, policy) })
		})
	}
}

func testDeadStore(t *testing.T, policy FailurePolicy) {
	hang := func(ctx context.Context, d *limitstore.Decision) error {
		time.Sleep(d.Timeout)
		return errAway
	}
	store := &fakeStore{decide: hang}
	observer := &recorder{}
	var logged strings.Builder
	shared := NewShared(store, SharedOptions{Timeout: 100 * time.Millisecond, Local: memory.New(memory.Options{})})
	l := mustNew(t, Config{
		Zones:  []Zone{{Name: "z", Window: limitstore.MaxWindow, Events: 5}},
		Shared: shared, OnStoreFailure: policy, Headers: true, Observer: observer, Logger: textLogger(&logged),
	})
	var waited time.Duration
	for i := range 300 { // one each 10 ms
		began := time.Now()
		a := send(t, l, request("192.0.2.1:1"))
		took := time.Since(began)
		if took > 100*time.Millisecond {
			t.Fatalf("request %d waited %v", i, took)
		}
		waited += took
		want := policy == Allow || policy == Local && i < 5
		if a.admitted != want {
			t.Fatalf("request %d: admitted %v", i, a.admitted)
		}
		if knows := len(fields(t, a.header, "RateLimit")) > 0; knows != (policy == Local) {
			t.Fatalf("request %d: RateLimit %v", i, a.header)
		}
		if len(fields(t, a.header, "RateLimit-Policy")) != 1 {
			t.Fatalf("request %d: no policy", i)
		}
		if !a.admitted && policy == Reject && (a.problem.Code != "rate-limit-store-unavailable" || a.problem.Status != 503 || a.problem.RetryAfter != time.Second) {
			t.Fatalf("request %d: got %+v", i, a.problem)
		}
		if !a.admitted && policy == Local && a.problem.Code != "rate-limited" {
			t.Fatalf("request %d: got %+v", i, a.problem)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if calls := store.count(); calls > 7 || waited > 700*time.Millisecond || !shared.BreakerOpen() {
		t.Errorf("%d calls, %v waited, breaker open %v", calls, waited, shared.BreakerOpen())
	}
	if lines := strings.Count(logged.String(), "rate limit store failed"); lines > 5 || lines == 0 {
		t.Errorf("%d lines logged:\n%s", lines, logged.String())
	}
	store.set(memory.New(memory.Options{}).Decide)
	time.Sleep(time.Second)
	for range 5 {
		if !send(t, l, request("192.0.2.1:1")).admitted {
			t.Error("not admitted by the store that is back")
		}
	}
	if a := send(t, l, request("192.0.2.1:1")); a.admitted || a.problem.Code != "rate-limited" {
		t.Error("admitted beyond the limit")
	}
	counts := observer.take()
	if counts["opened"] != 1 || counts["closed"] != 1 {
		t.Errorf("observed %v", counts)
	}
}

// TestFaultsThatAreNotTheStores checks that a full store, or one value that is
// not ours, leaves the breaker closed.
func TestFaultsThatAreNotTheStores(t *testing.T) {
	for _, fault := range []error{limitstore.ErrFull, limitstore.ErrCorrupt, limitstore.ErrInvalid} {
		store := &fakeStore{decide: func(context.Context, *limitstore.Decision) error { return fmt.Errorf("wrapped: %w", fault) }}
		shared := NewShared(store, SharedOptions{})
		var now time.Duration
		shared.clock = func() time.Duration { return now }
		l := mustNew(t, Config{Zones: []Zone{{Name: "z", Window: time.Minute, Events: 1}}, Shared: shared})
		for range 10 {
			now += 50 * time.Millisecond
			if a := send(t, l, request("192.0.2.1:1")); a.admitted || !errors.Is(a.problem, fault) {
				t.Errorf("%v: got %v", fault, a.problem)
			}
		}
		if shared.BreakerOpen() {
			t.Errorf("%v opened the breaker", fault)
		}
	}
}

func TestFreeRequestsNeedNoStore(t *testing.T) {
	store := &fakeStore{decide: away}
	zone := Zone{Name: "z", Window: time.Minute, Events: 1, Cost: func(*http.Request) int64 { return 0 }}
	for _, headers := range []bool{false, true} {
		l := mustNew(t, Config{Zones: []Zone{zone}, Shared: NewShared(store, SharedOptions{}), Headers: headers})
		if a := send(t, l, request("192.0.2.1:1")); !a.admitted || len(fields(t, a.header, "RateLimit")) != 0 {
			t.Errorf("headers %v: admitted %v, %v", headers, a.admitted, a.header)
		}
	}
	if store.count() != 1 {
		t.Errorf("%d store calls, want one, for the headers", store.count())
	}
}

func TestFullLocalTableRejects(t *testing.T) {
	full := &fakeStore{decide: func(context.Context, *limitstore.Decision) error { return limitstore.ErrFull }}
	l := mustNew(t, Config{
		Zones:          []Zone{{Name: "z", Window: time.Minute, Events: 1}},
		Shared:         NewShared(&fakeStore{decide: away}, SharedOptions{Local: full}),
		OnStoreFailure: Local,
	})
	if a := send(t, l, request("192.0.2.1:1")); a.admitted || a.problem.Status != 503 || !errors.Is(a.problem, limitstore.ErrFull) {
		t.Errorf("got %v", a.problem)
	}
}

func TestClosedShared(t *testing.T) {
	shared := NewShared(memory.New(memory.Options{}), SharedOptions{})
	l := mustNew(t, Config{Zones: []Zone{{Name: "z", Window: time.Minute, Events: 1}}, Shared: shared})
	if err := shared.Close(); err != nil {
		t.Fatal(err)
	}
	if a := send(t, l, request("192.0.2.1:1")); a.admitted || a.problem.Status != 503 {
		t.Errorf("got %v", a.problem)
	}
}

func TestDenials(t *testing.T) {
	var d denials
	limit := func(k limitstore.Key, events, cost int64) limitstore.Limit {
		return limitstore.Limit{Key: k, Events: events, Cost: cost}
	}
	add := func(st limitstore.State, asked time.Duration, limits ...limitstore.Limit) {
		seen := d.seen(limits)
		d.add(limits, 0, &seen, &st, asked)
	}
	find := func(now time.Duration, limits ...limitstore.Limit) (int64, time.Duration, bool) {
		seen := d.seen(limits)
		return d.find(limits, 0, &seen, now)
	}
	k := storetest.Key()
	add(limitstore.State{Remaining: 2, Reset: time.Second}, 5*time.Second, limit(k, 10, 3))
	for _, tt := range []struct {
		name string
		l    limitstore.Limit
		now  time.Duration
		want bool
	}{
		{"the same question", limit(k, 10, 3), 5 * time.Second, true},
		{"until just before the end", limit(k, 10, 3), 6*time.Second - 1, true},
		{"not at the end", limit(k, 10, 3), 6 * time.Second, false},
		{"a higher cost", limit(k, 10, 4), 5 * time.Second, true},
		{"a lower cost", limit(k, 10, 2), 5 * time.Second, false},
		{"a raised limit", limit(k, 11, 3), 5 * time.Second, false},
		{"another key", limit(storetest.Key(), 10, 3), 5 * time.Second, false},
	} {
		remaining, wait, got := find(tt.now, tt.l)
		if got != tt.want || got && (remaining != 2 || wait != 6*time.Second-tt.now) {
			t.Errorf("%s: got %v, %d, %v", tt.name, got, remaining, wait)
		}
	}

	mine, other := limit(storetest.Key(), 1, 1), limit(storetest.Key(), 5, 1)
	add(limitstore.State{Reset: time.Second}, 5*time.Second, mine, other)
	dearer, free, dry := other, other, other
	dearer.Cost, free.Cost, dry.Advisory = 2, 0, true
	for name, limits := range map[string][]limitstore.Limit{
		"alone": {mine}, "beside a dearer one": {mine, dearer}, "beside a free one": {mine, free}, "beside a dry run": {mine, dry},
	} {
		if _, _, ok := find(5*time.Second, limits...); ok {
			t.Errorf("%s: a refusal in other company holds", name)
		}
	}
	if _, _, ok := find(5*time.Second, mine, other); !ok {
		t.Error("the refusal in the same company does not hold")
	}
	d.charged([]limitstore.Limit{other})
	if _, _, ok := find(5*time.Second, mine, other); ok {
		t.Error("the refusal holds though the other limit was charged since")
	}

	for range 100_000 { // bounded, and the newest are kept
		k = storetest.Key()
		add(limitstore.State{Reset: time.Second}, 7*time.Second, limit(k, 1, 1))
		if _, _, ok := find(7*time.Second, limit(k, 1, 1)); !ok {
			t.Fatal("the newest refusal was not kept")
		}
	}
	d.clear()
	if _, _, ok := find(7*time.Second, limit(k, 1, 1)); ok {
		t.Error("a refusal survived clear")
	}
}

func TestRefusalsAreRemembered(t *testing.T) {
	store := remoteMemory(memory.Options{})
	observer := &recorder{}
	shared := NewShared(store, SharedOptions{})
	zone := func(events int64) []Zone {
		return []Zone{{Name: "z", Window: limitstore.MaxWindow, Events: events}, {Name: "wide", Window: limitstore.MaxWindow, Events: 100}}
	}
	l := mustNew(t, Config{Zones: zone(1), Shared: shared, Headers: true, Observer: observer})
	for range 10 {
		send(t, l, request("192.0.2.1:1"))
	}
	if store.count() != 2 {
		t.Errorf("%d store calls for one admitted and nine refused requests, want 2", store.count())
	}
	want := map[string]int{"z admitted": 1, "wide admitted": 1, "z refused": 9, "z remembered": 8, "store": 2}
	if got := observer.take(); !maps.Equal(got, want) {
		t.Errorf("observed %v, want %v", got, want)
	}
	a := send(t, l, request("192.0.2.1:1"))
	if limit := fields(t, a.header, "RateLimit"); len(limit) != 1 || limit[0].name != "z" || limit[0].params["r"] != 0 || a.problem.RetryAfter <= 0 {
		t.Errorf("a remembered refusal says %v, %v", limit, a.problem.RetryAfter)
	}
	store.set(away) // holds while the store is away, too
	if a := send(t, l, request("192.0.2.1:1")); a.admitted || a.problem.Code != "rate-limited" {
		t.Errorf("got %v", a.problem)
	}
	store.set(memory.New(memory.Options{}).Decide)
	raised := mustNew(t, Config{Zones: zone(2), Shared: shared})
	if !send(t, raised, request("192.0.2.1:1")).admitted {
		t.Error("a raised limit is refused from memory")
	}
}

// TestReloadKeepsCounts replaces a configuration while its store lives on.
func TestReloadKeepsCounts(t *testing.T) {
	shared := NewShared(memory.New(memory.Options{}), SharedOptions{})
	configure := func(window time.Duration, events int64) *Limiter {
		return mustNew(t, Config{Zones: []Zone{{Name: "z", Window: window, Events: events}}, Shared: shared, Headers: true})
	}
	left := func(l *Limiter) int64 {
		return fields(t, send(t, l, request("192.0.2.1:1")).header, "RateLimit")[0].params["r"]
	}
	old := configure(limitstore.MaxWindow, 10)
	for _, step := range []struct {
		name string
		l    *Limiter
		want int64
	}{
		{"first", old, 9},
		{"the same again", configure(limitstore.MaxWindow, 10), 8},
		{"events raised", configure(limitstore.MaxWindow, 20), 17},
		{"the old one still serves", old, 6},
		{"another window starts anew", configure(limitstore.MaxWindow/2, 10), 9},
		{"events lowered below the count", configure(limitstore.MaxWindow, 3), 0},
	} {
		if got := left(step.l); got != step.want {
			t.Errorf("%s: %d left, want %d", step.name, got, step.want)
		}
	}
}
