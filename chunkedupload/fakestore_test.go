package chunkedupload

import (
	"bytes"
	"context"
	"io"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// fakeStore is the contract in memory. Its fail func, where set, makes the
// named operation fail.
type fakeStore struct {
	mu      sync.Mutex
	uploads map[string]*fakeUpload
	fail    func(op string) error
	now     func() time.Time
	free    int64
}

func newFakeStore() *fakeStore {
	return &fakeStore{uploads: map[string]*fakeUpload{}, now: time.Now, free: 1 << 40}
}

func (s *fakeStore) failing(op string) error {
	s.mu.Lock()
	f := s.fail
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(op)
}

func (s *fakeStore) setFail(f func(op string) error) { s.mu.Lock(); s.fail = f; s.mu.Unlock() }

func (s *fakeStore) Free(context.Context) (free, total int64, err error) { return s.free, 1 << 40, nil }

func (s *fakeStore) Create(_ context.Context, info uploadstore.Info) (uploadstore.Upload, error) {
	if err := s.failing("create"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uploads[info.ID] != nil {
		return nil, uploadstore.ErrExists
	}
	u := &fakeUpload{s: s, info: info, progress: info.Created}
	s.uploads[info.ID] = u
	return u, nil
}

func (s *fakeStore) Open(_ context.Context, id string) (uploadstore.Upload, error) {
	if err := s.failing("open"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.uploads[id]; u != nil {
		return u, nil
	}
	return nil, uploadstore.ErrNotFound
}

func (s *fakeStore) All(context.Context) iter.Seq2[string, error] {
	s.mu.Lock()
	ids := slices.Collect(maps.Keys(s.uploads))
	s.mu.Unlock()
	return func(yield func(string, error) bool) {
		for _, id := range ids {
			if !yield(id, s.failing("all")) {
				return
			}
		}
	}
}

type fakeUpload struct {
	s        *fakeStore
	info     uploadstore.Info
	data     []byte
	progress time.Time
	writer   *fakeWriter
	claim    *fakeClaim
	claims   int
	outcome  *uploadstore.Outcome
	gone     bool
}

func (u *fakeUpload) lapsedLocked() bool {
	return u.claim != nil && u.outcome == nil && u.s.now().Sub(u.claim.renewed) > uploadstore.ClaimLapse
}

func (u *fakeUpload) Status(context.Context) (uploadstore.Status, error) {
	if err := u.s.failing("status"); err != nil {
		return uploadstore.Status{}, err
	}
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	if u.gone {
		return uploadstore.Status{}, uploadstore.ErrNotFound
	}
	st := uploadstore.Status{
		Info: u.info, Length: u.info.Length, Progress: u.progress, Writing: u.writer != nil,
		Lapsed: u.lapsedLocked(), Claimed: u.claim != nil && !u.lapsedLocked(), Deliveries: u.claims, Outcome: u.outcome,
	}
	if len(u.data) > 0 {
		st.Received = []uploadstore.Range{{From: 0, To: int64(len(u.data))}}
	}
	return st, nil
}

func (u *fakeUpload) Write(ctx context.Context, o uploadstore.WriteOptions) (uploadstore.Writer, error) {
	if err := u.s.failing("write"); err != nil {
		return nil, err
	}
	give := time.Now().Add(o.Patience)
	for {
		w, err := u.tryWrite(o)
		if err != uploadstore.ErrBusy || time.Now().After(give) {
			return w, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (u *fakeUpload) tryWrite(o uploadstore.WriteOptions) (uploadstore.Writer, error) {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	switch {
	case u.gone:
		return nil, uploadstore.ErrNotFound
	case u.outcome != nil:
		return nil, uploadstore.ErrClosed
	case u.claim != nil:
		return nil, uploadstore.ErrRunning
	case u.writer != nil:
		if time.Since(u.writer.last) > 3*time.Second && !u.writer.asked {
			u.writer.asked = true
			close(u.writer.yield)
		}
		return nil, uploadstore.ErrBusy
	case o.Offset != int64(len(u.data)):
		return nil, uploadstore.ErrOffset
	}
	u.writer = &fakeWriter{u: u, last: time.Now(), yield: make(chan struct{})}
	return u.writer, nil
}

func (u *fakeUpload) SetLength(context.Context, int64) error { return uploadstore.ErrTooLong }

func (u *fakeUpload) Reader(_ context.Context, offset int64) (io.ReadCloser, error) {
	if err := u.s.failing("reader"); err != nil {
		return nil, err
	}
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return io.NopCloser(&failingReader{u.s, bytes.NewReader(u.data[offset:])}), nil
}

type failingReader struct {
	s *fakeStore
	r io.Reader
}

func (r *failingReader) Read(p []byte) (int, error) {
	if err := r.s.failing("read"); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

func (u *fakeUpload) Claim(context.Context, uploadstore.ClaimOptions) (uploadstore.Claim, error) {
	if err := u.s.failing("claim"); err != nil {
		return nil, err
	}
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	switch {
	case u.gone:
		return nil, uploadstore.ErrNotFound
	case u.outcome != nil:
		return nil, uploadstore.ErrClosed
	case u.claim != nil:
		return nil, uploadstore.ErrRunning
	case u.writer != nil:
		return nil, uploadstore.ErrBusy
	}
	u.claims++
	u.claim = &fakeClaim{u: u, renewed: u.s.now()}
	return u.claim, nil
}

func (u *fakeUpload) Settle(_ context.Context, o uploadstore.Outcome) (uploadstore.Outcome, error) {
	if err := u.s.failing("settle"); err != nil {
		return o, err
	}
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	if u.outcome == nil {
		u.outcome = &o
	}
	u.claim = nil
	return *u.outcome, nil
}

func (u *fakeUpload) Delete(context.Context) error {
	if err := u.s.failing("delete"); err != nil {
		return err
	}
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	if u.gone {
		return uploadstore.ErrNotFound
	}
	u.gone = true
	delete(u.s.uploads, u.info.ID)
	return nil
}

type fakeWriter struct {
	u       *fakeUpload
	pending []byte
	last    time.Time
	asked   bool
	yield   chan struct{}
}

func (w *fakeWriter) Write(p []byte) (int, error) {
	if err := w.u.s.failing("append"); err != nil {
		return 0, err
	}
	w.u.s.mu.Lock()
	defer w.u.s.mu.Unlock()
	w.last = time.Now()
	if int64(len(w.u.data)+len(w.pending)+len(p)) > w.u.info.Length {
		return 0, uploadstore.ErrTooLong
	}
	w.pending = append(w.pending, p...)
	return len(p), nil
}

func (w *fakeWriter) Commit(ctx context.Context) (int64, error) {
	if err := w.u.s.failing("commit"); err != nil {
		return 0, err
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	w.u.s.mu.Lock()
	defer w.u.s.mu.Unlock()
	if w.u.gone {
		return 0, uploadstore.ErrNotFound
	}
	if w.u.writer != w {
		return 0, uploadstore.ErrFenced
	}
	w.u.data = append(w.u.data, w.pending...)
	w.pending, w.u.progress = nil, w.u.s.now()
	return int64(len(w.u.data)), nil
}

func (w *fakeWriter) Yield() <-chan struct{} { return w.yield }

func (w *fakeWriter) Close() error {
	w.u.s.mu.Lock()
	defer w.u.s.mu.Unlock()
	if w.u.writer == w {
		w.u.writer = nil
	}
	return nil
}

type fakeClaim struct {
	u       *fakeUpload
	renewed time.Time
}

func (c *fakeClaim) heldLocked() error {
	switch {
	case c.u.gone:
		return uploadstore.ErrAborted
	case c.u.claim != c:
		return uploadstore.ErrLost
	}
	return nil
}

func (c *fakeClaim) Renew(context.Context) error {
	if err := c.u.s.failing("renew"); err != nil {
		return err
	}
	c.u.s.mu.Lock()
	defer c.u.s.mu.Unlock()
	if err := c.heldLocked(); err != nil {
		return err
	}
	c.renewed = c.u.s.now()
	return nil
}

func (c *fakeClaim) Finish(_ context.Context, o uploadstore.Outcome) (uploadstore.Outcome, error) {
	if err := c.u.s.failing("finish"); err != nil {
		return o, err
	}
	c.u.s.mu.Lock()
	defer c.u.s.mu.Unlock()
	if c.u.gone {
		return o, uploadstore.ErrAborted
	}
	if c.u.outcome == nil {
		c.u.outcome = &o
	}
	if c.u.claim == c {
		c.u.claim = nil
	}
	return *c.u.outcome, nil
}

func (c *fakeClaim) Release(context.Context) error {
	if err := c.u.s.failing("release"); err != nil {
		return err
	}
	c.u.s.mu.Lock()
	defer c.u.s.mu.Unlock()
	if err := c.heldLocked(); err != nil {
		return err
	}
	c.u.claim = nil
	return nil
}
