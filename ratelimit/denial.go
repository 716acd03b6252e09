package ratelimit

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
)

// denials remembers refusals until their window ends. In a window counts only
// grow, so what was refused once is refused until then, and so is anything
// that costs more. The end is reckoned from before the question was sent, on
// the monotonic clock: never later than the true one.
//
// The table is bounded: a refusal that is pushed out costs one more question.
type denials struct {
	any    atomic.Bool
	shards [denialShards]denialShard
}

const (
	denialShards = 16
	denialSets   = 256 // of a shard
	denialWays   = 4   // of a set
)

type denialShard struct {
	mu   sync.Mutex
	sets *[denialSets][denialWays]denial // made at the first refusal
}

// denial is a refusal of cost, when the zone held events. A limit that was
// changed since is asked anew.
type denial struct {
	key          limitstore.Key
	events, cost int64
	remaining    int64
	until        time.Duration
}

// find returns the refusal that still holds for the limit, if there is one.
func (d *denials) find(l *limitstore.Limit, now time.Duration) (remaining int64, wait time.Duration, ok bool) {
	if !d.any.Load() {
		return 0, 0, false
	}
	shard, set := d.place(l.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if shard.sets == nil {
		return 0, 0, false
	}
	for i := range shard.sets[set] {
		e := &shard.sets[set][i]
		if e.key == l.Key && e.holds(l, now) {
			return e.remaining, e.until - now, true
		}
	}
	return 0, 0, false
}

func (e *denial) holds(l *limitstore.Limit, now time.Duration) bool {
	return now < e.until && l.Events == e.events && l.Cost >= e.cost
}

// add remembers that the limit refused a question which was sent after asked.
func (d *denials) add(l *limitstore.Limit, st *limitstore.State, asked time.Duration) {
	shard, set := d.place(l.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if shard.sets == nil {
		shard.sets = new([denialSets][denialWays]denial)
		d.any.Store(true)
	}
	entries := &shard.sets[set]
	place := &entries[0]
	for i := range entries {
		if entries[i].key == l.Key {
			place = &entries[i]
			break
		}
		if entries[i].until < place.until {
			place = &entries[i]
		}
	}
	*place = denial{key: l.Key, events: l.Events, cost: l.Cost, remaining: st.Remaining, until: asked + st.Reset}
}

// clear forgets everything.
func (d *denials) clear() {
	for i := range d.shards {
		d.shards[i].mu.Lock()
		d.shards[i].sets = nil
		d.shards[i].mu.Unlock()
	}
	d.any.Store(false)
}

func (d *denials) place(k limitstore.Key) (*denialShard, int) {
	bits := binary.LittleEndian.Uint32(k[:4])
	return &d.shards[bits%denialShards], int(bits / denialShards % denialSets)
}
