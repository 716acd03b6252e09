package sessionauth

import (
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"unicode"
)

var reservedNames = map[string]bool{
	"Gatehouse": true, "gatehouse": true, "GATEHOUSE": true, "Gatehouse-User": true, "gatehouse_user": true,
	"GATEHOUSE~User": true, "gatehouse.": true, "gaTehOuse-": true, "Gatehouse\x80": true, "Gatehouse-Session-Start": true,
	"Gatehouses": false, "Gatehouse1": false, "GatehouseUser": false, "gate-house-user": false, "X-Gatehouse-User": false,
	"": false, "G": false, "Gate": false, "gatehous": false, "-Gatehouse": false, "\x07atehouse-": false, "Gatehou5e-": false,
}

var reservedSink bool

func TestIsReserved(t *testing.T) {
	for name, want := range reservedNames {
		if got := IsReserved(name); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { reservedSink = IsReserved("gatehouse_user") != IsReserved("Accept-Encoding") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzIsReserved(f *testing.F) {
	for name := range reservedNames {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		folded := strings.Map(func(r rune) rune {
			if r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
				return unicode.ToLower(r)
			}
			return '-'
		}, name)
		want := folded == "gatehouse" || strings.HasPrefix(folded, "gatehouse-")
		if got := IsReserved(name); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	})
}

func TestStripHeader(t *testing.T) {
	h := http.Header{
		"Gatehouse-User": {"x"}, "gatehouse_user": {"x"}, "Trailer:Gatehouse-X": {"x"}, "Trailer:X": {"x"},
		"Trailer": {"X, Gatehouse-User", "gatehouse~y", "Z"}, "Gate": {"x"}, "Te": {"x"}, "": {"x"},
	}
	StripHeader(h)
	want := http.Header{"Trailer:X": {"x"}, "Trailer": {"X", "Z"}, "Gate": {"x"}, "Te": {"x"}, "": {"x"}}
	if !reflect.DeepEqual(h, want) {
		t.Errorf("got %v, want %v", h, want)
	}
	h = http.Header{"Trailer": {"Gatehouse-User"}}
	if StripHeader(h); len(h) != 0 {
		t.Errorf("got %v, want nothing", h)
	}
	StripHeader(nil)
}

func TestConnectionNamesReserved(t *testing.T) {
	for value, want := range map[string]bool{
		"close": false, "keep-alive, Upgrade": false, "close,gatehouse_user": true, " Gatehouse-Claims ": true, "": false, ",,": false,
	} {
		if got := ConnectionNamesReserved(http.Header{"Connection": {"x", value}}); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}

func TestEncodeUser(t *testing.T) {
	for user, want := range map[string]string{
		"u1": "u1", "a b": "a%20b", "100%": "100%25", "ü": "%C3%BC", "a@b.example/~!": "a@b.example/~!", "\x7f": "%7F",
	} {
		if got := encodeUser(user); got != want {
			t.Errorf("%q: %q, want %q", user, got, want)
		}
	}
}

func FuzzEncodeUser(f *testing.F) {
	f.Add("ü 100%")
	f.Fuzz(func(t *testing.T, user string) {
		got := encodeUser(user)
		if back, err := url.PathUnescape(got); err != nil || back != user {
			t.Errorf("%q is written as %q, read as %q, %v", user, got, back, err)
		}
		for i := range len(got) {
			if got[i] < 0x21 || got[i] > 0x7E {
				t.Errorf("%q is written as %q", user, got)
			}
		}
	})
}

func TestStripIdentity(t *testing.T) {
	h := http.Header{}
	for _, name := range []string{"Gatehouse-User", "gatehouse_user", "GATEHOUSE.SESSION", "Gatehouse-Session-State", "Gatehouse Claims"} {
		h[name] = []string{"x"}
	}
	kept := []string{"Gatehouse-Upload-Id", "Gatehouse-Users", "Gatehouse-Session-Start", "Gatehousexuser", "User"}
	for _, name := range kept {
		h[name] = []string{"x"}
	}
	stripIdentity(h)
	for _, name := range kept {
		if _, ok := h[name]; !ok {
			t.Errorf("%s was removed", name)
		}
	}
	if len(h) != len(kept) {
		t.Errorf("left: %v", h)
	}
}
