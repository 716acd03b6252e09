package e2e

import (
	"net/http"
	"slices"
	"testing"
	"time"
)

// siteOfOutage has two sites that differ in what they do without the store.
const siteOfOutage = `
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
http://strict.test:{PORT} {
	session_auth {
		refresh_after 2s
	}
	reverse_proxy {APP}
}
http://patient.test:{PORT} {
	session_auth {
		refresh_after 2s
		on_store_failure accept_stale 10m
	}
	reverse_proxy {APP}
}
http://calm.test:{PORT} {
	session_auth {
		refresh_after 10m
	}
	reverse_proxy {APP}
}
`

// TestSessionsWithoutStore pauses Redis: nobody is signed out, tokens that are
// not due go on, due ones get what their site says, and afterwards all is as
// before.
func TestSessionsWithoutStore(t *testing.T) {
	p := startPair(t, siteOfOutage, "{APP}", startApp(t))
	signIn := func(host string) *visitor {
		v := newVisitor(t, host, "device")
		v.want(t, http.StatusNoContent, p.next(), "POST", "/sign-in?name=ada")
		return v
	}
	strict, patient := signIn("strict.test"), signIn("patient.test")
	others := sessionKeys(t, p.redis)
	calm := signIn("calm.test")
	calmKey := slices.DeleteFunc(sessionKeys(t, p.redis), func(key string) bool { return slices.Contains(others, key) })
	waitUntilDue(t, 2*time.Second)
	if err := p.redis.Pause(); err != nil {
		t.Fatal(err)
	}

	cookie := strict.cookie
	for range 4 {
		gate := p.next()
		if got := calm.whoami(t, gate); got != "ada" {
			t.Errorf("a token that is not due is %q", got)
		}
		if got := patient.whoami(t, gate); got != "ada" {
			t.Errorf("with accept_stale a due token is %q", got)
		}
		a := strict.want(t, http.StatusServiceUnavailable, gate, "GET", "/api/whoami")
		if a.code() != "session-store-unavailable" || a.header.Get("Retry-After") == "" {
			t.Errorf("a due token got %q, Retry-After %q", a.code(), a.header.Get("Retry-After"))
		}
		if a.took > slowest {
			t.Errorf("the refusal took %v", a.took)
		}
		if strict.cookie != cookie {
			t.Fatal("the outage changed the cookie")
		}
		stranger := newVisitor(t, "strict.test", "device")
		if got := stranger.whoami(t, gate); got != "" {
			t.Errorf("a stranger is %q", got)
		}
		if a := stranger.want(t, http.StatusServiceUnavailable, gate, "POST", "/sign-in?name=eve"); len(a.sessionCookies()) > 0 {
			t.Error("a session that was not stored has a cookie")
		}
	}

	// Signing out: at once here, at the other gateway once the store is back.
	token := calm.cookie
	gate := p.next()
	a := calm.want(t, http.StatusServiceUnavailable, gate, "POST", "/sign-out")
	if a.code() != "session-end-not-durable" || calm.cookie != "" {
		t.Errorf("signing out without the store: %q, cookie kept: %t", a.code(), calm.cookie != "")
	}
	if got := calm.with("calm.test", token).whoami(t, gate); got != "" {
		t.Errorf("this gateway still takes the ended session for %q", got)
	}

	if err := p.redis.Resume(); err != nil {
		t.Fatal(err)
	}
	for _, v := range []*visitor{strict, patient} {
		eventually(t, 20*time.Second, v.host+" has its session again", func() bool {
			return v.do(t, p.next(), "GET", "/api/whoami").status == http.StatusOK && v.whoami(t, p.next()) == "ada"
		})
	}
	eventually(t, 30*time.Second, "the sign-out is stored", func() bool {
		return !slices.Contains(sessionKeys(t, p.redis), calmKey[0])
	})
}
