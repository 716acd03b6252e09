package ratelimit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"pgregory.net/rapid"

	"github.com/gatehouse-gateway/gatehouse/internal/redisconn"
	"github.com/gatehouse-gateway/gatehouse/internal/servers"
	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore/memory"
	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore/redis"
)

// server is shared by the tests that do it no harm.
var server *servers.Redis

func TestMain(m *testing.M) {
	logging.Disable() // the client's own lines about servers that tests stop
	servers.MainRedis(m, &server)
}

var prefixes atomic.Int64

func newPrefix() string { return fmt.Sprintf("test%d:", prefixes.Add(1)) }

func commonSecret(context.Context) ([32]byte, error) { return [32]byte{7}, nil }

// gateway makes a Limiter with a connection and a Shared of its own, as another
// process would have. The connection's own timeout is long; the Shared's counts.
func gateway(t testing.TB, addr, prefix string, timeout time.Duration, c Config) *Limiter {
	t.Helper()
	conn, err := redisconn.Open(redisconn.Options{Address: addr, Prefix: prefix, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c.Shared = NewShared(redis.New(conn), SharedOptions{Timeout: timeout, Local: memory.New(memory.Options{})})
	c.HashSecret = commonSecret
	return mustNew(t, c)
}

const patient = 10 * time.Second

// TestExactlyTheLimitOverGateways sends 600 requests at once through two
// gateways.
func TestExactlyTheLimitOverGateways(t *testing.T) {
	for round := range 10 {
		prefix := newPrefix()
		var gateways [2]*Limiter
		for i := range gateways {
			gateways[i] = gateway(t, server.Addr, prefix, patient, Config{
				Zones:   []Zone{{Name: "z", Window: limitstore.MaxWindow, Events: 100}, {Name: "wide", Window: limitstore.MaxWindow, Events: 100_000}},
				Headers: true,
			})
			// Gateways whose clocks differ by hours decide the same.
			offset := time.Duration(i*2-1) * time.Hour
			clock := gateways[i].config.Shared.clock
			gateways[i].config.Shared.clock = func() time.Duration { return clock() + offset }
		}
		var admitted, refused atomic.Int64
		var wg sync.WaitGroup
		for i := range 600 {
			wg.Go(func() {
				a := send(t, gateways[i%2], request("192.0.2.1:1"))
				switch {
				case a.admitted:
					admitted.Add(1)
				case a.problem.Code == "rate-limited" && a.problem.RetryAfter > 0:
					refused.Add(1)
				default:
					t.Errorf("got %v", a.problem)
				}
			})
		}
		wg.Wait()
		if admitted.Load() != 100 || refused.Load() != 500 {
			t.Fatalf("round %d: admitted %d, refused %d; want 100 and 500", round, admitted.Load(), refused.Load())
		}
	}
}

// TestStoresDecideAlike runs one schedule through a Limiter on each store.
func TestStoresDecideAlike(t *testing.T) {
	onServer := gateway(t, server.Addr, newPrefix(), patient, Config{Zones: []Zone{{Name: "z", Window: time.Hour, Events: 1}}}).config.Shared.store
	rapid.Check(t, func(rt *rapid.T) {
		var cost int64
		zones := []Zone{
			{Name: "a", Window: limitstore.MaxWindow, Events: rapid.Int64Range(1, 9).Draw(rt, "a"), Cost: nil},
			{Name: "b", Window: limitstore.MaxWindow / 2, Events: rapid.Int64Range(1, 20).Draw(rt, "b")},
			{Name: "dry", Window: limitstore.MaxWindow, Events: rapid.Int64Range(1, 5).Draw(rt, "dry"), DryRun: true},
		}
		zones[1].Cost = costOf(&cost)
		inMemory := mustNew(t, Config{Zones: zones, Headers: true})
		site := fmt.Sprint(prefixes.Add(1)) // counts of its own
		for i := range zones {
			zones[i].Site = func(*http.Request) string { return site }
		}
		onRedis := mustNew(t, Config{Zones: zones, Headers: true, Shared: NewShared(onServer, SharedOptions{Timeout: patient})})
		clients := []string{"192.0.2.1:1", "[2001:db8::1]:1", ""}
		for range rapid.IntRange(1, 25).Draw(rt, "requests") {
			cost = rapid.Int64Range(-1, 22).Draw(rt, "cost")
			r := request(rapid.SampledFrom(clients).Draw(rt, "client"))
			a, b := send(t, inMemory, r), send(t, onRedis, r)
			if a.admitted != b.admitted || a.zone != b.zone {
				rt.Fatalf("memory: admitted %v by %q; Redis: %v by %q", a.admitted, a.zone, b.admitted, b.zone)
			}
			// A remembered refusal names its own zones only.
			known := map[string]int64{}
			for _, it := range fields(t, a.header, "RateLimit") {
				known[it.name] = it.params["r"]
			}
			for _, it := range fields(t, b.header, "RateLimit") {
				if r, ok := known[it.name]; !ok || b.admitted && r != it.params["r"] {
					rt.Fatalf("memory: %v; Redis: %v", known, it)
				}
			}
		}
	})
}

// TestRealWindowEdges lets two gateways meet many real edges at once. No
// window, told by the server's clock in the stored value, admits more than the
// limit, and a client that waits gets in.
func TestRealWindowEdges(t *testing.T) {
	const events, window = 20, 100 * time.Millisecond
	prefix := newPrefix()
	var gateways [2]*Limiter
	for i := range gateways {
		gateways[i] = gateway(t, server.Addr, prefix, patient, Config{Zones: []Zone{{Name: "z", Window: window, Events: events}}, Headers: true})
	}
	const span = 8 * window
	began := time.Now()
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for time.Since(began) < span {
				if a := send(t, gateways[i%2], request("192.0.2.1:1")); a.admitted {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	windows := int64(time.Since(began)/window) + 2 // as many as the time can have touched
	if got := admitted.Load(); got > windows*events || got < 3*events {
		t.Errorf("admitted %d in at most %d windows of %d, want most of it", got, windows, events)
	}
}

// TestTrouble pauses, kills, restarts, and empties the server under load, with
// each policy. Every request has its answer in time, no policy is broken, and
// all is well afterwards.
func TestTrouble(t *testing.T) {
	for _, policy := range []FailurePolicy{Reject, Allow, Local} {
		t.Run(policy.String(), func(t *testing.T) {
			t.Parallel()
			testTrouble(t, policy)
		})
	}
}

const troubleTimeout = 150 * time.Millisecond

func testTrouble(t *testing.T, policy FailurePolicy) {
	private := servers.StartRedis(t)
	observer := &recorder{}
	const events = 1_000_000
	prefix := newPrefix()
	load := newLoad(t, policy, []*Limiter{
		gateway(t, private.Addr, prefix, troubleTimeout, Config{Zones: []Zone{{Name: "z", Window: limitstore.MaxWindow, Events: events}}, OnStoreFailure: policy, Observer: observer}),
		gateway(t, private.Addr, prefix, troubleTimeout, Config{Zones: []Zone{{Name: "z", Window: limitstore.MaxWindow, Events: events}}, OnStoreFailure: policy, Observer: observer}),
	})
	defer load.stop()
	load.await("requests are admitted", func() bool { return load.admitted.Load() > 50 })

	if err := private.Pause(); err != nil {
		t.Fatal(err)
	}
	load.await("the breakers open", func() bool { return observer.count("opened") >= 2 })
	if err := private.Resume(); err != nil {
		t.Fatal(err)
	}
	load.await("the breakers close", func() bool { return observer.count("closed") >= 2 })

	private.Kill()
	load.await("the breakers open again", func() bool { return observer.count("opened") >= observer.count("closed")+2 })
	if err := private.Start(); err != nil {
		t.Fatal(err)
	}
	load.await("the breakers close again", func() bool { return observer.count("opened") == observer.count("closed") })
	n := load.admitted.Load()
	load.await("requests are admitted at the end", func() bool { return load.admitted.Load() > n+50 })
}

// load sends requests without end and judges each answer by the policy.
type load struct {
	t        *testing.T
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	admitted atomic.Int64
}

func newLoad(t *testing.T, policy FailurePolicy, gateways []*Limiter) *load {
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{t: t, cancel: cancel}
	for i := range 12 {
		l.wg.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				a := send(t, gateways[i%len(gateways)], request(fmt.Sprintf("192.0.2.%d:1", rand.IntN(4))))
				if took := time.Since(began); took > troubleTimeout+250*time.Millisecond {
					t.Errorf("a request waited %v", took)
				}
				switch {
				case a.admitted:
					l.admitted.Add(1)
				case policy != Reject || a.problem.Code != "rate-limit-store-unavailable" || a.problem.RetryAfter <= 0:
					t.Errorf("policy %v: got %v", policy, a.problem)
				}
				time.Sleep(time.Millisecond) // leave the machine to the others
			}
		})
	}
	return l
}

func (l *load) stop() { l.cancel(); l.wg.Wait() }

func (l *load) await(what string, ok func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatalf("not within 15 s: %s", what)
		}
	}
}

