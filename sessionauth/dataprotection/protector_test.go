package dataprotection

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// ringKinds are rings of one key for each algorithm.
func ringKinds() map[string]string {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	standard := keyAt(KeyID{1, 15: 1}, at)
	with := func(old, new string) string { return strings.Replace(standard, old, new, 1) }
	kinds := map[string]string{
		"AES-256-CBC HMAC-SHA512": with("HMACSHA256", "HMACSHA512"),
		"AES-128-GCM": strings.Replace(with("AES_256_CBC", "AES_128_GCM"),
			`<validation algorithm="HMACSHA256" />`, "<!-- none -->", 1),
	}
	managed := with(".AuthenticatedEncryptorDescriptorDeserializer", ".ManagedAuthenticatedEncryptorDescriptorDeserializer")
	managed = strings.Replace(managed, `algorithm="AES_256_CBC"`, `algorithm="Aes" keyLength="192"`, 1)
	for _, hash := range []string{"SHA1", "SHA256", "SHA384", "SHA512"} {
		kinds["managed AES-192 HMAC-"+hash] = strings.Replace(managed, "HMACSHA256", "HMAC"+hash, 1)
	}
	kinds["managed, assembly-qualified"] = strings.Replace(managed, `"Aes"`,
		`"System.Security.Cryptography.Aes, System.Security.Cryptography, Version=9.0.0.0"`, 1)
	cng := with(".AuthenticatedEncryptorDescriptorDeserializer", ".CngCbcAuthenticatedEncryptorDescriptorDeserializer")
	cng = strings.Replace(cng, `algorithm="AES_256_CBC"`, `algorithm="AES" keyLength="256" provider="p"`, 1)
	kinds["CNG CBC"] = strings.Replace(cng, `<validation algorithm="HMACSHA256" />`, `<hash algorithm="SHA512" />`, 1)
	cng = with(".AuthenticatedEncryptorDescriptorDeserializer", ".CngGcmAuthenticatedEncryptorDescriptorDeserializer")
	cng = strings.Replace(cng, `algorithm="AES_256_CBC"`, `algorithm="AES" keyLength="256"`, 1)
	kinds["CNG GCM"] = strings.Replace(cng, `<validation algorithm="HMACSHA256" />`, "", 1)
	kinds["namespace of old versions"] = with("Microsoft.AspNetCore.DataProtection.A", "Microsoft.AspNet.DataProtection.A")
	kinds["default"] = standard
	return kinds
}

func atStart() time.Time { return time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC) }

func TestEveryAlgorithmSealsAndOpens(t *testing.T) {
	for name, document := range ringKinds() {
		t.Run(name, func(t *testing.T) {
			ring := newRing(t, Options{Repository: holding(document), Now: atStart})
			p := ring.Protector("a", "b")
			for size := range 50 {
				text := strings.Repeat("x", size)
				token, err := p.Seal(t.Context(), []byte(text))
				if err != nil {
					t.Fatal(err)
				}
				if got, err := p.Open(t.Context(), token); err != nil || got != text {
					t.Fatalf("size %d: %q, %v", size, got, err)
				}
			}
		})
	}
}

