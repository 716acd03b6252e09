package chunkedupload

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/problem"
)

func TestJudge(t *testing.T) {
	fault := errors.New("fault")
	for name, c := range map[string]struct {
		x    exchange
		want verdict
	}{
		"created":                              {exchange{status: 201}, verdictOutcome},
		"redirect":                             {exchange{status: 303}, verdictOutcome},
		"refused":                              {exchange{status: 422}, verdictOutcome},
		"conflict":                             {exchange{status: 409}, verdictOutcome},
		"broken application":                   {exchange{status: 500}, verdictOutcome},
		"not implemented":                      {exchange{status: 501}, verdictOutcome},
		"full":                                 {exchange{status: 507}, verdictOutcome},
		"timeout":                              {exchange{status: 408}, verdictAgain},
		"too early":                            {exchange{status: 425}, verdictAgain},
		"too many":                             {exchange{status: 429}, verdictAgain},
		"bad gateway":                          {exchange{status: 502}, verdictAgain},
		"unavailable":                          {exchange{status: 503}, verdictAgain},
		"gateway timeout":                      {exchange{status: 504}, verdictAgain},
		"never reached":                        {exchange{err: fault, unreached: true}, verdictAgain},
		"connection lost after sending":        {exchange{err: fault}, verdictUnknown},
		"lost in the middle of the answer":     {exchange{err: fault, status: 200}, verdictUnknown},
		"lost after a 503 began":               {exchange{err: fault, status: 503}, verdictUnknown},
		"aborted":                              {exchange{err: fault, panicked: true}, verdictUnknown},
		"fewer bytes than declared":            {exchange{status: 200, header: http.Header{"Content-Length": {"5"}}, written: 4}, verdictUnknown},
		"as many bytes as declared":            {exchange{status: 200, header: http.Header{"Content-Length": {"5"}}, written: 5}, verdictOutcome},
		"declared without a body":              {exchange{status: 304, header: http.Header{"Content-Length": {"5"}}}, verdictOutcome},
		"a 503 cut short":                      {exchange{status: 503, header: http.Header{"Content-Length": {"5"}}}, verdictUnknown},
		"switching protocols":                  {exchange{status: 101}, verdictUnknown},
		"our store failed":                     {exchange{err: fault, bodyErr: fault}, verdictAgain},
		"our store failed, no error":           {exchange{bodyErr: fault}, verdictAgain},
		"answered before our store failed":     {exchange{status: 413, bodyErr: fault}, verdictOutcome},
		"our store failed, answer broke off":   {exchange{status: 200, err: fault, bodyErr: fault}, verdictAgain},
		"waiting line full":                    {exchange{err: &problem.Error{Code: "too-many-requests-in-flight", Status: 503}}, verdictAgain},
		"limited":                              {exchange{err: problem.New("rate-limited", nil)}, verdictAgain},
		"a command of the application was bad": {exchange{err: problem.New("bad-session-command", nil)}, verdictUnknown},
		"its session could not be stored":      {exchange{err: problem.New("session-store-unavailable", nil)}, verdictUnknown},
	} {
		if got := judge(&c.x); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestOutcomeHeader(t *testing.T) {
	kept := outcomeHeader(http.Header{
		"Content-Type": {"text/plain"}, "X-Photo": {"7", "8"}, "Location": {"/p/7"}, "Cache-Control": {"private"},
		"Connection": {"X-Hop, close"}, "X-Hop": {"1"}, "Keep-Alive": {"1"}, "Transfer-Encoding": {"chunked"}, "Upgrade": {"h2c"},
		"Trailer": {"X"}, "Te": {"x"}, "Proxy-Authenticate": {"x"}, "Content-Length": {"5"}, "Set-Cookie": {"a=b"}, "set-cookie": {"c=d"},
		"Date": {"x"}, "Gatehouse-Session-Start": {"{}"}, "gatehouse_user": {"x"}, "GATEHOUSE.X": {"x"}, http.TrailerPrefix + "X": {"1"},
	})
	want := []string{"Cache-Control", "Content-Type", "Location", "X-Photo"}
	if got := slices.Sorted(maps.Keys(kept)); !slices.Equal(got, want) {
		t.Errorf("kept %v, want %v", got, want)
	}
	if len(kept["X-Photo"]) != 2 {
		t.Errorf("kept %v", kept["X-Photo"])
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"":       retryBackend,
		"x":      retryBackend,
		"-3":     retryBackend,
		"0":      time.Second,
		"30":     30 * time.Second,
		" 7 ":    7 * time.Second,
		"999999": time.Hour,
		now.Add(9 * time.Second).Format(http.TimeFormat):  9 * time.Second,
		now.Add(-9 * time.Second).Format(http.TimeFormat): time.Second,
	} {
		if got := retryAfter(http.Header{"Retry-After": {value}}, now); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}

func TestCapture(t *testing.T) {
	c := newCapture()
	c.Header().Set("Link", "</a>")
	c.WriteHeader(http.StatusEarlyHints)
	c.Header().Set("X-Photo", "7")
	c.WriteHeader(http.StatusAccepted)
	c.WriteHeader(http.StatusTeapot)
	c.Header().Set("X-Late", "1")
	if err := http.NewResponseController(c).Flush(); err != nil {
		t.Errorf("flushing: %v", err)
	}
	if _, _, err := http.NewResponseController(c).Hijack(); err == nil {
		t.Error("a delivery was hijacked")
	}
	_, _ = c.Write([]byte("body"))
	o := c.outcome()
	if o.Status != 202 || string(o.Body) != "body" || o.Header.Get("X-Photo") != "7" || o.Header.Get("X-Late") != "" || o.BodyDropped {
		t.Errorf("captured %+v", o)
	}

	c = newCapture()
	for range 3 {
		_, _ = c.Write(make([]byte, maxOutcomeBody/2))
	}
	if o := c.outcome(); !o.BodyDropped || o.Body != nil || o.Status != 200 {
		t.Errorf("of a large body %d bytes were kept, dropped %t", len(o.Body), o.BodyDropped)
	}
	w := httptest.NewRecorder()
	o = c.outcome()
	o.Status, o.Header = 422, http.Header{"Content-Type": {"text/plain"}, "X-A": {"1"}}
	replay(w, &o)
	if w.Code != 422 || w.Body.Len() != 0 || w.Header().Get("Content-Type") != "" || w.Header().Get("X-A") != "1" {
		t.Errorf("replayed %d %v", w.Code, w.Header())
	}
}
