package redis

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse-gateway/gatehouse/internal/redisconn"
	"github.com/gatehouse-gateway/gatehouse/internal/servers"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore/storetest"
)

func TestOneRoundTripEach(t *testing.T) {
	s := open(t, server.Addr, "")
	ctx := t.Context()
	key := mustStart(t, s, "u1") // the server knows the scripts after one call of each
	for range 2 {
		before := info(t, s)
		calls := 0
		count := func(err error) {
			must(t, err)
			calls++
		}
		_, _, err := s.Get(ctx, key)
		count(err)
		rec, err := s.Refresh(ctx, key, sessionstore.Refresh{Generation: generationOf(t, s, key), Lifetime: time.Hour})
		count(err)
		calls++ // of generationOf
		next := startOf("u1")
		_, _, err = s.Start(ctx, next, sessionstore.End{User: "u1", ID: key.ID}, sessionstore.End{User: "u2"})
		count(err)
		moved := storetest.NewID()
		_, _, err = s.Update(ctx, next.Key, sessionstore.Update{Claims: rec.Claims, NewID: moved}, sessionstore.End{User: "u1"})
		count(err)
		key = sessionstore.Key{Site: next.Key.Site, ID: moved}
		_, err = s.List(ctx, key.Site, "u1")
		count(err)
		_, err = s.End(ctx, key.Site, sessionstore.End{User: "u2"}, sessionstore.End{User: "u1", Except: key.ID})
		count(err)
		_, err = s.Remove(ctx, sessionstore.Key{Site: key.Site, ID: storetest.NewID()})
		count(err)
		after := info(t, s)
		if before["evalsha"] == 0 || after["eval"] != before["eval"] {
			continue // first round: scripts are loaded
		}
		if got := after["evalsha"] - before["evalsha"]; got != calls {
			t.Errorf("%d scripts run for %d operations", got, calls)
		}
		for name, n := range after {
			if d := n - before[name]; d != 0 && !slices.Contains(inScripts, name) && name != "evalsha" && name != "info" {
				t.Errorf("%d calls of %s beside the scripts", d, name)
			}
		}
		return
	}
	t.Fatal("no round ran on loaded scripts")
}

// inScripts are the commands that the scripts use: the package comment grants
// the same.
var inScripts = []string{
	"time", "exists", "pttl", "pexpireat", "hget", "hmget", "hset", "del", "rename",
	"zadd", "zrem", "zscore", "zrevrange", "zrangebyscore", "zremrangebyscore",
}

func generationOf(t testing.TB, s *Store, key sessionstore.Key) uint32 {
	t.Helper()
	rec, _, err := s.Get(context.Background(), key)
	must(t, err)
	return rec.Generation
}

func TestMinimalRights(t *testing.T) {
	prefix := fmt.Sprintf("acl%d:", prefixes.Add(1))
	admin := open(t, server.Addr, prefix)
	rule := []any{"ACL", "SETUSER", "store", "reset", "on", ">secret", "~" + prefix + "s:*", "~" + prefix + "u:*", "+evalsha", "+eval"}
	for _, name := range inScripts {
		rule = append(rule, "+"+name)
	}
	must(t, admin.conn.Client().Do(t.Context(), rule...).Err())
	must(t, admin.conn.Client().ScriptFlush(t.Context()).Err())
	s := openWith(t, redisconn.Options{Address: server.Addr, Prefix: prefix, Username: "store", Password: "secret"}, nil)
	useEverything(t, s)
}

