package directory

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// fate is what stops a writer for good, once.
type fate struct{ err atomic.Pointer[error] }

func (f *fate) fail(err error) { f.err.CompareAndSwap(nil, &err) }

func (f *fate) failure() error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

// serialWriter is the one writer of a serial upload, or one that tries to be.
type serialWriter struct {
	fate
	u      *upload
	e      *entry
	folder *folder
	data   *bytesFile
	epoch  int64
	own    *journalFile
	length int64
	fresh  bool // a stuck writer of this process may still hold the last epoch

	committed int64
	first     bool // nothing was committed in this epoch yet

	began    time.Time // the durations below count from here, by the own clock
	received atomic.Int64
	checked  atomic.Int64
	asked    atomic.Int64 // the latest wish of another; 0: none
	yieldAt  atomic.Int64 // 0: not yet
	yield    chan struct{}
	done     chan struct{}
	stop     chan struct{}
	stopped  sync.WaitGroup
	once     sync.Once // closes stop
	left     sync.Once
	closing  sync.Once
	closeErr error
	failed   bool // its sync failed: nothing can be made durable any more
}

func (u *upload) writeSerial(ctx context.Context, o uploadstore.WriteOptions) (*serialWriter, error) {
	f, err := u.folder()
	if err != nil {
		return nil, err
	}
	e, err := u.store.hold(u.id)
	if err != nil {
		f.close()
		return nil, err
	}
	w := &serialWriter{u: u, e: e, folder: f, began: u.store.now(),
		yield: make(chan struct{}), done: make(chan struct{}), stop: make(chan struct{})}
	deadline := w.began.Add(o.Patience)
	if err = w.enter(ctx, deadline); err == nil {
		if err = w.acquire(ctx, o.Offset, deadline); err == nil {
			if err = w.begin(o.Offset); err == nil {
				return w, nil
			}
			_ = w.end()
		}
		w.leave()
	}
	f.close()
	u.store.drop(e)
	return nil, err
}

// since is the own time since the writer began, never 0.
func (w *serialWriter) since() int64 { return int64(max(w.u.store.now().Sub(w.began), 1)) }

// enter makes w the process's only writer of the upload.
func (w *serialWriter) enter(ctx context.Context, deadline time.Time) error {
	for {
		w.e.mu.Lock()
		current := w.e.serial
		if current == nil && !w.e.closed {
			w.e.serial = w
		}
		closed := w.e.closed
		w.e.mu.Unlock()
		switch {
		case closed:
			return errClosed
		case current == nil:
			return nil
		case current.stuck():
			current.fail(uploadstore.ErrFenced)
			current.own.abandoned.Store(true)
			current.leave()
			w.fresh = true
			continue
		}
		current.asked.Store(current.since())
		if err := current.await(ctx, w.u.store.now(), deadline); err != nil {
			return err
		}
	}
}

// stuck reports whether a writer that was told to yield has not done so.
func (w *serialWriter) stuck() bool {
	at := w.yieldAt.Load()
	return at != 0 && w.since()-at > int64(deadAfter)
}

// await waits for the end of the writer, for a moment.
func (w *serialWriter) await(ctx context.Context, now, deadline time.Time) error {
	left := deadline.Sub(now)
	if left <= 0 {
		return uploadstore.ErrBusy
	}
	t := time.NewTimer(min(lookEvery, left))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.done:
	case <-t.C:
	}
	return nil
}

// leave lets the next writer of the process in.
func (w *serialWriter) leave() {
	w.left.Do(func() {
		w.e.mu.Lock()
		if w.e.serial == w {
			w.e.serial = nil
		}
		w.e.mu.Unlock()
		close(w.done)
	})
}

// acquire makes w the upload's writer over all gateways, at the offset.
func (w *serialWriter) acquire(ctx context.Context, offset int64, deadline time.Time) error {
	for {
		if err := w.u.takesBytes(w.folder); err != nil {
			return err
		}
		v, err := w.u.readWriter(w.folder)
		switch {
		case err != nil:
			return err
		case v.live:
			if err := w.askAndWait(ctx, v, deadline); err != nil {
				return err
			}
			continue
		case !v.starting && v.offset != offset:
			return uploadstore.ErrOffset
		}
		err = w.take(v)
		if errors.Is(err, errTaken) {
			continue
		}
		if err != nil {
			return err
		}
		return w.confirm(offset)
	}
}

