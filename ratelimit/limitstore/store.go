// Package limitstore is the contract of the stores that keep the counts of
// rate limits, and the arithmetic that all of them share. A store knows keys,
// numbers and times, nothing of HTTP or clients.
//
// One call decides over all limits of one request: it is admitted only if
// every limit admits it, and then charged to all of them in the same atomic
// step. A refused request is charged nowhere and writes nothing. The store's
// clock decides, never the caller's, so that callers on machines with
// different clocks share one truth.
package limitstore

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Errors that callers branch on. Any other error means that the store could
// not be asked or could not tell; it never means "no limit".
var (
	// ErrFull means that a bounded store is full of live counts and has no
	// room for a new key. Known keys are still decided.
	ErrFull = errors.New("limitstore: store is full of live counts")
	// ErrCorrupt means that the value at one of the keys is not a count of
	// ours. Other keys are not affected.
	ErrCorrupt = errors.New("limitstore: stored value is not a count")
	// ErrInvalid means that the decision breaks the rules of Limit: a mistake
	// of the caller.
	ErrInvalid = errors.New("limitstore: invalid decision")
)

const (
	// MaxAmount bounds events and costs: up to here a double, which is what
	// Redis scripts compute with, holds every integer exactly.
	MaxAmount = 1<<53 - 1
	// MaxLimits bounds the limits of one decision.
	MaxLimits = 32
	// MaxWindow is the longest window.
	MaxWindow = 366 * 24 * time.Hour
)

// Key names a count. It must be a hash (its bits are taken as evenly spread)
// over everything that tells counts apart, the algorithm and the window
// included: one key is only ever used with one algorithm and one window.
type Key [16]byte

// Algorithm is how a limit counts.
type Algorithm uint8

// FixedWindow counts in windows aligned to the Unix epoch of the store's
// clock: never more than Events in a window.
const FixedWindow Algorithm = 1

// String returns the algorithm's name in configurations.
func (a Algorithm) String() string {
	if a == FixedWindow {
		return "fixed_window"
	}
	return fmt.Sprintf("algorithm(%d)", uint8(a))
}

// Limit is what one limit asks of a decision.
type Limit struct {
	Key       Key
	Algorithm Algorithm
	// Window is the length of the window: whole milliseconds, up to MaxWindow.
	Window time.Duration
	// Events is what a window holds, 1 to MaxAmount.
	Events int64
	// Cost is what the request is charged when admitted, 0 to MaxAmount. A
	// limit with cost 0 never refuses and only reports.
	Cost int64
	// Advisory limits (dry runs) never refuse the request. One that has room
	// is charged if the request is admitted; one that has none is not charged
	// and says so in its State.
	Advisory bool
}

// State is the answer of one limit.
type State struct {
	// Remaining is what is left of the window after the decision, at least 0.
	Remaining int64
	// Reset is how long until the window ends, by the store's clock at the
	// time of the decision: at least a millisecond.
	Reset time.Duration
	// Refused says that this limit has no room for the request.
	Refused bool
}

// Decision is a question and its answer. The caller may use it again.
type Decision struct {
	// Limits are asked together: 1 to MaxLimits, with distinct keys.
	Limits []Limit
	// Timeout is how long to wait for the answer. Zero: the store's own.
	Timeout time.Duration

	// States answer Limits one by one. The caller provides as many as there
	// are limits; they mean something only after success.
	States []State
	// Admitted tells whether the request was admitted and charged.
	Admitted bool
}

// Store keeps counts. It is safe for concurrent use. It keeps no reference to
// a Decision after Decide has returned.
type Store interface {
	// Decide fills in the answer. It returns within the timeout, and as a rule
	// when ctx ends: a call that carries other callers' questions too is seen
	// through. After an error from a store on a network the request may have
	// been charged, for the reply may have been lost; never twice.
	Decide(ctx context.Context, d *Decision) error
}

// InProcess is implemented by stores that answer from this process's memory:
// there is no connection to lose and no trip to save.
type InProcess interface {
	Store
	InProcess()
}

// Check returns an error that wraps ErrInvalid when the decision breaks the
// rules. Stores call it first.
func (d *Decision) Check() error {
	if len(d.Limits) == 0 || len(d.Limits) > MaxLimits || len(d.States) != len(d.Limits) {
		return fmt.Errorf("%w: %d limits, %d states", ErrInvalid, len(d.Limits), len(d.States))
	}
	for i := range d.Limits {
		if err := d.Limits[i].check(); err != nil {
			return err
		}
		for j := range i {
			if d.Limits[j].Key == d.Limits[i].Key {
				return fmt.Errorf("%w: the same key twice", ErrInvalid)
			}
		}
	}
	return nil
}

func (l *Limit) check() error {
	switch {
	case l.Algorithm != FixedWindow:
		return fmt.Errorf("%w: unknown %v", ErrInvalid, l.Algorithm)
	case l.Window < time.Millisecond || l.Window > MaxWindow || l.Window%time.Millisecond != 0:
		return fmt.Errorf("%w: window %v", ErrInvalid, l.Window)
	case l.Events < 1 || l.Events > MaxAmount:
		return fmt.Errorf("%w: %d events", ErrInvalid, l.Events)
	case l.Cost < 0 || l.Cost > MaxAmount:
		return fmt.Errorf("%w: cost %d", ErrInvalid, l.Cost)
	}
	return nil
}
