// Package memory is the short-lived store of a single process.
//
// Guarantees: the five operations of shortlived.Store, each atomic within the
// process. The store is bounded in bytes. When it is full it drops values that
// have expired, and when all are live it refuses with shortlived.ErrFull; it
// never evicts a live value, since whoever can fill the store could otherwise
// undo a limit or a claim. Counting on at a key that is there needs no room.
//
// Limits: nothing outlives the process, and no other process sees it. Time is
// the monotonic clock's, so a change of the wall clock neither ends nor
// prolongs a value; time during which the machine is suspended may not count.
//
// Expired values are dropped a few at each write, all that are needed when
// room is short, and the rest once a minute, so that nothing stays in memory
// long after its time.
package memory

import (
	"context"
	"hash/maphash"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gatehouse-gateway/gatehouse/shortlived"
)

// DefaultMaxBytes bounds a store that says nothing else: 64 MiB.
const DefaultMaxBytes = 64 << 20

// Overhead is what an entry is charged beyond its key and value: the entry,
// its place in the map and in the order of expiry, and what the allocator
// rounds up. A test holds it to what the heap really grows by.
const Overhead = 144

// SweepInterval is how often a store that is not empty drops what has expired.
const SweepInterval = time.Minute

// shardCount is a power of two, large enough that writers seldom meet.
const shardCount = 64

// Options of a store.
type Options struct {
	// MaxBytes bounds the keys and values, with Overhead for each entry.
	// Zero or less: DefaultMaxBytes.
	MaxBytes int64
	// Now is the clock; nil: time.Now. It should carry monotonic readings.
	Now func() time.Time
}

// Stats is what a store holds at a moment.
type Stats struct {
	Entries  int64 // expired ones that were not dropped yet included
	Bytes    int64 // charged against MaxBytes
	MaxBytes int64
	Refused  uint64 // calls that got ErrFull since the store was made
}

// Store is a shortlived.Store in memory. It is safe for concurrent use.
type Store struct {
	now   func() time.Time
	start time.Time
	seed  maphash.Seed

	max     atomic.Int64
	used    atomic.Int64
	refused atomic.Uint64
	shards  [shardCount]shard
	sweeper sweeper
}

// New makes an empty store.
func New(o Options) *Store {
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Store{now: o.Now, start: o.Now(), seed: maphash.MakeSeed()}
	for i := range s.shards {
		s.shards[i].init(&s.used)
	}
	s.SetMaxBytes(o.MaxBytes)
	return s
}

// SetMaxBytes changes the bound; zero or less means DefaultMaxBytes. What is
// stored stays: under a smaller bound nothing is added until enough has
// expired or was taken.
func (s *Store) SetMaxBytes(n int64) {
	if n <= 0 {
		n = DefaultMaxBytes
	}
	s.max.Store(n)
}

// Close ends the regular sweep and waits for one that is under way. The store
// can still be used.
func (s *Store) Close() error {
	s.sweeper.close()
	return nil
}

// Stats returns what the store holds.
func (s *Store) Stats() Stats {
	st := Stats{Bytes: s.used.Load(), MaxBytes: s.max.Load(), Refused: s.refused.Load()}
	for i := range s.shards {
		st.Entries += s.shards[i].len()
	}
	return st
}

// Sweep drops every value that has expired. It holds no lock for long and may
// run beside anything else. The store does it by itself every SweepInterval.
func (s *Store) Sweep() {
	now := s.clock()
	for i := range s.shards {
		for s.shards[i].sweep(now, math.MaxInt64) {
		}
	}
}

// TryAdd stores a copy of the value unless the key holds a live one.
func (s *Store) TryAdd(ctx context.Context, key string, value []byte, lifetime time.Duration) (bool, error) {
	if err := checkWrite(ctx, key, value, lifetime); err != nil {
		return false, err
	}
	e, added := newEntry(key, value), false
	err := s.withRoom(key, e.cost(), func(sh *shard, now int64) bool {
		if sh.liveLocked(key, now) != nil {
			return true
		}
		added = sh.addLocked(s, e, now, until(now, lifetime))
		return added
	})
	if added {
		s.sweeper.arm(s.sweepAgain)
	}
	return added, err
}

// Get returns a copy of the value or ErrNotFound.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	return s.read(ctx, key, false)
}

// Take returns the value and deletes it, or ErrNotFound.
func (s *Store) Take(ctx context.Context, key string) ([]byte, error) {
	return s.read(ctx, key, true)
}

func (s *Store) read(ctx context.Context, key string, remove bool) ([]byte, error) {
	if err := check(ctx, key); err != nil {
		return nil, err
	}
	e, ok := s.shard(key).read(key, s.clock(), remove)
	if !ok {
		return nil, shortlived.ErrNotFound
	}
	return e.value(), nil
}

