package chunkedupload

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

const (
	// writePatience is how long a request waits for another that writes.
	writePatience = 5 * time.Second
	// commitBytes and commitEvery bound what a killed gateway loses.
	commitBytes = 8 << 20
	commitEvery = time.Second
	// A request reads into the small buffer, so that many slow ones cost
	// little, and into the large one while it fills that: a fifth less CPU.
	smallBuffer, largeBuffer = 32 << 10, 256 << 10
)

// errYielded: another request wants to write, and this one was idle.
var errYielded = errors.New("chunkedupload: yielded to another request")

var (
	smallBuffers = sync.Pool{New: func() any { return new([smallBuffer]byte) }}
	largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}
)

// receive appends src to a serial upload and returns how many bytes of it are
// durable. It commits now and then, so that other gateways can go on from
// there, and at the end, also when src broke off or the client has left: as
// much as possible is kept. interrupt must end a blocked read of src.
func receive(ctx context.Context, up uploadstore.Upload, offset int64, patience time.Duration, src io.Reader, interrupt func()) (int64, error) {
	w, err := up.Write(ctx, uploadstore.WriteOptions{Offset: offset, Patience: patience})
	if err != nil {
		return 0, err
	}
	rx := &receiver{to: w, ctx: context.WithoutCancel(ctx), committed: offset, interrupt: interrupt}
	stop := rx.watch()
	rx.copy(src)
	stop()
	rx.flush()
	if err := w.Close(); err != nil && rx.err == nil {
		rx.err = err
	}
	return rx.committed - offset, rx.err
}

// receiver serializes the writes of a request with the commits of its watcher.
type receiver struct {
	ctx       context.Context
	to        uploadstore.Writer
	interrupt func()

	mu        sync.Mutex
	pending   int64 // written, not committed
	since     time.Time
	committed int64 // the offset that is durable
	err       error // the first; nothing is written after it
	lost      bool  // a commit failed: what it covered may be gone, so none may follow
}

func (rx *receiver) copy(src io.Reader) {
	small := smallBuffers.Get().(*[smallBuffer]byte)
	defer smallBuffers.Put(small)
	for {
		n, ok := rx.step(src, small[:])
		if ok && n == smallBuffer {
			ok = rx.copyFast(src)
		}
		if !ok {
			return
		}
	}
}

// copyFast goes on for as long as reads bring more than a small buffer holds.
func (rx *receiver) copyFast(src io.Reader) (more bool) {
	large := largeBuffers.Get().(*[largeBuffer]byte)
	defer largeBuffers.Put(large)
	for {
		if n, ok := rx.step(src, large[:]); !ok || n < smallBuffer {
			return ok
		}
	}
}

// step moves what one read brings. Why a read failed is known to whoever made
// src.
func (rx *receiver) step(src io.Reader, buf []byte) (n int, more bool) {
	n, err := src.Read(buf)
	if n > 0 && !rx.write(buf[:n]) {
		return n, false
	}
	return n, err == nil
}

func (rx *receiver) write(p []byte) bool {
	rx.mu.Lock()
	defer rx.mu.Unlock()
	if rx.err != nil {
		return false
	}
	if rx.pending == 0 {
		rx.since = time.Now()
	}
	n, err := rx.to.Write(p)
	rx.pending += int64(n)
	if err != nil {
		rx.err = err
		return false
	}
	if rx.pending >= commitBytes {
		rx.commitLocked()
	}
	return rx.err == nil
}

// watch commits what lies there for a while, also while the client is silent,
// and yields when another request wants to write.
func (rx *receiver) watch() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(commitEvery / 2)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-rx.to.Yield():
				rx.yield()
				return
			case <-tick.C:
				if !rx.commitOld() {
					rx.interrupt()
					return
				}
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

func (rx *receiver) yield() {
	rx.mu.Lock()
	rx.commitLocked()
	if rx.err == nil {
		rx.err = errYielded
	}
	rx.mu.Unlock()
	rx.interrupt()
}

func (rx *receiver) commitOld() bool {
	rx.mu.Lock()
	defer rx.mu.Unlock()
	if rx.pending > 0 && time.Since(rx.since) >= commitEvery/2 {
		rx.commitLocked()
	}
	return rx.err == nil
}

// flush commits what is left, also after a failed write: a full disk may have
// taken a part.
func (rx *receiver) flush() {
	rx.mu.Lock()
	defer rx.mu.Unlock()
	rx.commitLocked()
}

func (rx *receiver) commitLocked() {
	if rx.pending == 0 || rx.lost {
		return
	}
	ctx, cancel := context.WithTimeout(rx.ctx, storePatience)
	defer cancel()
	offset, err := rx.to.Commit(ctx)
	if err != nil {
		rx.lost = true
		if rx.err == nil {
			rx.err = err
		}
		return
	}
	rx.committed, rx.pending = offset, 0
}

// sameLastByte reports whether p, the byte that a client sends again, is the
// last one of the upload.
func sameLastByte(ctx context.Context, up uploadstore.Upload, length int64, p byte) (bool, error) {
	rc, err := up.Reader(ctx, length-1)
	if err != nil {
		return false, err
	}
	defer rc.Close()
	var stored [1]byte
	if _, err := io.ReadFull(rc, stored[:]); err != nil {
		return false, err
	}
	return stored[0] == p, nil
}
