package sessionauth

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestHideCookie(t *testing.T) {
	const x = "gh=CfDJ8x"
	for _, row := range []struct {
		name      string
		got, want []string
	}{
		{"none", nil, nil},
		{"ours alone", []string{x}, nil},
		{"first", []string{x + "; a=1; b=2"}, []string{"a=1; b=2"}},
		{"middle", []string{"a=1; " + x + "; b=2"}, []string{"a=1; b=2"}},
		{"last", []string{"a=1; b=2; " + x}, []string{"a=1; b=2"}},
		{"twice", []string{x + "; a=1; " + x + "; b=2; " + x}, []string{"a=1; b=2"}},
		{"only ours, twice", []string{x + "; " + x}, nil},
		{"odd spacing of others is kept", []string{"a=1;b=2;  c = 3 ;" + x + ";d=\"4\""}, []string{"a=1;b=2;  c = 3 ;d=\"4\""}},
		{"no magic: stays", []string{"gh=abc; " + x}, []string{"gh=abc"}},
		{"names that look like it", []string{"Gh=CfDJ8x; xgh=CfDJ8x; ghx=CfDJ8x; gh"}, []string{"Gh=CfDJ8x; xgh=CfDJ8x; ghx=CfDJ8x; gh"}},
		{"several lines", []string{"a=1", x, "b=2; " + x}, []string{"a=1", "b=2"}},
		{"trailing separator of others", []string{"a=1; "}, []string{"a=1; "}},
	} {
		t.Run(row.name, func(t *testing.T) {
			h := http.Header{}
			if row.got != nil {
				h["Cookie"] = slices.Clone(row.got)
			}
			hideCookie(h, "gh")
			if !slices.Equal(h["Cookie"], row.want) {
				t.Errorf("got %q, want %q", h["Cookie"], row.want)
			}
			if _, there := h["Cookie"]; there && row.want == nil {
				t.Error("an empty field is left")
			}
		})
	}
}

func FuzzHideCookie(f *testing.F) {
	f.Add("a=1; gh=CfDJ8x; b=2")
	f.Add("gh=CfDJ8; ;gh=CfDJ8")
	f.Add("; gh=x;\tgh=CfDJ8\t;")
	f.Fuzz(func(t *testing.T, line string) {
		h := http.Header{"Cookie": {line}}
		hideCookie(h, "gh")
		if found := findCookies(h, "gh"); found.n != 0 {
			t.Errorf("%q: a token is left in %q", line, h["Cookie"])
		}
		pairs := func(line string) (out []string) {
			for pair := range strings.SplitSeq(line, ";") {
				v, ours := cookieValue(pair, "gh")
				if p := strings.Trim(pair, " \t"); p != "" && !(ours && strings.HasPrefix(v, magic)) {
					out = append(out, p)
				}
			}
			return out
		}
		if got := pairs(strings.Join(h["Cookie"], ";")); !slices.Equal(got, pairs(line)) {
			t.Errorf("%q became %q", line, h["Cookie"])
		}
	})
}

func TestPutCookie(t *testing.T) {
	h := http.Header{
		"Set-Cookie":    {"a=1; Path=/", "gh=backend", " gh=backend; Path=/", "ghx=1"},
		"Cache-Control": {"public"}, "Expires": {"x"}, "Cdn-Cache-Control": {"x"}, "Surrogate-Control": {"x"},
		"Akamai-CDN-Cache-Control": {"x"}, "Xcdn-Cache-Control": {"x"}, "Etag": {"x"},
	}
	putCookie(h, "gh", "gh=ours")
	putCookie(h, "gh", "gh=ours; again")
	if want := []string{"a=1; Path=/", "ghx=1", "gh=ours; again"}; !slices.Equal(h["Set-Cookie"], want) {
		t.Errorf("Set-Cookie %q, want %q", h["Set-Cookie"], want)
	}
	if len(h) != 4 || h.Get("Cache-Control") != "no-store" || h.Get("Etag") != "x" || h["Xcdn-Cache-Control"] == nil {
		t.Errorf("header %v", h)
	}
}
