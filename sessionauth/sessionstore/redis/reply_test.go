package redis

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// tree reads bytes as a reply, so that the fuzzer can grow any: a list length,
// a number, nothing, or a text with its length before it.
func tree(b []byte, depth int) (any, []byte) {
	if len(b) < 2 {
		return nil, nil
	}
	kind, n, rest := b[0]%5, int(b[1]), b[2:]
	switch {
	case kind == 0 && depth < 4:
		list := make([]any, 0, n)
		for i := 0; i < n && len(rest) > 0; i++ {
			var v any
			v, rest = tree(rest, depth+1)
			list = append(list, v)
		}
		return list, rest
	case kind == 1:
		return int64(n) - 3, rest
	case kind == 2:
		return nil, rest
	}
	n = min(n, len(rest))
	return string(rest[:n]), rest[n:]
}

// leaf and branch are the inverse of tree, for seeds.
func leaf(s string) []byte { return append([]byte{3, byte(len(s))}, s...) }

func branch(parts ...[]byte) []byte {
	b := []byte{0, byte(len(parts))}
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

func seedFields(user string) []byte {
	return branch(leaf("1"), leaf(hash(user)), leaf(user), leaf(`{"a":1}`), leaf("1"), leaf("0"), leaf("1764532800000"),
		leaf("1764532800000"), leaf("3600000"), leaf("0"), leaf("1"), leaf("Agent"), leaf("192.0.2.1"))
}

func FuzzReply(f *testing.F) {
	id := idText(sessionstore.ID{1, 2, 3})
	f.Add(branch(leaf("ok"), leaf("1764532800000"), seedFields("u1")))
	f.Add(branch(leaf("ok"), leaf("1764532800000"), seedFields("u1"), branch([]byte{1, 4}, leaf(id))))
	f.Add(branch(leaf("ok"), branch(leaf(id), seedFields("u1")), branch(leaf("2"))))
	f.Add(branch(leaf("ok"), branch([]byte{1, 5}, leaf(id))))
	f.Add(branch(leaf("version"), leaf("2")))
	f.Add(branch(leaf("absent")))
	f.Add([]byte{2, 0})
	ends := []sessionstore.End{{User: "u1"}, {User: "u2"}}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, _ := tree(b, 0)
		r, err := parse(v)
		if err != nil {
			return
		}
		if rec, now, err := r.timedRecord(); err == nil {
			checkRecord(t, rec)
			if now.IsZero() {
				t.Error("a reply without time is accepted")
			}
		}
		if rec, ended, err := r.recordAndEnded(ends); err == nil {
			checkRecord(t, rec)
			checkEnded(t, ended)
		}
		if ended, err := r.ended(1, ends); err == nil {
			checkEnded(t, ended)
		}
		if list, _, err := r.listed(); err == nil {
			for _, l := range list {
				checkRecord(t, l.Record)
			}
		}
		if user, err := r.user(); err == nil && len(user) > sessionstore.MaxUser {
			t.Error("a long user is accepted")
		}
	})
}

func checkEnded(t *testing.T, ended []sessionstore.Ended) {
	for _, e := range ended {
		if e.User != "u1" && e.User != "u2" {
			t.Errorf("ended a session of %q", e.User)
		}
	}
}

// checkRecord fails unless a record that was read would be written the same.
func checkRecord(t *testing.T, rec sessionstore.Record) {
	t.Helper()
	if rec.User == "" || len(rec.User) > sessionstore.MaxUser || len(rec.Claims) > sessionstore.MaxClaims ||
		len(rec.Device) > sessionstore.MaxDevice || len(rec.IP) > sessionstore.MaxIP || rec.Lifetime < time.Millisecond {
		t.Errorf("out of bounds: %+v", rec)
	}
	until := "0"
	if !rec.Until.IsZero() {
		until = strconv.FormatInt(rec.Until.UnixMilli(), 10)
	}
	text := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	ms := func(at time.Time) string {
		if at.IsZero() {
			return "0"
		}
		return strconv.FormatInt(at.UnixMilli(), 10)
	}
	again, err := reply{"1", hash(rec.User), rec.User, string(rec.Claims), text(rec.ClaimsVersion), text(rec.Generation),
		ms(rec.Created), ms(rec.Refreshed), millis(rec.Lifetime), until, flag(rec.Persistent), rec.Device, rec.IP}.record()
	if err != nil || !again.Expires().Equal(rec.Expires()) || again.User != rec.User {
		t.Errorf("%+v does not come back: %+v, %v", rec, again, err)
	}
}

func TestParseID(t *testing.T) {
	id := sessionstore.ID{0xff, 1, 2}
	if got, ok := parseID(idText(id)); !ok || got != id {
		t.Errorf("%v, %v, want %v", got, ok, id)
	}
	for _, s := range []string{"", "AA", idText(id) + "A", idText(id)[:21], idText(id)[:21] + "\n", idText(id)[:21] + "B", idText(id)[:20] + "\r\n"} {
		if _, ok := parseID(s); ok {
			t.Errorf("%q is taken for an id", s)
		}
	}
}

func TestReplyWords(t *testing.T) {
	for word, want := range map[string]error{
		"absent": sessionstore.ErrNotFound, "conflict": sessionstore.ErrConflict, "exists": sessionstore.ErrExists,
		"malformed": errMalformed, "": errMalformed, "OK": errMalformed,
	} {
		if _, err := parse([]any{word}); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", word, err, want)
		}
	}
}
