package chunkedupload

import (
	"errors"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
	"github.com/gatehouse-gateway/gatehouse/internal/problem"
)

// refusal is what a client is told instead of an outcome. Nil: nothing.
type refusal = *problem.Error

// What clients are told to wait, in cases that tell nothing better.
const (
	retryLocked  = 3 * time.Second
	retryRunning = 5 * time.Second
	retryStore   = 5 * time.Second
	retryBackend = 5 * time.Second
)

// storeRefusal is what a client is told about an error of the store.
func storeRefusal(err error) refusal {
	switch {
	case errors.Is(err, uploadstore.ErrNotFound), errors.Is(err, uploadstore.ErrAborted), errors.Is(err, uploadstore.ErrBroken):
		return problem.New("upload-not-found", err)
	case errors.Is(err, uploadstore.ErrBusy), errors.Is(err, uploadstore.ErrFenced), errors.Is(err, errYielded):
		return locked(err).WithDetail("Another request writes to this upload.")
	case errors.Is(err, uploadstore.ErrRunning), errors.Is(err, uploadstore.ErrLost):
		return running(err)
	case errors.Is(err, uploadstore.ErrClosed):
		return problem.New("upload-closed", err)
	case errors.Is(err, uploadstore.ErrOffset):
		return problem.New("upload-offset-mismatch", err)
	case errors.Is(err, uploadstore.ErrTooLong):
		return problem.New("upload-too-large", err).WithDetail("The body is longer than the upload's declared length.")
	case errors.Is(err, uploadstore.ErrFull):
		return problem.New("upload-store-full", err).WithRetryAfter(time.Minute)
	default:
		return problem.New("upload-store-unavailable", err).WithRetryAfter(retryStore)
	}
}

// locked and running are 423: the one status that tus clients take for "not
// now" on every method.
func locked(cause error) refusal {
	return problem.New("upload-locked", cause).WithRetryAfter(retryLocked)
}

func running(cause error) refusal {
	return problem.New("upload-locked", cause).WithRetryAfter(retryRunning).
		WithDetail("The application is still working on this upload.")
}

func badRequest(detail string, cause error) refusal {
	return problem.New("upload-bad-request", cause).WithDetail("%s", detail)
}

// temporary reports whether the upload is unharmed and may be completed later.
func temporary(e refusal) bool { return e.RetryAfter > 0 }

// neverServerError turns a refusal into one that a HEAD may carry: tus clients
// start over from the first byte after any other 4xx or 5xx than 423.
func neverServerError(e refusal) refusal {
	if e.Status >= 500 {
		return locked(e)
	}
	return e
}
