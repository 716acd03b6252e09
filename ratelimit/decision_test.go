package ratelimit

import (
	"context"
	"errors"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/handler"
	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore/memory"
)

func TestParseCost(t *testing.T) {
	tests := []struct {
		text   string
		cost   int64
		tooBig bool
		ok     bool
	}{
		{"0", 0, false, true}, {"1", 1, false, true}, {"007", 7, false, true},
		{"9223372036854775807", math.MaxInt64, false, true},
		{"9223372036854775808", math.MaxInt64, true, true},
		{"99999999999999999999999999", math.MaxInt64, true, true},
		{"-1", 1, false, false}, {"-99999999999999999999", 1, false, false}, {"1.5", 1, false, false}, {"1e3", 1, false, false},
		{"", 1, false, false}, {" 1", 1, false, false}, {"+1", 1, false, false}, {"0x10", 1, false, false}, {"1_000", 1, false, false}, {"١", 1, false, false},
	}
	for _, tt := range tests {
		cost, tooBig, ok := ParseCost(tt.text)
		if cost != tt.cost || tooBig != tt.tooBig || ok != tt.ok {
			t.Errorf("ParseCost(%q) = %d, %v, %v; want %d, %v, %v", tt.text, cost, tooBig, ok, tt.cost, tt.tooBig, tt.ok)
		}
	}
}

func FuzzParseCost(f *testing.F) {
	for _, s := range []string{"0", "1", "-1", "1.5", "", "9223372036854775808", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		cost, tooBig, ok := ParseCost(s)
		if cost < 0 || !ok && (cost != 1 || tooBig) || tooBig && cost != math.MaxInt64 {
			t.Errorf("ParseCost(%q) = %d, %v, %v", s, cost, tooBig, ok)
		}
	})
}

func TestCosts(t *testing.T) {
	var cost int64
	var logged strings.Builder
	observer := &recorder{}
	l := mustNew(t, Config{
		Zones:   []Zone{{Name: "z", Window: limitstore.MaxWindow, Events: 10, Cost: func(*http.Request) int64 { return cost }}},
		Headers: true, Observer: observer, Logger: textLogger(&logged),
	})
	remaining := func(a answer) int64 {
		if limit := fields(t, a.header, "RateLimit"); len(limit) == 1 {
			return limit[0].params["r"]
		}
		return -1
	}
	for _, step := range []struct {
		name      string
		cost      int64
		admitted  bool
		wait      bool
		remaining int64
	}{
		{"0 is uncharged", 0, true, false, 10},
		{"negative counts as 1", -5, true, false, 9},
		{"beyond events is refused for good", 11, false, false, -1},
		{"beyond any number too", math.MaxInt64, false, false, -1},
		{"the rest", 9, true, false, 0},
		{"nothing is left", 1, false, true, 0},
		{"0 is admitted even then", 0, true, false, 0},
	} {
		cost = step.cost
		a := send(t, l, request("192.0.2.1:1"))
		if a.admitted != step.admitted || remaining(a) != step.remaining {
			t.Errorf("%s: admitted %v, %d left; want %v, %d", step.name, a.admitted, remaining(a), step.admitted, step.remaining)
		}
		if !a.admitted && (a.problem.Code != "rate-limited" || a.problem.Status != 429 || a.zone != "z" || (a.problem.RetryAfter > 0) != step.wait) {
			t.Errorf("%s: got %+v by zone %q", step.name, a.problem, a.zone)
		}
	}
	if !strings.Contains(logged.String(), "zone=z") {
		t.Errorf("a bad cost was not logged: %q", logged.String())
	}
	want := map[string]int{"z admitted": 4, "z refused": 3}
	if got := observer.take(); !maps.Equal(got, want) {
		t.Errorf("observed %v, want %v", got, want)
	}
}

