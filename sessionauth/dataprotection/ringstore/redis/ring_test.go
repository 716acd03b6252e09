package redis

import (
	"encoding/hex"
	"errors"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/redisconn"
	"github.com/gatehouse-gateway/gatehouse/internal/servers"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection"
)

// store writes elements as .NET does.
func store(t *testing.T, r *Repository, files []vectorFile) {
	t.Helper()
	for _, file := range files {
		entry, err := compact([]byte(file.XML))
		must(t, err)
		do(t, r, "RPUSH", r.key, entry)
	}
}

func TestRealRingsOpen(t *testing.T) {
	for _, name := range []string{"real-default-aes256cbc-hmacsha256.json", "real-aes128gcm.json"} {
		v := readVectors(t, name)
		r := open(t, redisconn.Options{}, newKey())
		store(t, r, v.Keyring)
		ring := newRing(t, dataprotection.Options{Repository: r, ApplicationName: v.Discriminator})
		must(t, ring.Load(t.Context()))
		for i, token := range v.Tokens {
			got, err := ring.Protector(token.Purposes...).Open(t.Context(), token.Protected)
			if err != nil || hex.EncodeToString([]byte(got)) != token.Plaintext {
				t.Errorf("%s, token %d: %x, %v", name, i, got, err)
			}
		}
		if len(v.Tokens) == 0 {
			t.Errorf("%s has no tokens", name)
		}
	}
}

func TestRevocationsShowAtRefresh(t *testing.T) {
	v := readVectors(t, "real-multikey-revocation.json")
	r := open(t, redisconn.Options{}, newKey())
	store(t, r, v.Before)
	ring := newRing(t, dataprotection.Options{Repository: r, ApplicationName: v.Discriminator})
	must(t, ring.Load(t.Context()))
	opened := func(outcomes []vectorOutcome) (revoked int) {
		t.Helper()
		for _, outcome := range outcomes {
			i := slices.IndexFunc(v.Tokens, func(token vectorToken) bool { return token.Label == outcome.Label })
			_, err := ring.Protector(v.Tokens[i].Purposes...).Open(t.Context(), v.Tokens[i].Protected)
			if (err == nil) != (outcome.Unprotect == "ok") {
				t.Errorf("%s: %v, want %s", outcome.Label, err, outcome.Unprotect)
			}
			if errors.Is(err, dataprotection.ErrRevoked) {
				revoked++
			}
		}
		return revoked
	}
	before, epoch := opened(v.OutcomeBefore), ring.Epoch()
	for _, file := range v.Keyring {
		if !slices.Contains(v.Before, file) {
			store(t, r, []vectorFile{file})
		}
	}
	must(t, ring.Reload(t.Context()))
	if after := opened(v.OutcomeAfter); after <= before || ring.Epoch() == epoch {
		t.Errorf("%d revoked before, %d after; epoch %d, then %d", before, after, epoch, ring.Epoch())
	}
}

// differing is what differs between two keys of one kind.
var differing = regexp.MustCompile(`id="[0-9a-f-]{36}"|Date>[^<]*<|<value>[^<]*<`)

