package memory

import (
	"encoding/binary"
	"math/bits"
	"unsafe"

	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
)

// table is an extendible hash table: a directory of pages, indexed by the low
// bits of a key's hash. A full page is split in two by one more bit; two half
// empty ones that differ in one bit are joined. Both touch a page or two and
// some pointers, never the whole table.
type table struct {
	directory []*page // a power of two long, or empty; neighbours may share a page
	count     int
	hand      int // where the sweep goes on
}

// entry is a count. It ends when the clock passes end.
type entry struct {
	low, high  uint64
	end, count int64
}

func (e *entry) window() limitstore.Window { return limitstore.Window{End: e.end, Count: e.count} }

const pageSlots = 120

// page holds entries in no order, with a byte of each one's hash set apart so
// that a look-up reads eight of them at once.
type page struct {
	entries [pageSlots]entry
	tags    [pageSlots]byte
	used    uint8
	depth   uint8 // how many bits of the hash all its entries share
}

const (
	pageBytes    = 4096 // the allocator's size class for a page
	pointerBytes = 8
	// maxDepth bounds the directory of a shard (8 MiB of pointers), also when
	// keys are not evenly spread as they should be.
	maxDepth = 20
)

var _ [pageBytes - unsafe.Sizeof(page{})]byte // does not compile if a page outgrows its class

// find returns the key's entry or nil. It is valid until the next reserve or
// sweep.
func (t *table) find(h hashed) *entry {
	if len(t.directory) == 0 {
		return nil
	}
	return t.pageOf(h).find(h)
}

func (t *table) pageOf(h hashed) *page {
	return t.directory[h.page()&uint64(len(t.directory)-1)]
}

// reserve makes sure that the key has an entry, which holds w: live, so that
// making room for another key does not drop it. It reports false when there is
// no room: the key's page is full of live entries and the budget is used up.
func (t *table) reserve(h hashed, w limitstore.Window, now int64, b *budget) bool {
	if len(t.directory) == 0 {
		if !b.take(pageBytes + pointerBytes) {
			return false
		}
		t.directory = []*page{new(page)}
	}
	p := t.pageOf(h)
	if e := p.find(h); e != nil {
		e.end, e.count = w.End, w.Count
		return true
	}
	if p.used == pageSlots {
		t.count -= p.dropEnded(now)
	}
	for p.used == pageSlots {
		if !t.split(h, b) {
			return false
		}
		p = t.pageOf(h)
	}
	p.add(entry{low: h.low, high: h.high, end: w.End, count: w.Count})
	t.count++
	return true
}

// split divides the key's page in two.
func (t *table) split(h hashed, b *budget) bool {
	old := t.pageOf(h)
	if 1<<old.depth == len(t.directory) && !t.double(b) {
		return false
	}
	if !b.take(pageBytes) {
		return false
	}
	bit := uint64(1) << old.depth
	old.depth++
	fresh := &page{depth: old.depth}
	for i := 0; i < int(old.used); {
		if e := old.entries[i]; e.low>>shardBits&bit != 0 {
			fresh.add(e)
			old.remove(i)
		} else {
			i++
		}
	}
	t.point(h.page()&(bit-1)|bit, fresh)
	return true
}

func (t *table) double(b *budget) bool {
	n := len(t.directory)
	if n >= 1<<maxDepth || !b.take(int64(n)*pointerBytes) {
		return false
	}
	wider := make([]*page, 2*n)
	copy(wider, t.directory)
	copy(wider[n:], t.directory)
	t.directory = wider
	return true
}

// point sets every directory slot whose low p.depth bits are those of prefix.
func (t *table) point(prefix uint64, p *page) {
	for i := prefix; i < uint64(len(t.directory)); i += 1 << p.depth {
		t.directory[i] = p
	}
}

// sweep looks over the next page: drops what has ended, and joins the page
// with its sibling when both together are at most half full.
func (t *table) sweep(now int64, b *budget) {
	if len(t.directory) == 0 {
		return
	}
	t.hand = (t.hand + 1) & (len(t.directory) - 1)
	p := t.directory[t.hand]
	t.count -= p.dropEnded(now)
	if p.depth == 0 {
		return
	}
	prefix := uint64(t.hand) & (1<<p.depth - 1)
	sibling := t.directory[prefix^1<<(p.depth-1)]
	if sibling.depth != p.depth || int(p.used)+int(sibling.used) > pageSlots/2 {
		return
	}
	for i := range int(sibling.used) {
		p.add(sibling.entries[i])
	}
	p.depth--
	t.point(prefix&(1<<p.depth-1), p)
	b.give(pageBytes)
}

const (
	everyByte = 0x0101010101010101
	highBits  = 0x8080808080808080
)

func (p *page) find(h hashed) *entry {
	want := uint64(h.tag()) * everyByte
	for base := 0; base < int(p.used); base += 8 {
		// A zero byte of x is an equal tag; the trick may also mark the byte
		// above one, and unused slots may match: the entry decides.
		x := binary.LittleEndian.Uint64(p.tags[base:base+8]) ^ want
		for m := (x - everyByte) &^ x & highBits; m != 0; m &= m - 1 {
			i := base + bits.TrailingZeros64(m)/8
			if e := &p.entries[i]; i < int(p.used) && e.low == h.low && e.high == h.high {
				return e
			}
		}
	}
	return nil
}

func (p *page) add(e entry) {
	p.entries[p.used] = e
	p.tags[p.used] = byte(e.high)
	p.used++
}

// remove puts the last entry in the place of the ith.
func (p *page) remove(i int) {
	p.used--
	p.entries[i] = p.entries[p.used]
	p.tags[i] = p.tags[p.used]
}

// dropEnded removes the entries whose window has ended and returns how many.
func (p *page) dropEnded(now int64) int {
	before := p.used
	for i := 0; i < int(p.used); {
		if p.entries[i].end <= now {
			p.remove(i)
		} else {
			i++
		}
	}
	return int(before - p.used)
}
