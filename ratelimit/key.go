package ratelimit

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"
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

// hasher makes store keys of length-prefixed parts. With a secret that gateways
// share they are HMAC-SHA-256, cut to 128 bits: without the secret a store's
// content tells nobody which addresses or keys it counts. Keys that never leave
// this process are made by its own random hash, which is much cheaper.
type hasher struct{ pool sync.Pool }

func newHasher(secret [32]byte) *hasher {
	h := &hasher{}
	h.pool.New = func() any {
		mac, sum := hmac.New(sha256.New, secret[:]), [sha256.Size]byte{}
		return &keyMaker{hash: func(text []byte) limitstore.Key {
			mac.Reset()
			mac.Write(text)
			return limitstore.Key(mac.Sum(sum[:0])[:16])
		}}
	}
	return h
}

func newProcessHasher() *hasher {
	h, high, low := &hasher{}, maphash.MakeSeed(), maphash.MakeSeed()
	h.pool.New = func() any {
		return &keyMaker{hash: func(text []byte) (key limitstore.Key) {
			binary.NativeEndian.PutUint64(key[:8], maphash.Bytes(high, text))
			binary.NativeEndian.PutUint64(key[8:], maphash.Bytes(low, text))
			return key
		}}
	}
	return h
}

// keyMaker is a keyed hash with its buffers, so that a key takes no memory.
type keyMaker struct {
	hash func(text []byte) limitstore.Key
	text []byte
}

// What a key counts is part of it, so that a client cannot choose a key that
// is another's address.
const (
	kindNone    = 'n' // no readable address
	kindAddress = 'a'
	kindKey     = 'k'
)

func (h *hasher) key(z *zone, site, key string, c client) limitstore.Key {
	m := h.pool.Get().(*keyMaker)
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
	return m.hash(m.text)
}

func appendPart(b []byte, part string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
	return append(b, part...)
}
