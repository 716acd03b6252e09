package sessionauth

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/handler"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

func TestStartGivesASession(t *testing.T) {
	g := newGateway(t)
	w, saw := g.do(request(""), "Gatehouse-Session-Start: "+u1, "Cache-Control: public", "Expires: tomorrow",
		"Cdn-Cache-Control: max-age=9", "Surrogate-Control: x", "Cloudflare-Cdn-Cache-Control: y", "Set-Cookie: other=1", "Set-Cookie: __Host-gatehouse=forged")
	if saw.user() != "" || !saw.session.Anonymous() || saw.session.Site != "app.example" {
		t.Errorf("first request: user %q, session %+v, want anonymous of app.example", saw.user(), saw.session)
	}
	h := w.Header()
	if got := h.Values("Cache-Control"); !slices.Equal(got, []string{"no-store"}) {
		t.Errorf("Cache-Control %q, want no-store", got)
	}
	for _, name := range []string{"Expires", "Cdn-Cache-Control", "Surrogate-Control", "Cloudflare-Cdn-Cache-Control", "Gatehouse-Session-Start"} {
		if h.Get(name) != "" {
			t.Errorf("%s is left in the response", name)
		}
	}
	lines := h["Set-Cookie"]
	if len(lines) != 2 || lines[0] != "other=1" || !strings.HasSuffix(lines[1], "; Path=/; HttpOnly; Secure; SameSite=Lax") {
		t.Errorf("Set-Cookie %q, want other=1 and the session for the browser's run", lines)
	}

	_, saw = g.do(request("a=1; " + cookieOf(w) + "; b=2"))
	if saw.user() != "u1" || saw.header.Get("Gatehouse-Session-State") != "active" {
		t.Errorf("identity %v, want u1, active", saw.header)
	}
	claims, _ := base64.RawURLEncoding.DecodeString(saw.header.Get("Gatehouse-Claims"))
	if string(claims) != `{"role":"admin"}` || string(saw.session.Claims) != string(claims) {
		t.Errorf("claims %s", claims)
	}
	if id := saw.header.Get("Gatehouse-Session"); len(id) != 22 || id != saw.session.ID {
		t.Errorf("public id %q, session %q", id, saw.session.ID)
	}
	if got := saw.header.Get("Cookie"); got != "a=1; b=2" {
		t.Errorf("backend's Cookie %q, want a=1; b=2", got)
	}
	if got := g.observer.takeEvents(); !slices.Equal(got, []string{"started u1"}) {
		t.Errorf("events %q", got)
	}
	if n := g.store.count("get"); n != 0 {
		t.Errorf("%d look-ups for a fresh token, want 0", n)
	}
}

func TestFreshAsksNothingAndSetsNothing(t *testing.T) {
	g := newGateway(t)
	cookie := g.signIn(u1)
	g.clock.advance(10 * time.Minute)
	w, saw := g.do(request(cookie), "Cache-Control: public")
	if saw.user() != "u1" || cookieOf(w) != "" || w.Header().Get("Cache-Control") != "public" {
		t.Errorf("user %q, header %v", saw.user(), w.Header())
	}
	if g.store.count("get")+g.store.count("refresh") != 0 {
		t.Error("the store was asked")
	}
	if got := g.observer.takeLines(); !slices.Equal(got, []string{"fresh"}) {
		t.Errorf("observed %q, want fresh", got)
	}
}

