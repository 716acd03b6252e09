package sessionauth

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore/file"
)

// TestOverFileStore goes through a session's life with a real store.
func TestOverFileStore(t *testing.T) {
	store, err := file.Open(file.Options{Path: filepath.Join(t.TempDir(), "sessions")})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	g := newGateway(t, func(s *Settings) {
		s.Store, s.Now = store, nil
		s.RefreshAfter, s.Grace = 20*time.Millisecond, time.Minute
	})
	old := g.signIn(u1)
	other := g.signIn(u1)

	due := func(cookie string) string {
		t.Helper()
		var set string
		eventually(t, "a rotation", func() bool {
			w, saw := g.do(request(cookie))
			if saw.user() != "u1" {
				t.Fatalf("user %q", saw.user())
			}
			set = cookieOf(w)
			return set != ""
		})
		return set
	}
	current := due(old)
	if _, saw := g.do(request(old)); saw.user() != "u1" {
		t.Error("the previous generation is not accepted in its grace")
	}
	w, _ := g.do(request(current), `Gatehouse-Session-Update: {"claims":{"a":1},"rotate":true}`, "Gatehouse-Session-End: others")
	current = cookieOf(w)
	if _, saw := g.do(request(current)); string(saw.session.Claims) != `{"a":1}` {
		t.Errorf("claims %s", saw.session.Claims)
	}
	for _, cookie := range []string{old, other} {
		if _, saw := g.do(request(cookie)); saw.user() != "" {
			t.Error("an ended session is accepted")
		}
	}
	g.do(request(current), "Gatehouse-Session-End: user")
	if list, err := store.List(t.Context(), "app.example", "u1"); err != nil || len(list) != 0 {
		t.Errorf("left in the store: %v, %v", list, err)
	}
}
