package dataprotection

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// algorithmOf reads the vectors' names, such as AES_256_CBC+HMACSHA384.
func algorithmOf(t testing.TB, name string) *algorithm {
	t.Helper()
	encryption, validation, _ := strings.Cut(name, "+")
	keySize, gcm := namedCipher(encryption)
	hmac := namedHMAC(validation, "SHA1", "SHA256", "SHA384", "SHA512")
	if keySize == 0 || gcm == (hmac != nil) {
		t.Fatalf("algorithm %q", name)
	}
	return newAlgorithm(keySize, hmac)
}

func TestContextHeaders(t *testing.T) {
	vectors := testdata[struct {
		Vectors []struct {
			Algorithm string
			KDFOutput string `json:"kdf_output_hex"`
			Header    string `json:"context_header_hex"`
		}
	}](t, "kat-context-headers.json")
	checked := 0
	for _, v := range vectors.Vectors {
		if strings.HasPrefix(v.Algorithm, "3DES") {
			continue // only custom types of an application can use it
		}
		alg := algorithmOf(t, v.Algorithm)
		if got := hex.EncodeToString(alg.header); got != v.Header {
			t.Errorf("%s: header\n got %s\nwant %s", v.Algorithm, got, v.Header)
		}
		if v.KDFOutput != "" {
			var out [maxDerived]byte
			newDerivation(nil, nil, nil, alg.derivedSize()).derive(out[:], nil)
			if got := hex.EncodeToString(out[:alg.derivedSize()]); got != v.KDFOutput {
				t.Errorf("%s: keys\n got %s\nwant %s", v.Algorithm, got, v.KDFOutput)
			}
		}
		checked++
	}
	if checked < 7 {
		t.Errorf("only %d vectors", checked)
	}
}

func TestDerivation(t *testing.T) {
	vectors := testdata[struct {
		Vectors []struct {
			KDK struct {
				UTF8   string
				Length int
			}
			Label   string `json:"label_utf8"`
			Header  string `json:"context_header_utf8"`
			Context string `json:"context_utf8"`
			Bytes   int    `json:"num_bytes"`
			Output  string `json:"output_base64"`
		}
	}](t, "kat-sp800-108.json")
	for i, v := range vectors.Vectors {
		master := []byte(v.KDK.UTF8)
		for i := range v.KDK.Length {
			master = append(master, byte(i))
		}
		d := newDerivation(master, []byte(v.Label), []byte(v.Header), v.Bytes)
		for range 2 { // the kept states survive their use
			out := make([]byte, v.Bytes)
			d.derive(out, []byte(v.Context))
			if got := base64.StdEncoding.EncodeToString(out); got != v.Output {
				t.Errorf("vector %d: got %s, want %s", i, got, v.Output)
			}
		}
	}
}

func TestLabel(t *testing.T) {
	vectors := testdata[struct {
		Vectors []struct {
			KeyID    string `json:"key_id"`
			Purposes []string
			AAD      string `json:"aad_base64"`
		}
	}](t, "kat-aad-template.json")
	for _, v := range vectors.Vectors {
		id, err := ParseKeyID(v.KeyID)
		if err != nil {
			t.Fatal(err)
		}
		if got := base64.StdEncoding.EncodeToString(label(id, v.Purposes)); got != v.AAD {
			t.Errorf("got %s, want %s", got, v.AAD)
		}
	}
}

func TestKnownKeyEncryption(t *testing.T) {
	vectors := testdata[struct {
		Vectors []struct {
			Algorithm string
			PreZero   int    `json:"pre_zero"`
			PostZero  int    `json:"post_zero"`
			KDK       string `json:"kdk_utf8"`
			Plaintext string `json:"plaintext_hex"`
			AAD       string `json:"aad_hex"`
			Modifier  string `json:"key_modifier_hex"`
			IV        string `json:"iv_hex"`
			Output    string `json:"output_hex"`
		}
	}](t, "kat-known-key-encryption.json")
	for i, v := range vectors.Vectors {
		e := newEncryptor(algorithmOf(t, v.Algorithm), []byte(v.KDK), unhex(t, v.AAD))
		want := unhex(t, v.Output)
		want = want[v.PreZero : len(want)-v.PostZero]

		at := room + headerSize
		buf := slices.Concat(make([]byte, at), unhex(t, v.Modifier), unhex(t, v.IV))
		sealed := e.seal(buf, unhex(t, v.Plaintext))
		if !bytes.Equal(sealed[at:], want) {
			t.Errorf("vector %d: sealed\n got %x\nwant %x", i, sealed[at:], want)
		}
		opened, err := e.open(sealed, at)
		if err != nil || !bytes.Equal(opened, unhex(t, v.Plaintext)) {
			t.Errorf("vector %d: opened %x, %v", i, opened, err)
		}
	}
}

