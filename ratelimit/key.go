package ratelimit

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"

	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
)

// client is whom a request is counted for when a zone has no key of its own:
// an address cut to its prefix, or the zero address, which all requests
// without a readable one share.
type client = netip.Addr

// parseClient reads a textual address. IPv4 in IPv6 counts as IPv4, an IPv6
// zone is dropped.
func parseClient(text string) client {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return client{}
	}
	return addr.Unmap().WithZone("")
}

// cut reduces an IPv6 address to its prefix: a subscriber has all of it.
func cut(c client, ipv6Prefix int) client {
	if !c.Is6() {
		return c
	}
	p, err := c.Prefix(ipv6Prefix)
	if err != nil { // the prefix was checked at the start
		return client{}
	}
	return p.Addr()
}

// requestSite is the request's host without its port, in lower case.
func requestSite(r *http.Request) string {
	host := r.Host
	// A colon begins a port unless it stands in brackets, or beside others in
	// an IPv6 address that lacks them.
	if i := strings.LastIndexByte(host, ':'); i >= 0 && strings.IndexByte(host[i:], ']') < 0 && (host[0] == '[' || strings.IndexByte(host, ':') == i) {
		host = host[:i]
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

func remoteAddress(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return host
}

// hasher makes store keys: HMAC-SHA-256, cut to 128 bits, over length-prefixed
// parts. Without the secret a store's content tells nobody which addresses or
// keys it counts.
type hasher struct{ pool sync.Pool }

func newHasher(secret [32]byte) *hasher {
	h := &hasher{}
	h.pool.New = func() any { return &mac{hash: hmac.New(sha256.New, secret[:])} }
	return h
}

// mac is a keyed hash with its buffers, so that a key takes no memory.
type mac struct {
	hash hash.Hash
	text []byte
	sum  [sha256.Size]byte
}

// What a key counts is part of it, so that a client cannot choose a key that
// is another's address.
const (
	kindNone    = 'n' // no readable address
	kindAddress = 'a'
	kindKey     = 'k'
)

func (h *hasher) key(z *zone, site, key string, c client) limitstore.Key {
	m := h.pool.Get().(*mac)
	defer h.pool.Put(m)
	m.text = append(m.text[:0], byte(z.Algorithm))
	m.text = binary.BigEndian.AppendUint64(m.text, uint64(z.Window.Milliseconds()))
	m.text = appendPart(m.text, site)
	m.text = appendPart(m.text, z.Name)
	switch {
	case key != "":
		m.text = appendPart(append(m.text, kindKey), key)
	case c.IsValid():
		m.text = append(m.text, kindAddress)
		full := c.As16()
		m.text = append(m.text, full[:]...)
	default:
		m.text = append(m.text, kindNone)
	}
	m.hash.Reset()
	m.hash.Write(m.text)
	return limitstore.Key(m.hash.Sum(m.sum[:0])[:16])
}

func appendPart(b []byte, part string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
	return append(b, part...)
}
