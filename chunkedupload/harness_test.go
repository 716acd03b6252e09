package chunkedupload

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore/directory"
	"github.com/gatehouse-gateway/gatehouse/internal/handler"
	"github.com/gatehouse-gateway/gatehouse/internal/problem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// delivered is one request that reached the backend.
type delivered struct {
	method, host, uri string
	header            http.Header
	body              []byte
	length            int64
}

// backend is the application behind the handler.
type backend struct {
	mu     sync.Mutex
	got    []delivered
	answer http.HandlerFunc // called after the body was read
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	b.mu.Lock()
	b.got = append(b.got, delivered{r.Method, r.Host, r.URL.RequestURI(), r.Header.Clone(), body, r.ContentLength})
	answer := b.answer
	b.mu.Unlock()
	if answer == nil {
		w.WriteHeader(http.StatusCreated)
		return
	}
	answer(w, r)
}

func (b *backend) all() []delivered {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]delivered(nil), b.got...)
}

func (b *backend) set(answer http.HandlerFunc) { b.mu.Lock(); b.answer = answer; b.mu.Unlock() }

// gateway is a handler on a socket. Requests name their user in X-User.
type gateway struct {
	t       *testing.T
	h       *Handler
	srv     *httptest.Server
	backend *backend
}

func newGateway(t *testing.T, store uploadstore.Store, change func(*Config)) *gateway {
	t.Helper()
	g := &gateway{t: t, backend: &backend{}}
	g.h = newHandler(t, store, change)
	plain := g.h.Wrap(g.backend)
	g.srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name := range r.Header { // what the guard does
			if strings.HasPrefix(name, "Gatehouse-") {
				r.Header.Del(name)
			}
		}
		if user := r.Header.Get("X-User"); user != "" {
			r.Header.Set("Gatehouse-User", user) // what session_auth does
		}
		plain.ServeHTTP(w, r)
	}))
	t.Cleanup(g.srv.Close)
	return g
}

func newHandler(t *testing.T, store uploadstore.Store, change func(*Config)) *Handler {
	t.Helper()
	cfg := Config{
		Store: store, Base: "/files", MaxSize: 64 << 20, Wait: 5 * time.Second,
		Owner: func(r *http.Request) string { return r.Header.Get("X-User") },
	}
	if change != nil {
		change(&cfg)
	}
	h, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// answer is a response that was read to its end.
type answer struct {
	*http.Response
	text string
}

func (a *answer) want(t *testing.T, status int) *answer {
	t.Helper()
	if a.StatusCode != status {
		t.Fatalf("%s %s: status %d %q, want %d", a.Request.Method, a.Request.URL.Path, a.StatusCode, a.text, status)
	}
	return a
}

func (a *answer) wantHeader(t *testing.T, name, want string) *answer {
	t.Helper()
	if got := a.Header.Get(name); got != want {
		t.Errorf("%s %s: %s is %q, want %q", a.Request.Method, a.Request.URL.Path, name, got, want)
	}
	return a
}

func (a *answer) wantCode(t *testing.T, code string) *answer {
	t.Helper()
	if !strings.Contains(a.text, `"code":"`+code+`"`) {
		t.Errorf("%s %s: body %q, want code %s", a.Request.Method, a.Request.URL.Path, a.text, code)
	}
	return a
}

// send sends a tus request; fields are name, value pairs, an empty value takes
// the field away.
func (g *gateway) send(method, path string, body io.Reader, fields ...string) *answer {
	g.t.Helper()
	a, err := g.try(g.t.Context(), method, path, body, fields...)
	if err != nil {
		g.t.Fatal(err)
	}
	return a
}

func (g *gateway) try(ctx context.Context, method, path string, body io.Reader, fields ...string) (*answer, error) {
	if !strings.HasPrefix(path, "http") {
		path = g.srv.URL + path
	}
	r, err := http.NewRequestWithContext(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Tus-Resumable", "1.0.0")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", tusMediaType)
	}
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
		if fields[i+1] == "" {
			r.Header.Del(fields[i])
		}
	}
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return &answer{resp, string(text)}, err
}

// create makes an upload and returns its path.
func (g *gateway) create(length int, fields ...string) string {
	g.t.Helper()
	a := g.send("POST", "/files", nil, append([]string{"Upload-Length", formatInt(int64(length))}, fields...)...)
	a.want(g.t, http.StatusCreated)
	return a.Header.Get("Location")
}

func (g *gateway) patch(path string, offset int, body []byte, fields ...string) *answer {
	g.t.Helper()
	return g.send("PATCH", path, bytes.NewReader(body), append([]string{"Upload-Offset", formatInt(int64(offset))}, fields...)...)
}

func (g *gateway) head(path string, fields ...string) *answer {
	g.t.Helper()
	return g.send("HEAD", path, nil, fields...)
}

// begin opens a PATCH with a raw connection, so that it can be cut anywhere.
func (g *gateway) begin(path string, offset, length int, body []byte) net.Conn {
	g.t.Helper()
	c, err := net.Dial("tcp", g.srv.Listener.Addr().String())
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { c.Close() })
	head := "PATCH " + path + " HTTP/1.1\r\nHost: " + g.srv.Listener.Addr().String() + "\r\nTus-Resumable: 1.0.0\r\nContent-Type: " + tusMediaType +
		"\r\nUpload-Offset: " + formatInt(int64(offset)) + "\r\nContent-Length: " + formatInt(int64(length)) + "\r\n\r\n"
	if _, err := c.Write(append([]byte(head), body...)); err != nil {
		g.t.Fatal(err)
	}
	return c
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// payload is n bytes that differ from place to place.
func payload(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

func idOf(path string) string { return path[strings.LastIndex(path, "/")+1:] }

// eachStore runs a test over every store there is.
func eachStore(t *testing.T, test func(*testing.T, uploadstore.Store)) {
	eachStoreAt(t, func(t *testing.T, open func(func() time.Time) uploadstore.Store) { test(t, open(time.Now)) })
}

// eachStoreAt is eachStore for tests that move the clock and open a store
// several times, as several gateways do.
func eachStoreAt(t *testing.T, test func(*testing.T, func(func() time.Time) uploadstore.Store)) {
	t.Run("memory", func(t *testing.T) {
		store := newFakeStore()
		test(t, func(now func() time.Time) uploadstore.Store { store.now = now; return store })
	})
	t.Run("directory", func(t *testing.T) {
		path := t.TempDir()
		test(t, func(now func() time.Time) uploadstore.Store {
			store, err := directory.Open(directory.Options{Path: path, Now: now})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := store.Close(); err != nil {
					t.Error(err)
				}
			})
			return store
		})
	})
}

// newServer serves a handler that returns refusals.
func newServer(t *testing.T, f handler.Func) *httptest.Server {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := f(w, r)
		if e, ok := errors.AsType[*problem.Error](err); ok {
			e.Write(w, r, "")
		} else if err != nil {
			t.Errorf("an error that is no refusal: %v", err)
		}
	}))
	t.Cleanup(srv.Close)
	return srv
}
