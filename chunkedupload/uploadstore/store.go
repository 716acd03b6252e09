// Package uploadstore is the contract of the stores that keep uploads: bytes,
// who writes them, who delivers them, and the one outcome. A store knows
// nothing of HTTP beyond the fields that it keeps.
//
// # Model
//
// An upload is created once (Info never changes), is filled by writers, is
// delivered under a claim, and ends with the first outcome that is stored.
// Any gateway may do any of these steps; the store decides between them.
//
//   - Bytes count as received only after Commit: they are durable then and are
//     never taken back, whatever dies afterwards.
//   - A serial upload (tus, the IETF draft: Info.ChunkSize 0) has one writer at
//     a time. A newcomer fences the older one off: after that nothing the older
//     one commits counts, and its Commit says ErrFenced.
//   - A chunked upload has any number of writers, one a chunk, in any order.
//   - No claim is given while a writer is live, and no writer while a claim is
//     live. A writer is taken for dead after WriterLapse without a sign of life,
//     a claim after ClaimLapse without renewal.
//   - Of several outcomes the first counts, and every later caller is given
//     that one.
//
// # How the protocols and stores fit
//
// tus and the draft write serially: Write(Offset: n), Commit when bytes were
// promised (the draft's 104) or the request ends. The draft invalidates an
// upload by settling it with StateInterrupted. A chunk is Write(Offset:
// n*ChunkSize, Size: its length); it is received whole or not at all, so that a
// digest can be checked before Commit. Parts of a concatenation are uploads
// that are never claimed; the final one is written from their readers. In a
// directory a commit is a synced record beside the data; on S3 it is a part (or
// a stored remainder) listed in a state object that is replaced conditionally,
// where the claim and the outcome are objects created with If-None-Match.
package uploadstore

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"time"
)

// The rhythm of liveness, the same on every gateway.
const (
	// ClaimRenewal is how often a claim is renewed.
	ClaimRenewal = 15 * time.Second
	// ClaimLapse is how long a claim lives without renewal.
	ClaimLapse = 60 * time.Second
	// WriterLapse is how long a chunk's writer is believed without a sign of
	// life. The writer of a serial upload can be fenced off sooner.
	WriterLapse = 60 * time.Second
	// HalfWritten is how long an incomplete state file is taken as being
	// written, by the file server's clock.
	HalfWritten = 60 * time.Second
)

// Errors that callers branch on. Any other error means that the store could
// not do it or could not tell: nothing may be concluded from it.
var (
	ErrNotFound = errors.New("uploadstore: not found")                        // no such upload
	ErrExists   = errors.New("uploadstore: exists already")                   // the id is taken
	ErrBusy     = errors.New("uploadstore: a writer is active")               // somebody else writes
	ErrRunning  = errors.New("uploadstore: a delivery is running")            // somebody else holds the claim
	ErrClosed   = errors.New("uploadstore: the upload has its outcome")       // no writes, no claim any more
	ErrOffset   = errors.New("uploadstore: offset differs")                   // not where the upload continues
	ErrTooLong  = errors.New("uploadstore: more bytes than declared")         // past Length or Size
	ErrFenced   = errors.New("uploadstore: another writer has taken over")    // stop writing
	ErrLost     = errors.New("uploadstore: the claim was lost")               // stop delivering
	ErrAborted  = errors.New("uploadstore: the upload was aborted")           // stop delivering
	ErrFull     = errors.New("uploadstore: no space left")                    // disk full, quota of the file system
	ErrBroken   = errors.New("uploadstore: the upload's state is unreadable") // damaged beyond waiting
)

// UnknownLength stands for a length that the client gives later.
const UnknownLength int64 = -1

// Info is what is known at creation. It is stored once and never changes.
type Info struct {
	ID          string // 32 characters of [A-Za-z0-9_-]
	Site        string
	Owner       string // the signed-in user; empty: whoever has the URL
	Protocol    string // tus, rufh or chunks
	Length      int64  // bytes, or UnknownLength
	ChunkSize   int64  // bytes; 0: serial
	Metadata    string // as the client gave it, in its protocol's own form
	Filename    string // untrusted
	ContentType string // untrusted
	Target      Target // the request that the delivery stands for
	Created     time.Time
	// Attributes are further facts that a protocol keeps (concatenation,
	// digest, idempotency key). Unknown ones are carried along.
	Attributes map[string]string
}

// Target is the request that a delivery stands for.
type Target struct {
	Method string
	Host   string
	URI    string      // path and query, as the client sent them
	Header http.Header // the fields that are kept for the delivery
}

// Range is a run of bytes, From inclusive, To exclusive.
type Range struct{ From, To int64 }

// State names where an upload stands.
type State string

// The states of an upload.
const (
	StateOpen        State = "open"        // takes bytes
	StateRunning     State = "running"     // a live claim exists
	StateDone        State = "done"        // the backend's answer is the outcome
	StateInterrupted State = "interrupted" // a delivery was cut off, the outcome says so
)

