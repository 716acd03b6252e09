package shortlived

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		ok   bool
	}{
		{"an empty key is none", CheckKey(""), false},
		{"a key of one byte", CheckKey("k"), true},
		{"the longest key", CheckKey(strings.Repeat("k", MaxKey)), true},
		{"a key that is a byte too long", CheckKey(strings.Repeat("k", MaxKey+1)), false},
		{"a key of any bytes", CheckKey("\x00\xff\n"), true},
		{"no value is the empty value", CheckValue(nil), true},
		{"the longest value", CheckValue(make([]byte, MaxValue)), true},
		{"a value that is a byte too long", CheckValue(make([]byte, MaxValue+1)), false},
		{"the shortest lifetime", CheckLifetime(time.Millisecond), true},
		{"less than a millisecond", CheckLifetime(time.Millisecond - 1), false},
		{"no lifetime", CheckLifetime(0), false},
		{"a negative lifetime", CheckLifetime(-time.Second), false},
		{"the longest lifetime", CheckLifetime(math.MaxInt64), true},
	} {
		if (c.err == nil) != c.ok || (c.err != nil && !errors.Is(c.err, ErrInvalid)) {
			t.Errorf("%s: got %v, want ok %v or ErrInvalid", c.name, c.err, c.ok)
		}
	}
}

func TestParseCount(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int64
		ok   bool
	}{
		{"0", 0, true},
		{"42", 42, true},
		{"-7", -7, true},
		{"9223372036854775807", math.MaxInt64, true},
		{"-9223372036854775808", math.MinInt64, true},
		{"9223372036854775808", 0, false},
		{"", 0, false},
		{"-", 0, false},
		{"-0", 0, false},
		{"+1", 0, false},
		{"007", 0, false},
		{" 1", 0, false},
		{"1 ", 0, false},
		{"1.0", 0, false},
		{"1_000", 0, false},
		{"0x10", 0, false},
		{"one", 0, false},
	} {
		n, ok := ParseCount([]byte(c.text))
		if ok != c.ok || (ok && n != c.n) {
			t.Errorf("ParseCount(%q): got %d, %v, want %d, %v", c.text, n, ok, c.n, c.ok)
		}
	}
}

func FuzzParseCount(f *testing.F) {
	for _, s := range []string{"0", "-0", "12", "9223372036854775807", "1e3", "\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		if n, ok := ParseCount(value); ok && strconv.FormatInt(n, 10) != string(value) {
			t.Fatalf("ParseCount(%q) = %d, which is written otherwise", value, n)
		}
	})
}

func TestAddCount(t *testing.T) {
	for _, c := range []struct {
		count, amount, want int64
		overflow            bool
	}{
		{1, 2, 3, false},
		{1, -2, -1, false},
		{math.MaxInt64, 0, math.MaxInt64, false},
		{math.MaxInt64, 1, 0, true},
		{math.MinInt64, -1, 0, true},
		{math.MinInt64, math.MaxInt64, -1, false},
		{-1, math.MinInt64, 0, true},
	} {
		got, err := AddCount(c.count, c.amount)
		if got != c.want || errors.Is(err, ErrOverflow) != c.overflow {
			t.Errorf("AddCount(%d, %d): got %d, %v, want %d, overflow %v", c.count, c.amount, got, err, c.want, c.overflow)
		}
	}
}
