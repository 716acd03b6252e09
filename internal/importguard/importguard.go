// Package importguard holds the rules about who may import whom in this
// module. Its tests apply them to the module as it is.
//
// The directions are caddymodule -> feature -> store. Features stand beside
// each other, stores are leaves, and only caddymodule knows Caddy, zap and
// Prometheus, so that everything else serves any Go program.
package importguard

import (
	"fmt"
	"slices"
	"strings"
)

// Module is the path of this module.
const Module = "github.com/gatehouse-gateway/gatehouse"

// Package is what `go list -json` tells of a package.
type Package struct {
	ImportPath   string
	Imports      []string // of the package itself
	TestImports  []string // of its tests
	XTestImports []string // of its tests in a package of their own
	Deps         []string // all that Imports lead to
}

var (
	// features may not import each other.
	features = []string{"sessionauth", "ratelimit", "chunkedupload", "idempotency", "outbox"}
	// stores hold a contract and its implementations and import no feature.
	// The part of the path that a feature's store has beneath it is no feature.
	stores = []string{"sessionauth/sessionstore", "ratelimit/limitstore", "chunkedupload/uploadstore", "shortlived"}
	// glue are the packages that may know Caddy: the modules themselves, and
	// tests and benchmarks of the whole.
	glue = []string{"caddymodule", "internal/e2e", "internal/bench"}
	// foreign is what only glue may import.
	foreign = []string{"github.com/caddyserver", "go.uber.org/zap", "github.com/prometheus"}
)

// Violations returns a sentence for each import that breaks a rule, sorted.
func Violations(packages []Package) []string {
	var found []string
	for _, p := range packages {
		from, ok := local(p.ImportPath)
		if !ok {
			continue
		}
		found = append(found, foreignImports(from, p)...)
		for _, path := range p.Imports {
			if to, ok := local(path); ok {
				if rule := broken(from, to); rule != "" {
					found = append(found, fmt.Sprintf("%s imports %s: %s", from, to, rule))
				}
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// foreignImports looks for Caddy, zap and Prometheus: in what the package and
// its tests import, and in all that the package leads to.
func foreignImports(from string, p Package) []string {
	if under(from, glue) {
		return nil
	}
	var found []string
	for _, path := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
		if under(path, foreign) {
			found = append(found, fmt.Sprintf("%s imports %s: only caddymodule may", from, path))
		}
	}
	for _, path := range p.Deps {
		if under(path, foreign) && !slices.Contains(p.Imports, path) {
			found = append(found, fmt.Sprintf("%s depends on %s: only caddymodule may", from, path))
		}
	}
	return found
}

// broken returns the rule that an import inside the module breaks, or nothing.
func broken(from, to string) string {
	switch {
	case under(to, glue) && !under(from, glue):
		return "nothing below knows the glue"
	case under(from, stores) && under(to, features) && !under(to, stores):
		return "a store is a leaf"
	case under(from, stores) && under(to, stores) && first(from, stores) != first(to, stores):
		return "stores stand apart"
	case under(from, features) && under(to, features) && first(from, features) != first(to, features):
		return "features stand apart"
	case under(from, []string{"shortlived", "internal"}) && !under(from, glue) && under(to, features):
		return "it serves the features and knows none"
	}
	return ""
}

// local cuts the module's path off.
func local(path string) (string, bool) {
	if path == Module {
		return ".", true
	}
	return strings.CutPrefix(path, Module+"/")
}

// under reports whether path is one of the folders or lies beneath one.
func under(path string, folders []string) bool { return first(path, folders) != "" }

// first returns the folder that path is or lies beneath.
func first(path string, folders []string) string {
	for _, folder := range folders {
		if rest, ok := strings.CutPrefix(path, folder); ok && (rest == "" || rest[0] == '/') {
			return folder
		}
	}
	return ""
}
