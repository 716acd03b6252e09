package shortlived

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// The limits of keys, values and lifetimes, the same in every store.
const (
	// MaxKey is the longest key in bytes; the empty key is none.
	MaxKey = 1024
	// MaxValue is the longest value in bytes (1 MiB); the empty value is one.
	MaxValue = 1 << 20
	// MinLifetime is the shortest lifetime. Stores may drop what is finer than
	// a millisecond.
	MinLifetime = time.Millisecond
)

// Errors of calls that no store can serve. Nothing is changed by them.
var (
	// ErrInvalid means that the key, the value or the lifetime is outside the
	// limits, which is a mistake of the caller.
	ErrInvalid = errors.New("shortlived: invalid argument")
	// ErrOverflow means that the count would leave the range of an int64. The
	// count and its lifetime stay as they are.
	ErrOverflow = errors.New("shortlived: the count would overflow")
)

// CheckKey returns an error that wraps ErrInvalid when no store takes the key.
func CheckKey(key string) error {
	if key == "" || len(key) > MaxKey {
		return fmt.Errorf("%w: a key of %d bytes (want 1 to %d)", ErrInvalid, len(key), MaxKey)
	}
	return nil
}

// CheckValue returns an error that wraps ErrInvalid when no store takes the
// value.
func CheckValue(value []byte) error {
	if len(value) > MaxValue {
		return fmt.Errorf("%w: a value of %d bytes (want at most %d)", ErrInvalid, len(value), MaxValue)
	}
	return nil
}

// CheckLifetime returns an error that wraps ErrInvalid when no store takes the
// lifetime.
func CheckLifetime(lifetime time.Duration) error {
	if lifetime < MinLifetime {
		return fmt.Errorf("%w: a lifetime of %v (want at least %v)", ErrInvalid, lifetime, MinLifetime)
	}
	return nil
}

// ParseCount reads a count. A value is a count exactly when it is the text
// that strconv.FormatInt writes for some int64: "0", "-7", "42", but not "+1",
// "007" or " 1". It does not matter whether Increment or TryAdd stored it.
func ParseCount(value []byte) (int64, bool) {
	if len(value) == 0 || len(value) > len("-9223372036854775808") {
		return 0, false
	}
	if c := value[0]; c != '-' && (c < '0' || c > '9') {
		return 0, false
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return 0, false
	}
	var text [20]byte
	return n, bytes.Equal(strconv.AppendInt(text[:0], n, 10), value)
}

// AddCount returns count + amount, or ErrOverflow.
func AddCount(count, amount int64) (int64, error) {
	sum := count + amount
	if (amount > 0 && sum < count) || (amount < 0 && sum > count) {
		return 0, ErrOverflow
	}
	return sum, nil
}
