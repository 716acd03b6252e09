package ratelimit

import (
	"errors"
	"net/http"

	"github.com/gatehouse-gateway/gatehouse/internal/handler"
	"github.com/gatehouse-gateway/gatehouse/internal/problem"
)

// ServeHTTP passes an admitted request on to next and returns what next
// returns. Otherwise it returns a *problem.Error, which the caller answers:
//
//   - rate-limited, with RetryAfter unless waiting does not help, and a cause
//     of type *Refused that names the zone;
//   - rate-limit-store-unavailable, with RetryAfter.
//
// The RateLimit fields are set on w in all cases.
func (l *Limiter) ServeHTTP(w http.ResponseWriter, r *http.Request, next handler.Handler) error {
	if err := l.admit(w.Header(), r); err != nil {
		return err
	}
	return next.ServeHTTP(w, r)
}

func (l *Limiter) admit(header http.Header, r *http.Request) error {
	q := l.questions.Get().(*question)
	defer l.questions.Put(q)
	q.reset()
	if !l.collect(q, r) {
		return nil
	}
	return l.decide(header, r, q)
}

// Wrap makes middleware for plain net/http, which answers refusals with a
// problem document.
func (l *Limiter) Wrap(next http.Handler) http.Handler {
	inner := handler.FromHTTP(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := l.ServeHTTP(w, r, inner)
		if err == nil {
			return
		}
		if refusal, ok := errors.AsType[*problem.Error](err); ok { // always: inner returns none
			refusal.Write(w, r, "")
		}
	})
}
