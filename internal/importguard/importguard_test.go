package importguard

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestImports applies the rules to the module.
func TestImports(t *testing.T) {
	packages := list(t)
	for _, violation := range Violations(packages) {
		t.Error(violation)
	}
	// The rules would hold for nothing if the list missed what they are about.
	for _, must := range []string{"shortlived/memory", "sessionauth/sessionstore", "chunkedupload/uploadstore", "internal/redisconn"} {
		if !slices.ContainsFunc(packages, func(p Package) bool { return p.ImportPath == Module+"/"+must }) {
			t.Errorf("go list names no package %s", must)
		}
	}
}

// list asks the go command for all packages of the module.
func list(t *testing.T) []Package {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports,Deps", Module+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, &stderr)
	}
	var packages []Package
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p Package
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatalf("reading the output of go list: %v", err)
		}
		packages = append(packages, p)
	}
}

func TestViolations(t *testing.T) {
	for _, c := range []struct {
		name string
		from string
		to   string
		want string // part of the sentence; empty: allowed
	}{
		{"the glue imports Caddy", "caddymodule", "github.com/caddyserver/caddy/v2", ""},
		{"the program imports Caddy", "caddymodule/gatehouse", "github.com/caddyserver/caddy/v2/cmd", ""},
		{"a test of the whole imports the glue", "internal/e2e", Module + "/caddymodule", ""},
		{"a benchmark of the whole imports Caddy", "internal/bench/gateway", "github.com/caddyserver/caddy/v2", ""},
		{"the glue imports features", "caddymodule", Module + "/sessionauth", ""},
		{"the glue imports stores", "caddymodule", Module + "/shortlived/redis", ""},
		{"a feature imports its store", "sessionauth", Module + "/sessionauth/sessionstore", ""},
		{"a feature imports its own parts", "sessionauth", Module + "/sessionauth/dataprotection", ""},
		{"a feature imports the short-lived store", "idempotency", Module + "/shortlived", ""},
		{"a feature imports a helper", "ratelimit", Module + "/internal/problem", ""},
		{"a store imports a helper", "ratelimit/limitstore/redis", Module + "/internal/redisconn", ""},
		{"a store imports its contract", "shortlived/memory", Module + "/shortlived", ""},
		{"a store's neighbour in the feature", "sessionauth/sessionstore/redis", Module + "/sessionauth/sessionstore/storetest", ""},
		{"a name that only begins alike", "ratelimiter", Module + "/sessionauth", ""},

		{"a feature imports Caddy", "ratelimit", "github.com/caddyserver/caddy/v2", "only caddymodule"},
		{"a feature imports another module of Caddy's", "ratelimit", "github.com/caddyserver/certmagic", "only caddymodule"},
		{"a feature imports zap", "sessionauth", "go.uber.org/zap", "only caddymodule"},
		{"a feature imports a part of zap", "sessionauth", "go.uber.org/zap/zapcore", "only caddymodule"},
		{"a store imports Prometheus", "chunkedupload/uploadstore/directory", "github.com/prometheus/client_golang/prometheus", "only caddymodule"},
		{"a helper imports Caddy", "internal/problem", "github.com/caddyserver/caddy/v2", "only caddymodule"},
		{"a feature imports the glue", "chunkedupload", Module + "/caddymodule", "knows the glue"},
		{"features import each other", "chunkedupload", Module + "/sessionauth", "features stand apart"},
		{"a feature imports another's store", "ratelimit", Module + "/sessionauth/sessionstore", "features stand apart"},
		{"a part of a feature imports another feature", "ratelimit/queue", Module + "/sessionauth", "features stand apart"},
		{"a store imports its feature", "sessionauth/sessionstore/redis", Module + "/sessionauth", "a store is a leaf"},
		{"a store imports a part of its feature", "sessionauth/sessionstore", Module + "/sessionauth/dataprotection", "a store is a leaf"},
		{"a store imports another store", "ratelimit/limitstore/memory", Module + "/shortlived", "stores stand apart"},
		{"the short-lived store imports a feature", "shortlived/redis", Module + "/ratelimit", "a store is a leaf"},
		{"a helper imports a feature", "internal/handler", Module + "/sessionauth", "knows none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkViolation(t, Package{ImportPath: Module + "/" + c.from, Imports: []string{c.to}, Deps: []string{c.to}}, c.want)
		})
	}
	checkViolation(t, Package{ImportPath: Module + "/ratelimit", Deps: []string{"go.uber.org/zap"}}, "ratelimit depends on go.uber.org/zap")
	checkViolation(t, Package{ImportPath: Module + "/ratelimit", TestImports: []string{"go.uber.org/zap"}}, "ratelimit imports go.uber.org/zap")
	checkViolation(t, Package{ImportPath: Module + "/ratelimit", XTestImports: []string{"go.uber.org/zap"}}, "ratelimit imports go.uber.org/zap")
	checkViolation(t, Package{ImportPath: "github.com/somebody/else", Imports: []string{"go.uber.org/zap"}}, "")
}

func checkViolation(t *testing.T, p Package, want string) {
	t.Helper()
	got := Violations([]Package{p})
	switch {
	case want == "" && len(got) > 0:
		t.Errorf("got %q, want none", got)
	case want != "" && (len(got) != 1 || !strings.Contains(got[0], want)):
		t.Errorf("got %q, want one about %q", got, want)
	}
}
