package caddymodule

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// load adapts a Caddyfile and makes it the running configuration.
func load(caddyfile string) error {
	out, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), nil)
	if err != nil {
		return err
	}
	return caddy.Load(out, true)
}

// validate does what caddy validate does.
func validate(caddyfile string) error {
	out, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), nil)
	if err != nil {
		return err
	}
	var config caddy.Config
	if err := json.Unmarshal(out, &config); err != nil {
		return err
	}
	return caddy.Validate(&config)
}

// browser keeps cookies and does not follow redirects.
func browser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

type answer struct {
	status int
	header http.Header
	body   string
}

func get(t *testing.T, c *http.Client, rawURL string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, rawURL, nil)
	if err != nil {
		t.Fatal(err)
	}
	return do(t, c, r)
}

// do sends a request. While a reload closes the old listener, which shares the
// port with the new one, the system may reset a connection before it is made:
// then nothing was sent, and it is tried again.
func do(t *testing.T, c *http.Client, r *http.Request) answer {
	t.Helper()
	res, err := c.Do(r)
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" && errors.Is(err, syscall.ECONNRESET) {
		res, err = c.Do(r)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(body)}
}

func (a answer) code() string {
	var doc struct{ Code string }
	_ = json.Unmarshal([]byte(a.body), &doc)
	return doc.Code
}

// app answers /sign-in with a command and everything else with who it thinks is
// there.
func app(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/sign-in":
		w.Header().Set("Gatehouse-Session-Start", `{"user":"`+r.URL.Query().Get("user")+`","claims":{"role":"admin","teams":["a","b"]}}`)
	case "/sign-out":
		w.Header().Set("Gatehouse-Session-End", "current")
	case "/bad":
		w.Header().Set("Gatehouse-Session-Start", `{"user":1}`)
		w.Header().Set("Set-Cookie", "leak=1")
		w.Header().Set("ETag", `"leak"`)
	}
	fmt.Fprintf(w, "user=%s state=%s", r.Header.Get("Gatehouse-User"), r.Header.Get("Gatehouse-Session-State"))
}

const site = "http://localhost:9080"

func TestSessionThroughCaddy(t *testing.T) {
	isolate(t)
	backend := newSeen(t, app)
	start(t, fmt.Sprintf(`{
		%s
	}
	http://localhost:9080 {
		session_auth
		handle /admin* {
			@admin session role admin
			respond @admin "user {http.auth.user.id} role {http.auth.user.role} state {http.session_auth.state}"
			respond "no" 403
		}
		handle /placeholder {
			respond "[{http.auth.user.id}][{http.session_auth.id}]"
		}
		reverse_proxy %s
	}`, globals, backend.addr()))
	c := browser(t)
	if got := get(t, c, site+"/placeholder").body; got != "[][]" {
		t.Errorf("anonymous placeholders: %q", got)
	}
	if got := get(t, c, site+"/admin"); got.status != 403 {
		t.Errorf("anonymous admin: %d", got.status)
	}
	get(t, c, site+"/sign-in?user=ada")
	if got := get(t, c, site+"/").body; got != "user=ada state=active" {
		t.Errorf("after sign-in: %q", got)
	}
	if got := get(t, c, site+"/admin").body; got != "user ada role admin state active" {
		t.Errorf("placeholders and matcher: %q", got)
	}
	header, _ := backend.last(t)
	if strings.Contains(header.Get("Cookie"), "gatehouse") {
		t.Errorf("the backend got the session cookie: %q", header.Get("Cookie"))
	}
	bad := get(t, c, site+"/bad")
	if bad.status != 502 || bad.code() != "bad-session-command" || bad.header.Get("Etag") != "" || strings.Contains(fmt.Sprint(bad.header), "leak") {
		t.Errorf("bad command: %d %v %s", bad.status, bad.header, bad.body)
	}
	get(t, c, site+"/sign-out")
	if got := get(t, c, site+"/").body; got != "user= state=" {
		t.Errorf("after sign-out: %q", got)
	}
}

// A matcher that is evaluated before session_auth ran is an error, not "no
// session".
func TestSessionMatcherTooEarly(t *testing.T) {
	isolate(t)
	start(t, fmt.Sprintf(`{
		%s
	}
	http://localhost:9080 {
		@member session
		rewrite @member /x
		session_auth
		respond "here"
	}`, globals))
	if got := get(t, browser(t), site+"/"); got.status != 500 {
		t.Errorf("got %d %q, want 500", got.status, got.body)
	}
}