// useEverything calls every operation, with every kind of end.
func useEverything(t *testing.T, s *Store) {
	t.Helper()
	ctx := t.Context()
	a, b := mustStart(t, s, "u1"), mustStart(t, s, "u1")
	start := startOf("u1")
	_, ended, err := s.Start(ctx, start, sessionstore.End{User: "u1", ID: a.ID}, sessionstore.End{User: "u1", Except: b.ID})
	must(t, err)
	if len(ended) != 1 || ended[0].ID != a.ID {
		t.Fatalf("ended %v, want the first session", ended)
	}
	_, err = s.Refresh(ctx, start.Key, sessionstore.Refresh{Lifetime: time.Hour})
	must(t, err)
	moved := storetest.NewID()
	_, _, err = s.Update(ctx, start.Key, sessionstore.Update{Claims: []byte(`{}`), NewID: moved}, sessionstore.End{User: "u1"})
	must(t, err)
	list, err := s.List(ctx, a.Site, "u1")
	must(t, err)
	if len(list) != 1 || list[0].ID != moved {
		t.Fatalf("listed %v, want the moved session", list)
	}
	_, err = s.Remove(ctx, sessionstore.Key{Site: a.Site, ID: moved})
	must(t, err)
	_, err = s.End(ctx, a.Site, sessionstore.End{User: "u1"})
	must(t, err)
}

func TestScriptsComeBackAfterAFlush(t *testing.T) {
	s := open(t, server.Addr, "")
	must(t, s.conn.Client().ScriptFlush(t.Context()).Err())
	useEverything(t, s)
}

func TestFullServerRefusesWholeAndStillEnds(t *testing.T) {
	s, _ := openOwn(t)
	ctx := t.Context()
	key, victim := mustStart(t, s, "u1"), mustStart(t, s, "u2")
	before, _, err := s.Get(ctx, key)
	must(t, err)
	must(t, s.conn.Client().ConfigSet(ctx, "maxmemory", "1").Err())

	start := startOf("u1")
	_, _, startErr := s.Start(ctx, start, sessionstore.End{User: "u2"})
	_, refreshErr := s.Refresh(ctx, key, sessionstore.Refresh{Lifetime: time.Hour, Device: "x"})
	_, _, updateErr := s.Update(ctx, key, sessionstore.Update{Claims: []byte(`{"x":1}`), NewID: storetest.NewID()}, sessionstore.End{User: "u2"})
	for name, err := range map[string]error{"Start": startErr, "Refresh": refreshErr, "Update": updateErr} {
		if err == nil || errors.Is(err, sessionstore.ErrNotFound) || !strings.Contains(err.Error(), "OOM") {
			t.Errorf("%s on a full server: %v", name, err)
		}
	}
	after, _, err := s.Get(ctx, key)
	must(t, err)
	if fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("record %v, want it unchanged: %v", after, before)
	}
	if _, _, err := s.Get(ctx, victim); err != nil {
		t.Errorf("a refused start has ended: %v", err)
	}
	if got := len(keys(t, s)); got != 4 {
		t.Errorf("%d keys, want 2 sessions and 2 indexes", got)
	}
	ended, err := s.End(ctx, key.Site, sessionstore.End{User: "u1"}, sessionstore.End{User: "u2", ID: victim.ID})
	if err != nil || len(ended) != 2 {
		t.Errorf("End on a full server: %v, %v", ended, err)
	}
	if left := keys(t, s); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestLifetimesOfKeys(t *testing.T) {
	s := open(t, server.Addr, "")
	ctx := t.Context()
	start := startOf("u1")
	start.MaxAge = 0
	_, _, err := s.Start(ctx, start)
	must(t, err)
	long := startOf("u1")
	long.Lifetime, long.MaxAge = 10*time.Hour, 5*time.Hour
	_, _, err = s.Start(ctx, long)
	must(t, err)
	at := s.site(start.Key.Site)
	index := at.indexes + hash("u1")
	want := func(key string, want time.Duration) {
		t.Helper()
		got, err := s.conn.Client().PTTL(ctx, key).Result()
		must(t, err)
		if got > want || got < want-time.Minute {
			t.Errorf("lifetime of %q is %v, want %v", key, got, want)
		}
	}
	want(at.record(start.Key.ID), time.Hour)
	want(at.record(long.Key.ID), 5*time.Hour)
	want(index, 5*time.Hour)
	_, err = s.Refresh(ctx, start.Key, sessionstore.Refresh{Lifetime: 7 * time.Hour})
	must(t, err)
	want(at.record(start.Key.ID), 7*time.Hour)
	want(index, 7*time.Hour)
	_, err = s.End(ctx, start.Key.Site, sessionstore.End{User: "u1", ID: start.Key.ID})
	must(t, err)
	want(index, 5*time.Hour)
	moved := storetest.NewID()
	_, _, err = s.Update(ctx, long.Key, sessionstore.Update{NewID: moved})
	must(t, err)
	want(at.record(moved), 5*time.Hour)
	want(index, 5*time.Hour)

	// A rotation begins the sliding lifetime anew.
	other := mustStart(t, s, "u2")
	must(t, s.conn.Client().PExpire(ctx, at.record(other.ID), time.Minute).Err()) // as if time had passed
	_, _, err = s.Update(ctx, other, sessionstore.Update{NewID: moved, Claims: []byte(`{}`)})
	if !errors.Is(err, sessionstore.ErrExists) {
		t.Fatalf("Update to a taken id: %v", err)
	}
	moved = storetest.NewID()
	_, _, err = s.Update(ctx, other, sessionstore.Update{NewID: moved})
	must(t, err)
	want(at.record(moved), time.Hour)
}

