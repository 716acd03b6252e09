package dataprotection

import (
	"errors"
	"fmt"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore"
)

// Errors that callers branch on. Those of a token are all ErrUnreadable; the
// others are faults of the ring.
var (
	// ErrUnreadable means that the token does not open: it is not a token, was
	// altered, or was sealed with other keys or for other purposes. Clients
	// should not learn which.
	ErrUnreadable = errors.New("dataprotection: token is unreadable")
	// ErrUnknownKey means that the ring has no key of the token's id, which
	// another process may have. It is ErrUnreadable too.
	ErrUnknownKey = fmt.Errorf("%w: its key is not in the ring", ErrUnreadable)
	// ErrUnusableKey means that the token's key is in the ring and cannot be
	// used by this process; the error says why. It is ErrUnknownKey too, since
	// another process may be able to.
	ErrUnusableKey = fmt.Errorf("%w in a usable form", ErrUnknownKey)
	// ErrRevoked means that the token's key is revoked. It is ErrUnreadable too.
	ErrRevoked = fmt.Errorf("%w: its key is revoked", ErrUnreadable)

	// ErrUnavailable means that the repository cannot be reached now, and that
	// no ring has been read before. It is ringstore.ErrUnavailable.
	ErrUnavailable = ringstore.ErrUnavailable
	// ErrBroken means that the repository is there and cannot be read, or holds
	// a revocation that cannot be understood.
	ErrBroken = errors.New("dataprotection: key ring is broken")
	// ErrNoKey means that no key can seal and that none may be created.
	ErrNoKey = errors.New("dataprotection: key ring has no usable key")
	// ErrTooLarge means that a plaintext is larger than any token.
	ErrTooLarge = errors.New("dataprotection: plaintext is too large")
)

// The defects of a token, for logs.
var (
	errForm    = fmt.Errorf("%w: it is not base64url", ErrUnreadable)
	errSize    = fmt.Errorf("%w: its length is wrong", ErrUnreadable)
	errHeader  = fmt.Errorf("%w: it does not begin with the magic header", ErrUnreadable)
	errVersion = fmt.Errorf("%w: its format version is not known", ErrUnreadable)
	errForged  = fmt.Errorf("%w: its authentication code is wrong", ErrUnreadable)
	errPadding = fmt.Errorf("%w: its padding is wrong", ErrUnreadable)
)
