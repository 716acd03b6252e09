package file

import (
	"bytes"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

func genEntry(t *rapid.T) entry {
	at := func(name string) time.Time { return millis(rapid.Int64Range(1, 1<<42).Draw(t, name)) }
	e := entry{queued: rapid.Int64Min(0).Draw(t, "queued")}
	e.User = rapid.StringOfN(rapid.Rune(), 1, -1, sessionstore.MaxUser).Draw(t, "user")
	e.Claims = rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "claims")
	e.ClaimsVersion, e.Generation = rapid.Uint32().Draw(t, "cv"), rapid.Uint32().Draw(t, "g")
	e.Created, e.Refreshed = at("created"), at("refreshed")
	e.Lifetime = time.Duration(rapid.Int64Range(1, math.MaxInt64/int64(time.Millisecond)).Draw(t, "lifetime")) * time.Millisecond
	if rapid.Bool().Draw(t, "absolute") {
		e.Until = at("until")
	}
	e.Persistent = rapid.Bool().Draw(t, "persistent")
	e.Device = string(rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(t, "device"))
	e.IP = rapid.String().Filter(func(s string) bool { return len(s) <= sessionstore.MaxIP }).Draw(t, "ip")
	return e
}

func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := genEntry(t)
		b := e.encode()
		got, err := decode(b)
		if err != nil || !bytes.Equal(got.encode(), b) || got.User != e.User || !got.Expires().Equal(e.Expires()) || got.queued != e.queued {
			t.Fatalf("%+v comes back as %+v, %v", e, got, err)
		}
		i := rapid.IntRange(1, len(b)-1).Draw(t, "place")
		b[i] ^= byte(1 << rapid.IntRange(0, 7).Draw(t, "bit"))
		if _, err := decode(b); err == nil {
			t.Fatalf("a flipped bit in byte %d goes unnoticed", i)
		}
	})
}

// FuzzRecord looks behind the checksum: the fuzzer's bytes are sealed first.
func FuzzRecord(f *testing.F) {
	e := entry{queued: 5, Record: sessionstore.Record{
		User: "u1", Claims: []byte(`{"a":1}`), Created: millis(1), Refreshed: millis(2), Lifetime: time.Hour, Until: millis(1 << 41),
	}}
	f.Add(e.encode())
	e.Persistent, e.Until = true, time.Time{}
	f.Add(e.encode())
	f.Add([]byte{2})
	f.Add(make([]byte, headSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := decode(b); err == nil && len(b) < headSize {
			t.Fatal("half a head is accepted")
		}
		if len(b) < headSize {
			return
		}
		b = seal(bytes.Clone(b))
		got, err := decode(b)
		if err != nil {
			return
		}
		if !bytes.Equal(got.encode(), b) {
			t.Errorf("%x is written as %x", b, got.encode())
		}
		if got.User == "" || got.Lifetime < time.Millisecond || len(got.Claims) > sessionstore.MaxClaims {
			t.Errorf("out of bounds: %+v", got)
		}
		moved := withQueued(b, 77)
		if h, err := decodeHead(moved); err != nil || h.queued != 77 {
			t.Errorf("queued anew: %+v, %v", h, err)
		}
	})
}

func FuzzQueueKey(f *testing.F) {
	f.Add(queueKey(1764532800000, "example.com", sessionstore.ID{1}))
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, k []byte) {
		due, site, id, ok := splitQueueKey(k)
		if ok && !bytes.Equal(queueKey(due, site, id), k) {
			t.Errorf("%x is taken for %d, %q, %x", k, due, site, id)
		}
	})
}
