package caddymodule

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddytest"
)

// globals begin every Caddyfile for caddytest.
const globals = `
	skip_install_trust
	admin localhost:2999
	http_port 9080
	https_port 9443
	persist_config off
	auto_https off
`

// seen is a backend that remembers what reached it.
type seen struct {
	*httptest.Server
	mu       sync.Mutex
	headers  []http.Header
	trailers []http.Header
}

func newSeen(t *testing.T, answer http.HandlerFunc) *seen {
	t.Helper()
	s := new(seen)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		s.mu.Lock()
		s.headers = append(s.headers, r.Header.Clone())
		s.trailers = append(s.trailers, r.Trailer.Clone())
		s.mu.Unlock()
		if answer != nil {
			answer(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *seen) addr() string { return s.Listener.Addr().String() }

func (s *seen) last(t *testing.T) (header, trailer http.Header) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.headers) == 0 {
		t.Fatal("nothing reached the backend")
	}
	return s.headers[len(s.headers)-1], s.trailers[len(s.trailers)-1]
}

func (s *seen) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.headers)
}

// raw sends bytes to the gateway and returns all that comes back.
func raw(t *testing.T, request string) string {
	t.Helper()
	c, err := net.Dial("tcp", "127.0.0.1:9080")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(bufio.NewReader(c))
	if err != nil {
		t.Fatalf("reading the answer: %v (%q)", err, out)
	}
	return string(out)
}

func reserved(h http.Header) []string {
	var found []string
	for name := range h {
		if folded := strings.Map(func(r rune) rune {
			if r >= 'A' && r <= 'Z' {
				return r + 32
			}
			if (r < 'a' || r > 'z') && (r < '0' || r > '9') {
				return '-'
			}
			return r
		}, name); strings.HasPrefix(folded, "gatehouse-") || folded == "gatehouse" {
			found = append(found, name)
		}
	}
	return found
}

// isolate gives a test a data directory of its own.
func isolate(t *testing.T) {
	t.Helper()
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
}

// start makes a Caddyfile the running configuration until the test's end. Its
// listeners go then: a connection that the next test made while both were open
// could land on the old one and be reset.
func start(t *testing.T, caddyfile string) *caddytest.Tester {
	t.Helper()
	t.Cleanup(func() {
		if err := caddy.Load([]byte(`{"admin":{"listen":"localhost:2999","config":{"persist":false}}}`), true); err != nil {
			t.Errorf("ending the configuration: %v", err)
		}
	})
	tester := caddytest.NewTester(t)
	tester.InitServer(caddyfile, "caddyfile")
	return tester
}

var spellings = []string{
	"Gatehouse-User", "gatehouse-user", "GATEHOUSE-USER", "GateHouse-User", "Gatehouse_User", "gatehouse_user",
	"Gatehouse.User", "Gatehouse~User", "Gatehouse!User", "Gatehouse#User", "Gatehouse$User", "Gatehouse%User",
	"Gatehouse&User", "Gatehouse'User", "Gatehouse*User", "Gatehouse+User", "Gatehouse^User", "Gatehouse`User",
	"Gatehouse|User", "Gatehouse-Session-State", "Gatehouse-Claims", "Gatehouse",
}

