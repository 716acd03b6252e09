package dataprotection

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

func TestParseXML(t *testing.T) {
	deep := strings.Repeat("<a>", maxElementDepth+1) + strings.Repeat("</a>", maxElementDepth+1)
	laughs := `<!DOCTYPE k [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><k>&b;&b;&b;&b;</k>`
	for _, c := range []struct {
		name, document string
		ok             bool
	}{
		{"bare", "<k/>", true},
		{"byte order mark, declaration, white space", "\ufeff<?xml version=\"1.0\" encoding=\"utf-8\"?>\r\n<k />\n", true},
		{"comments around", "<!-- a --><k/><!-- b -->", true},
		{"nothing", "", false},
		{"only white space", " \n", false},
		{"text before", "x<k/>", false},
		{"text after", "<k/>x", false},
		{"two elements", "<k/><k/>", false},
		{"not closed", "<k>", false},
		{"closed by another", "<k></l>", false},
		{"attribute given twice", `<k id="1" id="2"/>`, false},
		{"document type", "<!DOCTYPE k><k/>", false},
		{"billion laughs", laughs, false},
		{"undeclared entity", "<k>&b;</k>", false},
		{"entities of XML", "<k>&amp;&#65;</k>", true},
		{"other encoding", `<?xml version="1.0" encoding="utf-16"?><k/>`, false},
		{"no UTF-8", "<k>\xff</k>", false},
		{"too deep", deep, false},
		{"too many", "<k>" + strings.Repeat("<a/>", maxElementNodes) + "</k>", false},
		{"too large", "<k>" + strings.Repeat("a", maxElementBytes) + "</k>", false},
	} {
		if _, err := parseXML([]byte(c.document)); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestParseKeyID(t *testing.T) {
	const text = "637b09d3-96bc-4e36-991d-0083f2511e78"
	want := wireID{0xd3, 0x09, 0x7b, 0x63, 0xbc, 0x96, 0x36, 0x4e, 0x99, 0x1d, 0x00, 0x83, 0xf2, 0x51, 0x1e, 0x78}
	for _, s := range []string{text, strings.ToUpper(text), "{" + text + "}"} {
		id, err := ParseKeyID(s)
		if err != nil || id.wire() != want || id.String() != text {
			t.Errorf("%q: %v, %v", s, id, err)
		}
	}
	for _, s := range []string{"", "*", text[1:], "{" + text, text + "}", text + "0", strings.ReplaceAll(text, "-", ""), strings.Replace(text, "b", "g", 1)} {
		if id, err := ParseKeyID(s); err == nil {
			t.Errorf("%q: accepted as %v", s, id)
		}
	}
	if a, b := newKeyID(), newKeyID(); a == b || a[6]>>4 != 4 || a[8]>>6 != 2 {
		t.Errorf("random ids %v, %v", a, b)
	}
}

// TestKeyElements: malformed keys are skipped, those with a bad descriptor are
// listed with the reason.
func TestKeyElements(t *testing.T) {
	good := keyAt(KeyID{1}, atStart())
	value := good[strings.Index(good, "<value>")+7 : strings.Index(good, "</value>")]
	with := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("%q is not in a key", old)
		}
		return strings.Replace(good, old, new, 1)
	}
	descriptor := good[strings.Index(good, "<descriptor deser"):strings.Index(good, "</key>")]
	for _, c := range []struct {
		name, document string
		listed         bool
		mentions       string // of the reason; "": usable
	}{
		{"good", good, true, ""},
		{"another prefix", strings.NewReplacer("p4:", "d1p1:", ":p4", ":d1p1").Replace(good), true, ""},
		{"white space in base64", with(value, "\n  "+value[:20]+"\r\n\t"+value[20:]+" "), true, ""},
		{"key split by a comment", with(value, value[:20]+"<!-- -->"+value[20:]), true, ""},
		{"version not checked", with(`version="1"`, `version="7"`), true, ""},
		{"braces around the id", with(`id="`+KeyID{1}.String()+`"`, `id="{`+KeyID{1}.String()+`}"`), true, ""},
		{"no id", with(` id="`+KeyID{1}.String()+`"`, ""), false, ""},
		{"no expiration", strings.ReplaceAll(good, "expirationDate", "other"), false, ""},
		{"no descriptor", with(descriptor, ""), true, "no descriptor"},
		{"empty descriptor", with(descriptor, "<descriptor/>"), true, "no single descriptor"},
		{"two descriptors", with("<descriptor>", "<a/><descriptor>"), true, "no single descriptor"},
		{"no kind", with(" deserializerType=", " other="), true, "unknown kind"},
		{"foreign namespace", with("Microsoft.AspNetCore.DataProtection.Auth", "Evil.Auth"), true, "unknown kind"},
		{"unknown cipher", with("AES_256_CBC", "ROT13"), true, `"ROT13"`},
		{"no cipher", with("<encryption ", "<other "), true, "encryption algorithm"},
		{"unknown MAC", with("HMACSHA256", "HMACMD5"), true, "validation algorithm"},
		{"MAC that only custom types have", with("HMACSHA256", "HMACSHA1"), true, "validation algorithm"},
		{"no MAC", with("<validation ", "<other "), true, "validation algorithm"},
		{"no master key", strings.ReplaceAll(good, "masterKey", "other"), true, "no master key"},
		{"empty master key", with(value, ""), true, "empty master key"},
		{"bad base64", with(value, "!"+value[1:]), true, "not base64"},
		{"long algorithm name", with("AES_256_CBC", strings.Repeat("A", 10_000)), true, "encryption algorithm"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var logged bytes.Buffer
			ring := newRing(t, Options{
				Repository: holding(c.document), Now: atStart,
				Logger: slog.New(slog.NewTextHandler(&logged, nil)),
			})
			keys, err := ring.Keys(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !c.listed {
				if len(keys) != 0 || !strings.Contains(logged.String(), "malformed key skipped") {
					t.Errorf("%d keys, logged %q", len(keys), &logged)
				}
				return
			}
			if len(keys) != 1 || keys[0].Usable != (c.mentions == "") {
				t.Fatalf("keys %+v", keys)
			}
			if c.mentions == "" {
				return
			}
			why := keys[0].WhyNot
			if !errors.Is(why, ErrUnusableKey) || !strings.Contains(why.Error(), c.mentions) || len(why.Error()) > 600 {
				t.Errorf("reason %v, want %q", why, c.mentions)
			}
			if strings.Contains(why.Error(), value[1:20]) {
				t.Errorf("the reason %v quotes the key", why)
			}
		})
	}
}

