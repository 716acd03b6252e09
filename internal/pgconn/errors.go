package pgconn

import (
	"context"
	"errors"
	"net"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// Kinds of errors that callers and operators tell apart.
var (
	// ErrUnavailable means that the server could not be asked or did not answer
	// in time; whether a write was carried out is unknown. It may pass by
	// itself.
	ErrUnavailable = errors.New("postgres: unavailable")
	// ErrPermission means that the user may not connect or lacks a right.
	ErrPermission = errors.New("postgres: permission denied")
	// ErrDiskFull means that the server has no room to write.
	ErrDiskFull = errors.New("postgres: disk full")
	// ErrReadOnly means that the server takes no writes: a replica, or
	// default_transaction_read_only.
	ErrReadOnly = errors.New("postgres: the server is read-only")
)

// SQLSTATE codes that stores branch on.
const (
	CodeUndefinedTable = "42P01"
	CodeInvalidSchema  = "3F000"
	CodeOutOfRange     = "22003"
)

const readOnlyText = "the server takes no writes (a replica, or default_transaction_read_only is on)"

// Error is a failed operation. Its text is made here and holds nothing of the
// URL, the statement or the values: a server's own messages may.
type Error struct {
	// Kind is one of the sentinels above, or nil.
	Kind error
	// Code is the SQLSTATE, empty when the server said nothing.
	Code string

	text  string
	ended error // the context's error, when it ended the operation
}

func (e *Error) Error() string {
	if e.Code != "" {
		return "postgres: " + e.text + " (SQLSTATE " + e.Code + ")"
	}
	return "postgres: " + e.text
}

// Unwrap gives the kind and, where the context ended the operation, its error.
func (e *Error) Unwrap() []error {
	var all []error
	for _, err := range []error{e.Kind, e.ended} {
		if err != nil {
			all = append(all, err)
		}
	}
	return all
}

// Unavailable reports whether an error may pass by itself: the network, a
// server that starts or shuts down, a read-only replica in a fail-over, too
// many connections, a timeout.
func Unavailable(err error) bool {
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrReadOnly)
}

// Code returns the SQLSTATE of an error, or "".
func Code(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// Classify turns an error of the client into one that can be shown. The
// context is the operation's.
func Classify(ctx context.Context, err error) *Error {
	if server, ok := errors.AsType[*pgconn.PgError](err); ok {
		e := byCode(server.Code)
		if ctx.Err() != nil {
			e.ended = ctx.Err()
		}
		return e
	}
	if errors.Is(err, pgconn.ErrReadOnlyConnection) {
		return &Error{Kind: ErrReadOnly, text: readOnlyText}
	}
	e := &Error{Kind: ErrUnavailable, ended: ctx.Err()}
	errno, isErrno := errors.AsType[syscall.Errno](err)
	name, isName := errors.AsType[*net.DNSError](err)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		e.text = "no answer in time"
	case ctx.Err() != nil:
		e.text = "the caller gave up"
	case isName:
		e.text = "the host's name cannot be resolved"
		if name.IsNotFound {
			e.text = "the host's name is unknown"
		}
	case isErrno:
		e.text = "the server cannot be reached: " + errno.Error()
	case pgconn.Timeout(err):
		e.text = "the server cannot be reached in time"
	default:
		e.text = "the connection was lost or could not be made"
	}
	return e
}

// byCode reads a SQLSTATE (PostgreSQL documentation, appendix A).
func byCode(code string) *Error {
	e := &Error{Code: code}
	class := code[:min(2, len(code))]
	switch {
	case code == "25006":
		e.Kind, e.text = ErrReadOnly, readOnlyText
	case code == "42501":
		e.Kind, e.text = ErrPermission, "the user lacks a right"
	case class == "28":
		e.Kind, e.text = ErrPermission, "the server does not let the user in (password, pg_hba.conf)"
	case code == "53100":
		e.Kind, e.text = ErrDiskFull, "the server's disk is full"
	case code == "53300":
		e.Kind, e.text = ErrUnavailable, "the server has too many connections"
	case class == "53":
		e.Kind, e.text = ErrUnavailable, "the server is short of resources"
	case code == "57P03":
		e.Kind, e.text = ErrUnavailable, "the server is starting up or shutting down"
	case code == "57P01", code == "57P02":
		e.Kind, e.text = ErrUnavailable, "the server is shutting down or ended the connection"
	case code == "57014", code == "55P03", code == "57P05", code == "25P03", code == "25P04":
		e.Kind, e.text = ErrUnavailable, "the server ended the statement by one of its timeouts"
	case class == "08", class == "57":
		e.Kind, e.text = ErrUnavailable, "the connection failed"
	case class == "40":
		e.Kind, e.text = ErrUnavailable, "the statement lost against another one and was rolled back"
	case class == "58", class == "XX":
		e.Kind, e.text = ErrUnavailable, "the server has a fault of its own"
	case code == "3D000":
		e.text = "the database does not exist"
	case code == CodeUndefinedTable:
		e.text = "the table does not exist"
	case code == CodeInvalidSchema:
		e.text = "the schema does not exist"
	case class == "42":
		e.text = "the table is not as expected"
	default:
		e.text = "the server refused the statement"
	}
	return e
}
