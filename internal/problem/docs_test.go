package problem

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const errorsPage = "../../docs/errors.md"

// row is a line of the table of codes: | `code` | status | when | what to do |
var row = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (\\d+) \\| (.*) \\| (.*) \\|$")

// TestErrorsPage holds docs/errors.md and the table of codes together: every
// code stands there once, with its status, when it comes and what to do.
func TestErrorsPage(t *testing.T) {
	page, err := os.ReadFile(errorsPage)
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[string]bool)
	for _, cells := range row.FindAllStringSubmatch(string(page), -1) {
		code, when, todo := cells[1], strings.TrimSpace(cells[3]), strings.TrimSpace(cells[4])
		entry, known := Codes[code]
		switch {
		case documented[code]:
			t.Errorf("%s: %s stands twice", errorsPage, code)
		case !known:
			t.Errorf("%s: there is no code %s", errorsPage, code)
		case strconv.Itoa(entry.Status) != cells[2]:
			t.Errorf("%s: %s has status %s there and %d here", errorsPage, code, cells[2], entry.Status)
		case when == "" || todo == "":
			t.Errorf("%s: %s lacks when it comes or what to do", errorsPage, code)
		}
		documented[code] = true
	}
	for _, code := range slices.Sorted(maps.Keys(Codes)) {
		if !documented[code] {
			t.Errorf("%s: the code %s (%d, %q) is missing", errorsPage, code, Codes[code].Status, Codes[code].Title)
		}
	}
}

// TestPagesNameKnownCodes looks for codes in all pages: what links to the page
// of errors must be there.
func TestPagesNameKnownCodes(t *testing.T) {
	entries, err := os.ReadDir("../../docs")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile("\\[`([a-z-]+)`\\]\\(errors\\.md\\)")
	found := 0
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".md") {
			continue
		}
		page, err := os.ReadFile("../../docs/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(page), -1) {
			found++
			if _, known := Codes[m[1]]; !known {
				t.Errorf("docs/%s: there is no code %s", e.Name(), m[1])
			}
		}
	}
	if found == 0 {
		t.Error("no page links a code: the pattern is out of date")
	}
}