func TestDueRotatesOnce(t *testing.T) {
	g := newGateway(t)
	old := g.signIn(`{"user":"u1","persistent":true}`)
	g.clock.advance(11 * time.Minute)

	// All are looked up before any answers: one wins, the others send nothing.
	const n = 8
	var looked sync.WaitGroup
	looked.Add(n)
	var mu sync.Mutex
	var issued []string
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			w := httptest.NewRecorder()
			g.Middleware(g.route).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				looked.Done()
				looked.Wait()
				fmt.Fprint(w, "ok")
			})).ServeHTTP(w, request(old))
			mu.Lock()
			defer mu.Unlock()
			if c := cookieOf(w); c != "" {
				issued = append(issued, w.Header().Get("Set-Cookie"))
			}
			if w.Code != 200 {
				t.Errorf("status %d", w.Code)
			}
		})
	}
	wg.Wait()
	if len(issued) != 1 || !strings.Contains(issued[0], "; Max-Age=2592000;") {
		t.Fatalf("cookies issued: %q, want one of 30 days", issued)
	}
	if r := g.store.record(t); r.Generation != 1 || !r.Refreshed.Equal(g.clock.now()) || r.Device != "test browser" || r.IP != "192.0.2.1" {
		t.Errorf("record %+v, want generation 1 of now", r)
	}
	if got := g.store.count("get"); got != n {
		t.Errorf("%d look-ups of %d requests", got, n)
	}

	// The old token in grace: the present one again, no write.
	g.store.count("refresh")
	w, saw := g.do(request(old))
	if saw.user() != "u1" || cookieOf(w) == "" || g.store.count("refresh") != 0 {
		t.Errorf("old token in grace: user %q, cookie %q", saw.user(), cookieOf(w))
	}
	again := cookieOf(w)
	w, saw = g.do(request(again))
	if saw.session.Generation != 1 || cookieOf(w) != "" {
		t.Errorf("reissued token: generation %d", saw.session.Generation)
	}
	// From another device the session is ended for both.
	r := request(old)
	r.Header.Set("User-Agent", "thief")
	g.observer.takeLines()
	g.observer.takeEvents()
	w, saw = g.do(r)
	if saw.user() != "" || cookieOf(w) != cleared || g.store.size() != 0 {
		t.Errorf("other device: user %q, cookie %q, %d records", saw.user(), cookieOf(w), g.store.size())
	}
	if got := g.observer.takeEvents(); !slices.Equal(got, []string{"ended u1 generation-mismatch"}) {
		t.Errorf("events %q", got)
	}
	if w, saw = g.do(request(again)); saw.user() != "" || cookieOf(w) != cleared {
		t.Errorf("the other holder is still signed in here")
	}
}

func TestNoRotation(t *testing.T) {
	for name, change := range map[string]func(*http.Request) *http.Request{
		"prefetch": func(r *http.Request) *http.Request {
			r.Header.Set("Sec-Purpose", "prefetch;prerender")
			return r
		},
		"client gone at response start": func(r *http.Request) *http.Request {
			ctx, cancel := context.WithCancel(r.Context())
			return r.WithContext(context.WithValue(ctx, goneKey{}, cancel))
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t)
			cookie := g.signIn(u1)
			g.clock.advance(11 * time.Minute)
			w := httptest.NewRecorder()
			g.Middleware(g.route).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Gatehouse-User") != "u1" {
					t.Error("not signed in")
				}
				if cancel, ok := r.Context().Value(goneKey{}).(context.CancelFunc); ok {
					cancel()
				}
				fmt.Fprint(w, "ok")
			})).ServeHTTP(w, change(request(cookie)))
			if cookieOf(w) != "" || g.store.count("refresh") != 0 {
				t.Errorf("rotated: %q", cookieOf(w))
			}
		})
	}
}

type goneKey struct{}

func TestRefreshFaults(t *testing.T) {
	for name, row := range map[string]struct {
		before func(*gateway)
		want   string
	}{
		"store fails":   {func(g *gateway) { g.store.failWith(errDown) }, "refresh-failed"},
		"session ended": {func(g *gateway) { g.store.records = map[sessionstore.Key]sessionstore.Record{} }, "anonymous-ended"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t)
			cookie := g.signIn(u1)
			g.clock.advance(11 * time.Minute)
			w := httptest.NewRecorder()
			g.Middleware(g.route).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				row.before(g)
				fmt.Fprint(w, "body")
			})).ServeHTTP(w, request(cookie))
			if w.Code != 200 || w.Body.String() != "body" || len(w.Header()["Set-Cookie"]) != 0 {
				t.Errorf("status %d, body %q, header %v: want the backend's response without a cookie", w.Code, w.Body, w.Header())
			}
			if got := g.observer.takeLines(); !slices.Contains(got, row.want) {
				t.Errorf("observed %q, want %s", got, row.want)
			}
		})
	}
}

