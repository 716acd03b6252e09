package sessionauth

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestClaims(t *testing.T) {
	set := newClaimSet(`{"role":"admin","n":12345678901234567890,"ok":true,"none":null,"list":["a",{"b":"c"}],"deep":{"x":{"y":"<z>"}},"urn:a.b":"dotted","deep.x":"wins"}`)
	s := &Session{ID: "x", claims: set}
	for path, want := range map[string]string{
		"role": "admin", "n": "12345678901234567890", "ok": "true", "none": "", "list": `["a",{"b":"c"}]`, "list.0": "a",
		"list.1.b": "c", "deep.x": "wins", "deep.x.y": "<z>", "deep": `{"x":{"y":"<z>"}}`, "urn:a.b": "dotted",
	} {
		if got, ok := s.ClaimsPath(path); !ok || got != want {
			t.Errorf("%s: %q %v, want %q", path, got, ok, want)
		}
	}
	for _, path := range []string{"", "x", "role.x", "list.2", "list.-1", "list.a", "list.1.c", "none.x", "."} {
		if got, ok := s.ClaimsPath(path); ok {
			t.Errorf("%q: %q, want nothing", path, got)
		}
	}
	if v, ok := s.Claim("n"); !ok || v != json.Number("12345678901234567890") {
		t.Errorf("Claim: %v", v)
	}
	if v, _ := s.Claim("list"); !reflect.DeepEqual(v, []any{"a", map[string]any{"b": "c"}}) {
		t.Errorf("Claim: %v", v)
	}
	if v, ok := s.Claim("list.1.b"); !ok || v != "c" {
		t.Errorf("Claim by a path: %v", v)
	}
	anonymous := new(Session)
	if _, ok := anonymous.Claim("role"); ok || !anonymous.Anonymous() || s.Anonymous() {
		t.Error("an anonymous session has claims")
	}
	if _, ok := anonymous.ClaimsPath("role"); ok {
		t.Error("an anonymous session has claims")
	}
	if FromContext(t.Context()) != nil {
		t.Error("a context without middleware has a session")
	}
}
