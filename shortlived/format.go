package shortlived

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"sync/atomic"
)

// FormatA begins every stored value that is no count, in the stores that
// gateways of several versions share. A count is stored as decimal text, so
// that the server can add to it. What begins otherwise was written by another
// version.
const FormatA = 'A'

// Encode gives a value its stored form.
func Encode(value []byte) []byte {
	if _, ok := ParseCount(value); ok {
		return value
	}
	return append(append(make([]byte, 0, 1+len(value)), FormatA), value...)
}

// Decode reads the stored form. It keeps the slice. Not ok: it is of another
// version, and counts as absent.
func Decode(stored []byte) (value []byte, ok bool) {
	if len(stored) > 0 && stored[0] == FormatA {
		return stored[1:len(stored):len(stored)], true
	}
	_, ok = ParseCount(stored)
	return stored, ok
}

// Unreadable counts and logs the values of another version that a store has
// met. It is safe for concurrent use.
type Unreadable struct {
	log   *slog.Logger
	count atomic.Uint64
}

// NewUnreadable makes one that warns in a log; nil: none.
func NewUnreadable(log *slog.Logger) *Unreadable {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Unreadable{log: log}
}

// Met reports such a value. The key may hold a name or a code and is shown as a
// hash.
func (u *Unreadable) Met(key string) {
	u.count.Add(1)
	sum := sha256.Sum256([]byte(key))
	u.log.Warn("short-lived value of another version counts as absent", "key_sha256", hex.EncodeToString(sum[:8]))
}

// Count returns how many there were.
func (u *Unreadable) Count() uint64 { return u.count.Load() }