// An error route answers only errors of its own site and status.
func TestErrorRoutes(t *testing.T) {
	isolate(t)
	start(t, fmt.Sprintf(`{
		%s
	}
	http://a.localhost:9080 {
		session_auth {
			require
		}
		respond "in"
		handle_errors 401 {
			respond "custom {http.gatehouse.error_code} {err.status_code}" 401
		}
	}
	http://b.localhost:9080 {
		session_auth {
			require
		}
		respond "in"
		handle_errors 404 {
			respond "not this one" 404
		}
	}
	http://c.localhost:9080 {
		session_auth {
			require redirect https://id.example/login
		}
		respond "in"
	}`, globals))
	c := &http.Client{
		Transport:     &http.Transport{Proxy: nil, DialContext: dialGateway},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if got := get(t, c, "http://a.localhost:9080/"); got.status != 401 || got.body != "custom session-required 401" {
		t.Errorf("own error route: %d %q", got.status, got.body)
	}
	got := get(t, c, "http://b.localhost:9080/")
	if got.status != 401 || got.code() != "session-required" || got.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("no error route for it: %d %q %v", got.status, got.body, got.header)
	}
	var doc map[string]any
	if err := json.Unmarshal([]byte(got.body), &doc); err != nil || doc["request_id"] == "" || doc["type"] != "urn:gatehouse:problem:session-required" {
		t.Errorf("problem document: %v %v", doc, err)
	}
	req, _ := http.NewRequest(http.MethodGet, "http://c.localhost:9080/page?x=1", nil)
	req.Header.Set("Sec-Fetch-Mode", "navigate")
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if want := "https://id.example/login?return_to=" + url.QueryEscape("/page?x=1"); res.StatusCode != 303 || res.Header.Get("Location") != want {
		t.Errorf("redirect: %d %q, want %q", res.StatusCode, res.Header.Get("Location"), want)
	}
}

func TestLimitThroughCaddy(t *testing.T) {
	isolate(t)
	config := func(events int, extra string) string {
		return fmt.Sprintf(`{
		%s
	}
	http://localhost:9080 {
		session_auth
		client_rate_limit {
			zone api {
				key {query.k}
				window 1h
				events %d
			}
		}
		%s
		respond "ok"
		handle_errors 429 {
			respond "limited by {http.client_rate_limit.zone}" 429
		}
	}`, globals, events, extra)
	}
	start(t, config(3, ""))
	c := browser(t)
	client := "/?k=" + rand.Text() // counts outlive configurations, and so test runs
	for i := range 3 {
		got := get(t, c, site+client)
		if want := fmt.Sprintf(`"api";r=%d;t=`, 2-i); got.status != 200 || !strings.HasPrefix(got.header.Get("RateLimit"), want) {
			t.Errorf("request %d: %d %q, want %q", i, got.status, got.header.Get("RateLimit"), want)
		}
	}
	got := get(t, c, site+client)
	if got.status != 429 || got.body != "limited by api" || got.header.Get("Retry-After") == "" || got.header.Get("RateLimit-Policy") != `"api";q=3;w=3600` {
		t.Errorf("refusal: %d %q %v", got.status, got.body, got.header)
	}
	// A reload keeps counts, also with other events, and one that fails too.
	if err := load(config(5, "")); err != nil {
		t.Fatal(err)
	}
	if err := load(config(5, "session_auth {\n lifetime 5h\n}")); err == nil {
		t.Fatal("two settings for one cookie were accepted")
	}
	if got := get(t, c, site+client); got.status != 200 || !strings.HasPrefix(got.header.Get("RateLimit"), `"api";r=1;`) {
		t.Errorf("after the reload: %d %q", got.status, got.header.Get("RateLimit"))
	}
	if got := get(t, c, site+client+"-other"); got.status != 200 {
		t.Errorf("another client: %d", got.status)
	}
}

