package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/gatehouse-gateway/gatehouse/internal/redisconn"
	"github.com/gatehouse-gateway/gatehouse/internal/servers"
	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore/storetest"
)

// server is shared by the tests that do it no harm.
var server *servers.Redis

func TestMain(m *testing.M) {
	logging.Disable() // the client's own lines about servers that tests stop
	servers.MainRedis(m, &server)
}

func open(t testing.TB, o redisconn.Options) *Store {
	t.Helper()
	if o.Prefix == "" {
		o.Prefix = "test" + strconv.FormatInt(prefixes.Add(1), 10) + ":"
	}
	conn, err := redisconn.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return New(conn)
}

var prefixes atomic.Int64

func openShared(t testing.TB) *Store {
	return open(t, redisconn.Options{Address: server.Addr, Timeout: 10 * time.Second})
}

func TestConformance(t *testing.T) {
	prefix := "conformance:"
	storetest.Run(t, func(t *testing.T) limitstore.Store {
		return open(t, redisconn.Options{Address: server.Addr, Timeout: 10 * time.Second, Prefix: prefix})
	})
}

func name(s *Store, k limitstore.Key) string { return string(appendName(nil, s.work.prefix, k)) }

func TestARefusalWritesNothing(t *testing.T) {
	s := openShared(t)
	client := s.conn.Client()
	full, free := storetest.Limit(1, 1), storetest.Limit(5, 1)
	storetest.Ask(t, s, full, free)
	dump := func() string {
		var b strings.Builder
		for _, l := range []limitstore.Limit{full, free} {
			v, err := client.Dump(t.Context(), name(s, l.Key)).Result()
			if err != nil {
				t.Fatal(err)
			}
			at, err := client.Do(t.Context(), "PEXPIRETIME", name(s, l.Key)).Int64()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "%q %d\n", v, at)
		}
		return b.String()
	}
	before, sets := dump(), commandCalls(t, s, "set")
	for range 5 {
		if storetest.Ask(t, s, free, full).Admitted {
			t.Fatal("admitted beyond the limit")
		}
	}
	if after := dump(); after != before {
		t.Errorf("a refusal changed the stored values:\n%s\n%s", before, after)
	}
	if got := commandCalls(t, s, "set"); got != sets {
		t.Errorf("refusals sent %d SETs", got-sets)
	}
	if got := storetest.Ask(t, s, withCost(full, 0)); !got.Admitted || commandCalls(t, s, "set") != sets {
		t.Error("a request with cost 0 was refused or wrote something")
	}
}

func withCost(l limitstore.Limit, cost int64) limitstore.Limit {
	l.Cost = cost
	return l
}

