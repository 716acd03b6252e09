package chunkedupload

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// cleanUpRegularly cleans up until ctx is done: every 50 to 60 seconds, so that
// gateways that start together do not stay together.
func (h *Handler) cleanUpRegularly(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(50*time.Second + rand.N(10*time.Second)):
		}
		if err := h.Cleanup(ctx); err != nil && ctx.Err() == nil {
			h.log.Error("upload clean-up failed", "error", err)
		}
	}
}

// Cleanup goes over all uploads once: it removes those whose time is over and
// settles deliveries that lapsed. A running upload is never removed. One
// upload's failure does not keep the others; all are joined in the error.
func (h *Handler) Cleanup(ctx context.Context) error {
	var errs []error
	for id, err := range h.store.All(ctx) {
		if err == nil {
			err = h.cleanUp(ctx, id)
		}
		if err != nil && !errors.Is(err, uploadstore.ErrNotFound) {
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		const enough = 8 // a store that is down says the same for every upload
		if len(errs) == enough {
			break
		}
	}
	if sweeper, ok := h.store.(uploadstore.Sweeper); ok {
		errs = append(errs, sweeper.Sweep(ctx))
	}
	return errors.Join(errs...)
}

func (h *Handler) cleanUp(ctx context.Context, id string) error {
	up, err := h.store.Open(ctx, id)
	if err != nil {
		return fmt.Errorf("opening upload %s: %w", shortID(id), err)
	}
	st, err := up.Status(ctx)
	if errors.Is(err, uploadstore.ErrBroken) {
		// It may be of a newer version's making: nothing of it is removed.
		h.log.Warn("upload cannot be read", "upload", shortID(id), "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading upload %s: %w", shortID(id), err)
	}
	switch dispose(&st, h.cfg.ExpireAfter, h.cfg.Now()) {
	case settle:
		_, err = h.settle(ctx, up, st)
	case remove:
		err = up.Delete(ctx)
	case expire:
		err = h.expire(ctx, up)
	}
	return err
}

// expire removes an upload without outcome. The claim keeps writers and
// deliveries away, and tells whether there is one; what was received in the
// meantime counts as progress.
func (h *Handler) expire(ctx context.Context, up uploadstore.Upload) error {
	claim, err := up.Claim(ctx, uploadstore.ClaimOptions{})
	switch {
	case errors.Is(err, uploadstore.ErrBusy), errors.Is(err, uploadstore.ErrRunning), errors.Is(err, uploadstore.ErrClosed):
		return nil
	case err != nil:
		return fmt.Errorf("claiming an expired upload: %w", err)
	}
	st, err := up.Status(ctx)
	if err != nil {
		return errors.Join(err, claim.Release(ctx))
	}
	if st.Claimed = false; dispose(&st, h.cfg.ExpireAfter, h.cfg.Now()) != expire {
		return claim.Release(ctx)
	}
	if err := up.Delete(ctx); err != nil {
		return errors.Join(err, claim.Release(ctx))
	}
	h.observe(ctx, EventExpired, &st.Info, Event{Bytes: st.Offset()})
	return nil
}

// Listed is what operators see of an upload.
type Listed struct {
	// ID is all that it takes to use an upload without an owner.
	ID         string
	Site       string
	Protocol   string
	State      uploadstore.State
	Length     int64     // bytes
	Offset     int64     // bytes received from the start
	Created    time.Time // when it was made
	Progress   time.Time // when it last received bytes
	Deliveries int       // how often it was tried
	Status     int       // of the outcome; 0: there is none
}

// List yields all uploads of the store, of every site, in no order. Uploads
// that vanish meanwhile or cannot be read are left out; an error ends it.
func (h *Handler) List(ctx context.Context) iter.Seq2[Listed, error] {
	return func(yield func(Listed, error) bool) {
		for id, err := range h.store.All(ctx) {
			var l Listed
			if err == nil {
				l, err = h.list(ctx, id)
			}
			if errors.Is(err, uploadstore.ErrNotFound) || errors.Is(err, uploadstore.ErrBroken) {
				continue
			}
			if !yield(l, err) || err != nil {
				return
			}
		}
	}
}

func (h *Handler) list(ctx context.Context, id string) (Listed, error) {
	up, err := h.store.Open(ctx, id)
	if err != nil {
		return Listed{}, err
	}
	st, err := up.Status(ctx)
	if err != nil {
		return Listed{}, err
	}
	l := Listed{
		ID: id, Site: st.Info.Site, Protocol: st.Info.Protocol, State: state(&st),
		Length: st.Length, Offset: st.Offset(), Created: st.Info.Created, Progress: st.Progress, Deliveries: st.Deliveries,
	}
	if st.Outcome != nil {
		l.Status = st.Outcome.Status
	}
	return l, nil
}
