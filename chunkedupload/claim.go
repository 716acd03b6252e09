package chunkedupload

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
	"github.com/gatehouse-gateway/gatehouse/internal/handler"
	"github.com/gatehouse-gateway/gatehouse/internal/problem"
)

const (
	// storePatience bounds one operation of the store that must not be given up
	// with the client.
	storePatience = 20 * time.Second
	// claimPatience is how long a claim waits for a live writer to end.
	claimPatience = 5 * time.Second
	// Waiting for another gateway's delivery asks the store this often.
	firstPoll, longestPoll = 100 * time.Millisecond, time.Second
)

// complete gets the outcome of an upload whose bytes are all here: the stored
// one, that of a delivery which runs here or elsewhere, or that of a delivery
// which it starts. It waits at most Config.Wait and leaves the delivery running.
func (h *Handler) complete(r *http.Request, next handler.Handler, up uploadstore.Upload, st uploadstore.Status) (*uploadstore.Outcome, refusal) {
	if st.Outcome != nil {
		return ended(st.Outcome)
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.cfg.Wait)
	defer cancel()
	for {
		d, err := h.newDelivery(r, next, up, &st)
		if err != nil {
			return nil, storeRefusal(err)
		}
		current := h.shared.join(st.Info.ID, func(ctx context.Context) result { return h.run(ctx, d) })
		if current == nil {
			return nil, running(errShutdown)
		}
		select {
		case <-ctx.Done():
			return nil, running(nil)
		case <-current.done:
		}
		switch res := current.result; {
		case res.outcome != nil:
			return ended(res.outcome)
		case res.refusal != nil:
			return nil, res.refusal
		}
		if st, err = h.follow(ctx, up); err != nil {
			if ctx.Err() != nil {
				return nil, running(err)
			}
			return nil, storeRefusal(err)
		}
		if st.Outcome != nil {
			return ended(st.Outcome)
		}
	}
}

// ended turns an interrupted upload into the refusal that clients see.
func ended(o *uploadstore.Outcome) (*uploadstore.Outcome, refusal) {
	if o.State != uploadstore.StateDone {
		return nil, problem.New("upload-interrupted", nil).
			WithDetail("The delivery to the application was cut off; whether it was processed is not known.")
	}
	return o, nil
}

// follow waits for another gateway's delivery to end: with an outcome, by
// releasing the claim, or by lapsing, which it settles.
func (h *Handler) follow(ctx context.Context, up uploadstore.Upload) (uploadstore.Status, error) {
	for pause := firstPoll; ; pause = min(pause*2, longestPoll) {
		select {
		case <-ctx.Done():
			return uploadstore.Status{}, context.Cause(ctx)
		case <-time.After(pause):
		}
		st, err := h.status(ctx, up)
		if err != nil || st.Outcome != nil || !st.Claimed {
			return st, err
		}
	}
}

// status reads the upload's state and settles a delivery that has lapsed.
func (h *Handler) status(ctx context.Context, up uploadstore.Upload) (uploadstore.Status, error) {
	st, err := up.Status(ctx)
	if err != nil || stand(&st) != standingLapsed {
		return st, err
	}
	// The writes of this step belong to no client.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storePatience)
	defer cancel()
	return h.settle(ctx, up, st)
}

// settle ends a lapsed delivery as interrupted. An outcome that was stored
// after all counts.
func (h *Handler) settle(ctx context.Context, up uploadstore.Upload, st uploadstore.Status) (uploadstore.Status, error) {
	o, err := up.Settle(ctx, interruptedOutcome(h.cfg.Now()))
	if err != nil {
		return st, fmt.Errorf("settling a lapsed delivery: %w", err)
	}
	st.Outcome, st.Lapsed, st.Claimed = &o, false, false
	if o.State == uploadstore.StateInterrupted {
		h.log.Error("upload interrupted", "upload", shortID(st.Info.ID), "error", "the delivery's gateway is gone")
		h.observe(ctx, EventInterrupted, &st.Info, Event{})
	}
	return st, nil
}

// run delivers an upload under its claim. It is called once at a time for an
// upload in this process. ctx is cancelled when the delivery must end early.
func (h *Handler) run(ctx context.Context, d *delivery) result {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	claim, err := takeClaim(ctx, d.upload)
	if err != nil {
		return h.unclaimed(ctx, d, err)
	}
	h.observe(ctx, EventDelivering, &d.info, Event{Bytes: d.length})
	began := time.Now()
	stop := keepClaim(ctx, cancel, claim)
	x, answer := h.send(ctx, d)
	stop()
	return h.conclude(ctx, d, claim, x, answer, time.Since(began))
}

// takeClaim claims the upload. A writer that is about to end is waited for.
func takeClaim(ctx context.Context, up uploadstore.Upload) (uploadstore.Claim, error) {
	give := time.Now().Add(claimPatience)
	for {
		claim, err := up.Claim(ctx, uploadstore.ClaimOptions{})
		if !errors.Is(err, uploadstore.ErrBusy) || time.Now().After(give) {
			return claim, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(firstPoll):
		}
	}
}

// unclaimed is the end of a run that did not get the claim.
func (h *Handler) unclaimed(ctx context.Context, d *delivery, err error) result {
	switch {
	case errors.Is(err, uploadstore.ErrRunning):
		return result{elsewhere: true}
	case errors.Is(err, uploadstore.ErrClosed):
		st, err := d.upload.Status(ctx)
		if err != nil {
			return result{refusal: storeRefusal(err)}
		}
		return result{outcome: st.Outcome, elsewhere: st.Outcome == nil}
	default:
		return result{refusal: storeRefusal(err)}
	}
}

