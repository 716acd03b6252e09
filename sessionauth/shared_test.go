package sessionauth

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

func numbered(n int) sessionstore.Key {
	key := sessionstore.Key{Site: "s"}
	binary.BigEndian.PutUint64(key.ID[:], uint64(n)+1)
	return key
}

func TestDenials(t *testing.T) {
	var d denials
	now := newClock().now()
	o := &opened{id: numbered(0).ID, site: "s"}
	if d.denied(o, now) {
		t.Error("denied from the start")
	}
	d.add(numbered(0), now, now.Add(time.Minute), false)
	d.add(numbered(0), now, now.Add(time.Second), false)
	if !d.denied(o, now.Add(59*time.Second)) {
		t.Error("a denial was shortened")
	}
	if d.denied(o, now.Add(time.Minute)) {
		t.Error("a denial does not lapse")
	}
	if other := (&opened{id: o.id, site: "other"}); d.denied(other, now) {
		t.Error("denied at another site")
	}
	// Pinned denials give way when their end is stored.
	d.add(numbered(0), now, now.Add(time.Hour), true)
	d.add(numbered(0), now, now.Add(time.Minute), false)
	if d.denied(o, now.Add(time.Minute)) {
		t.Error("a stored end is denied as if it were not")
	}
}

func TestDenialsAreBounded(t *testing.T) {
	var d denials
	now := newClock().now()
	d.add(numbered(0), now, now.Add(time.Hour), true)
	for n := 1; n < maxDenials+1000; n++ {
		d.add(numbered(n), now, now.Add(time.Hour), false)
	}
	if len(d.until) > maxDenials {
		t.Errorf("%d denials", len(d.until))
	}
	if !d.denied(&opened{id: numbered(0).ID, site: "s"}, now) {
		t.Error("an end that is not stored yet was forgotten")
	}
	if !d.denied(&opened{id: numbered(maxDenials + 999).ID, site: "s"}, now) {
		t.Error("the newest was forgotten")
	}
	later := now.Add(2 * time.Hour)
	for n := range maxDenials {
		d.add(numbered(n+2*maxDenials), later, later.Add(time.Hour), false)
	}
	if len(d.until) > maxDenials {
		t.Errorf("%d denials after the first had lapsed", len(d.until))
	}
}

func TestPendingEndsAreBounded(t *testing.T) {
	s := NewShared()
	defer s.Close()
	g := newGateway(t)
	g.store.failWith(errDown)
	for range maxPending {
		if !s.retry(&pendingEnd{manager: g.Manager, until: g.now().Add(time.Hour), ends: []sessionstore.End{{User: "u", ID: numbered(1).ID}}}) {
			t.Fatal("refused below the bound")
		}
	}
	if s.retry(&pendingEnd{manager: g.Manager}) {
		t.Error("accepted beyond the bound")
	}
}
