package redis

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore/storetest"
)

func member(limits ...limitstore.Limit) *waiter {
	w := newWaiter()
	w.ask(&limitstore.Decision{Limits: limits, States: make([]limitstore.State, len(limits))}, time.Now().Add(10*time.Second))
	return w
}

func TestBatchCommand(t *testing.T) {
	k1, k2 := limitstore.Key{1}, limitstore.Key{2}
	a := limitstore.Limit{Key: k1, Algorithm: limitstore.FixedWindow, Window: time.Minute, Events: 600, Cost: 1}
	b := limitstore.Limit{Key: k2, Algorithm: limitstore.FixedWindow, Window: time.Second, Events: 5, Cost: 2, Advisory: true}
	batch := newBatch("p:")
	for _, w := range []*waiter{member(a), member(a, b), member(a), member(withCost(a, 3))} {
		batch.add(w)
	}
	var got strings.Builder
	for _, arg := range batch.command("evalsha", "hash") {
		if s, ok := arg.(*string); ok {
			arg = *s
		}
		got.WriteString(fmt.Sprint(arg, " "))
	}
	want := "evalsha hash 2 p:AQAAAAAAAAAAAAAAAAAAAA p:AgAAAAAAAAAAAAAAAAAAAA 2 60000 600 0 1000 5 1 " +
		"2 1 1 1 1 " + "1 2 1 1 1 2 2 2 " + "1 1 1 1 3 "
	if got.String() != want {
		t.Errorf("got  %s\nwant %s", got.String(), want)
	}
	if err := batch.give([]int64{1, 599, 50, 0, 600, 50, 0, 10, -1, 0, 10}); err != nil {
		t.Fatal(err)
	}
	if batch.members[0].admitted != true || batch.members[2].admitted != false {
		t.Error("of equal requests the first must be admitted")
	}
	if batch.members[3].err != limitstore.ErrCorrupt {
		t.Errorf("got %v, want ErrCorrupt", batch.members[3].err)
	}
}

// TestBatchesAgainstModel sends whole batches at once. The script must decide
// as if it had been asked group by group, in order.
func TestBatchesAgainstModel(t *testing.T) {
	s := openShared(t)
	rapid.Check(t, func(rt *rapid.T) {
		var zones [3]limitstore.Limit
		for i := range zones {
			zones[i] = storetest.Limit(storetest.Amounts(1).Draw(rt, "events"), 1)
			zones[i].Advisory = rapid.IntRange(0, 3).Draw(rt, "advisory") == 0
		}
		counts := map[limitstore.Key]int64{}
		for range rapid.IntRange(1, 4).Draw(rt, "batches") {
			s.work.reset()
			for range rapid.IntRange(1, 12).Draw(rt, "requests") {
				limits := rapid.SliceOfNDistinct(rapid.SampledFrom(zones[:]), 1, 3, func(l limitstore.Limit) limitstore.Key { return l.Key }).Draw(rt, "limits")
				for i := range limits {
					limits[i].Cost = rapid.Int64Range(0, 3).Draw(rt, "cost")
				}
				s.work.add(member(limits...))
			}
			reply, err := s.call(time.Now().Add(10 * time.Second))
			if err == nil {
				err = s.work.give(reply)
			}
			if err != nil {
				rt.Fatal(err)
			}
			checkGroups(rt, &s.work, counts)
		}
	})
}

func checkGroups(rt *rapid.T, b *batch, counts map[limitstore.Key]int64) {
	for g := range b.groups {
		limits := b.groups[g].like.limits
		before := make([]int64, len(limits))
		for i := range limits {
			before[i] = counts[limits[i].Key]
		}
		granted := limitstore.Grant(limits, before, b.groups[g].size)
		nth := int64(0)
		for m, w := range b.members {
			if b.groupOf[m] != int32(g) {
				continue
			}
			nth++
			if w.admitted != (nth <= granted) {
				rt.Fatalf("group %d: request %d of %d admitted %v, want the first %d", g, nth, b.groups[g].size, w.admitted, granted)
			}
			for i := range limits {
				want := limits[i].Outcome(before[i], granted, nth)
				want.Reset = w.states[i].Reset
				if w.states[i] != want {
					rt.Fatalf("group %d: got %+v, want %+v", g, w.states[i], want)
				}
			}
		}
		for i := range limits {
			counts[limits[i].Key] += limits[i].Charged(before[i], granted)
		}
	}
}

// FuzzReply reads foreign replies: no panic, and whatever is accepted is in
// range.
func FuzzReply(f *testing.F) {
	add := func(numbers ...int64) {
		var b []byte
		for _, n := range numbers {
			b = binary.LittleEndian.AppendUint64(b, uint64(n))
		}
		f.Add(b)
	}
	add(2, 0, 1000, 1, 2, 1000, 0, 500)
	add(2, 0, 1000, 1, 6, 1000, 0, 500)
	add(-1, 0, 1000, 0, 9, 1000, 0, 500)
	add(3, 0, 1000)
	add()
	f.Fuzz(func(t *testing.T, data []byte) {
		var reply []int64
		for ; len(data) >= 8; data = data[8:] {
			reply = append(reply, int64(binary.LittleEndian.Uint64(data)))
		}
		a, c := storetest.Limit(10, 3), storetest.Limit(7, 1)
		b := newBatch("p:")
		for _, w := range []*waiter{member(a), member(a), member(a, c)} {
			b.add(w)
		}
		if b.give(reply) != nil {
			return
		}
		for _, w := range b.members {
			refused := false
			for _, st := range w.states {
				refused = refused || st.Refused
			}
			if w.err == nil && w.admitted == refused {
				t.Errorf("accepted %v: admitted %v, refused by a limit %v", reply, w.admitted, refused)
			}
			for i, st := range w.states {
				if w.err == nil && (st.Remaining < 0 || st.Remaining > w.limits[i].Events || st.Reset <= 0 || st.Reset > 2*w.limits[i].Window) {
					t.Errorf("accepted %v as %+v", reply, st)
				}
			}
		}
	})
}
