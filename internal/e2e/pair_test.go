package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/servers"
)

func replace(text string, pairs ...string) string { return strings.NewReplacer(pairs...).Replace(text) }

// siteOfPair serves two sites from every gateway, with everything shared: one
// Redis, one key ring, one upload folder.
const siteOfPair = `
{
	{GLOBAL}
	gatehouse {
		store redis redis://{REDIS} {
			timeout 1s
		}
		key_ring directory {
			path {SHARED}/keys
		}
	}
}
http://a.test:{PORT} http://b.test:{PORT} {
	session_auth {
		refresh_after {REFRESH}
	}
	reverse_proxy {APP} {
		header_up X-Gateway {NAME}
	}
}
`

// pair is two gateways over one Redis in front of one application.
type pair struct {
	redis *servers.Redis
	gates [2]*gateway
	turn  int
}

func startPair(t testing.TB, config string, pairs ...string) *pair {
	t.Helper()
	p := &pair{redis: servers.StartRedis(t, "--maxmemory-policy", "noeviction")}
	config = replace(config, append(pairs, "{REDIS}", p.redis.Addr, "{SHARED}", t.TempDir())...)
	for i := range p.gates {
		p.gates[i] = startGateway(t, fmt.Sprintf("gate%d", i), config)
	}
	return p
}

// next returns the address of the other gateway than last time.
func (p *pair) next() string {
	p.turn++
	return p.gates[p.turn%2].addr
}

// TestPairSession walks one session through two gateways, every request to the
// other one.
func TestPairSession(t *testing.T) {
	p := startPair(t, siteOfPair, "{APP}", startApp(t), "{REFRESH}", "1s")
	ada := newVisitor(t, "a.test", "first device")
	ada.want(t, http.StatusNoContent, p.next(), "POST", "/sign-in?name=ada")

	first := ada.cookie
	began := time.Now()
	changes := 0
	for i := range 1000 {
		before := ada.cookie
		if got := ada.whoami(t, p.next()); got != "ada" {
			t.Fatalf("request %d: the user is %q, want ada", i, got)
		}
		if ada.cookie != before {
			changes++
		}
	}
	took := time.Since(began)
	t.Logf("1000 requests in %v, %d new tokens", took, changes)
	// A token rotates when it is more than a second old (times are kept in
	// whole seconds or finer), and no sooner.
	if most := int(took/time.Second) + 1; changes > most {
		t.Errorf("the token changed %d times in %v, want at most %d", changes, took, most)
	}

	waitUntilDue(t, time.Second)
	ada.whoami(t, p.next())
	if ada.cookie == first {
		t.Error("the token never changed")
	}

	elsewhere := newVisitor(t, "a.test", "second device")
	elsewhere.want(t, http.StatusNoContent, p.next(), "POST", "/sign-in?name=ada")
	bob := newVisitor(t, "a.test", "third device")
	bob.want(t, http.StatusNoContent, p.next(), "POST", "/sign-in?name=bob")
	copies := []*visitor{ada.with("a.test", ada.cookie), elsewhere.with("a.test", elsewhere.cookie)}

	gate := p.next()
	ada.want(t, http.StatusNoContent, gate, "POST", "/sign-out-everywhere")
	if ada.cookie != "" {
		t.Error("signing out everywhere left the cookie")
	}
	if got := copies[0].whoami(t, gate); got != "" {
		t.Errorf("the gateway that ended the session still accepts its token as %q", got)
	}
	for i, v := range copies {
		for _, g := range p.gates {
			eventually(t, 5*time.Second, fmt.Sprintf("session %d is over at %s", i, g.name), func() bool {
				return v.with("a.test", v.cookie).whoami(t, g.addr) == ""
			})
		}
	}
	if got := bob.whoami(t, p.next()); got != "bob" {
		t.Errorf("another user's session ended too: the user is %q", got)
	}
}

// waitUntilDue lets a token become due that was refreshed now.
func waitUntilDue(t testing.TB, refreshAfter time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), refreshAfter+1100*time.Millisecond)
	defer cancel()
	<-ctx.Done()
}