// take goes on in an epoch of this process, or makes the next one.
func (w *serialWriter) take(v writerView) error {
	var err error
	again := v.own && !v.starting && v.ended && v.file.state == slotEnded && v.file.clean && v.file.size < maxJournal && !w.fresh
	if !again {
		if v.epoch >= 0 {
			_ = w.folder.remove(noteName(v.epoch))
		}
		begun, err := w.u.store.beginTaking(w.u.id, writerChain.name(v.epoch+1))
		if err != nil {
			return err
		}
		defer begun()
		if v, err = w.u.takeOver(w.folder, v.epoch+1, slotActive); err != nil {
			return err
		}
	}
	own, err := openJournal(w.folder, writerChain.name(v.epoch), v.file)
	if err != nil {
		return err
	}
	// A commit made the epoch's name durable; an epoch without one is new.
	own.named = again && slices.ContainsFunc(v.file.records, func(r record) bool { return r.kind == 'r' })
	w.epoch, w.own, w.committed, w.first = v.epoch, own, v.offset, !own.named
	w.e.mu.Lock()
	w.e.open[own.name] = own
	w.e.mu.Unlock()
	if !again {
		return nil
	}
	if err := w.setSlot(slotActive); err != nil {
		return errors.Join(err, w.end())
	}
	if next, err := writerChain.follow(w.folder, w.epoch); err != nil || next != w.epoch {
		_ = w.end()
		return cmpErr(err, errTaken)
	}
	return nil
}

func (w *serialWriter) setSlot(state int) error {
	now, err := w.u.time()
	if err != nil {
		return err
	}
	return w.own.set(state, now)
}

// confirm looks, now that others can see the writer, at what would forbid it.
func (w *serialWriter) confirm(offset int64) error {
	err := w.u.takesBytes(w.folder)
	if err == nil {
		var gone bool
		if gone, err = w.u.gone(w.folder); gone {
			err = uploadstore.ErrNotFound
		}
	}
	if err == nil && w.committed != offset {
		err = uploadstore.ErrOffset
	}
	if err == nil {
		w.length, err = w.u.length(w.folder)
	}
	if err != nil {
		_ = w.end()
	}
	return err
}

// end gives the epoch up.
func (w *serialWriter) end() error {
	w.e.mu.Lock()
	delete(w.e.open, w.own.name)
	w.e.mu.Unlock()
	if w.failed {
		w.own.spoil()
	}
	return w.own.finish(w.u)
}

// begin opens the data and starts to show life.
func (w *serialWriter) begin(offset int64) error {
	var err error
	if w.data, err = openBytes(w.folder, offset); err != nil {
		return err
	}
	if err := w.data.reaches(offset); err != nil {
		return errors.Join(err, w.data.close())
	}
	now := w.since()
	w.received.Store(now)
	w.checked.Store(now)
	w.stopped.Go(w.live)
	return nil
}

// live shows life and looks for others, every second.
func (w *serialWriter) live() {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
		if w.failure() != nil {
			return
		}
		if !w.stuck() { // a stuck one looks dead, so that it is taken over
			_ = w.setSlot(slotActive)
		}
		_ = w.check()
		w.considerYield()
	}
}

// considerYield closes Yield when somebody waits and nothing comes.
func (w *serialWriter) considerYield() {
	now := w.since()
	if w.yieldAt.Load() != 0 || now-w.received.Load() < int64(idleAfter) {
		return
	}
	asked := w.asked.Load()
	if (asked != 0 && now-asked < int64(askFor)) || w.u.noted(w.folder, w.epoch) {
		w.yieldAt.Store(now)
		close(w.yield)
	}
}

// check looks for what ends a writer. A fault says nothing about it.
func (w *serialWriter) check() error {
	next, err := writerChain.follow(w.folder, w.epoch)
	if err != nil {
		return err
	}
	gone, err := w.u.gone(w.folder)
	if err != nil {
		return err
	}
	if gone {
		w.fail(uploadstore.ErrAborted)
		return w.failure()
	}
	if next != w.epoch {
		w.fail(uploadstore.ErrFenced)
		return w.failure()
	}
	outcome, _, err := w.u.readOutcome(w.folder)
	if err != nil {
		return err
	}
	if outcome != nil {
		w.fail(uploadstore.ErrClosed)
	}
	w.checked.Store(w.since())
	return w.failure()
}