// TestTampering alters every character, every bit and every length of a token.
func TestTampering(t *testing.T) {
	for name, document := range ringKinds() {
		t.Run(name, func(t *testing.T) {
			ring := newRing(t, Options{Repository: holding(document), Now: atStart})
			p := ring.Protector("p")
			token, err := p.Seal(t.Context(), []byte("plaintext of some length"))
			if err != nil {
				t.Fatal(err)
			}
			refused := func(what, token string) {
				t.Helper()
				if got, err := p.Open(t.Context(), token); !errors.Is(err, ErrUnreadable) || got != "" {
					t.Errorf("%s: %q, %v", what, got, err)
				}
			}
			for i := range token {
				for _, mask := range []byte{0x01, 0x20, 0x80} {
					altered := []byte(token)
					altered[i] ^= mask
					refused(fmt.Sprintf("character %d ^ %#x", i, mask), string(altered))
				}
				refused(fmt.Sprintf("cut to %d", i), token[:i])
				refused(fmt.Sprintf("line break at %d", i), token[:i]+"\n"+token[i:])
				refused(fmt.Sprintf("line breaks at %d", i), token[:i]+"\r\n\r\n"+token[i:])
			}
			raw, err := base64.RawURLEncoding.DecodeString(token)
			if err != nil {
				t.Fatal(err)
			}
			for i := range raw {
				for bit := range 8 {
					altered := append([]byte(nil), raw...)
					altered[i] ^= 1 << bit
					refused(fmt.Sprintf("byte %d, bit %d", i, bit), base64.RawURLEncoding.EncodeToString(altered))
				}
			}
			for _, more := range []string{"A", "AA", "=", "==", " ", "\n", strings.Repeat("A", 64)} {
				refused(fmt.Sprintf("%q appended", more), token+more)
			}
			refused("empty", "")
			refused("huge", strings.Repeat("A", 2<<20))
		})
	}
}

