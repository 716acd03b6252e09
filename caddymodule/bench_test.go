package caddymodule

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// benchBackend stands for reverse_proxy in benchmarks: it touches the request's
// context and the response in the same ways, without a network.
type benchBackend struct{}

func (benchBackend) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.bench_backend", New: func() caddy.Module { return new(benchBackend) }}
}

func (benchBackend) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	ctx, cancel := context.WithCancelCause(r.Context()) // as http.Transport does
	defer cancel(nil)
	_ = ctx
	h := w.Header()
	if r.URL.Path == "/sign-in" {
		h.Set("Gatehouse-Session-Start", `{"user":"u-12345","claims":{"roles":["editor"],"tenant":"acme"}}`)
	}
	for _, field := range [...]string{"Content-Type", "Content-Length", "Date", "Via"} {
		h[field] = []string{"x"}
	}
	w.WriteHeader(http.StatusOK)
	_, err := io.WriteString(w, "ok")
	return err
}

func init() {
	caddy.RegisterModule(benchBackend{})
	httpcaddyfile.RegisterHandlerDirective("bench_backend", func(httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		return benchBackend{}, nil
	})
	httpcaddyfile.RegisterDirectiveOrder("bench_backend", httpcaddyfile.Before, "respond")
}

// discard is the client's end: a response writer that keeps nothing.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkHandlers measures what the handlers add to a request of plain Caddy.
func BenchmarkHandlers(b *testing.B) {
	b.Setenv("XDG_DATA_HOME", b.TempDir())
	b.Setenv("XDG_CONFIG_HOME", b.TempDir())
	const limit = `client_rate_limit {
		zone all {
			key {client_ip}
			window 1h
			events 1000000000000
		}
	}
	`
	for _, v := range []struct{ name, site string }{
		{"plain", ""}, {"guard", "gatehouse_guard\n"}, {"session", "session_auth\n"}, {"limit", limit}, {"both", "session_auth\n" + limit},
	} {
		b.Run(v.name, func(b *testing.B) {
			if err := load("{\n" + globals + "log {\n level ERROR\n}\n}\nhttp://localhost:9080 {\n" + v.site + "bench_backend\n}\n"); err != nil {
				b.Fatal(err)
			}
			defer caddy.Stop()
			app, err := caddy.ActiveContext().AppIfConfigured("http")
			if err != nil {
				b.Fatal(err)
			}
			srv := app.(*caddyhttp.App).Servers["srv0"]
			cookie := ""
			fields := map[string]string{
				"User-Agent": "Mozilla/5.0 (X11; Linux x86_64)", "Accept": "application/json", "Accept-Language": "en-GB,en;q=0.9",
				"Accept-Encoding": "gzip, deflate, br, zstd", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty",
			}
			serve := func(method, path string, n int) *discard {
				r := httptest.NewRequest(method, "http://localhost:9080"+path, nil)
				ctx, cancel := context.WithCancel(context.WithValue(context.WithValue(r.Context(), http.ServerContextKey, new(http.Server)), http.LocalAddrContextKey, "local"))
				defer cancel()
				r = r.WithContext(ctx)
				var w *discard
				for range n {
					r.Header = make(http.Header, 10) // net/http makes room for as many as there are lines
					for name, value := range fields {
						r.Header[name] = []string{value}
					}
					r.Header["Cookie"] = []string{cookie}
					w = &discard{http.Header{}}
					srv.ServeHTTP(w, r)
				}
				return w
			}
			if strings.Contains(v.site, "session_auth") {
				cookie, _, _ = strings.Cut(serve("POST", "/sign-in", 1).header.Get("Set-Cookie"), ";")
				if cookie == "" {
					b.Fatal("no cookie")
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			serve("GET", "/", b.N)
		})
	}
}
