package dataprotection

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore/directory"
)

// foreignToken is well formed and names a key that no ring here has.
func foreignToken(n byte) string {
	raw := append(magic[:], bytes.Repeat([]byte{0xee, n}, 60)...)
	return base64.RawURLEncoding.EncodeToString(raw)
}

func TestNewChecksItsOptionsAndDoesNoIO(t *testing.T) {
	repository := holding()
	for name, o := range map[string]Options{
		"no repository":  {},
		"short lifetime": {Repository: repository, KeyLifetime: MinKeyLifetime - 1},
		"negative":       {Repository: repository, KeyLifetime: -1},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	ring := newRing(t, Options{Repository: repository, AutoGenerate: true, KeyLifetime: MinKeyLifetime})
	ring.Protector("p")
	if reads, adds := repository.counts(); reads+adds > 0 {
		t.Errorf("%d reads, %d writes", reads, adds)
	}
}

func TestLoadAndErrors(t *testing.T) {
	for _, c := range []struct {
		name       string
		repository *fakeRepository
		want       error
	}{
		{"empty", holding(), nil},
		{"away", &fakeRepository{fail: fmt.Errorf("%w: no route", ringstore.ErrUnavailable)}, ErrUnavailable},
		{"timed out", &fakeRepository{fail: context.DeadlineExceeded}, ErrUnavailable},
		{"unreadable", &fakeRepository{fail: os.ErrPermission}, ErrBroken},
		{"ill-formed", holding("<key"), ErrBroken},
		{"broken revocation", holding(`<revocation version="1"><key id="*"/></revocation>`), ErrBroken},
	} {
		t.Run(c.name, func(t *testing.T) {
			ring := newRing(t, Options{Repository: c.repository, AutoGenerate: true})
			err := ring.Load(t.Context())
			if !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Errorf("load: %v, want %v", err, c.want)
			}
			if _, adds := c.repository.counts(); adds > 0 {
				t.Error("Load made a key")
			}
			if c.want == nil {
				return
			}
			if errors.Is(err, ErrBroken) && errors.Is(err, ErrUnavailable) {
				t.Errorf("load: %v is both", err)
			}
			_, err = ring.Protector("p").Open(t.Context(), foreignToken(0))
			if !errors.Is(err, c.want) || errors.Is(err, ErrUnreadable) {
				t.Errorf("open: %v, want %v", err, c.want)
			}
			if _, err = ring.Protector("p").Seal(t.Context(), nil); !errors.Is(err, c.want) {
				t.Errorf("seal: %v, want %v", err, c.want)
			}
			if _, err = ring.Secret(t.Context(), "s"); !errors.Is(err, c.want) {
				t.Errorf("secret: %v, want %v", err, c.want)
			}
			if _, err = ring.Keys(t.Context()); !errors.Is(err, c.want) {
				t.Errorf("keys: %v, want %v", err, c.want)
			}
			// All of these within a second: one failure served them.
			if reads, adds := c.repository.counts(); reads != 1 || adds != 0 {
				t.Errorf("%d reads, %d writes, want one read", reads, adds)
			}
		})
	}
}

func TestRingThatComesBackIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		repository := &fakeRepository{fail: ringstore.ErrUnavailable}
		ring := newRing(t, Options{Repository: repository, AutoGenerate: true})
		if err := ring.Load(t.Context()); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		repository.set(func(f *fakeRepository) { f.fail = nil })
		if _, err := ring.Protector("p").Seal(t.Context(), nil); !errors.Is(err, ErrUnavailable) {
			t.Errorf("within a second of a failure: %v", err)
		}
		time.Sleep(readPace)
		if _, err := ring.Protector("p").Seal(t.Context(), nil); err != nil {
			t.Errorf("after it: %v", err)
		}
	})
}

func TestRingIsReadAgainWithinAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		id := KeyID{1, 15: 1}
		repository := holding(keyAt(id, time.Now().Add(-time.Hour)))
		ring := newRing(t, Options{Repository: repository})
		p := ring.Protector("p")
		token, err := p.Seal(t.Context(), []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		repository.set(func(f *fakeRepository) {
			f.elements = append(f.elements, holding(revocationOf(id.String(), time.Now())).elements...)
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, err := p.Open(t.Context(), token); !errors.Is(err, ErrRevoked) {
			t.Errorf("open: %v, want ErrRevoked", err)
		}
		if ring.Epoch() != 1 {
			t.Errorf("epoch %d", ring.Epoch())
		}
		before, _ := repository.counts()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if after, _ := repository.counts(); after-before < 12 || after-before > 15 {
			t.Errorf("%d reads in ten minutes", after-before)
		}
	})
}

