package caddymodule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection"
)

// App holds what the handlers of this module share: the store of limits and
// short-lived values, the session store, the key ring, and session settings
// for use by name. Without configuration everything is on defaults: a store in
// memory, sessions in an embedded database and the key ring in a directory,
// both in Caddy's data directory.
type App struct {
	// Where limits and short-lived values are kept: `memory` (default; each
	// gateway by itself, gone at a restart) or `redis` (shared by all gateways).
	StoreRaw json.RawMessage `json:"store,omitempty" caddy:"namespace=gatehouse.stores inline_key=type"`

	// Where session records are kept: `file` or `redis`. Default: in Redis when
	// the store is Redis, else in a file in Caddy's data directory.
	SessionStoreRaw json.RawMessage `json:"session_store,omitempty" caddy:"namespace=gatehouse.session_stores inline_key=type"`

	// The keys that protect session cookies, in the format of ASP.NET Core Data
	// Protection. Default: `directory` in Caddy's data directory. Several
	// gateways must share one key ring.
	KeyRingRaw json.RawMessage `json:"key_ring,omitempty" caddy:"namespace=gatehouse.key_rings inline_key=type"`

	// Session settings that session_auth can use by name.
	Sessions map[string]*SessionSettings `json:"session,omitempty"`

	store    StoreProvider
	sessions *SessionKeeper
	ring     *dataprotection.Ring
	observer *sessionObserver
	events   *caddyevents.App
	ctx      caddy.Context
	log      *zap.Logger

	mu      sync.Mutex
	servers map[*caddyhttp.Server]bool // servers that have a handler of ours
	onStart []func() error
	fresh   time.Duration // see noteFresh
}

// CaddyModule returns the module's ID and constructor.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "gatehouse", New: func() caddy.Module { return new(App) }}
}

// Provision loads the guests and their defaults. It touches no server and
// writes no file; a key ring that is there is read, so that a broken one
// refuses the configuration.
func (a *App) Provision(ctx caddy.Context) error {
	a.ctx, a.log = ctx, ctx.Logger()
	a.servers = make(map[*caddyhttp.Server]bool)
	if err := registerMetrics(ctx.GetMetricsRegistry()); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	a.observer = newSessionObserver(a)
	eventsApp, err := ctx.App("events")
	if err != nil {
		return fmt.Errorf("getting the events app: %w", err)
	}
	a.events = eventsApp.(*caddyevents.App)
	if err := a.loadGuests(ctx); err != nil {
		return err
	}
	for name, settings := range a.Sessions {
		if settings == nil {
			return fmt.Errorf("session %q has no settings", name)
		}
		if err := settings.check(); err != nil {
			return fmt.Errorf("session %q: %w", name, err)
		}
	}
	return a.loadRing(ctx)
}

// defaultModule stands for an option that was not given.
func defaultModule(kind string) json.RawMessage {
	return json.RawMessage(`{"type":"` + kind + `"}`)
}

func (a *App) loadGuests(ctx caddy.Context) error {
	if a.StoreRaw == nil {
		a.StoreRaw = defaultModule("memory")
	}
	store, err := ctx.LoadModule(a, "StoreRaw")
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	a.store = store.(StoreProvider)

	if a.SessionStoreRaw == nil {
		if a.sessions = a.store.Sessions(); a.sessions == nil {
			a.SessionStoreRaw = defaultModule("file")
		}
	}
	if a.SessionStoreRaw != nil {
		sessions, err := ctx.LoadModule(a, "SessionStoreRaw")
		if err != nil {
			return fmt.Errorf("session_store: %w", err)
		}
		provider := sessions.(SessionStoreProvider)
		if needs, ok := provider.(needsStore); ok {
			if err := needs.useStore(a.store); err != nil {
				return fmt.Errorf("session_store: %w", err)
			}
		}
		if begins, ok := provider.(beginner); ok {
			a.atStart(begins.Begin)
		}
		a.sessions = provider.Sessions()
	}

	if a.KeyRingRaw == nil {
		a.KeyRingRaw = defaultModule("directory")
	}
	ring, err := ctx.LoadModule(a, "KeyRingRaw")
	if err != nil {
		return fmt.Errorf("key_ring: %w", err)
	}
	a.ring = ring.(KeyRingProvider).Ring()
	return nil
}

// loadRing reads the ring, anew when an earlier configuration has read it: a
// reload is how an operator makes a revocation count at once. It refuses a ring
// that is there but cannot be trusted. One that is away is tried again where it
// is needed, or stays in use as it was last read.
func (a *App) loadRing(ctx caddy.Context) error {
	loadCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := a.ring.Reload(loadCtx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, dataprotection.ErrBroken):
		return fmt.Errorf("key_ring: %w", err)
	default:
		a.log.Warn("key ring cannot be read now", zap.Error(err))
		return nil
	}
}

// Start proves that every server with a handler of this module begins with the
// guard, refuses settings that contradict each other, and starts the handlers'
// background work.
func (a *App) Start() error {
	for srv := range a.servers {
		if !beginsWithGuard(srv.Routes) {
			return errNoGuard
		}
	}
	if err := a.checkAgreement(); err != nil {
		return err
	}
	if err := a.store.Begin(); err != nil {
		return err
	}
	for _, start := range a.onStart {
		if err := start(); err != nil {
			return err
		}
	}
	if !a.store.Shared() {
		a.log.Warn("limits and short-lived values are kept in this process's memory alone: no other gateway sees them and a restart forgets them")
	}
	runningApp.Store(a)
	go a.probe()
	return nil
}

// probe says once at start what an operator wants to know about the store.
func (a *App) probe() {
	ctx, cancel := context.WithTimeout(a.ctx, 2*time.Second)
	defer cancel()
	if err := a.store.Ping(ctx); err != nil && a.ctx.Err() == nil {
		a.log.Warn("store does not answer; requests are answered as on_store_failure says until it does", zap.Error(err))
	}
}

// Stop takes the app away from the admin routes, unless a newer one is there;
// the handlers' work ends in their Cleanup.
func (a *App) Stop() error {
	runningApp.CompareAndSwap(a, nil)
	return nil
}

// register notes that a server has a handler of ours, and places the guard.
func (a *App) register(ctx caddy.Context) (*caddyhttp.Server, error) {
	srv, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok || srv == nil {
		return nil, errors.New("this handler works only in the routes of an HTTP server")
	}
	if err := placeGuard(ctx, srv); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.servers[srv] = true
	return srv, nil
}

// noteFresh notes for how long a token of some session_auth is believed without
// a look at the store.
func (a *App) noteFresh(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fresh = max(a.fresh, d)
}

// longestFresh returns the longest of these times.
func (a *App) longestFresh() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fresh
}

// atStart runs f when the configuration starts, not when it is only validated.
func (a *App) atStart(f func() error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.onStart = append(a.onStart, f)
}

// limitSecret hashes the keys of limits that gateways share.
func (a *App) limitSecret(ctx context.Context) ([32]byte, error) {
	return a.ring.Secret(ctx, "Gatehouse.Limits")
}

// emit sends one of Caddy's in-process events.
func (a *App) emit(name string, data map[string]any) {
	a.events.Emit(a.ctx, name, data)
}

// gatehouseApp returns the app, on its defaults where it is not configured.
func gatehouseApp(ctx caddy.Context) (*App, error) {
	app, err := ctx.App("gatehouse")
	if err != nil {
		return nil, err
	}
	return app.(*App), nil
}

var (
	_ caddy.App         = (*App)(nil)
	_ caddy.Provisioner = (*App)(nil)
)