// keepClaim renews the claim until stop is called, which waits. When the claim
// is lost, the upload deleted, or the store away for so long that others may
// take the claim for lapsed, ctx is cancelled with that cause.
func keepClaim(ctx context.Context, cancel context.CancelCauseFunc, claim uploadstore.Claim) (stop func()) {
	// The deadline leaves room for one more attempt before others see a lapse.
	const retry, deadline = 2 * time.Second, uploadstore.ClaimLapse - uploadstore.ClaimRenewal
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		renewed := time.Now()
		for pause := uploadstore.ClaimRenewal; ; {
			select {
			case <-quit:
				return
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			began := time.Now()
			err := renew(ctx, claim)
			switch {
			case err == nil:
				renewed, pause = began, uploadstore.ClaimRenewal
				continue
			case errors.Is(err, uploadstore.ErrLost), errors.Is(err, uploadstore.ErrAborted), errors.Is(err, uploadstore.ErrNotFound):
				cancel(err)
				return
			case time.Since(renewed) > deadline:
				cancel(fmt.Errorf("%w: %w", uploadstore.ErrLost, err))
				return
			}
			pause = retry
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

func renew(ctx context.Context, claim uploadstore.Claim) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), uploadstore.ClaimRenewal)
	defer cancel()
	return claim.Renew(ctx)
}

// conclude stores what a delivery came to.
func (h *Handler) conclude(ctx context.Context, d *delivery, claim uploadstore.Claim, x *exchange, answer *capture, took time.Duration) result {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, uploadstore.ErrAborted), errors.Is(cause, uploadstore.ErrNotFound):
		return result{refusal: storeRefusal(cause)}
	case errors.Is(cause, uploadstore.ErrLost):
		h.log.Error("delivery lost its claim", "upload", shortID(d.info.ID), "error", cause)
		return result{elsewhere: true}
	}
	switch judge(x) {
	case verdictAgain:
		h.log.Warn("delivery without outcome", "upload", shortID(d.info.ID), "status", x.status, "error", x.err)
		return h.giveBack(ctx, d, claim, x, took)
	case verdictUnknown:
		h.log.Error("upload interrupted", "upload", shortID(d.info.ID), "status", x.status, "error", x.err)
		return h.finish(ctx, d, claim, interruptedOutcome(h.cfg.Now()), took)
	default:
		o := answer.outcome()
		o.Time = h.cfg.Now()
		return h.finish(ctx, d, claim, o, took)
	}
}

// finish stores the outcome; the one that counts is returned.
func (h *Handler) finish(ctx context.Context, d *delivery, claim uploadstore.Claim, o uploadstore.Outcome, took time.Duration) result {
	var counts uploadstore.Outcome
	err := persist(ctx, claim, func(ctx context.Context) (err error) {
		counts, err = claim.Finish(ctx, o)
		return err
	})
	switch {
	case errors.Is(err, uploadstore.ErrLost):
		return result{elsewhere: true}
	case err != nil:
		h.log.Error("outcome not stored", "upload", shortID(d.info.ID), "error", err)
		return result{refusal: storeRefusal(err)}
	}
	kind := EventCompleted
	if counts.State != uploadstore.StateDone {
		kind = EventInterrupted
	}
	h.observe(ctx, kind, &d.info, Event{Bytes: d.length, Status: counts.Status, Duration: took})
	return result{outcome: &counts}
}

// giveBack releases the claim, so that the upload can be completed again.
func (h *Handler) giveBack(ctx context.Context, d *delivery, claim uploadstore.Claim, x *exchange, took time.Duration) result {
	if err := persist(ctx, claim, claim.Release); err != nil {
		h.log.Error("claim not released", "upload", shortID(d.info.ID), "error", err)
		return result{refusal: storeRefusal(err)}
	}
	h.observe(ctx, EventNoOutcome, &d.info, Event{Bytes: d.length, Status: x.status, Duration: took})
	if x.bodyErr != nil {
		return result{refusal: storeRefusal(x.bodyErr)}
	}
	return result{refusal: problem.New("upload-backend-unavailable", x.err).WithRetryAfter(retryAfter(x.header, h.cfg.Now()))}
}

// persist repeats a last step until the store takes it, the claim is gone, or
// it would have lapsed. A cancelled ctx (shutting down) leaves one attempt.
func persist(ctx context.Context, claim uploadstore.Claim, step func(context.Context) error) error {
	began := time.Now()
	for pause := firstPoll; ; pause = min(pause*2, 5*time.Second) {
		attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), storePatience)
		err := step(attempt)
		cancel()
		if err == nil || goneForGood(err) || time.Since(began) > uploadstore.ClaimLapse {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		if renewErr := renew(ctx, claim); goneForGood(renewErr) {
			return renewErr
		}
	}
}

func goneForGood(err error) bool {
	return errors.Is(err, uploadstore.ErrLost) || errors.Is(err, uploadstore.ErrAborted) ||
		errors.Is(err, uploadstore.ErrNotFound) || errors.Is(err, uploadstore.ErrClosed)
}

// observe tells the observer; e needs only what is particular to it.
func (h *Handler) observe(ctx context.Context, kind EventKind, info *uploadstore.Info, e Event) {
	e.Kind, e.ID, e.Site, e.Owner, e.Protocol = kind, info.ID, info.Site, info.Owner, info.Protocol
	h.cfg.Observer.ObserveUpload(ctx, e)
}