// Remove deletes the value, if there is one.
func (s *Store) Remove(ctx context.Context, key string) error {
	if err := check(ctx, key); err != nil {
		return err
	}
	s.shard(key).read(key, s.clock(), true)
	return nil
}

// Increment adds amount to the count at the key and renews its lifetime.
func (s *Store) Increment(ctx context.Context, key string, amount int64, lifetime time.Duration) (int64, error) {
	if err := checkWrite(ctx, key, nil, lifetime); err != nil {
		return 0, err
	}
	count, err, added := amount, error(nil), false
	full := s.withRoom(key, int64(len(key))+Overhead, func(sh *shard, now int64) bool {
		e := sh.liveLocked(key, now)
		if e == nil {
			added = sh.addLocked(s, newCount(key, amount), now, until(now, lifetime))
			return added
		}
		if count, err = e.add(amount); err == nil {
			sh.renewLocked(e, until(now, lifetime))
		}
		return true
	})
	if full != nil {
		return 0, full
	}
	if added {
		s.sweeper.arm(s.sweepAgain)
	}
	return count, err
}

// sweepAgain sweeps and reports whether anything is left to expire.
func (s *Store) sweepAgain() bool {
	s.Sweep()
	return s.used.Load() > 0
}

// withRoom runs write on the key's shard, again as long as write finds no room
// for cost and expired values can be dropped to make it. Shards are locked one
// at a time, so two writers that look for room cannot block each other.
func (s *Store) withRoom(key string, cost int64, write func(sh *shard, now int64) bool) error {
	sh := s.shard(key)
	for {
		now := s.clock()
		sh.mu.Lock()
		done := write(sh, now)
		sh.mu.Unlock()
		if done {
			return nil
		}
		if !s.makeRoom(now, cost) {
			s.refused.Add(1)
			return shortlived.ErrFull
		}
	}
}

// makeRoom drops expired values until cost more bytes fit, and reports whether
// they do. A shard without expired values costs one atomic read.
func (s *Store) makeRoom(now, cost int64) bool {
	for i := range s.shards {
		for {
			missing := s.used.Load() + cost - s.max.Load()
			if missing <= 0 {
				return true
			}
			if !s.shards[i].sweep(now, missing) {
				break
			}
		}
	}
	return s.used.Load()+cost <= s.max.Load()
}

// reserve charges cost against the bound if it fits.
func (s *Store) reserve(cost int64) bool {
	for {
		used := s.used.Load()
		if used+cost > s.max.Load() {
			return false
		}
		if s.used.CompareAndSwap(used, used+cost) {
			return true
		}
	}
}

func (s *Store) shard(key string) *shard {
	return &s.shards[maphash.String(s.seed, key)&(shardCount-1)]
}

// clock returns the nanoseconds since the store was made, by the monotonic
// clock where the readings have it.
func (s *Store) clock() int64 { return int64(s.now().Sub(s.start)) }

// until returns when a lifetime that begins now ends.
func until(now int64, lifetime time.Duration) int64 {
	if end := now + int64(lifetime); end > now {
		return end
	}
	return math.MaxInt64
}

func check(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return shortlived.CheckKey(key)
}

func checkWrite(ctx context.Context, key string, value []byte, lifetime time.Duration) error {
	if err := check(ctx, key); err != nil {
		return err
	}
	if err := shortlived.CheckValue(value); err != nil {
		return err
	}
	return shortlived.CheckLifetime(lifetime)
}

// entry is a value or a count.
type entry struct {
	data    string // the key, and after it the value unless it is a count
	count   int64
	expires int64 // nanoseconds on the store's clock
	due     int64 // at most expires: where the entry stands in the order
	index   int32 // in the order
	keyLen  uint16
	isCount bool
}

// newEntry keeps a value that is a count as one, whoever wrote it. Key and
// value share one allocation, which holds on to nothing of the caller's.
func newEntry(key string, value []byte) *entry {
	if n, ok := shortlived.ParseCount(value); ok {
		return newCount(key, n)
	}
	var data strings.Builder
	data.Grow(len(key) + len(value))
	data.WriteString(key)
	data.Write(value)
	return &entry{data: data.String(), keyLen: uint16(len(key))}
}

func newCount(key string, n int64) *entry {
	return &entry{data: strings.Clone(key), keyLen: uint16(len(key)), count: n, isCount: true}
}

func (e *entry) key() string { return e.data[:e.keyLen] }

func (e *entry) value() []byte {
	if e.isCount {
		return strconv.AppendInt(nil, e.count, 10)
	}
	return []byte(e.data[e.keyLen:])
}

func (e *entry) add(amount int64) (int64, error) {
	if !e.isCount {
		return 0, shortlived.ErrNotCounter
	}
	sum, err := shortlived.AddCount(e.count, amount)
	if err == nil {
		e.count = sum
	}
	return sum, err
}

func (e *entry) cost() int64 { return int64(len(e.data)) + Overhead }

var _ shortlived.Store = (*Store)(nil)
