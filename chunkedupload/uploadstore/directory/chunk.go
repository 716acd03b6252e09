package directory

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// chunksView is what all gateways have received of a chunked upload.
type chunksView struct {
	ranges   []uploadstore.Range // merged
	progress time.Time
	live     bool  // somebody writes
	next     int64 // the number of the next journal
	own      int64 // the last journal of this store, or -1
}

// readChunks reads the journals one by one until there is none: each gateway
// takes the next free number, and none is ever removed.
func (u *upload) readChunks(f *folder) (chunksView, error) {
	v := chunksView{own: -1}
	for ; ; v.next++ {
		name := chunkChain.name(v.next)
		j, _, written, err := u.readJournal(f, kindChunks, name)
		if absent(err) {
			v.ranges = uploadstore.Merge(v.ranges)
			return v, nil
		}
		half := errors.Is(err, errHalfWritten)
		if err != nil && !half {
			if errors.Is(err, errGarbage) || errors.Is(err, errNewer) {
				err = broken(name, err)
			}
			return v, err
		}
		for _, r := range j.records {
			if r.kind == 'd' {
				v.ranges = append(v.ranges, uploadstore.Range{From: r.from, To: r.to})
				v.progress = later(v.progress, r.time)
			}
		}
		if half || j.slotBad {
			j.state, j.tick = slotActive, written
		}
		if j.token == u.store.token {
			v.own = v.next
		}
		if j.state == slotActive {
			now, err := u.time()
			if err != nil {
				return v, err
			}
			v.live = v.live || now.Sub(j.tick) < uploadstore.WriterLapse
		}
	}
}

// chunkJournal is the journal in which this process notes the chunks of one
// upload, open and alive while any is being written.
type chunkJournal struct {
	*journalFile
	u       *upload
	writers int // guarded by the entry's mutex
	stop    chan struct{}
	once    sync.Once
	stopped sync.WaitGroup
}

func (j *chunkJournal) halt() {
	j.once.Do(func() { close(j.stop) })
	j.stopped.Wait()
}

// live shows life as often as a claim does.
func (j *chunkJournal) live() {
	tick := time.NewTicker(uploadstore.ClaimRenewal)
	defer tick.Stop()
	for {
		select {
		case <-j.stop:
			return
		case <-tick.C:
			if now, err := j.u.time(); err == nil {
				_ = j.set(slotActive, now)
			}
		}
	}
}

// join makes a writer visible: in the journal that is open, or in one that it
// opens.
func (u *upload) join(e *entry, v chunksView) (*chunkJournal, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errClosed
	}
	if e.shared != nil && e.shared.usable() {
		e.shared.writers++
		return e.shared, nil
	}
	f, err := u.folder()
	if err != nil {
		return nil, err
	}
	j, err := u.openChunks(f, e, v)
	if err != nil {
		f.close()
		return nil, err
	}
	e.open[j.name] = j.journalFile
	e.shared = j
	j.stopped.Go(j.live)
	return j, nil
}

// continuable reads a journal of this process again, now that nobody here can
// add to it, and reports whether it can be continued.
func (u *upload) continuable(f *folder, e *entry, number int64) (journal, bool, error) {
	name := chunkChain.name(number)
	if number < 0 || e.open[name] != nil {
		return journal{}, false, nil
	}
	b, _, err := f.read(name)
	if err != nil {
		return journal{}, false, err
	}
	j, err := parseJournal(kindChunks, b)
	return j, err == nil && j.clean && !j.slotBad && j.state != slotUnused, nil
}

func (u *upload) openChunks(f *folder, e *entry, v chunksView) (*chunkJournal, error) {
	now, err := u.time()
	if err != nil {
		return nil, err
	}
	number := v.own
	file, again, err := u.continuable(f, e, number)
	if err != nil {
		return nil, err
	}
	if !again {
		number = v.next
		head := appendHeader(nil, kindChunks, u.store.token, number)
		file.slotAt = int64(len(head))
		head = appendSlot(head, slotActive, now)
		file.size = int64(len(head))
		if err := u.publish(chunkChain.name(number), head, false); err != nil {
			return nil, err
		}
	}
	own, err := openJournal(f, chunkChain.name(number), file)
	if err != nil {
		return nil, err
	}
	if again {
		own.named = len(file.records) > 0
		if err := own.set(slotActive, now); err != nil {
			return nil, errors.Join(err, own.file.close())
		}
	}
	return &chunkJournal{journalFile: own, u: u, writers: 1, stop: make(chan struct{})}, nil
}

// part ends a writer's share in the journal.
func (e *entry) part(j *chunkJournal) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if j.writers--; j.writers > 0 {
		return nil
	}
	if e.shared == j {
		e.shared = nil
	}
	j.halt()
	err := j.finish(j.u)
	delete(e.open, j.name)
	j.folder.close()
	return err
}

// chunkWriter writes one chunk.
type chunkWriter struct {
	fate
	u       *upload
	e       *entry
	folder  *folder
	journal *chunkJournal
	data    *bytesFile
	from    int64
	size    int64
	discard bool // the chunk is received: its bytes stay as they are
	done    bool // committed

	began    time.Time
	received atomic.Int64
	checked  int64
	closing  sync.Once
	closeErr error
}

