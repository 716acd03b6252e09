package storetest

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// A writer that receives is left alone, one that is idle yields, in the same
// gateway and elsewhere.
func testBusyAndYield(t *testing.T, place Place) {
	var clock Clock // of the gateway that holds the writers
	s := place(t, Gateway{Now: clock.Now})
	elsewhere := place(t, Gateway{})
	type pair struct {
		holder   uploadstore.Writer
		newcomer uploadstore.Upload
	}
	var pairs []pair
	for _, newcomer := range []uploadstore.Store{s, elsewhere} {
		info := serial(20)
		u := create(t, s, info)
		w := write(t, u, uploadstore.WriteOptions{})
		must[int](t)(w.Write(content(0, 10)))
		other := open(t, newcomer, info.ID)
		_, err := other.Write(t.Context(), uploadstore.WriteOptions{Offset: 0, Patience: 200 * time.Millisecond})
		wantError(t, "Write beside a live writer", err, uploadstore.ErrBusy)
		if !status(t, other).Writing {
			t.Error("a live writer is not shown")
		}
		select {
		case <-w.Yield():
			t.Fatal("asked to yield while receiving")
		default:
		}
		pairs = append(pairs, pair{w, other})
	}
	clock.Advance(4 * time.Second)
	var wg sync.WaitGroup
	for _, p := range pairs {
		wg.Go(func() {
			w, err := p.newcomer.Write(t.Context(), uploadstore.WriteOptions{Offset: 10, Patience: 10 * time.Second})
			if err != nil {
				t.Errorf("waiting newcomer: %v", err)
				return
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			select {
			case <-p.holder.Yield():
			case <-time.After(9 * time.Second):
				t.Error("an idle writer was not asked to yield")
			}
			if offset, err := p.holder.Commit(t.Context()); offset != 10 || err != nil {
				t.Errorf("Commit when yielding = %d, %v", offset, err)
			}
			if err := p.holder.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// A gateway that is taken for dead and comes back commits nothing more.
func testFencing(t *testing.T, place Place) {
	var clock Clock
	a, b := place(t, Gateway{}), place(t, Gateway{Now: clock.Now})
	info := serial(100)
	u := create(t, a, info)
	w := write(t, u, uploadstore.WriteOptions{})
	must[int](t)(w.Write(content(0, 10)))
	must[int64](t)(w.Commit(t.Context()))
	must[int](t)(w.Write(content(10, 30)))
	other := open(t, b, info.ID)
	status(t, other)
	clock.Advance(uploadstore.WriterLapse + time.Second)
	second := write(t, other, uploadstore.WriteOptions{Offset: 10})
	_, err := w.Commit(t.Context())
	wantError(t, "Commit of the fenced", err, uploadstore.ErrFenced)
	_, err = w.Write(content(30, 31))
	wantError(t, "Write of the fenced", err, uploadstore.ErrFenced)
	wantReceived(t, other, uploadstore.Range{From: 0, To: 10})
	must[int](t)(second.Write(content(10, 20)))
	must[int64](t)(second.Commit(t.Context()))
	_, err = w.Commit(t.Context())
	wantError(t, "Commit of the fenced", err, uploadstore.ErrFenced)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	wantReceived(t, u, uploadstore.Range{From: 0, To: 20})

	// A claim fences a dead writer too.
	third := write(t, u, uploadstore.WriteOptions{Offset: 20})
	must[int](t)(third.Write(content(20, 30)))
	status(t, other)
	clock.Advance(uploadstore.WriterLapse + time.Second)
	must[uploadstore.Claim](t)(other.Claim(t.Context(), uploadstore.ClaimOptions{}))
	_, err = third.Commit(t.Context())
	wantError(t, "Commit after a claim", err, uploadstore.ErrFenced)
	_ = third.Close()
}

// Gateways that take turns leave the upload whole and the store fast.
func testAlternation(t *testing.T, place Place) {
	a, b := place(t, Gateway{}), place(t, Gateway{})
	info := serial(80)
	ua := create(t, a, info)
	ub := open(t, b, info.ID)
	for at := int64(0); at < 80; at++ {
		fillSerial(t, ua, at, at+1)
		if got := offset(t, ub); got != at+1 {
			t.Fatalf("offset elsewhere = %d, want %d", got, at+1)
		}
		ua, ub = ub, ua
	}
	wantReceived(t, ua, uploadstore.Range{From: 0, To: 80})
}

// After kill -9 of its gateway an upload continues elsewhere within seconds,
// also for a newcomer without patience that comes again.
func testDeadWriter(t *testing.T, place Place, o Options) {
	var dead atomic.Bool
	var clock Clock
	a := place(t, Gateway{Fault: func(string, string) error {
		if dead.Load() {
			return o.Killed
		}
		return nil
	}})
	b := place(t, Gateway{Now: clock.Now})
	info := serial(20)
	u := create(t, a, info)
	w := write(t, u, uploadstore.WriteOptions{})
	must[int](t)(w.Write(content(0, 10)))
	must[int64](t)(w.Commit(t.Context()))
	must[int](t)(w.Write(content(10, 15)))
	dead.Store(true)
	_ = w.Close()
	other := open(t, b, info.ID)
	_, err := other.Write(t.Context(), uploadstore.WriteOptions{Offset: 10})
	wantError(t, "at first sight", err, uploadstore.ErrBusy)
	clock.Advance(5 * time.Second)
	second := write(t, other, uploadstore.WriteOptions{Offset: 10})
	must[int](t)(second.Write(content(10, 20)))
	must[int64](t)(second.Commit(t.Context()))
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	wantReceived(t, other, uploadstore.Range{From: 0, To: 20})
}

func offset(t testing.TB, u uploadstore.Upload) int64 {
	t.Helper()
	s := status(t, u)
	return s.Offset()
}

// at runs do n times at once, on two gateways.
func at(t *testing.T, place Place, n int, do func(i int, s uploadstore.Store)) {
	t.Helper()
	stores := []uploadstore.Store{place(t, Gateway{}), place(t, Gateway{})}
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			do(i, stores[i%2])
		})
	}
	close(start)
	wg.Wait()
}

func testCreateRace(t *testing.T, place Place) {
	for range 20 {
		info := serial(1)
		var made atomic.Int32
		at(t, place, 4, func(_ int, s uploadstore.Store) {
			switch _, err := s.Create(t.Context(), info); {
			case err == nil:
				made.Add(1)
			case !errors.Is(err, uploadstore.ErrExists):
				t.Error(err)
			}
		})
		if made.Load() != 1 {
			t.Fatalf("%d creations won", made.Load())
		}
	}
}

func testClaimRace(t *testing.T, place Place) {
	s := place(t, Gateway{})
	for range 20 {
		info := serial(0)
		create(t, s, info)
		var won atomic.Int32
		at(t, place, 4, func(_ int, s uploadstore.Store) {
			u, err := s.Open(t.Context(), info.ID)
			if err != nil {
				t.Error(err)
				return
			}
			switch _, err := u.Claim(t.Context(), uploadstore.ClaimOptions{TakeOver: true}); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, uploadstore.ErrRunning):
				t.Error(err)
			}
		})
		if won.Load() != 1 {
			t.Fatalf("%d claims won", won.Load())
		}
	}
}