// TestIndexForgetsExpiredSessions: a user who always has a live session does
// not gather the ids of dead ones.
func TestIndexForgetsExpiredSessions(t *testing.T) {
	s := open(t, server.Addr, "")
	ctx := t.Context()
	key := mustStart(t, s, "u1")
	index := s.site(key.Site).indexes + hash("u1")
	must(t, s.conn.Client().ZAdd(ctx, index, redis.Z{Score: 1000, Member: idText(storetest.NewID())}).Err())
	_, err := s.Refresh(ctx, key, sessionstore.Refresh{Lifetime: time.Hour})
	must(t, err)
	ids, err := s.conn.Client().ZRange(ctx, index, 0, -1).Result()
	if err != nil || len(ids) != 1 || ids[0] != idText(key.ID) {
		t.Errorf("ids %v, %v, want the live one", ids, err)
	}
}

func TestLostIndex(t *testing.T) {
	s := open(t, server.Addr, "")
	ctx := t.Context()
	a, b := mustStart(t, s, "u1"), mustStart(t, s, "u1")
	must(t, s.conn.Client().Del(ctx, s.site(a.Site).indexes+hash("u1")).Err())
	_, err := s.Refresh(ctx, a, sessionstore.Refresh{Lifetime: time.Hour})
	must(t, err)
	list, err := s.List(ctx, a.Site, "u1")
	must(t, err)
	if len(list) != 1 || list[0].ID != a.ID {
		t.Errorf("a refresh has not entered its session again: %v", list)
	}
	ended, err := s.End(ctx, b.Site, sessionstore.End{User: "u2", ID: b.ID})
	if err != nil || len(ended) != 0 {
		t.Errorf("End by another user: %v, %v", ended, err)
	}
	ended, err = s.End(ctx, b.Site, sessionstore.End{User: "u1", ID: b.ID})
	if err != nil || len(ended) != 1 {
		t.Errorf("End without an index: %v, %v", ended, err)
	}
}

func TestGenerationsWrap(t *testing.T) {
	s := open(t, server.Addr, "")
	key := mustStart(t, s, "u1")
	must(t, s.conn.Client().HSet(t.Context(), s.site(key.Site).record(key.ID), "g", "4294967295").Err())
	rec, err := s.Refresh(t.Context(), key, sessionstore.Refresh{Generation: 1<<32 - 1, Lifetime: time.Hour})
	must(t, err)
	if rec.Generation != 0 {
		t.Errorf("generation %d behind the last one, want 0", rec.Generation)
	}
}

