package e2e

import (
	"io/fs"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"
)

// siteWithDefaults is the smallest configuration with sessions.
const siteWithDefaults = `
{
	{GLOBAL}
}
http://a.test:{PORT} {
	session_auth
	reverse_proxy {APP}
}
`

// TestRestart shows that sessions outlive the gateway with nothing configured:
// the keys and the session store are files.
func TestRestart(t *testing.T) {
	app := startApp(t)
	for _, how := range []string{"orderly", "killed"} {
		t.Run(how, func(t *testing.T) {
			gate := startGateway(t, "gate", replace(siteWithDefaults, "{APP}", app))
			ada := newVisitor(t, "a.test", "test")
			ada.want(t, http.StatusNoContent, gate.addr, "POST", "/sign-in?name=ada")
			if how == "orderly" {
				gate.stop()
			} else {
				gate.kill()
			}
			gate.start(t)
			if got := ada.whoami(t, gate.addr); got != "ada" {
				t.Errorf("after the restart the user is %q, want ada", got)
			}
			ada.want(t, http.StatusNoContent, gate.addr, "POST", "/sign-out-everywhere")
			if got := ada.whoami(t, gate.addr); got != "" {
				t.Errorf("after signing out the user is %q", got)
			}
		})
	}
}

// TestValidateCreatesNothing shows that looking at a configuration makes no
// key, no database and no folder.
func TestValidateCreatesNothing(t *testing.T) {
	for _, command := range []string{"validate", "adapt"} {
		t.Run(command, func(t *testing.T) {
			gate := newGateway(t, "gate", replace(siteWithDefaults, "{APP}", "127.0.0.1:1"))
			home := t.TempDir()
			for _, config := range []string{gate.args[len(gate.args)-1], "Caddyfile.example"} {
				cmd := exec.Command(binary, command, "--config", config)
				cmd.Dir = repository
				cmd.Env = append(cmd.Environ(), homeIn(home)...)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%s %s: %v\n%s", command, config, err, out)
				}
			}
			for _, path := range filesIn(t, home) {
				t.Errorf("%s left %s behind", command, path)
			}
		})
	}
}

// filesIn lists the files below dir.
func filesIn(t testing.TB, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
