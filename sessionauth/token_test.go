package sessionauth

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func sample() token {
	return token{
		user: "u1", secret: strings.Repeat("s", 16), generation: 7, claims: `{"a":1}`, claimsVersion: 2,
		refreshed: time.UnixMilli(1777636800123), lifetime: 24 * time.Hour, until: time.UnixMilli(1785412800000), persistent: true,
	}
}

func TestTokenRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := token{
			user:          string(rapid.SliceOfN(rapid.Byte(), 1, maxUser).Draw(t, "user")),
			secret:        string(rapid.SliceOfN(rapid.Byte(), minSecret, maxSecret).Draw(t, "secret")),
			generation:    rapid.Uint32().Draw(t, "generation"),
			claimsVersion: rapid.Uint32().Draw(t, "claims version"),
			claimsStored:  rapid.Bool().Draw(t, "stored"),
			refreshed:     time.UnixMilli(rapid.Int64Range(0, maxMillis).Draw(t, "refreshed")),
			lifetime:      time.Duration(rapid.Int64Range(0, maxLifetimeMillis).Draw(t, "lifetime")) * time.Millisecond,
			persistent:    rapid.Bool().Draw(t, "persistent"),
		}
		if rapid.Bool().Draw(t, "has an end") {
			want.until = time.UnixMilli(rapid.Int64Range(0, maxMillis).Draw(t, "until"))
		}
		if !want.claimsStored {
			want.claims = string(rapid.SliceOfN(rapid.Byte(), 0, maxClaims).Draw(t, "claims"))
		}
		got, err := decodeToken(string(want.encode(nil)))
		if err != nil || got != want {
			t.Fatalf("got %+v, %v, want %+v", got, err, want)
		}
	})
}

func TestTokenDefects(t *testing.T) {
	tok := sample()
	good := string(tok.encode(nil))
	for n := range len(good) {
		if _, err := decodeToken(good[:n]); err != errToken {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
	change := func(i int, b byte) string { return good[:i] + string(b) + good[i+1:] }
	for name, text := range map[string]string{
		"bytes behind":    good + "x",
		"other version":   change(0, 2),
		"unknown flag":    change(1, 0x80),
		"secret short":    change(2, 15),
		"secret long":     change(2, 33),
		"no user":         string((&token{secret: tok.secret, claims: "{}"}).encode(nil)),
		"user too long":   string((&token{secret: tok.secret, user: strings.Repeat("u", 256)}).encode(nil)),
		"claims too long": string((&token{secret: tok.secret, user: "u", claims: strings.Repeat("c", 4097)}).encode(nil)),
		"long varint":     good[:19] + "\x82\x00" + good[20:],
		"endless varint":  good[:19] + strings.Repeat("\xff", 12) + good[20:],
	} {
		if _, err := decodeToken(text); err != errToken {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzDecodeToken(f *testing.F) {
	tok := sample()
	f.Add(string(tok.encode(nil)))
	tok.claimsStored, tok.claims, tok.until = true, "", time.Time{}
	f.Add(string(tok.encode(nil)))
	f.Add("\x01\x00\x10")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := decodeToken(text)
		if err != nil {
			return
		}
		// One token has one form.
		if again := string(got.encode(nil)); again != text {
			t.Fatalf("%x is read as %+v, which is written as %x", text, got, again)
		}
		if got.user == "" || len(got.secret) < minSecret || len(got.claims) > maxClaims || got.lifetime < 0 {
			t.Fatalf("out of bounds: %+v", got)
		}
	})
}

// wantPublicID was computed apart: base64url(SHA-256(label, secret)[:16]).
const wantPublicID = "kvlBwWksy_euYXaWf1fhyw"

// The public id is what applications store and other gateways look up: it must
// not change from version to version.
func TestPublicID(t *testing.T) {
	if got := formatID(publicID("0123456789abcdef")); got != wantPublicID {
		t.Errorf("got %s, want %s", got, wantPublicID)
	}
	secret := newSecret()
	if id, err := parseID(formatID(publicID(secret))); err != nil || id != publicID(secret) {
		t.Errorf("round trip: %v", err)
	}
	if strings.Contains(formatID(publicID(secret)), hex.EncodeToString([]byte(secret))) || newSecret() == secret {
		t.Error("secrets repeat or show")
	}
}

func TestTokenExpires(t *testing.T) {
	tok := sample()
	if got := tok.expires(); !got.Equal(tok.refreshed.Add(24 * time.Hour)) {
		t.Errorf("expires %v", got)
	}
	tok.until = tok.refreshed.Add(time.Hour)
	if got := tok.expires(); !got.Equal(tok.until) {
		t.Errorf("expires %v, want the absolute end", got)
	}
}
