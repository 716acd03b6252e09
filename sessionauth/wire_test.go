package sessionauth

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/handler"
)

// wire is a gateway as a real server in front of a real backend, with a proxy
// between them.
type wire struct {
	*gateway
	url    string
	client *http.Client
}

func newWire(t *testing.T, backend http.HandlerFunc, change ...func(*Settings)) *wire {
	t.Helper()
	g := newGateway(t, append(change, func(s *Settings) { s.Site = func(*http.Request) string { return "app.example" } })...)
	b := httptest.NewServer(backend)
	t.Cleanup(b.Close)
	target, _ := url.Parse(b.URL)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, FlushInterval: -1}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	proxy.Transport = transport
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "front")
		g.Middleware(g.route).Wrap(proxy).ServeHTTP(w, r)
	}))
	front.Config.ErrorLog = proxy.ErrorLog
	front.Start()
	t.Cleanup(front.Close)
	own := &http.Transport{}
	t.Cleanup(own.CloseIdleConnections)
	return &wire{gateway: g, url: front.URL, client: &http.Client{Transport: own}}
}

// signInWire starts a session for plain HTTP and returns its cookie.
func (w *wire) signInWire(t *testing.T) string {
	t.Helper()
	r := request("")
	r.TLS = nil
	response, _ := w.do(r, "Gatehouse-Session-Start: "+u1)
	return cookieOf(response)
}

func (w *wire) get(t *testing.T, cookie string, trace *httptrace.ClientTrace) *http.Response {
	t.Helper()
	ctx := t.Context()
	if trace != nil {
		ctx = httptrace.WithClientTrace(ctx, trace)
	}
	r, _ := http.NewRequestWithContext(ctx, "GET", w.url+"/", nil)
	r.Header.Set("Cookie", cookie)
	response, err := w.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

func TestWireInterimResponses(t *testing.T) {
	wr := newWire(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</x>; rel=preload")
		w.Header().Set("Gatehouse-Session-End", "current")
		w.Header().Set("Gatehouse-User", "root")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Gatehouse-Session-End")
		w.Header().Del("Gatehouse-User")
		fmt.Fprint(w, "done")
	})
	cookie := wr.signInWire(t)
	var early []string
	response := wr.get(t, cookie, &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		early = append(early, fmt.Sprint(code, " ", h.Get("Link")))
		for name := range h {
			if IsReserved(name) {
				t.Errorf("%s in an interim response", name)
			}
		}
		return nil
	}})
	body, _ := io.ReadAll(response.Body)
	if len(early) != 1 || early[0] != "103 </x>; rel=preload" || string(body) != "done" || wr.store.size() != 1 {
		t.Errorf("interim %q, body %q, %d records: an interim response counted or got lost", early, body, wr.store.size())
	}
}

func TestInterimKeepsWhatWaits(t *testing.T) {
	g := newGateway(t)
	cookie := g.signIn(u1)
	w := newRecorder()
	g.Middleware(g.route).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Gatehouse-Session-End", "current")
		w.WriteHeader(http.StatusEarlyHints)
		fmt.Fprint(w, "x")
	})).ServeHTTP(w, request(cookie))
	if cookieOf(w) != cleared || g.store.size() != 0 {
		t.Error("a command of the final response was lost with an interim one")
	}
}

func TestWireTrailers(t *testing.T) {
	wr := newWire(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum, Gatehouse-Session-End")
		fmt.Fprint(w, "body")
		w.(http.Flusher).Flush()
		w.Header().Set("X-Sum", "1")
		w.Header().Set("Gatehouse-Session-End", "current")
		w.Header().Set(http.TrailerPrefix+"Gatehouse-User", "root")
		w.Header().Set(http.TrailerPrefix+"X-More", "2")
	})
	response := wr.get(t, wr.signInWire(t), nil)
	_, _ = io.Copy(io.Discard, response.Body)
	for name := range response.Trailer {
		if IsReserved(name) {
			t.Errorf("trailer %s reached the client", name)
		}
	}
	if response.Trailer.Get("X-Sum") != "1" || response.Trailer.Get("X-More") != "2" || wr.store.size() != 1 {
		t.Errorf("trailers %v, %d records", response.Trailer, wr.store.size())
	}
}

func TestWireDropsAStreamingResponse(t *testing.T) {
	cancelled := make(chan struct{})
	wr := newWire(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Gatehouse-Session-Start", `{"user":""}`)
		w.Header().Set("Set-Cookie", "backend=1")
		w.Header().Set("Content-Type", "text/secret")
		w.Header().Set("Trailer", "X-Sum")
		fmt.Fprint(w, strings.Repeat("secret ", 1000))
		w.(http.Flusher).Flush()
		<-r.Context().Done() // sends nothing more and never ends by itself
		close(cancelled)
	})
	response := wr.get(t, "", nil)
	body, _ := io.ReadAll(response.Body)
	if response.StatusCode != 502 || !strings.Contains(string(body), `"bad-session-command"`) || strings.Contains(string(body), "secret") {
		t.Errorf("status %d, body %s", response.StatusCode, body)
	}
	if h := response.Header; h.Get("Set-Cookie") != "" || h.Get("Content-Type") != "application/problem+json" || h.Get("Server") != "front" || len(response.Trailer) > 0 {
		t.Errorf("header %v, trailer %v", h, response.Trailer)
	}
	select {
	case <-cancelled:
	case <-time.After(10 * time.Second):
		t.Error("the backend's transfer was not cancelled")
	}
}

