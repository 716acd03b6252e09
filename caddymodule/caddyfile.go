package caddymodule

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// Small typed parsers for subdirectives. Each stands on the subdirective's
// word, takes its arguments and reports errors with the Caddyfile's line.

// once refuses a subdirective that was set before.
type once map[string]bool

func (o once) check(d *caddyfile.Dispenser) error {
	word := d.Val()
	if o[word] {
		return d.Errf("%s is already set", word)
	}
	o[word] = true
	return nil
}

// unknownWord is the error for a subdirective that does not exist.
func unknownWord(d *caddyfile.Dispenser, want ...string) error {
	return d.Errf("unrecognized subdirective %q (want %s)", d.Val(), strings.Join(want, ", "))
}

// noBlock refuses a block where none belongs.
func noBlock(d *caddyfile.Dispenser, word string) error {
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		return d.Errf("%s takes no block", word)
	}
	return nil
}

func parseString(d *caddyfile.Dispenser, into *string) error {
	if !d.AllArgs(into) {
		return d.ArgErr()
	}
	return nil
}

func parseDuration(d *caddyfile.Dispenser, into *caddy.Duration) error {
	word := d.Val()
	var text string
	if !d.AllArgs(&text) {
		return d.ArgErr()
	}
	dur, err := caddy.ParseDuration(text)
	if err != nil || dur <= 0 {
		return d.Errf("%s: %q is no duration above zero, like 250ms, 10m or 30d", word, text)
	}
	*into = caddy.Duration(dur)
	return nil
}

func parseOnOff(d *caddyfile.Dispenser, into *bool) error {
	word := d.Val()
	var text string
	if !d.AllArgs(&text) {
		return d.ArgErr()
	}
	switch text {
	case "on":
		*into = true
	case "off":
		*into = false
	default:
		return d.Errf("%s: want on or off, not %q", word, text)
	}
	return nil
}

// parseFlag takes a subdirective that stands alone, or with on or off.
func parseFlag(d *caddyfile.Dispenser, into *bool) error {
	if d.CountRemainingArgs() == 0 {
		*into = true
		return nil
	}
	return parseOnOff(d, into)
}

func parseSize(d *caddyfile.Dispenser, into *Size) error {
	word := d.Val()
	var text string
	if !d.AllArgs(&text) {
		return d.ArgErr()
	}
	n, err := ParseSize(text)
	if err != nil {
		return d.Errf("%s: %v", word, err)
	}
	*into = n
	return nil
}

// parseCount takes a whole number of at least the given one.
func parseCount(d *caddyfile.Dispenser, into *int64, least int64) error {
	word := d.Val()
	var text string
	if !d.AllArgs(&text) {
		return d.ArgErr()
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least {
		return d.Errf("%s: %q is no whole number of at least %d", word, text, least)
	}
	*into = n
	return nil
}

func parseList(d *caddyfile.Dispenser, into *[]string) error {
	args := d.RemainingArgs()
	if len(args) == 0 {
		return d.ArgErr()
	}
	*into = append(*into, args...)
	return nil
}

// Size is a number of bytes. In JSON and the Caddyfile it is a number or a
// number with a unit: B, KiB, MiB, GiB, TiB (powers of 1024), kB, MB, GB, TB
// (powers of 1000).
type Size int64

var sizeUnits = []struct {
	suffix string
	factor int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
}

// ParseSize reads a size.
func ParseSize(text string) (Size, error) {
	number, factor := text, int64(1)
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(text, u.suffix); ok {
			number, factor = strings.TrimSpace(rest), u.factor
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 || n > math.MaxInt64/factor {
		return 0, fmt.Errorf("%q is no size above zero, like 64MiB or 10GiB", text)
	}
	return Size(n * factor), nil
}

// UnmarshalJSON accepts a number of bytes or a text with a unit.
func (s *Size) UnmarshalJSON(b []byte) error {
	var n int64
	if err := json.Unmarshal(b, &n); err == nil {
		if n < 0 {
			return fmt.Errorf("size %d is negative", n)
		}
		*s = Size(n)
		return nil
	}
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return fmt.Errorf("size %s is neither a number of bytes nor a text like \"64MiB\"", b)
	}
	n2, err := ParseSize(text)
	*s = n2
	return err
}

// Limit is a duration or off.
type Limit struct {
	Duration time.Duration
	Off      bool
}

// ParseLimit reads a duration or the word off.
func ParseLimit(text string) (Limit, error) {
	if text == "off" {
		return Limit{Off: true}, nil
	}
	d, err := caddy.ParseDuration(text)
	if err != nil || d <= 0 {
		return Limit{}, fmt.Errorf("%q is neither off nor a duration above zero", text)
	}
	return Limit{Duration: d}, nil
}

// MarshalJSON writes "off" or the duration as text.
func (l Limit) MarshalJSON() ([]byte, error) {
	if l.Off {
		return []byte(`"off"`), nil
	}
	return json.Marshal(l.Duration.String())
}

// UnmarshalJSON accepts "off", a duration as text, or nanoseconds.
func (l *Limit) UnmarshalJSON(b []byte) error {
	var n int64
	if err := json.Unmarshal(b, &n); err == nil {
		if n <= 0 {
			return fmt.Errorf("duration %d is not above zero", n)
		}
		l.Duration, l.Off = time.Duration(n), false
		return nil
	}
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return fmt.Errorf("%s is neither \"off\" nor a duration", b)
	}
	parsed, err := ParseLimit(text)
	*l = parsed
	return err
}

// expand replaces {env.*}, {file.*} and {system.*} in a configuration value. An
// unknown or empty one is an error that names it, never the value.
func expand(field, value string) (string, error) {
	if !strings.ContainsAny(value, "{\\") {
		return value, nil
	}
	out, err := caddy.NewReplacer().ReplaceOrErr(value, true, true)
	if err != nil {
		return "", fmt.Errorf("%s: %w", field, err)
	}
	return out, nil
}