func TestStoreDown(t *testing.T) {
	g := newGateway(t, func(s *Settings) { s.AcceptStale = 5 * time.Minute })
	cookie := g.signIn(u1)
	g.store.failWith(errDown)
	if _, saw := g.do(request(cookie)); saw.user() != "u1" {
		t.Error("a fresh token needs the store")
	}
	g.clock.advance(11 * time.Minute)
	if w, saw := g.do(request(cookie)); saw.header.Get("Gatehouse-Session-State") != "stale" || saw.session.State != StateStale || cookieOf(w) != "" {
		t.Errorf("bridged: %v", saw.header)
	}
	g.route.ForceValidate = true
	if w, saw := g.do(request(cookie)); w.Code != 503 || saw.asked {
		t.Errorf("forced: status %d", w.Code)
	}
	g.route.ForceValidate = false
	g.clock.advance(5 * time.Minute)
	w, saw := g.do(request(cookie))
	if w.Code != 503 || saw.asked || w.Header().Get("Retry-After") == "" || len(w.Header()["Set-Cookie"]) != 0 ||
		!strings.Contains(w.Body.String(), "session-store-unavailable") || strings.Contains(w.Body.String(), "down") {
		t.Errorf("status %d, header %v, body %s", w.Code, w.Header(), w.Body)
	}
	g.store.failWith(nil)
	if w, saw := g.do(request(cookie)); saw.user() != "u1" || !strings.HasPrefix(cookieOf(w), cleared+magic) {
		t.Errorf("after the outage: user %q, cookie %q", saw.user(), cookieOf(w))
	}
}

func TestUnreadableCookies(t *testing.T) {
	g := newGateway(t)
	good := g.signIn(u1)
	other := g.signIn(`{"user":"u2"}`)
	otherRing := newGateway(t).signIn(u1)
	value := func(pair string) string { return strings.TrimPrefix(pair, cleared) }
	tampered := cleared + value(good)[:len(value(good))-2] + "AA"
	for _, row := range []struct {
		name, cookie, user, set, forwarded string
	}{
		{"garbage with the magic is cleared", cleared + "CfDJ8garbage", "", cleared, ""},
		{"a tampered token is cleared", tampered, "", cleared, ""},
		{"a value without the magic is left alone", cleared + "abc; x=y", "", "", cleared + "abc; x=y"},
		{"an unknown key is not cleared", otherRing, "", "", ""},
		{"bad then good", tampered + "; " + good, "u1", "", ""},
		{"good then bad", good + "; " + tampered, "u1", "", ""},
		{"the same twice", good + "; " + good, "u1", "", ""},
		{"two sessions count as none", good + "; " + other, "", cleared, ""},
		{"the fifth is not tried", strings.Repeat(cleared+"CfDJ8x; ", 4) + good, "", cleared, ""},
		{"the fourth is", strings.Repeat(cleared+"CfDJ8x; ", 3) + good, "u1", "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			w, saw := g.do(request(row.cookie))
			if saw.user() != row.user || cookieOf(w) != row.set || saw.header.Get("Cookie") != row.forwarded {
				t.Errorf("user %q, Set-Cookie %q, forwarded %q", saw.user(), cookieOf(w), saw.header.Get("Cookie"))
			}
		})
	}
	if g.store.count("get") != 0 {
		t.Error("the store was asked")
	}
}

