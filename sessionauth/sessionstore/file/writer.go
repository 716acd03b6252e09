package file

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
)

const (
	// maxBatch bounds the writes of one transaction, and so how long the first
	// of them waits for the others.
	maxBatch = 128
	// cleanBatch bounds the records that one clean-up transaction looks at.
	cleanBatch = 100
	// cleanEvery is the rhythm of clean-up, give or take a tenth.
	cleanEvery = time.Minute
	// cleanPause lies between two batches of one clean-up.
	cleanPause = 20 * time.Millisecond
)

// handle is an open file with the goroutine that alone writes to it. Writes
// queue up while a transaction is being synced and go into the next one
// together: a lone write waits for nobody, and many cost few syncs.
type handle struct {
	store *Store
	db    *bbolt.DB

	mu      sync.Mutex
	pending []*write
	refused error // set when no more writes are taken

	wake chan struct{} // holds one token
	stop chan struct{}
}

// write is a step that waits for its transaction.
type write struct {
	ctx   context.Context
	step  func(*txn) error
	taken atomic.Bool // by the writer, or by its caller who gave up
	done  chan struct{}
	err   error // after done
}

func newHandle(s *Store, db *bbolt.DB) *handle {
	return &handle{store: s, db: db, wake: make(chan struct{}, 1), stop: make(chan struct{})}
}

// submit queues a step and waits for its outcome. A step that has been taken up
// is waited for in any case.
func (h *handle) submit(ctx context.Context, step func(*txn) error) error {
	w := &write{ctx: ctx, step: step, done: make(chan struct{})}
	h.mu.Lock()
	if err := h.refused; err != nil {
		h.mu.Unlock()
		return err
	}
	h.pending = append(h.pending, w)
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		if w.taken.CompareAndSwap(false, true) {
			return ctx.Err()
		}
		<-w.done
	}
	return w.err
}

func (h *handle) retired() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refused != nil
}

// refuse takes no more writes and fails those that wait.
func (h *handle) refuse(err error) {
	h.mu.Lock()
	if h.refused == nil {
		h.refused = err
	}
	pending := h.pending
	h.pending = nil
	h.mu.Unlock()
	for _, w := range pending {
		if w.taken.CompareAndSwap(false, true) {
			w.finish(err)
		}
	}
}

func (w *write) finish(err error) {
	w.err = err
	close(w.done)
}

// next takes the writes of one transaction off the queue.
func (h *handle) next() []*write {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := min(len(h.pending), maxBatch)
	batch := h.pending[:n:n]
	h.pending = h.pending[n:]
	if len(h.pending) == 0 {
		h.pending = nil
	}
	return slices.DeleteFunc(batch, func(w *write) bool {
		if !w.taken.CompareAndSwap(false, true) {
			return true
		}
		err := w.ctx.Err() // done before it began
		if err != nil {
			w.finish(err)
		}
		return err != nil
	})
}

func (h *handle) waiting() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.pending) > 0
}

// run writes until the Store is closed or the handle had to be given up.
func (h *handle) run() {
	clean := time.NewTimer(jitter(cleanEvery))
	defer clean.Stop()
	for !h.retired() {
		select {
		case <-h.stop:
			h.refuse(ErrClosed)
			return
		case <-h.wake:
			for h.waiting() && !h.stopping() { // writes that wait at the end are refused
				h.commit(h.next())
			}
		case <-clean.C:
			clean.Reset(h.clean())
		}
	}
}

func (h *handle) stopping() bool {
	select {
	case <-h.stop:
		return true
	default:
		return false
	}
}

func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5)
}

// clean runs one batch of clean-up and returns when the next one is due.
func (h *handle) clean() time.Duration {
	var more bool
	w := &write{ctx: context.Background(), done: make(chan struct{}), step: func(t *txn) (err error) {
		more, err = t.clean(cleanBatch)
		return err
	}}
	h.commit([]*write{w})
	if w.err != nil {
		h.store.log.Error("session clean-up failed", slog.Any("error", w.err))
	}
	if more && w.err == nil {
		return cleanPause
	}
	return jitter(cleanEvery)
}

// commit runs writes in one transaction. When one of them breaks half-way the
// transaction is rolled back, that one fails, and the others run again.
func (h *handle) commit(batch []*write) {
	for len(batch) > 0 {
		broken, err := h.tryCommit(batch)
		if broken < 0 {
			return
		}
		batch[broken].finish(err)
		batch = slices.Delete(batch, broken, broken+1)
	}
}

// tryCommit finishes all writes of the batch, or none and tells which one
// broke.
func (h *handle) tryCommit(batch []*write) (broken int, err error) {
	tx, err := h.db.Begin(true)
	if err != nil {
		finishAll(batch, fmt.Errorf("file session store: %w", err), nil)
		return -1, nil
	}
	outcomes := make([]error, len(batch))
	dirty := false
	for i, w := range batch {
		var t *txn
		outcomes[i] = guarded(func() error {
			t = h.store.txn(tx)
			return w.step(t)
		})
		if breaks(outcomes[i]) {
			return i, errors.Join(outcomes[i], tx.Rollback())
		}
		dirty = dirty || t.dirty
	}
	if !dirty { // nothing to sync for refusals
		finishAll(batch, wrapped(tx.Rollback()), outcomes)
		return -1, nil
	}
	finishAll(batch, h.sync(tx), outcomes)
	return -1, nil
}

// breaks reports whether a step may have left half its writes.
func breaks(err error) bool {
	if _, ok := errors.AsType[fault](err); ok {
		return true
	}
	_, ok := errors.AsType[panicError](err)
	return ok
}

// sync commits. After a panic in the middle of it the database's own books may
// be wrong, so the file is let go and opened anew by the next operation.
func (h *handle) sync(tx *bbolt.Tx) error {
	err := guarded(tx.Commit)
	if _, panicked := errors.AsType[panicError](err); panicked {
		_ = guarded(tx.Rollback) // gives up the writer's lock, which Close needs
		_ = guarded(h.db.Close)
		h.refuse(err)
	}
	return wrapped(err)
}

func wrapped(err error) error {
	if err != nil {
		return fmt.Errorf("file session store: writing: %w", err)
	}
	return nil
}

// finishAll tells each write its outcome, or all of them that the transaction
// failed.
func finishAll(batch []*write, failed error, outcomes []error) {
	for i, w := range batch {
		if failed != nil {
			w.finish(failed)
		} else {
			w.finish(outcomes[i])
		}
	}
}
