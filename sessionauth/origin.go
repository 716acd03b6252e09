package sessionauth

import (
	"net/http"
	"strings"
)

// verdict is the outcome of the origin check.
type verdict uint8

const (
	originAllowed   verdict = iota
	originPreflight         // a CORS preflight: passes without a session
	originIgnored           // passes, its cookie is ignored
	originRefused           // 403
	originBad               // 400
)

// checkOrigin decides whether a request may act with the session of its
// cookie. allowed is asked only where Origin decides; own is the request's own
// host.
//
// Sec-Fetch-Site is set by the browser and cannot be forged from a page, so
// that same-origin and none (the user's own doing) pass at once. A GET that is
// no handshake passes without its cookie instead of being refused: links and
// images from other sites must go on working.
func checkOrigin(r *http.Request, route *Route) verdict {
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		return originAllowed
	}
	if len(origins) > 1 {
		return originBad
	}
	if isPreflight(r) {
		return originPreflight
	}
	if route.AnyOrigin || isSameOrigin(r.Header["Sec-Fetch-Site"]) || originHostAllowed(r, origins[0], route) {
		return originAllowed
	}
	if (r.Method == http.MethodGet || r.Method == http.MethodHead) && !isHandshake(r) {
		return originIgnored
	}
	return originRefused
}

func isSameOrigin(site []string) bool {
	return len(site) == 1 && (site[0] == "same-origin" || site[0] == "none")
}

// isPreflight reports whether a browser asks for leave to send a cross-origin
// request (Fetch standard, section 4.8).
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && len(r.Header["Origin"]) == 1 && len(r.Header["Access-Control-Request-Method"]) > 0
}

// isHandshake reports whether the request opens a WebSocket (RFC 6455, RFC
// 8441, RFC 9220).
func isHandshake(r *http.Request) bool {
	return isExtendedConnect(r) || r.Method == http.MethodGet && hasToken(r.Header["Upgrade"], "websocket")
}

// isExtendedConnect reports whether the request is an extended CONNECT.
// HTTP/2 shows its protocol as a field, HTTP/3 as the request's protocol.
func isExtendedConnect(r *http.Request) bool {
	return r.Method == http.MethodConnect && (len(r.Header[":protocol"]) > 0 || r.Proto == "websocket")
}

func hasToken(values []string, token string) bool {
	for _, value := range values {
		for item := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(item), token) {
				return true
			}
		}
	}
	return false
}

func originHostAllowed(r *http.Request, origin string, route *Route) bool {
	host := originHost(origin)
	if host == "" {
		return false
	}
	if host == HostSite(r.Host) {
		return true
	}
	if route.AllowedOrigins == nil {
		return false
	}
	for _, entry := range route.AllowedOrigins(r) {
		if originMatches(host, entry) {
			return true
		}
	}
	return false
}

// originMatches compares a host in lower case with an entry: the same host, or
// any subdomain of *.example.com.
func originMatches(host, entry string) bool {
	if domain, ok := strings.CutPrefix(entry, "*."); ok {
		n := len(host) - len(domain)
		return domain != "" && n > 1 && host[n-1] == '.' && strings.EqualFold(host[n:], domain)
	}
	return entry != "" && strings.EqualFold(host, entry)
}

// originHost returns the host of a serialized origin (RFC 6454, section 6.2)
// in lower case, or "" for null and anything that is none.
func originHost(origin string) string {
	scheme, rest, ok := strings.Cut(origin, "://")
	if !ok || scheme == "" || rest == "" || strings.ContainsAny(rest, "/\\?#@, \t") {
		return ""
	}
	return HostSite(rest)
}

// HostSite returns a Host field's host: without its port, in lower case, an
// IPv6 address without brackets. It is the site where nothing else is
// configured.
func HostSite(host string) string {
	if end := strings.LastIndexByte(host, ']'); host != "" && host[0] == '[' && end > 0 {
		return strings.ToLower(host[1:end])
	}
	if i := strings.IndexByte(host, ':'); i >= 0 && strings.IndexByte(host[i+1:], ':') < 0 {
		host = host[:i]
	}
	return strings.ToLower(host)
}
