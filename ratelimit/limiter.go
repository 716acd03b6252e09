package ratelimit

import (
	"context"
	"errors"
	"log/slog"
	"math/bits"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
)

// Limiter applies zones to requests. It is safe for concurrent use, runs no
// goroutine and needs no closing.
type Limiter struct {
	config    Config
	zones     []*zone
	policies  string // of all zones that are shown
	secret    *secretSource
	questions sync.Pool
	badCost   atomic.Int64 // when one was last logged
}

// question is the decision about one request. It is used again, so that a
// request takes hardly any memory.
type question struct {
	decision limitstore.Decision
	zones    []*zone // which apply, beside decision.Limits
	tooDear  *zone   // the first zone that can never hold the request's cost
	free     bool    // no zone would be charged
	known    uint32  // a bit for each zone whose state is known

	client   client
	resolved bool
	text     []byte
}

func newQuestion(zones int) *question {
	return &question{
		zones: make([]*zone, 0, zones),
		decision: limitstore.Decision{
			Limits: make([]limitstore.Limit, 0, zones),
			States: make([]limitstore.State, 0, zones),
		},
	}
}

func (q *question) reset() {
	q.decision.Limits, q.decision.States, q.zones = q.decision.Limits[:0], q.decision.States[:0], q.zones[:0]
	q.tooDear, q.free, q.known, q.client, q.resolved = nil, true, 0, client{}, false
}

// collect notes the zones that apply, with the request's costs. It reports
// whether there are any.
func (l *Limiter) collect(q *question, r *http.Request) bool {
	if len(l.config.Exempt) > 0 && l.exempt(l.client(q, r)) {
		return false
	}
	for _, z := range l.zones {
		if z.Applies != nil && !z.Applies(r) {
			continue
		}
		cost := l.cost(z, r)
		if cost > z.Events && z.DryRun {
			l.config.Observer.Decided(z.Name, DryRunRefused)
			continue
		}
		if cost > z.Events && q.tooDear == nil {
			q.tooDear = z
		}
		q.add(z, cost)
	}
	return len(q.zones) > 0
}

func (q *question) add(z *zone, cost int64) {
	q.zones = append(q.zones, z)
	q.decision.Limits = append(q.decision.Limits, z.limit(cost))
	q.decision.States = append(q.decision.States, limitstore.State{})
	q.free = q.free && cost == 0
}

func (l *Limiter) client(q *question, r *http.Request) client {
	if !q.resolved {
		q.client, q.resolved = parseClient(l.config.ClientAddr(r)), true
	}
	return q.client
}

func (l *Limiter) exempt(c client) bool {
	for _, p := range l.config.Exempt {
		if p.Contains(c) {
			return true
		}
	}
	return false
}

func (l *Limiter) cost(z *zone, r *http.Request) int64 {
	if z.Cost == nil {
		return 1
	}
	cost := z.Cost(r)
	if cost >= 0 {
		return cost
	}
	// A client may be able to choose it: at most one line a second.
	now := time.Now().Unix()
	if last := l.badCost.Load(); last != now && l.badCost.CompareAndSwap(last, now) {
		l.config.Logger.LogAttrs(r.Context(), slog.LevelWarn, "rate limit cost is not a number from 0 up, taking 1", slog.String("zone", z.Name))
	}
	return 1
}

// name gives every limit its key.
func (l *Limiter) name(q *question, r *http.Request, h *hasher) {
	for i, z := range q.zones {
		key, c := "", client{}
		if z.Key != nil {
			key = z.Key(r)
		}
		if key == "" {
			c = cut(l.client(q, r), l.config.IPv6Prefix)
		}
		q.decision.Limits[i].Key = h.key(z, z.Site(r), key, c)
	}
}

// decide returns nil when the request is admitted. It has added the fields to
// the response header then, and also when it returns a refusal.
func (l *Limiter) decide(header http.Header, r *http.Request, q *question) error {
	if q.tooDear != nil {
		l.announce(header, q)
		l.config.Observer.Decided(q.tooDear.Name, WasRefused)
		return refusal(q.tooDear, 0)
	}
	if q.free && !l.config.Headers {
		l.observeAll(q, Admitted)
		return nil
	}
	h, err := l.secret.hasher(r.Context())
	if err != nil {
		return l.storeFailed(header, r, q, err, processHasher())
	}
	l.name(q, r, h)
	if q.known = l.config.Shared.remembered(&q.decision); q.known != 0 {
		q.decision.Admitted = false
		l.config.Observer.DenialCacheHit(q.zones[bits.TrailingZeros32(q.known)].Name)
		return l.conclude(header, q, Admitted, WasRefused)
	}
	if err := l.config.Shared.decide(r.Context(), &q.decision, l.config.Observer, l.config.Logger); err != nil {
		return l.storeFailed(header, r, q, err, nil)
	}
	q.known = ^uint32(0)
	return l.conclude(header, q, Admitted, WasRefused)
}

// storeFailed does what the policy says. With a hasher the keys have not been
// made yet.
func (l *Limiter) storeFailed(header http.Header, r *http.Request, q *question, err error, h *hasher) error {
	switch {
	case r.Context().Err() != nil && errors.Is(err, r.Context().Err()):
		return clientLeft(err)
	case q.free, l.config.OnStoreFailure == Allow:
		l.announce(header, q)
		l.observeAll(q, ErrorAdmitted)
		return nil
	case l.config.OnStoreFailure == Local:
		if h != nil {
			l.name(q, r, h)
		}
		localErr := l.config.Shared.local.Decide(context.WithoutCancel(r.Context()), &q.decision)
		if localErr == nil {
			q.known = ^uint32(0)
			return l.conclude(header, q, AdmittedLocally, RefusedLocally)
		}
		err = errors.Join(err, localErr)
	}
	l.announce(header, q)
	l.observeAll(q, ErrorRejected)
	return unavailable(err)
}

// conclude announces and reports the answer, and returns the refusal if it is
// one: by the zone with the longest wait, for the request gets in only when
// that has ended too.
func (l *Limiter) conclude(header http.Header, q *question, admitted, refused Result) error {
	l.announce(header, q)
	l.observe(q, admitted, refused)
	if q.decision.Admitted {
		return nil
	}
	worst := max(longestWait(&q.decision), 0)
	return refusal(q.zones[worst], q.decision.States[worst].Reset)
}

// observe reports each zone's part: of an admitted request what every zone
// did, of a refused one which zones refused.
func (l *Limiter) observe(q *question, admitted, refused Result) {
	for i, z := range q.zones {
		switch {
		case z.DryRun && q.decision.States[i].Refused:
			l.config.Observer.Decided(z.Name, DryRunRefused)
		case q.decision.States[i].Refused:
			l.config.Observer.Decided(z.Name, refused)
		case q.decision.Admitted:
			l.config.Observer.Decided(z.Name, admitted)
		}
	}
}

func (l *Limiter) observeAll(q *question, result Result) {
	for _, z := range q.zones {
		l.config.Observer.Decided(z.Name, result)
	}
}
