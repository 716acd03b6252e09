// Package shortlived is the contract of the short-lived store: five
// operations, each atomic over all servers that share the store. An expired
// value is absent.
package shortlived

import (
	"context"
	"errors"
	"time"
)

// Errors that callers branch on. Any other error means that the store could
// not be asked or could not tell.
var (
	// ErrNotFound means that there is no live value at the key.
	ErrNotFound = errors.New("shortlived: not found")
	// ErrFull means that a bounded store is full of live values. Callers fail
	// closed.
	ErrFull = errors.New("shortlived: store is full")
	// ErrNotCounter means that Increment met a value that is no count.
	ErrNotCounter = errors.New("shortlived: the value is not a count")
)

// Store keeps values for a short time. Keys are 1 to 1024 bytes, values up to
// 1 MiB, lifetimes at least a millisecond; anything else is an error. Every
// method is safe for concurrent use.
type Store interface {
	// TryAdd stores the value unless the key holds a live one. Of several
	// callers at once exactly one is told true.
	TryAdd(ctx context.Context, key string, value []byte, lifetime time.Duration) (added bool, err error)
	// Get returns the value or ErrNotFound. The caller may keep the slice.
	Get(ctx context.Context, key string) ([]byte, error)
	// Take returns the value and deletes it, or ErrNotFound. A value is given
	// out once at the most.
	Take(ctx context.Context, key string) ([]byte, error)
	// Remove deletes the value, if there is one.
	Remove(ctx context.Context, key string) error
	// Increment adds amount to the count at the key, counting from 0 when it
	// is absent, renews its lifetime and returns the new count. Get reads a
	// count as decimal text.
	Increment(ctx context.Context, key string, amount int64, lifetime time.Duration) (count int64, err error)
}