func TestRequestsDoNotWaitForARereading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		repository := holding(keyAt(KeyID{1}, time.Now().Add(-time.Hour)))
		ring := newRing(t, Options{Repository: repository})
		p := ring.Protector("p")
		token, err := p.Seal(t.Context(), []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		repository.set(func(f *fakeRepository) { f.gate = make(chan struct{}) })
		time.Sleep(50 * time.Second) // a reading hangs now
		synctest.Wait()
		start := time.Now()
		if _, err := p.Open(t.Context(), token); err != nil {
			t.Error(err)
		}
		if _, err := p.Seal(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if waited := time.Since(start); waited > 0 {
			t.Errorf("waited %v", waited)
		}
	})
}

func TestFailedRereadingKeepsTheRingAndReportsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []error
		var logged bytes.Buffer
		good := keyAt(KeyID{1}, time.Now().Add(-time.Hour))
		repository := holding(good)
		ring := newRing(t, Options{
			Repository: repository,
			Logger:     slog.New(slog.NewTextHandler(&logged, nil)),
			OnError: func(err error) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, err)
			},
		})
		p := ring.Protector("p")
		token, err := p.Seal(t.Context(), []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		check := func(what string, reports int) {
			t.Helper()
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(told) != reports || strings.Count(logged.String(), "cannot be read") != reports {
				t.Errorf("%s: told %v, logged %s", what, told, &logged)
			}
			if got, err := p.Open(t.Context(), token); err != nil || got != "x" {
				t.Errorf("%s: %q, %v", what, got, err)
			}
		}
		check("good", 0)
		repository.set(func(f *fakeRepository) { f.fail = ringstore.ErrUnavailable })
		check("away", 1)
		repository.set(func(f *fakeRepository) { f.fail, f.elements = nil, holding(good, "<revocation/>").elements })
		check("broken", 2)
		if err := ring.Reload(t.Context()); !errors.Is(err, ErrBroken) {
			t.Errorf("reload: %v", err)
		}
		repository.set(func(f *fakeRepository) { f.elements = holding(good).elements })
		check("good again", 2)
		if !strings.Contains(logged.String(), "readable again") {
			t.Error("the recovery is not logged")
		}
		repository.set(func(f *fakeRepository) { f.fail = ringstore.ErrUnavailable })
		check("away again", 3)
		if ring.Epoch() != 0 {
			t.Error("the epoch changed")
		}
		if strings.Contains(logged.String(), good[strings.Index(good, "<value>")+7:][:20]) {
			t.Error("a key is in the log")
		}
	})
}

func TestUnknownKeyReadsOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		repository := holding(keyAt(KeyID{1}, time.Now().Add(-time.Hour)))
		ring := newRing(t, Options{Repository: repository})
		p := ring.Protector("p")
		if err := ring.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		unknown := func(n byte) {
			if _, err := p.Open(t.Context(), foreignToken(n)); !errors.Is(err, ErrUnknownKey) || !errors.Is(err, ErrUnreadable) {
				t.Errorf("got %v, want ErrUnknownKey", err)
			}
		}
		reads := func() int { n, _ := repository.counts(); return n }
		before := reads()
		for i := range 100 {
			unknown(byte(i))
		}
		if got := reads() - before; got != 1 {
			t.Errorf("%d readings for 100 unknown ids, want 1", got)
		}
		time.Sleep(readPace)
		before = reads()
		// Concurrent openers share a reading that is under way.
		gate := make(chan struct{})
		repository.set(func(f *fakeRepository) { f.gate = gate })
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() { unknown(byte(i)) })
		}
		synctest.Wait()
		close(gate)
		wg.Wait()
		if got := reads() - before; got != 1 {
			t.Errorf("%d readings for 50 concurrent unknown ids, want 1", got)
		}
		// A store that fails does not turn an unknown id into a fault.
		time.Sleep(readPace)
		repository.set(func(f *fakeRepository) { f.fail = ringstore.ErrUnavailable })
		unknown(1)
	})
}