// realRing is a ring and its tokens, as the real ASP.NET Core made them.
type realRing struct {
	Name          string
	Discriminator string
	Algorithm     string
	Header        string `json:"context_header_hex"`
	AtRest        string `json:"at_rest"`
	Keyring       []ringFile
	Tokens        []realToken
}

type ringFile struct{ File, XML string }

type realToken struct {
	Label     string
	Chain     []string `json:"full_purpose_chain"`
	Purposes  []string
	Plaintext string `json:"plaintext_hex"`
	Protected string `json:"protected_base64url"`
	KeyID     string `json:"key_id"`
}

func documents(files []ringFile) []string {
	var all []string
	for _, file := range files {
		all = append(all, "\ufeff"+file.XML)
	}
	return all
}

func realRings(t testing.TB) []realRing {
	names, err := filepath.Glob("testdata/real-*aes*.json")
	if err != nil || len(names) < 7 {
		t.Fatalf("vectors: %v, %v", names, err)
	}
	var rings []realRing
	for _, name := range names {
		rings = append(rings, testdata[realRing](t, filepath.Base(name)))
	}
	return rings
}

func TestRealTokens(t *testing.T) {
	for _, real := range realRings(t) {
		t.Run(real.Name, func(t *testing.T) {
			ring := newRing(t, Options{Repository: holding(documents(real.Keyring)...), ApplicationName: real.Discriminator})
			if err := ring.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			if real.AtRest == "certificate" {
				checkCertificateRing(t, ring, real)
				return
			}
			k := ring.current.Load().keys[0]
			if got := hex.EncodeToString(k.algorithm.header); got != real.Header {
				t.Errorf("context header %s, want %s", got, real.Header)
			}
			for i, token := range real.Tokens {
				p := ring.Protector(token.Purposes...)
				if !slices.Equal(p.purposes, token.Chain) {
					t.Errorf("token %d: purposes %q, want %q", i, p.purposes, token.Chain)
				}
				got, err := p.Open(t.Context(), token.Protected)
				if err != nil || hex.EncodeToString([]byte(got)) != token.Plaintext {
					t.Errorf("token %d: %x, %v", i, got, err)
				}
				again, err := p.Seal(t.Context(), []byte(got))
				if err != nil || len(again) != len(token.Protected) || again[:26] != token.Protected[:26] || again == token.Protected {
					t.Errorf("token %d: sealed %.40s (%v), want the like of %.40s", i, again, err, token.Protected)
				}
				if back, err := p.Open(t.Context(), again); err != nil || back != got {
					t.Errorf("token %d: own token opens to %x, %v", i, back, err)
				}
			}
		})
	}
}

// checkCertificateRing: the key is listed, useless, and says why.
func checkCertificateRing(t *testing.T, ring *Ring, real realRing) {
	_, err := ring.Protector(real.Tokens[0].Purposes...).Open(t.Context(), real.Tokens[0].Protected)
	if !errors.Is(err, ErrUnusableKey) || !errors.Is(err, ErrUnknownKey) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("opening: %v", err)
	}
	keys, err := ring.Keys(t.Context())
	if err != nil || len(keys) != 1 || keys[0].Usable || !errors.Is(keys[0].WhyNot, ErrUnusableKey) {
		t.Errorf("keys: %+v, %v", keys, err)
	}
	if _, err := ring.Protector("p").Seal(t.Context(), nil); !errors.Is(err, ErrNoKey) {
		t.Errorf("sealing: %v", err)
	}
}