func testSettleRace(t *testing.T, place Place) {
	s := place(t, Gateway{})
	for range 20 {
		info := serial(0)
		u := create(t, s, info)
		var seen sync.Map
		at(t, place, 4, func(i int, s uploadstore.Store) {
			u, err := s.Open(t.Context(), info.ID)
			if err != nil {
				t.Error(err)
				return
			}
			got, err := u.Settle(t.Context(), done(200+i))
			if err != nil {
				t.Error(err)
			}
			seen.Store(got.Status, true)
		})
		want := status(t, u).Outcome.Status
		seen.Range(func(k, _ any) bool {
			if k != want {
				t.Errorf("a caller was given outcome %v, stored is %d", k, want)
			}
			return true
		})
	}
}

// A writer commits without pause; another gateway takes it for dead and takes
// over. What was acknowledged before is not lost, and nothing is acknowledged
// to the older one afterwards; what any gateway shows never goes down.
func testWriterRace(t *testing.T, place Place) {
	stalled, watcher := place(t, Gateway{}), place(t, Gateway{})
	for round := range 40 {
		var clock Clock
		info := serial(1 << 20)
		u := create(t, stalled, info)
		other := open(t, place(t, Gateway{Now: clock.Now}), info.ID)
		watched := open(t, watcher, info.ID)
		w := write(t, u, uploadstore.WriteOptions{})
		var acked, taken atomic.Int64
		taken.Store(-1)
		var wg sync.WaitGroup
		wg.Go(func() { commitAlong(t, w, &acked, &taken) })
		stop := make(chan struct{})
		wg.Go(func() { neverDown(t, watched, &acked, stop) })
		status(t, other)
		<-time.After(time.Duration(round%8) * time.Millisecond / 2)
		clock.Advance(uploadstore.WriterLapse + time.Second)
		takeOver(t, other, &acked, &taken)
		close(stop)
		wg.Wait()
		if got := offset(t, watched); got < acked.Load() {
			t.Fatalf("round %d: offset %d, acknowledged %d", round, got, acked.Load())
		}
	}
}