func TestUnknownKeyIsFoundByTheReading(t *testing.T) {
	path := t.TempDir()
	a := newRing(t, Options{Repository: directory.New(path), AutoGenerate: true})
	b := newRing(t, Options{Repository: directory.New(path)})
	if err := b.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	token, err := a.Protector("p").Seal(t.Context(), []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := b.Protector("p").Open(t.Context(), token); err != nil || got != "x" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestWaitingEndsWithItsContext(t *testing.T) {
	repository := holding()
	repository.gate = make(chan struct{})
	ring := newRing(t, Options{Repository: repository})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ring.Load(ctx); !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("load: %v", err)
	}
	close(repository.gate)
	if err := ring.Load(t.Context()); err != nil {
		t.Errorf("load: %v", err)
	}
}

func TestReloadBeginsAfterTheCall(t *testing.T) {
	repository := holding()
	repository.gate, repository.entered = make(chan struct{}), make(chan struct{}, 10)
	ring := newRing(t, Options{Repository: repository})
	first := make(chan error, 1)
	go func() { first <- ring.Load(t.Context()) }()
	<-repository.entered
	second := make(chan error, 1)
	go func() { second <- ring.Reload(t.Context()) }()
	repository.gate <- struct{}{}
	if err := <-first; err != nil {
		t.Error(err)
	}
	<-repository.entered
	repository.gate <- struct{}{}
	if err := <-second; err != nil {
		t.Error(err)
	}
	if reads, _ := repository.counts(); reads != 2 {
		t.Errorf("%d reads, want 2", reads)
	}
}

func TestEpoch(t *testing.T) {
	k1, k2 := keyAt(KeyID{1}, atStart()), keyAt(KeyID{2}, atStart())
	repository := holding(k1)
	ring := newRing(t, Options{Repository: repository, Now: atStart})
	if err := ring.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		documents []string
		changes   bool
	}{
		{"unchanged", []string{k1}, false},
		{"key added", []string{k1, k2}, false},
		{"reordered", []string{k2, k1}, false},
		{"unknown element", []string{k2, k1, "<other/>"}, false},
		{"single revocation", []string{k1, k2, revocationOf(KeyID{1}.String(), atStart())}, true},
		{"revocation of it again", []string{k1, k2, revocationOf(KeyID{1}.String(), atStart()), revocationOf("*", atStart())}, false},
		{"mass revocation", []string{k1, k2, revocationOf("*", atStart().Add(1000))}, true},
		{"revocation withdrawn", []string{k1, k2}, false},
		{"secret replaced", []string{k1, strings.Replace(k2, "<value>A", "<value>B", 1)}, true},
		{"key removed", []string{k1}, true},
		{"all gone", nil, true},
		{"back", []string{k1}, false},
	} {
		before := ring.Epoch()
		repository.set(func(f *fakeRepository) { f.elements = holding(c.documents...).elements })
		if err := ring.Reload(t.Context()); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if changed := ring.Epoch() != before; changed != c.changes {
			t.Errorf("%s: epoch changed %v, want %v", c.name, changed, c.changes)
		}
	}
}

