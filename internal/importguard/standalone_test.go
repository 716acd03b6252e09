package importguard

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// leaning are words that tie a file to the place where it was written: folders
// beside this repository, and the hosts of package registries, which the go
// command and apt know by themselves and a mirror replaces. They are written in
// two parts, so that this file does not hold them.
var leaning = []string{
	"../" + "shared",
	"/wo" + "rk/",
	".libr" + "ary",
	"proxy.go" + "lang.org",
	"sum.go" + "lang.org",
	"registry.npm" + "js.org",
	"registry.yarn" + "pkg.com",
	"deb.deb" + "ian.org",
	"security.deb" + "ian.org",
	"archive.ubu" + "ntu.com",
	"py" + "pi.org",
	"files.python" + "hosted.org",
	"static.crates" + ".io",
	"index.crates" + ".io",
}

// TestStandsAlone looks for them in every file of the repository.
func TestStandsAlone(t *testing.T) {
	root := moduleRoot(t)
	files := trackedFiles(t, root)
	if !slices.Contains(files, "go.mod") {
		t.Fatalf("the list of files lacks go.mod: %d files of %s", len(files), root)
	}
	for _, name := range files {
		data, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) { // deleted, not yet committed
			continue
		}
		if err != nil {
			t.Errorf("reading %s: %v", name, err)
			continue
		}
		for _, hit := range leaningLines(data) {
			t.Errorf("%s:%s", name, hit)
		}
	}
}

func TestLeaningLines(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"all is well\n", nil},
		{"one\nsee ../" + "shared/x\n", []string{`2: "../` + `shared"`}},
		{"/wo" + "rk/main", []string{`1: "/wo` + `rk/"`}},
		{"a working folder, network/x", nil},
		{"GOPROXY=https://PROXY.go" + "lang.org", []string{`1: "proxy.go` + `lang.org"`}},
	} {
		if got := leaningLines([]byte(c.text)); !slices.Equal(got, c.want) {
			t.Errorf("%q: got %q, want %q", c.text, got, c.want)
		}
	}
}

// leaningLines returns the hits in a text, each with its line number.
func leaningLines(text []byte) (hits []string) {
	number := 0
	for line := range bytes.Lines(text) {
		number++
		lower := strings.ToLower(string(line))
		for _, word := range leaning {
			if strings.Contains(lower, word) {
				hits = append(hits, fmt.Sprintf("%d: %q", number, word))
			}
		}
	}
	return hits
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatalf("go env GOMOD: %v", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
}

// trackedFiles returns the files that git tracks or, in a copy without git,
// all files.
func trackedFiles(t *testing.T, root string) []string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		return allFiles(t, root)
	}
	out, err := exec.Command("git", "-c", "safe.directory=*", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v (is git installed? apt-get install git)", err)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
}

func allFiles(t *testing.T, root string) (files []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