func TestWireDropKeepsItsCookie(t *testing.T) {
	wr := newWire(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Gatehouse-Session-End", "current")
		w.Header().Set("Content-Length", "3")
		fmt.Fprint(w, "bye")
	})
	cookie := wr.signInWire(t)
	wr.store.failWith(errDown)
	response := wr.get(t, cookie, nil)
	body, _ := io.ReadAll(response.Body)
	if response.StatusCode != 503 || !strings.HasPrefix(response.Header.Get("Set-Cookie"), "gatehouse=; Max-Age=0; ") || !strings.Contains(string(body), "session-end-not-durable") {
		t.Errorf("status %d, header %v, body %s", response.StatusCode, response.Header, body)
	}
}

// upgrade is a backend that switches protocols and echoes a line.
func upgrade(fields string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-User: %s\r\n%s\r\n", r.Header.Get("Gatehouse-User"), fields)
		_ = rw.Flush()
		line, err := rw.ReadString('\n')
		if err == nil {
			fmt.Fprintf(rw, "echo %s", line)
			_ = rw.Flush()
		}
	}
}

// handshake opens a WebSocket and returns the response's header, and what the
// echo of a line was.
func (w *wire) handshake(t *testing.T, cookie string) (*http.Response, string, error) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: test browser\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nCookie: %s\r\n\r\n", cookie)
	in := bufio.NewReader(conn)
	response, err := http.ReadResponse(in, nil)
	if err != nil {
		return nil, "", err
	}
	if response.StatusCode != 101 {
		return response, "", nil
	}
	fmt.Fprint(conn, "hello\n")
	line, err := in.ReadString('\n')
	return response, line, err
}

func TestWireUpgrade(t *testing.T) {
	for _, row := range []struct {
		name, fields string
		set          string // how Set-Cookie begins
		left         int
	}{
		{"nothing", "", "", 1},
		{"only end counts", "Gatehouse-Session-Start: {\"user\":\"x\"}\r\nGatehouse-Session-Update: nonsense\r\nGatehouse-Other: 1\r\n", "", 1},
		{"end", "Gatehouse-Session-End: current\r\nGatehouse-Session-Start: {\"user\":\"x\"}\r\n", "gatehouse=;", 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			wr := newWire(t, upgrade(row.fields))
			response, line, err := wr.handshake(t, wr.signInWire(t))
			if err != nil || response.StatusCode != 101 || line != "echo hello\n" {
				t.Fatalf("response %v, line %q, error %v", response, line, err)
			}
			for name := range response.Header {
				if IsReserved(name) {
					t.Errorf("%s reached the client", name)
				}
			}
			if set := response.Header.Get("Set-Cookie"); !strings.HasPrefix(set, row.set) || set != "" && row.set == "" {
				t.Errorf("Set-Cookie %q, want %q", set, row.set)
			}
			if response.Header.Get("X-User") != "u1" || wr.store.size() != row.left {
				t.Errorf("user %q, %d records", response.Header.Get("X-User"), wr.store.size())
			}
		})
	}
	t.Run("a bad end cuts the connection", func(t *testing.T) {
		wr := newWire(t, upgrade("Gatehouse-Session-End: nonsense\r\n"))
		if _, line, err := wr.handshake(t, wr.signInWire(t)); err == nil {
			t.Errorf("the connection works: %q", line)
		}
	})
	t.Run("due: the refreshed cookie comes with the handshake", func(t *testing.T) {
		wr := newWire(t, upgrade(""))
		cookie := wr.signInWire(t)
		wr.clock.advance(11 * time.Minute)
		response, _, err := wr.handshake(t, cookie)
		if err != nil || !strings.HasPrefix(response.Header.Get("Set-Cookie"), "gatehouse="+magic) || wr.store.record(t).Generation != 1 {
			t.Errorf("response %v, error %v", response, err)
		}
	})
}

// TestUpgradeByWriteHeader is the way of proxies that write 101 first and take
// the connection over then: the response can still be replaced.
func TestUpgradeByWriteHeader(t *testing.T) {
	g := newGateway(t)
	for end, code := range map[string]int{"current": 101, "nonsense": 502} {
		cookie := g.signIn(u1)
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Host = "app.example"
			g.Middleware(g.route).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Connection", "Upgrade")
				w.Header().Set("Upgrade", "websocket")
				w.Header().Set("Gatehouse-Session-End", end)
				w.WriteHeader(http.StatusSwitchingProtocols)
				conn, _, err := http.NewResponseController(w).Hijack()
				if code == 502 && !errors.Is(err, errDropped) {
					t.Errorf("Hijack of a dropped response: %v", err)
				}
				if err == nil {
					conn.Close()
				}
			})).ServeHTTP(w, r)
		}))
		wr := &wire{gateway: g, url: front.URL}
		response, _, err := wr.handshake(t, "gatehouse="+strings.TrimPrefix(cookie, cleared))
		if response == nil || response.StatusCode != code {
			t.Errorf("%s: response %v, error %v, want %d", end, response, err, code)
		}
		front.Close()
	}
}

