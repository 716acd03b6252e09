package sessionauth

import (
	"net/http"
	"testing"

	"github.com/gatehouse-gateway/gatehouse/internal/handler"
)

// plainWriter is a response writer that keeps nothing but its header.
type plainWriter struct{ header http.Header }

func (w *plainWriter) Header() http.Header         { return w.header }
func (w *plainWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w *plainWriter) WriteHeader(int)             {}

// BenchmarkOpenCached is the cost of a token that was opened before, with all
// that is checked on every hit.
func BenchmarkOpenCached(b *testing.B) {
	g := newGateway(b, func(s *Settings) { s.Observer = nil })
	cookie := g.signIn(u1)[len(cleared):]
	ctx := b.Context()
	if _, err := g.open(ctx, "app.example", "__Host-gatehouse", cookie); err != nil {
		b.Fatal(err)
	}
	now := g.now()
	g.deny("app.example", publicID(newSecret())) // the usual state of a gateway
	b.ReportAllocs()
	for b.Loop() {
		o, err := g.open(ctx, "app.example", "__Host-gatehouse", cookie)
		if err != nil || g.shared.denials.denied(o, now) || o.due(now, g.refreshAfter) {
			b.Fatal("no hit")
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	g := newGateway(b, func(s *Settings) { s.Observer = nil })
	cookie := g.signIn(u1)[len(cleared):]
	b.ReportAllocs()
	for b.Loop() {
		g.shared.tokens.slot(cookie).Store(nil)
		if _, err := g.open(b.Context(), "app.example", "__Host-gatehouse", cookie); err != nil {
			b.Fatal(err)
		}
	}
}

// benchmarkRequest runs requests with the given cookie through the middleware;
// the backend sets some fields.
func benchmarkRequest(b *testing.B, cookie func(*gateway) string) {
	g := newGateway(b, func(s *Settings) { s.Observer = nil })
	mw := g.Middleware(g.route)
	value := []string{cookie(g)}
	fields := []string{"Content-Type", "Content-Length", "Date", "Etag", "Vary", "Cache-Control"}
	body := []byte("body")
	backend := handler.Func(func(w http.ResponseWriter, _ *http.Request) error {
		h := w.Header()
		for _, name := range fields {
			h[name] = value
		}
		w.WriteHeader(http.StatusOK)
		_, err := w.Write(body)
		return err
	})
	r := request("")
	for _, name := range []string{"Accept", "Accept-Encoding", "Accept-Language", "Sec-Fetch-Site", "Sec-Fetch-Mode", "X-Forwarded-For"} {
		r.Header.Set(name, "x")
	}
	w := &plainWriter{header: http.Header{"Server": {"s"}, "Alt-Svc": {"x"}}}
	b.ReportAllocs()
	for b.Loop() {
		for _, name := range fields {
			delete(w.header, name)
		}
		if value[0] != "" {
			r.Header["Cookie"] = value
		}
		if err := mw.ServeHTTP(w, r, backend); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRequestFresh(b *testing.B) {
	benchmarkRequest(b, func(g *gateway) string { return g.signIn(u1) })
}

func BenchmarkRequestAnonymous(b *testing.B) {
	benchmarkRequest(b, func(*gateway) string { return "" })
}

func BenchmarkIsReserved(b *testing.B) {
	names := []string{"Accept", "Gatehouse-User", "Content-Type", "X-Forwarded-For", "User-Agent"}
	b.ReportAllocs()
	for b.Loop() {
		for _, name := range names {
			IsReserved(name)
		}
	}
}
