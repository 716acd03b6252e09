package ratelimit

import (
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/problem"
)

// Refused is the cause of a "rate-limited" refusal, found with errors.AsType:
// the zone that refused, of several the one with the longest wait. It is
// shared and must not be changed.
type Refused struct{ Zone string }

// Error names the zone.
func (r *Refused) Error() string { return "ratelimit: zone " + r.Zone + " is full" }

const (
	codeLimited     = "rate-limited"
	codeUnavailable = "rate-limit-store-unavailable"

	// storeRetry is what clients are told to wait when the store is away: the
	// time until the breaker tries it again.
	storeRetry = probeInterval

	// statusClientLeft is never seen by a client: it had gone.
	statusClientLeft = 499
)

// refusal is zero-wait when waiting does not help.
func refusal(z *zone, wait time.Duration) *problem.Error {
	return problem.New(codeLimited, z.refused).WithRetryAfter(wait)
}

func unavailable(cause error) *problem.Error {
	return problem.New(codeUnavailable, cause).WithRetryAfter(storeRetry)
}

func clientLeft(cause error) *problem.Error {
	return problem.New(codeUnavailable, cause).WithStatus(statusClientLeft)
}
