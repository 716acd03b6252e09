package caddymodule

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gatehouse-gateway/gatehouse/internal/redisconn"
	"github.com/gatehouse-gateway/gatehouse/internal/servers"
)

// lines is a log that can be read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) await(t *testing.T, what string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		l.mu.Lock()
		found := strings.Contains(l.text.String(), what)
		l.mu.Unlock()
		if found {
			return
		}
	}
	t.Fatalf("the log does not say %q: %s", what, l.text.String())
}

// mayEvict reads the metric, by server.
func mayEvict(t *testing.T) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(redisMayEvict)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			values[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
	}
	return values
}

func TestEvictingRedisIsNamed(t *testing.T) {
	r := servers.StartRedis(t, "--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")
	watch := func(user string) (*lines, *policyWatch) {
		conn, err := redisconn.Open(redisconn.Options{Address: r.Addr, Username: user, Password: "p"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		log := new(lines)
		return log, watchPolicy(conn, r.Addr, slog.New(slog.NewTextHandler(log, nil)))
	}
	admin, err := redisconn.Open(redisconn.Options{Address: r.Addr})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	for _, user := range []string{"docs on >p resetkeys ~gatehouse:* resetchannels -@all +@connection +@read +@write +@scripting +time -@dangerous +info", "poor on >p -@all +ping"} {
		args := []any{"ACL", "SETUSER"}
		for word := range strings.FieldsSeq(user) {
			args = append(args, word)
		}
		if err := admin.Client().Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	log, w := watch("docs")
	log.await(t, "maxmemory_policy=allkeys-lru")
	if got := mayEvict(t)[r.Addr]; got != 1 {
		t.Errorf("metric %v, want 1", got)
	}
	_ = w.stop()
	if n := len(mayEvict(t)); n != 0 {
		t.Errorf("%d series after the end", n)
	}
	log, w = watch("poor")
	log.await(t, "may not ask for INFO")
	_ = w.stop()
}

func TestEvictionIsWatchedFromTheStart(t *testing.T) {
	isolate(t)
	r := servers.StartRedis(t, "--maxmemory-policy", "noeviction")
	config := func(extra string) string {
		return fmt.Sprintf("{\n%s\ngatehouse {\n store redis redis://%s/0\n}\n}\nhttp://localhost:9080 {\n client_rate_limit {\n zone a {\n window 1m\n events 5\n}\n}\n%s\n}", globals, r.Addr, extra)
	}
	if err := validate(config("")); err != nil {
		t.Fatal(err)
	}
	if n := len(mayEvict(t)); n != 0 {
		t.Errorf("validate began the watch: %d series", n)
	}
	start(t, config(""))
	start(t, config("respond \"again\"")) // a reload keeps it
	for deadline := time.Now().Add(10 * time.Second); len(mayEvict(t)) != 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the server was not asked")
		}
	}
	if got := mayEvict(t)[r.Addr]; got != 0 {
		t.Errorf("metric %v, want 0", got)
	}
}
