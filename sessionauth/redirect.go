package sessionauth

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// maxReturnTo bounds return_to, in characters before it is escaped.
const maxReturnTo = 2000

// isNavigation reports whether a browser would show the answer to a person: it
// says so, or it is too old to say and names text/html.
func isNavigation(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || isHandshake(r) {
		return false
	}
	if mode := r.Header["Sec-Fetch-Mode"]; len(mode) > 0 {
		return len(mode) == 1 && mode[0] == "navigate"
	}
	return acceptsHTML(r.Header["Accept"])
}

// acceptsHTML reports whether Accept names text/html, and not to refuse it.
func acceptsHTML(accept []string) bool {
	for _, value := range accept {
		for item := range strings.SplitSeq(value, ",") {
			media, params, _ := strings.Cut(item, ";")
			if strings.EqualFold(strings.TrimSpace(media), "text/html") && !refuses(params) {
				return true
			}
		}
	}
	return false
}

// refuses reports whether the parameters of a media range give it the weight
// zero.
func refuses(params string) bool {
	for param := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(param, "=")
		if strings.EqualFold(strings.TrimSpace(name), "q") {
			q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return err == nil && q == 0
		}
	}
	return false
}

// isTarget reports whether a request is for the redirect's own path on this
// host. It never requires a session, or signing in would be an endless loop.
func isTarget(redirect string, original *url.URL, host string) bool {
	target, err := url.Parse(redirect)
	if err != nil || target.Opaque != "" || target.Path != original.Path {
		return false
	}
	return target.Host == "" || HostSite(target.Host) == HostSite(host)
}

// loginURL is the redirect with return_to appended: the path and query that the
// client asked for. It is left out when it is too long or could lead to another
// host.
func loginURL(redirect string, original *url.URL) string {
	back := original.RequestURI()
	if len(back) > maxReturnTo || !isLocalPath(back) {
		return redirect
	}
	target, fragment, _ := strings.Cut(redirect, "#")
	separator := "?"
	if strings.Contains(target, "?") {
		separator = "&"
	}
	target += separator + "return_to=" + url.QueryEscape(back)
	if fragment != "" {
		target += "#" + fragment
	}
	return target
}

// isLocalPath reports whether a browser reads s as a path of the same host:
// one slash, not followed by another or by a backslash, which browsers read as
// one.
func isLocalPath(s string) bool {
	if s == "" || s[0] != '/' || len(s) > 1 && (s[1] == '/' || s[1] == '\\') {
		return false
	}
	for i := range len(s) {
		if s[i] < 0x21 || s[i] == 0x7F {
			return false
		}
	}
	return true
}

// writeRedirect sends a browser to sign in.
func writeRedirect(w http.ResponseWriter, location string) {
	h := w.Header()
	h["Location"] = []string{location}
	h["Cache-Control"] = []string{"no-store"}
	h["Content-Length"] = []string{"0"}
	w.WriteHeader(http.StatusSeeOther)
}