func TestSecretIsOfTheOldestKey(t *testing.T) {
	older, newer := keyAt(KeyID{2}, atStart()), keyAt(KeyID{1}, atStart().Add(time.Hour))
	secret := func(label string, documents ...string) [32]byte {
		t.Helper()
		ring := newRing(t, Options{Repository: holding(documents...), Now: atStart})
		s, err := ring.Secret(t.Context(), label)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	want := secret("a", older)
	if got := secret("a", newer, older); got != want {
		t.Error("it is not of the oldest key")
	}
	if got := secret("a", older, newer, revocationOf("*", atStart().Add(time.Minute))); got != want {
		t.Error("a revocation changes it")
	}
	if secret("b", older) == want || secret("a", newer) == want {
		t.Error("label or key do not matter")
	}
	tied := keyAt(KeyID{3}, atStart())
	if secret("a", tied, older) != want {
		t.Error("ties are not broken by id")
	}
	if got := fmt.Sprintf("%x", want[:4]); got != "2dfa2140" {
		t.Errorf("the derivation has changed: %s", got)
	}
}

func TestNoKeyWithoutGeneration(t *testing.T) {
	repository := holding()
	ring := newRing(t, Options{Repository: repository})
	if _, err := ring.Protector("p").Seal(t.Context(), nil); !errors.Is(err, ErrNoKey) {
		t.Errorf("seal: %v", err)
	}
	if _, err := ring.Secret(t.Context(), "s"); !errors.Is(err, ErrNoKey) {
		t.Errorf("secret: %v", err)
	}
	if _, adds := repository.counts(); adds > 0 {
		t.Error("a key was made")
	}
}

func TestSecretMakesTheFirstKey(t *testing.T) {
	repository := holding()
	ring := newRing(t, Options{Repository: repository, AutoGenerate: true})
	first, err := ring.Secret(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	again, err := ring.Secret(t.Context(), "s")
	if _, adds := repository.counts(); err != nil || first != again || adds != 1 {
		t.Errorf("%x, %x, %v, %d keys", first, again, err, adds)
	}
}

func TestKeyThatCannotBeStored(t *testing.T) {
	t.Run("no other key", func(t *testing.T) {
		repository := &fakeRepository{failAdd: os.ErrPermission}
		ring := newRing(t, Options{Repository: repository, AutoGenerate: true})
		for range 5 {
			if _, err := ring.Protector("p").Seal(t.Context(), nil); !errors.Is(err, ErrUnavailable) {
				t.Errorf("got %v, want ErrUnavailable", err)
			}
		}
		if _, adds := repository.counts(); adds != 1 {
			t.Errorf("%d attempts within a second", adds)
		}
	})
	t.Run("an old key stands by", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			now := time.Now()
			// The newest key is revoked; an older one that is not may stand by.
			old, newer := KeyID{1}, KeyID{2}
			repository := holding(keyAt(old, now.Add(-100*time.Hour)), keyAt(newer, now.Add(-99*time.Hour)),
				revocationOf(newer.String(), now))
			repository.failAdd = os.ErrPermission
			told := 0
			ring := newRing(t, Options{Repository: repository, AutoGenerate: true, OnError: func(error) { told++ }})
			p := ring.Protector("p")
			for range 30 {
				token, err := p.Seal(t.Context(), []byte("x"))
				if err != nil {
					t.Fatal(err)
				}
				if s, err := ring.sealing(t.Context()); err != nil || s.key.id != old {
					t.Fatalf("seals with %v, %v", s.key, err)
				}
				if _, err := p.Open(t.Context(), token); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
			}
			synctest.Wait()
			if _, adds := repository.counts(); adds < 2 || adds > 4 || told != 1 {
				t.Errorf("%d attempts in 30 s, told %d times", adds, told)
			}
			repository.set(func(f *fakeRepository) { f.failAdd = nil })
			time.Sleep(makePace)
			_, _ = ring.sealing(t.Context())
			synctest.Wait()
			if s, err := ring.sealing(t.Context()); err != nil || s.key.id == old {
				t.Errorf("no new key afterwards: %v", err)
			}
		})
	})
}

func TestRevocationDatedInTheFutureMakesNoKeys(t *testing.T) {
	repository := holding(keyAt(KeyID{1}, atStart()), revocationOf("*", atStart().Add(time.Hour)))
	ring := newRing(t, Options{Repository: repository, AutoGenerate: true, Now: atStart})
	if _, err := ring.Protector("p").Seal(t.Context(), nil); !errors.Is(err, ErrNoKey) {
		t.Errorf("got %v, want ErrNoKey", err)
	}
	if _, adds := repository.counts(); adds > 0 {
		t.Error("a key was made in vain")
	}
}

