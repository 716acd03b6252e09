package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/redisconn"
	"github.com/gatehouse-gateway/gatehouse/internal/servers"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore"
)

func TestEmpty(t *testing.T) {
	r := open(t, redisconn.Options{}, newKey())
	elements, err := r.Elements(t.Context())
	if err != nil || len(elements) != 0 {
		t.Errorf("%v, %v", elements, err)
	}
	if New(Options{}).key != "DataProtection-Keys" {
		t.Error("the default key is not .NET's")
	}
}

func TestAddAndElements(t *testing.T) {
	r := open(t, redisconn.Options{}, newKey())
	foreign := "\ufeff<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<key>\n  <a />\n</key>"
	do(t, r, "RPUSH", r.key, foreign, "", "not XML\r\n$3")
	must(t, r.Add(t.Context(), "key-1", []byte("<key>\n  <b />\n</key>")))
	must(t, r.Add(t.Context(), "another name", []byte("<key><b /></key>"))) // the same element
	want := []string{foreign, "", "not XML\r\n$3", "<key><b /></key>"}
	if got := entries(t, r); !slices.Equal(got, want) {
		t.Errorf("the list is %q", got)
	}
	elements, err := r.Elements(t.Context())
	must(t, err)
	if len(elements) != len(want) {
		t.Fatalf("%d elements", len(elements))
	}
	for i, element := range elements {
		if string(element.XML) != want[i] || element.Name != fmt.Sprintf("entry %d", i) {
			t.Errorf("%d: %s %q", i, element.Name, element.XML)
		}
	}
	for _, bad := range []string{"", "<key>", "text", "<!DOCTYPE a><a/>", "<a/><b/>"} {
		if err := r.Add(t.Context(), "key-2", []byte(bad)); err == nil {
			t.Errorf("%q was added", bad)
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = r.Elements(cancelled)
	for _, err := range []error{err, r.Add(cancelled, "key", []byte("<key />"))} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	}
}

func TestTwoWriters(t *testing.T) {
	key := newKey()
	var wg sync.WaitGroup
	for w := range 2 {
		r := open(t, redisconn.Options{}, key)
		wg.Go(func() {
			for i := range 20 {
				own := fmt.Sprintf("<key id=\"%d-%d\" />", w, i)
				both := fmt.Sprintf("<key id=\"both-%d\" />", i)
				for _, xml := range []string{own, both} {
					if err := r.Add(t.Context(), "key", []byte(xml)); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	elements, err := open(t, redisconn.Options{}, key).Elements(t.Context())
	must(t, err)
	seen := map[string]bool{}
	for _, element := range elements {
		seen[string(element.XML)] = true
	}
	if len(elements) != 60 || len(seen) != 60 {
		t.Errorf("%d elements, %d of them different, want 60", len(elements), len(seen))
	}
}

func TestTooLarge(t *testing.T) {
	r := open(t, redisconn.Options{}, newKey())
	fill := func(n, size int) {
		do(t, r, "DEL", r.key)
		args := []any{"RPUSH", r.key}
		for range n {
			args = append(args, strings.Repeat("x", size))
		}
		do(t, r, args...)
	}
	for _, c := range []struct {
		n, size int
		fits    bool
	}{
		{maxEntries, 1, true}, {maxEntries + 1, 1, false}, {maxEntries, 419, true}, {maxEntries, 420, false},
		{4, 1 << 20, true}, {1, maxBytes + 1, false}, {8, 1 << 20, false},
	} {
		fill(c.n, c.size)
		elements, err := r.Elements(t.Context())
		if c.fits && (err != nil || len(elements) != c.n) {
			t.Errorf("%d of %d bytes: %d elements, %v", c.n, c.size, len(elements), err)
		}
		if !c.fits && (!errors.Is(err, ErrTooLarge) || errors.Is(err, ringstore.ErrUnavailable) || elements != nil) {
			t.Errorf("%d of %d bytes: %d elements, %v", c.n, c.size, len(elements), err)
		}
	}
	do(t, r, "DEL", r.key)
	if _, err := r.Elements(t.Context()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// wantOwn wants an error of its own that quotes no key material.
func wantOwn(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) || errors.Is(err, ringstore.ErrUnavailable) || strings.Contains(err.Error(), "secret") {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

var secretKey = []byte(`<key>secret</key>`)

func TestWrongType(t *testing.T) {
	r := open(t, redisconn.Options{}, newKey())
	do(t, r, "SET", r.key, "text")
	_, err := r.Elements(t.Context())
	wantOwn(t, "Elements", err, ErrNotAList)
	wantOwn(t, "Add", r.Add(t.Context(), "key", secretKey), ErrNotAList)
	if do(t, r, "GET", r.key) != "text" {
		t.Error("the value was changed")
	}
}

func TestRights(t *testing.T) {
	key := newKey()
	admin := open(t, redisconn.Options{}, key)
	as := func(name string, rules ...any) *Repository {
		do(t, admin, append([]any{"ACL", "SETUSER", name, "reset", "on", ">pass"}, rules...)...)
		return open(t, redisconn.Options{Username: name, Password: "pass"}, key)
	}
	do(t, admin, "SCRIPT", "FLUSH")
	writer := as("writer", "~"+key, "~"+key+":lock",
		"+lrange", "+lpos", "+rpush", "+set", "+get", "+del", "+evalsha", "+eval")
	unlock, err := writer.Lock(t.Context())
	must(t, err)
	must(t, writer.Add(t.Context(), "key", secretKey))
	unlock()
	if n := do(t, admin, "EXISTS", key+":lock"); n != int64(0) {
		t.Error("the lock is left over")
	}
	reader := as("reader", "%R~"+key, "+lrange")
	for _, r := range []*Repository{writer, reader} {
		if elements, err := r.Elements(t.Context()); err != nil || len(elements) != 1 {
			t.Errorf("%v, %v", elements, err)
		}
	}
	other := []byte("<key>another secret</key>")
	wantOwn(t, "a reader's Add", reader.Add(t.Context(), "key", other), ErrForbidden)
	_, err = reader.Lock(t.Context())
	wantOwn(t, "a reader's Lock", err, ErrForbidden)
	without := as("without", "~"+key, "+lrange", "+lpos", "+evalsha", "+eval")
	wantOwn(t, "Add without RPUSH", without.Add(t.Context(), "key", other), ErrForbidden)
	_, err = as("elsewhere", "~other", "+@all").Elements(t.Context())
	wantOwn(t, "another key's user", err, ErrForbidden)
	_, err = open(t, redisconn.Options{Username: "reader", Password: "wrong"}, key).Elements(t.Context())
	wantOwn(t, "a wrong password", err, ErrSignIn)
	if got := entries(t, admin); len(got) != 1 {
		t.Errorf("the list is %q", got)
	}
}

func TestReadOnlyReplica(t *testing.T) {
	host, port, _ := strings.Cut(server.Addr, ":")
	key := newKey()
	must(t, open(t, redisconn.Options{}, key).Add(t.Context(), "key", secretKey))
	replica := open(t, redisconn.Options{Address: servers.StartRedis(t, "--replicaof", host+" "+port).Addr}, key)
	await(t, "the replica's copy", func() bool {
		elements, err := replica.Elements(t.Context())
		return err == nil && len(elements) == 1
	})
	wantOwn(t, "Add", replica.Add(t.Context(), "key", []byte("<other>secret</other>")), ErrReadOnly)
	_, err := replica.Lock(t.Context())
	wantOwn(t, "Lock", err, ErrReadOnly)
}

func TestFullMemory(t *testing.T) {
	full := servers.StartRedis(t, "--maxmemory", "1", "--maxmemory-policy", "noeviction")
	r := open(t, redisconn.Options{Address: full.Addr}, newKey())
	wantOwn(t, "Add", r.Add(t.Context(), "key", secretKey), ErrFull)
	_, err := r.Lock(t.Context())
	wantOwn(t, "Lock", err, ErrFull)
	if _, err := r.Elements(t.Context()); err != nil {
		t.Errorf("Elements: %v", err)
	}
}

func TestServerDown(t *testing.T) {
	own := servers.StartRedis(t)
	r := open(t, redisconn.Options{Address: own.Addr, Timeout: 100 * time.Millisecond}, newKey())
	check := func() {
		t.Helper()
		_, err := r.Elements(t.Context())
		wantUnavailable(t, err)
		wantUnavailable(t, r.Add(t.Context(), "key", secretKey))
		_, err = r.Lock(t.Context())
		wantUnavailable(t, err)
	}
	_, err := r.Elements(t.Context())
	must(t, err)
	must(t, r.conn.Client().ScriptLoad(t.Context(), addScript).Err())
	must(t, own.Pause())
	wantUnavailable(t, r.Add(t.Context(), "key", secretKey))
	check()
	must(t, own.Resume())
	// What was sent meanwhile is done now.
	await(t, "the paused Add", func() bool {
		elements, err := r.Elements(t.Context())
		return err == nil && len(elements) == 1
	})
	must(t, r.Add(t.Context(), "key", secretKey))
	if got := entries(t, r); len(got) != 1 {
		t.Errorf("the list is %q", got)
	}
	own.Kill()
	check()
}

// TestLostReply cuts the connection when the server has added the entry and
// says so.
func TestLostReply(t *testing.T) {
	for _, cuts := range []int{1, addAttempts - 1, addAttempts} {
		key := newKey()
		p := servers.StartProxy(t, server.Addr)
		direct, r := open(t, redisconn.Options{}, key), open(t, redisconn.Options{Address: p.Addr}, key)
		must(t, r.Add(t.Context(), "key", []byte("<first />"))) // connected, and the script is known
		var lost atomic.Int64
		cut := func(said []byte) bool {
			// The answers of RPUSH and LPOS, and not those to signing in.
			return (string(said) == ":2\r\n" || string(said) == ":1\r\n") && lost.Add(1) <= int64(cuts)
		}
		p.LoseIf(cut)
		err := r.Add(t.Context(), "key", secretKey)
		if cuts < addAttempts {
			must(t, err)
		} else {
			wantUnavailable(t, err)
			must(t, r.Add(t.Context(), "key", secretKey))
		}
		if got := entries(t, direct); len(got) != 2 || lost.Load() <= int64(cuts) {
			t.Errorf("%d answers, %d of them lost: the list is %q", lost.Load(), cuts, got)
		}
		lose := func(said []byte) bool { return strings.Contains(string(said), "secret") }
		p.LoseIf(lose)
		_, err = r.Elements(t.Context())
		wantUnavailable(t, err)
	}
}

func TestLockExcludes(t *testing.T) {
	key := newKey()
	var mu sync.Mutex
	var inside, most, total int
	var wg sync.WaitGroup
	for range 5 {
		r := open(t, redisconn.Options{}, key)
		wg.Go(func() {
			unlock, err := r.Lock(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			inside, total = inside+1, total+1
			most = max(most, inside)
			mu.Unlock()
			_, _ = r.Elements(t.Context())
			mu.Lock()
			inside--
			mu.Unlock()
			unlock()
		})
	}
	wg.Wait()
	if most != 1 || total != 5 {
		t.Errorf("%d held it, %d at once", total, most)
	}
}

func TestLockOfADeadHolder(t *testing.T) {
	r := open(t, redisconn.Options{}, newKey())
	unlock, err := r.Lock(t.Context())
	must(t, err)
	if left := do(t, r, "PTTL", r.lockKey()).(int64); left <= 8_000 || left > 10_000 {
		t.Errorf("it expires in %d ms", left)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 120*time.Millisecond)
	defer cancel()
	if _, err := r.Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while it is held: %v", err)
	}
	do(t, r, "PEXPIRE", r.lockKey(), 30)
	next, err := r.Lock(t.Context())
	must(t, err)
	unlock() // must not remove the lock of the next holder
	if do(t, r, "EXISTS", r.lockKey()) != int64(1) {
		t.Error("a successor's lock was removed")
	}
	next()
	if do(t, r, "EXISTS", r.lockKey()) != int64(0) {
		t.Error("the lock is left over")
	}
}

// TestLockWhoseAnswerIsLost is not left to expire.
func TestLockWhoseAnswerIsLost(t *testing.T) {
	p := servers.StartProxy(t, server.Addr)
	r := open(t, redisconn.Options{Address: p.Addr}, newKey())
	_, err := r.Elements(t.Context()) // connected
	must(t, err)
	var answers atomic.Int64
	cut := func([]byte) bool { return answers.Add(1) == 1 }
	p.LoseIf(cut)
	_, err = r.Lock(t.Context())
	wantUnavailable(t, err)
	if do(t, r, "EXISTS", r.lockKey()) != int64(0) {
		t.Error("the lock is left over")
	}
}
