package sessionauth

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestCheckOrigin(t *testing.T) {
	list := &Route{AllowedOrigins: func(*http.Request) []string { return []string{"Partner.example", "*.sub.example", "*", "*bad.example"} }}
	own, any := &Route{}, &Route{AnyOrigin: true}
	ws := "Upgrade: websocket"
	for _, row := range []struct {
		name   string
		method string
		route  *Route
		fields []string
		want   verdict
	}{
		{"no Origin", "POST", own, nil, originAllowed},
		{"own host", "POST", own, []string{"Origin: https://app.example"}, originAllowed},
		{"own host, other scheme, port and case", "POST", own, []string{"Origin: http://APP.example:81"}, originAllowed},
		{"foreign", "POST", own, []string{"Origin: https://evil.example"}, originRefused},
		{"looks like the own host", "POST", own, []string{"Origin: https://app.example.evil.example"}, originRefused},
		{"null", "POST", own, []string{"Origin: null"}, originRefused},
		{"empty", "POST", own, []string{"Origin: "}, originRefused},
		{"no origin at all", "POST", own, []string{"Origin: app.example"}, originRefused},
		{"user info", "POST", own, []string{"Origin: https://app.example@evil.example"}, originRefused},
		{"path", "POST", own, []string{"Origin: https://app.example/x"}, originRefused},
		{"two", "POST", own, []string{"Origin: https://app.example", "Origin: https://app.example"}, originBad},
		{"two on a GET", "GET", own, []string{"Origin: https://app.example", "Origin: null"}, originBad},
		{"Sec-Fetch-Site same-origin", "POST", own, []string{"Origin: null", "Sec-Fetch-Site: same-origin"}, originAllowed},
		{"Sec-Fetch-Site none", "POST", own, []string{"Origin: https://evil.example", "Sec-Fetch-Site: none"}, originAllowed},
		{"Sec-Fetch-Site same-site", "POST", own, []string{"Origin: https://evil.example", "Sec-Fetch-Site: same-site"}, originRefused},
		{"Sec-Fetch-Site twice", "POST", own, []string{"Origin: https://evil.example", "Sec-Fetch-Site: none", "Sec-Fetch-Site: none"}, originRefused},
		{"GET", "GET", own, []string{"Origin: https://evil.example"}, originIgnored},
		{"HEAD", "HEAD", own, []string{"Origin: null"}, originIgnored},
		{"OPTIONS that is no preflight", "OPTIONS", own, []string{"Origin: https://evil.example"}, originRefused},
		{"preflight", "OPTIONS", own, []string{"Origin: https://evil.example", "Access-Control-Request-Method: PUT"}, originPreflight},
		{"GET dressed as preflight", "GET", own, []string{"Origin: https://evil.example", "Access-Control-Request-Method: PUT"}, originIgnored},
		{"WebSocket", "GET", own, []string{"Origin: https://evil.example", ws}, originRefused},
		{"WebSocket, odd spelling", "GET", own, []string{"Origin: https://evil.example", "Upgrade: h2c, WebSocket"}, originRefused},
		{"WebSocket from the own host", "GET", own, []string{"Origin: https://app.example", ws}, originAllowed},
		{"extended CONNECT", "CONNECT", own, []string{"Origin: https://evil.example", ":protocol: websocket"}, originRefused},
		{"any", "POST", any, []string{"Origin: null"}, originAllowed},

		{"listed", "POST", list, []string{"Origin: https://partner.example"}, originAllowed},
		{"the own host beside a list", "POST", list, []string{"Origin: https://app.example"}, originAllowed},
		{"subdomain", "POST", list, []string{"Origin: https://a.b.sub.example"}, originAllowed},
		{"the bare domain is no subdomain", "POST", list, []string{"Origin: https://sub.example"}, originRefused},
		{"end of a name is no subdomain", "POST", list, []string{"Origin: https://notsub.example"}, originRefused},
		{"empty label", "POST", list, []string{"Origin: https://.sub.example"}, originRefused},
		{"a star is no entry", "POST", list, []string{"Origin: https://x"}, originRefused},
		{"a star without a dot is no entry", "POST", list, []string{"Origin: https://notbad.example"}, originRefused},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := httptest.NewRequest(row.method, "https://app.example/", nil)
			r.Host = "App.example:8443"
			for _, f := range row.fields {
				i := strings.Index(f[1:], ":") + 1
				r.Header[f[:i]] = append(r.Header[f[:i]], strings.TrimSpace(f[i+1:]))
			}
			if got := checkOrigin(r, row.route); got != row.want {
				t.Errorf("got %d, want %d", got, row.want)
			}
		})
	}
}

func TestHostSite(t *testing.T) {
	for host, want := range map[string]string{
		"": "", "a": "a", "A.Example:80": "a.example", "[::1]:80": "::1", "[::1]": "::1", "::1": "::1", "[": "[", "a:": "a", "[FE80::1%25x]:1": "fe80::1%25x",
	} {
		if got := HostSite(host); got != want {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
	}
}

func FuzzOriginHost(f *testing.F) {
	for _, s := range []string{"https://app.example", "null", "https://[::1]:8", "x://a@b", "https://app.example:443\\@evil"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, origin string) {
		host := originHost(origin)
		if strings.ContainsAny(host, "/\\?#@, \t") || host != strings.ToLower(host) {
			t.Errorf("%q has the host %q", origin, host)
		}
		if host != "" && !strings.Contains(strings.ToLower(origin), "://"+host) && !strings.Contains(strings.ToLower(origin), "://["+host) {
			t.Errorf("%q has the host %q", origin, host)
		}
	})
}
