package dataprotection

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore"
)

const (
	// readTimeout bounds one reading of the repository.
	readTimeout = 10 * time.Second
	// rereadPeriod is how long a ring is used before it is read again, give or
	// take a tenth: servers notice a change within a minute.
	rereadPeriod = 45 * time.Second
	// retryPeriod replaces rereadPeriod after a failure.
	retryPeriod = 10 * time.Second
	// readPace is the least time between two readings that requests cause, by
	// an unknown key id or for want of a ring: clients must not be able to
	// hammer the repository.
	readPace = time.Second
)

// reads is the state of reading, guarded by Ring.mu. Its times are by
// time.Now, which is monotonic, and not by the clock of keys' dates.
type reads struct {
	running *flight // the reading that is under way
	queued  *flight // the one that begins after it
	unknown *flight // the last one that an unknown key id caused

	failed    error // of the last reading
	failedAt  time.Time
	unknownAt time.Time
	timer     *time.Timer
	reported  error // the failure that was last reported; nil: none
}

// flight is one reading that any number of callers wait for.
type flight struct {
	done chan struct{}
	err  error // valid once done is closed
}

func newFlight() *flight { return &flight{done: make(chan struct{})} }

func (f *flight) wait(ctx context.Context) error {
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return fmt.Errorf("waiting for the key ring: %w: %w", ErrUnavailable, context.Cause(ctx))
	}
}

func (f *flight) finished() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// errClosed is what a closed Ring answers where it would have to read.
var errClosed = fmt.Errorf("%w: the key ring is closed", ErrUnavailable)

// readKind says which reading a caller can share.
type readKind int

const (
	joinRead  readKind = iota // any, also one that has already begun
	freshRead                 // one that begins after the call
	pacedRead                 // as joinRead, but a failure is remembered for readPace
)

// read waits for a reading of the repository. The reading itself belongs to
// the Ring and goes on when the caller leaves.
func (r *Ring) read(ctx context.Context, kind readKind) error {
	f, err := r.startRead(kind)
	if err != nil {
		return err
	}
	return f.wait(ctx)
}

func (r *Ring) startRead(kind readKind) (*flight, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if kind == pacedRead && r.reads.failed != nil && time.Since(r.reads.failedAt) < readPace {
		return nil, r.reads.failed
	}
	if kind != freshRead && r.reads.running != nil {
		return r.reads.running, nil
	}
	return r.startReadLocked()
}

// startReadLocked returns a reading that begins after the call.
func (r *Ring) startReadLocked() (*flight, error) {
	if r.closed {
		return nil, errClosed
	}
	if r.reads.running != nil {
		if r.reads.queued == nil {
			r.reads.queued = newFlight()
		}
		return r.reads.queued, nil
	}
	f := newFlight()
	r.reads.running = f
	r.work.Go(func() { r.runReads(f) })
	return f, nil
}

// runReads reads for f, and for those that queued meanwhile.
func (r *Ring) runReads(f *flight) {
	for f != nil {
		f.err = r.readOnce()
		if report := r.changeOfState(f.err); report != nil {
			report()
		}
		f = r.finishRead(f)
	}
}

// finishRead records the outcome, wakes the waiting, and returns the reading
// that comes next, if any.
func (r *Ring) finishRead(f *flight) (next *flight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads.failed, r.reads.failedAt = f.err, time.Now()
	close(f.done)
	next = r.reads.queued
	r.reads.running, r.reads.queued = next, nil
	r.armTimerLocked()
	return next
}

// armTimerLocked plans the next reading.
func (r *Ring) armTimerLocked() {
	if r.closed {
		return
	}
	period := rereadPeriod
	if r.reads.failed != nil {
		period = retryPeriod
	}
	period += time.Duration((rand.Float64() - 0.5) / 5 * float64(period))
	if r.reads.timer == nil {
		r.reads.timer = time.AfterFunc(period, func() { _, _ = r.startRead(joinRead) })
		return
	}
	r.reads.timer.Reset(period)
}

func (s *reads) stopTimer() {
	if s.timer != nil {
		s.timer.Stop()
	}
}

// changeOfState compares the outcome of a reading with what was last reported,
// and returns how to report a change. A failure without any ring is none: the
// callers that need a ring are told.
func (r *Ring) changeOfState(err error) (report func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.reads.reported
	switch {
	case r.closed:
	case err == nil && before != nil:
		r.reads.reported = nil
		return func() { r.log.Info("key ring: readable again") }
	case err != nil && r.current.Load() != nil &&
		(before == nil || errors.Is(err, ErrBroken) != errors.Is(before, ErrBroken)):
		r.reads.reported = err
		return func() {
			r.log.Error("key ring: cannot be read, the last good ring stays in use", "error", err)
			r.onError(err)
		}
	}
	return nil
}

// readOnce reads the repository and takes over what it holds. Only runReads
// calls it, so there is one at a time.
func (r *Ring) readOnce() error {
	ctx, cancel := context.WithTimeout(r.ctx, readTimeout)
	defer cancel()
	elements, err := r.repository.Elements(ctx)
	if err != nil {
		return readError(err)
	}
	before := r.current.Load()
	if before != nil && before.source == fingerprint(elements) {
		return nil
	}
	ring, err := parseRing(elements, before, r.log)
	if err != nil {
		return readError(err)
	}
	forgets := before.forgets(ring)
	// In this order: who sees the new epoch sees the new ring. The other way
	// round a token opened with the old ring could be kept for the new epoch.
	r.current.Store(ring)
	if forgets {
		r.epoch.Add(1)
	}
	if before != nil && len(ring.keys) == 0 && len(before.keys) > 0 {
		r.log.Warn("key ring: all keys are gone")
	}
	return nil
}

// readError sorts the errors of a reading into ErrUnavailable and ErrBroken.
func readError(err error) error {
	switch {
	case errors.Is(err, ringstore.ErrUnavailable):
		return fmt.Errorf("reading the key ring: %w", err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("reading the key ring: %w: %w", ErrUnavailable, err)
	}
	return fmt.Errorf("reading the key ring: %w: %w", ErrBroken, err)
}

// findUnknown looks for a key that the ring did not have when it was last
// read. One reading serves all that ask at the same time; within readPace of
// it, the answer is ErrUnknownKey without another.
func (r *Ring) findUnknown(ctx context.Context, id wireID) (*keyring, *listedKey, error) {
	f := r.readForUnknown()
	if f == nil {
		return nil, nil, ErrUnknownKey
	}
	err := f.wait(ctx)
	ring := r.current.Load()
	if k := ring.find(id); k != nil {
		return ring, k, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w (%v)", ErrUnknownKey, err)
	}
	return nil, nil, ErrUnknownKey
}

// readForUnknown returns the reading to wait for, or nil.
func (r *Ring) readForUnknown() *flight {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.reads.unknown; f != nil && !f.finished() {
		return f
	}
	if !r.reads.unknownAt.IsZero() && time.Since(r.reads.unknownAt) < readPace {
		return nil
	}
	f, err := r.startReadLocked()
	if err != nil {
		return nil
	}
	r.reads.unknown, r.reads.unknownAt = f, time.Now()
	return f
}
