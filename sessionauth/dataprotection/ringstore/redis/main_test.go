package redis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/redisconn"
	"github.com/gatehouse-gateway/gatehouse/internal/servers"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore"
)

// server is the Redis that most tests share, each with a list of its own.
var server *servers.Redis

func TestMain(m *testing.M) { servers.MainRedis(m, &server, "--repl-diskless-sync-delay", "0") }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var lists atomic.Int64

// newKey names a list that no other test has.
func newKey() string { return fmt.Sprintf("keys%d", lists.Add(1)) }

// open opens a repository on a connection of its own, with a prefix that must
// not show.
func open(t testing.TB, o redisconn.Options, key string) *Repository {
	t.Helper()
	if o.Address == "" {
		o.Address = server.Addr
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	o.Prefix = "prefix:"
	conn, err := redisconn.Open(o)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return New(Options{Conn: conn, Key: key})
}

func do(t testing.TB, r *Repository, args ...any) any {
	t.Helper()
	v, err := r.conn.Client().Do(context.Background(), args...).Result()
	must(t, err)
	return v
}

// entries returns the list as any client sees it.
func entries(t testing.TB, r *Repository) []string {
	t.Helper()
	v, err := r.conn.Client().LRange(context.Background(), r.key, 0, -1).Result()
	must(t, err)
	return v
}

func newRing(t testing.TB, o dataprotection.Options) *dataprotection.Ring {
	t.Helper()
	ring, err := dataprotection.New(o)
	must(t, err)
	t.Cleanup(func() { _ = ring.Close() })
	return ring
}

func wantUnavailable(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, ringstore.ErrUnavailable) {
		t.Errorf("got %v, want unavailable", err)
	}
}

// await polls until the condition holds.
func await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for deadline := time.Now().Add(10 * time.Second); !condition(); <-poll.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come", what)
		}
	}
}

// vectors are a ring and its tokens, as the real ASP.NET Core made them.
type vectors struct {
	Discriminator string
	Before        []vectorFile `json:"keyring_before_mass_revocation"`
	Keyring       []vectorFile
	Tokens        []vectorToken
	OutcomeAfter  []vectorOutcome `json:"outcomes_after_mass_revocation"`
	OutcomeBefore []vectorOutcome `json:"outcomes_before_mass_revocation"`
}

type vectorFile struct{ File, XML string }

type vectorToken struct {
	Label     string
	Purposes  []string
	Plaintext string `json:"plaintext_hex"`
	Protected string `json:"protected_base64url"`
}

type vectorOutcome struct {
	Label     string
	Unprotect string
}

func readVectors(t testing.TB, name string) vectors {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", name))
	must(t, err)
	var v vectors
	must(t, json.Unmarshal(content, &v))
	return v
}
