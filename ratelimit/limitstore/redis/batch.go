package redis

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
)

var keyEncoding = base64.RawURLEncoding

// batch builds one command of many requests and gives out its reply. Equal
// requests are one group, of which the script admits the first so many. It is
// used again and again, so that a decision takes hardly any memory.
type batch struct {
	prefix string

	members []*waiter
	groupOf []int32 // by member

	keys   []batchKey
	byKey  map[limitstore.Key]int32
	limits []batchLimit
	groups []batchGroup
	asks   []batchAsk

	text  []byte
	ends  []int
	words []string
	args  []any
}

type batchKey struct {
	key    limitstore.Key
	window time.Duration
	groups int32 // the first group that begins with this key, or none
}

type batchLimit struct {
	window   time.Duration
	events   int64
	advisory bool
}

type batchGroup struct {
	size  int64
	first int32 // of its asks
	like  *waiter
	next  int32 // the next group that begins with the same key, or none

	reply  int   // where its part of the reply begins
	served int64 // how many of its members have their answer
}

type batchAsk struct {
	key, limit int32
	cost       int64
}

const (
	none   = -1 // no group
	broken = -1 // the script's word for a group with a key that is not ours
)

var errTwoWindows = fmt.Errorf("%w: one key with two windows", limitstore.ErrInvalid)

func newBatch(prefix string) batch {
	return batch{prefix: prefix, byKey: make(map[limitstore.Key]int32)}
}

// reset empties the batch. It drops its references, so that what it was built
// of can be freed or used again.
func (b *batch) reset() {
	clear(b.members)
	clear(b.groups)
	b.members, b.groupOf = b.members[:0], b.groupOf[:0]
	b.keys, b.limits, b.groups, b.asks = b.keys[:0], b.limits[:0], b.groups[:0], b.asks[:0]
	clear(b.byKey)
}

// add takes a request in. One that uses a key with another window than the
// batch does is invalid and stays without a group.
func (b *batch) add(w *waiter) {
	b.members = append(b.members, w)
	b.groupOf = append(b.groupOf, b.group(w))
}

func (b *batch) group(w *waiter) int32 {
	for i := range w.limits {
		l := &w.limits[i]
		if at, ok := b.byKey[l.Key]; ok && b.keys[at].window != l.Window {
			return none
		}
	}
	head := b.key(&w.limits[0])
	g := b.keys[head].groups
	for g != none && !slices.Equal(b.groups[g].like.limits, w.limits) {
		g = b.groups[g].next
	}
	if g == none {
		g = b.newGroup(w, head)
	}
	b.groups[g].size++
	return g
}

func (b *batch) newGroup(w *waiter, head int32) int32 {
	g := int32(len(b.groups))
	b.groups = append(b.groups, batchGroup{first: int32(len(b.asks)), like: w, next: b.keys[head].groups})
	b.keys[head].groups = g
	for i := range w.limits {
		l := &w.limits[i]
		b.asks = append(b.asks, batchAsk{key: b.key(l), limit: b.limit(l), cost: l.Cost})
	}
	return g
}

func (b *batch) key(l *limitstore.Limit) int32 {
	at, ok := b.byKey[l.Key]
	if !ok {
		at = int32(len(b.keys))
		b.keys = append(b.keys, batchKey{key: l.Key, window: l.Window, groups: none})
		b.byKey[l.Key] = at
	}
	return at
}

// limit numbers the limit's settings, of which a configuration has few.
func (b *batch) limit(l *limitstore.Limit) int32 {
	want := batchLimit{window: l.Window, events: l.Events, advisory: l.Advisory}
	for i := range b.limits {
		if b.limits[i] == want {
			return int32(i)
		}
	}
	b.limits = append(b.limits, want)
	return int32(len(b.limits) - 1)
}