func TestTokenIsOfOneSiteAndName(t *testing.T) {
	g := newGateway(t)
	cookie := g.signIn(u1)
	r := request(cookie)
	r.Host = "other.example"
	if w, saw := g.do(r); saw.user() != "" || cookieOf(w) != cleared {
		t.Error("a token is good at another site")
	}
	r = request("gatehouse=" + strings.TrimPrefix(cookie, cleared))
	r.TLS = nil
	if w, saw := g.do(r); saw.user() != "" || cookieOf(w) != "gatehouse=" {
		t.Errorf("a token is good under another name: %q", cookieOf(w))
	}
	r = request(cookie)
	r.Host = "APP.example:8443"
	if _, saw := g.do(r); saw.user() != "u1" {
		t.Error("the site depends on case or port")
	}
}

func TestRingAway(t *testing.T) {
	repository := new(memoryRing)
	g := newGateway(t, func(s *Settings) { s.Ring = newRing(t, repository) })
	cookie := g.signIn(u1)
	repository.err = errors.New("not now: /srv/keys")
	away := newGateway(t, func(s *Settings) { s.Ring = newRing(t, repository) })
	w, saw := away.do(request(cookie))
	if w.Code != 503 || saw.asked || !strings.Contains(w.Body.String(), "key-ring-unavailable") || strings.Contains(w.Body.String(), "srv") || len(w.Header()["Set-Cookie"]) > 0 {
		t.Errorf("status %d, %s", w.Code, w.Body)
	}
	if w, saw := away.do(request("")); w.Code != 200 || !saw.asked {
		t.Error("requests without a token need the ring")
	}
	if w, _ := away.do(request(""), "Gatehouse-Session-Start: "+u1); w.Code != 503 || away.store.count("start") != 0 {
		t.Errorf("start without a ring: status %d", w.Code)
	}
}

func TestSpoofedIdentity(t *testing.T) {
	g := newGateway(t)
	r := request("")
	for _, name := range []string{"Gatehouse-User", "gatehouse_user", "GATEHOUSE~Claims", "Gatehouse"} {
		r.Header[name] = []string{"root"}
	}
	_, saw := g.do(r, "gatehouse_x: 1", "Gatehouse-Anything: 2")
	for name := range saw.header {
		if IsReserved(name) {
			t.Errorf("%s reached the backend", name)
		}
	}
	r = request("")
	r.Header.Set("Connection", "close, gatehouse_user")
	if w, saw := g.do(r); w.Code != 400 || saw.asked {
		t.Errorf("Connection that names the identity: status %d", w.Code)
	}
}

func TestResponseNamespace(t *testing.T) {
	g := newGateway(t)
	g.route.Commands = 0
	w, _ := g.do(request(""), "Gatehouse-Anything: 2", "gatehouse_Y: 3", "X: y")
	for name := range w.Header() {
		if IsReserved(name) {
			t.Errorf("%s reached the client", name)
		}
	}
	if w.Code != 200 || w.Header().Get("X") != "y" {
		t.Errorf("status %d", w.Code)
	}
}

func TestLargeClaims(t *testing.T) {
	g := newGateway(t)
	claims := `{"list":"` + strings.Repeat("x", 4000) + `"}`
	w, _ := g.do(request(""), `Gatehouse-Session-Start: {"user":"`+strings.Repeat("ü", 127)+`","claims":`+claims+`}`)
	cookie := cookieOf(w)
	if n := len(w.Header().Get("Set-Cookie")); n >= maxSetCookie || n == 0 {
		t.Fatalf("Set-Cookie of %d bytes", n)
	}
	for _, step := range []struct {
		advance time.Duration
		gets    int
	}{{0, 0}, {10 * time.Minute, 0}, {time.Minute, 1}} {
		g.clock.advance(step.advance)
		w, saw := g.do(request(cookie))
		if string(saw.session.Claims) != claims {
			t.Fatalf("claims of %d bytes", len(saw.session.Claims))
		}
		if n := g.store.count("get"); n != step.gets {
			t.Errorf("%d look-ups, want %d", n, step.gets)
		}
		if c := cookieOf(w); c != "" {
			cookie = c
		}
	}
	// Another gateway has to ask once.
	other := newGateway(t, func(s *Settings) { *s = g.settings; s.Shared = nil })
	for _, want := range []int{1, 0} {
		if _, saw := other.do(request(cookie)); string(saw.session.Claims) != claims || g.store.count("get") != want {
			t.Errorf("another gateway: claims of %d bytes", len(saw.session.Claims))
		}
	}
	// The largest claims that fit stay in the token.
	fits := g.signIn(`{"user":"u","claims":{"x":"` + strings.Repeat("x", 2600) + `"}}`)
	third := newGateway(t, func(s *Settings) { *s = g.settings; s.Shared = nil })
	if _, saw := third.do(request(fits)); saw.user() != "u" || g.store.count("get") != 0 {
		t.Error("claims of 2600 bytes were left in the store")
	}
}

