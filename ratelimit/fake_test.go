package ratelimit

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/gatehouse-gateway/gatehouse/internal/handler"
	"github.com/gatehouse-gateway/gatehouse/internal/problem"
	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore/memory"
)

// fakeStore is a store on a network as far as a Limiter can tell.
type fakeStore struct {
	mu     sync.Mutex
	calls  int
	decide func(ctx context.Context, d *limitstore.Decision) error
}

func (f *fakeStore) Decide(ctx context.Context, d *limitstore.Decision) error {
	f.mu.Lock()
	f.calls++
	decide := f.decide
	f.mu.Unlock()
	return decide(ctx, d)
}

func (f *fakeStore) set(decide func(context.Context, *limitstore.Decision) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decide = decide
}

func (f *fakeStore) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// remoteMemory is the memory store behind a pretended network.
func remoteMemory(o memory.Options) *fakeStore { return &fakeStore{decide: memory.New(o).Decide} }

var errAway = errors.New("store is away")

func away(context.Context, *limitstore.Decision) error { return errAway }

// recorder is an Observer that counts.
type recorder struct {
	mu     sync.Mutex
	counts map[string]int
}

func (o *recorder) note(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.counts == nil {
		o.counts = map[string]int{}
	}
	o.counts[what]++
}

func (o *recorder) Decided(zone string, r Result)            { o.note(zone + " " + string(r)) }
func (o *recorder) DenialCacheHit(zone string)               { o.note(zone + " remembered") }
func (o *recorder) StoreAnswered(_ time.Duration, err error) { o.note("store") }
func (o *recorder) BreakerChanged(open bool) {
	if open {
		o.note("opened")
	} else {
		o.note("closed")
	}
}

func (o *recorder) take() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	counts := o.counts
	o.counts = nil
	return counts
}

func mustNew(t testing.TB, c Config) *Limiter {
	t.Helper()
	if c.Shared == nil {
		c.Shared = NewShared(memory.New(memory.Options{}), SharedOptions{})
	}
	l, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func request(client string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "http://app.example/", nil)
	r.RemoteAddr = client
	return r
}

// answer is what became of a request.
type answer struct {
	admitted bool
	problem  *problem.Error
	zone     string
	header   http.Header
}

var passed = handler.Func(func(w http.ResponseWriter, r *http.Request) error {
	w.Header().Add("Passed", "1")
	return nil
})

func send(t testing.TB, l *Limiter, r *http.Request) answer {
	t.Helper()
	w := httptest.NewRecorder()
	err := l.ServeHTTP(w, r, passed)
	a := answer{admitted: w.Header().Get("Passed") == "1", header: w.Header()}
	if a.admitted != (err == nil) {
		t.Fatalf("admitted %v with error %v", a.admitted, err)
	}
	if err != nil {
		a.problem, _ = errors.AsType[*problem.Error](err)
		if a.problem == nil {
			t.Fatalf("got error %v, want a problem", err)
		}
		if refused, ok := errors.AsType[*Refused](err); ok {
			a.zone = refused.Zone
		}
	}
	return a
}

// item is one of a RateLimit field.
type item struct {
	name   string
	params map[string]int64
}

// fields reads a field with a parser that is not ours.
func fields(t testing.TB, h http.Header, name string) []item {
	t.Helper()
	if len(h.Values(name)) == 0 {
		return nil
	}
	list, err := httpsfv.UnmarshalList(h.Values(name))
	if err != nil {
		t.Fatalf("%s %q: %v", name, h.Values(name), err)
	}
	var items []item
	for _, member := range list {
		it, ok := member.(httpsfv.Item)
		if !ok {
			t.Fatalf("%s %q: not an item", name, h.Values(name))
		}
		title, ok := it.Value.(string)
		if !ok {
			t.Fatalf("%s %q: the name is not a String", name, h.Values(name))
		}
		params := map[string]int64{}
		for _, key := range it.Params.Names() {
			v, _ := it.Params.Get(key)
			n, ok := v.(int64)
			if !ok {
				t.Fatalf("%s %q: %s is not an Integer", name, h.Values(name), key)
			}
			params[key] = n
		}
		items = append(items, item{title, params})
	}
	return items
}

func textLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

func (o *recorder) count(what string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.counts[what]
}

func costOf(cost *int64) func(*http.Request) int64 {
	return func(*http.Request) int64 { return *cost }
}