func TestClientKeys(t *testing.T) {
	const events = 1
	var key string
	address := func(r *http.Request) string { return r.Header.Get("Client") }
	shared := NewShared(memory.New(memory.Options{}), SharedOptions{})
	l := mustNew(t, Config{
		Zones:  []Zone{{Name: "z", Window: limitstore.MaxWindow, Events: events, Key: func(*http.Request) string { return key }}},
		Shared: shared, ClientAddr: address,
	})
	tests := []struct {
		name          string
		first, second string // client addresses
		key1, key2    string
		same          bool
	}{
		{"another IPv4 address", "192.0.2.1", "192.0.2.2", "", "", false},
		{"IPv4 in IPv6 is IPv4", "192.0.2.3", "::ffff:192.0.2.3", "", "", true},
		{"one /64", "2001:db8:1:1::1", "2001:db8:1:1:ffff:ffff:ffff:ffff", "", "", true},
		{"two /64", "2001:db8:1:2::1", "2001:db8:1:3::1", "", "", false},
		{"the IPv6 zone is dropped", "fe80::1%eth0", "fe80::2%eth1", "", "", true},
		{"no address and an unreadable one", "", "not an address", "", "", true},
		{"one key, two addresses", "192.0.2.10", "192.0.2.11", "user 1", "user 1", true},
		{"two keys, one address", "192.0.2.12", "192.0.2.12", "user 2", "user 3", false},
		{"a key that looks like an address", "192.0.2.13", "192.0.2.14", "", "192.0.2.13", false},
		{"a key that looks like none", "", "192.0.2.14", "", "n", false},
	}
	for _, tt := range tests {
		if tt.first == "" && tt.name != "no address and an unreadable one" {
			continue // the shared key has been used up by then, which is what that row shows
		}
		r := request("203.0.113.1:1")
		r.Header.Set("Client", tt.first)
		key = tt.key1
		if !send(t, l, r).admitted {
			t.Errorf("%s: the first was refused", tt.name)
		}
		r.Header.Set("Client", tt.second)
		key = tt.key2
		if got := !send(t, l, r).admitted; got != tt.same {
			t.Errorf("%s: counted together %v, want %v", tt.name, got, tt.same)
		}
	}
}

func TestIPv6PrefixAndDefaultAddress(t *testing.T) {
	l := mustNew(t, Config{Zones: []Zone{{Name: "z", Window: limitstore.MaxWindow, Events: 1}}, IPv6Prefix: 48})
	if !send(t, l, request("[2001:db8:1:1::1]:80")).admitted {
		t.Error("the first of a /48 was refused")
	}
	if send(t, l, request("[2001:db8:1:ffff::1]:80")).admitted {
		t.Error("another address of the /48 was counted apart")
	}
	if !send(t, l, request("[2001:db8:2::1]:80")).admitted {
		t.Error("another /48 was counted together")
	}
}

// TestWhatMakesACounter checks which zones share their counts.
func TestWhatMakesACounter(t *testing.T) {
	base := Zone{Name: "z", Window: time.Hour * 8784, Events: 1}
	site := func(name string) func(*http.Request) string { return func(*http.Request) string { return name } }
	change := func(f func(*Zone)) Zone { z := base; f(&z); return z }
	tests := []struct {
		name  string
		other Zone
		same  bool
	}{
		{"the same zone in another place", base, true},
		{"other events", change(func(z *Zone) { z.Events = 2 }), true},
		{"another name", change(func(z *Zone) { z.Name = "y" }), false},
		{"another window", change(func(z *Zone) { z.Window = time.Hour * 4392 }), false},
		{"another site", change(func(z *Zone) { z.Site = site("other.example") }), false},
		{"the host named as site", change(func(z *Zone) { z.Site = site("app.example") }), true},
		{"parts that join to the same text", change(func(z *Zone) { z.Name, z.Site = "ez", site("app.exampl") }), false},
	}
	for _, tt := range tests {
		shared := NewShared(memory.New(memory.Options{}), SharedOptions{})
		first := mustNew(t, Config{Zones: []Zone{base}, Shared: shared, Headers: true})
		second := mustNew(t, Config{Zones: []Zone{tt.other}, Shared: shared, Headers: true})
		send(t, first, request("192.0.2.1:1"))
		a := send(t, second, request("192.0.2.1:1"))
		used := tt.other.Events - fields(t, a.header, "RateLimit")[0].params["r"]
		if got := !a.admitted || used == 2; got != tt.same {
			t.Errorf("%s: counted together %v, want %v", tt.name, got, tt.same)
		}
	}
}

