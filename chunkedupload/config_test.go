package chunkedupload

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
	"github.com/gatehouse-gateway/gatehouse/internal/problem"
)

func TestConfigIsChecked(t *testing.T) {
	store := newFakeStore()
	for name, c := range map[string]Config{
		"no store":        {},
		"relative base":   {Store: store, Base: "files"},
		"trailing slash":  {Store: store, Base: "/files/"},
		"slash alone":     {Store: store, Base: "/"},
		"wildcard":        {Store: store, Base: "/files/*"},
		"query":           {Store: store, Base: "/files?x"},
		"negative size":   {Store: store, MaxSize: -1},
		"negative expiry": {Store: store, ExpireAfter: -1},
		"negative wait":   {Store: store, Wait: -1},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	h, err := New(Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if h.cfg.MaxSize != 10<<30 || h.cfg.ExpireAfter != 24*time.Hour || h.cfg.Wait != 25*time.Second {
		t.Errorf("defaults are %d, %s, %s", h.cfg.MaxSize, h.cfg.ExpireAfter, h.cfg.Wait)
	}
}

func TestHostSite(t *testing.T) {
	for host, want := range map[string]string{
		"Example.COM": "example.com", "example.com:8080": "example.com", "[::1]:80": "::1", "[::1]": "::1", "": "",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		if r.Host = host; hostSite(r) != want {
			t.Errorf("%q: %q, want %q", host, hostSite(r), want)
		}
	}
}

func TestDialFailed(t *testing.T) {
	if !dialFailed(fmt.Errorf("a: %w", &net.OpError{Op: "dial", Err: errors.New("refused")})) {
		t.Error("a refused connection was reached")
	}
	if dialFailed(&net.OpError{Op: "read", Err: errors.New("reset")}) || dialFailed(errors.New("x")) {
		t.Error("a lost connection was never reached")
	}
}

func TestStoreRefusal(t *testing.T) {
	for err, want := range map[error]string{
		uploadstore.ErrNotFound: "404 upload-not-found",
		uploadstore.ErrAborted:  "404 upload-not-found",
		uploadstore.ErrBroken:   "404 upload-not-found",
		uploadstore.ErrBusy:     "423 upload-locked",
		uploadstore.ErrFenced:   "423 upload-locked",
		uploadstore.ErrRunning:  "423 upload-locked",
		uploadstore.ErrLost:     "423 upload-locked",
		uploadstore.ErrClosed:   "410 upload-closed",
		uploadstore.ErrOffset:   "409 upload-offset-mismatch",
		uploadstore.ErrTooLong:  "413 upload-too-large",
		uploadstore.ErrFull:     "507 upload-store-full",
		errors.New("x"):         "503 upload-store-unavailable",
	} {
		e := storeRefusal(fmt.Errorf("wrapped: %w", err))
		if got := fmt.Sprint(e.Status, " ", e.Code); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
		if e.Status == http.StatusLocked && e.RetryAfter == 0 {
			t.Errorf("%v: 423 without Retry-After", err)
		}
		if h := neverServerError(e); h.Status >= 500 {
			t.Errorf("%v: a HEAD is answered %d", err, h.Status)
		}
	}
	if neverServerError(problem.New("upload-closed", nil)).Status != http.StatusGone {
		t.Error("a HEAD loses its 410")
	}
}
