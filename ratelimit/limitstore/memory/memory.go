// Package memory keeps the counts of rate limits in this process.
//
// The table is bounded in bytes. It grows and shrinks a page of 4 KiB at a
// time, so that no decision ever waits for the whole table to be copied.
// Counts of windows that have ended are dropped, a live one never: a table
// that is full of live counts refuses new keys with limitstore.ErrFull, since
// a client that could push counts out could reset limits. Keys are spread
// evenly over the pages, but not perfectly: a table begins to refuse when
// about four fifths of its room hold live counts.
//
// A decision takes no memory and, with a hundred thousand keys, well under a
// microsecond. Counts are lost when the process ends.
package memory

import (
	"context"
	"encoding/binary"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
)

const (
	// DefaultMaxBytes is the bound when Options has none.
	DefaultMaxBytes = 64 << 20
	// MinMaxBytes is the least bound; a smaller one counts as this one.
	MinMaxBytes = 512 << 10
)

// Options shape a Store.
type Options struct {
	// MaxBytes bounds the table. Default: DefaultMaxBytes.
	MaxBytes int64
	// Now is the clock. Default: time.Now.
	Now func() time.Time
}

// Store is a limitstore.Store. It runs no goroutine and needs no closing.
type Store struct {
	now    func() time.Time
	budget budget
	shards [shardCount]shard
}

const (
	shardCount = 64
	shardBits  = 6
	// sweepEvery is how many decisions of a shard pay for looking over one of
	// its pages: every count is looked at again at least once for that many
	// decisions a page.
	sweepEvery = 32
)

type shard struct {
	mu    sync.Mutex
	table table
	turns uint32
	_     [cacheLine]byte // neighbours under different locks do not share a line
}

const cacheLine = 64

// New makes an empty Store. Memory is taken when it is needed.
func New(o Options) *Store {
	s := &Store{now: o.Now}
	if s.now == nil {
		s.now = time.Now
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	s.SetMaxBytes(o.MaxBytes)
	return s
}

// InProcess marks the store as limitstore.InProcess.
func (s *Store) InProcess() {}

// SetMaxBytes changes the bound. Counts are kept; above a lowered bound the
// table takes new keys only in the place of counts that have ended.
func (s *Store) SetMaxBytes(n int64) { s.budget.max.Store(max(n, MinMaxBytes)) }

// Bytes returns how much memory the table takes.
func (s *Store) Bytes() int64 { return s.budget.used.Load() }

// Len returns how many counts the table holds, ended ones included.
func (s *Store) Len() int {
	n := 0
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		n += sh.table.count
		sh.mu.Unlock()
	}
	return n
}

// Decide implements limitstore.Store. It never waits for longer than other
// decisions take.
func (s *Store) Decide(ctx context.Context, d *limitstore.Decision) error {
	if err := d.Check(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	involved := s.lock(d.Limits)
	defer s.unlock(involved)
	return s.decideLocked(d, s.now().UnixMilli())
}

func (s *Store) decideLocked(d *limitstore.Decision, now int64) error {
	var windows [limitstore.MaxLimits]limitstore.Window
	var counts [limitstore.MaxLimits]int64
	for i := range d.Limits {
		l := &d.Limits[i]
		var stored limitstore.Window
		if e := s.shardOf(l.Key).table.find(hash(l.Key)); e != nil {
			stored = e.window()
		}
		windows[i] = stored.At(now, l.Window.Milliseconds())
		counts[i] = windows[i].Count
	}
	granted := limitstore.Grant(d.Limits, counts[:len(d.Limits)], 1)
	// Room first, charges after: a full table charges nobody.
	for i := range d.Limits {
		if d.Limits[i].Charged(counts[i], granted) == 0 {
			continue
		}
		if !s.shardOf(d.Limits[i].Key).table.reserve(hash(d.Limits[i].Key), windows[i], now, &s.budget) {
			return limitstore.ErrFull
		}
	}
	d.Admitted = granted == 1
	for i := range d.Limits {
		l := &d.Limits[i]
		d.States[i] = l.Outcome(counts[i], granted, 1)
		d.States[i].Reset = time.Duration(windows[i].End-now) * time.Millisecond
		if charge := l.Charged(counts[i], granted); charge > 0 {
			e := s.shardOf(l.Key).table.find(hash(l.Key))
			e.count = counts[i] + charge
		}
	}
	return nil
}

// lock takes the locks of all shards that the limits need, in one order.
func (s *Store) lock(limits []limitstore.Limit) (involved uint64) {
	for i := range limits {
		involved |= 1 << shardIndex(limits[i].Key)
	}
	for set := involved; set != 0; set &= set - 1 {
		s.shards[bits.TrailingZeros64(set)].mu.Lock()
	}
	return involved
}

func (s *Store) unlock(involved uint64) {
	for set := involved; set != 0; set &= set - 1 {
		sh := &s.shards[bits.TrailingZeros64(set)]
		if sh.turns++; sh.turns%sweepEvery == 0 {
			sh.table.sweep(s.now().UnixMilli(), &s.budget)
		}
		sh.mu.Unlock()
	}
}

func (s *Store) shardOf(k limitstore.Key) *shard { return &s.shards[shardIndex(k)] }

func shardIndex(k limitstore.Key) int { return int(k[0]) % shardCount }

// hashed is a key as the table uses it: the bits above the shard's choose the
// page, the tag tells most keys of a page apart.
type hashed struct{ low, high uint64 }

func hash(k limitstore.Key) hashed {
	return hashed{low: binary.LittleEndian.Uint64(k[:8]), high: binary.LittleEndian.Uint64(k[8:])}
}

func (h hashed) page() uint64 { return h.low >> shardBits }
func (h hashed) tag() byte    { return byte(h.high) }

// budget is the bound that the shards share.
type budget struct{ used, max atomic.Int64 }

func (b *budget) take(n int64) bool {
	if b.used.Add(n) <= b.max.Load() {
		return true
	}
	b.used.Add(-n)
	return false
}

func (b *budget) give(n int64) { b.used.Add(-n) }