// TestRevokedKeyInTheWay: the default stays undecided after a key was made,
// and still only one is made, by all rings together.
func TestRevokedKeyInTheWay(t *testing.T) {
	blocking := KeyID{9}
	repository := holding(keyAt(blocking, atStart().Add(4*time.Minute)), revocationOf(blocking.String(), atStart()))
	for range 3 {
		ring := newRing(t, Options{Repository: repository, AutoGenerate: true, Now: atStart})
		for range 3 {
			if _, err := ring.Protector("p").Seal(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, adds := repository.counts(); adds != 1 {
		t.Errorf("%d keys made, want 1", adds)
	}
}

func TestClosedRing(t *testing.T) {
	repository := holding(keyAt(KeyID{1}, atStart()))
	ring := newRing(t, Options{Repository: repository, Now: atStart})
	p := ring.Protector("p")
	token, err := p.Seal(t.Context(), []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := ring.Close(); err != nil {
			t.Fatal(err)
		}
	}
	before, _ := repository.counts()
	if got, err := p.Open(t.Context(), token); err != nil || got != "x" {
		t.Errorf("open: %q, %v", got, err)
	}
	if _, err := p.Open(t.Context(), foreignToken(1)); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("unknown id: %v", err)
	}
	if err := ring.Reload(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("reload: %v", err)
	}
	if after, _ := repository.counts(); after != before {
		t.Error("a closed ring was read")
	}
}

func TestCloseEndsAHangingReading(t *testing.T) {
	repository := holding()
	repository.gate, repository.entered = make(chan struct{}), make(chan struct{}, 1)
	ring := newRing(t, Options{Repository: repository})
	loaded := make(chan error, 1)
	go func() { loaded <- ring.Load(t.Context()) }()
	<-repository.entered
	if err := ring.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-loaded; !errors.Is(err, ErrUnavailable) {
		t.Errorf("load: %v", err)
	}
}

func TestDirectoryThatBecomesUnreadable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	ring := newRing(t, Options{Repository: directory.New(path), AutoGenerate: true})
	p := ring.Protector("p")
	token, err := p.Seal(t.Context(), []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	aside := path + ".aside"
	for _, c := range []struct {
		name  string
		spoil func() error
		mend  func() error
		want  error
	}{
		{"vanished", func() error { return os.Rename(path, aside) }, func() error { return os.Rename(aside, path) }, ErrUnavailable},
		{"not a directory", func() error {
			return errors.Join(os.Rename(path, aside), os.WriteFile(path, nil, 0o600))
		}, func() error { return errors.Join(os.Remove(path), os.Rename(aside, path)) }, ErrBroken},
		{"ill-formed file", func() error { return os.WriteFile(filepath.Join(path, "revocation-1.xml"), []byte("<revoc"), 0o600) },
			func() error { return os.Remove(filepath.Join(path, "revocation-1.xml")) }, ErrBroken},
	} {
		if err := c.spoil(); err != nil {
			t.Fatal(err)
		}
		if err := ring.Reload(t.Context()); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if got, err := p.Open(t.Context(), token); err != nil || got != "x" {
			t.Errorf("%s: open: %q, %v", c.name, got, err)
		}
		if _, err := p.Seal(t.Context(), nil); err != nil {
			t.Errorf("%s: seal: %v", c.name, err)
		}
		if err := c.mend(); err != nil {
			t.Fatal(err)
		}
		if err := ring.Reload(t.Context()); err != nil {
			t.Errorf("%s, mended: %v", c.name, err)
		}
	}
}

func TestKeysAreListed(t *testing.T) {
	dpapi := strings.NewReplacer(
		`<masterKey p4:requiresEncryption="true" xmlns:p4="http://schemas.asp.net/2015/03/dataProtection">`,
		`<encryptedSecret decryptorType="X.DpapiXmlDecryptor, X" xmlns="http://schemas.asp.net/2015/03/dataProtection"><e>`,
		`</masterKey>`, `</e></encryptedSecret>`).Replace(keyAt(KeyID{3}, atStart().Add(-time.Hour)))
	ring := newRing(t, Options{Now: atStart, Repository: holding(
		keyAt(KeyID{1}, atStart()), keyAt(KeyID{2}, atStart().Add(-2*time.Hour)), dpapi, revocationOf(KeyID{2}.String(), atStart()),
	)})
	keys, err := ring.Keys(t.Context())
	if err != nil || len(keys) != 3 {
		t.Fatalf("%+v, %v", keys, err)
	}
	for i, want := range []struct {
		id                        KeyID
		revoked, usable, default_ bool
		why                       error
	}{{KeyID{2}, true, false, false, ErrRevoked}, {KeyID{3}, false, false, false, ErrUnusableKey}, {KeyID{1}, false, true, true, nil}} {
		k := keys[i]
		if k.ID != want.id || k.Revoked != want.revoked || k.Usable != want.usable || k.Default != want.default_ || !errors.Is(k.WhyNot, want.why) {
			t.Errorf("key %d: %+v, want %+v", i, k, want)
		}
	}
}
