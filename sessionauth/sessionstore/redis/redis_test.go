package redis

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/redisconn"
	"github.com/gatehouse-gateway/gatehouse/internal/servers"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore/storetest"
)

var prefixes atomic.Int64

// open opens a store with a prefix of its own, or with the one given.
func open(t testing.TB, addr, prefix string) *Store {
	t.Helper()
	return openWith(t, redisconn.Options{Address: addr, Prefix: prefix}, nil)
}

func openWith(t testing.TB, o redisconn.Options, log *slog.Logger) *Store {
	t.Helper()
	if o.Prefix == "" {
		o.Prefix = fmt.Sprintf("test%d:", prefixes.Add(1))
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Second // a busy machine is no outage
	}
	conn, err := redisconn.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return New(Options{Conn: conn, Logger: log})
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) sessionstore.Store { return open(t, server.Addr, "") }, storetest.Options{
		Second: func(t *testing.T, first sessionstore.Store) sessionstore.Store {
			return open(t, server.Addr, first.(*Store).conn.Prefix())
		},
		Shared:    true,
		Leftovers: func(t *testing.T, s sessionstore.Store) []string { return keys(t, s.(*Store)) },
		Outages: []storetest.Outage{
			{Name: "killed and started again", Open: func(t *testing.T) (sessionstore.Store, func(), func()) {
				s, srv := openOwn(t)
				return s, srv.Kill, func() {
					if err := srv.Start(); err != nil {
						t.Fatal(err)
					}
				}
			}},
			{Name: "paused", Open: func(t *testing.T) (sessionstore.Store, func(), func()) {
				s, srv := openOwn(t)
				return s, func() { must(t, srv.Pause()) }, func() { must(t, srv.Resume()) }
			}},
		},
		Timeout: time.Second,
		Rounds:  150,
	})
}

// openOwn opens a store, with the timeout of real life, on a server of its own.
func openOwn(t *testing.T, args ...string) (*Store, *servers.Redis) {
	srv := servers.StartRedis(t, args...)
	s := openWith(t, redisconn.Options{Address: srv.Addr, Prefix: "own:", Timeout: redisconn.DefaultTimeout}, nil)
	return s, srv
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// keys returns all keys of a store.
func keys(t testing.TB, s *Store) (keys []string) {
	t.Helper()
	it := s.conn.Client().Scan(context.Background(), 0, s.conn.Prefix()+"*", 1000).Iterator()
	for it.Next(context.Background()) {
		keys = append(keys, it.Val())
	}
	must(t, it.Err())
	return keys
}

func startOf(user string) sessionstore.Start {
	return sessionstore.Start{
		Key:  sessionstore.Key{Site: "example.com", ID: storetest.NewID()},
		User: user, Claims: []byte(`{"a":1}`), Lifetime: time.Hour, MaxAge: 24 * time.Hour, Device: "Agent/1.0", IP: "192.0.2.1",
	}
}

func mustStart(t testing.TB, s *Store, user string) sessionstore.Key {
	t.Helper()
	start := startOf(user)
	if _, _, err := s.Start(context.Background(), start); err != nil {
		t.Fatal(err)
	}
	return start.Key
}

func info(t testing.TB, s *Store) map[string]int {
	t.Helper()
	text, err := s.conn.Client().Info(context.Background(), "commandstats").Result()
	must(t, err)
	calls := map[string]int{}
	for line := range strings.Lines(text) {
		var n int
		name, rest, ok := strings.Cut(line, ":calls=")
		if !ok {
			continue
		}
		_, err := fmt.Sscanf(rest, "%d", &n)
		must(t, err)
		calls[strings.TrimPrefix(name, "cmdstat_")] = n
	}
	return calls
}