func TestAnotherVersionIsAbsentAndCanBeEnded(t *testing.T) {
	var log bytes.Buffer
	s := openWith(t, redisconn.Options{Address: server.Addr}, slog.New(slog.NewTextHandler(&log, nil)))
	ctx := t.Context()
	newer := func() sessionstore.Key {
		key := mustStart(t, s, "u1")
		must(t, s.conn.Client().HSet(ctx, s.site(key.Site).record(key.ID), "v", "2").Err())
		must(t, s.conn.Client().HDel(ctx, s.site(key.Site).record(key.ID), "g", "u").Err())
		return key
	}
	a, b, c, d := newer(), newer(), newer(), mustStart(t, s, "u1")
	for name, err := range everyUse(s, a) {
		if !errors.Is(err, sessionstore.ErrNotFound) {
			t.Errorf("%s: %v, want ErrNotFound", name, err)
		}
	}
	list, err := s.List(ctx, a.Site, "u1")
	if err != nil || len(list) != 1 || list[0].ID != d.ID {
		t.Errorf("List: %v, %v, want the one readable session", list, err)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings, want 1 a minute: %s", n, log.String())
	}
	if ended, err := s.Remove(ctx, a); err != nil || len(ended) != 1 {
		t.Errorf("Remove: %v, %v", ended, err)
	}
	if ended, err := s.End(ctx, b.Site, sessionstore.End{User: "u1", ID: b.ID}); err != nil || len(ended) != 1 {
		t.Errorf("End: %v, %v", ended, err)
	}
	if ended, err := s.End(ctx, c.Site, sessionstore.End{User: "u1"}); err != nil || len(ended) != 2 {
		t.Errorf("End of all: %v, %v", ended, err)
	}
	if left := keys(t, s); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// everyUse uses a session in every way that needs it to be readable.
func everyUse(s *Store, key sessionstore.Key) map[string]error {
	ctx := context.Background()
	_, _, get := s.Get(ctx, key)
	_, refresh := s.Refresh(ctx, key, sessionstore.Refresh{Lifetime: time.Hour})
	_, _, update := s.Update(ctx, key, sessionstore.Update{Claims: []byte(`{}`)}, sessionstore.End{User: "u1"})
	_, _, rotate := s.Update(ctx, key, sessionstore.Update{NewID: storetest.NewID()})
	return map[string]error{"Get": get, "Refresh": refresh, "Update": update, "rotate": rotate}
}

func TestMalformedSessionIsAnError(t *testing.T) {
	s := open(t, server.Addr, "")
	ctx := t.Context()
	c := s.conn.Client()
	breaks := map[string]func(record string) error{
		"no version":          func(k string) error { return c.HDel(ctx, k, "v").Err() },
		"no owner":            func(k string) error { return c.HDel(ctx, k, "o").Err() },
		"short owner":         func(k string) error { return c.HSet(ctx, k, "o", "x").Err() },
		"no claims":           func(k string) error { return c.HDel(ctx, k, "c").Err() },
		"generation is text":  func(k string) error { return c.HSet(ctx, k, "g", "one").Err() },
		"time is negative":    func(k string) error { return c.HSet(ctx, k, "re", "-5").Err() },
		"lifetime is hex":     func(k string) error { return c.HSet(ctx, k, "l", "0x10000000").Err() },
		"time has an exp":     func(k string) error { return c.HSet(ctx, k, "x", "1e12").Err() },
		"a number is endless": func(k string) error { return c.HSet(ctx, k, "cr", strings.Repeat("9", 400)).Err() },
		"another type":        func(k string) error { c.Del(ctx, k); return c.Set(ctx, k, "text", time.Hour).Err() },
		"another hash":        func(k string) error { c.Del(ctx, k); return c.HSet(ctx, k, "a", "b").Err() },
	}
	for name, change := range breaks {
		t.Run(name, func(t *testing.T) {
			key := mustStart(t, s, "u1")
			must(t, change(s.site(key.Site).record(key.ID)))
			for use, err := range everyUse(s, key) {
				wantFault(t, use, err)
			}
			_, err := s.List(ctx, key.Site, "u1")
			wantFault(t, "List", err)
			if _, err := s.End(ctx, key.Site, sessionstore.End{User: "u1"}); err != nil {
				t.Errorf("End: %v", err)
			}
			if _, _, err := s.Get(ctx, key); !errors.Is(err, sessionstore.ErrNotFound) {
				t.Errorf("Get after the end: %v", err)
			}
		})
	}
	// What only the reader can find.
	for name, pair := range map[string][2]string{
		"claims too long":   {"c", strings.Repeat("c", sessionstore.MaxClaims+1)},
		"another user":      {"u", "u2"},
		"persistent is yes": {"p", "yes"},
		"device too long":   {"d", strings.Repeat("d", sessionstore.MaxDevice+1)},
	} {
		key := mustStart(t, s, "u1")
		must(t, c.HSet(ctx, s.site(key.Site).record(key.ID), pair[0], pair[1]).Err())
		_, _, err := s.Get(ctx, key)
		wantFault(t, name, err)
		_, err = s.End(ctx, key.Site, sessionstore.End{User: "u1"})
		must(t, err)
	}
}

func wantFault(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil || errors.Is(err, sessionstore.ErrNotFound) || errors.Is(err, sessionstore.ErrConflict) || errors.Is(err, sessionstore.ErrExists) {
		t.Errorf("%s: %v, want a fault", what, err)
	}
}

func TestIndexOfAnotherTypeStopsBeforeWriting(t *testing.T) {
	s := open(t, server.Addr, "")
	ctx := t.Context()
	key := mustStart(t, s, "u1")
	before, _, err := s.Get(ctx, key)
	must(t, err)
	for _, user := range []string{"u1", "bad"} {
		index := s.site(key.Site).indexes + hash(user)
		s.conn.Client().Del(ctx, index)
		must(t, s.conn.Client().Set(ctx, index, "text", time.Hour).Err())
	}
	_, refreshErr := s.Refresh(ctx, key, sessionstore.Refresh{Lifetime: time.Hour})
	_, _, rotateErr := s.Update(ctx, key, sessionstore.Update{NewID: storetest.NewID()})
	_, _, startErr := s.Start(ctx, startOf("u1"))
	_, _, endsErr := s.Start(ctx, startOf("good"), sessionstore.End{User: "bad"})
	_, endErr := s.End(ctx, key.Site, sessionstore.End{User: "u1", ID: key.ID})
	_, removeErr := s.Remove(ctx, key)
	for name, err := range map[string]error{
		"Refresh": refreshErr, "rotate": rotateErr, "Start": startErr, "Start with ends": endsErr, "End": endErr, "Remove": removeErr,
	} {
		wantFault(t, name, err)
	}
	after, _, err := s.Get(ctx, key)
	if err != nil || fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("record %v, %v, want it unchanged: %v", after, err, before)
	}
	if got := keys(t, s); len(got) != 3 {
		t.Errorf("keys %v, want the session and two foreign indexes", got)
	}
}

