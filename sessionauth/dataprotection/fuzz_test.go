package dataprotection

import (
	"encoding/base64"
	"errors"
	"log/slog"
	"testing"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore"
)

// FuzzOpen: no token opens but those that .NET sealed, and every other one is
// ErrUnreadable. (Tokens sealed here would differ in each fuzzing process.)
func FuzzOpen(f *testing.F) {
	var protectors []*Protector
	sealed := make(map[string]bool)
	for _, real := range realRings(f) {
		ring := newRing(f, Options{Repository: holding(documents(real.Keyring)...), ApplicationName: real.Discriminator})
		protectors = append(protectors, ring.Protector(real.Tokens[0].Purposes...))
		for _, token := range real.Tokens {
			sealed[token.Protected] = true
			f.Add(token.Protected)
			f.Add(token.Protected[:len(token.Protected)-2])
			f.Add(token.Protected + "AA")
		}
	}
	f.Add("")
	f.Add("CfDJ8")
	f.Add(base64.RawURLEncoding.EncodeToString(magic[:]))
	f.Fuzz(func(t *testing.T, token string) {
		for _, p := range protectors {
			if got, err := p.Open(t.Context(), token); err == nil && !sealed[token] {
				t.Errorf("opened %q", got)
			} else if err != nil && (!errors.Is(err, ErrUnreadable) || got != "") {
				t.Errorf("%q, %v", got, err)
			}
		}
	})
}

// FuzzPayload reaches the decryption: whatever the payload of a token is, it
// does not open, and what it is read into stays within its bounds.
func FuzzPayload(f *testing.F) {
	for _, size := range []int{0, 16, 27, 28, 32, 43, 44, 63, 64, 79, 80, 96, 112} {
		f.Add(make([]byte, size))
	}
	var all []*encryptor
	for _, hmac := range []*digest{nil, digestNamed("SHA1"), digestNamed("SHA256"), digestNamed("SHA384"), digestNamed("SHA512")} {
		all = append(all, newEncryptor(newAlgorithm(32, hmac), []byte("master key"), []byte("label")))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		at := room + headerSize
		for _, e := range all {
			buf := append(make([]byte, at), payload...)
			if got, err := e.open(buf[:len(buf):len(buf)], at); !errors.Is(err, ErrUnreadable) || got != nil {
				t.Errorf("%x, %v", got, err)
			}
			buf = append(make([]byte, at), make([]byte, e.randomSize())...)
			got, err := e.open(e.seal(buf, payload), at)
			if err != nil || string(got) != string(payload) {
				t.Errorf("round trip: %x, %v", got, err)
			}
		}
	})
}

// FuzzRing: an element either breaks the ring, or leaves one that lists
// consistent keys; a well-formed revocation never goes unheeded.
func FuzzRing(f *testing.F) {
	for _, document := range ringKinds() {
		f.Add([]byte(document))
	}
	for _, real := range realRings(f) {
		f.Add([]byte(real.Keyring[0].XML))
	}
	f.Add([]byte(revocationOf("*", atStart())))
	f.Add([]byte(revocationOf(KeyID{1}.String(), atStart())))
	f.Add([]byte(`<!DOCTYPE k [<!ENTITY a "aa">]><key>&a;</key>`))
	log := slog.New(slog.DiscardHandler)
	f.Fuzz(func(t *testing.T, document []byte) {
		ring, err := parseRing([]ringstore.Element{{Name: "e", XML: document}}, nil, log)
		if err != nil {
			return
		}
		for i, k := range ring.keys {
			if ring.find(k.id.wire()) != &ring.keys[i] || (k.unusable == nil) != (k.algorithm != nil && len(k.master) > 0) {
				t.Errorf("key %+v", k)
			}
		}
		n, err := parseXML(document)
		if err != nil {
			t.Fatalf("a ring of what is no XML: %v", err)
		}
		var revoked revocations
		if n.name.Local == "revocation" && n.name.Space == "" {
			if err := revoked.add(n); err != nil || len(revoked.ids) == 0 && revoked.before.IsZero() {
				t.Errorf("a revocation went unheeded: %v", err)
			}
		}
		// The same ring read again takes its keys over.
		again, err := parseRing([]ringstore.Element{{Name: "e", XML: document}}, ring, log)
		if err != nil || ring.forgets(again) {
			t.Errorf("read again: %v", err)
		}
	})
}