func TestExpiry(t *testing.T) {
	g := newGateway(t)
	cookie := g.signIn(u1)
	g.clock.advance(24 * time.Hour)
	for range 2 {
		if w, saw := g.do(request(cookie)); saw.user() != "" || cookieOf(w) != cleared {
			t.Errorf("expired session: user %q, cookie %q", saw.user(), cookieOf(w))
		}
	}
	if got := g.observer.takeEvents(); !slices.Equal(got, []string{"ended u1 expired"}) {
		t.Errorf("events %q, want one", got)
	}
	if n := g.store.count("get"); n != 1 {
		t.Errorf("%d look-ups for a dead cookie in a row, want 1", n)
	}
}

func TestAbsoluteEnd(t *testing.T) {
	g := newGateway(t, func(s *Settings) { s.MaxLifetime = 30 * time.Minute })
	cookie := g.signIn(u1)
	for range 2 {
		g.clock.advance(11 * time.Minute)
		w, saw := g.do(request(cookie))
		if saw.user() == "" {
			t.Fatal("ended early")
		}
		cookie = cookieOf(w)
	}
	g.clock.advance(8 * time.Minute)
	if _, saw := g.do(request(cookie)); saw.user() != "" {
		t.Error("a fresh token outlives the absolute end")
	}
}

func TestForceValidate(t *testing.T) {
	g := newGateway(t)
	cookie := g.signIn(u1)
	g.route.ForceValidate = true
	if w, saw := g.do(request(cookie)); saw.user() != "u1" || cookieOf(w) != "" || g.store.count("get") != 1 || g.store.count("refresh") != 0 {
		t.Error("forced: want one look-up and no cookie")
	}
	_, _ = g.store.End(t.Context(), "app.example", sessionstore.End{User: "u1"})
	if w, saw := g.do(request(cookie)); saw.user() != "" || cookieOf(w) != cleared {
		t.Error("forced: an ended session is accepted")
	}
}

func TestErrorOfNext(t *testing.T) {
	g := newGateway(t)
	cookie := g.signIn(u1)
	g.clock.advance(11 * time.Minute)
	w := httptest.NewRecorder()
	boom := errors.New("boom")
	err := g.Middleware(g.route).ServeHTTP(w, request(cookie), handler.Func(func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Gatehouse-Session-End", "current")
		return boom
	}))
	if err != boom {
		t.Errorf("error %v, want that of next", err)
	}
	if !strings.HasPrefix(cookieOf(w), cleared+magic) || g.store.size() != 1 || w.Header().Get("Gatehouse-Session-End") != "" {
		t.Errorf("header %v: want a refreshed cookie, the command dropped", w.Header())
	}
}

func TestNothingWritten(t *testing.T) {
	g := newGateway(t)
	w := httptest.NewRecorder()
	err := g.Middleware(g.route).ServeHTTP(w, request(""), next(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Gatehouse-Session-Start", u1)
	}))
	if err != nil || !strings.HasPrefix(cookieOf(w), cleared+magic) {
		t.Errorf("error %v, header %v", err, w.Header())
	}
	err = g.Middleware(g.route).ServeHTTP(httptest.NewRecorder(), request(""), next(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Gatehouse-Session-Start", "{")
	}))
	wantCode(t, err, "bad-session-command")
}

