package storetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// step is one thing that a scenario does; what it promises is noted only when
// it succeeded.
type step struct {
	name string
	do   func(ctx context.Context, r *run) error
}

// run is a scenario under way, and what it was promised so far.
type run struct {
	store  uploadstore.Store
	info   uploadstore.Info
	upload uploadstore.Upload
	claim  uploadstore.Claim

	created, deleted, deleting bool
	acked                      []uploadstore.Range
	outcome                    *uploadstore.Outcome
}

func createStep() step {
	return step{"create", func(ctx context.Context, r *run) (err error) {
		r.upload, err = r.store.Create(ctx, r.info)
		if errors.Is(err, uploadstore.ErrExists) { // an earlier try got that far
			r.upload, err = r.store.Open(ctx, r.info.ID)
		}
		r.created = r.created || err == nil
		return err
	}}
}

// fillStep writes and commits a range, in two commits where it is serial.
func fillStep(from, to int64) step {
	return step{"fill", func(ctx context.Context, r *run) error {
		if r.upload == nil {
			return nil
		}
		from := from
		o := uploadstore.WriteOptions{Offset: from}
		mid := from + (to-from)/2
		if r.info.ChunkSize > 0 {
			o.Size, mid = to-from, from
		} else { // begin where an earlier try ended
			s, err := r.upload.Status(ctx)
			if err != nil {
				return err
			}
			from = max(from, s.Offset())
			o.Offset, mid = from, max(from, mid)
		}
		w, err := r.upload.Write(ctx, o)
		if err != nil {
			return err
		}
		return errors.Join(r.fill(ctx, w, from, mid, to), w.Close())
	}}
}

func (r *run) fill(ctx context.Context, w uploadstore.Writer, from, mid, to int64) error {
	for _, end := range []int64{mid, to} {
		if end == from {
			continue
		}
		if _, err := w.Write(content(from, end)); err != nil {
			return err
		}
		if _, err := w.Commit(ctx); err != nil {
			return err
		}
		r.acked = uploadstore.Merge(append(r.acked, uploadstore.Range{From: from, To: end}))
		from = end
	}
	return nil
}

func claimStep() step {
	return step{"claim", func(ctx context.Context, r *run) (err error) {
		if r.upload != nil && r.claim == nil {
			r.claim, err = r.upload.Claim(ctx, uploadstore.ClaimOptions{TakeOver: true})
		}
		return err
	}}
}

func renewStep() step {
	return step{"renew", func(ctx context.Context, r *run) error {
		if r.claim == nil {
			return nil
		}
		return r.claim.Renew(ctx)
	}}
}

func releaseStep() step {
	return step{"release", func(ctx context.Context, r *run) error {
		if r.claim == nil {
			return nil
		}
		err := r.claim.Release(ctx)
		if err == nil {
			r.claim = nil
		}
		return err
	}}
}

func finishStep() step {
	return step{"finish", func(ctx context.Context, r *run) error {
		if r.claim == nil {
			return nil
		}
		o, err := r.claim.Finish(ctx, done(201))
		if err == nil {
			r.outcome = &o
		}
		return err
	}}
}

func lengthStep(length int64) step {
	return step{"length", func(ctx context.Context, r *run) error { return r.upload.SetLength(ctx, length) }}
}

func deleteStep() step {
	return step{"delete", func(ctx context.Context, r *run) error {
		r.deleting = true
		err := r.upload.Delete(ctx)
		if errors.Is(err, uploadstore.ErrNotFound) {
			err = nil
		}
		r.deleted = err == nil
		return err
	}}
}

type scenario struct {
	name  string
	info  func() uploadstore.Info
	steps []step
}

var scenarios = []scenario{
	{"serial", func() uploadstore.Info { return serial(40) },
		[]step{createStep(), fillStep(0, 20), fillStep(20, 40), claimStep(), renewStep(), finishStep()}},
	{"deferred", func() uploadstore.Info { return serial(uploadstore.UnknownLength) },
		[]step{createStep(), fillStep(0, 20), lengthStep(40), fillStep(20, 40), claimStep(), releaseStep(), claimStep(), finishStep()}},
	{"chunks", func() uploadstore.Info { return chunked(40, 16) },
		[]step{createStep(), fillStep(16, 32), fillStep(32, 40), fillStep(0, 16), claimStep(), renewStep(), finishStep()}},
	{"deletion", func() uploadstore.Info { return serial(20) },
		[]step{createStep(), fillStep(0, 20), deleteStep()}},
}

// testCuts kills a gateway at every step of every scenario, and in the middle
// of every write, and lets another one finish the upload.
func testCuts(t *testing.T, place func(testing.TB) Place, o Options) {
	for _, sc := range scenarios {
		for _, cut := range []error{o.Killed, o.Torn} {
			t.Run(sc.name, func(t *testing.T) {
				for n := 0; ; n++ {
					if !cutAt(t, sc, place(t), n, cut) {
						return
					}
				}
			})
		}
	}
}

