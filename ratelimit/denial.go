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
// Of a request in several zones one may refuse while another fills up later,
// by requests that only that one counts, and the wait would grow. So a refusal
// is tied to the charges that this gateway had seen of the request's other
// zones. (Charges of other gateways are not seen: the client may be told to
// wait for the one zone, and then for the other. It is never let in early.)
//
// The table is bounded: a refusal that is pushed out costs one more question.
type denials struct {
	any     atomic.Bool
	shards  [denialShards]denialShard
	charges [chargeCounters]atomic.Uint32 // by key, several keys to a counter
}

const (
	denialShards = 16
	denialSets   = 256 // of a shard
	denialWays   = 4   // of a set

	chargeCounters = 1 << 14
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
	others       uint64 // what was asked of the other zones, and their charges
}

// charged notes that the limits were charged.
func (d *denials) charged(limits []limitstore.Limit) {
	for i := range limits {
		if limits[i].Cost > 0 {
			d.counter(limits[i].Key).Add(1)
		}
	}
}

// seen reads the charges of the limits so far.
func (d *denials) seen(limits []limitstore.Limit) (seen [limitstore.MaxLimits]uint32) {
	if len(limits) == 1 {
		return seen // there are no others
	}
	for i := range limits {
		seen[i] = d.counter(limits[i].Key).Load()
	}
	return seen
}

func (d *denials) counter(k limitstore.Key) *atomic.Uint32 {
	return &d.charges[binary.LittleEndian.Uint32(k[4:8])%chargeCounters]
}

// others sums up what the ith limit's refusal depends on besides itself. Keys
// are hashes with a secret: nobody can look for a collision.
func others(limits []limitstore.Limit, i int, seen *[limitstore.MaxLimits]uint32) uint64 {
	sum := uint64(0)
	for j := range limits {
		if l := &limits[j]; j != i && !l.Advisory && l.Cost > 0 {
			sum = mix(sum, binary.LittleEndian.Uint64(l.Key[:8]))
			sum = mix(sum, uint64(l.Events))
			sum = mix(sum, uint64(l.Cost))
			sum = mix(sum, uint64(seen[j]))
		}
	}
	return sum
}

func mix(sum, v uint64) uint64 {
	sum = (sum ^ v) * 0x9e3779b97f4a7c15
	return sum ^ sum>>29
}

// find returns the refusal that still holds for the ith limit, if there is one.
func (d *denials) find(limits []limitstore.Limit, i int, seen *[limitstore.MaxLimits]uint32, now time.Duration) (remaining int64, wait time.Duration, ok bool) {
	l := &limits[i]
	shard, set := d.place(l.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if shard.sets == nil {
		return 0, 0, false
	}
	for way := range shard.sets[set] {
		e := &shard.sets[set][way]
		if e.key == l.Key && e.holds(l, now) && e.others == others(limits, i, seen) {
			return e.remaining, e.until - now, true
		}
	}
	return 0, 0, false
}

func (e *denial) holds(l *limitstore.Limit, now time.Duration) bool {
	return now < e.until && l.Events == e.events && l.Cost >= e.cost
}

// add remembers that the ith limit refused a question. What was seen, and the
// time, are of before the question was sent.
func (d *denials) add(limits []limitstore.Limit, i int, seen *[limitstore.MaxLimits]uint32, st *limitstore.State, asked time.Duration) {
	l := &limits[i]
	shard, set := d.place(l.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if shard.sets == nil {
		shard.sets = new([denialSets][denialWays]denial)
		d.any.Store(true)
	}
	entries := &shard.sets[set]
	place := &entries[0]
	for e := range entries {
		if entries[e].key == l.Key {
			place = &entries[e]
			break
		}
		if entries[e].until < place.until {
			place = &entries[e]
		}
	}
	*place = denial{
		key: l.Key, events: l.Events, cost: l.Cost, remaining: st.Remaining, until: asked + st.Reset,
		others: others(limits, i, seen),
	}
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
