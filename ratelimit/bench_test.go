package ratelimit

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/handler"
	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
)

// discard is a ResponseWriter whose header is emptied by each request.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

var nothing = handler.Func(func(http.ResponseWriter, *http.Request) error { return nil })

func serve(l *Limiter, w discard, r *http.Request) error {
	clear(w.header)
	return l.ServeHTTP(w, r, nothing)
}

func newDiscard() discard { return discard{make(http.Header, 8)} }

func benchLimiter(t testing.TB, events int64, headers bool, names ...string) *Limiter {
	c := Config{Headers: headers}
	for _, name := range names {
		c.Zones = append(c.Zones, Zone{Name: name, Window: limitstore.MaxWindow, Events: events})
	}
	return mustNew(t, c)
}

// TestAllocations holds what a request costs in allocations: the two lists of
// values that the header keeps, in one array, and the text of RateLimit; for a
// refusal the error.
func TestAllocations(t *testing.T) {
	r, w := request("192.0.2.1:1"), newDiscard()
	for name, tt := range map[string]struct {
		l    *Limiter
		want float64
	}{
		"one zone, no headers":   {benchLimiter(t, 1<<40, false, "a"), 0},
		"one zone, headers":      {benchLimiter(t, 1<<40, true, "a"), 2},
		"three zones, headers":   {benchLimiter(t, 1<<40, true, "a", "b", "c"), 2},
		"a refusal with headers": {benchLimiter(t, 1, true, "a"), 3},
	} {
		_ = serve(tt.l, w, r)
		if got := testing.AllocsPerRun(200, func() { _ = serve(tt.l, w, r) }); got > tt.want && !raceEnabled {
			t.Errorf("%s: %v allocations, want %v", name, got, tt.want)
		}
	}
}

func BenchmarkMemory(b *testing.B) {
	for name, l := range map[string]*Limiter{
		"OneZone":       benchLimiter(b, 1<<40, true, "a"),
		"ThreeZones":    benchLimiter(b, 1<<40, true, "a", "b", "c"),
		"WithoutFields": benchLimiter(b, 1<<40, false, "a"),
		"Refused":       benchLimiter(b, 1, true, "a"),
	} {
		b.Run(name, func(b *testing.B) {
			r, w := request("192.0.2.1:1"), newDiscard()
			b.ReportAllocs()
			for b.Loop() {
				_ = serve(l, w, r)
			}
		})
	}
}

func BenchmarkMemoryParallel100kClients(b *testing.B) {
	l := benchLimiter(b, 1<<40, true, "a")
	var requests [4096]*http.Request
	for i := range requests {
		requests[i] = request(fmt.Sprintf("10.0.%d.%d:1", i/256, i%256))
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		w := newDiscard()
		for i := 0; pb.Next(); i++ {
			_ = serve(l, w, requests[i%len(requests)])
		}
	})
}

func BenchmarkRedis32Callers(b *testing.B) {
	l := gateway(b, server.Addr, newPrefix(), 10*time.Second, Config{
		Zones: []Zone{{Name: "a", Window: limitstore.MaxWindow, Events: 1 << 40}}, Headers: true,
	})
	var requests [4096]*http.Request
	for i := range requests {
		requests[i] = request(fmt.Sprintf("10.0.%d.%d:1", i/256, i%256))
	}
	b.SetParallelism(16)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		w := newDiscard()
		for i := 0; pb.Next(); i++ {
			if err := serve(l, w, requests[i%len(requests)]); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkRemembered is a refusal that needs no store.
func BenchmarkRemembered(b *testing.B) {
	l := gateway(b, server.Addr, newPrefix(), 10*time.Second, Config{
		Zones: []Zone{{Name: "a", Window: limitstore.MaxWindow, Events: 1}}, Headers: true,
	})
	r, w := request("192.0.2.1:1"), newDiscard()
	_ = serve(l, w, r)
	b.ReportAllocs()
	for b.Loop() {
		_ = serve(l, w, r)
	}
}

// BenchmarkStoreGivenUp is a decision while the breaker is open.
func BenchmarkStoreGivenUp(b *testing.B) {
	shared := NewShared(&fakeStore{decide: away}, SharedOptions{})
	for now := time.Duration(0); !shared.BreakerOpen(); now += 20 * time.Millisecond {
		shared.breaker.failed(now)
	}
	shared.breaker.probeAt = 1 << 62
	l := mustNew(b, Config{Zones: []Zone{{Name: "a", Window: time.Minute, Events: 1}}, Shared: shared, OnStoreFailure: Allow, Headers: true})
	r, w := request("192.0.2.1:1"), newDiscard()
	b.ReportAllocs()
	for b.Loop() {
		_ = serve(l, w, r)
	}
}