func TestEarlierValuesDoNotCount(t *testing.T) {
	g := newGateway(t)
	w := httptest.NewRecorder()
	w.Header().Set("Gatehouse-Session-Start", u1)
	w.Header().Set("Server", "s")
	g.Middleware(g.route).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {})).ServeHTTP(w, request(""))
	if cookieOf(w) != "" || g.store.size() != 0 || w.Header().Get("Server") != "s" {
		t.Errorf("header %v", w.Header())
	}
}

func TestRequire(t *testing.T) {
	g := newGateway(t)
	g.route.Require = true
	g.route.Redirect = func(*http.Request) string { return "/login" }
	nav := request("")
	nav.Header.Set("Sec-Fetch-Mode", "navigate")
	if w, saw := g.do(nav); w.Code != 303 || w.Header().Get("Location") != "/login?return_to=%2Fpage%3Fx%3D1" || saw.asked {
		t.Errorf("navigation: status %d, Location %q", w.Code, w.Header().Get("Location"))
	}
	if w, saw := g.do(request("")); w.Code != 401 || saw.asked || !strings.Contains(w.Body.String(), `"session-required"`) || w.Header().Get("Www-Authenticate") == "" {
		t.Errorf("program: status %d, %s", w.Code, w.Body)
	}
	if w, _ := g.do(request(cleared + "CfDJ8x")); w.Code != 401 || cookieOf(w) != cleared {
		t.Errorf("unreadable cookie: status %d, cookie %q", w.Code, cookieOf(w))
	}
	if _, saw := g.do(httptest.NewRequest("POST", "https://app.example/login", nil)); !saw.asked {
		t.Error("the redirect's own path requires a session")
	}
	preflight := httptest.NewRequest("OPTIONS", "https://app.example/page", nil)
	preflight.Header.Set("Origin", "https://evil.example")
	preflight.Header.Set("Access-Control-Request-Method", "PUT")
	if _, saw := g.do(preflight); !saw.asked {
		t.Error("a preflight requires a session")
	}
	g.route.Require = false
	cookie := g.signIn(u1)
	g.route.Require = true
	if _, saw := g.do(request(cookie)); saw.user() != "u1" {
		t.Error("signed in and refused")
	}
}

func TestOriginInService(t *testing.T) {
	g := newGateway(t)
	cookie := g.signIn(u1)
	cross := func(method string) *http.Request {
		r := request(cookie)
		r.Method = method
		r.Header.Set("Origin", "https://evil.example")
		return r
	}
	if w, saw := g.do(cross("POST")); w.Code != 403 || saw.asked || !strings.Contains(w.Body.String(), "origin-not-allowed") {
		t.Errorf("POST: status %d", w.Code)
	}
	w, saw := g.do(cross("GET"), "Gatehouse-Session-End: user")
	if w.Code != 200 || saw.user() != "" || saw.header.Get("Cookie") != "" || len(w.Header()["Set-Cookie"]) != 0 || g.store.size() != 1 {
		t.Errorf("GET: status %d, user %q, header %v: want it served as anonymous, with no effect on the session", w.Code, saw.user(), w.Header())
	}
	r := cross("GET")
	r.Header.Add("Origin", "https://app.example")
	if w, _ := g.do(r); w.Code != 400 {
		t.Errorf("two origins: status %d", w.Code)
	}
}

