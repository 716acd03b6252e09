package redis

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
)

const (
	// maxRequests and maxAsks bound a batch, so that the script never holds
	// the server for long. At least one request goes.
	maxRequests = 256
	maxAsks     = 1024
)

// line is where requests wait for a command that takes them along. At most one
// of them leads: it sends a command for all that wait, gives out the answers
// and hands the lead to one that came meanwhile.
type line struct {
	mu      sync.Mutex
	waiting []*waiter // oldest first
	led     bool
}

// state says where a waiter is. It changes under the line's mutex.
type state uint8

const (
	queued    state = iota // in the line; may leave uncharged
	appointed              // in the line, and leads next
	sent                   // in a command that is under way
	done                   // answered
	left                   // gone while its command was under way
)

// waiter is one request in the line. Its numbers are copies, for the request
// may leave while a command still carries it.
type waiter struct {
	limits   []limitstore.Limit
	states   []limitstore.State
	deadline time.Time
	admitted bool
	err      error

	state state
	wake  chan struct{} // holds a token when the state became appointed or done
	timer *time.Timer
}

func newWaiter() *waiter {
	w := &waiter{wake: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	w.timer.Stop()
	return w
}

func (w *waiter) ask(d *limitstore.Decision, deadline time.Time) {
	w.limits = append(w.limits[:0], d.Limits...)
	w.states = append(w.states[:0], d.States...)
	w.deadline, w.admitted, w.err, w.state = deadline, false, nil, queued
}

// wait brings a request through the line and takes its answer.
func (s *Store) wait(ctx context.Context, w *waiter, d *limitstore.Decision, timeout time.Duration) error {
	if s.line.join(w) {
		// Others that are ready to run get the chance to come along.
		runtime.Gosched()
		s.lead(w)
	} else if err := s.await(ctx, w, timeout); err != nil {
		return err
	}
	copy(d.States, w.states)
	d.Admitted = w.admitted
	err := w.err
	s.free(w)
	return err
}

// await returns nil when the waiter was answered. After an error the waiter
// belongs to the line or has been freed.
func (s *Store) await(ctx context.Context, w *waiter, timeout time.Duration) error {
	w.timer.Reset(timeout)
	var err error
	select {
	case <-w.wake:
	case <-ctx.Done():
		err = ctx.Err()
	case <-w.timer.C:
		err = ErrTimeout
	}
	w.timer.Stop() // before leaving, after which the waiter may be another's
	if err == nil {
		if s.line.stateOf(w) == appointed {
			s.lead(w)
		}
		return nil
	}
	switch s.line.leave(w) {
	case done: // the answer came at the same moment
		<-w.wake
		return nil
	case sent: // whoever leads frees it
		return err
	case appointed:
		<-w.wake
	}
	s.free(w)
	return err
}

func (s *Store) free(w *waiter) {
	w.err = nil
	s.waiters.Put(w)
}

// lead sends one command for w and those that wait with it, and hands over.
func (s *Store) lead(w *waiter) {
	// Stays when a client library panics: the line must go on.
	err := errors.New("limitstore/redis: the call ended early")
	defer func() {
		if err != nil {
			s.work.fail(err)
		}
		s.conclude(w)
	}()
	s.line.take(&s.work)
	var reply []int64
	if reply, err = s.call(w.deadline); err == nil {
		err = s.work.give(reply)
	}
}

// conclude tells the members of the batch and appoints the next leader.
func (s *Store) conclude(leader *waiter) {
	s.line.mu.Lock()
	defer s.line.mu.Unlock()
	for _, m := range s.work.members {
		s.settleLocked(m, leader)
	}
	s.work.reset()
	s.line.appointLocked()
}

func (s *Store) settleLocked(m, leader *waiter) {
	switch {
	case m.state == left:
		s.free(m)
	case m == leader:
		m.state = done
	default:
		m.state = done
		m.wake <- struct{}{}
	}
}

// join puts w in the line and reports whether it leads.
func (l *line) join(w *waiter) (leads bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, w)
	if l.led {
		return false
	}
	l.led = true
	w.state = appointed
	return true
}

func (l *line) stateOf(w *waiter) state {
	l.mu.Lock()
	defer l.mu.Unlock()
	return w.state
}

// leave takes w out, or marks it as gone when a command carries it, and
// returns the state that it had.
func (l *line) leave(w *waiter) state {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := w.state
	switch was {
	case sent:
		w.state = left
	case queued:
		l.removeLocked(w)
	case appointed:
		l.removeLocked(w)
		l.appointLocked()
	}
	return was
}

func (l *line) removeLocked(w *waiter) {
	i := slices.Index(l.waiting, w)
	l.waiting = slices.Delete(l.waiting, i, i+1)
}

// take moves the head of the line into the batch.
func (l *line) take(b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.headLocked()
	for _, w := range l.waiting[:n] {
		w.state = sent
		b.add(w)
	}
	l.waiting = slices.Delete(l.waiting, 0, n)
}

// appointLocked gives the lead to the youngest of those that the next command
// takes along: it has the most time left, and the command runs on its time.
func (l *line) appointLocked() {
	n := l.headLocked()
	l.led = n > 0
	if l.led {
		w := l.waiting[n-1]
		w.state = appointed
		w.wake <- struct{}{}
	}
}

// headLocked returns how many of the line go into one command.
func (l *line) headLocked() int {
	asks := 0
	for i, w := range l.waiting {
		asks += len(w.limits)
		if i == maxRequests || i > 0 && asks > maxAsks {
			return i
		}
	}
	return len(l.waiting)
}
