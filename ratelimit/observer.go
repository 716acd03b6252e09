package ratelimit

import "time"

// Result is what became of a request in a zone.
type Result string

// The results.
const (
	Admitted        Result = "admitted"
	WasRefused      Result = "refused"
	DryRunRefused   Result = "dry_run_refused" // by a dry run, which does not count
	AdmittedLocally Result = "local_admitted"  // by the local table, the store being away
	RefusedLocally  Result = "local_refused"   // likewise
	ErrorAdmitted   Result = "error_admitted"  // OnStoreFailure is Allow
	ErrorRejected   Result = "error_rejected"  // OnStoreFailure is Reject
)

// Observer is told what happens, for metrics. Zone names come from the
// configuration. Methods are called while a request waits, from many
// goroutines.
type Observer interface {
	// Decided is called for each zone that admitted a request, and for each
	// that refused one.
	Decided(zone string, result Result)
	// DenialCacheHit is called when a remembered refusal saved a store call.
	DenialCacheHit(zone string)
	// StoreAnswered is called after each call of a store on a network. The
	// error is nil when it succeeded.
	StoreAnswered(took time.Duration, err error)
	// BreakerChanged is called when the store is given up or is back.
	BreakerChanged(open bool)
}

// nobody is the Observer when there is none.
type nobody struct{}

func (nobody) Decided(string, Result)             {}
func (nobody) DenialCacheHit(string)              {}
func (nobody) StoreAnswered(time.Duration, error) {}
func (nobody) BreakerChanged(bool)                {}
