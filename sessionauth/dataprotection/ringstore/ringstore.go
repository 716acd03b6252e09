// Package ringstore is the contract of the repositories that hold a key ring:
// a set of XML elements, each a key or a revocation. A repository knows names
// and bytes; what the elements mean is the business of its caller.
//
// A repository never loses or hides an element silently. Elements returns all
// of them or an error, because a revocation that is overlooked would bring a
// revoked key back.
package ringstore

import (
	"context"
	"errors"
)

// ErrUnavailable means that the repository cannot be reached now and may be
// later: a server that is down, a share that is away. Any other error of
// Elements means that the repository is there and cannot be read.
var ErrUnavailable = errors.New("ringstore: repository is unavailable")

// Element is one stored element.
type Element struct {
	// Name says where it comes from, for logs: a file name without its
	// extension, or whatever the repository has.
	Name string
	// XML is the document as stored, UTF-8. A byte order mark and an XML
	// declaration may stand before the element.
	XML []byte
}

// Repository holds the elements of one ring. All methods are safe for
// concurrent use, by any number of processes.
type Repository interface {
	// Elements returns every element, in any order. A repository that does not
	// exist yet is empty.
	Elements(ctx context.Context) ([]Element, error)

	// Add stores an element durably. The name is a suggestion such as
	// "key-<id>", used where the repository has names. The XML is one element,
	// indented by two spaces, without byte order mark and declaration. A reader
	// sees the whole element or none of it.
	Add(ctx context.Context, name string, xml []byte) error
}

// Locker is an optional ability of a Repository, found by type assertion: at
// most one process at a time creates a key.
type Locker interface {
	// Lock waits for the lock until ctx ends. The lock of a holder that died
	// is taken over after about ten seconds at the latest. The lock saves
	// needless keys, nothing depends on it: two holders at once would create
	// two keys, both of them good.
	Lock(ctx context.Context) (unlock func(), err error)
}
