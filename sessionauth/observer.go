package sessionauth

import "time"

// Outcome says how a request, or the refresh at its response, was decided.
type Outcome uint8

// The outcomes. A request has one of the first three groups, and one more where
// a session is required and missing, or validated by a middleware behind the
// first; a response that would issue a cookie by itself has one of the fourth.
const (
	// A session: the token alone was enough; it was looked up and is not due;
	// it was looked up and is due; the store is away and AcceptStale applies.
	OutcomeFresh Outcome = iota
	OutcomeValidated
	OutcomeDue
	OutcomeStale
	// No session: no cookie of ours; a cookie that does not open; one of a key
	// that the ring does not have; an ended session; an expired one; a token of
	// a generation that the record has left, whose session was ended; two
	// different sessions; a cookie ignored because of the request's origin.
	OutcomeMissing
	OutcomeUnreadable
	OutcomeUnknownKey
	OutcomeEnded
	OutcomeExpired
	OutcomeMismatch
	OutcomeAmbiguous
	OutcomeForeignOrigin
	// Refused: origin not allowed; two Origin fields; session required (401 or
	// 303); store away; key ring away.
	OutcomeOriginRefused
	OutcomeOriginBad
	OutcomeRequired
	OutcomeStoreUnavailable
	OutcomeRingUnavailable

	// The refresh: this request moved the generation; another one was faster;
	// the present token was sent again; the client had gone or prefetched; the
	// store could not be written.
	OutcomeRotated
	OutcomeLostRace
	OutcomeReissued
	OutcomeNotRotated
	OutcomeRefreshFailed

	outcomes // how many there are
)

var outcomeNames = [outcomes]string{
	OutcomeFresh: "fresh", OutcomeValidated: "validated", OutcomeDue: "due", OutcomeStale: "stale",
	OutcomeMissing: "anonymous-missing", OutcomeUnreadable: "anonymous-unreadable",
	OutcomeUnknownKey: "anonymous-unknown-key", OutcomeEnded: "anonymous-ended",
	OutcomeExpired: "anonymous-expired", OutcomeMismatch: "anonymous-mismatch",
	OutcomeAmbiguous: "anonymous-ambiguous", OutcomeForeignOrigin: "anonymous-origin",
	OutcomeOriginRefused: "denied-origin", OutcomeOriginBad: "bad-origin", OutcomeRequired: "required",
	OutcomeStoreUnavailable: "store-unavailable", OutcomeRingUnavailable: "ring-unavailable",
	OutcomeRotated: "rotated", OutcomeLostRace: "lost-race", OutcomeReissued: "reissued",
	OutcomeNotRotated: "not-rotated", OutcomeRefreshFailed: "refresh-failed",
}

// String returns the outcome's fixed name, fit for a metric's label.
func (o Outcome) String() string {
	if o < outcomes {
		return outcomeNames[o]
	}
	return "unknown"
}

// EndReason says why a session ended.
type EndReason string

// The reasons. Removed is for those who end sessions from outside a request;
// this package does not report it.
const (
	EndSignedOut  EndReason = "signed-out"
	EndReplaced   EndReason = "replaced"
	EndExpired    EndReason = "expired"
	EndRemoved    EndReason = "removed"
	EndGeneration EndReason = "generation-mismatch"
)

// Observer hears what happens, for metrics and events. Its methods are called
// from requests at once, with no lock held, and should return soon. They are
// called concurrently.
type Observer interface {
	// Decided reports an outcome.
	Decided(Outcome)
	// StoreAsked reports a call of the session store: get, start, refresh,
	// update, end or list. Errors are faults alone: absent is no error here.
	StoreAsked(operation string, took time.Duration, err error)
	// Commanded reports a command of the backend: start, update, end, or "" for
	// a bad one. Refused says that it was answered with an error.
	Commanded(command string, refused bool)
	// SessionStarted reports a new session by its public id.
	SessionStarted(site, user, id string)
	// SessionEnded reports the end of a session that was alive. A session that
	// expires is reported when its cookie is seen again, by each gateway that
	// sees it.
	SessionEnded(site, user, id string, reason EndReason)
}

// silent is the observer that hears nothing.
type silent struct{}

func (silent) Decided(Outcome)                                {}
func (silent) StoreAsked(string, time.Duration, error)        {}
func (silent) Commanded(string, bool)                         {}
func (silent) SessionStarted(string, string, string)          {}
func (silent) SessionEnded(string, string, string, EndReason) {}

var _ Observer = silent{}
