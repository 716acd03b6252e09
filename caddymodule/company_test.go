package caddymodule

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// In an error route a request that session_auth refused is one without a
// session: for the matcher, and for placeholders.
func TestErrorRouteOfARefusedRequest(t *testing.T) {
	isolate(t)
	start(t, fmt.Sprintf(`{
		%s
	}
	http://localhost:9080 {
		session_auth {
			require
		}
		respond "in"
		handle_errors {
			@member session
			respond @member "member" 401
			respond "stranger [{http.auth.user.id}][{http.session_auth.state}]" 401
		}
	}`, globals))
	if got := get(t, browser(t), site+"/"); got.status != 401 || got.body != "stranger [][]" {
		t.Errorf("got %d %q", got.status, got.body)
	}
}

// The matcher takes the same dot paths as the placeholders.
func TestSessionMatcherTakesAPath(t *testing.T) {
	isolate(t)
	backend := newSeen(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Gatehouse-Session-Start", `{"user":"ada","claims":{"team":{"name":"red"},"a.b":"dot"}}`)
	})
	start(t, fmt.Sprintf(`{
		%s
	}
	http://localhost:9080 {
		session_auth
		handle /red {
			@red session team.name red
			respond @red "yes"
			respond "no"
		}
		handle /blue {
			@blue session team.name blue
			respond @blue "yes"
			respond "no"
		}
		handle /dot {
			@dot session a.b
			respond @dot "yes"
			respond "no"
		}
		reverse_proxy %s
	}`, globals, backend.addr()))
	c := browser(t)
	get(t, c, site+"/sign-in")
	for path, want := range map[string]string{"/red": "yes", "/blue": "no", "/dot": "yes"} {
		if got := get(t, c, site+path).body; got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// The placeholders name the session's user, not that of another authentication
// in front, and with two cookies the session that the backend sees.
func TestPlaceholdersBesideOtherUsers(t *testing.T) {
	isolate(t)
	backend := newSeen(t, app)
	const hash = "$2a$04$ZZz8j2F0Rfj4PF.EGIIMOuThfZZSazd/k7clF3aBDOXYUb7MgytFO" // of pw
	start(t, fmt.Sprintf(`{
		%s
	}
	http://localhost:9080 {
		basic_auth /basic* {
			bob %s
		}
		session_auth {
			cookie one
		}
		handle /two* {
			session_auth {
				cookie two
			}
			reverse_proxy %[3]s {
				rewrite {query.to}?user={query.user}
				header_up X-User "[{http.auth.user.id}]"
			}
		}
		handle /basic* {
			respond "[{http.auth.user.id}]"
		}
		reverse_proxy %[3]s
	}`, globals, hash, backend.addr()))
	c := browser(t)
	basic := func() string {
		req, _ := http.NewRequest(http.MethodGet, site+"/basic", nil)
		req.SetBasicAuth("bob", "pw")
		for _, cookie := range c.Jar.Cookies(req.URL) {
			req.AddCookie(cookie)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var b [64]byte
		n, _ := res.Body.Read(b[:])
		return string(b[:n])
	}
	if got := basic(); got != "[]" {
		t.Errorf("nobody signed in: %q", got)
	}
	get(t, c, site+"/sign-in?user=ada")
	if got := basic(); got != "[ada]" {
		t.Errorf("ada signed in: %q", got)
	}
	get(t, c, site+"/two?to=/sign-in&user=eve")
	get(t, c, site+"/two?to=/")
	header, _ := backend.last(t)
	if header.Get("Gatehouse-User") != "eve" || header.Get("X-User") != "[eve]" {
		t.Errorf("two cookies: the backend sees %q, the placeholder says %q", header.Get("Gatehouse-User"), header.Get("X-User"))
	}
}

// The limit's fields stand on responses that session_auth writes in place of
// the backend's, and the backend's own do not.
func TestLimitFieldsOnDroppedResponses(t *testing.T) {
	isolate(t)
	backend := newSeen(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("RateLimit", `"backend";r=1;t=1`)
		app(w, r)
	})
	start(t, fmt.Sprintf(`{
		%s
	}
	http://localhost:9080 {
		session_auth
		client_rate_limit {
			zone api {
				key {query.k}
				window 1h
				events 10
			}
		}
		reverse_proxy %s
	}`, globals, backend.addr()))
	got := get(t, browser(t), site+"/bad?k="+rand.Text())
	values := got.header.Values("RateLimit")
	if got.status != 502 || len(values) != 1 || !strings.HasPrefix(values[0], `"api";r=9;`) || got.header.Get("RateLimit-Policy") == "" {
		t.Errorf("got %d %v", got.status, got.header)
	}
	if strings.Contains(fmt.Sprint(got.header), "leak") {
		t.Errorf("the backend's fields got through: %v", got.header)
	}
}
