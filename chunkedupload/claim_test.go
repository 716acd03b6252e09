package chunkedupload

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
	"github.com/gatehouse-gateway/gatehouse/internal/handler"
)

// heldUpload makes an upload whose bytes are all there.
func heldUpload(t *testing.T, h *Handler, data string) uploadstore.Upload {
	t.Helper()
	r := httptest.NewRequest("POST", "/files", nil)
	up, err := h.store.Create(t.Context(), h.newInfo(r, &creation{length: int64(len(data))}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := receive(t.Context(), up, 0, 0, bytes.NewReader([]byte(data)), func() {}); err != nil {
		t.Fatal(err)
	}
	return up
}

// completing runs complete as a request would, without a socket.
func completing(t *testing.T, h *Handler, up uploadstore.Upload, next handler.Func) (*uploadstore.Outcome, refusal) {
	t.Helper()
	st, err := h.status(t.Context(), up)
	if err != nil {
		t.Fatal(err)
	}
	return h.complete(httptest.NewRequest("PATCH", "/files/x", nil).WithContext(t.Context()), next, up, st)
}

func wantState(t *testing.T, h *Handler, up uploadstore.Upload, want standing) {
	t.Helper()
	st, err := up.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := stand(&st); got != want {
		t.Errorf("the upload stands at %d, want %d", got, want)
	}
}

// slow answers after a while, unless its request is cancelled.
func slow(d time.Duration) handler.Func {
	return func(w http.ResponseWriter, r *http.Request) error {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-time.After(d):
			w.WriteHeader(http.StatusCreated)
			return nil
		case <-r.Context().Done():
			return context.Cause(r.Context())
		}
	}
}

func TestClaimIsRenewedForAsLongAsTheBackendTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, newFakeStore(), nil)
		up := heldUpload(t, h, "abc")
		if _, e := completing(t, h, up, slow(10*time.Minute)); e == nil || e.Status != http.StatusLocked {
			t.Fatalf("got %v, want 423", e)
		}
		for range 9 {
			time.Sleep(time.Minute)
			wantState(t, h, up, standingRunning)
		}
		time.Sleep(2 * time.Minute)
		wantState(t, h, up, standingSucceeded)
	})
}

func TestRenewalSurvivesAShortOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		h := newHandler(t, store, nil)
		up := heldUpload(t, h, "abc")
		_, _ = completing(t, h, up, slow(3*time.Minute))
		store.setFail(func(op string) error {
			if op == "renew" {
				return errors.New("away")
			}
			return nil
		})
		time.Sleep(40 * time.Second)
		store.setFail(nil)
		time.Sleep(3 * time.Minute)
		wantState(t, h, up, standingSucceeded)
	})
}

func TestDeliveryStopsBeforeItsClaimLapses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		h := newHandler(t, store, nil)
		up := heldUpload(t, h, "abc")
		stopped := make(chan time.Time, 1)
		began := time.Now()
		store.setFail(func(op string) error {
			if op == "renew" {
				return errors.New("away")
			}
			return nil
		})
		_, _ = completing(t, h, up, func(_ http.ResponseWriter, r *http.Request) error {
			<-r.Context().Done()
			stopped <- time.Now()
			return context.Cause(r.Context())
		})
		if d := (<-stopped).Sub(began); d > uploadstore.ClaimLapse || d < 45*time.Second {
			t.Errorf("stopped after %s, want shortly before %s", d, uploadstore.ClaimLapse)
		}
		time.Sleep(uploadstore.ClaimLapse)
		wantState(t, h, up, standingLapsed)
		if _, e := completing(t, h, up, slow(0)); e == nil || e.Code != "upload-interrupted" {
			t.Errorf("got %v, want upload-interrupted", e)
		}
	})
}

func TestDeletedElsewhereStopsTheDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, newFakeStore(), func(c *Config) { c.Wait = time.Minute })
		up := heldUpload(t, h, "abc")
		go func() {
			time.Sleep(20 * time.Second)
			if err := up.Delete(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		began := time.Now()
		_, e := completing(t, h, up, slow(time.Hour))
		if e == nil || e.Code != "upload-not-found" {
			t.Errorf("got %v, want upload-not-found", e)
		}
		if d := time.Since(began) - 20*time.Second; d > uploadstore.ClaimRenewal {
			t.Errorf("stopped %s after the deletion", d)
		}
	})
}

func TestOutcomeIsStoredAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		h := newHandler(t, store, func(c *Config) { c.Wait = time.Minute })
		up := heldUpload(t, h, "abc")
		store.setFail(func(op string) error {
			if op == "finish" {
				return errors.New("away")
			}
			return nil
		})
		go func() { time.Sleep(30 * time.Second); store.setFail(nil) }()
		o, e := completing(t, h, up, slow(0))
		if e != nil || o.Status != http.StatusCreated {
			t.Errorf("got %v, %v", o, e)
		}
	})
}

func TestOutcomeThatCannotBeStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		h := newHandler(t, store, func(c *Config) { c.Wait = time.Hour })
		up := heldUpload(t, h, "abc")
		store.setFail(func(op string) error {
			if op == "finish" {
				return errors.New("away")
			}
			return nil
		})
		if _, e := completing(t, h, up, slow(0)); e == nil || e.Code != "upload-store-unavailable" {
			t.Errorf("got %v: no client may be told of a success", e)
		}
		store.setFail(nil)
		time.Sleep(2 * uploadstore.ClaimLapse)
		if _, e := completing(t, h, up, slow(0)); e == nil || e.Code != "upload-interrupted" {
			t.Errorf("got %v, want upload-interrupted", e)
		}
	})
}

func TestWaiterOfAnotherGatewayTakesOverAReleasedClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		here := newHandler(t, store, func(c *Config) { c.Wait = time.Minute })
		there := newHandler(t, store, func(c *Config) { c.Wait = time.Minute })
		up := heldUpload(t, here, "abc")
		done := make(chan refusal, 1)
		go func() {
			_, e := completing(t, there, up, func(w http.ResponseWriter, _ *http.Request) error {
				time.Sleep(5 * time.Second)
				w.WriteHeader(http.StatusServiceUnavailable)
				return nil
			})
			done <- e
		}()
		synctest.Wait()
		o, e := completing(t, here, up, slow(0))
		if e != nil || o.Status != http.StatusCreated {
			t.Errorf("got %v, %v", o, e)
		}
		if e := <-done; e == nil || e.Code != "upload-backend-unavailable" {
			t.Errorf("the first got %v", e)
		}
	})
}

func TestSharedCloseInterrupts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := NewShared()
		h := newHandler(t, newFakeStore(), func(c *Config) { c.Shared, c.Wait = shared, time.Second })
		up := heldUpload(t, h, "abc")
		_, _ = completing(t, h, up, slow(time.Hour))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := shared.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("draining: %v", err)
		}
		if err := shared.Close(); err != nil {
			t.Fatal(err)
		}
		if err := shared.Drain(t.Context()); err != nil {
			t.Errorf("draining after the close: %v", err)
		}
		wantState(t, h, up, standingInterrupted)
		if _, e := completing(t, h, heldUpload(t, h, "abc"), slow(0)); e == nil || e.Status != http.StatusLocked {
			t.Errorf("after the close: %v, want 423", e)
		}
	})
}

func TestManyCompletionsMakeOneDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		deliveries := 0
		hs := []*Handler{newHandler(t, store, nil), newHandler(t, store, nil), newHandler(t, store, nil)}
		up := heldUpload(t, hs[0], "abc")
		answers := make(chan int, 30)
		for i := range cap(answers) {
			go func() {
				o, e := completing(t, hs[i%len(hs)], up, func(w http.ResponseWriter, _ *http.Request) error {
					deliveries++ // one at a time, or the race detector says so
					time.Sleep(2 * time.Second)
					w.WriteHeader(http.StatusAccepted)
					return nil
				})
				if e != nil {
					t.Error(e)
				}
				answers <- o.Status
			}()
		}
		for range cap(answers) {
			if status := <-answers; status != http.StatusAccepted {
				t.Errorf("status %d", status)
			}
		}
		if deliveries != 1 {
			t.Errorf("%d deliveries", deliveries)
		}
	})
}