func TestSeveralOnOneRequest(t *testing.T) {
	g := newGateway(t)
	cookie := g.signIn(u1)
	g.clock.advance(time.Minute)
	chain := func(outer, inner Route, backend http.HandlerFunc) func(*http.Request) *httptest.ResponseRecorder {
		return func(r *http.Request) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			in := g.Middleware(inner)
			err := g.Middleware(outer).ServeHTTP(w, r, handler.Func(func(w http.ResponseWriter, r *http.Request) error {
				return in.ServeHTTP(w, r, next(backend))
			}))
			if err != nil {
				w.Code = 599
				w.Body.WriteString(err.Error())
			}
			return w
		}
	}
	all := Route{Commands: AllCommands}
	asked := false
	serve := chain(all, Route{Require: true, ForceValidate: true}, func(w http.ResponseWriter, r *http.Request) {
		asked = true
		if FromContext(r.Context()).User != "u1" || r.Header.Get("Gatehouse-User") != "u1" {
			t.Error("the inner middleware lost the session")
		}
		w.Header().Set("Gatehouse-Session-Update", `{"claims":{}}`)
	})
	if w := serve(request(cookie)); !asked || w.Code != 200 || g.store.count("get") != 1 || g.store.record(t).ClaimsVersion != 2 {
		t.Errorf("status %d %s: want one forced look-up and the outer commands", w.Code, w.Body)
	}
	if w := serve(request("")); w.Code != 599 || w.Body.String() != "session-required" {
		t.Errorf("inner require: %s", w.Body)
	}
	_, _ = g.store.End(t.Context(), "app.example", sessionstore.End{User: "u1"})
	if w := serve(request(cookie)); w.Body.String() != "session-required" || cookieOf(w) != cleared {
		t.Errorf("inner force_validate of an ended session: %s, cookie %q", w.Body, cookieOf(w))
	}

	cookie = g.signIn(u1)
	hosts := func(list ...string) func(*http.Request) []string { return func(*http.Request) []string { return list } }
	var user string
	serve = chain(Route{AnyOrigin: true}, Route{AllowedOrigins: hosts("*.good.example")}, func(w http.ResponseWriter, r *http.Request) {
		user = r.Header.Get("Gatehouse-User")
	})
	for origin, want := range map[string]string{"https://a.good.example": "u1", "https://evil.example": ""} {
		r := request(cookie)
		r.Header.Set("Origin", origin)
		if serve(r); user != want {
			t.Errorf("inner allowed_origins, %s: user %q, want %q", origin, user, want)
		}
	}
	r := request(cookie)
	r.Method = "POST"
	r.Header.Set("Origin", "https://evil.example")
	if w := serve(r); w.Body.String() != "origin-not-allowed" {
		t.Errorf("inner allowed_origins: %s", w.Body)
	}
}

func TestSameSiteNoneNeedsHTTPS(t *testing.T) {
	g := newGateway(t, func(s *Settings) { s.SameSite = http.SameSiteNoneMode })
	r := request("")
	r.TLS = nil
	if w, saw := g.do(r); w.Code != 500 || saw.asked {
		t.Errorf("status %d, want 500", w.Code)
	}
	if w, _ := g.do(request(""), "Gatehouse-Session-Start: "+u1); !strings.Contains(w.Header().Get("Set-Cookie"), "; SameSite=None") {
		t.Errorf("Set-Cookie %q", w.Header().Get("Set-Cookie"))
	}
}

func TestSettings(t *testing.T) {
	ring := newRing(t, new(memoryRing))
	for _, row := range []struct {
		name string
		s    Settings
		ok   bool
	}{
		{"defaults", Settings{}, true},
		{"__Host- with a domain", Settings{Cookie: "__Host-x", Domain: "example.com"}, false},
		{"__host- with a path", Settings{Cookie: "__host-x", Path: "/app"}, false},
		{"__Host- with path /", Settings{Cookie: "__Host-x", Path: "/"}, true},
		{"__Secure- with a domain", Settings{Cookie: "__Secure-x", Domain: ".Example.com"}, true},
		{"bad name", Settings{Cookie: "a b"}, false},
		{"bad path", Settings{Path: "app"}, false},
		{"path that adds an attribute", Settings{Path: "/;Domain=x"}, false},
		{"bad domain", Settings{Domain: "a;b"}, false},
		{"negative lifetime", Settings{Lifetime: -1}, false},
		{"endless", Settings{MaxLifetime: -1}, true},
		{"negative accept_stale", Settings{AcceptStale: -1}, false},
		{"huge", Settings{Grace: 1<<63 - 1}, false},
	} {
		row.s.Ring, row.s.Store = ring, newTestStore(newClock())
		m, err := NewManager(row.s)
		if (err == nil) != row.ok {
			t.Errorf("%s: error %v", row.name, err)
		}
		if m != nil {
			m.Close()
		}
	}
	if _, err := NewManager(Settings{Ring: ring}); err == nil {
		t.Error("no store: want an error")
	}
	if _, err := NewManager(Settings{Store: newTestStore(newClock())}); err == nil {
		t.Error("no ring: want an error")
	}
	if (Settings{SameSite: http.SameSiteNoneMode}).ValidateScheme(false) == nil {
		t.Error("same_site none over HTTP: want an error")
	}
}