// commandCalls returns how often the server has run the command.
func commandCalls(t testing.TB, s *Store, command string) int64 {
	t.Helper()
	info, err := s.conn.Client().Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(info, "\r\n") {
		if rest, ok := strings.CutPrefix(line, "cmdstat_"+command+":calls="); ok {
			n, _, _ := strings.Cut(rest, ",")
			calls, err := strconv.ParseInt(n, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return calls
		}
	}
	return 0
}

func TestEveryKeyExpires(t *testing.T) {
	s := openShared(t)
	client := s.conn.Client()
	for _, window := range []time.Duration{time.Millisecond, 50 * time.Millisecond, time.Second, time.Hour, limitstore.MaxWindow} {
		l := storetest.Limit(1000, 1)
		l.Window = window
		for range 3 {
			storetest.Ask(t, s, l)
			ttl, err := client.PTTL(t.Context(), name(s, l.Key)).Result()
			if err != nil || ttl <= 0 || ttl > window+time.Second {
				t.Errorf("window %v: time to live %v (%v), want at most a second more", window, ttl, err)
			}
		}
	}
	short := openShared(t)
	for range 20 {
		l := storetest.Limit(3, 1)
		l.Window = 20 * time.Millisecond
		storetest.Ask(t, short, l, withWindow(storetest.Limit(3, 2), 10*time.Millisecond))
	}
	eventually(t, "the store is empty", func() bool {
		keys, err := client.Keys(t.Context(), short.work.prefix+"*").Result()
		return err == nil && len(keys) == 0
	})
}

func withWindow(l limitstore.Limit, w time.Duration) limitstore.Limit {
	l.Window = w
	return l
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

func TestForeignValuesAreFaultsOfTheirKeyAlone(t *testing.T) {
	s := openShared(t)
	client := s.conn.Client()
	for _, value := range []string{"", "7", "a:b", "1:2:3", "-1:2", "0x10:1", "1e3:1", " 1:1", "1:1\n", "99999999999999999:1", "1:99999999999999999", "\x00\xff"} {
		l := storetest.Limit(5, 1)
		if err := client.Set(t.Context(), name(s, l.Key), value, time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := storetest.Try(t.Context(), s, storetest.Limit(1, 1), l); !errors.Is(err, limitstore.ErrCorrupt) {
			t.Errorf("%q: got %v, want ErrCorrupt", value, err)
		}
		if got := client.Get(t.Context(), name(s, l.Key)).Val(); got != value {
			t.Errorf("%q was overwritten with %q", value, got)
		}
	}
	list, good := storetest.Limit(5, 1), storetest.Limit(5, 1)
	if err := client.LPush(t.Context(), name(s, list.Key), "x").Err(); err != nil {
		t.Fatal(err)
	}
	errs := together(t, s, []limitstore.Limit{list, good}, []limitstore.Limit{good})
	if !errors.Is(errs[0], limitstore.ErrCorrupt) || errs[1] != nil {
		t.Errorf("got %v; want ErrCorrupt for the request with the list, nil for the other", errs)
	}
	if d := storetest.Ask(t, s, good); d.States[0].Remaining != 3 {
		t.Errorf("the request with a fault was charged: %d left, want 3", d.States[0].Remaining)
	}
}

// together sends the requests in one command and returns their errors.
func together(t *testing.T, s *Store, requests ...[]limitstore.Limit) []error {
	t.Helper()
	members := make([]*waiter, len(requests))
	for i, limits := range requests {
		members[i] = newWaiter()
		members[i].ask(&limitstore.Decision{Limits: limits, States: make([]limitstore.State, len(limits))}, time.Now().Add(10*time.Second))
	}
	s.work.reset()
	defer s.work.reset()
	for _, m := range members {
		s.work.add(m)
	}
	reply, err := s.call(time.Now().Add(10 * time.Second))
	if err == nil {
		err = s.work.give(reply)
	}
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, len(members))
	for i, m := range members {
		errs[i] = m.err
	}
	return errs
}

func TestOneKeyWithTwoWindowsIsInvalid(t *testing.T) {
	s := openShared(t)
	l := storetest.Limit(5, 1)
	errs := together(t, s, []limitstore.Limit{l}, []limitstore.Limit{withWindow(l, time.Hour)}, []limitstore.Limit{l})
	if errs[0] != nil || errs[2] != nil || !errors.Is(errs[1], limitstore.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid for the second alone", errs)
	}
}

// TestBatchesShareCommands checks that concurrent requests go together and
// that equal ones are told apart only by their place in the line.
func TestBatchesShareCommands(t *testing.T) {
	s := openShared(t)
	hot := storetest.Limit(40, 1)
	before := commandCalls(t, s, "evalsha")
	const callers, rounds = 64, 20
	var admitted atomic.Int64
	seen := make([]atomic.Int64, 41)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range rounds {
				d, err := storetest.Try(t.Context(), s, hot)
				if err != nil {
					t.Error(err)
				} else if d.Admitted {
					admitted.Add(1)
					seen[d.States[0].Remaining].Add(1)
				}
			}
		})
	}
	wg.Wait()
	if got := admitted.Load(); got != 40 {
		t.Errorf("admitted %d, want 40", got)
	}
	for left := range 40 {
		if got := seen[left].Load(); got != 1 {
			t.Errorf("%d admitted requests were told that %d are left, want 1", got, left)
		}
	}
	if commands := commandCalls(t, s, "evalsha") - before; commands > callers*rounds/2 {
		t.Errorf("%d commands for %d decisions", commands, callers*rounds)
	}
}

func TestAtMostOneCommandARequest(t *testing.T) {
	s := openShared(t)
	storetest.Ask(t, s, storetest.Limit(1, 1)) // the server knows the script now
	before := commandCalls(t, s, "evalsha") + commandCalls(t, s, "eval")
	for range 10 {
		storetest.Ask(t, s, storetest.Limit(9, 1), storetest.Limit(9, 2), storetest.Limit(9, 3))
	}
	if got := commandCalls(t, s, "evalsha") + commandCalls(t, s, "eval") - before; got != 10 {
		t.Errorf("%d commands for 10 requests", got)
	}
}

