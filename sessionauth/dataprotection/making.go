package dataprotection

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore"
)

const (
	// makeTimeout bounds the making of a key: the lock of a dead process is
	// waited out within it.
	makeTimeout = 20 * time.Second
	// makePace is the least time after a failure before a key is tried again
	// in the background, while another key serves.
	makePace = 10 * time.Second
)

// makes is the state of making keys, guarded by Ring.mu.
type makes struct {
	running  *flight
	failed   error // of the last attempt; nil after a success
	failedAt time.Time
}

// sealing returns the ring and its key to seal with, and makes one first where
// none is good for that.
func (r *Ring) sealing(ctx context.Context) (sealer, error) {
	ring, err := r.ring(ctx)
	if err != nil {
		return sealer{}, err
	}
	c := ring.chosen(r.now())
	switch {
	case c.seal != nil:
		if c.generate && r.generates {
			r.makeInBackground()
		}
		return sealer{ring, c.seal}, nil
	case !r.generates:
		return standby(ring, c, ErrNoKey)
	}
	if c.standby != nil && r.makeFailedBefore() {
		r.makeInBackground()
		return standby(ring, c, ErrNoKey)
	}
	err = r.makeNow(ctx)
	ring = r.current.Load()
	c = ring.chosen(r.now())
	if c.seal != nil {
		return sealer{ring, c.seal}, nil
	}
	if err == nil {
		err = ErrNoKey
	}
	return standby(ring, c, err)
}

// sealer is a key to seal with.
type sealer struct {
	ring *keyring
	key  *listedKey
}

// standby returns the key that is used for want of a default key.
func standby(ring *keyring, c *choice, otherwise error) (sealer, error) {
	if c.standby == nil {
		return sealer{}, otherwise
	}
	return sealer{ring, c.standby}, nil
}

func (r *Ring) makeFailedBefore() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.makes.failed != nil
}

// makeInBackground begins to make a key, unless that is under way or has just
// failed.
func (r *Ring) makeInBackground() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.makes.running == nil && (r.makes.failed == nil || time.Since(r.makes.failedAt) >= makePace) {
		_, _ = r.startMakeLocked()
	}
}

// makeNow waits until a key was made. A failure is remembered for readPace.
func (r *Ring) makeNow(ctx context.Context) error {
	f, err := r.startMake()
	if err != nil {
		return err
	}
	return f.wait(ctx)
}

func (r *Ring) startMake() (*flight, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.makes.running != nil {
		return r.makes.running, nil
	}
	if r.makes.failed != nil && time.Since(r.makes.failedAt) < readPace {
		return nil, r.makes.failed
	}
	return r.startMakeLocked()
}

func (r *Ring) startMakeLocked() (*flight, error) {
	if r.closed {
		return nil, errClosed
	}
	f := newFlight()
	r.makes.running = f
	r.work.Go(func() {
		f.err = r.make()
		if f.err != nil && !r.makeFailedBefore() && r.ctx.Err() == nil {
			r.log.Error("key ring: no new key could be made", "error", f.err)
			r.onError(f.err)
		}
		r.finishMake(f)
	})
	return f, nil
}

func (r *Ring) finishMake(f *flight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.makes.running, r.makes.failed, r.makes.failedAt = nil, f.err, time.Now()
	close(f.done)
}

// make creates a key if one is needed still: under the lock, where the
// repository has one, and after reading the ring once more, since another
// process may have been faster. Two processes without a lock may both create
// one, which is untidy and harmless: all of them read the ring afterwards and
// come to the same choice.
func (r *Ring) make() error {
	ctx, cancel := context.WithTimeout(r.ctx, makeTimeout)
	defer cancel()
	if locker, ok := r.repository.(ringstore.Locker); ok {
		unlock, err := locker.Lock(ctx)
		if err != nil {
			return makeError(err)
		}
		defer unlock()
	}
	if err := r.read(ctx, freshRead); err != nil {
		return err
	}
	ring := r.current.Load()
	now := r.now()
	c := choose(ring.keys, now)
	if !c.generate {
		return nil
	}
	id, err := r.addKey(ctx, ring, now, c.activates)
	if err != nil {
		return makeError(err)
	}
	if err := r.read(ctx, freshRead); err != nil {
		return err
	}
	if r.current.Load().find(id.wire()) == nil {
		return fmt.Errorf("%w: the new key does not show in the key ring", ErrUnavailable)
	}
	return nil
}

// addKey stores a new key.
func (r *Ring) addKey(ctx context.Context, ring *keyring, now, activates time.Time) (KeyID, error) {
	created, err := creationDate(now, ring.revokedBefore)
	if err != nil {
		return KeyID{}, err
	}
	id := newKeyID()
	master := make([]byte, masterKeySize)
	rand.Read(master)
	defer clear(master)
	xml := newKeyXML(id, created, activates, now.Add(r.lifetime), master)
	if err := r.repository.Add(ctx, "key-"+id.String(), xml); err != nil {
		return KeyID{}, err
	}
	r.log.Info("key ring: new key made", "key", id.String(), "activates", formatDate(activates))
	return id, nil
}

// creationDate returns the date of a key made now. A mass revocation that a
// faster clock dated into the near future would revoke the key at once, so the
// key is dated alike; one that is dated later leaves no key that could be made.
func creationDate(now, revokedBefore time.Time) (time.Time, error) {
	if !revokedBefore.After(now) {
		return now, nil
	}
	if revokedBefore.After(now.Add(clockSkew)) {
		return time.Time{}, fmt.Errorf("%w: a revocation of all keys is dated %s", ErrNoKey, formatDate(revokedBefore))
	}
	return revokedBefore, nil
}

// makeError gives the errors of the repository's other methods their meaning:
// whatever the reason, no key can be had now.
func makeError(err error) error {
	if errors.Is(err, ErrNoKey) || errors.Is(err, ErrUnavailable) {
		return fmt.Errorf("making a key: %w", err)
	}
	return fmt.Errorf("making a key: %w: %w", ErrUnavailable, err)
}