// Sites are compared in lower case, also those that a configuration names.
func TestSitesAreLowerCase(t *testing.T) {
	isolate(t)
	limit := func(site string) string {
		return fmt.Sprintf(`client_rate_limit {
				site %s
				zone shared {
					key {query.k}
					window 1h
					events 5
				}
			}`, site)
	}
	start(t, fmt.Sprintf(`{
		%s
	}
	http://localhost:9080 {
		handle /upper {
			%s
			respond "ok"
		}
		handle /lower {
			%s
			respond "ok"
		}
	}`, globals, limit("Shop.Example"), limit("shop.example")))
	c, client := browser(t), "?k="+rand.Text()
	get(t, c, site+"/upper"+client)
	if got := get(t, c, site+"/lower"+client).header.Get("RateLimit"); !strings.HasPrefix(got, `"shared";r=3;`) {
		t.Errorf("got %q, want one count for both", got)
	}
}

// Validation provisions everything and leaves no file behind.
func TestValidateLeavesNothing(t *testing.T) {
	isolate(t)
	data := os.Getenv("XDG_DATA_HOME")
	err := validate(`{
		admin off
		auto_https off
	}
	http://localhost:9080 {
		session_auth
		client_rate_limit {
			zone a {
				window 1m
				events 5
			}
		}
		chunked_upload /files*
		respond "ok"
	}`)
	if err != nil {
		t.Fatal(err)
	}
	_ = filepath.WalkDir(data, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("validation left %s", path)
		}
		return nil
	})
}

