package caddymodule

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload"
	"github.com/gatehouse-gateway/gatehouse/sessionauth"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// Admin adds routes to Caddy's admin endpoint:
//
//	GET    /gatehouse/stores                     health and latency
//	GET    /gatehouse/sessions?site=&user=       the sessions of a user
//	DELETE /gatehouse/sessions/<public id>?site= end a session
//	GET    /gatehouse/uploads?site=              uploads and where they stand
//	POST   /gatehouse/uploads/cleanup            run the clean-up now
type Admin struct{ log *zap.Logger }

// CaddyModule returns the module's ID and constructor.
func (Admin) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "admin.api.gatehouse", New: func() caddy.Module { return new(Admin) }}
}

// runningApp is the app of the configuration that runs. Admin routes are other
// instances than the handlers.
var runningApp atomic.Pointer[App]

// Provision gets the logger.
func (a *Admin) Provision(caddy.Context) error {
	a.log = caddy.Log().Named("gatehouse.admin")
	return nil
}

// Routes returns the routes.
func (a *Admin) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{
		{Pattern: "/gatehouse/stores", Handler: a.route(http.MethodGet, a.stores)},
		{Pattern: "/gatehouse/sessions", Handler: a.route(http.MethodGet, a.sessions)},
		{Pattern: "/gatehouse/sessions/", Handler: a.route(http.MethodDelete, a.endSession)},
		{Pattern: "/gatehouse/uploads", Handler: a.route(http.MethodGet, a.uploads)},
		{Pattern: "/gatehouse/uploads/cleanup", Handler: a.route(http.MethodPost, a.cleanup)},
	}
}

// route checks the method and that the app runs. Details of faults go to the
// log; the answer has a general text.
func (a *Admin) route(method string, serve func(w http.ResponseWriter, r *http.Request, app *App) error) caddy.AdminHandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		if r.Method != method {
			w.Header().Set("Allow", method)
			return caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Err: errors.New("method not allowed")}
		}
		app := runningApp.Load()
		if app == nil {
			return caddy.APIError{HTTPStatus: http.StatusNotFound, Err: errors.New("no Gatehouse handler is configured")}
		}
		ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
		defer cancel()
		err := serve(w, r.WithContext(ctx), app)
		if _, known := errors.AsType[caddy.APIError](err); err == nil || known {
			return err
		}
		a.log.Error("admin request failed", zap.String("path", r.URL.Path), zap.Error(err))
		return caddy.APIError{HTTPStatus: http.StatusServiceUnavailable, Err: errors.New("the store cannot be asked now; see the log")}
	}
}

func badRequest(format string, args ...any) error {
	return caddy.APIError{HTTPStatus: http.StatusBadRequest, Err: fmt.Errorf(format, args...)}
}

func writeJSON(w http.ResponseWriter, value any) error {
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(value)
}

type storeHealth struct {
	Store     string  `json:"store"`
	Healthy   bool    `json:"healthy"`
	LatencyMS float64 `json:"latency_ms"`
}

func (a *Admin) stores(w http.ResponseWriter, r *http.Request, app *App) error {
	begin := time.Now()
	err := app.store.Ping(r.Context())
	if err != nil {
		a.log.Warn("store does not answer", zap.Error(err))
	}
	module, _ := app.store.(caddy.Module)
	return writeJSON(w, map[string]any{"stores": []storeHealth{{
		Store: module.CaddyModule().ID.Name(), Healthy: err == nil,
		LatencyMS: float64(time.Since(begin).Microseconds()) / 1000,
	}}})
}

type sessionView struct {
	ID         string          `json:"id"`
	User       string          `json:"user"`
	Claims     json.RawMessage `json:"claims"`
	Created    time.Time       `json:"created"`
	Refreshed  time.Time       `json:"refreshed"`
	Expires    time.Time       `json:"expires"`
	Persistent bool            `json:"persistent"`
	Device     string          `json:"device"`
	IP         string          `json:"ip"`
}