func TestRequestSite(t *testing.T) {
	for host, want := range map[string]string{
		"app.example": "app.example", "App.Example:8443": "app.example", "[2001:DB8::1]:80": "2001:db8::1", "[2001:db8::1]": "2001:db8::1", "2001:db8::1": "2001:db8::1", "": "", ":80": "",
	} {
		if got := requestSite(&http.Request{Host: host}); got != want {
			t.Errorf("requestSite(%q) = %q, want %q", host, got, want)
		}
	}
}

func TestExempt(t *testing.T) {
	l := mustNew(t, Config{
		Zones:   []Zone{{Name: "z", Window: limitstore.MaxWindow, Events: 1}},
		Exempt:  []netip.Prefix{netip.MustParsePrefix("10.1.2.3/8"), netip.MustParsePrefix("::ffff:192.0.2.0/120"), netip.MustParsePrefix("2001:db8::/32")},
		Headers: true,
	})
	for client, exempt := range map[string]bool{
		"10.200.0.1:1": true, "[::ffff:10.0.0.1]:1": true, "192.0.2.77:1": true, "[2001:db8:5::1]:1": true, "11.0.0.1:1": false, "[2001:db9::1]:1": false, "@": false,
	} {
		send(t, l, request(client))
		a := send(t, l, request(client))
		if a.admitted != exempt || (len(a.header.Values("RateLimit-Policy")) == 0) != exempt {
			t.Errorf("%s: exempt %v, want %v", client, a.admitted, exempt)
		}
	}
}

func TestSeveralZonesAreOneDecision(t *testing.T) {
	store := remoteMemory(memory.Options{})
	observer := &recorder{}
	l := mustNew(t, Config{
		Zones: []Zone{
			{Name: "minute", Window: time.Minute * 527040, Events: 2},
			{Name: "day", Window: time.Hour * 4392, Events: 100, Applies: func(r *http.Request) bool { return r.Method == http.MethodGet }},
		},
		Shared: NewShared(store, SharedOptions{}), Headers: true, Observer: observer,
	})
	for range 2 {
		send(t, l, request("192.0.2.1:1"))
	}
	a := send(t, l, request("192.0.2.1:1"))
	if a.admitted || a.zone != "minute" {
		t.Fatalf("got admitted %v, zone %q; want a refusal by minute", a.admitted, a.zone)
	}
	if store.count() != 3 {
		t.Errorf("%d store calls for 3 requests", store.count())
	}
	limit := fields(t, a.header, "RateLimit")
	if len(limit) != 2 || limit[0].params["r"] != 0 || limit[1].params["r"] != 98 {
		t.Errorf("got %v; want minute with 0 and day, uncharged, with 98 left", limit)
	}
	want := map[string]int{"minute admitted": 2, "day admitted": 2, "minute refused": 1, "store": 3}
	if got := observer.take(); !maps.Equal(got, want) {
		t.Errorf("observed %v, want %v", got, want)
	}
	post := request("192.0.2.9:1")
	post.Method = http.MethodPost
	if got := fields(t, send(t, l, post).header, "RateLimit-Policy"); len(got) != 1 || got[0].name != "minute" {
		t.Errorf("a zone that does not apply is announced: %v", got)
	}
}

func TestTheLongestWaitRefuses(t *testing.T) {
	store := &fakeStore{decide: func(_ context.Context, d *limitstore.Decision) error {
		d.Admitted = false
		for i, wait := range []time.Duration{20 * time.Millisecond, 61 * time.Second, 2 * time.Hour} {
			d.States[i] = limitstore.State{Refused: i < 2, Reset: wait}
		}
		return nil
	}}
	l := mustNew(t, Config{
		Zones: []Zone{
			{Name: "a", Window: time.Hour, Events: 9}, {Name: "b", Window: time.Hour, Events: 9}, {Name: "c", Window: 2 * time.Hour, Events: 9},
		},
		Shared: NewShared(store, SharedOptions{}),
	})
	for range 2 { // from the store, then remembered
		a := send(t, l, request("192.0.2.1:1"))
		if a.zone != "b" || a.problem.RetryAfter > 61*time.Second || a.problem.RetryAfter < 60*time.Second {
			t.Errorf("got zone %q, Retry-After %v; want b, 61s", a.zone, a.problem.RetryAfter)
		}
	}
	if store.count() != 1 {
		t.Errorf("%d store calls, want 1: the refusal is remembered", store.count())
	}
}

