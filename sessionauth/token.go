package sessionauth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// The token's plain form, before it is sealed:
//
//	version      1 byte
//	flags        1 byte
//	secret id    1 byte of length (16 to 32), then the bytes
//	user         length, then the bytes
//	generation, claims version
//	refreshed    milliseconds since 1970
//	lifetime     milliseconds
//	until        milliseconds since 1970, only with flagUntil
//	claims       length, then the bytes; not with flagClaimsStored
//
// Lengths and numbers are unsigned varints in their shortest form. Nothing may
// follow.
const tokenVersion = 1

const (
	flagPersistent   = 1 << iota
	flagClaimsStored // the claims are in the session store alone
	flagUntil        // there is an absolute end
	flagsKnown       = 1<<iota - 1
)

const (
	minSecret = 16
	maxSecret = 32
	maxUser   = sessionstore.MaxUser
	maxClaims = sessionstore.MaxClaims

	maxMillis         = 253402300799999                 // the end of the year 9999
	maxLifetimeMillis = 100 * 365 * 24 * 60 * 60 * 1000 // 100 years; a time.Duration holds 292
)

// token is what the cookie holds.
type token struct {
	user          string
	secret        string // the secret id, as bytes
	generation    uint32
	claims        string // a JSON object; empty when claimsStored
	claimsVersion uint32
	claimsStored  bool
	refreshed     time.Time
	lifetime      time.Duration
	until         time.Time // zero: no absolute end
	persistent    bool
}

// expires is when the session ends if nothing refreshes it.
func (t *token) expires() time.Time {
	end := t.refreshed.Add(t.lifetime)
	if !t.until.IsZero() && t.until.Before(end) {
		return t.until
	}
	return end
}

// tokenOf is the token of a record.
func tokenOf(secret string, r *sessionstore.Record) *token {
	return &token{
		user: r.User, secret: secret, generation: r.Generation,
		claims: claimsText(r.Claims), claimsVersion: r.ClaimsVersion,
		refreshed: r.Refreshed, lifetime: r.Lifetime, until: r.Until, persistent: r.Persistent,
	}
}

// claimsText is a record's claims; none are an empty object.
func claimsText(claims []byte) string {
	if len(claims) == 0 {
		return "{}"
	}
	return string(claims)
}

// newSecret draws a secret id: 128 random bits.
func newSecret() string {
	var b [minSecret]byte
	rand.Read(b[:]) // never fails
	return string(b[:])
}

// idLabel keeps the hash apart from every other use of SHA-256.
const idLabel = "gatehouse: public id of a session, v1\x00"

// publicID derives the public id from the secret one.
func publicID(secret string) sessionstore.ID {
	var buf [len(idLabel) + maxSecret]byte
	n := copy(buf[:], idLabel)
	n += copy(buf[n:], secret)
	sum := sha256.Sum256(buf[:n])
	return sessionstore.ID(sum[:16])
}

// encode appends the token's plain form to b.
func (t *token) encode(b []byte) []byte {
	var flags byte
	if t.persistent {
		flags |= flagPersistent
	}
	if t.claimsStored {
		flags |= flagClaimsStored
	}
	if !t.until.IsZero() {
		flags |= flagUntil
	}
	b = append(b, tokenVersion, flags, byte(len(t.secret)))
	b = append(b, t.secret...)
	b = binary.AppendUvarint(b, uint64(len(t.user)))
	b = append(b, t.user...)
	b = binary.AppendUvarint(b, uint64(t.generation))
	b = binary.AppendUvarint(b, uint64(t.claimsVersion))
	b = binary.AppendUvarint(b, uint64(t.refreshed.UnixMilli()))
	b = binary.AppendUvarint(b, uint64(t.lifetime.Milliseconds()))
	if flags&flagUntil != 0 {
		b = binary.AppendUvarint(b, uint64(t.until.UnixMilli()))
	}
	if flags&flagClaimsStored == 0 {
		b = binary.AppendUvarint(b, uint64(len(t.claims)))
		b = append(b, t.claims...)
	}
	return b
}

// errToken is every defect of a token's plain form. The form is authenticated
// before it is read, so a defect means another version of this program.
var errToken = errors.New("sessionauth: token in a form that this version cannot read")

// decodeToken reads a token's plain form. The strings of the token are parts of
// text.
func decodeToken(text string) (token, error) {
	d := decoder{rest: text}
	version, flags, secretLen := d.byte(), d.byte(), d.byte()
	if d.bad || version != tokenVersion || flags&^flagsKnown != 0 || secretLen < minSecret || secretLen > maxSecret {
		return token{}, errToken
	}
	t := token{
		persistent:   flags&flagPersistent != 0,
		claimsStored: flags&flagClaimsStored != 0,
	}
	t.secret = d.take(uint64(secretLen))
	t.user = d.take(d.number(maxUser))
	t.generation = uint32(d.number(1<<32 - 1))
	t.claimsVersion = uint32(d.number(1<<32 - 1))
	t.refreshed = time.UnixMilli(int64(d.number(maxMillis)))
	t.lifetime = time.Duration(d.number(maxLifetimeMillis)) * time.Millisecond
	if flags&flagUntil != 0 {
		t.until = time.UnixMilli(int64(d.number(maxMillis)))
	}
	if !t.claimsStored {
		t.claims = d.take(d.number(maxClaims))
	}
	if d.bad || d.rest != "" || t.user == "" {
		return token{}, errToken
	}
	return t, nil
}

// decoder reads from the front of rest; bad stays set after the first defect.
type decoder struct {
	rest string
	bad  bool
}

func (d *decoder) byte() byte {
	if d.rest == "" {
		d.bad = true
		return 0
	}
	c := d.rest[0]
	d.rest = d.rest[1:]
	return c
}

func (d *decoder) take(n uint64) string {
	if d.bad || n > uint64(len(d.rest)) {
		d.bad = true
		return ""
	}
	s := d.rest[:n]
	d.rest = d.rest[n:]
	return s
}

// number reads a varint of at most limit, in its shortest form.
func (d *decoder) number(limit uint64) uint64 {
	var v uint64
	for shift := 0; shift < 63; shift += 7 {
		c := d.byte()
		v |= uint64(c&0x7F) << shift
		if c < 0x80 {
			if v > limit || (c == 0 && shift > 0) {
				d.bad = true
			}
			break
		}
		if shift == 56 {
			d.bad = true // longer than any limit needs
		}
	}
	if d.bad {
		return 0
	}
	return v
}
