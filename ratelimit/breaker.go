package ratelimit

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// breakAfter failures within breakWithin, with no success between, open
	// the breaker. Failures at one moment are one: they share a call.
	breakAfter    = 3
	breakWithin   = 2 * time.Second
	sameMoment    = 10 * time.Millisecond
	probeInterval = time.Second
)

// breaker gives a store up that keeps failing, so that requests do not wait
// for it: while it is open one request a second tries the store, the others
// fail at once. Times are readings of one monotonic clock.
type breaker struct {
	open    atomic.Bool
	suspect atomic.Bool // failures have been counted

	mu       sync.Mutex
	failures int
	first    time.Duration // the first failure counted
	last     time.Duration // the last one
	probeAt  time.Duration // when the next request may try
}

// allow reports whether a request may ask the store.
func (b *breaker) allow(now time.Duration) bool {
	if !b.open.Load() {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open.Load() && now < b.probeAt {
		return false
	}
	b.probeAt = now + probeInterval
	return true
}

// succeeded notes an answer and reports whether that closed the breaker.
func (b *breaker) succeeded() (closed bool) {
	if !b.suspect.Load() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures = 0
	b.suspect.Store(false)
	return b.open.Swap(false)
}

// failed notes a failure and reports whether that opened the breaker.
func (b *breaker) failed(now time.Duration) (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.failures == 0 || now-b.first > breakWithin:
		b.failures, b.first = 1, now
	case now-b.last < sameMoment:
		return false
	default:
		b.failures++
	}
	b.last = now
	b.suspect.Store(true)
	if b.open.Load() || b.failures < breakAfter {
		return false
	}
	b.probeAt = now + probeInterval
	b.open.Store(true)
	return true
}
