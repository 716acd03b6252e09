package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// siteOfLimits answers by itself, so that nothing but the limit is measured.
const siteOfLimits = `
{
	{GLOBAL}
	gatehouse {
		store redis redis://{REDIS} {
			timeout 250ms
		}
		key_ring directory {
			path {SHARED}/keys
		}
	}
}
http://a.test:{PORT} {
	client_rate_limit {
		zone test {
			match {
				path /limited
			}
			key {header.X-Client}
			window 24h
			events 100
		}
		on_store_failure {POLICY}
	}
	respond "here you are"
}
`

// TestLimitIsExact sends 600 requests at once over two gateways against a limit
// of 100: exactly 100 are admitted, every time.
func TestLimitIsExact(t *testing.T) {
	p := startPair(t, siteOfLimits, "{POLICY}", "reject")
	v := newVisitor(t, "a.test", "test")
	v.want(t, http.StatusOK, p.next(), "GET", "/free")
	for round := range 8 {
		key := fmt.Sprintf("X-Client: round %d", round)
		day := time.Now().Unix() / 86400 // windows are aligned: a round in two of them shows nothing
		statuses := map[int]int{}
		for i, r := range simultaneously(600, func(i int) (*answer, error) {
			return v.with("a.test", "").try(p.gates[i%2].addr, "GET", "/limited", key)
		}) {
			if r.err != nil {
				t.Fatalf("round %d, request %d: %v", round, i, r.err)
			}
			statuses[r.value.status]++
			checkLimitAnswer(t, r.value)
		}
		if time.Now().Unix()/86400 != day {
			continue
		}
		if statuses[http.StatusOK] != 100 || statuses[http.StatusTooManyRequests] != 500 {
			t.Errorf("round %d: got %v, want 100 times 200 and 500 times 429", round, statuses)
		}
	}
}

// checkLimitAnswer checks what every answer of a limited path carries.
func checkLimitAnswer(t testing.TB, a *answer) {
	t.Helper()
	if got, want := a.header.Get("RateLimit-Policy"), `"test";q=100;w=86400`; got != want {
		t.Errorf("RateLimit-Policy is %q, want %q", got, want)
	}
	if got := a.header.Get("RateLimit"); !strings.HasPrefix(got, `"test";r=`) {
		t.Errorf("RateLimit is %q", got)
	}
	if a.status == http.StatusTooManyRequests && (a.code() != "rate-limited" || a.header.Get("Retry-After") == "") {
		t.Errorf("a refusal has the code %q and Retry-After %q", a.code(), a.header.Get("Retry-After"))
	}
}

// slowest is how long an answer may take while the store is away: its timeout,
// and room for a busy machine.
const slowest = 2500 * time.Millisecond

// TestLimitsWithoutStore pauses, kills and restarts Redis under load. Whatever
// the policy, answers are those that it allows, they come soon, what is not
// limited is untouched, and afterwards both gateways count together again.
func TestLimitsWithoutStore(t *testing.T) {
	for policy, without := range map[string][]int{
		"reject": {http.StatusOK, http.StatusServiceUnavailable},
		"allow":  {http.StatusOK},
		"local":  {http.StatusOK},
	} {
		t.Run(policy, func(t *testing.T) {
			p := startPair(t, siteOfLimits, "{POLICY}", policy)
			l := startLoad(t, p)
			defer l.stop()

			outages := []struct {
				name       string
				begin, end func() error
			}{
				{"paused", p.redis.Pause, p.redis.Resume},
				{"killed", func() error { p.redis.Kill(); return nil }, p.redis.Start},
			}
			for _, outage := range outages {
				l.expect("healthy before "+outage.name, http.StatusOK)
				l.await(100)
				l.expect(outage.name, without...)
				if err := outage.begin(); err != nil {
					t.Fatal(err)
				}
				l.await(300)
				checkOutage(t, p, policy, outage.name)
				if err := outage.end(); err != nil {
					t.Fatal(err)
				}
				awaitSharedCount(t, p)
			}
			l.expect("healthy at last", http.StatusOK)
			l.await(100)
		})
	}
}