func TestALargeLineGoesInSeveralCommands(t *testing.T) {
	s := openShared(t)
	var wg sync.WaitGroup
	var admitted atomic.Int64
	l := storetest.Limit(700, 1)
	for range 3 * maxRequests {
		wg.Go(func() {
			limits := []limitstore.Limit{l}
			for range 9 {
				limits = append(limits, storetest.Limit(1, 1))
			}
			if d, err := storetest.Try(t.Context(), s, limits...); err != nil {
				t.Error(err)
			} else if d.Admitted {
				admitted.Add(1)
			}
		})
	}
	wg.Wait()
	if got := admitted.Load(); got != 700 {
		t.Errorf("admitted %d, want 700", got)
	}
}

func TestForgottenScriptUnderLoad(t *testing.T) {
	private := servers.StartRedis(t)
	o := redisconn.Options{Address: private.Addr, Timeout: 10 * time.Second, Prefix: "flush:"}
	gateways := []*Store{open(t, o), open(t, o)}
	l := storetest.Limit(100, 1)
	ctx, stop := context.WithCancel(t.Context())
	var flusher, wg sync.WaitGroup
	flusher.Go(func() {
		for ctx.Err() == nil {
			_ = gateways[0].conn.Client().ScriptFlush(ctx).Err()
		}
	})
	var admitted atomic.Int64
	for i := range 600 {
		wg.Go(func() {
			if d, err := storetest.Try(t.Context(), gateways[i%2], l); err != nil {
				t.Error(err)
			} else if d.Admitted {
				admitted.Add(1)
			}
		})
	}
	wg.Wait()
	stop()
	flusher.Wait()
	if got := admitted.Load(); got != 100 {
		t.Errorf("admitted %d, want 100", got)
	}
}

