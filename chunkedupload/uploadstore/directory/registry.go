package directory

import (
	"hash/crc32"
	"sync"
	"time"
)

// entry is what this process holds of one upload while it writes it.
type entry struct {
	id   string
	refs int // guarded by the store's mutex

	mu     sync.Mutex
	closed bool
	serial *serialWriter          // the process's writer, or the one that tries to be
	shared *chunkJournal          // open while chunks are being written
	chunks map[int64]*chunkWriter // by offset
	open   map[string]*journalFile
	taking map[string]int // epochs being made, and by how many
}

// hold returns the upload's entry; let goes with drop.
func (s *Store) hold(id string) (*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	e := s.entries[id]
	if e == nil {
		e = &entry{id: id, chunks: map[int64]*chunkWriter{}, open: map[string]*journalFile{}, taking: map[string]int{}}
		s.entries[id] = e
	}
	e.refs++
	return e, nil
}

func (s *Store) drop(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.refs--; e.refs == 0 {
		delete(s.entries, e.id)
	}
}

// end stops all writers, for the store's Close, and shows that they have ended;
// their owners still close them.
func (e *entry) end() {
	e.mu.Lock()
	e.closed = true
	serial := e.serial
	chunks := make([]*chunkWriter, 0, len(e.chunks))
	for _, w := range e.chunks {
		chunks = append(chunks, w)
	}
	e.mu.Unlock()
	if serial != nil {
		serial.stopWith(errClosed)
	}
	for _, w := range chunks {
		w.fail(errClosed)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.shared != nil {
		e.shared.halt()
	}
	for _, j := range e.open {
		_ = j.set(slotEnded, time.UnixMilli(0))
	}
}

// sighting is what a writer's file looked like, and since when.
type sighting struct {
	epoch int64
	sum   uint32
	since time.Time // own clock
}

const maxWatched = 4096

// unchanged returns for how long the file of a writer elsewhere has looked as
// it does now, by the own clock. The memory outlives calls, so that a client
// that keeps asking without patience gets in too.
func (s *Store) unchanged(id string, epoch int64, content []byte) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	seen := sighting{epoch, crc32.Checksum(content, castagnoli), now}
	last, ok := s.watched[id]
	if ok && last.epoch == seen.epoch && last.sum == seen.sum {
		return now.Sub(last.since)
	}
	if !ok && len(s.watched) >= maxWatched {
		s.forgetOldLocked(now)
	}
	s.watched[id] = seen
	return 0
}

// forgetOldLocked makes room; a sighting that is lost costs its watcher a few
// seconds.
func (s *Store) forgetOldLocked(now time.Time) {
	for id, seen := range s.watched {
		if now.Sub(seen.since) > time.Minute || len(s.watched) >= maxWatched {
			delete(s.watched, id)
		}
	}
}
