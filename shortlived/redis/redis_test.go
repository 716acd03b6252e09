package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse-gateway/gatehouse/internal/redisconn"
	"github.com/gatehouse-gateway/gatehouse/internal/servers"
	"github.com/gatehouse-gateway/gatehouse/shortlived"
	"github.com/gatehouse-gateway/gatehouse/shortlived/storetest"
)

var server *servers.Redis

func TestMain(m *testing.M) { servers.MainRedis(m, &server) }

var prefixes atomic.Int64

// newPrefix returns a key prefix that no other test has.
func newPrefix() string { return fmt.Sprintf("test%d:", prefixes.Add(1)) }

// patience is the timeout of connections to a server that should answer, on a
// machine that may be busy.
const patience = 5 * time.Second

func open(t testing.TB, o redisconn.Options) (*Store, *redisconn.Conn) {
	t.Helper()
	conn, err := redisconn.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return New(Options{Conn: conn}), conn
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) []shortlived.Store {
		prefix := newPrefix()
		a, _ := open(t, redisconn.Options{Address: server.Addr, Prefix: prefix, Timeout: patience})
		b, _ := open(t, redisconn.Options{Address: server.Addr, Prefix: prefix, Timeout: patience})
		return []shortlived.Store{a, b}
	})
}

func TestLostReplies(t *testing.T) {
	storetest.RunLost(t, func(t *testing.T) storetest.Flaky {
		prefix, p := newPrefix(), servers.StartProxy(t, server.Addr)
		direct, conn := open(t, redisconn.Options{Address: server.Addr, Prefix: prefix, Timeout: patience})
		lossy, _ := open(t, redisconn.Options{Address: p.Addr, Prefix: prefix, Timeout: patience, PoolSize: 1})
		return storetest.Flaky{
			Direct: direct, Lossy: lossy, Down: p.Down,
			LoseNextReply: func() {
				// The connection is made and the scripts are known, so the next
				// thing the server says is the reply.
				if _, err := lossy.Get(t.Context(), "warm"); !errors.Is(err, shortlived.ErrNotFound) {
					t.Fatalf("warming up: %v", err)
				}
				for _, script := range []*redis.Script{tryAddScript, incrementScript} {
					if err := script.Load(t.Context(), conn.Client()).Err(); err != nil {
						t.Fatal(err)
					}
				}
				p.LoseNext()
			},
		}
	})
}

// TestLateReplyIsNobodys delays a reply beyond the timeout and lets it through
// afterwards: it must not be taken for the reply of a later command.
func TestLateReplyIsNobodys(t *testing.T) {
	p := servers.StartProxy(t, server.Addr)
	s, _ := open(t, redisconn.Options{Address: p.Addr, Prefix: newPrefix(), Timeout: 300 * time.Millisecond, PoolSize: 1})
	await(t, "a connection", func() bool {
		_, err := s.TryAdd(t.Context(), "one", []byte("1st"), time.Hour)
		return err == nil
	})
	p.Hold(true)
	begin := time.Now()
	v, err := s.Get(t.Context(), "one")
	if err == nil || errors.Is(err, shortlived.ErrNotFound) {
		t.Errorf("Get without a reply: got %q, %v, want a fault", v, err)
	}
	if took := time.Since(begin); took > patience {
		t.Errorf("Get without a reply took %v", took)
	}
	p.Hold(false)
	await(t, "an answer", func() bool {
		v, err := s.Get(t.Context(), "two")
		if err == nil {
			t.Fatalf("Get of what is absent: got the other key's %q", v)
		}
		return errors.Is(err, shortlived.ErrNotFound)
	})
}

func TestAServerThatHangs(t *testing.T) {
	hung := servers.StartRedis(t)
	s, _ := open(t, redisconn.Options{Address: hung.Addr, Timeout: 200 * time.Millisecond})
	await(t, "a connection", func() bool {
		_, err := s.TryAdd(t.Context(), "k", []byte("v"), time.Hour)
		return err == nil
	})
	if err := hung.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for name, ctx := range map[string]context.Context{"by its own bound": t.Context(), "by the caller's": ctx} {
		begin := time.Now()
		if _, err := s.Get(ctx, "k"); err == nil || errors.Is(err, shortlived.ErrNotFound) {
			t.Errorf("%s: got %v, want a fault", name, err)
		}
		if took := time.Since(begin); took > patience {
			t.Errorf("%s: took %v", name, took)
		}
	}
	if err := hung.Resume(); err != nil {
		t.Fatal(err)
	}
	await(t, "the server to answer again", func() bool {
		v, err := s.Get(t.Context(), "k")
		return err == nil && string(v) == "v"
	})
}

