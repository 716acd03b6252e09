package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/gatehouse-gateway/gatehouse/internal/servers"
)

// TestDemo visits the page of Caddyfile.example in a real browser: sign-in,
// the limit, an upload of 50 MiB with a pause, a reload and a resume, sign-out.
func TestDemo(t *testing.T) {
	port := strconv.Itoa(servers.FreePort(t))
	home := t.TempDir()
	env := append(homeIn(home),
		"GATEHOUSE_DEMO_PORT="+port,
		"GATEHOUSE_DEMO_APP_PORT="+strconv.Itoa(servers.FreePort(t)),
		"GATEHOUSE_DEMO_ADMIN=off")
	gate := newProcess(t, "gatehouse", "127.0.0.1:"+port, env, binary, "run", "--config", "Caddyfile.example")
	gate.start(t)

	file, other := filepath.Join(home, "big file.bin"), filepath.Join(home, "other.bin")
	for name, size := range map[string]int{file: 50 << 20, other: 20 << 20} {
		if err := os.WriteFile(name, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	chromium := program(t, "apt-get install chromium", "chromium", "chromium-browser", "google-chrome")
	shots := t.ArtifactDir()
	if _, err := node(t, []string{"CHROMIUM=" + chromium}, "demo.mjs", "http://localhost:"+port+"/", shots, file, other); err != nil {
		t.Fatalf("visiting the demo: %v (screenshots in %s; keep them with -artifacts)", err, shots)
	}
}