func TestRealRevocations(t *testing.T) {
	real := testdata[struct {
		Discriminator string
		Before        []ringFile `json:"keyring_before_mass_revocation"`
		After         []ringFile `json:"keyring"`
		Tokens        []realToken
		OutcomeBefore []outcome `json:"outcomes_before_mass_revocation"`
		OutcomeAfter  []outcome `json:"outcomes_after_mass_revocation"`
	}](t, "real-multikey-revocation.json")
	check := func(ring *Ring, outcomes []outcome) {
		t.Helper()
		for _, outcome := range outcomes {
			i := slices.IndexFunc(real.Tokens, func(token realToken) bool { return token.Label == outcome.Label })
			token := real.Tokens[i]
			got, err := ring.Protector(token.Purposes...).Open(t.Context(), token.Protected)
			if outcome.Unprotect == "ok" {
				if err != nil || hex.EncodeToString([]byte(got)) != token.Plaintext {
					t.Errorf("%s: %x, %v", outcome.Label, got, err)
				}
			} else if !errors.Is(err, ErrRevoked) || !errors.Is(err, ErrUnreadable) || errors.Is(err, ErrUnknownKey) {
				t.Errorf("%s: %v, want ErrRevoked", outcome.Label, err)
			}
		}
	}
	repository := holding(documents(real.Before)...)
	ring := newRing(t, Options{Repository: repository, ApplicationName: real.Discriminator})
	check(ring, real.OutcomeBefore)

	epoch := ring.Epoch()
	repository.set(func(f *fakeRepository) { f.elements = holding(documents(real.After)...).elements })
	if err := ring.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ring.Epoch() == epoch {
		t.Error("the epoch did not change with a revocation")
	}
	check(ring, real.OutcomeAfter)
}

type outcome struct{ Label, Unprotect string }

func TestHandmadeRings(t *testing.T) {
	vectors := testdata[struct {
		Cases []struct {
			Name     string
			XML      []string
			Load     string
			Keys     *int
			Usable   *bool `json:"key_usable"`
			Revoked  *bool
			Mentions string `json:"error_mentions"`
		}
	}](t, "handmade-bad-rings.json")
	for _, c := range vectors.Cases {
		t.Run(c.Name, func(t *testing.T) {
			ring := newRing(t, Options{Repository: holding(c.XML...)})
			if err := ring.Load(t.Context()); c.Load == "error" {
				if !errors.Is(err, ErrBroken) {
					t.Errorf("load: %v, want ErrBroken", err)
				}
				return
			} else if err != nil {
				t.Fatal(err)
			}
			keys, err := ring.Keys(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if c.Keys != nil && len(keys) != *c.Keys {
				t.Fatalf("%d keys, want %d", len(keys), *c.Keys)
			}
			if c.Usable != nil && keys[0].Usable != *c.Usable {
				t.Errorf("usable %v, want %v", keys[0].Usable, *c.Usable)
			}
			if c.Revoked != nil && (keys[0].Revoked != *c.Revoked || keys[0].Usable == *c.Revoked) {
				t.Errorf("revoked %v, usable %v, want revoked %v", keys[0].Revoked, keys[0].Usable, *c.Revoked)
			}
			if c.Mentions != "" && !strings.Contains(fmt.Sprint(keys[0].WhyNot), c.Mentions) {
				t.Errorf("reason %v does not mention %q", keys[0].WhyNot, c.Mentions)
			}
		})
	}
}

// TestWrittenKeyIsAsDotNetWritesIt compares with a file that .NET wrote, byte
// for byte.
func TestWrittenKeyIsAsDotNetWritesIt(t *testing.T) {
	real := testdata[realRing](t, "real-default-aes256cbc-hmacsha256.json")
	document := real.Keyring[0].XML
	n, err := parseXML([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	k, err := parseKey(n)
	if err != nil {
		t.Fatal(err)
	}
	got := `<?xml version="1.0" encoding="utf-8"?>` + "\n" + string(newKeyXML(k.id, k.created, k.activates, k.expires, k.master))
	if got != document {
		t.Errorf("got\n%s\nwant\n%s", got, document)
	}
}

func TestDates(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 120_000_000, time.UTC)
	for text, want := range map[string]bool{
		"2026-01-02T03:04:05.12Z":            true,
		"2026-01-02T03:04:05.1200000Z":       true,
		"2026-01-02T05:04:05.12+02:00":       true,
		"2026-01-02T03:04:05.12":             false,
		"2026-01-02":                         false,
		"":                                   false,
		"2026-13-02T03:04:05Z":               false,
		strings.Repeat("2026-01-02T03:0", 9): false,
	} {
		if got, err := parseDate(text); (err == nil) != want || want && !got.Equal(at) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, at := range []time.Time{at, at.Add(3456700), at.Truncate(time.Second)} {
		if back, err := parseDate(formatDate(at)); err != nil || !back.Equal(at) {
			t.Errorf("%v comes back as %v, %v", at, back, err)
		}
	}
	if got := formatDate(at); got != "2026-01-02T03:04:05.12Z" {
		t.Errorf("got %s", got)
	}
}
