package chunkedupload

import (
	"encoding/base64"
	"fmt"
	"mime"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParseMetadata(t *testing.T) {
	many := func(n int) string {
		var pairs []string
		for i := range n {
			pairs = append(pairs, fmt.Sprintf("k%d", i))
		}
		return strings.Join(pairs, ",")
	}
	for field, want := range map[string]string{
		"": "map[]",
		"filename cmVwb3J0IGZpbmFsLnBkZg==,draft": "map[draft: filename:report final.pdf]",
		"a YQ==, b Yg==":                 "map[a:a b:b]",
		"a ":                             "map[a:]",
		"a":                              "map[a:]",
		"a YQ":                           "bad", // not padded
		"a YR==":                         "bad", // bits after the end
		"a YQ==\n":                       "bad",
		"a Y-Q=":                         "bad",
		"a YQ== x":                       "bad",
		"a  YQ==":                        "bad",
		"a YQ==,a Yg==":                  "bad",
		",":                              "bad",
		"a,":                             "bad",
		"\xff YQ==":                      "bad",
		"ä YQ==":                         "bad",
		"a\tb YQ==":                      "bad",
		many(65):                         "bad",
		"a " + strings.Repeat("A", 4096): "bad",
	} {
		pairs, err := parseMetadata(field)
		got := fmt.Sprint(pairs)
		if err != nil {
			got = "bad"
		}
		if got != want {
			t.Errorf("%q: %s, want %s", field, got, want)
		}
	}
	if pairs, err := parseMetadata(many(64)); err != nil || len(pairs) != 64 {
		t.Errorf("64 keys: %v", err)
	}
}

func TestContentType(t *testing.T) {
	for declared, want := range map[string]string{
		"":                              defaultContentType,
		"image/png":                     "image/png",
		"Text/HTML; Charset=UTF-8":      "text/html; charset=UTF-8",
		"image":                         defaultContentType,
		"image/png\r\nX-Evil: 1":        defaultContentType,
		"a/b; c":                        defaultContentType,
		"ä/b":                           defaultContentType,
		"a/" + strings.Repeat("b", 300): defaultContentType,
	} {
		if got := contentType(declared); got != want {
			t.Errorf("%q: %q, want %q", declared, got, want)
		}
	}
}

func TestContentDisposition(t *testing.T) {
	for declared, want := range map[string]string{
		"":                   "attachment",
		"..":                 "attachment",
		" . ":                "attachment",
		"a.txt":              `attachment; filename="a.txt"; filename*=UTF-8''a.txt`,
		"/etc/passwd":        `attachment; filename="passwd"; filename*=UTF-8''passwd`,
		`C:\x\y.doc`:         `attachment; filename="y.doc"; filename*=UTF-8''y.doc`,
		"a/":                 "attachment",
		"na\"me%41.txt":      `attachment; filename="na_me_41.txt"; filename*=UTF-8''na%22me%2541.txt`,
		"naïve €.txt":        `attachment; filename="na_ve _.txt"; filename*=UTF-8''na%C3%AFve%20%E2%82%AC.txt`,
		"a\r\nX-Evil: 1":     `attachment; filename="aX-Evil: 1"; filename*=UTF-8''aX-Evil%3A%201`,
		"a\x00b\x7f\xff.txt": `attachment; filename="ab.txt"; filename*=UTF-8''ab.txt`,
		"gnp.\u202etxt":      `attachment; filename="gnp.txt"; filename*=UTF-8''gnp.txt`,
		"it's=(1)@*;.txt":    `attachment; filename="it's=(1)@*;.txt"; filename*=UTF-8''it%27s%3D%281%29%40%2A%3B.txt`,
	} {
		if got := contentDisposition(declared); got != want {
			t.Errorf("%q:\n got %s\nwant %s", declared, got, want)
		}
	}
}

func FuzzMetadata(f *testing.F) {
	f.Add("filename cmVwb3J0IGZpbmFsLnBkZg==,draft", "naïve €.txt", "image/png")
	f.Add("a YQ==, b Yg==", `C:\x\"y%`, "a/b; c=\"d\"")
	f.Add(",, ", "\u202e\xff/..", "text/html;\r\n")
	f.Fuzz(func(t *testing.T, field, name, media string) {
		if pairs, err := parseMetadata(field); err == nil {
			var again []string
			for k, v := range pairs {
				again = append(again, k+" "+base64.StdEncoding.EncodeToString([]byte(v)))
			}
			if back, err := parseMetadata(strings.Join(again, ",")); len(again) > 0 && len(strings.Join(again, ",")) <= maxMetadataBytes && (err != nil || len(back) != len(pairs)) {
				t.Errorf("%q does not survive: %v, %v", field, back, err)
			}
		}
		disposition := contentDisposition(name)
		for _, value := range []string{disposition, contentType(media)} {
			if strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' }) {
				t.Errorf("field value %q", value)
			}
		}
		kind, params, err := mime.ParseMediaType(disposition)
		if err != nil || kind != "attachment" {
			t.Fatalf("%q: %v", disposition, err)
		}
		if got := params["filename"]; strings.ContainsAny(got, "/\\") || !utf8.ValidString(got) || len(got) > maxFilenameBytes || got != filename(name) {
			t.Errorf("%q is read as %q, want %q", disposition, got, filename(name))
		}
		if _, _, err := mime.ParseMediaType(contentType(media)); err != nil {
			t.Errorf("%q: %v", contentType(media), err)
		}
	})
}