func (a *Admin) sessions(w http.ResponseWriter, r *http.Request, app *App) error {
	site, user := strings.ToLower(r.URL.Query().Get("site")), r.URL.Query().Get("user")
	if site == "" || user == "" {
		return badRequest("site and user are required")
	}
	list, err := app.sessions.Store.List(r.Context(), site, user)
	if err != nil {
		return err
	}
	views := make([]sessionView, 0, len(list))
	for _, item := range list {
		rec := item.Record
		claims := json.RawMessage(rec.Claims)
		if len(claims) == 0 {
			claims = json.RawMessage("{}")
		}
		views = append(views, sessionView{
			ID: base64.RawURLEncoding.EncodeToString(item.ID[:]), User: rec.User, Claims: claims,
			Created: rec.Created.UTC(), Refreshed: rec.Refreshed.UTC(), Expires: rec.Expires().UTC(),
			Persistent: rec.Persistent, Device: strings.ToValidUTF8(rec.Device, "\uFFFD"), IP: rec.IP,
		})
	}
	return writeJSON(w, map[string]any{"sessions": views})
}

func (a *Admin) endSession(w http.ResponseWriter, r *http.Request, app *App) error {
	site := strings.ToLower(r.URL.Query().Get("site"))
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(r.URL.Path, "/gatehouse/sessions/"))
	var id sessionstore.ID
	if site == "" || err != nil || len(raw) != len(id) {
		return badRequest("the public id of a session and its site are required")
	}
	copy(id[:], raw)
	finder, ok := app.sessions.Store.(sessionstore.Finder)
	if !ok {
		return caddy.APIError{HTTPStatus: http.StatusNotImplemented, Err: errors.New("the session store cannot end a session by its id alone")}
	}
	ended, err := finder.Remove(r.Context(), sessionstore.Key{Site: site, ID: id})
	if err != nil {
		return err
	}
	if len(ended) == 0 {
		return caddy.APIError{HTTPStatus: http.StatusNotFound, Err: errors.New("no such session")}
	}
	for _, e := range ended {
		app.sessions.Shared.Deny(sessionstore.Key{Site: site, ID: e.ID}, app.longestFresh())
		app.observer.SessionEnded(site, e.User, base64.RawURLEncoding.EncodeToString(e.ID[:]), sessionauth.EndRemoved)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// uploadHandlers are those of the configuration that runs.
var uploadHandlers uploadHandlerSet

type uploadHandlerSet struct {
	mu  sync.Mutex
	set map[*ChunkedUpload]bool
}

func (s *uploadHandlerSet) add(u *ChunkedUpload) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.set == nil {
		s.set = make(map[*ChunkedUpload]bool)
	}
	s.set[u] = true
}

func (s *uploadHandlerSet) remove(u *ChunkedUpload) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.set, u)
}

// handlers returns one handler for each store: handlers that share one list
// the same uploads.
func (s *uploadHandlerSet) handlers() []*chunkedupload.Handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := make(map[any]bool)
	var list []*chunkedupload.Handler
	for u := range s.set {
		if !seen[u.storeIdentity] {
			seen[u.storeIdentity] = true
			list = append(list, u.handler)
		}
	}
	return list
}

type uploadView struct {
	ID         string    `json:"id"`
	Site       string    `json:"site"`
	Protocol   string    `json:"protocol"`
	State      string    `json:"state"`
	Length     int64     `json:"length"`
	Offset     int64     `json:"offset"`
	Created    time.Time `json:"created"`
	Progress   time.Time `json:"progress"`
	Deliveries int       `json:"deliveries"`
	Status     int       `json:"status,omitempty"`
}

func viewUpload(l chunkedupload.Listed) uploadView {
	return uploadView{
		ID: l.ID, Site: l.Site, Protocol: l.Protocol, State: string(l.State), Length: l.Length, Offset: l.Offset,
		Created: l.Created.UTC(), Progress: l.Progress.UTC(), Deliveries: l.Deliveries, Status: l.Status,
	}
}

func (a *Admin) uploads(w http.ResponseWriter, r *http.Request, _ *App) error {
	site := strings.ToLower(r.URL.Query().Get("site"))
	uploads := []uploadView{}
	for _, h := range uploadHandlers.handlers() {
		for item, err := range h.List(r.Context()) {
			if err != nil {
				return err
			}
			if site == "" || item.Site == site {
				uploads = append(uploads, viewUpload(item))
			}
		}
	}
	return writeJSON(w, map[string]any{"uploads": uploads})
}

func (a *Admin) cleanup(w http.ResponseWriter, r *http.Request, _ *App) error {
	for _, h := range uploadHandlers.handlers() {
		if err := h.Cleanup(r.Context()); err != nil {
			return err
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

var (
	_ caddy.AdminRouter = (*Admin)(nil)
	_ caddy.Provisioner = (*Admin)(nil)
)
