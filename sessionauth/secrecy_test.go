package sessionauth

import (
	"bytes"
	"encoding/base64"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// syncBuffer is a buffer that loggers of several goroutines may write to.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestLogsAndErrorsKeepSecrets goes through what is logged and what clients
// see of it: no token, no secret id, no claim, and nothing of the cause.
func TestLogsAndErrorsKeepSecrets(t *testing.T) {
	var logged syncBuffer
	g := newGateway(t, func(s *Settings) {
		s.Logger = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	cookie := g.signIn(`{"user":"hidden-user","claims":{"role":"hidden-claim"}}`)
	value := strings.TrimPrefix(cookie, cleared)
	plain, err := g.protector("app.example", "__Host-gatehouse").Open(t.Context(), value)
	if err != nil {
		t.Fatal(err)
	}
	tok, _ := decodeToken(plain)
	secrets := []string{
		value[20:60], "hidden-user", "hidden-claim", tok.secret,
		base64.RawURLEncoding.EncodeToString([]byte(tok.secret)), "10.9.8.7",
	}
	var bodies strings.Builder
	try := func(cookie string, fields ...string) {
		w, _ := g.do(request(cookie), fields...)
		bodies.WriteString(w.Body.String())
		for name, values := range w.Header() {
			if name != "Set-Cookie" {
				bodies.WriteString(strings.Join(values, ""))
			}
		}
	}
	try(cookie[:len(cookie)-3] + "AAA")
	try(cookie, `Gatehouse-Session-Start: {"user":"hidden-user","claims":{"hidden-claim":1,"hidden-claim":2}}`)
	try(cookie, `Gatehouse-Session-Update: {"claims":"hidden-claim"}`)
	g.store.failWith(&downError{})
	g.clock.advance(11 * time.Minute)
	try(cookie)
	g.clock.advance(-11 * time.Minute)
	try(cookie, "Gatehouse-Session-Update: {}")
	try(cookie, "Gatehouse-Session-End: current")
	for _, secret := range secrets {
		if strings.Contains(bodies.String(), secret) {
			t.Errorf("clients see %q", secret)
		}
		if secret != "10.9.8.7" && strings.Contains(logged.String(), secret) {
			t.Errorf("the log has %q", secret)
		}
	}
	if !strings.Contains(logged.String(), formatID(publicID(tok.secret))) {
		t.Error("the log does not name the session by its public id")
	}
}

type downError struct{}

func (*downError) Error() string { return "dial 10.9.8.7:6379: refused" }