// Outcome is how an upload ended. Status, Header and Body are the backend's
// answer when State is StateDone.
type Outcome struct {
	State       State
	Status      int
	Header      http.Header
	Body        []byte
	BodyDropped bool // the body was larger than the gateway keeps
	Time        time.Time
}

// Status is a snapshot of an upload.
type Status struct {
	Info       Info
	Length     int64     // Info.Length, or the length given later, or UnknownLength
	Received   []Range   // committed bytes: sorted, merged, without empty ranges
	Progress   time.Time // the latest commit, or the creation
	Writing    bool      // a live writer exists
	Claimed    bool      // a claim exists that was neither released nor lapsed
	Lapsed     bool      // the newest claim was not released and has lapsed
	Deliveries int       // how many claims there were
	Outcome    *Outcome  // nil while there is none
}

// Offset returns how many bytes from the start are received without a gap.
func (s *Status) Offset() int64 {
	if len(s.Received) == 0 || s.Received[0].From != 0 {
		return 0
	}
	return s.Received[0].To
}

// Complete reports whether every byte is received.
func (s *Status) Complete() bool { return s.Length >= 0 && s.Offset() == s.Length }

// Store keeps uploads. It is safe for concurrent use.
type Store interface {
	// Create stores a new upload, durably, or says ErrExists.
	Create(ctx context.Context, info Info) (Upload, error)
	// Open finds an upload or says ErrNotFound.
	Open(ctx context.Context, id string) (Upload, error)
	// All yields the ids of all uploads, in no order. An error ends it.
	All(ctx context.Context) iter.Seq2[string, error]
}

// Upload is one upload. It is safe for concurrent use and needs no closing.
type Upload interface {
	// Status reads the upload's present state.
	Status(ctx context.Context) (Status, error)
	// Write begins to write. Errors: ErrOffset (serial and not at the end of
	// what is received), ErrBusy (a live writer; in a serial upload it has been
	// asked to yield), ErrRunning (also while a lapsed claim awaits its end),
	// ErrClosed. A chunk that is received may be written again: its bytes are
	// counted and dropped.
	Write(ctx context.Context, o WriteOptions) (Writer, error)
	// SetLength settles a length that was unknown. Another length than one
	// settled before, or below the offset, is ErrTooLong.
	SetLength(ctx context.Context, length int64) error
	// Reader reads the received bytes from offset on, up to the first that is
	// not received; the caller closes it. An offset in a gap is ErrOffset.
	Reader(ctx context.Context, offset int64) (io.ReadCloser, error)
	// Claim takes the right to deliver. Errors: ErrBusy while a writer is
	// live, ErrRunning while another holds the claim or a lapsed one awaits
	// its end (Settle, or TakeOver), ErrClosed.
	Claim(ctx context.Context, o ClaimOptions) (Claim, error)
	// Settle stores an outcome without a claim, for lapsed claims and
	// invalidated uploads. The first outcome counts; that one is returned.
	Settle(ctx context.Context, outcome Outcome) (Outcome, error)
	// Delete removes the upload. A delivery that runs anywhere learns of it
	// (ErrAborted) at its next renewal. Deleting what is gone is ErrNotFound.
	Delete(ctx context.Context) error
}

// WriteOptions say what will be written.
type WriteOptions struct {
	// Offset is where the bytes go.
	Offset int64
	// Size is how many bytes a chunk has; 0 in a serial upload.
	Size int64
	// Patience is how long to wait for an active writer of a serial upload to
	// yield or to prove dead, before ErrBusy.
	Patience time.Duration
}

// Writer writes bytes one after another from its offset. It is used by one
// goroutine, but for Yield. Close must be called, also after an error.
type Writer interface {
	io.Writer
	// Commit makes all bytes written so far durable and received, and returns
	// the offset after them. In a chunk it may be called once, when all bytes
	// are there. After ErrFenced nothing more is received, nor after ErrClosed
	// (an outcome has come), ErrAborted (the upload was deleted) and, for a
	// chunk, ErrRunning (its delivery has begun). After any other error but the
	// context's the writer commits nothing more either: begin again at the
	// offset that Status tells.
	Commit(ctx context.Context) (offset int64, err error)
	// Yield is closed when another wants to write and this writer has written
	// nothing for about three seconds: commit and close then.
	Yield() <-chan struct{}
	// Close ends the writer. Bytes not committed are not received.
	Close() error
}

// ClaimOptions say how to claim.
type ClaimOptions struct {
	// TakeOver claims over a lapsed claim, to deliver once more.
	TakeOver bool
}

// Claim is the right to deliver. The holder renews it every ClaimRenewal and
// stops delivering when it cannot: a claim lapses at others after ClaimLapse.
type Claim interface {
	// Renew proves life. ErrLost: another has taken over or settled;
	// ErrAborted: the upload was deleted.
	Renew(ctx context.Context) error
	// Finish stores the outcome, durably, and returns the one that counts.
	Finish(ctx context.Context, outcome Outcome) (Outcome, error)
	// Release gives the claim back without an outcome.
	Release(ctx context.Context) error
}