func TestDryRun(t *testing.T) {
	observer := &recorder{}
	dry := Zone{Name: "dry", Window: limitstore.MaxWindow, Events: 1, DryRun: true}
	hard := Zone{Name: "hard", Window: limitstore.MaxWindow, Events: 3}
	l := mustNew(t, Config{Zones: []Zone{dry, hard}, Headers: true, Observer: observer})
	for i := range 5 {
		a := send(t, l, request("192.0.2.1:1"))
		if a.admitted != (i < 3) {
			t.Errorf("request %d: admitted %v", i, a.admitted)
		}
		for _, field := range []string{"RateLimit-Policy", "RateLimit"} {
			if got := fields(t, a.header, field); len(got) != 1 || got[0].name != "hard" {
				t.Errorf("request %d: %s is %v, want hard alone", i, field, got)
			}
		}
	}
	want := map[string]int{"dry admitted": 1, "dry dry_run_refused": 4, "hard admitted": 3, "hard refused": 2}
	if got := observer.take(); !maps.Equal(got, want) {
		t.Errorf("observed %v, want %v", got, want)
	}
	alone := mustNew(t, Config{Zones: []Zone{dry}, Headers: true})
	for range 3 {
		if a := send(t, alone, request("192.0.2.1:1")); !a.admitted || len(a.header) != 1 {
			t.Errorf("a dry run alone: admitted %v, header %v", a.admitted, a.header)
		}
	}
}

// TestRetryAfterIsTight has a client alone: refused until the moment that
// Retry-After names, admitted from then on.
func TestRetryAfterIsTight(t *testing.T) {
	for _, offset := range []int64{0, 1, 500, 999, 1000, 29_999, 59_000, 59_999} {
		var now atomic.Int64
		now.Store(1_800_000_000_000/60_000*60_000 + offset)
		clock := func() time.Time { return time.UnixMilli(now.Load()) }
		l := mustNew(t, Config{
			Zones:   []Zone{{Name: "z", Window: time.Minute, Events: 1}},
			Shared:  NewShared(memory.New(memory.Options{Now: clock}), SharedOptions{}),
			Headers: true,
		})
		send(t, l, request("192.0.2.1:1"))
		a := send(t, l, request("192.0.2.1:1"))
		if a.admitted {
			t.Fatal("admitted beyond the limit")
		}
		h := http.Header{}
		a.problem.SetHeader(h)
		seconds := wholeSeconds(a.problem.RetryAfter)
		if limit := fields(t, a.header, "RateLimit"); limit[0].params["t"] != seconds || seconds > 60 || seconds < 1 {
			t.Errorf("offset %d: Retry-After %d, t %v", offset, seconds, limit)
		}
		now.Add(a.problem.RetryAfter.Milliseconds() - 1)
		if send(t, l, request("192.0.2.1:1")).admitted {
			t.Errorf("offset %d: admitted a millisecond before the reset", offset)
		}
		now.Add(1)
		if !send(t, l, request("192.0.2.1:1")).admitted {
			t.Errorf("offset %d: refused at the reset", offset)
		}
	}
}