func TestDefectsAreToldApartForTheLog(t *testing.T) {
	id := KeyID{1, 15: 1}
	ring := newRing(t, Options{Repository: holding(keyAt(id, atStart())), Now: atStart})
	token, err := ring.Protector("p").Seal(t.Context(), []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := base64.RawURLEncoding.DecodeString(token)
	alter := func(change func([]byte) []byte) string {
		return base64.RawURLEncoding.EncodeToString(change(append([]byte(nil), raw...)))
	}
	for _, c := range []struct {
		name, token string
		want        error
	}{
		{"no base64url", "CfDJ8+/", errForm},
		{"short", "CfDJ8Jfz", errSize},
		{"magic", alter(func(b []byte) []byte { b[0]++; return b }), errHeader},
		{"version", alter(func(b []byte) []byte { b[3]++; return b }), errVersion},
		{"key id", alter(func(b []byte) []byte { b[4]++; return b }), ErrUnknownKey},
		{"payload cut", alter(func(b []byte) []byte { return b[:headerSize+16] }), errSize},
		{"no whole block", alter(func(b []byte) []byte { return b[:len(b)-1] }), errSize},
		{"MAC", alter(func(b []byte) []byte { b[len(b)-1]++; return b }), errForged},
	} {
		if _, err := ring.Protector("p").Open(t.Context(), c.token); !errors.Is(err, c.want) || !errors.Is(err, ErrUnreadable) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

// TestAuthenticPaddingErrors: a writer with the key that pads badly is refused
// as well.
func TestAuthenticPaddingErrors(t *testing.T) {
	for _, padding := range [][]byte{{0}, {17}, {2, 3, 2}, {16}} {
		block := make([]byte, 16)
		copy(block[16-len(padding):], padding)
		if got, err := unpad(block); !errors.Is(err, ErrUnreadable) {
			t.Errorf("padding %v: %v, %v", padding, got, err)
		}
	}
}

func TestPurposesSeparate(t *testing.T) {
	document := keyAt(KeyID{1, 15: 1}, atStart())
	with := func(name string) *Ring {
		return newRing(t, Options{Repository: holding(document), ApplicationName: name, Now: atStart})
	}
	named, other, bare := with("app"), with("App"), with("")
	same := map[string]*Protector{
		"named":       named.Protector("a", "b"),
		"bare, spelt": bare.Protector("app", "a", "b"),
	}
	token, err := same["named"].Seal(t.Context(), []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range same {
		if got, err := p.Open(t.Context(), token); err != nil || got != "x" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for name, p := range map[string]*Protector{
		"swapped":           named.Protector("b", "a"),
		"joined":            named.Protector("ab"),
		"shifted":           named.Protector("a", "b", ""),
		"longer":            named.Protector("a", "b", "c"),
		"shorter":           named.Protector("a"),
		"none":              named.Protector(),
		"other case":        named.Protector("A", "b"),
		"other application": other.Protector("a", "b"),
		"no application":    bare.Protector("a", "b"),
	} {
		if _, err := p.Open(t.Context(), token); !errors.Is(err, ErrUnreadable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTooLargePlaintext(t *testing.T) {
	ring := newRing(t, Options{Repository: holding(keyAt(KeyID{1}, atStart())), Now: atStart})
	p := ring.Protector("p")
	if _, err := p.Seal(t.Context(), make([]byte, maxTokenBytes)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	token, err := p.Seal(t.Context(), make([]byte, maxTokenBytes/2))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.Open(t.Context(), token); err != nil || len(got) != maxTokenBytes/2 {
		t.Errorf("largest: %d bytes, %v", len(got), err)
	}
}

// TestConcurrentUse seals and opens while the ring changes beneath.
func TestConcurrentUse(t *testing.T) {
	repository := holding(keyAt(KeyID{1, 15: 1}, atStart()))
	ring := newRing(t, Options{Repository: repository, Now: atStart})
	protectors := []*Protector{ring.Protector("p"), ring.Protector("q")}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 4 {
		p := protectors[i%2]
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				token, err := p.Seal(t.Context(), []byte("text"))
				if err != nil {
					t.Errorf("seal: %v", err)
					return
				}
				if got, err := p.Open(t.Context(), token); err != nil || got != "text" {
					t.Errorf("open: %q, %v", got, err)
					return
				}
				ring.Epoch()
			}
		})
	}
	for i := range byte(8) {
		repository.set(func(f *fakeRepository) {
			f.elements = append(f.elements, holding(keyAt(KeyID{2, 15: i}, atStart().Add(-time.Duration(i)*time.Second))).elements...)
		})
		if err := ring.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := ring.Keys(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	wg.Wait()
	if ring.Epoch() != 0 {
		t.Error("the epoch changed although no key was removed")
	}
}

func benchmarkRing(b *testing.B) (*Protector, []byte, string) {
	ring := newRing(b, Options{Repository: holding(keyAt(KeyID{1, 15: 1}, time.Now().Add(-time.Hour)))})
	p := ring.Protector("Gatehouse.Session", "www.example.com", "__Host-gatehouse", "v1")
	plaintext := []byte(strings.Repeat("x", 300))
	token, err := p.Seal(b.Context(), plaintext)
	if err != nil {
		b.Fatal(err)
	}
	return p, plaintext, token
}

// BenchmarkOpen: at most 2.5 µs and 3 allocations.
func BenchmarkOpen(b *testing.B) {
	p, plaintext, token := benchmarkRing(b)
	b.ReportAllocs()
	for b.Loop() {
		if got, err := p.Open(b.Context(), token); err != nil || len(got) != len(plaintext) {
			b.Fatal(err)
		}
	}
}

func BenchmarkSeal(b *testing.B) {
	p, plaintext, _ := benchmarkRing(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Seal(b.Context(), plaintext); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpenForged(b *testing.B) {
	p, _, token := benchmarkRing(b)
	token = token[:len(token)-4] + "AAAA"
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Open(b.Context(), token); err == nil {
			b.Fatal("opened")
		}
	}
}

func BenchmarkOpenParallel(b *testing.B) {
	p, _, token := benchmarkRing(b)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := p.Open(b.Context(), token); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// TestAllocations guards what the benchmarks show.
func TestAllocations(t *testing.T) {
	ring := newRing(t, Options{Repository: holding(keyAt(KeyID{1}, atStart())), Now: atStart})
	p := ring.Protector("p")
	text := make([]byte, 300)
	token, err := p.Seal(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	forged := token[:len(token)-4] + "AAAA"
	for name, c := range map[string]struct {
		most float64
		run  func()
	}{
		"open":   {3, func() { _, _ = p.Open(ctx, token) }},
		"forged": {2, func() { _, _ = p.Open(ctx, forged) }},
		"seal":   {3, func() { _, _ = p.Seal(ctx, text) }},
	} {
		// The race detector makes pools forget, so a little more is let pass.
		if got := testing.AllocsPerRun(200, c.run); got > c.most+raceSlack {
			t.Errorf("%s: %v allocations, want at most %v", name, got, c.most)
		}
	}
}