// TestPairOneRotation shows that fifty requests at once with one due token move
// the session by exactly one generation, whichever gateways they meet.
func TestPairOneRotation(t *testing.T) {
	const refreshAfter = 5 * time.Second
	p := startPair(t, siteOfPair, "{APP}", startApp(t), "{REFRESH}", refreshAfter.String())
	ada := newVisitor(t, "a.test", "device")
	ada.want(t, http.StatusNoContent, p.next(), "POST", "/sign-in?name=ada")

	for round := range 3 {
		waitUntilDue(t, refreshAfter)
		before := generation(t, p.redis)
		cookies := simultaneously(50, func(i int) (string, error) {
			v := ada.with("a.test", ada.cookie)
			a, err := v.try(p.gates[i%2].addr, "GET", "/api/whoami")
			if err != nil {
				return "", err
			}
			if a.status != http.StatusOK || !strings.Contains(string(a.body), `"ada"`) {
				return "", fmt.Errorf("status %d: %s", a.status, a.body)
			}
			set := a.sessionCookies()
			if len(set) > 1 {
				return "", fmt.Errorf("%d session cookies", len(set))
			}
			if len(set) == 1 {
				return set[0].Value, nil
			}
			return "", nil
		})
		sent := map[string]int{}
		for i, c := range cookies {
			if c.err != nil {
				t.Fatalf("round %d, request %d: %v", round, i, c.err)
			}
			if c.value != "" {
				sent[c.value]++
			}
		}
		if got := generation(t, p.redis); got != before+1 {
			t.Errorf("round %d: the session went from generation %d to %d, want one step", round, before, got)
		}
		if len(sent) == 0 {
			t.Fatalf("round %d: nobody got the new token", round)
		}
		t.Logf("round %d: %d of 50 answers carried the new token", round, len(sent))
		for value := range sent { // each of them is good at both gateways
			for _, g := range p.gates {
				v := ada.with("a.test", value)
				if got := v.whoami(t, g.addr); got != "ada" {
					t.Errorf("round %d: a new token is %q at %s", round, got, g.name)
				}
			}
			ada.cookie = value
		}
	}
}

// result is what one of many simultaneous calls gave.
type result[T any] struct {
	value T
	err   error
}

// simultaneously makes n calls that begin together.
func simultaneously[T any](n int, call func(i int) (T, error)) []result[T] {
	results := make([]result[T], n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			results[i].value, results[i].err = call(i)
		})
	}
	close(start)
	wg.Wait()
	return results
}

// TestPairSitesAreApart shows that a token of one site is nothing at another
// that the same gateways serve.
func TestPairSitesAreApart(t *testing.T) {
	p := startPair(t, siteOfPair, "{APP}", startApp(t), "{REFRESH}", "10m")
	ada := newVisitor(t, "a.test", "device")
	ada.want(t, http.StatusNoContent, p.next(), "POST", "/sign-in?name=ada")
	for range 2 {
		gate := p.next()
		if got := ada.with("b.test", ada.cookie).whoami(t, gate); got != "" {
			t.Errorf("a.test's cookie makes the visitor %q at b.test", got)
		}
		stranger := ada.with("b.test", ada.cookie)
		stranger.want(t, http.StatusNoContent, gate, "POST", "/sign-out-everywhere")
		if got := ada.with("a.test", ada.cookie).whoami(t, gate); got != "ada" {
			t.Errorf("signing out at b.test reached a.test: the user is %q", got)
		}
	}
}

// TestPairCommands shows that what an application sends where no command
// belongs changes nothing and reaches nobody, and that a bad command is refused.
func TestPairCommands(t *testing.T) {
	p := startPair(t, siteOfPair, "{APP}", startApp(t), "{REFRESH}", "10m")
	for path, plain := range map[string]string{"/early": "Link", "/trailers": "X-Plain"} {
		request := "GET " + path + " HTTP/1.1\r\nHost: a.test\r\nTE: trailers\r\nConnection: close\r\n\r\n"
		text := raw(t, p.next(), request)
		for line := range strings.Lines(text) {
			if name, _, ok := strings.Cut(line, ":"); ok && reserved(name) {
				t.Errorf("%s: the client got %q", path, line)
			}
			if strings.HasPrefix(line, "Set-Cookie:") {
				t.Errorf("%s: a session began: %q", path, line)
			}
		}
		if !strings.Contains(text, plain+":") {
			t.Errorf("%s: the field %s did not arrive either, so nothing is shown:\n%s", path, plain, text)
		}
	}

	stranger := newVisitor(t, "a.test", "device")
	for _, query := range []string{
		"Gatehouse-Session-Start=nonsense",
		"Gatehouse-Session-Start=%7B%22user%22:%22%22%7D",
		"Gatehouse-Session-Update=%7B%22rotate%22:true%7D", // there is no session
		"Gatehouse-Session-Start=%7B%22user%22:%22u%22%7D&Gatehouse-Session-End=current",
	} {
		a := stranger.want(t, http.StatusBadGateway, p.next(), "POST", "/command?"+query+"&X-Secret=1")
		if a.code() != "bad-session-command" || a.header.Get("X-Secret") != "" || len(a.sessionCookies()) > 0 {
			t.Errorf("%s: got %v %s", query, a.header, a.body)
		}
	}
}

// reserved reports whether a field belongs to the gateway's namespace, however
// it is spelled.
func reserved(name string) bool {
	plain := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(strings.TrimSpace(name)))
	return strings.HasPrefix(plain, "gatehouse-")
}