func TestHeaders(t *testing.T) {
	l := mustNew(t, Config{
		Zones: []Zone{
			{Name: "per minute", Window: time.Minute, Events: 600},
			{Name: `q"\`, Window: 1500 * time.Millisecond, Events: 5},
		},
		Headers: true,
	})
	w := httptest.NewRecorder()
	w.Header()["Ratelimit"] = []string{`"earlier";r=1`}
	backend := handler.Func(func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Add("RateLimit", `"backend";r=3;t=1`) // as reverse_proxy copies it
		w.Header().Add("RateLimit-Policy", `"backend";q=5`)
		return nil
	})
	if err := l.ServeHTTP(w, request("192.0.2.1:1"), backend); err != nil {
		t.Fatal(err)
	}
	policy := fields(t, w.Header(), "RateLimit-Policy")
	wantPolicy := []item{{"per minute", map[string]int64{"q": 600, "w": 60}}, {`q"\`, map[string]int64{"q": 5}}, {"backend", map[string]int64{"q": 5}}}
	if !reflect.DeepEqual(policy, wantPolicy) {
		t.Errorf("got %v, want %v", policy, wantPolicy)
	}
	limit := fields(t, w.Header(), "RateLimit")
	if len(limit) != 4 || limit[0].name != "earlier" || limit[1].params["r"] != 599 || limit[2].params["r"] != 4 || limit[3].name != "backend" {
		t.Errorf("got %v; want those of before, ours, and the backend's", limit)
	}
	if tt := limit[1].params["t"]; tt < 1 || tt > 60 {
		t.Errorf("t is %d, want 1 to 60", tt)
	}
	if got := w.Header()["Ratelimit-Policy"][0]; got != `"per minute";q=600;w=60, "q\"\\";q=5` {
		t.Errorf("got %s", got)
	}
	off := mustNew(t, Config{Zones: []Zone{{Name: "z", Window: time.Minute, Events: 1}}})
	for range 2 {
		if a := send(t, off, request("192.0.2.1:1")); len(a.header["Ratelimit"])+len(a.header["Ratelimit-Policy"]) > 0 {
			t.Errorf("fields without Headers: %v", a.header)
		}
	}
}

func TestWrap(t *testing.T) {
	l := mustNew(t, Config{Zones: []Zone{{Name: "z", Window: limitstore.MaxWindow, Events: 1}}, Headers: true})
	h := l.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) }))
	for _, want := range []int{204, 429} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request("192.0.2.1:1"))
		if w.Code != want || w.Header().Get("RateLimit") == "" || (w.Header().Get("Retry-After") != "") != (want == 429) {
			t.Errorf("got %d with %v, want %d", w.Code, w.Header(), want)
		}
	}
}

