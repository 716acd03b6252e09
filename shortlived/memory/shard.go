package memory

import (
	"container/heap"
	"maps"
	"math"
	"sync"
	"sync/atomic"
)

const (
	// sweepPerWrite is how many expired entries a write drops besides its own
	// work: more than one, so that they go faster than new ones come.
	sweepPerWrite = 4
	// sweepBatch bounds how long a sweep holds a shard's lock.
	sweepBatch = 256
	// shrinkFrom is the size from which an almost empty map is made anew, as a
	// map keeps the memory of its largest size.
	shrinkFrom = 256
)

// shard is a part of the store with its own lock. All shards charge one
// budget.
type shard struct {
	mu      sync.Mutex
	entries map[string]*entry
	order   byDue
	peak    int           // the most entries since the map was made
	used    *atomic.Int64 // the store's
	next    atomic.Int64  // due time of the first in order, readable without the lock

	_ [64]byte // keeps the locks of neighbours on other cache lines
}

func (sh *shard) init(used *atomic.Int64) {
	sh.entries = make(map[string]*entry)
	sh.used = used
	sh.next.Store(math.MaxInt64)
}

func (sh *shard) len() int64 {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return int64(len(sh.entries))
}

// liveLocked returns the live entry at the key and drops an expired one.
func (sh *shard) liveLocked(key string, now int64) *entry {
	e := sh.entries[key]
	if e != nil && e.expires <= now {
		sh.dropLocked(e)
		return nil
	}
	return e
}

// read returns the live entry at the key as it is now, and drops it if told
// to. Its value can be copied without the lock, as its data never change.
func (sh *shard) read(key string, now int64, drop bool) (entry, bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.liveLocked(key, now)
	if e == nil {
		return entry{}, false
	}
	if drop {
		sh.dropLocked(e)
	}
	return *e, true
}

// addLocked adds an entry whose key is free, if the store has room for it.
func (sh *shard) addLocked(s *Store, e *entry, now, expires int64) bool {
	sh.sweepLocked(now, sweepPerWrite, math.MaxInt64)
	if !s.reserve(e.cost()) {
		return false
	}
	e.expires, e.due = expires, expires
	sh.entries[e.key()] = e
	heap.Push(&sh.order, e)
	sh.peak = max(sh.peak, len(sh.entries))
	sh.noteNextLocked()
	return true
}

// renewLocked gives an entry another end. A later end leaves its place in the
// order for the sweep to correct: a count that is renewed at each request is
// moved once a lifetime, not once a request.
func (sh *shard) renewLocked(e *entry, expires int64) {
	e.expires = expires
	if expires < e.due {
		e.due = expires
		heap.Fix(&sh.order, int(e.index))
		sh.noteNextLocked()
	}
}

func (sh *shard) dropLocked(e *entry) {
	delete(sh.entries, e.key())
	heap.Remove(&sh.order, int(e.index))
	sh.used.Add(-e.cost())
	sh.noteNextLocked()
	sh.shrinkLocked()
}

// sweep drops expired entries until it has freed the wanted bytes or has done
// a batch. It reports whether another call would find work.
func (sh *shard) sweep(now, want int64) (more bool) {
	if sh.next.Load() > now {
		return false
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.sweepLocked(now, sweepBatch, want)
	return sh.next.Load() <= now
}

func (sh *shard) sweepLocked(now int64, batch int, want int64) {
	for ; batch > 0 && want > 0 && len(sh.order) > 0 && sh.order[0].due <= now; batch-- {
		e := sh.order[0]
		if e.expires <= now {
			want -= e.cost()
			sh.dropLocked(e)
			continue
		}
		e.due = e.expires // renewed since it got its place
		heap.Fix(&sh.order, 0)
		sh.noteNextLocked()
	}
}

func (sh *shard) noteNextLocked() {
	next := int64(math.MaxInt64)
	if len(sh.order) > 0 {
		next = sh.order[0].due
	}
	if sh.next.Load() != next {
		sh.next.Store(next)
	}
}

// shrinkLocked makes the map and the order anew when they have become nearly
// empty. The work is a fraction of the drops that led here.
func (sh *shard) shrinkLocked() {
	if sh.peak < shrinkFrom || len(sh.entries) > sh.peak/8 {
		return
	}
	entries := make(map[string]*entry, len(sh.entries))
	maps.Copy(entries, sh.entries)
	sh.entries = entries
	sh.order = append(make(byDue, 0, len(sh.order)), sh.order...)
	sh.peak = len(entries)
}

// byDue is a heap, the entry that is due first on top.
type byDue []*entry

func (h byDue) Len() int           { return len(h) }
func (h byDue) Less(i, j int) bool { return h[i].due < h[j].due }
func (h byDue) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = int32(i), int32(j)
}

// Push is for package heap.
func (h *byDue) Push(x any) {
	e := x.(*entry)
	e.index = int32(len(*h))
	*h = append(*h, e)
}

// Pop is for package heap.
func (h *byDue) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
