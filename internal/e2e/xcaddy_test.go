package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	xcaddyVersion = "v0.4.5"
	caddyVersion  = "v2.11.9"
)

// TestXcaddyBuild builds Caddy with these modules from this source tree, as
// the README says, and looks for every module of ours in the result.
func TestXcaddyBuild(t *testing.T) {
	dir := t.TempDir()
	caddy := filepath.Join(dir, "caddy")
	if out, err := xcaddy(t, caddy, nil); err != nil {
		// Before the module is published, a proxy that forbids what it does not
		// know keeps Go from using the replacement; make "forbidden" mean "not
		// found" then.
		t.Logf("xcaddy: %v\n%s", err, out)
		if out, err := xcaddy(t, caddy, []string{"GOPROXY=" + forgivingProxy(t)}); err != nil {
			t.Fatalf("xcaddy: %v\n%s", err, out)
		}
	}
	theirs := modulesOf(t, caddy)
	ours := modulesOf(t, binary)
	for _, name := range []string{
		"gatehouse", "http.handlers.session_auth", "http.handlers.client_rate_limit", "http.handlers.chunked_upload",
		"http.handlers.gatehouse_guard", "http.matchers.session",
	} {
		if !slices.Contains(ours, name) {
			t.Errorf("the program of this repository lacks %s", name)
		}
	}
	for _, name := range ours {
		if !slices.Contains(theirs, name) {
			t.Errorf("xcaddy's program lacks %s", name)
		}
	}
}

func xcaddy(t testing.TB, output string, env []string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "run", "github.com/caddyserver/xcaddy/cmd/xcaddy@"+xcaddyVersion,
		"build", caddyVersion, "--output", output,
		"--with", "github.com/gatehouse-gateway/gatehouse/caddymodule",
		"--replace", "github.com/gatehouse-gateway/gatehouse=.")
	cmd.Dir = repository
	cmd.Env = append(os.Environ(), env...)
	return cmd.CombinedOutput()
}

// forgivingProxy is the present GOPROXY with the next source asked after any
// error, and without the version control systems.
func forgivingProxy(t testing.TB) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOPROXY").Output()
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(out)), ",")
	return first + "|off"
}

// modulesOf lists the module IDs of a program; the lines that count them hold
// spaces.
func modulesOf(t testing.TB, program string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, "list-modules").Output()
	if err != nil {
		t.Fatalf("%s list-modules: %v", program, err)
	}
	var ids []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line != "" && !strings.Contains(line, " ") {
			ids = append(ids, line)
		}
	}
	return ids
}