// Write implements [uploadstore.Writer]. Of what goes beyond the length only
// the part that fits is written.
func (w *serialWriter) Write(b []byte) (int, error) {
	if err := w.failure(); err != nil {
		return 0, err
	}
	now := w.since()
	if now-w.checked.Load() > int64(2*tickEvery) { // the process was stopped, or the disk hangs
		if err := w.check(); err != nil {
			return 0, err
		}
	}
	var tooLong error
	if w.length >= 0 && w.data.offset+int64(len(b)) > w.length {
		b, tooLong = b[:max(w.length-w.data.offset, 0)], uploadstore.ErrTooLong
	}
	if len(b) == 0 {
		return 0, tooLong
	}
	if err := w.data.write(b); err != nil {
		return 0, err
	}
	w.received.Store(now)
	return len(b), tooLong
}

// Commit implements [uploadstore.Writer].
func (w *serialWriter) Commit(ctx context.Context) (int64, error) {
	if err := cmpErr(w.failure(), ctx.Err()); err != nil {
		return w.committed, err
	}
	if w.data.offset == w.committed {
		return w.committed, w.check()
	}
	if err := w.fitsLength(); err != nil {
		return w.committed, err
	}
	offset := w.data.offset
	if err := w.store(offset); err != nil {
		w.failed = true
		w.fail(err)
		return w.committed, err
	}
	// The record is there: whoever takes over from now on finds it, and who
	// did before is found here.
	if err := w.check(); err != nil {
		w.fail(err)
		return w.committed, err
	}
	w.committed = offset
	if w.first {
		w.first = false
		w.trim()
	}
	return offset, nil
}

// store makes the bytes and the record of them durable, in this order.
func (w *serialWriter) store(offset int64) error {
	if err := w.data.sync(); err != nil {
		return err
	}
	if err := w.failure(); err != nil {
		return err
	}
	now, err := w.u.time()
	if err != nil {
		return err
	}
	return w.own.record(record{kind: 'r', to: offset, time: now})
}

// fitsLength looks for a length that was given meanwhile.
func (w *serialWriter) fitsLength() error {
	if w.length >= 0 {
		return nil
	}
	var err error
	if w.length, err = w.u.length(w.folder); err == nil && w.length >= 0 && w.data.offset > w.length {
		err = uploadstore.ErrTooLong
	}
	return err
}

// trim removes the files of older writers; this epoch is durable and speaks for
// them.
func (w *serialWriter) trim() {
	for _, n := range trimmed(w.epoch) {
		_ = w.folder.remove(writerChain.name(n))
	}
}

// Yield implements [uploadstore.Writer].
func (w *serialWriter) Yield() <-chan struct{} { return w.yield }

// stopWith ends the writer from outside; its owner still closes it.
func (w *serialWriter) stopWith(err error) {
	w.fail(err)
	w.once.Do(func() { close(w.stop) })
	w.stopped.Wait()
}

// Close implements [uploadstore.Writer].
func (w *serialWriter) Close() error {
	w.closing.Do(func() {
		w.once.Do(func() { close(w.stop) })
		w.stopped.Wait()
		w.closeErr = errors.Join(w.data.close(), w.end())
		if w.asked.Load() != 0 || w.yieldAt.Load() != 0 {
			_ = w.folder.remove(noteName(w.epoch))
		}
		w.fail(errors.New("directory: the writer is closed"))
		w.leave()
		w.folder.close()
		w.u.store.drop(w.e)
	})
	return w.closeErr
}

func noteName(epoch int64) string { return "y." + strconv.FormatInt(epoch, 10) }

// askAndWait leaves a note for a writer elsewhere and waits for a moment.
func (w *serialWriter) askAndWait(ctx context.Context, v writerView, deadline time.Time) error {
	now, err := w.u.time()
	if err != nil {
		return err
	}
	note := appendSlot(appendHeader(nil, kindNote, w.u.store.token, v.epoch), slotActive, now)
	if err := w.folder.put(noteName(v.epoch), note); err != nil && !errors.Is(err, uploadstore.ErrFull) {
		return err
	}
	left := deadline.Sub(w.u.store.now())
	if left <= 0 {
		return uploadstore.ErrBusy
	}
	return wait(ctx, min(lookEvery, left))
}

// noted reports whether somebody elsewhere has lately asked for the epoch.
func (u *upload) noted(f *folder, epoch int64) bool {
	b, _, err := f.read(noteName(epoch))
	if err != nil {
		return false
	}
	j, err := parseJournal(kindNote, b)
	if err != nil || j.slotBad {
		return false
	}
	now, err := u.time()
	return err == nil && now.Sub(j.tick) < askFor
}
