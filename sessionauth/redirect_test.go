package sessionauth

import (
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

func TestIsNavigation(t *testing.T) {
	for _, row := range []struct {
		name, method string
		fields       map[string]string
		want         bool
	}{
		{"browser", "GET", map[string]string{"Sec-Fetch-Mode": "navigate", "Accept": "*/*"}, true},
		{"browser, HEAD", "HEAD", map[string]string{"Sec-Fetch-Mode": "navigate"}, true},
		{"form", "POST", map[string]string{"Sec-Fetch-Mode": "navigate", "Accept": "text/html"}, false},
		{"fetch", "GET", map[string]string{"Sec-Fetch-Mode": "cors", "Accept": "text/html"}, false},
		{"old browser", "GET", map[string]string{"Accept": "application/xml, Text/HTML;level=1;q=0.5"}, true},
		{"program", "GET", map[string]string{"Accept": "*/*"}, false},
		{"text/html refused", "GET", map[string]string{"Accept": "text/html;q=0, */*"}, false},
		{"WebSocket", "GET", map[string]string{"Sec-Fetch-Mode": "navigate", "Upgrade": "websocket"}, false},
		{"nothing", "GET", nil, false},
	} {
		r := httptest.NewRequest(row.method, "/", nil)
		for name, value := range row.fields {
			r.Header.Set(name, value)
		}
		if got := isNavigation(r); got != row.want {
			t.Errorf("%s: %v, want %v", row.name, got, row.want)
		}
	}
}

func TestLoginURL(t *testing.T) {
	for _, row := range []struct{ redirect, original, want string }{
		{"/login", "/a?b=c&d=e", "/login?return_to=%2Fa%3Fb%3Dc%26d%3De"},
		{"/login?x=1", "/", "/login?x=1&return_to=%2F"},
		{"https://id.example/login#top", "/a", "https://id.example/login?return_to=%2Fa#top"},
		{"/login", "//evil.example/a", "/login"},
		{"/login", "/\\evil.example", "/login?return_to=%2F%255Cevil.example"},
		{"/login", "/a b?ü", "/login?return_to=%2Fa%2520b%3F%C3%BC"},
		{"/login", "/" + strings.Repeat("x", 1999), "/login?return_to=%2F" + strings.Repeat("x", 1999)},
		{"/login", "/" + strings.Repeat("x", 2000), "/login"},
	} {
		path, query, _ := strings.Cut(row.original, "?")
		if got := loginURL(row.redirect, &url.URL{Path: path, RawQuery: query}); got != row.want {
			t.Errorf("%s from %s: got %s, want %s", row.redirect, row.original, got, row.want)
		}
	}
}

func TestIsTarget(t *testing.T) {
	for _, row := range []struct {
		redirect, path string
		want           bool
	}{
		{"/login", "/login", true},
		{"/login?x=1#y", "/login", true},
		{"/login", "/login/", false},
		{"/log%69n", "/login", true},
		{"https://APP.example/login", "/login", true},
		{"https://id.example/login", "/login", false},
		{"//id.example/login", "/login", false},
		{"mailto:x", "/login", false},
		{"%", "/login", false},
	} {
		if got := isTarget(row.redirect, &url.URL{Path: row.path}, "app.example:443"); got != row.want {
			t.Errorf("%s for %s: %v, want %v", row.redirect, row.path, got, row.want)
		}
	}
}

func FuzzLoginURL(f *testing.F) {
	f.Add("/a", "b=c")
	f.Add("//evil.example", "")
	f.Add("/\\evil", "\t")
	f.Fuzz(func(t *testing.T, path, query string) {
		target := loginURL("/login", &url.URL{Path: path, RawQuery: query})
		u, err := url.Parse(target)
		if err != nil || u.Path != "/login" {
			t.Fatalf("%q: %v", target, err)
		}
		back := u.Query().Get("return_to")
		if back == "" {
			return
		}
		if b, err := url.Parse(back); err == nil && (b.Host != "" || b.Scheme != "") || back[0] != '/' || strings.HasPrefix(back, "//") || strings.ContainsAny(back, "\r\n\t") {
			t.Errorf("return_to %q leads away", back)
		}
	})
}
