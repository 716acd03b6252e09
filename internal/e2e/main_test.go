package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

var (
	// repository is the top of the source tree.
	repository = func() string {
		dir, err := filepath.Abs("../..")
		if err != nil {
			panic(err)
		}
		return dir
	}()
	// binary is the program under test, built once.
	binary string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "gatehouse-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "gatehouse")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", binary, "./caddymodule/gatehouse")
	build.Dir = repository
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the program: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// program returns the path of the first program that is installed, or fails
// the test with the command that installs it.
func program(t testing.TB, install string, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatalf("%s is missing: %s", names[0], install)
	return ""
}