// The namespace is clean on every site of a server with a handler of ours,
// whatever the nesting, and on its error routes.
func TestGuardCleansRequests(t *testing.T) {
	isolate(t)
	backend := newSeen(t, nil)
	start(t, fmt.Sprintf(`{
		%s
	}
	http://a.test:9080 {
		handle /deep/* {
			route {
				handle_path /deep/* {
					session_auth
					reverse_proxy %[2]s
				}
			}
		}
		handle /fail {
			error 418
		}
		handle_errors 418 {
			reverse_proxy %[2]s
		}
	}
	http://b.test:9080 {
		reverse_proxy %[2]s
	}`, globals, backend.addr()))
	for _, target := range []string{"a.test /deep/x", "b.test /x", "a.test /fail"} {
		host, path, _ := strings.Cut(target, " ")
		for _, name := range spellings {
			before := backend.count()
			raw(t, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n%s: forged\r\nTransfer-Encoding: chunked\r\nTrailer: %s, X-Other\r\n\r\n2\r\nhi\r\n0\r\n%s: forged\r\nX-Other: fine\r\n\r\n", path, host, name, name, name))
			if backend.count() == before {
				t.Errorf("%s with %s did not reach the backend", target, name)
				continue
			}
			header, trailer := backend.last(t)
			for _, got := range append(reserved(header), reserved(trailer)...) {
				if got == "Gatehouse-User" && header.Get(got) == "" {
					continue
				}
				t.Errorf("%s: %s reached the backend as %s", target, name, got)
			}
		}
	}
	before := backend.count()
	answer := raw(t, "GET /x HTTP/1.1\r\nHost: b.test\r\nConnection: close, Gatehouse-User\r\n\r\n")
	if !strings.HasPrefix(answer, "HTTP/1.1 400 ") || !strings.Contains(answer, "bad-connection-header") || backend.count() != before {
		t.Errorf("Connection naming a reserved field: %q, backend asked: %v", answer, backend.count() != before)
	}
}

// Commands never reach the client: in the response, interim responses, trailers.
func TestGuardCleansResponses(t *testing.T) {
	isolate(t)
	backend := newSeen(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Gatehouse-Session-End", "current")
		w.Header().Set("Link", "</x>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Gatehouse_Session-End", "current")
		w.Header().Set("Trailer", "Gatehouse-Session-End, X-Sum")
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "body")
		w.(http.Flusher).Flush()
		w.Header().Set("Gatehouse-Session-End", "current")
		w.Header().Set("X-Sum", "1")
		w.Header().Set(http.TrailerPrefix+"Gatehouse-Session-Start", `{"user":"x"}`)
	})
	start(t, fmt.Sprintf(`{
		%s
	}
	http://a.test:9080 {
		handle /auth/* {
			session_auth
			reverse_proxy %[2]s
		}
		handle /off/* {
			session_auth {
				commands off
			}
			reverse_proxy %[2]s
		}
		handle /plain/* {
			reverse_proxy %[2]s
		}
		handle /handled/* {
			reverse_proxy %[2]s {
				@ok status 200
				handle_response @ok {
					copy_response_headers
					respond "handled"
				}
			}
		}
		handle /fail {
			error 418
		}
		handle_errors 418 {
			reverse_proxy %[2]s
		}
	}
	http://b.test:9080 {
		reverse_proxy %[2]s
	}`, globals, backend.addr()))
	for _, target := range []string{"a.test /plain/x", "a.test /off/x", "a.test /handled/x", "a.test /fail", "b.test /x", "a.test /auth/x"} {
		host, path, _ := strings.Cut(target, " ")
		answer := raw(t, fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nTE: trailers\r\n\r\n", path, host))
		if strings.Contains(strings.ToLower(strings.ReplaceAll(answer, "_", "-")), "gatehouse-session") {
			t.Errorf("%s: a command reached the client:\n%s", target, answer)
		}
		if !strings.Contains(answer, "body") && !strings.Contains(answer, "handled") && !strings.Contains(answer, "bad-session-command") {
			t.Errorf("%s: no body:\n%s", target, answer)
		}
	}
}

// A handler of ours in error routes alone, or in a named route alone, comes too
// late for the guard: the configuration is refused, unless the guard stands
// there by hand.
func TestGuardRefusesWhatItCannotGuard(t *testing.T) {
	isolate(t)
	for name, caddyfile := range map[string]string{
		"error routes": `http://a.test:9080 {
			error 418
			handle_errors {
				session_auth
				respond "x"
			}
		}`,
		"named route": `&(named) {
			session_auth
			respond "x"
		}
		http://a.test:9080 {
			invoke named
		}`,
	} {
		t.Run(name, func(t *testing.T) {
			err := load("{" + globals + "}\n" + caddyfile)
			if err == nil || !strings.Contains(err.Error(), "gatehouse_guard") {
				t.Errorf("got %v, want a refusal that names gatehouse_guard", err)
			}
			if err := load("{" + globals + "}\n" + strings.Replace(caddyfile, "http://a.test:9080 {", ":9080 {\n gatehouse_guard\n", 1)); err != nil {
				t.Errorf("with the guard by hand: %v", err)
			}
		})
	}
}

// dialGateway connects to the gateway whatever the host's name.
func dialGateway(ctx context.Context, network, _ string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, "127.0.0.1:9080")
}
