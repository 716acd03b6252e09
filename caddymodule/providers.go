package caddymodule

import (
	"context"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload"
	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
	"github.com/gatehouse-gateway/gatehouse/ratelimit"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection"
	"github.com/gatehouse-gateway/gatehouse/shortlived"
)

// StoreProvider is what a module in the namespace gatehouse.stores provides.
type StoreProvider interface {
	// Values is the short-lived store.
	Values() shortlived.Store
	// Limits counts requests. It outlives reloads.
	Limits() *ratelimit.Shared
	// Shared reports whether other gateways see the same store: its keys are
	// then hashed with a secret that all gateways have.
	Shared() bool
	// Sessions keeps sessions in the same place, or is nil where they are kept
	// elsewhere by default.
	Sessions() *SessionKeeper
	beginner
	// Ping asks for a sign of life.
	Ping(context.Context) error
}

// beginner is a guest with something that must not happen for a configuration
// that is only validated.
type beginner interface {
	// Begin is called when the configuration starts.
	Begin() error
}

// SessionStoreProvider is what a module in gatehouse.session_stores provides.
type SessionStoreProvider interface {
	Sessions() *SessionKeeper
}

// needsStore is a session store that uses the connection of the store.
type needsStore interface {
	useStore(StoreProvider) error
}

// KeyRingProvider is what a module in gatehouse.key_rings provides.
type KeyRingProvider interface {
	Ring() *dataprotection.Ring
}

// UploadStoreProvider is what a module in gatehouse.upload_stores provides.
type UploadStoreProvider interface {
	// UploadStore keeps uploads. It outlives reloads.
	UploadStore() uploadstore.Store
	// Deliveries are those that this process runs from the store.
	Deliveries() *chunkedupload.Shared
}
