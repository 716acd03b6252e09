package ratelimit

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
)

// DefaultTimeout bounds a store call.
const DefaultTimeout = 250 * time.Millisecond

// SharedOptions shape a Shared.
type SharedOptions struct {
	// Timeout is how long a request waits for the store at most. Default:
	// DefaultTimeout.
	Timeout time.Duration
	// Local counts for limiters with the failure policy Local. nil: that
	// policy is refused.
	Local limitstore.Store
}

// Shared is a store and what belongs to it rather than to a configuration: the
// breaker, the remembered refusals, the local table. Use one for each store as
// long as the store is used, across changes of configuration. It is safe for
// concurrent use and runs no goroutine.
type Shared struct {
	store   limitstore.Store
	local   limitstore.Store
	timeout time.Duration
	remote  bool

	breaker breaker
	denials denials
	closed  atomic.Bool
	logged  atomic.Int64 // when a failure was last logged

	// clock is monotonic and counts from some moment. Wall clocks decide
	// nothing here.
	clock func() time.Duration
}

var (
	errBreakerOpen = errors.New("ratelimit: the store has been given up for the moment")
	errClosed      = errors.New("ratelimit: closed")
)

var started = time.Now()

// NewShared makes a Shared. The store stays the caller's to close.
func NewShared(store limitstore.Store, o SharedOptions) *Shared {
	_, inProcess := store.(limitstore.InProcess)
	s := &Shared{store: store, local: o.Local, timeout: o.Timeout, remote: !inProcess}
	if s.timeout <= 0 {
		s.timeout = DefaultTimeout
	}
	s.clock = func() time.Duration { return time.Since(started) }
	return s
}

// Close releases the remembered refusals. Decisions afterwards fail as if the
// store were away.
func (s *Shared) Close() error {
	s.closed.Store(true)
	s.denials.clear()
	return nil
}

// BreakerOpen reports whether the store has been given up for the moment.
func (s *Shared) BreakerOpen() bool { return s.breaker.open.Load() }

// decide asks the store, unless it has been given up. An error that is not
// that of an ended ctx is a failure of the store.
func (s *Shared) decide(ctx context.Context, d *limitstore.Decision, o Observer, log *slog.Logger) error {
	if s.closed.Load() {
		return errClosed
	}
	if !s.remote {
		err := s.store.Decide(ctx, d)
		if err != nil && ctx.Err() == nil {
			s.logFailure(ctx, err, log)
		}
		return err
	}
	asked := s.clock()
	if !s.breaker.allow(asked) {
		return errBreakerOpen
	}
	seen := s.denials.seen(d.Limits)
	d.Timeout = s.timeout
	err := s.store.Decide(ctx, d)
	answered := s.clock()
	o.StoreAnswered(answered-asked, err)
	if err != nil {
		s.failed(ctx, err, answered, o, log)
		return err
	}
	if s.breaker.succeeded() {
		o.BreakerChanged(false)
		log.LogAttrs(ctx, slog.LevelInfo, "rate limit store is back")
	}
	if d.Admitted {
		s.denials.charged(d.Limits)
	} else {
		s.remember(d, &seen, asked)
	}
	return nil
}

// failed notes a failure, unless it only concerns one request or one key.
func (s *Shared) failed(ctx context.Context, err error, now time.Duration, o Observer, log *slog.Logger) {
	if ctx.Err() != nil {
		return
	}
	s.logFailure(ctx, err, log)
	if errors.Is(err, limitstore.ErrFull) || errors.Is(err, limitstore.ErrCorrupt) || errors.Is(err, limitstore.ErrInvalid) {
		return
	}
	if s.breaker.failed(now) {
		o.BreakerChanged(true)
		log.LogAttrs(ctx, slog.LevelError, "rate limit store is given up until it answers again", slog.Any("error", err))
	}
}

// logFailure logs at most one failure a second: each stands for all requests
// of its moment.
func (s *Shared) logFailure(ctx context.Context, err error, log *slog.Logger) {
	now := int64(time.Since(started)/time.Second) + 1
	if last := s.logged.Load(); last == now || !s.logged.CompareAndSwap(last, now) {
		return
	}
	log.LogAttrs(ctx, slog.LevelError, "rate limit store failed", slog.Any("error", err))
}

// remember keeps the refusal with the longest wait. The shorter ones say less:
// while it holds they change nothing.
func (s *Shared) remember(d *limitstore.Decision, seen *[limitstore.MaxLimits]uint32, asked time.Duration) {
	if worst := longestWait(d); worst >= 0 {
		s.denials.add(d.Limits, worst, seen, &d.States[worst], asked)
	}
}

// longestWait returns the limit that refuses for the longest time, the first
// of equals, or -1 when none refuses.
func longestWait(d *limitstore.Decision) int {
	worst := -1
	for i := range d.Limits {
		if d.States[i].Refused && !d.Limits[i].Advisory && (worst < 0 || d.States[i].Reset > d.States[worst].Reset) {
			worst = i
		}
	}
	return worst
}

// remembered looks for refusals that still hold. It fills in the states of the
// limits that refuse, and returns a bit for each.
func (s *Shared) remembered(d *limitstore.Decision) (refusing uint32) {
	if !s.remote || !s.denials.any.Load() {
		return 0
	}
	now, seen := s.clock(), s.denials.seen(d.Limits)
	for i := range d.Limits {
		l := &d.Limits[i]
		if l.Advisory || l.Cost == 0 {
			continue
		}
		if remaining, wait, ok := s.denials.find(d.Limits, i, &seen, now); ok {
			d.States[i] = limitstore.State{Remaining: remaining, Reset: wait, Refused: true}
			refusing |= 1 << i
		}
	}
	return refusing
}