func TestRestartForgetsScriptsNotCallers(t *testing.T) {
	r := servers.StartRedis(t)
	s, _ := open(t, redisconn.Options{Address: r.Addr, Timeout: patience})
	for range 2 {
		await(t, "the server", func() bool {
			n, err := s.Increment(t.Context(), "n", 1, time.Hour)
			return err == nil && n == 1
		})
		r.Kill()
		if err := r.Start(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOutOfMemoryIsFull(t *testing.T) {
	r := servers.StartRedis(t, "--maxmemory", "4mb", "--maxmemory-policy", "noeviction")
	s, _ := open(t, redisconn.Options{Address: r.Addr, Timeout: patience})
	if _, err := s.Increment(t.Context(), "count", 1, time.Hour); err != nil {
		t.Fatal(err)
	}
	// Large values first, then small ones into what is left: the server counts
	// the command that is under way too.
	for size := 256 << 10; size > 0; size /= 16 {
		var err error
		for i := 0; err == nil && i < 10_000; i++ {
			_, err = s.TryAdd(t.Context(), fmt.Sprint(size, "-", i), make([]byte, size), time.Hour)
		}
		if !errors.Is(err, shortlived.ErrFull) {
			t.Fatalf("TryAdd of %d bytes: got %v, want ErrFull", size, err)
		}
	}
	for _, key := range []string{"count", "new"} {
		if _, err := s.Increment(t.Context(), key, 1, time.Hour); !errors.Is(err, shortlived.ErrFull) {
			t.Errorf("Increment of %s: got %v, want ErrFull", key, err)
		}
	}
	if v, err := s.Take(t.Context(), fmt.Sprint(256<<10, "-0")); err != nil || len(v) != 256<<10 {
		t.Errorf("Take: got %d bytes, %v", len(v), err)
	}
}

// TestUnreadableValuesAreAbsent puts values there that another version, or
// another program, might write.
func TestUnreadableValuesAreAbsent(t *testing.T) {
	for _, stored := range []string{"B2", "B", "", "\x00", "text", "007", "1.5", "-"} {
		t.Run(fmt.Sprintf("%q", stored), func(t *testing.T) {
			prefix := newPrefix()
			_, conn := open(t, redisconn.Options{Address: server.Addr, Prefix: prefix, Timeout: patience})
			var log bytes.Buffer
			s := New(Options{Conn: conn, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			put := func() {
				t.Helper()
				if err := conn.Client().Set(t.Context(), prefix+Namespace+"secret-key", stored, time.Hour).Err(); err != nil {
					t.Fatal(err)
				}
			}
			put()
			if v, err := s.Get(t.Context(), "secret-key"); !errors.Is(err, shortlived.ErrNotFound) || v != nil {
				t.Errorf("Get: got %q, %v, want ErrNotFound", v, err)
			}
			if added, err := s.TryAdd(t.Context(), "secret-key", []byte("new"), time.Hour); err != nil || !added {
				t.Errorf("TryAdd: got %v, %v, want true", added, err)
			}
			if v, err := s.Take(t.Context(), "secret-key"); err != nil || string(v) != "new" {
				t.Errorf("Take of what was added: got %q, %v", v, err)
			}
			put()
			if n, err := s.Increment(t.Context(), "secret-key", 3, time.Minute); err != nil || n != 3 {
				t.Errorf("Increment: got %d, %v, want 3", n, err)
			}
			if ttl := conn.Client().PTTL(t.Context(), prefix+Namespace+"secret-key").Val(); ttl > time.Minute || ttl <= 0 {
				t.Errorf("got a lifetime of %v, want at most a minute", ttl)
			}
			put()
			if v, err := s.Take(t.Context(), "secret-key"); !errors.Is(err, shortlived.ErrNotFound) || v != nil {
				t.Errorf("Take: got %q, %v, want ErrNotFound", v, err)
			}
			if got := strings.Count(log.String(), "level=WARN"); got != 4 || s.Unreadable() != 4 {
				t.Errorf("got %d warnings and a count of %d, want 4:\n%s", got, s.Unreadable(), &log)
			}
			if strings.Contains(log.String(), "secret-key") {
				t.Errorf("the log names the key:\n%s", &log)
			}
		})
	}
}

func TestForeignTypesAreLeftAlone(t *testing.T) {
	prefix := newPrefix()
	s, conn := open(t, redisconn.Options{Address: server.Addr, Prefix: prefix, Timeout: patience})
	if err := conn.Client().RPush(t.Context(), prefix+Namespace+"list", "a", "b").Err(); err != nil {
		t.Fatal(err)
	}
	_, addErr := s.TryAdd(t.Context(), "list", nil, time.Hour)
	_, getErr := s.Get(t.Context(), "list")
	_, takeErr := s.Take(t.Context(), "list")
	_, incErr := s.Increment(t.Context(), "list", 1, time.Hour)
	for op, err := range map[string]error{"TryAdd": addErr, "Get": getErr, "Take": takeErr, "Increment": incErr} {
		if err == nil || errors.Is(err, shortlived.ErrNotFound) {
			t.Errorf("%s of a list: got %v, want a fault", op, err)
		}
	}
	if n := conn.Client().LLen(t.Context(), prefix+Namespace+"list").Val(); n != 2 {
		t.Errorf("got %d elements left, want 2", n)
	}
}

// TestEveryKeyExpires looks for keys without an end, which would stay forever.
func TestEveryKeyExpires(t *testing.T) {
	prefix := newPrefix()
	s, conn := open(t, redisconn.Options{Address: server.Addr, Prefix: prefix, Timeout: patience})
	ctx := t.Context()
	_, addErr := s.TryAdd(ctx, "value", []byte("v"), time.Minute)
	_, countErr := s.TryAdd(ctx, "count", []byte("5"), time.Minute)
	_, incErr := s.Increment(ctx, "count", 1, time.Minute)
	_, newErr := s.Increment(ctx, "new", 1, time.Minute)
	if err := errors.Join(addErr, countErr, incErr, newErr); err != nil {
		t.Fatal(err)
	}
	keys := conn.Client().Keys(ctx, prefix+"*").Val()
	if len(keys) != 3 {
		t.Errorf("got the keys %q, want three", keys)
	}
	for _, key := range keys {
		if ttl := conn.Client().PTTL(ctx, key).Val(); ttl <= 0 || ttl > time.Minute {
			t.Errorf("%s: got a lifetime of %v, want up to a minute", key, ttl)
		}
	}
}

// roundTrips counts what a client sends.
type roundTrips struct{ n atomic.Int32 }

func (r *roundTrips) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (r *roundTrips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { r.n.Add(1); return next(ctx, cmd) }
}

func (r *roundTrips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { r.n.Add(1); return next(ctx, cmds) }
}

func TestOneRoundTripEach(t *testing.T) {
	s, conn := open(t, redisconn.Options{Address: server.Addr, Prefix: newPrefix(), Timeout: patience})
	ctx := t.Context()
	ops := map[string]func() error{
		"TryAdd":    func() error { _, err := s.TryAdd(ctx, "k", nil, time.Hour); return err },
		"Get":       func() error { _, err := s.Get(ctx, "n"); return err },
		"Take":      func() error { _, err := s.Take(ctx, "n"); return err },
		"Remove":    func() error { return s.Remove(ctx, "k") },
		"Increment": func() error { _, err := s.Increment(ctx, "n", 1, time.Hour); return err },
	}
	for _, op := range []string{"TryAdd", "Increment"} { // the server learns the scripts
		if err := ops[op](); err != nil {
			t.Fatal(err)
		}
	}
	var trips roundTrips
	conn.Client().AddHook(&trips)
	for _, op := range []string{"TryAdd", "TryAdd", "Increment", "Get", "Take", "Remove"} {
		trips.n.Store(0)
		if err := ops[op](); err != nil || trips.n.Load() != 1 {
			t.Errorf("%s: got %d round trips, %v, want 1", op, trips.n.Load(), err)
		}
	}
}

// TestRights runs the store with nothing but the rights that the documentation
// asks for.
func TestRights(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "\nuser gateway ")
	rights, _, ok := strings.Cut(rest, "\n")
	if !ok || !strings.Contains(rights, "~gatehouse:*") {
		t.Fatalf("docs/operations.md has no rights of a user named gateway: got %q", rights)
	}
	command := []any{"ACL", "SETUSER", "gateway"}
	for right := range strings.FieldsSeq(rights) {
		command = append(command, right)
	}
	r := servers.StartRedis(t)
	_, admin := open(t, redisconn.Options{Address: r.Addr, Timeout: patience})
	if err := admin.Client().Do(t.Context(), command...).Err(); err != nil {
		t.Fatal(err)
	}
	storetest.Run(t, func(t *testing.T) []shortlived.Store {
		s, _ := open(t, redisconn.Options{
			Address: r.Addr, Username: "gateway", Password: "secret",
			Prefix: "gatehouse:" + newPrefix(), Timeout: patience,
		})
		return []shortlived.Store{s}
	})
}

func TestErrorsNameNoKeysOrValues(t *testing.T) {
	s, _ := open(t, redisconn.Options{Address: fmt.Sprint("127.0.0.1:", servers.FreePort(t)), Prefix: newPrefix()})
	_, addErr := s.TryAdd(t.Context(), "secret-key", []byte("secret-value"), time.Hour)
	_, getErr := s.Get(t.Context(), "secret-key")
	for _, err := range []error{addErr, getErr} {
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v, want an error without the key and value", err)
		}
	}
}

// await polls until the condition holds.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func BenchmarkIncrementOneKey(b *testing.B) {
	s, _ := open(b, redisconn.Options{Address: server.Addr, Prefix: newPrefix(), Timeout: patience})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Increment(b.Context(), "key", 1, time.Minute); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkIncrementParallel(b *testing.B) {
	s, _ := open(b, redisconn.Options{Address: server.Addr, Prefix: newPrefix(), Timeout: patience})
	b.ReportAllocs()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if _, err := s.Increment(b.Context(), fmt.Sprint("key", i%1000), 1, time.Minute); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkAddGetTake(b *testing.B) {
	s, _ := open(b, redisconn.Options{Address: server.Addr, Prefix: newPrefix(), Timeout: patience})
	value := make([]byte, 200)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = s.TryAdd(b.Context(), "key", value, time.Minute)
		_, _ = s.Get(b.Context(), "key")
		if _, err := s.Take(b.Context(), "key"); err != nil {
			b.Fatal(err)
		}
	}
}
