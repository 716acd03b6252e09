package sessionauth

import (
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// action is what a decision asks the middleware to do.
type action uint8

const (
	actLookUp    action = iota // ask the store, then decide again
	actAccept                  // the request has the token's session
	actAnonymous               // the request has no session
	actRefuse                  // 503: the store cannot tell
)

// decision is what becomes of a token.
type decision struct {
	action  action
	outcome Outcome
	clear   bool // the client's cookie is cleared
	refresh bool // accepted: one conditional write at response start
	reissue bool // accepted: the record has moved on, the present token is sent
	end     bool // anonymous: the record is ended, reason generation-mismatch
}

// lookup is the store's answer. A nil *lookup: it was not asked.
type lookup struct {
	failed bool // a fault: nothing is known
	absent bool // missing, expired or ended
	record sessionstore.Record
	now    time.Time // the store's clock at the answer
}

// stock says what this gateway has of claims that the token leaves in the store.
type stock uint8

const (
	stockFresh stock = iota // the token has them, or they are no older than refresh_after
	stockOld                // no older than refresh_after and accept_stale together
	stockNone
)

// circumstances are what a decision depends on besides token and record.
type circumstances struct {
	denied bool   // this gateway knows that the session has ended
	force  bool   // force_validate
	claims stock  // only asked of a token whose claims are in the store
	device string // of the request
}

// timing are the settings that a decision depends on.
type timing struct {
	refreshAfter, grace, acceptStale time.Duration
}

// due reports whether the token must be looked up before it is believed: it is
// older than refreshAfter, or seems to have expired, which the store's clock
// decides.
func (t *token) due(now time.Time, refreshAfter time.Duration) bool {
	return now.After(t.refreshed.Add(refreshAfter)) || !now.Before(t.expires())
}

// decide is the life of a token as one function: of the token, the store's
// answer, the gateway's time and the circumstances. Once the store has
// answered, its time alone counts.
func decide(t *token, look *lookup, now time.Time, c circumstances, o timing) decision {
	switch {
	case c.denied:
		return decision{action: actAnonymous, outcome: OutcomeEnded, clear: true}
	case look == nil:
		if c.force || c.claims != stockFresh || t.due(now, o.refreshAfter) {
			return decision{action: actLookUp}
		}
		return decision{action: actAccept, outcome: OutcomeFresh}
	case look.failed:
		return decideBlind(t, now, c, o)
	case look.absent, !look.now.Before(look.record.Expires()):
		if !now.Before(t.expires()) {
			return decision{action: actAnonymous, outcome: OutcomeExpired, clear: true}
		}
		return decision{action: actAnonymous, outcome: OutcomeEnded, clear: true}
	}
	return decideLive(t, look, c, o)
}

// decideBlind decides while the store is away: the request is refused and the
// cookie kept, unless AcceptStale bridges the outage.
func decideBlind(t *token, now time.Time, c circumstances, o timing) decision {
	bridged := o.acceptStale > 0 && !c.force && c.claims != stockNone &&
		now.Before(t.expires()) && !now.After(t.refreshed.Add(o.refreshAfter+o.acceptStale))
	if !bridged {
		return decision{action: actRefuse, outcome: OutcomeStoreUnavailable}
	}
	return decision{action: actAccept, outcome: OutcomeStale}
}

// decideLive compares the token with a live record.
func decideLive(t *token, look *lookup, c circumstances, o timing) decision {
	r := &look.record
	age := look.now.Sub(r.Refreshed)
	same := r.Generation == t.generation
	previous := r.Generation == t.generation+1 && age <= o.grace && r.Device == c.device
	if r.User != t.user || !same && !previous {
		return decision{action: actAnonymous, outcome: OutcomeMismatch, clear: true, end: true}
	}
	d := decision{
		action: actAccept, outcome: OutcomeValidated,
		reissue: previous || r.ClaimsVersion != t.claimsVersion,
	}
	if age > o.refreshAfter {
		d.outcome, d.refresh = OutcomeDue, true
	}
	return d
}
