package dataprotection

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore/directory"
)

// playGateway is the life of one gateway process: it waits for the start,
// seals, tells its token and its secret, then opens the tokens that it is told.
func playGateway(path string) error {
	ctx := context.Background()
	ring, err := New(Options{Repository: directory.New(path), ApplicationName: "gatehouse", AutoGenerate: true})
	if err != nil {
		return err
	}
	defer ring.Close()
	if err := ring.Load(ctx); err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	in.Scan()

	p := ring.Protector("three processes")
	secret, err := ring.Secret(ctx, "limits")
	if err != nil {
		return err
	}
	token, err := p.Seal(ctx, []byte("hello"))
	if err != nil {
		return err
	}
	fmt.Printf("%s %x\n", token, secret)
	for in.Scan() {
		if got, err := p.Open(ctx, in.Text()); err != nil || got != "hello" {
			return fmt.Errorf("opening another's token: %q, %w", got, err)
		}
	}
	fmt.Println("opened all")
	return in.Err()
}

func TestThreeProcessesAtOnceOnAnEmptyDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "keys")
	type process struct {
		*exec.Cmd
		in  interface{ Write([]byte) (int, error) }
		out *bufio.Scanner
	}
	var processes []process
	for range 3 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), gatewayEnv+"="+path)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p := process{cmd, in, bufio.NewScanner(out)}
		processes = append(processes, p)
		t.Cleanup(func() { _ = in.Close() })
	}
	line := func(p process) string {
		if !p.out.Scan() {
			t.Fatalf("a gateway ended early: %v", p.Wait())
		}
		return p.out.Text()
	}
	tell := func(p process, text string) {
		if _, err := p.in.Write([]byte(text + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range processes {
		line(p)
	}
	for _, p := range processes {
		tell(p, "start")
	}
	var tokens []string
	secrets := make(map[string]bool)
	for _, p := range processes {
		token, secret, _ := strings.Cut(line(p), " ")
		tokens, secrets[secret] = append(tokens, token), true
	}
	for _, p := range processes {
		for _, token := range tokens {
			tell(p, token)
		}
		if err := p.in.(interface{ Close() error }).Close(); err != nil {
			t.Fatal(err)
		}
		if got := line(p); got != "opened all" {
			t.Errorf("a gateway says %q", got)
		}
		if err := p.Wait(); err != nil {
			t.Errorf("a gateway: %v", err)
		}
	}
	if len(secrets) != 1 {
		t.Errorf("%d different secrets", len(secrets))
	}
	checkOneKey(t, path)
}

func checkOneKey(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || !strings.HasPrefix(entries[0].Name(), "key-") {
		t.Errorf("the directory holds %v, want one key", entries)
	}
}

func TestThreeRingsAtOnceOnAnEmptyDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	var rings [3]*Ring
	for i := range rings {
		rings[i] = newRing(t, Options{Repository: directory.New(path), AutoGenerate: true})
	}
	var tokens [12]string
	var secrets [len(tokens)][32]byte
	var wg sync.WaitGroup
	for i := range tokens {
		wg.Go(func() {
			var err error
			ring := rings[i%len(rings)]
			if secrets[i], err = ring.Secret(t.Context(), "x"); err != nil {
				t.Errorf("secret: %v", err)
			}
			if tokens[i], err = ring.Protector("p").Seal(t.Context(), []byte("hello")); err != nil {
				t.Errorf("seal: %v", err)
			}
		})
	}
	wg.Wait()
	for _, ring := range rings {
		for i, token := range tokens {
			if got, err := ring.Protector("p").Open(t.Context(), token); err != nil || got != "hello" {
				t.Errorf("opening: %q, %v", got, err)
			}
			if secrets[i] != secrets[0] {
				t.Error("secrets differ")
			}
		}
	}
	checkOneKey(t, path)
}

// TestThreeRingsRotateAtOnce: when a successor is due, and when every key has
// expired, three gateways make one key.
func TestThreeRingsRotateAtOnce(t *testing.T) {
	for name, after := range map[string]time.Duration{
		"successor due": DefaultKeyLifetime - 24*time.Hour,
		"all expired":   DefaultKeyLifetime + 24*time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			if err := directory.New(path).Add(t.Context(), "key-first", []byte(keyAt(KeyID{1}, atStart()))); err != nil {
				t.Fatal(err)
			}
			now := func() time.Time { return atStart().Add(after) }
			var wg sync.WaitGroup
			for range 3 {
				ring := newRing(t, Options{Repository: directory.New(path), AutoGenerate: true, Now: now})
				for range 3 {
					wg.Go(func() {
						if _, err := ring.Protector("p").Seal(t.Context(), nil); err != nil {
							t.Errorf("seal: %v", err)
						}
						ring.awaitMaking(t.Context())
					})
				}
			}
			wg.Wait()
			if entries, err := os.ReadDir(path); err != nil || len(entries) != 2 {
				t.Errorf("the directory holds %v, want two keys (%v)", entries, err)
			}
		})
	}
}
