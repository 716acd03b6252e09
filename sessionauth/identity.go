package sessionauth

import (
	"net/http"
	"strings"
)

// The fields that tell the backend who is signed in. They are canonical, so
// that they can be assigned directly.
const (
	headerUser    = "Gatehouse-User"
	headerSession = "Gatehouse-Session"
	headerClaims  = "Gatehouse-Claims"
	headerState   = "Gatehouse-Session-State"
)

const namespace = "gatehouse"

// stripIdentity removes the fields that tell who is signed in, in every
// spelling that a backend may take for them.
func stripIdentity(h http.Header) {
	for name := range h {
		if IsReserved(name) && isIdentity(name) {
			delete(h, name)
		}
	}
}

// isIdentity reports whether a field name of the namespace is one of those that
// tell who is signed in, read as IsReserved reads names.
func isIdentity(name string) bool {
	for _, field := range [...]string{headerUser, headerSession, headerClaims, headerState} {
		if foldsTo(name, field) {
			return true
		}
	}
	return false
}

func foldsTo(name, field string) bool {
	if len(name) != len(field) {
		return false
	}
	for i := range len(field) {
		if c := field[i]; c == '-' && isAlphanumeric(name[i]) || c != '-' && name[i]|0x20 != c|0x20 {
			return false
		}
	}
	return true
}

// IsReserved reports whether a field name lies in the gateway's namespace:
// "gatehouse", or "gatehouse-" and anything, in any case and with every
// character that is not a letter or digit read as "-". CGI-like interfaces fold
// such characters into one, so that a backend cannot tell Gatehouse_User from
// Gatehouse-User. It does not allocate.
func IsReserved(name string) bool {
	if len(name) < len(namespace) || name[0]|0x20 != 'g' {
		return false
	}
	for i := 1; i < len(namespace); i++ {
		if name[i]|0x20 != namespace[i] {
			return false
		}
	}
	return len(name) == len(namespace) || !isAlphanumeric(name[len(namespace)])
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// StripHeader removes the namespace from a header: fields, trailers that wait
// under http.TrailerPrefix, and names announced in the Trailer field.
func StripHeader(h http.Header) {
	for name := range h {
		switch name[:min(1, len(name))] {
		case "G", "g":
			if IsReserved(name) {
				delete(h, name)
			}
		case "T":
			if isReservedTrailer(name) {
				delete(h, name)
			} else if name == "Trailer" {
				stripAnnounced(h)
			}
		}
	}
}

// isReservedTrailer reports whether a key of a header map is a trailer of the
// namespace, written with net/http's prefix.
func isReservedTrailer(key string) bool {
	name, ok := strings.CutPrefix(key, http.TrailerPrefix)
	return ok && IsReserved(name)
}

// stripAnnounced removes names of the namespace from the Trailer field.
func stripAnnounced(h http.Header) {
	values := h["Trailer"]
	if !namesReserved(values) {
		return
	}
	var kept []string
	for _, value := range values {
		for name := range strings.SplitSeq(value, ",") {
			if name = strings.TrimSpace(name); name != "" && !IsReserved(name) {
				kept = append(kept, name)
			}
		}
	}
	if len(kept) == 0 {
		delete(h, "Trailer")
		return
	}
	h["Trailer"] = kept
}

// ConnectionNamesReserved reports whether a Connection field names a field of
// the namespace. A proxy removes what Connection names (RFC 9110, section
// 7.6.1), so such a request would hide the identity from the backend.
func ConnectionNamesReserved(h http.Header) bool {
	return namesReserved(h["Connection"])
}

// namesReserved looks through comma-separated lists of field names.
func namesReserved(values []string) bool {
	for _, value := range values {
		for value != "" {
			var name string
			name, value, _ = strings.Cut(value, ",")
			if IsReserved(strings.TrimSpace(name)) {
				return true
			}
		}
	}
	return false
}

// encodeUser writes a user for a header field: every byte outside %x21-7E, and
// "%" itself, is percent-encoded.
func encodeUser(user string) string {
	const hex = "0123456789ABCDEF"
	escapes := 0
	for i := range len(user) {
		if mustEscape(user[i]) {
			escapes++
		}
	}
	if escapes == 0 {
		return user
	}
	var b strings.Builder
	b.Grow(len(user) + 2*escapes)
	for i := range len(user) {
		if c := user[i]; mustEscape(c) {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func mustEscape(c byte) bool { return c < 0x21 || c > 0x7E || c == '%' }
