package memory

import (
	"sync"
	"sync/atomic"
	"time"
)

// sweeper sweeps a store every SweepInterval while there is something in it. An
// empty store has no timer, so one that was dropped without Close is collected.
type sweeper struct {
	armed atomic.Bool

	mu     sync.Mutex
	timer  *time.Timer
	closed bool
	run    sync.WaitGroup
}

// arm makes sure that a sweep will come. It is called after each addition.
func (w *sweeper) arm(sweep func() (more bool)) {
	if w.armed.Load() || !w.armed.CompareAndSwap(false, true) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.timer = time.AfterFunc(SweepInterval, func() { w.fire(sweep) })
	}
}

func (w *sweeper) fire(sweep func() bool) {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return
	}
	w.run.Add(1)
	w.mu.Unlock()
	defer w.run.Done()
	// Disarmed first: what is added while the sweep runs arms it again.
	w.armed.Store(false)
	if sweep() {
		w.arm(sweep)
	}
}

func (w *sweeper) close() {
	w.mu.Lock()
	w.closed = true
	if w.timer != nil {
		w.timer.Stop()
	}
	w.mu.Unlock()
	w.run.Wait()
}
