package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// lockLifetime bounds the lock of a holder that died. It is not renewed: a
	// holder needs milliseconds, and nothing depends on the lock.
	lockLifetime = 10 * time.Second
	lockPoll     = 50 * time.Millisecond
)

// scriptUnlock removes the lock of one holder only.
var scriptUnlock = redis.NewScript(`
local holder = redis.pcall('GET', KEYS[1])
if holder == ARGV[1] then
	return redis.pcall('DEL', KEYS[1])
end
return holder
`)

// Lock implements ringstore.Locker by a key that expires after ten seconds, by
// the server's clock.
func (r *Repository) Lock(ctx context.Context) (unlock func(), err error) {
	mark := rand.Text()
	if err := r.acquire(ctx, mark); err != nil {
		if errors.Is(err, errUnknownOutcome) {
			r.release(ctx, mark) // it may be held
		}
		return nil, fmt.Errorf("locking the list %s: %w", r.key, err)
	}
	return func() { r.release(ctx, mark) }, nil
}

func (r *Repository) acquire(ctx context.Context, mark string) error {
	poll := time.NewTicker(lockPoll)
	defer poll.Stop()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := r.tryLock(ctx, mark)
		if !errors.Is(err, redis.Nil) {
			return classify(err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-poll.C:
		}
	}
}

// tryLock returns redis.Nil where another one holds the lock.
func (r *Repository) tryLock(ctx context.Context, mark string) error {
	ctx, cancel := r.conn.WithTimeout(ctx)
	defer cancel()
	return r.conn.Client().SetArgs(ctx, r.lockKey(), mark, redis.SetArgs{Mode: "NX", TTL: lockLifetime}).Err()
}

// release removes the lock if it is still this holder's, also when its context
// has ended. A lock that cannot be removed expires.
func (r *Repository) release(ctx context.Context, mark string) {
	_ = r.run(context.WithoutCancel(ctx), scriptUnlock, r.lockKey(), mark)
}

func (r *Repository) lockKey() string { return r.key + ":lock" }