// checkOutage looks at one client's answers while the store is away.
func checkOutage(t *testing.T, p *pair, policy, outage string) {
	t.Helper()
	v := newVisitor(t, "a.test", "test")
	for _, g := range p.gates {
		statuses := map[int]int{}
		for range 130 {
			a := v.do(t, g.addr, "GET", "/limited", "X-Client: "+outage)
			statuses[a.status]++
			if a.status == http.StatusServiceUnavailable && a.code() != "rate-limit-store-unavailable" {
				t.Fatalf("%s: 503 with the code %q", outage, a.code())
			}
		}
		want := map[string]map[int]int{
			"reject": {http.StatusServiceUnavailable: 130},
			"allow":  {http.StatusOK: 130},
			"local":  {http.StatusOK: 100, http.StatusTooManyRequests: 30},
		}[policy]
		if fmt.Sprint(statuses) != fmt.Sprint(want) {
			t.Errorf("%s, at %s: got %v, want %v", outage, g.name, statuses, want)
		}
		free := v.want(t, http.StatusOK, g.addr, "GET", "/free")
		if free.took > time.Second {
			t.Errorf("%s: a request outside every zone took %v", outage, free.took)
		}
	}
}

// awaitSharedCount waits until both gateways count in the store again: the
// second sees what the first has charged.
func awaitSharedCount(t *testing.T, p *pair) {
	t.Helper()
	v := newVisitor(t, "a.test", "test")
	tries := 0
	eventually(t, 20*time.Second, "both gateways count together", func() bool {
		tries++
		key := fmt.Sprintf("X-Client: after %d at %d", tries, time.Now().UnixNano())
		first, err1 := v.try(p.gates[0].addr, "GET", "/limited", key)
		second, err2 := v.try(p.gates[1].addr, "GET", "/limited", key)
		return err1 == nil && err2 == nil &&
			strings.HasPrefix(first.header.Get("RateLimit"), `"test";r=99;`) &&
			strings.HasPrefix(second.header.Get("RateLimit"), `"test";r=98;`)
	})
}

// load asks both gateways without a pause, each time as a new client, so that
// no limit is met.
type load struct {
	t   *testing.T
	end chan struct{}
	wg  sync.WaitGroup

	mu    sync.Mutex
	phase *phase
}

// phase is what answers may be to requests that begin in a time.
type phase struct {
	name    string
	allowed []int
	seen    map[int]int
	count   int
	worst   time.Duration
}

func startLoad(t *testing.T, p *pair) *load {
	l := &load{t: t, end: make(chan struct{})}
	l.expect("start", http.StatusOK)
	for worker := range 8 {
		l.wg.Go(func() {
			v := newVisitor(t, "a.test", "test")
			for i := 0; ; i++ {
				select {
				case <-l.end:
					return
				default:
				}
				l.mu.Lock()
				now := l.phase
				l.mu.Unlock()
				a, err := v.try(p.gates[i%2].addr, "GET", "/limited", fmt.Sprintf("X-Client: %d-%d", worker, i))
				l.note(now, a, err)
			}
		})
	}
	return l
}

// note takes down an answer to a request that began in the phase p. It may be
// what that phase allows, or the one in which it came.
func (l *load) note(p *phase, a *answer, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.t.Errorf("%s: %v", p.name, err)
		return
	}
	p.count++
	p.seen[a.status]++
	p.worst = max(p.worst, a.took)
	if !slices.Contains(p.allowed, a.status) && !slices.Contains(l.phase.allowed, a.status) {
		l.t.Errorf("%s: status %d, want one of %v", p.name, a.status, p.allowed)
	}
	if a.took > slowest {
		l.t.Errorf("%s: an answer took %v", p.name, a.took)
	}
}

// expect begins a phase.
func (l *load) expect(name string, allowed ...int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phase = &phase{name: name, allowed: allowed, seen: map[int]int{}}
}

// await waits until the phase has seen that many answers.
func (l *load) await(answers int) {
	l.t.Helper()
	eventually(l.t, 60*time.Second, fmt.Sprintf("%d answers", answers), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.phase.count >= answers
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t.Logf("%s: %v, the slowest took %v", l.phase.name, l.phase.seen, l.phase.worst.Round(time.Millisecond))
}

func (l *load) stop() {
	close(l.end)
	l.wg.Wait()
}
