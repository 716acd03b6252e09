package sessionauth

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxSetCookie is the size that a whole Set-Cookie line stays under; browsers
// take no larger cookies.
const maxSetCookie = 4096

// magic begins every token: the base64url form of the header of a payload of
// ASP.NET Core Data Protection.
const magic = "CfDJ8"

// maxCandidates is how many cookies of our name are tried.
const maxCandidates = 4

// cookies are the values of the session cookie in a request.
type cookies struct {
	values [maxCandidates]string
	n      int
}

// findCookies reads the values of the cookie with the given name that look
// like tokens: the first four. RFC 6265, section 5.4, for the form.
func findCookies(h http.Header, name string) (found cookies) {
	for _, line := range h["Cookie"] {
		for line != "" {
			var pair string
			pair, line, _ = strings.Cut(line, ";")
			value, ok := cookieValue(pair, name)
			if ok && found.n < maxCandidates && strings.HasPrefix(value, magic) {
				found.values[found.n] = value
				found.n++
			}
		}
	}
	return found
}

// cookieValue returns the value of a cookie pair that has the name.
func cookieValue(pair, name string) (string, bool) {
	pair = trimSpace(pair)
	if len(pair) <= len(name) || pair[len(name)] != '=' || pair[:len(name)] != name {
		return "", false
	}
	return pair[len(name)+1:], true
}

// trimSpace cuts spaces and tabs, which are all that may stand around a pair.
func trimSpace(s string) string {
	for s != "" && (s[0] == ' ' || s[0] == '\t') {
		s = s[1:]
	}
	for s != "" && (s[len(s)-1] == ' ' || s[len(s)-1] == '\t') {
		s = s[:len(s)-1]
	}
	return s
}

// hideCookie removes our tokens from the Cookie field. Other cookies, and
// cookies of our name that are no tokens, stay byte for byte and in order.
func hideCookie(h http.Header, name string) {
	lines := h["Cookie"]
	var kept []string
	for i, line := range lines {
		rest := withoutCookie(line, name)
		if len(rest) != len(line) && rest == "" && len(lines) == 1 { // the usual case: ours alone
			break
		}
		if kept == nil && len(rest) != len(line) {
			kept = append(make([]string, 0, len(lines)), lines[:i]...)
		}
		switch {
		case kept == nil && i == len(lines)-1:
			return // none of ours
		case kept != nil && rest != "":
			kept = append(kept, rest)
		}
	}
	if len(kept) == 0 {
		delete(h, "Cookie")
		return
	}
	h["Cookie"] = kept
}

// withoutCookie cuts our tokens from one line, each with one separator.
func withoutCookie(line, name string) string {
	out, from := "", 0 // out is what is kept of line[:from]
	for pos := 0; pos < len(line); {
		end := pos + strings.IndexByte(line[pos:], ';')
		next := end + 1
		if end < pos {
			end, next = len(line), len(line)
		}
		if value, ok := cookieValue(line[pos:end], name); ok && strings.HasPrefix(value, magic) {
			out += line[from:pos]
			from = next
		}
		pos = next
	}
	if from == 0 {
		return line
	}
	if from == len(line) { // the last one went: its separator is at the end of out
		out = strings.TrimRight(out, "; \t")
	}
	return strings.TrimLeft(out+line[from:], " \t")
}

// attributes are the fixed end of the Set-Cookie line, and what a cleared
// cookie must share with the one it clears.
func (m *Manager) attributes(b *strings.Builder, name string, https bool) {
	b.WriteString("; Path=")
	b.WriteString(m.path)
	if m.domain != "" {
		b.WriteString("; Domain=")
		b.WriteString(m.domain)
	}
	b.WriteString("; HttpOnly")
	if https || hasSecurePrefix(name) {
		b.WriteString("; Secure")
	}
	switch m.sameSite {
	case http.SameSiteStrictMode:
		b.WriteString("; SameSite=Strict")
	case http.SameSiteNoneMode:
		b.WriteString("; SameSite=None")
	default:
		b.WriteString("; SameSite=Lax")
	}
}

// setCookieLine is the Set-Cookie line of a token. A persistent one lasts until
// the session would end, counted from now; the other lasts as long as the
// browser runs.
func (m *Manager) setCookieLine(name, value string, t *token, now time.Time, https bool) string {
	var b strings.Builder
	b.Grow(len(name) + len(value) + len(m.path) + len(m.domain) + 96)
	b.WriteString(name)
	b.WriteByte('=')
	b.WriteString(value)
	if t.persistent {
		b.WriteString("; Max-Age=")
		b.WriteString(strconv.FormatInt(max(int64(t.expires().Sub(now)/time.Second), 1), 10))
	}
	m.attributes(&b, name, https)
	return b.String()
}

// clearCookieLine is the Set-Cookie line that removes the cookie.
func (m *Manager) clearCookieLine(name string, https bool) string {
	var b strings.Builder
	b.WriteString(name)
	b.WriteString("=; Max-Age=0; Expires=Thu, 01 Jan 1970 00:00:00 GMT")
	m.attributes(&b, name, https)
	return b.String()
}

// putCookie puts our Set-Cookie line into a response: in place of lines with
// the same cookie name, and with a ban on storing the response, since a shared
// cache would hand the cookie to others.
func putCookie(h http.Header, name, line string) {
	lines := make([]string, 0, len(h["Set-Cookie"])+1)
	for _, other := range h["Set-Cookie"] {
		if _, ours := cookieValue(other, name); !ours {
			lines = append(lines, other)
		}
	}
	h["Set-Cookie"] = append(lines, line)
	for field := range h {
		if isCacheField(field) {
			delete(h, field)
		}
	}
	h["Cache-Control"] = []string{"no-store"}
}

// isCacheField reports whether a field speaks to caches, shared ones included
// (RFC 9213 for the targeted ones).
func isCacheField(name string) bool {
	const targeted = "cdn-cache-control"
	n := len(name)
	if n >= len(targeted) && strings.EqualFold(name[n-len(targeted):], targeted) {
		return n == len(targeted) || name[n-len(targeted)-1] == '-'
	}
	return strings.EqualFold(name, "Cache-Control") || strings.EqualFold(name, "Expires") ||
		strings.EqualFold(name, "Surrogate-Control")
}

func hasSecurePrefix(name string) bool { return hasFold(name, "__Host-") || hasFold(name, "__Secure-") }

func hasFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