func (u *upload) writeChunk(o uploadstore.WriteOptions) (*chunkWriter, error) {
	f, err := u.folder()
	if err != nil {
		return nil, err
	}
	e, err := u.store.hold(u.id)
	if err != nil {
		f.close()
		return nil, err
	}
	w := &chunkWriter{u: u, e: e, folder: f, from: o.Offset, size: o.Size, began: u.store.now()}
	if err := w.start(); err != nil {
		f.close()
		u.store.drop(e)
		return nil, err
	}
	return w, nil
}

func (w *chunkWriter) start() error {
	if err := w.fits(); err != nil {
		return err
	}
	if err := w.u.takesBytes(w.folder); err != nil {
		return err
	}
	if err := w.enter(); err != nil {
		return err
	}
	err := w.attach()
	if err == nil {
		if w.data, err = openBytes(w.folder, w.from); err != nil {
			err = errors.Join(err, w.e.part(w.journal))
		}
	}
	if err != nil {
		w.leave()
	}
	return err
}

func (w *chunkWriter) fits() error {
	length, err := w.u.length(w.folder)
	switch {
	case err != nil:
		return err
	case w.size <= 0:
		return errors.New("a chunk needs a size")
	case w.from%w.u.info.ChunkSize != 0:
		return uploadstore.ErrOffset
	case w.size > w.u.info.ChunkSize || (length >= 0 && w.from > length-w.size):
		return uploadstore.ErrTooLong
	}
	return nil
}

// enter makes w the only writer of this chunk in the process.
func (w *chunkWriter) enter() error {
	w.e.mu.Lock()
	defer w.e.mu.Unlock()
	if other := w.e.chunks[w.from]; other != nil {
		if other.since()-other.received.Load() < int64(idleAfter) {
			return uploadstore.ErrBusy
		}
		other.fail(uploadstore.ErrFenced)
	}
	w.e.chunks[w.from] = w
	return nil
}

func (w *chunkWriter) leave() {
	w.e.mu.Lock()
	defer w.e.mu.Unlock()
	if w.e.chunks[w.from] == w {
		delete(w.e.chunks, w.from)
	}
}

// attach shows the writer to all, and then looks for a claim; who claims shows
// the claim and then looks for writers.
func (w *chunkWriter) attach() error {
	for {
		v, err := w.u.readChunks(w.folder)
		if err != nil {
			return err
		}
		w.discard = uploadstore.Contains(v.ranges, uploadstore.Range{From: w.from, To: w.from + w.size})
		w.journal, err = w.u.join(w.e, v)
		if exists(err) {
			continue // another gateway has taken the number
		}
		if err != nil {
			return err
		}
		if err := w.check(); err != nil {
			if errors.Is(err, uploadstore.ErrAborted) {
				err = uploadstore.ErrNotFound
			}
			return errors.Join(err, w.e.part(w.journal))
		}
		return nil
	}
}

func (w *chunkWriter) since() int64 { return int64(max(w.u.store.now().Sub(w.began), 1)) }

// check says why the chunk may not be written, if so.
func (w *chunkWriter) check() error {
	if err := w.failure(); err != nil {
		return err
	}
	gone, err := w.u.gone(w.folder)
	if gone {
		err = uploadstore.ErrAborted
	}
	if err == nil {
		err = w.u.takesBytes(w.folder)
	}
	w.checked = w.since()
	return err
}

// Write implements [uploadstore.Writer].
func (w *chunkWriter) Write(b []byte) (int, error) {
	if err := w.failure(); err != nil {
		return 0, err
	}
	now := w.since()
	if now-w.checked > int64(tickEvery) {
		if err := w.check(); err != nil {
			return 0, err
		}
	}
	var tooLong error
	if left := w.from + w.size - w.data.offset; int64(len(b)) > left {
		b, tooLong = b[:left], uploadstore.ErrTooLong
	}
	if w.discard {
		w.data.offset += int64(len(b))
	} else if len(b) > 0 {
		if err := w.data.write(b); err != nil {
			return 0, err
		}
	}
	w.received.Store(now)
	return len(b), tooLong
}

// Commit implements [uploadstore.Writer].
func (w *chunkWriter) Commit(ctx context.Context) (int64, error) {
	if err := cmpErr(w.failure(), ctx.Err()); err != nil {
		return w.from, err
	}
	if w.done || w.data.offset != w.from+w.size {
		return w.from, errors.New("a chunk is committed once, when all its bytes are there")
	}
	if err := w.store(); err != nil {
		w.fail(err)
		return w.from, err
	}
	w.done = true
	return w.from + w.size, nil
}

func (w *chunkWriter) store() error {
	if !w.discard {
		if err := w.data.sync(); err != nil {
			return err
		}
	}
	// A claim can exist only if this process showed no life for so long that
	// the writer was taken for dead.
	if err := w.check(); err != nil || w.discard {
		return err
	}
	now, err := w.u.time()
	if err != nil {
		return err
	}
	return w.journal.record(record{kind: 'd', from: w.from, to: w.from + w.size, time: now})
}

// Yield implements [uploadstore.Writer]: a chunk's writer is never asked to.
func (w *chunkWriter) Yield() <-chan struct{} { return nil }

// Close implements [uploadstore.Writer].
func (w *chunkWriter) Close() error {
	w.closing.Do(func() {
		w.closeErr = errors.Join(w.data.close(), w.e.part(w.journal))
		w.fail(errors.New("directory: the writer is closed"))
		w.leave()
		w.folder.close()
		w.u.store.drop(w.e)
	})
	return w.closeErr
}
