package chunkedupload

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// errShutdown is why deliveries are cancelled when Shared closes.
var errShutdown = errors.New("chunkedupload: shutting down")

// Shared is what the handlers of one process have in common: the deliveries
// that run, so that a request that completes the same upload joins instead of
// asking the store, and the empty uploads that wait to be completed. It is safe
// for concurrent use.
type Shared struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	runs   map[string]*run // by upload id
	empty  map[emptyKey]emptyNote
}

// NewShared makes an empty one.
func NewShared() *Shared {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &Shared{ctx: ctx, cancel: cancel, runs: make(map[string]*run), empty: make(map[emptyKey]emptyNote)}
}

// Drain waits until no delivery runs or ctx is done.
func (s *Shared) Drain(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close cancels the deliveries that run and waits for their ends to be stored:
// an upload whose request was under way ends as interrupted. Drain first to let
// them finish.
func (s *Shared) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel(errShutdown)
	s.wg.Wait()
	return nil
}

// run is one delivery, or the attempt at one.
type run struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
	result result // valid once done is closed
}

// result is how a run ended: one of the fields is set.
type result struct {
	outcome   *uploadstore.Outcome
	refusal   refusal // there is no outcome
	elsewhere bool    // another gateway holds the claim, or just did
}

// join returns the run of the upload, which do starts if there is none. The
// context of do is cancelled by abort and Close only. Nil: shutting down.
func (s *Shared) join(id string, do func(context.Context) result) *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.runs[id]; ok {
		return r
	}
	if s.closed {
		return nil
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	r := &run{cancel: cancel, done: make(chan struct{})}
	s.runs[id] = r
	s.wg.Go(func() {
		// A run leaves the table before it is done: who comes after that finds
		// its end in the store.
		defer close(r.done)
		defer cancel(nil)
		defer s.forget(id)
		r.result = do(ctx)
	})
	return r
}

func (s *Shared) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.runs, id)
}

// abort cancels the upload's delivery, if this process runs it.
func (s *Shared) abort(id string, cause error) {
	s.mu.Lock()
	r := s.runs[id]
	s.mu.Unlock()
	if r != nil {
		r.cancel(cause)
	}
}

// emptyKey finds an empty upload by what its creation looked like.
type emptyKey [32]byte

type emptyNote struct {
	id      string
	expires time.Time
}

// Bounds of the notes about empty uploads.
const (
	emptyLifetime = 10 * time.Minute
	maxEmptyNotes = 4096
)

// noteEmpty remembers an empty upload. At the bound it is not remembered, and
// a repeated POST makes a second upload.
func (s *Shared) noteEmpty(key emptyKey, id string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.empty) >= maxEmptyNotes {
		for k, n := range s.empty {
			if now.After(n.expires) {
				delete(s.empty, k)
			}
		}
	}
	if len(s.empty) < maxEmptyNotes {
		s.empty[key] = emptyNote{id: id, expires: now.Add(emptyLifetime)}
	}
}

// notedEmpty returns the id of an upload that a repeated POST joins, or "".
func (s *Shared) notedEmpty(key emptyKey, now time.Time) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, ok := s.empty[key]; ok && !now.After(n.expires) {
		return n.id
	}
	return ""
}

// forgetEmpty ends the note: the client was given the outcome, a further POST
// is a new upload.
func (s *Shared) forgetEmpty(key emptyKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.empty, key)
}