// TestLostReply lets the server do its work and loses what it says.
func TestLostReply(t *testing.T) {
	prefix := fmt.Sprintf("lost%d:", prefixes.Add(1))
	direct := open(t, server.Addr, prefix)
	key := mustStart(t, direct, "u1")
	p := servers.StartProxy(t, server.Addr)
	s := openWith(t, redisconn.Options{Address: p.Addr, Prefix: prefix, Timeout: 400 * time.Millisecond}, nil)
	_, _, err := s.Get(t.Context(), key) // connected, and the script is known
	must(t, err)
	_, err = direct.Refresh(t.Context(), key, sessionstore.Refresh{Generation: 0, Lifetime: time.Hour})
	must(t, err)

	p.Hold(true)
	_, err = s.Refresh(t.Context(), key, sessionstore.Refresh{Generation: 1, Lifetime: time.Hour})
	wantFault(t, "Refresh", err)
	lost := startOf("u1")
	_, _, err = s.Start(t.Context(), lost)
	wantFault(t, "Start", err)
	p.Hold(false)

	// The refresh may have happened, and no more than once.
	if g := generationOf(t, direct, key); g != 2 {
		t.Errorf("generation %d, want 2: done once, never tried again", g)
	}
	if _, _, err := s.Get(t.Context(), key); err != nil {
		t.Errorf("Get afterwards: %v", err)
	}
}