// commitAlong commits byte by byte until it is fenced. An acknowledgement must
// not go beyond where the newcomer began.
func commitAlong(t *testing.T, w uploadstore.Writer, acked, taken *atomic.Int64) {
	defer w.Close()
	for i := int64(0); ; i++ {
		if _, err := w.Write(content(i, i+1)); err != nil {
			if !errors.Is(err, uploadstore.ErrFenced) {
				t.Errorf("Write: %v", err)
			}
			return
		}
		offset, err := w.Commit(t.Context())
		if errors.Is(err, uploadstore.ErrFenced) {
			return
		}
		if err != nil {
			t.Errorf("Commit: %v", err)
			return
		}
		if from := taken.Load(); from >= 0 && offset > from {
			t.Errorf("%d acknowledged to the fenced writer, the other began at %d", offset, from)
			return
		}
		acked.Store(offset)
	}
}

func neverDown(t *testing.T, u uploadstore.Upload, acked *atomic.Int64, stop chan struct{}) {
	shown := int64(0)
	for {
		select {
		case <-stop:
			return
		default:
		}
		atLeast := max(shown, acked.Load())
		s, err := u.Status(t.Context())
		if err != nil {
			t.Errorf("Status: %v", err)
			return
		}
		if s.Offset() < atLeast {
			t.Errorf("offset %d after %d", s.Offset(), atLeast)
			return
		}
		shown = s.Offset()
	}
}

// takeOver finds where to write, as a client does, and begins there.
func takeOver(t *testing.T, u uploadstore.Upload, acked, taken *atomic.Int64) {
	for {
		s, err := u.Status(t.Context())
		if err != nil {
			t.Errorf("Status: %v", err)
			return
		}
		w, err := u.Write(t.Context(), uploadstore.WriteOptions{Offset: s.Offset(), Patience: time.Second})
		if errors.Is(err, uploadstore.ErrOffset) {
			continue
		}
		if err != nil {
			t.Errorf("Write: %v", err)
			return
		}
		taken.Store(s.Offset())
		if got := acked.Load(); got > s.Offset() {
			t.Errorf("began at %d, acknowledged was %d", s.Offset(), got)
		}
		if _, err := w.Write(content(s.Offset(), s.Offset()+1)); err != nil {
			t.Errorf("Write: %v", err)
		}
		if _, err := w.Commit(t.Context()); err != nil {
			t.Errorf("Commit: %v", err)
		}
		_ = w.Close()
		return
	}
}

// Of a chunk's writer and a claim that begin at once at most one is let in.
func testChunkClaimRace(t *testing.T, place Place) {
	a, b := place(t, Gateway{}), place(t, Gateway{})
	for _, info := range []uploadstore.Info{chunked(8, 8), serial(8)} {
		for range 20 {
			info.ID = NewID()
			ua := create(t, a, info)
			ub := open(t, b, info.ID)
			start := make(chan struct{})
			var wg sync.WaitGroup
			var writing, claimed atomic.Bool
			wg.Go(func() {
				<-start
				w, err := ua.Write(t.Context(), uploadstore.WriteOptions{Size: info.ChunkSize})
				if err == nil {
					writing.Store(true)
					t.Cleanup(func() { _ = w.Close() })
				} else if !errors.Is(err, uploadstore.ErrRunning) {
					t.Error(err)
				}
			})
			wg.Go(func() {
				<-start
				_, err := ub.Claim(t.Context(), uploadstore.ClaimOptions{})
				claimed.Store(err == nil)
				if err != nil && !errors.Is(err, uploadstore.ErrBusy) {
					t.Error(err)
				}
			})
			close(start)
			wg.Wait()
			if writing.Load() && claimed.Load() {
				t.Fatal("a claim was given while a chunk was being written")
			}
		}
	}
}