// A ring that is there but broken refuses the start.
func TestBrokenRingRefusesTheStart(t *testing.T) {
	isolate(t)
	keys := t.TempDir()
	if err := os.WriteFile(filepath.Join(keys, "revocation-x.xml"), []byte("<revocation"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := validate(fmt.Sprintf(`{
		admin off
		auto_https off
		gatehouse {
			key_ring directory {
				path %s
			}
		}
	}
	http://localhost:9080 {
		session_auth
	}`, keys))
	if err == nil || !strings.Contains(err.Error(), "key_ring") {
		t.Errorf("got %v", err)
	}
}

// A reload makes a revocation count at once, and refuses a ring that has become
// unreadable.
func TestReloadReadsTheRing(t *testing.T) {
	isolate(t)
	keys := t.TempDir()
	backend := newSeen(t, app)
	config := func(extra string) string {
		return fmt.Sprintf(`{
		%s
		gatehouse {
			key_ring directory {
				path %s
			}
		}
	}
	http://localhost:9080 {
		session_auth
		%s
		reverse_proxy %s
	}`, globals, keys, extra, backend.addr())
	}
	start(t, config(""))
	c := browser(t)
	get(t, c, site+"/sign-in?user=ada")
	if got := get(t, c, site+"/").body; got != "user=ada state=active" {
		t.Fatalf("after sign-in: %q", got)
	}
	revocation := filepath.Join(keys, "revocation-all.xml")
	broken := []byte("<revocation")
	if err := os.WriteFile(revocation, broken, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := load(config("respond /a a")); err == nil || !strings.Contains(err.Error(), "key_ring") {
		t.Errorf("broken revocation: %v", err)
	}
	if got := get(t, c, site+"/").body; got != "user=ada state=active" {
		t.Errorf("after the refused reload: %q", got)
	}
	whole := []byte(`<revocation version="1"><revocationDate>2999-01-01T00:00:00Z</revocationDate><key id="*" /></revocation>`)
	if err := os.WriteFile(revocation, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := load(config("respond /a b")); err != nil {
		t.Fatal(err)
	}
	if got := get(t, c, site+"/").body; got != "user= state=" {
		t.Errorf("after the revocation: %q", got)
	}
}

// Contradictions between handlers are refused at start.
func TestContradictionsAreRefused(t *testing.T) {
	isolate(t)
	for name, body := range map[string]string{
		"cookie": `http://a.localhost:9080 {
			handle /x {
				session_auth {
					lifetime 1h
				}
				respond "x"
			}
			handle {
				session_auth
				respond "y"
			}
		}`,
		"zone": `http://a.localhost:9080 {
			handle /x {
				client_rate_limit {
					zone z {
						window 1h
						events 5
					}
				}
				respond "x"
			}
			handle {
				client_rate_limit {
					zone z {
						window 1m
						events 5
					}
				}
				respond "y"
			}
		}`,
	} {
		t.Run(name, func(t *testing.T) {
			err := load("{" + globals + "}\n" + body)
			if err == nil || !strings.Contains(err.Error(), "different settings") {
				t.Errorf("got %v", err)
			}
			// On two hosts the same is no contradiction.
			err = load("{" + globals + "}\n" + strings.Replace(body, "handle {", "}\nhttp://b.localhost:9080 {\nhandle {", 1))
			if err != nil {
				t.Errorf("on two hosts: %v", err)
			}
		})
	}
}

// A site with a name takes its requests for itself: a catch-all site beside it
// never meets them, on one server or on two.
func TestCatchAllSiteMayDiffer(t *testing.T) {
	isolate(t)
	body := `http://a.localhost:9080 {
		session_auth {
			lifetime 5h
		}
		respond "a"
	}
	:9080 {
		session_auth
		respond "all"
	}`
	if err := load("{" + globals + "}\n" + body); err != nil {
		t.Error(err)
	}
	err := load("{" + globals + "}\n" + body + `
	http://a.localhost:9081 {
		session_auth
		respond "the same site on another port"
	}`)
	if err == nil || !strings.Contains(err.Error(), "a.localhost") {
		t.Errorf("one site on two ports: %v", err)
	}
}

// A secret that is missing stops the start with its name, never its value.
func TestMissingSecretStopsTheStart(t *testing.T) {
	isolate(t)
	err := validate(`{
		admin off
		gatehouse {
			store redis {
				addresses 127.0.0.1:6379
				password {env.GATEHOUSE_TEST_UNSET}
			}
		}
	}
	http://localhost:9080 {
		session_auth
	}`)
	if err == nil || !strings.Contains(err.Error(), "env.GATEHOUSE_TEST_UNSET") {
		t.Errorf("got %v", err)
	}
	err = validate(`{
		admin off
		gatehouse {
			store redis redis://user:hunter2@
		}
	}
	http://localhost:9080 {
		session_auth
	}`)
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
}

// Every complete Caddyfile in the documentation adapts.
func TestDocsAdapt(t *testing.T) {
	files, err := filepath.Glob("../docs/*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("no documentation: %v", err)
	}
	files = append(files, "../README.md")
	count := 0
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, block := range bytes.Split(raw, []byte("```caddyfile\n"))[1:] {
			text, _, ok := bytes.Cut(block, []byte("```"))
			if !ok {
				t.Errorf("%s: block %d has no end", file, i+1)
			}
			if _, err := adapt(t, string(text)); err != nil {
				t.Errorf("%s: block %d: %v\n%s", file, i+1, err, text)
			}
			count++
		}
	}
	for _, file := range []string{"../Caddyfile.example", "../docker/Caddyfile"} {
		raw, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is missing", file)
			continue
		}
		if _, err := adapt(t, string(raw)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		count++
	}
	if count < 10 {
		t.Errorf("only %d Caddyfiles found", count)
	}
}

// An error route has a session_auth of its own: that of the route that failed
// is over when it runs.
func TestSessionInErrorRoutes(t *testing.T) {
	isolate(t)
	backend := newSeen(t, app)
	start(t, fmt.Sprintf(`{
		%s
	}
	http://localhost:9080 {
		session_auth
		error /sign-in "later" 404
		reverse_proxy %[2]s
		handle_errors {
			session_auth
			reverse_proxy %[2]s
		}
	}`, globals, backend.addr()))
	c := browser(t)
	get(t, c, site+"/sign-in?user=ada")
	if got := get(t, c, site+"/").body; got != "user=ada state=active" {
		t.Errorf("after a sign-in by an error route: %q", got)
	}
}

// A session_auth within another adds to it: the session is the same, and its
// commands count once.
func TestNestedSessions(t *testing.T) {
	isolate(t)
	backend := newSeen(t, app)
	start(t, fmt.Sprintf(`{
		%s
	}
	http://localhost:9080 {
		session_auth
		handle /inner/* {
			session_auth {
				require
			}
			respond "user {http.auth.user.id}"
		}
		handle {
			session_auth {
				cookie other
			}
			reverse_proxy %s
		}
	}`, globals, backend.addr()))
	c := browser(t)
	if got := get(t, c, site+"/inner/x"); got.status != 401 {
		t.Errorf("inner without a session: %d", got.status)
	}
	get(t, c, site+"/sign-in?user=ada") // of the cookie "other", which is nearer to the backend
	if got := get(t, c, site+"/").body; got != "user=ada state=active" {
		t.Errorf("the nearer of two cookies: %q", got)
	}
	if got := get(t, c, site+"/inner/x"); got.status != 401 {
		t.Errorf("the other cookie counted: %d %q", got.status, got.body)
	}
}

// cookieFrom signs in at a path and returns the cookie's name and value.
func cookieFrom(t *testing.T, path string) string {
	t.Helper()
	signedIn := get(t, browser(t), site+path)
	cookie, _, _ := strings.Cut(signedIn.header.Get("Set-Cookie"), ";")
	if cookie == "" {
		t.Fatalf("no cookie from %s: %d %s", path, signedIn.status, signedIn.body)
	}
	return cookie
}

// with fetches a path with a Cookie field.
func with(t *testing.T, cookie, path string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, site+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Cookie", cookie)
	return do(t, browser(t), r)
}

// What the backend, placeholders and error routes see is the session of the
// session_auth that is nearest to them, also where that one found none: never
// what another one or a handler in front has written.
func TestNearestSessionCounts(t *testing.T) {
	isolate(t)
	backend := newSeen(t, app)
	start(t, fmt.Sprintf(`{
		%s
	}
	http://localhost:9080 {
		handle_path /ada/* {
			session_auth
			reverse_proxy %[2]s
		}
		handle_path /bob/* {
			session_auth {
				cookie other
			}
			reverse_proxy %[2]s
		}
		handle_path /front/* {
			route {
				request_header Gatehouse-User eve
				session_auth
				reverse_proxy %[2]s
			}
		}
		handle_path /vars/* {
			route {
				vars gatehouse on
				session_auth
				vars gatehouse off
				reverse_proxy %[2]s
			}
		}
		handle {
			route {
				session_auth
				session_auth {
					cookie other
				}
				error /fail "x" 404
				error /again "x" 410
				reverse_proxy %[2]s
			}
		}
		handle_errors 404 {
			respond "user={http.auth.user.id} header={http.request.header.Gatehouse-User}"
		}
		handle_errors 410 {
			session_auth
			reverse_proxy %[2]s
		}
	}`, globals, backend.addr()))
	ada, bob := cookieFrom(t, "/ada/sign-in?user=ada"), cookieFrom(t, "/bob/sign-in?user=bob")
	for _, c := range []struct{ what, cookie, path, want string }{
		{"both", ada + "; " + bob, "/", "user=bob state=active"},
		{"the outer alone", ada, "/", "user= state="},
		{"the inner unreadable", ada + "; other=junk", "/", "user= state="},
		{"an error route", ada + "; " + bob, "/fail", "user=bob header=bob"},
		{"an error route with a session_auth", ada, "/again", "user= state="},
		{"a handler in front", "", "/front/", "user= state="},
		{"a variable of a like name", ada, "/vars/", "user=ada state=active"},
	} {
		if got := with(t, c.cookie, c.path).body; got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// A dropped response is cut at once where it is an event stream, whose body may
// be silent, and at its next byte else.
func TestDroppedResponsesEnd(t *testing.T) {
	isolate(t)
	ended := make(chan string, 2)
	backend := newSeen(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Gatehouse-Session-Start", `{"user":1}`)
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		if r.URL.Path == "/bytes" {
			for r.Context().Err() == nil {
				fmt.Fprintln(w, "secret")
				_ = http.NewResponseController(w).Flush()
			}
		}
		<-r.Context().Done()
		ended <- r.URL.Path
	})
	start(t, fmt.Sprintf(`{
		%s
	}
	http://localhost:9080 {
		session_auth
		reverse_proxy %s
	}`, globals, backend.addr()))
	for path, accept := range map[string]string{"/bytes": "*/*", "/silent": "text/event-stream"} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, site+path, nil)
		r.Header.Set("Accept", accept)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 502 || strings.Contains(string(body), "secret") {
			t.Errorf("%s: %d %s", path, res.StatusCode, body)
		}
		select {
		case <-ended:
		case <-ctx.Done():
			t.Errorf("%s: the backend's response did not end", path)
		}
	}
}