// cutAt reports whether there was a step n.
func cutAt(t *testing.T, sc scenario, place Place, n int, cut error) bool {
	var clock Clock
	survivor := place(t, Gateway{Now: clock.Now})
	fillSerial(t, create(t, survivor, serial(1)), 0, 1) // so that the survivor has looked at the servers' clock
	count, where := 0, ""
	victim := place(t, Gateway{Fault: func(step, name string) error {
		if count++; count > n {
			if where == "" {
				where = step + " " + name
			}
			return cut
		}
		return nil
	}})
	r := &run{store: victim, info: sc.info()}
	for _, s := range sc.steps {
		if err := s.do(t.Context(), r); err != nil {
			where += " in " + s.name
			break
		}
	}
	clock.Advance(2 * time.Minute)
	r.check(t, survivor, where)
	r.finish(t, survivor, where)
	return where != ""
}

// testFull fails every step of every scenario once for want of space; the same
// gateway then tries again.
func testFull(t *testing.T, place func(testing.TB) Place, o Options) {
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			for n := 0; ; n++ {
				if !fullAt(t, sc, place(t), n, o.Full) {
					return
				}
			}
		})
	}
}

func fullAt(t *testing.T, sc scenario, place Place, n int, full error) bool {
	count, where, quiet := 0, "", false
	s := place(t, Gateway{Fault: func(step, name string) error {
		if quiet {
			return nil
		}
		if count++; count-1 == n && step != "remove" {
			where = step + " " + name
			return full
		}
		return nil
	}})
	r := &run{store: s, info: sc.info()}
	for _, step := range sc.steps {
		err := step.do(t.Context(), r)
		if err == nil {
			continue
		}
		if !errors.Is(err, uploadstore.ErrFull) {
			t.Fatalf("no space at %q (%d of %d): %s says %v, want ErrFull", where, n, count, step.name, err)
		}
		if !r.deleting {
			quiet = true
			r.check(t, s, where)
			quiet = false
		}
		if err := step.do(t.Context(), r); err != nil {
			t.Fatalf("no space at %q: second %s says %v", where, step.name, err)
		}
	}
	quiet = true
	r.check(t, s, where)
	r.finish(t, s, where)
	return count > n
}

// check looks through another gateway at what was promised.
func (r *run) check(t *testing.T, s uploadstore.Store, where string) {
	t.Helper()
	u, err := s.Open(t.Context(), r.info.ID)
	if errors.Is(err, uploadstore.ErrNotFound) && (!r.created || r.deleting) {
		return
	}
	if err != nil {
		t.Fatalf("cut at %q: Open: %v", where, err)
	}
	if r.deleted {
		t.Fatalf("cut at %q: a deleted upload is there", where)
	}
	got, err := u.Status(t.Context())
	if err != nil {
		t.Fatalf("cut at %q: Status: %v", where, err)
	}
	for _, want := range r.acked {
		if !uploadstore.Contains(got.Received, want) {
			t.Fatalf("cut at %q: received %v, acknowledged %v", where, got.Received, r.acked)
		}
	}
	for _, run := range got.Received {
		rd := must[io.ReadCloser](t)(u.Reader(t.Context(), run.From))
		b, err := io.ReadAll(rd)
		_ = rd.Close()
		if err != nil || !bytes.Equal(b, content(run.From, run.To)) {
			t.Fatalf("cut at %q: bytes %v differ (%d read, %v)", where, run, len(b), err)
		}
	}
	if r.outcome != nil && (got.Outcome == nil || got.Outcome.Status != r.outcome.Status) {
		t.Fatalf("cut at %q: outcome %+v, acknowledged %+v", where, got.Outcome, r.outcome)
	}
}

// finish brings the upload to its end elsewhere: whatever was cut, the client
// can go on.
func (r *run) finish(t *testing.T, s uploadstore.Store, where string) {
	t.Helper()
	u, err := s.Open(t.Context(), r.info.ID)
	if err != nil {
		return
	}
	defer func() {
		if err := u.Delete(t.Context()); err != nil {
			t.Fatalf("cut at %q: Delete: %v", where, err)
		}
	}()
	got := status(t, u)
	if got.Outcome != nil {
		return
	}
	if !got.Claimed && !got.Lapsed {
		if err := r.complete(t.Context(), u, got); err != nil {
			t.Fatalf("cut at %q: going on: %v", where, err)
		}
		if got = status(t, u); !got.Complete() {
			t.Fatalf("cut at %q: not complete: %+v", where, got)
		}
	}
	c, err := u.Claim(t.Context(), uploadstore.ClaimOptions{TakeOver: true})
	if err != nil {
		t.Fatalf("cut at %q: Claim: %v", where, err)
	}
	first := must[uploadstore.Outcome](t)(c.Finish(t.Context(), done(299)))
	if first.Status != 299 || !strings.HasPrefix(string(first.Body), "body") {
		t.Fatalf("cut at %q: outcome %+v", where, first)
	}
}

// complete sends what is missing.
func (r *run) complete(ctx context.Context, u uploadstore.Upload, got uploadstore.Status) error {
	if r.info.ChunkSize == 0 {
		if got.Length == uploadstore.UnknownLength {
			if err := u.SetLength(ctx, 40); err != nil {
				return err
			}
			got.Length = 40
		}
		return fill(ctx, u, got.Offset(), got.Length, 0)
	}
	for from := int64(0); from < got.Length; from += r.info.ChunkSize {
		to := min(from+r.info.ChunkSize, got.Length)
		if uploadstore.Contains(got.Received, uploadstore.Range{From: from, To: to}) {
			continue
		}
		if err := fill(ctx, u, from, to, to-from); err != nil {
			return err
		}
	}
	return nil
}