func TestCookieNames(t *testing.T) {
	for _, row := range []struct {
		s     Settings
		https bool
		want  string
	}{
		{Settings{}, true, "__Host-gatehouse"},
		{Settings{}, false, "gatehouse"},
		{Settings{Domain: "example.com"}, true, "__Secure-gatehouse"},
		{Settings{Path: "/app"}, true, "__Secure-gatehouse"},
		{Settings{Domain: "example.com"}, false, "gatehouse"},
		{Settings{Cookie: "sid"}, true, "sid"},
	} {
		g := newGateway(t, func(s *Settings) { s.Cookie, s.Domain, s.Path = row.s.Cookie, row.s.Domain, row.s.Path })
		if got := g.cookieName(row.https); got != row.want {
			t.Errorf("%+v https=%v: %q, want %q", row.s, row.https, got, row.want)
		}
	}
	g := newGateway(t, func(s *Settings) { s.Domain = ".Example.com" })
	r := request("")
	r.Host = "sub.example.com"
	w, saw := g.do(r, "Gatehouse-Session-Start: "+u1)
	if saw.session.Site != "example.com" || !strings.Contains(w.Header().Get("Set-Cookie"), "; Domain=example.com; ") {
		t.Errorf("site %q, Set-Cookie %q", saw.session.Site, w.Header().Get("Set-Cookie"))
	}
}

func TestReloadKeepsWhatIsShared(t *testing.T) {
	shared := NewShared()
	defer shared.Close()
	g := newGateway(t, func(s *Settings) { s.Shared = shared })
	cookie := g.signIn(u1)
	g.do(request(cookie), "Gatehouse-Session-End: current")
	after := newGateway(t, func(s *Settings) { *s = g.settings })
	if _, saw := after.do(request(cookie)); saw.user() != "" {
		t.Error("an ended session is accepted after a reload")
	}
}

func TestRevokedKeyEndsCachedTokens(t *testing.T) {
	fake := &fakeRing{}
	g := newGateway(t)
	m, err := newManager(g.settings, fake)
	if err != nil {
		t.Fatal(err)
	}
	g.Manager = m
	cookie := g.signIn(u1)
	for range 2 {
		if _, saw := g.do(request(cookie)); saw.user() != "u1" {
			t.Fatal("not signed in")
		}
	}
	if fake.opened != 1 {
		t.Errorf("token opened %d times, want 1", fake.opened)
	}
	fake.epoch, fake.err = 1, dataprotection.ErrUnreadable
	if _, saw := g.do(request(cookie)); saw.user() != "" {
		t.Error("a cached token outlives its key")
	}
}

// fakeRing seals by writing hex.
type fakeRing struct {
	epoch  uint64
	err    error
	opened int
}

func (f *fakeRing) Epoch() uint64                 { return f.epoch }
func (f *fakeRing) protector(...string) protector { return f }
func (f *fakeRing) Seal(_ context.Context, p []byte) (string, error) {
	return magic + base64.RawURLEncoding.EncodeToString(p), f.err
}

func (f *fakeRing) Open(_ context.Context, token string) (string, error) {
	f.opened++
	p, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(token, magic))
	return string(p), errors.Join(err, f.err)
}