func TestMalformedReplies(t *testing.T) {
	id := idText(storetest.NewID())
	for _, answer := range []string{
		"$-1\r\n", "*-1\r\n", "_\r\n", ":0\r\n", "+OK\r\n", "+absent\r\n", "$6\r\nabsent\r\n", "*0\r\n", "*1\r\n$-1\r\n", "*1\r\n:1\r\n",
		"*1\r\n$2\r\nok\r\n", "*1\r\n$7\r\nunheard\r\n", "*1\r\n$7\r\nversion\r\n", "*2\r\n$7\r\nversion\r\n:2\r\n", "*1\r\n*1\r\n$6\r\nabsent\r\n",
		"*2\r\n$2\r\nok\r\n*1\r\n:1\r\n", "*2\r\n$2\r\nok\r\n*2\r\n:1\r\n$3\r\nabc\r\n", "*2\r\n$2\r\nok\r\n*2\r\n:9\r\n$22\r\n" + id + "\r\n",
		"*3\r\n$2\r\nok\r\n$1\r\n5\r\n*0\r\n", "*3\r\n$2\r\nok\r\n$1\r\n0\r\n*0\r\n", "*4\r\n$2\r\nok\r\n$1\r\n5\r\n*1\r\n$1\r\n1\r\n*0\r\n",
		"-ERR something\r\n", "-OOM no\r\n", "-WRONGTYPE no\r\n", "-LOADING wait\r\n", "-READONLY no\r\n", "garbage\r\n", "*2\r\n$2\r\nok\r\n", "",
	} {
		addr := fakeServer(t, answer)
		s := openWith(t, redisconn.Options{Address: addr, Timeout: 100 * time.Millisecond}, nil)
		key := startOf("u1").Key
		uses := everyUse(s, key)
		_, _, uses["Start"] = s.Start(t.Context(), startOf("u1"), sessionstore.End{User: "u2"})
		_, uses["End"] = s.End(t.Context(), "example.com", sessionstore.End{User: "u1"})
		_, uses["List"] = s.List(t.Context(), "example.com", "u1")
		_, uses["Remove"] = s.Remove(t.Context(), key)
		for name, err := range uses {
			wantFault(t, fmt.Sprintf("%s answered %q", name, answer), err)
		}
	}
}

// fakeServer answers scripts with the same bytes and everything else with an
// error, which the client takes for an old server. No answer: it hangs up.
func fakeServer(t *testing.T, answer string) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(10 * time.Second))
				serveFake(c, answer)
			})
		}
	})
	return l.Addr().String()
}

func serveFake(c net.Conn, answer string) {
	r := bufio.NewReader(c)
	for {
		command, err := readCommand(r)
		if err != nil {
			return
		}
		text := "-ERR unknown command\r\n"
		if strings.HasPrefix(strings.ToLower(command), "eval") {
			if text = answer; text == "" {
				return
			}
		}
		if _, err := io.WriteString(c, text); err != nil {
			return
		}
	}
}

// readCommand reads a command and returns its name.
func readCommand(r *bufio.Reader) (name string, err error) {
	n, err := readCount(r)
	for i := 0; i < n && err == nil; i++ {
		var size int
		if size, err = readCount(r); err != nil {
			return "", err
		}
		word := make([]byte, size+2)
		if _, err = io.ReadFull(r, word); err == nil && i == 0 {
			name = string(word[:size])
		}
	}
	return name, err
}

func readCount(r *bufio.Reader) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil || len(line) < 2 {
		return 0, errors.Join(err, io.ErrUnexpectedEOF)
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}