func TestBadConfigs(t *testing.T) {
	good := Zone{Name: "z", Window: time.Minute, Events: 1}
	zone := func(f func(*Zone)) Config { z := good; f(&z); return Config{Zones: []Zone{z}} }
	shared := NewShared(memory.New(memory.Options{}), SharedOptions{})
	for name, c := range map[string]Config{
		"no zones":         {},
		"no name":          zone(func(z *Zone) { z.Name = "" }),
		"a name too long":  zone(func(z *Zone) { z.Name = strings.Repeat("n", 65) }),
		"a line break":     zone(func(z *Zone) { z.Name = "a\nb" }),
		"not ASCII":        zone(func(z *Zone) { z.Name = "zäh" }),
		"no window":        zone(func(z *Zone) { z.Window = 0 }),
		"a broken window":  zone(func(z *Zone) { z.Window = 1500 * time.Microsecond }),
		"a window too big": zone(func(z *Zone) { z.Window = limitstore.MaxWindow + time.Second }),
		"no events":        zone(func(z *Zone) { z.Events = 0 }),
		"too many events":  zone(func(z *Zone) { z.Events = 1 << 53 }),
		"an algorithm":     zone(func(z *Zone) { z.Algorithm = 99 }),
		"a name twice":     {Zones: []Zone{good, good}},
		"too many zones":   {Zones: make([]Zone, limitstore.MaxLimits+1)},
		"IPv6 prefix":      {Zones: []Zone{good}, IPv6Prefix: 129},
		"a failure policy": {Zones: []Zone{good}, OnStoreFailure: 7},
		"no local table":   {Zones: []Zone{good}, OnStoreFailure: Local},
		"exempt":           {Zones: []Zone{good}, Exempt: []netip.Prefix{{}}},
	} {
		c.Shared = shared
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := New(Config{Zones: []Zone{good}}); err == nil {
		t.Error("no store: accepted")
	}
}

func TestRegistry(t *testing.T) {
	var r Registry
	s := Settings{Window: time.Minute, Events: 10}
	change := func(f func(*Settings)) Settings { c := s; f(&c); return c }
	for _, step := range []struct {
		site, name string
		settings   Settings
		ok         bool
	}{
		{"", "z", s, true},
		{"", "z", s, true},
		{"", "z", change(func(s *Settings) { s.Algorithm = limitstore.FixedWindow }), true},
		{"a.example", "z", change(func(s *Settings) { s.Window = time.Hour }), true},
		{"", "y", change(func(s *Settings) { s.Events = 5 }), true},
		{"", "z", change(func(s *Settings) { s.Window = time.Hour }), false},
		{"", "z", change(func(s *Settings) { s.Events = 11 }), false},
		{"", "z", change(func(s *Settings) { s.Key = "{user}" }), false},
	} {
		if err := r.Register(step.site, step.name, step.settings); (err == nil) != step.ok {
			t.Errorf("%q %q %v: got %v, want ok %v", step.site, step.name, step.settings, err, step.ok)
		}
	}
	var next Registry
	if err := next.Register("", "z", change(func(s *Settings) { s.Window = time.Hour })); err != nil {
		t.Errorf("the next configuration may differ: %v", err)
	}
}

func TestHashSecret(t *testing.T) {
	var secret atomic.Pointer[[32]byte]
	var asked atomic.Int64
	get := func(context.Context) ([32]byte, error) {
		asked.Add(1)
		if s := secret.Load(); s != nil {
			return *s, nil
		}
		return [32]byte{}, errAway
	}
	store := remoteMemory(memory.Options{})
	shared := NewShared(store, SharedOptions{Local: memory.New(memory.Options{})})
	zones := []Zone{{Name: "z", Window: limitstore.MaxWindow, Events: 2}}
	reject := mustNew(t, Config{Zones: zones, Shared: shared, HashSecret: get})
	local := mustNew(t, Config{Zones: zones, Shared: shared, HashSecret: get, OnStoreFailure: Local})
	for i := range 3 {
		if a := send(t, reject, request("192.0.2.1:1")); a.admitted || a.problem.Code != "rate-limit-store-unavailable" {
			t.Errorf("without the secret: admitted %v, %v", a.admitted, a.problem)
		}
		if a := send(t, local, request("192.0.2.1:1")); a.admitted != (i < 2) {
			t.Errorf("without the secret, local: request %d admitted %v", i, a.admitted)
		}
	}
	if asked.Load() != 2 || store.count() != 0 {
		t.Errorf("asked %d times for the secret and %d times the store; want once a limiter, and never", asked.Load(), store.count())
	}
	secret.Store(&[32]byte{1})
	reject.secret.retryAt = time.Time{}
	if !send(t, reject, request("192.0.2.1:1")).admitted {
		t.Error("refused though the secret is there")
	}
	other := mustNew(t, Config{Zones: zones, Shared: shared, HashSecret: func(context.Context) ([32]byte, error) { return [32]byte{2}, nil }})
	send(t, other, request("192.0.2.1:1"))
	if !send(t, other, request("192.0.2.1:1")).admitted {
		t.Error("another secret must lead to other counts")
	}
}

func TestClientThatLeft(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	store := &fakeStore{decide: func(ctx context.Context, _ *limitstore.Decision) error { cancel(); return ctx.Err() }}
	for _, policy := range []FailurePolicy{Reject, Allow, Local} {
		l := mustNew(t, Config{
			Zones:  []Zone{{Name: "z", Window: time.Minute, Events: 1}},
			Shared: NewShared(store, SharedOptions{Local: memory.New(memory.Options{})}), OnStoreFailure: policy,
		})
		if a := send(t, l, request("192.0.2.1:1").WithContext(ctx)); a.admitted || a.problem.Status != 499 || !errors.Is(a.problem, context.Canceled) {
			t.Errorf("%v: got %v", policy, a.problem)
		}
		if l.config.Shared.breaker.suspect.Load() {
			t.Errorf("%v: a client that left was taken for a failure of the store", policy)
		}
	}
}

func TestClientAddress(t *testing.T) {
	for _, tt := range []struct {
		text   string
		prefix int
		want   string
	}{
		{"192.0.2.1", 0, "192.0.2.1"}, {"::ffff:192.0.2.1", 0, "192.0.2.1"}, {"2001:db8:1:2:3::4", 0, "2001:db8:1:2::"},
		{"2001:db8:1:2:3::4", 48, "2001:db8:1::"}, {"fe80::1%eth0", 128, "fe80::1"}, {"", 0, ""}, {"192.0.2.1:80", 0, ""},
	} {
		if got := ClientAddress(tt.text, tt.prefix); got != tt.want {
			t.Errorf("ClientAddress(%q, %d) = %q, want %q", tt.text, tt.prefix, got, tt.want)
		}
	}
}