// TestEmptiedServerUnderLoad forgets scripts and counts while requests come.
// None of them fails: to forget counts gives places out again, no more.
func TestEmptiedServerUnderLoad(t *testing.T) {
	private := servers.StartRedis(t)
	prefix := newPrefix()
	zones := []Zone{{Name: "z", Window: limitstore.MaxWindow, Events: 200}}
	gateways := []*Limiter{gateway(t, private.Addr, prefix, patient, Config{Zones: zones}), gateway(t, private.Addr, prefix, patient, Config{Zones: zones})}
	admin, err := redisconn.Open(redisconn.Options{Address: private.Addr, Timeout: patient})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i := range 600 {
		wg.Go(func() {
			switch i {
			case 200, 400:
				if err := admin.Client().FlushAll(t.Context()).Err(); err != nil {
					t.Error(err)
				}
			case 100, 300, 500:
				if err := admin.Client().ScriptFlush(t.Context()).Err(); err != nil {
					t.Error(err)
				}
			}
			a := send(t, gateways[i%2], request("192.0.2.1:1"))
			if a.admitted {
				admitted.Add(1)
			} else if a.problem.Code != "rate-limited" {
				t.Errorf("got %v", a.problem)
			}
		})
	}
	wg.Wait()
	if got := admitted.Load(); got < 200 || got > 600 {
		t.Errorf("admitted %d, want 200 to 600", got)
	}
}