// exotic is a response writer that knows only the basics.
type exotic struct{ http.ResponseWriter }

func TestWriterAbilities(t *testing.T) {
	g := newGateway(t)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = g.Middleware(g.route).ServeHTTP(w, r, handler.Func(func(w http.ResponseWriter, r *http.Request) error {
			rc := http.NewResponseController(w)
			if err := rc.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Errorf("SetWriteDeadline: %v", err)
			}
			if n, err := w.(io.ReaderFrom).ReadFrom(strings.NewReader("read ")); n != 5 || err != nil {
				t.Errorf("ReadFrom: %d, %v", n, err)
			}
			if err := rc.Flush(); err != nil {
				t.Errorf("Flush: %v", err)
			}
			if err := w.(http.Pusher).Push("/x", nil); !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("Push over HTTP/1: %v", err)
			}
			_, err := io.WriteString(w, "written")
			return err
		}))
	}))
	defer front.Close()
	response, err := http.Get(front.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, _ := io.ReadAll(response.Body); string(body) != "read written" {
		t.Errorf("body %q", body)
	}
	http.DefaultClient.CloseIdleConnections()

	g.Middleware(g.route).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, _, err := w.(http.Hijacker).Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Hijack of a writer that cannot: %v", err)
		}
	})).ServeHTTP(exotic{newRecorder()}, request(""))
}

func TestDroppedResponse(t *testing.T) {
	g := newGateway(t)
	serve := func(f http.HandlerFunc) (w *httptest.ResponseRecorder, err error) {
		w = newRecorder()
		w.Header().Set("Server", "s")
		err = g.Middleware(g.route).ServeHTTP(w, request(""), next(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Gatehouse-Session-End", "nonsense")
			w.Header().Set("Server", "backend")
			f(w, r)
		}))
		return w, err
	}
	ways := map[string]http.HandlerFunc{
		"write":  func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")); _, _ = w.Write([]byte("y")) },
		"string": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") },
		"copy":   func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, strings.NewReader("x")) },
		"flush":  func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() },
		"header": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); w.WriteHeader(200) },
		"hijack": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(101); _, _, _ = w.(http.Hijacker).Hijack() },
		"abort":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); panic(http.ErrAbortHandler) },
		"late fields": func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			w.WriteHeader(200)
			h.Set("X-Late", "1")
		},
		"context": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(200)
			<-r.Context().Done()
			if r.Context().Err() == nil {
				t.Error("the context ended without an error")
			}
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			w, err := serve(way)
			wantCode(t, err, "bad-session-command")
			if w.Body.Len() > 0 || w.Flushed || len(w.Header()) != 1 || w.Header().Get("Server") != "s" {
				t.Errorf("header %v, body %q: something of the response is left", w.Header(), w.Body)
			}
		})
	}
	t.Run("another panic goes on", func(t *testing.T) {
		defer func() {
			if v := recover(); v != "boom" {
				t.Errorf("recovered %v", v)
			}
		}()
		_, _ = serve(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); panic("boom") })
	})
	t.Run("many fields before next", func(t *testing.T) {
		w := newRecorder()
		for i := range 20 {
			w.Header().Set(fmt.Sprint("X-", i), "before")
		}
		err := g.Middleware(g.route).ServeHTTP(w, request(""), next(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-3", "after")
			w.Header().Add("X-4", "after")
			w.Header().Set("Gatehouse-Session-End", "nonsense")
			w.WriteHeader(200)
		}))
		wantCode(t, err, "bad-session-command")
		if len(w.Header()) != 20 || w.Header().Get("X-3") != "before" || len(w.Header()["X-4"]) != 1 {
			t.Errorf("header %v", w.Header())
		}
	})
}

func TestAbortPassesOn(t *testing.T) {
	g := newGateway(t)
	defer func() {
		if v := recover(); v != http.ErrAbortHandler {
			t.Errorf("recovered %v, want ErrAbortHandler", v)
		}
	}()
	g.do(request("")) // unaffected
	g.Middleware(g.route).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(200)
		panic(http.ErrAbortHandler)
	})).ServeHTTP(newRecorder(), request(""))
}

func TestExtendedConnect(t *testing.T) {
	g := newGateway(t)
	cookie := g.signIn(u1)
	r := request(cookie)
	r.Method = http.MethodConnect
	r.Header[":protocol"] = []string{"websocket"}
	if w, _ := g.do(r, "Gatehouse-Session-Start: nonsense", "Gatehouse-Session-End: current"); w.Code != 200 || cookieOf(w) != cleared {
		t.Errorf("status %d, cookie %q: want only the end to count", w.Code, cookieOf(w))
	}
	r.Header.Set("Origin", "https://evil.example")
	if w, _ := g.do(r); w.Code != 403 {
		t.Errorf("foreign origin: status %d", w.Code)
	}
}