// TestRevocationElements: what is not understood in full breaks the ring.
func TestRevocationElements(t *testing.T) {
	id := KeyID{1}.String()
	for _, c := range []struct {
		name, document string
		broken         bool
		revoked        bool
	}{
		{"single", `<revocation><key id="` + id + `"/></revocation>`, false, true},
		{"single, upper case", `<revocation><key id="` + strings.ToUpper(id) + `"/></revocation>`, false, true},
		{"single, any date", `<revocation><revocationDate>x</revocationDate><key id="` + id + `"/></revocation>`, false, true},
		{"another key", `<revocation><key id="` + KeyID{2}.String() + `"/></revocation>`, false, false},
		{"no key", `<revocation><revocationDate>2026-01-02T00:00:00Z</revocationDate></revocation>`, true, false},
		{"two keys", `<revocation><key id="` + id + `"/><key id="` + KeyID{2}.String() + `"/></revocation>`, true, false},
		{"no id", `<revocation><key/></revocation>`, true, false},
		{"foreign namespace inside", `<revocation><key xmlns="x" id="` + id + `"/></revocation>`, true, false},
		{"mass, no date", `<revocation><key id="*"/></revocation>`, true, false},
		{"mass, no time zone", `<revocation><revocationDate>2027-01-02T00:00:00</revocationDate><key id="*"/></revocation>`, true, false},
		{"foreign namespace", `<revocation xmlns="x"><key id="` + id + `"/></revocation>`, false, false},
	} {
		ring := newRing(t, Options{Repository: holding(c.document, keyAt(KeyID{1}, atStart())), Now: atStart})
		keys, err := ring.Keys(t.Context())
		if errors.Is(err, ErrBroken) != c.broken {
			t.Errorf("%s: %v", c.name, err)
		}
		if !c.broken && keys[0].Revoked != c.revoked {
			t.Errorf("%s: revoked %v", c.name, keys[0].Revoked)
		}
	}
}

// TestBrokenElementsAreNotQuoted: errors reach logs.
func TestBrokenElementsAreNotQuoted(t *testing.T) {
	good := keyAt(KeyID{1}, atStart())
	at := strings.Index(good, "<value>") + len("<value>")
	secret := good[at+5 : at+30]
	for _, cut := range []string{
		good[:at+40],
		good[:at] + "&" + good[at:],
		good[:at] + "<" + good[at:],
		strings.Replace(good, "</value>", "</"+secret+">", 1),
		strings.Replace(good, "<creationDate>", "<creationDate>"+secret, 1) + "<x",
	} {
		ring := newRing(t, Options{Repository: holding(cut)})
		if err := ring.Load(t.Context()); !errors.Is(err, ErrBroken) || strings.Contains(err.Error(), secret) {
			t.Errorf("%v", err)
		}
	}
}
