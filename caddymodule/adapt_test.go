package caddymodule

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
)

var update = flag.Bool("update", false, "write the golden files anew")

const separator = "\n----------\n"

// adapt turns a Caddyfile into JSON, as caddy adapt does.
func adapt(t *testing.T, caddyfile string) ([]byte, error) {
	t.Helper()
	out, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "Caddyfile"})
	for _, w := range warnings {
		if !strings.Contains(w.Message, "not formatted") {
			t.Errorf("warning: %v", w)
		}
	}
	return out, err
}

// TestAdaptGolden compares every testdata/adapt file: a Caddyfile, a line of
// dashes, and the JSON it stands for or a part of the error it gives.
func TestAdaptGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/adapt/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".caddyfiletest"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			input, want, ok := strings.Cut(string(raw), separator)
			if !ok && !*update {
				t.Fatal("the file has no line of dashes")
			}
			out, err := adapt(t, input)
			got := ""
			if err != nil {
				got = err.Error()
			} else {
				var pretty bytes.Buffer
				if err := json.Indent(&pretty, out, "", "\t"); err != nil {
					t.Fatal(err)
				}
				got = pretty.String()
			}
			if *update {
				if err := os.WriteFile(file, []byte(input+separator+got+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != strings.TrimSpace(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
			if err == nil {
				survivesRoundTrip(t, out)
			}
		})
	}
}

// survivesRoundTrip decodes every module of ours in a configuration strictly
// and encodes it again: the same must come out.
func survivesRoundTrip(t *testing.T, config []byte) {
	t.Helper()
	var tree any
	if err := json.Unmarshal(config, &tree); err != nil {
		t.Fatal(err)
	}
	ours := make(map[string]func() caddy.Module)
	for _, m := range modules {
		info := m.CaddyModule()
		ours[info.ID.Name()] = info.New
	}
	var walk func(node any)
	walk = func(node any) {
		switch node := node.(type) {
		case []any:
			for _, child := range node {
				walk(child)
			}
		case map[string]any:
			if name, ok := node["handler"].(string); ok && ours[name] != nil {
				roundTrip(t, ours[name](), node, "handler")
			}
			for name, child := range node {
				if app, ok := child.(map[string]any); ok && name == "gatehouse" {
					roundTrip(t, new(App), app, "")
				}
				walk(child)
			}
		}
	}
	walk(tree)
}

func roundTrip(t *testing.T, m caddy.Module, node map[string]any, inline string) {
	t.Helper()
	plain := make(map[string]any)
	for k, v := range node {
		if k != inline {
			plain[k] = v
		}
	}
	before, err := json.Marshal(plain)
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(before))
	dec.DisallowUnknownFields()
	if err := dec.Decode(m); err != nil {
		t.Errorf("%T does not read its own JSON: %v", m, err)
		return
	}
	encoded, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var again map[string]any
	if err := json.Unmarshal(encoded, &again); err != nil {
		t.Fatal(err)
	}
	after, _ := json.Marshal(again)
	if !bytes.Equal(before, after) {
		t.Errorf("%T changed its JSON:\n%s\n%s", m, before, after)
	}
}
