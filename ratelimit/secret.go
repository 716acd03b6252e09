package ratelimit

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// processHasher hashes the keys of counts that need not mean anything to
// another process. It outlives configurations, so that their counts do.
var processHasher = sync.OnceValue(newProcessHasher)

// secretRetry is how long a failed look-up of the secret counts.
const secretRetry = time.Second

// secretSource gets the secret at first need and keeps it.
type secretSource struct {
	get     func(context.Context) ([32]byte, error)
	timeout time.Duration
	ready   atomic.Pointer[hasher]

	turn    chan struct{} // held by who looks it up
	failed  error         // of the last look-up; under turn
	retryAt time.Time     // when to look again; under turn
}

func newSecretSource(get func(context.Context) ([32]byte, error), timeout time.Duration) *secretSource {
	s := &secretSource{get: get, timeout: timeout, turn: make(chan struct{}, 1)}
	if get == nil {
		s.ready.Store(processHasher())
	}
	return s
}

// hasher returns the keyed hash. Of several requests that need the secret
// first, one looks it up and the others wait, none longer than the timeout.
func (s *secretSource) hasher(ctx context.Context) (*hasher, error) {
	if h := s.ready.Load(); h != nil {
		return h, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("ratelimit: waiting for the hash secret: %w", context.Cause(ctx))
	}
	if h := s.ready.Load(); h != nil {
		return h, nil
	}
	if s.failed != nil && time.Now().Before(s.retryAt) {
		return nil, s.failed
	}
	return s.lookUp(ctx)
}

func (s *secretSource) lookUp(ctx context.Context) (*hasher, error) {
	secret, err := s.get(ctx)
	if err != nil {
		err = fmt.Errorf("ratelimit: getting the hash secret: %w", err)
		if ctx.Err() != context.Canceled { // a client that left says nothing about the source
			s.failed, s.retryAt = err, time.Now().Add(secretRetry)
		}
		return nil, err
	}
	h := newHasher(secret)
	s.ready.Store(h)
	return h, nil
}