func TestLeastRightsSuffice(t *testing.T) {
	private := servers.StartRedis(t)
	admin := open(t, redisconn.Options{Address: private.Addr})
	for user, rights := range map[string][]any{
		"limits": {"on", ">secret", "~app:limit:*", "-@all", "+evalsha", "+eval", "+time", "+get", "+set"},
		"reader": {"on", ">secret", "~app:limit:*", "-@all", "+evalsha", "+eval", "+time", "+get"},
	} {
		if err := admin.conn.Client().Do(t.Context(), append([]any{"ACL", "SETUSER", user}, rights...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	as := func(user, password, prefix string) *Store {
		return open(t, redisconn.Options{Address: private.Addr, Username: user, Password: password, Prefix: prefix, Timeout: 5 * time.Second})
	}
	l := storetest.Limit(1, 1)
	s := as("limits", "secret", "app:")
	if !storetest.Ask(t, s, l).Admitted || storetest.Ask(t, s, l).Admitted {
		t.Error("wrong decisions with the least rights")
	}
	for wantText, s := range map[string]*Store{
		"lacks a right":       as("limits", "secret", "other:"),
		"the ACL user":        as("reader", "secret", "app:"),
		"user or the passwor": as("limits", "wrong", "app:"),
	} {
		if _, err := storetest.Try(t.Context(), s, storetest.Limit(1, 1)); err == nil || !strings.Contains(err.Error(), wantText) {
			t.Errorf("got %v, want an error that says %q", err, wantText)
		}
	}
}

func TestServerFaultsAreErrors(t *testing.T) {
	private := servers.StartRedis(t)
	s := open(t, redisconn.Options{Address: private.Addr, Timeout: 5 * time.Second})
	client := s.conn.Client()
	known := storetest.Limit(1, 1)
	storetest.Ask(t, s, known)
	for _, fault := range []struct {
		text, option, on, off string
		refusals              bool // whether refusals are still decided
	}{
		{"maxmemory", "maxmemory", "1", "0", true},
		{"replicas", "min-replicas-to-write", "3", "0", false},
	} {
		if err := client.ConfigSet(t.Context(), fault.option, fault.on).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := storetest.Try(t.Context(), s, storetest.Limit(1, 1)); err == nil || !strings.Contains(err.Error(), fault.text) {
			t.Errorf("%s: got %v, want an error that says %q", fault.option, err, fault.text)
		}
		if d, err := storetest.Try(t.Context(), s, known); fault.refusals && (err != nil || d.Admitted) {
			t.Errorf("%s: a refusal needs no memory: got %v", fault.option, err)
		}
		if err := client.ConfigSet(t.Context(), fault.option, fault.off).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.SlaveOf(t.Context(), "127.0.0.1", strconv.Itoa(servers.FreePort(t))).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := storetest.Try(t.Context(), s, storetest.Limit(1, 1)); err == nil || !strings.Contains(err.Error(), "replica") {
		t.Errorf("on a replica: got %v", err)
	}
}

// TestPausedServer checks that every request gets its answer in time, however
// many wait, that those which had not been sent are not charged, and that all
// goes on afterwards.
func TestPausedServer(t *testing.T) {
	private := servers.StartRedis(t)
	const timeout = 200 * time.Millisecond
	s := open(t, redisconn.Options{Address: private.Addr, Timeout: timeout})
	l := storetest.Limit(1_000_000, 1)
	storetest.Ask(t, s, l)
	if err := private.Pause(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var slowest atomic.Int64
	for i := range 200 {
		wg.Go(func() {
			for range i % 3 { // some come late
				time.Sleep(timeout / 3)
			}
			d := &limitstore.Decision{Limits: []limitstore.Limit{l}, States: make([]limitstore.State, 1)}
			began := time.Now()
			if err := s.Decide(t.Context(), d); err == nil {
				t.Error("an answer from a stopped server")
			}
			for took := int64(time.Since(began)); ; {
				if old := slowest.Load(); took <= old || slowest.CompareAndSwap(old, took) {
					return
				}
			}
		})
	}
	wg.Wait()
	if got := time.Duration(slowest.Load()); got > timeout+150*time.Millisecond {
		t.Errorf("a request waited %v, want %v and little more", got, timeout)
	}
	if err := private.Resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "decisions work again", func() bool {
		_, err := storetest.Try(t.Context(), s, l)
		return err == nil
	})
}

func TestRestartedServer(t *testing.T) {
	private := servers.StartRedis(t)
	s := open(t, redisconn.Options{Address: private.Addr, Timeout: 5 * time.Second})
	l := storetest.Limit(1, 1)
	storetest.Ask(t, s, l)
	private.Kill()
	if _, err := storetest.Try(t.Context(), s, l); err == nil {
		t.Fatal("an answer from a dead server")
	}
	if err := private.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "decisions work again", func() bool {
		d, err := storetest.Try(t.Context(), s, l)
		return err == nil && d.Admitted
	})
}

// TestLeavingTheLine lets callers leave at every moment. Whoever leaves before
// the command goes is not charged; what is charged is at most what was sent.
func TestLeavingTheLine(t *testing.T) {
	private := servers.StartRedis(t)
	s := open(t, redisconn.Options{Address: private.Addr, Timeout: 10 * time.Second})
	l := storetest.Limit(1_000_000, 1)
	storetest.Ask(t, s, withCost(l, 0))
	if err := private.Pause(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = storetest.Try(context.Background(), s, l) }) // leads, and is sent
	eventually(t, "the command is under way", func() bool {
		s.line.mu.Lock()
		defer s.line.mu.Unlock()
		return s.line.led && len(s.line.waiting) == 0
	})
	ctx, cancel := context.WithCancel(t.Context())
	for range 50 {
		wg.Go(func() {
			if _, err := storetest.Try(ctx, s, l); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want context.Canceled", err)
			}
		})
	}
	eventually(t, "the others wait", func() bool {
		s.line.mu.Lock()
		defer s.line.mu.Unlock()
		return len(s.line.waiting) == 50
	})
	cancel()
	eventually(t, "all but the leader have left", func() bool {
		s.line.mu.Lock()
		defer s.line.mu.Unlock()
		return len(s.line.waiting) == 0
	})
	if err := private.Resume(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if d := storetest.Ask(t, s, l); d.States[0].Remaining != 1_000_000-2 {
		t.Errorf("%d were charged, want the leader and this one", 1_000_000-d.States[0].Remaining)
	}
}

func TestLeavingAtAnyMoment(t *testing.T) {
	s := openShared(t)
	l := storetest.Limit(1_000_000, 1)
	var wg sync.WaitGroup
	var admitted, unknown atomic.Int64
	for i := range 32 {
		wg.Go(func() {
			for j := range 50 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration((i*7+j*13)%400)*time.Microsecond)
				d, err := storetest.Try(ctx, s, l)
				cancel()
				switch {
				case err == nil && d.Admitted:
					admitted.Add(1)
				case errors.Is(err, context.DeadlineExceeded):
					unknown.Add(1)
				default:
					t.Errorf("got %v, %v", d.Admitted, err)
				}
			}
		})
	}
	wg.Wait()
	charged := 1_000_000 - storetest.Ask(t, s, withCost(l, 0)).States[0].Remaining
	if charged < admitted.Load() || charged > admitted.Load()+unknown.Load() {
		t.Errorf("charged %d for %d admitted and %d that left", charged, admitted.Load(), unknown.Load())
	}
	s.line.mu.Lock()
	defer s.line.mu.Unlock()
	if s.line.led || len(s.line.waiting) != 0 {
		t.Errorf("the line is not at rest: led %v, %d wait", s.line.led, len(s.line.waiting))
	}
}
