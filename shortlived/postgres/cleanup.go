package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/pgconn"
)

const (
	defaultCleanEvery = time.Minute
	// batchPause leaves the server to the clients between two batches.
	batchPause = 5 * time.Millisecond
	// batchTimeout bounds one batch, which no client waits for.
	batchTimeout = 5 * time.Second
)

// Cleanup deletes the rows that have expired and returns how many. Each batch
// of up to 500 is a transaction of its own; rows that others hold are passed
// over, and those that were renewed meanwhile are kept, so any number of
// gateways may clean at once and no client waits longer than for one batch.
func (s *Store) Cleanup(ctx context.Context) (deleted int64, err error) {
	for {
		n, err := s.cleanBatch(ctx)
		deleted += n
		if pgconn.Code(err) == pgconn.CodeUndefinedTable {
			return deleted, nil // nothing was ever stored
		}
		if err != nil {
			return deleted, fmt.Errorf("shortlived: postgres: cleaning: %w", err)
		}
		if n < batch {
			return deleted, nil
		}
		select {
		case <-ctx.Done():
			return deleted, ctx.Err()
		case <-time.After(batchPause):
		}
	}
}

func (s *Store) cleanBatch(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, max(batchTimeout, s.conn.Timeout()))
	defer cancel()
	return s.conn.Exec(ctx, s.sql.cleanup)
}

// cleaner is the goroutine that cleans.
type cleaner struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// startCleaner cleans once per interval, at a phase of its own, so that
// gateways which were started together do not clean together.
func (s *Store) startCleaner(every time.Duration) {
	if every == 0 {
		every = defaultCleanEvery
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cleaner.cancel = cancel
	if every < 0 {
		return
	}
	s.cleaner.done.Go(func() {
		timer := time.NewTimer(rand.N(every))
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			if _, err := s.Cleanup(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn("expired short-lived values could not be deleted", "error", err)
			}
			timer.Reset(every)
		}
	})
}

func (c *cleaner) stop() {
	c.cancel()
	c.done.Wait()
}