func TestOwnKeysAreAsDotNETWritesThem(t *testing.T) {
	v := readVectors(t, "real-default-aes256cbc-hmacsha256.json")
	real, own := open(t, redisconn.Options{}, newKey()), open(t, redisconn.Options{}, newKey())
	store(t, real, v.Keyring)
	first := newRing(t, dataprotection.Options{Repository: own, AutoGenerate: true})
	token, err := first.Protector("p").Seal(t.Context(), []byte("hello"))
	must(t, err)
	written := entries(t, own)
	if len(written) != 1 {
		t.Fatalf("%d entries", len(written))
	}
	got := differing.ReplaceAllString(written[0], "")
	if want := differing.ReplaceAllString(entries(t, real)[0], ""); got != want {
		t.Errorf("written\n%s\nwant\n%s", got, want)
	}
	second := newRing(t, dataprotection.Options{Repository: open(t, redisconn.Options{}, own.key)})
	if got, err := second.Protector("p").Open(t.Context(), token); err != nil || got != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestThreeStartAtOnce(t *testing.T) {
	key := newKey()
	var rings [3]*dataprotection.Ring
	var tokens [3]string
	for i := range rings {
		rings[i] = newRing(t, dataprotection.Options{Repository: open(t, redisconn.Options{}, key), AutoGenerate: true})
	}
	var wg sync.WaitGroup
	for i, ring := range rings {
		wg.Go(func() {
			var err error
			if tokens[i], err = ring.Protector("p").Seal(t.Context(), []byte("hello")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, ring := range rings {
		for _, token := range tokens {
			if got, err := ring.Protector("p").Open(t.Context(), token); err != nil || got != "hello" {
				t.Errorf("%q, %v", got, err)
			}
		}
	}
	r := open(t, redisconn.Options{}, key)
	if n := len(entries(t, r)); n != 1 {
		t.Errorf("%d keys were made, want one", n)
	}
	if do(t, r, "EXISTS", r.lockKey()) != int64(0) {
		t.Error("the lock is left over")
	}
}

func TestDownAtStart(t *testing.T) {
	own := servers.StartRedis(t)
	own.Kill()
	r := open(t, redisconn.Options{Address: own.Addr, Timeout: time.Second}, newKey())
	ring := newRing(t, dataprotection.Options{Repository: r, AutoGenerate: true})
	if err := ring.Load(t.Context()); !errors.Is(err, dataprotection.ErrUnavailable) || errors.Is(err, dataprotection.ErrBroken) {
		t.Errorf("Load: %v", err)
	}
	must(t, own.Start())
	must(t, ring.Load(t.Context()))
	if _, err := ring.Protector("p").Seal(t.Context(), nil); err != nil {
		t.Errorf("once it is there: %v", err)
	}
}

func TestDownAtRunTime(t *testing.T) {
	own := servers.StartRedis(t)
	r := open(t, redisconn.Options{Address: own.Addr, Timeout: time.Second}, newKey())
	told := make(chan error, 4)
	ring := newRing(t, dataprotection.Options{Repository: r, AutoGenerate: true, OnError: func(err error) { told <- err }})
	token, err := ring.Protector("p").Seal(t.Context(), []byte("hello"))
	must(t, err)
	own.Kill()
	if err := ring.Reload(t.Context()); !errors.Is(err, dataprotection.ErrUnavailable) {
		t.Errorf("Reload: %v", err)
	}
	if err := <-told; !errors.Is(err, dataprotection.ErrUnavailable) {
		t.Errorf("told %v", err)
	}
	if got, err := ring.Protector("p").Open(t.Context(), token); err != nil || got != "hello" {
		t.Errorf("the last good ring: %q, %v", got, err)
	}
	if _, err := ring.Protector("p").Seal(t.Context(), nil); err != nil {
		t.Errorf("sealing with the last good ring: %v", err)
	}
}

func TestWrongTypeBreaksTheRing(t *testing.T) {
	r := open(t, redisconn.Options{}, newKey())
	do(t, r, "SADD", r.key, "<key />")
	err := newRing(t, dataprotection.Options{Repository: r, AutoGenerate: true}).Load(t.Context())
	if !errors.Is(err, dataprotection.ErrBroken) || !errors.Is(err, ErrNotAList) {
		t.Errorf("got %v", err)
	}
}

// TestEntriesInOtherForms: someone may have copied the files of a directory.
func TestEntriesInOtherForms(t *testing.T) {
	v := readVectors(t, "real-default-aes256cbc-hmacsha256.json")
	r := open(t, redisconn.Options{}, newKey())
	for _, file := range v.Keyring {
		do(t, r, "RPUSH", r.key, "\ufeff"+file.XML)
	}
	ring := newRing(t, dataprotection.Options{Repository: r, ApplicationName: v.Discriminator})
	if _, err := ring.Protector(v.Tokens[0].Purposes...).Open(t.Context(), v.Tokens[0].Protected); err != nil {
		t.Error(err)
	}
}
