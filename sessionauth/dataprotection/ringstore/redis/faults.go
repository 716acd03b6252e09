package redis

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore"
)

// Errors that waiting does not mend.
var (
	// ErrNotAList means that the key holds something else than a list.
	ErrNotAList = errors.New("the key does not hold a list")
	// ErrTooLarge means that the list is larger than any key ring.
	ErrTooLarge = fmt.Errorf("the list has more than %d entries or %d bytes", maxEntries, maxBytes)
	// ErrForbidden means that the user lacks a right; the package comment lists
	// those that are needed.
	ErrForbidden = errors.New("the Redis user lacks a right")
	// ErrSignIn means that the server wants a password, or another one.
	ErrSignIn = errors.New("the Redis server refuses the user or the password")
	// ErrReadOnly means that the server is a replica, which can only be read.
	ErrReadOnly = errors.New("the Redis server is a read-only replica")
	// ErrFull means that the server's memory is full.
	ErrFull = errors.New("the Redis server has no memory left")
)

// errUnknownOutcome marks faults after which the command may have been done.
var errUnknownOutcome = errors.New("no answer")

// meanings of the server's errors by their first word.
var meanings = map[string]error{
	"WRONGTYPE":   ErrNotAList,
	"NOPERM":      ErrForbidden,
	"NOAUTH":      ErrSignIn,
	"WRONGPASS":   ErrSignIn,
	"READONLY":    ErrReadOnly,
	"OOM":         ErrFull,
	"LOADING":     ringstore.ErrUnavailable,
	"BUSY":        ringstore.ErrUnavailable,
	"MASTERDOWN":  ringstore.ErrUnavailable,
	"NOREPLICAS":  ringstore.ErrUnavailable,
	"MISCONF":     ringstore.ErrUnavailable, // it cannot save, and refuses writes
	"CLUSTERDOWN": ringstore.ErrUnavailable,
	"TRYAGAIN":    ringstore.ErrUnavailable,
	"MOVED":       ringstore.ErrUnavailable,
	"ASK":         ringstore.ErrUnavailable,
}

// classify gives an error its meaning. What is no error of the server's is a
// fault of the network or a deadline.
func classify(err error) error {
	if err == nil || errors.Is(err, ErrTooLarge) || errors.Is(err, errReply) {
		return err
	}
	said, ok := errors.AsType[redis.Error](err)
	if !ok {
		return fmt.Errorf("%w: %w: %w", ringstore.ErrUnavailable, errUnknownOutcome, err)
	}
	// An unknown command is quoted with its arguments, which may be a key.
	text, _, _ := strings.Cut(said.Error(), ", with args")
	meaning := meanings[firstWord(text)]
	switch {
	case meaning != nil:
	case strings.Contains(text, "max number of clients"):
		meaning = ringstore.ErrUnavailable
	case strings.Contains(text, "The user executing the script"): // of scripts, before Redis 7.2
		meaning = ErrForbidden
	default:
		return fmt.Errorf("the Redis server answers: %s", text)
	}
	return fmt.Errorf("%w: %s", meaning, text)
}

func firstWord(s string) string {
	word, _, _ := strings.Cut(s, " ")
	return word
}