// command returns the arguments of the command. They are valid until the next
// reset.
func (b *batch) command(name, script string) []any {
	b.text, b.ends = b.text[:0], b.ends[:0]
	b.number(int64(len(b.keys)))
	for i := range b.keys {
		b.text = appendName(b.text, b.prefix, b.keys[i].key)
		b.ends = append(b.ends, len(b.text))
	}
	b.number(int64(len(b.limits)))
	for i := range b.limits {
		b.number(b.limits[i].window.Milliseconds())
		b.number(b.limits[i].events)
		b.flag(b.limits[i].advisory)
	}
	for i := range b.groups {
		g := &b.groups[i]
		b.number(g.size)
		b.number(int64(len(g.like.limits)))
		for _, a := range b.asks[g.first:][:len(g.like.limits)] {
			b.number(int64(a.key) + 1)
			b.number(int64(a.limit) + 1)
			b.number(a.cost)
		}
	}
	return b.arguments(name, script)
}

func (b *batch) number(n int64) {
	b.text = strconv.AppendInt(b.text, n, 10)
	b.ends = append(b.ends, len(b.text))
}

func (b *batch) flag(set bool) {
	if set {
		b.number(1)
	} else {
		b.number(0)
	}
}

// arguments cuts the text into words. All share one string, and the client
// reads them through pointers, so that none takes memory of its own.
func (b *batch) arguments(name, script string) []any {
	all := string(b.text)
	b.words = b.words[:0]
	start := 0
	for _, end := range b.ends {
		b.words = append(b.words, all[start:end])
		start = end
	}
	b.args = append(b.args[:0], name, script)
	for i := range b.words {
		b.args = append(b.args, &b.words[i])
	}
	return b.args
}

// give writes every member's answer. A reply that is not of the expected form
// is an error, and nobody's answer.
func (b *batch) give(reply []int64) error {
	if err := b.parse(reply); err != nil {
		return err
	}
	for m, w := range b.members {
		if b.groupOf[m] == none {
			w.err = errTwoWindows
			continue
		}
		g := &b.groups[b.groupOf[m]]
		g.served++
		g.answer(w, reply[g.reply:])
	}
	return nil
}

// parse finds each group's part of the reply. What is taken from it afterwards
// is in range.
func (b *batch) parse(reply []int64) error {
	at := 0
	for i := range b.groups {
		g := &b.groups[i]
		g.reply = at
		end := at + 1 + 2*len(g.like.limits)
		if len(reply) < end {
			return fmt.Errorf("limitstore/redis: reply of %d numbers is too short", len(reply))
		}
		if err := g.check(reply[at:end]); err != nil {
			return err
		}
		at = end
	}
	if at != len(reply) {
		return fmt.Errorf("limitstore/redis: reply of %d numbers is too long", len(reply))
	}
	return nil
}

func (g *batchGroup) check(reply []int64) error {
	var counts [limitstore.MaxLimits]int64
	for j := range g.like.limits {
		count, reset := reply[1+2*j], reply[2+2*j]
		if count < 0 || count > limitstore.MaxAmount || reset < 1 || reset > 2*g.like.limits[j].Window.Milliseconds() {
			return fmt.Errorf("limitstore/redis: reply has count %d and reset %d", count, reset)
		}
		counts[j] = count
	}
	if granted := reply[0]; granted != broken && granted != limitstore.Grant(g.like.limits, counts[:len(g.like.limits)], g.size) {
		return fmt.Errorf("limitstore/redis: reply admits %d of %d, which its counts do not", granted, g.size)
	}
	return nil
}

// answer answers the member that was served last.
func (g *batchGroup) answer(w *waiter, reply []int64) {
	granted := reply[0]
	if granted == broken {
		w.err = limitstore.ErrCorrupt
		return
	}
	w.admitted = g.served <= granted
	for j := range w.limits {
		w.states[j] = w.limits[j].Outcome(reply[1+2*j], granted, g.served)
		w.states[j].Reset = time.Duration(reply[2+2*j]) * time.Millisecond
	}
}

// fail gives every member the error.
func (b *batch) fail(err error) {
	for _, w := range b.members {
		w.err = err
	}
}
