package caddymodule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload"
	"github.com/gatehouse-gateway/gatehouse/internal/problem"
)

// ChunkedUpload takes resumable uploads (tus 1.0) and hands each to the backend
// as one ordinary request. A client can be cut off at any time and go on
// through any gateway; it is told of a success only when the backend confirmed
// it. Requests that are no upload protocol pass on.
type ChunkedUpload struct {
	// Path below which uploads live, as the handler sees it. Default in the
	// Caddyfile: the directive's path matcher without its *.
	Base string `json:"base,omitempty"`

	// Where uploads are kept. Default: `directory`, in Caddy's data directory.
	StoreRaw json.RawMessage `json:"store,omitempty" caddy:"namespace=gatehouse.upload_stores inline_key=type"`

	// The protocols that are spoken. Default: tus.
	Protocols []string `json:"protocols,omitempty"`

	// The largest upload. Default: 10GiB.
	MaxSize Size `json:"max_size,omitempty"`

	// Refuse uploads without a session. Default: false, and an upload that was
	// made without a session belongs to whoever has its URL.
	RequireSession bool `json:"require_session,omitempty"`

	// An unfinished upload without progress for that long is removed. Default: 24h.
	ExpireAfter caddy.Duration `json:"expire_after,omitempty"`

	// How the finished upload reaches the backend: stream (default), the bytes
	// as the body of a request.
	Deliver string `json:"deliver,omitempty"`

	// How long a client is kept waiting for the backend's answer before it is
	// told to ask again. Default: 25s.
	Wait caddy.Duration `json:"wait,omitempty"`

	// The site that uploads belong to. Default: the domain of session_auth if
	// set, else the request's host.
	Site string `json:"site,omitempty"`

	app           *App
	handler       *chunkedupload.Handler
	storeIdentity any // handlers over one store list the same uploads
}

// CaddyModule returns the module's ID and constructor.
func (ChunkedUpload) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.chunked_upload",
		New: func() caddy.Module { return new(ChunkedUpload) },
	}
}

// Provision sets the handler up; the store is not touched.
func (u *ChunkedUpload) Provision(ctx caddy.Context) error {
	app, err := gatehouseApp(ctx)
	if err != nil {
		return err
	}
	if _, err := app.register(ctx); err != nil {
		return err
	}
	u.app = app
	if err := u.check(); err != nil {
		return err
	}
	if u.StoreRaw == nil {
		u.StoreRaw = defaultModule("directory")
	}
	module, err := ctx.LoadModule(u, "StoreRaw")
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	provider := module.(UploadStoreProvider)
	u.storeIdentity = provider.UploadStore()
	u.handler, err = chunkedupload.New(chunkedupload.Config{
		Store: provider.UploadStore(), Shared: provider.Deliveries(),
		Base: u.Base, MaxSize: int64(u.MaxSize), ExpireAfter: time.Duration(u.ExpireAfter), Wait: time.Duration(u.Wait),
		RequireSession: u.RequireSession,
		Owner:          requestUser,
		Site:           func(r *http.Request) string { return siteOf(r, u.Site) },
		OriginalURI:    originalURL,
		Detach:         detach,
		Unreached:      unreached,
		Observer:       &uploadObserver{app}, Logger: featureLogger(ctx),
	})
	if err != nil {
		return err
	}
	app.atStart(func() error {
		u.handler.Start()
		uploadHandlers.add(u)
		return nil
	})
	return nil
}

func (u *ChunkedUpload) check() error {
	if u.Base == "" || u.Base[0] != '/' || strings.ContainsAny(u.Base, "*{}?#") {
		return fmt.Errorf("base: %q is no path like /files (it is required where the directive has no single path matcher)", u.Base)
	}
	if u.Deliver != "" && u.Deliver != "stream" {
		return fmt.Errorf("deliver: want stream, not %q", u.Deliver)
	}
	for _, protocol := range u.Protocols {
		if protocol != "tus" {
			return fmt.Errorf("protocols: want tus, not %q", protocol)
		}
	}
	return nil
}

// Cleanup stops the clean-up of uploads and waits for it.
func (u *ChunkedUpload) Cleanup() error {
	uploadHandlers.remove(u)
	if u.handler == nil {
		return nil
	}
	return u.handler.Close()
}

// ServeHTTP speaks the upload protocols and passes everything else on.
func (u *ChunkedUpload) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if passageOf(r) == nil {
		return answerProblem(w, r, problem.New("guard-missing", nil))
	}
	if err := u.handler.ServeHTTP(w, r, next); err != nil {
		return answerProblem(w, r, err)
	}
	return nil
}

// unreached reports that the backend was never spoken to.
func unreached(err error) bool {
	if _, dial := errors.AsType[reverseproxy.DialError](err); dial {
		return true
	}
	// The proxy's error when it has no backend to try is known by its text alone.
	handlerErr, ok := errors.AsType[caddyhttp.HandlerError](err)
	return ok && handlerErr.StatusCode == http.StatusServiceUnavailable && handlerErr.Err != nil &&
		handlerErr.Err.Error() == "no upstreams available"
}

// detach copies a request for a delivery that may outlive it: no cancellation,
// and per-request state of Caddy's own, since the original's is not safe for
// use after the handler has returned. To what follows the copied request is the
// one that the client sent. Placeholders that handlers before this one set keep
// their values.
func detach(r *http.Request) *http.Request {
	original, _ := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
	srv, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	copied := r.Clone(context.WithoutCancel(r.Context()))
	if srv == nil {
		return copied
	}
	repl := caddy.NewReplacer()
	copied = caddyhttp.PrepareRequest(copied, repl, nil, srv)
	if before, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		repl.Map(func(key string) (any, bool) { return placeholderBefore(before, key) })
	}
	vars, _ := copied.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
	for name, value := range original {
		vars[name] = value
	}
	if before := passageOf(r); before != nil {
		p := &passage{working: before.working.Detached()}
		vars[passageVar] = p
		switch before.session {
		case nil:
		case before.working:
			p.announce(copied, p.working)
		default:
			p.announce(copied, before.session)
		}
	}
	return copied
}

// placeholderBefore looks up what handlers have set, and nothing of the other
// request itself.
func placeholderBefore(before *caddy.Replacer, key string) (any, bool) {
	for _, prefix := range []string{"http.request.", "http.response.", "http.vars."} {
		if strings.HasPrefix(key, prefix) {
			return nil, false
		}
	}
	return before.Get(key)
}

var (
	_ caddy.Provisioner           = (*ChunkedUpload)(nil)
	_ caddy.CleanerUpper          = (*ChunkedUpload)(nil)
	_ caddyhttp.MiddlewareHandler = (*ChunkedUpload)(nil)
)
