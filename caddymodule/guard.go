package caddymodule

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/gatehouse-gateway/gatehouse/internal/problem"
	"github.com/gatehouse-gateway/gatehouse/sessionauth"
)

// Guard keeps the Gatehouse-* namespace clean on a whole server: it removes
// every such field from requests before any route sees them, and from
// responses, interim responses and trailers before the client does. A
// Connection field that names one is refused with 400.
//
// The other handlers of this module put it before the first route and the
// first error route of their server by themselves. It is written by hand, as
// the first route of the server, only where they say that they could not.
type Guard struct {
	// The routes that the server had before the guard was put before them; nil
	// where the guard is written by hand. They are compiled once, at the first
	// request: by then Caddy has provisioned them in place.
	routes   caddyhttp.RouteList
	once     sync.Once
	compiled caddyhttp.Handler
}

// CaddyModule returns the module's ID and constructor.
func (*Guard) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.gatehouse_guard",
		New: func() caddy.Module { return new(Guard) },
	}
}

// passage is what the handlers of this module know of a request on its way
// through a server. The guard makes it: a request without one was not cleaned.
type passage struct {
	// What session_auth found, for matchers, other handlers, placeholders and
	// error routes. Nil: none ran.
	session *sessionauth.Session
	// The same while that session_auth is at work, deliveries of uploads
	// included: error routes run when it is not.
	working *sessionauth.Session
}

// passageVar is the request's variable that holds its *passage. Error routes
// have the variables of the request that failed.
const passageVar = "gatehouse.passage"

// passageOf returns a request's passage, or nil where no guard has seen it.
func passageOf(r *http.Request) *passage {
	p, _ := caddyhttp.GetVar(r.Context(), passageVar).(*passage)
	return p
}

// ServeHTTP cleans the request, passes it on and cleans the response.
func (g *Guard) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	gw := &guardWriter{ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}
	// Error routes see the request a second time: what is there now is ours.
	if passageOf(r) == nil {
		named := sessionauth.ConnectionNamesReserved(r.Header)
		sessionauth.StripHeader(r.Header)
		guardRequestTrailers(r)
		caddyhttp.SetVar(r.Context(), passageVar, &gw.passage)
		if named {
			return answerProblem(w, r, problem.New("bad-connection-header", nil))
		}
	}
	if g.routes != nil {
		// This route is the server's only one, so next is the same for every
		// request: the end of the chain.
		g.once.Do(func() { g.compiled = g.routes.Compile(next) })
		next = g.compiled
	}
	err := next.ServeHTTP(gw, r)
	sessionauth.StripHeader(w.Header()) // trailers, and what an error route would inherit
	return err
}

// guardRequestTrailers removes reserved names from the trailers: those
// announced now, those that come at the end when the body ends. Only a request
// of unknown length (HTTP/1.1) or a later protocol can have any.
func guardRequestTrailers(r *http.Request) {
	if r.Body == nil || r.Body == http.NoBody || (r.ContentLength >= 0 && r.ProtoMajor < 2) {
		return
	}
	sessionauth.StripHeader(r.Trailer)
	r.Body = &trailerGuard{ReadCloser: r.Body, request: r}
}

// trailerGuard cleans the request's trailers at the moment they appear: when
// the body has been read to its end.
type trailerGuard struct {
	io.ReadCloser
	request *http.Request
}

func (t *trailerGuard) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err != nil {
		sessionauth.StripHeader(t.request.Trailer)
	}
	return n, err
}

// guardWriter cleans the header of every response that passes, interim ones
// included.
type guardWriter struct {
	caddyhttp.ResponseWriterWrapper
	wroteHeader bool
	passage     passage // the request's; here to be one allocation with the writer
}

func (g *guardWriter) WriteHeader(status int) {
	if !g.wroteHeader {
		g.wroteHeader = status >= 200 || status == http.StatusSwitchingProtocols
		sessionauth.StripHeader(g.Header())
	}
	g.ResponseWriter.WriteHeader(status)
}

func (g *guardWriter) Write(p []byte) (int, error) {
	if !g.wroteHeader {
		g.WriteHeader(http.StatusOK)
	}
	return g.ResponseWriter.Write(p)
}

func (g *guardWriter) ReadFrom(r io.Reader) (int64, error) {
	if !g.wroteHeader {
		g.WriteHeader(http.StatusOK)
	}
	return g.ResponseWriterWrapper.ReadFrom(r)
}

// FlushError sends what there is, the header included.
func (g *guardWriter) FlushError() error {
	if !g.wroteHeader {
		g.WriteHeader(http.StatusOK)
	}
	return http.NewResponseController(g.ResponseWriter).Flush()
}

// Flush is FlushError for callers that look for an http.Flusher.
func (g *guardWriter) Flush() { _ = g.FlushError() }

// Hijack hands out the connection; a header not yet written is cleaned first.
func (g *guardWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	sessionauth.StripHeader(g.Header())
	return http.NewResponseController(g.ResponseWriter).Hijack()
}

// errNoGuard is why a configuration is refused.
var errNoGuard = errors.New("the Gatehouse namespace cannot be guarded on this server: write the handler gatehouse_guard into the server's first route (without matchers) and first error route")

// placeGuard makes the server of a handler that is being provisioned begin
// with a guard, and its error routes too. Caddy compiles the server's routes
// when all their handlers are provisioned, so the list can still be replaced
// while a handler of it is; later (in error routes and named routes) it is too
// late, and a server without a guard is refused.
func placeGuard(ctx caddy.Context, srv *caddyhttp.Server) error {
	if beginsWithGuard(srv.Routes) {
		return nil
	}
	if !beingProvisioned(srv.Routes) {
		return errNoGuard
	}
	route := caddyhttp.Route{Handlers: []caddyhttp.MiddlewareHandler{&Guard{routes: srv.Routes}}}
	if err := route.ProvisionHandlers(ctx, nil); err != nil {
		return fmt.Errorf("placing the guard: %w", err)
	}
	srv.Routes = caddyhttp.RouteList{route}
	if srv.Errors != nil && len(srv.Errors.Routes) > 0 {
		errorGuard := caddyhttp.Route{HandlersRaw: []json.RawMessage{json.RawMessage(`{"handler":"gatehouse_guard"}`)}}
		srv.Errors.Routes = append(caddyhttp.RouteList{errorGuard}, srv.Errors.Routes...)
	}
	return nil
}

// beginsWithGuard reports whether every request to the routes meets a guard
// first.
func beginsWithGuard(routes caddyhttp.RouteList) bool {
	if len(routes) == 0 {
		return false
	}
	first := routes[0]
	if len(first.MatcherSets) > 0 || len(first.MatcherSetsRaw) > 0 || len(first.Handlers) == 0 {
		return false
	}
	_, ok := first.Handlers[0].(*Guard)
	return ok
}

// beingProvisioned reports whether Caddy is at work on one of the routes: it
// drops a route's raw handlers once they are loaded.
func beingProvisioned(routes caddyhttp.RouteList) bool {
	for _, route := range routes {
		if len(route.HandlersRaw) > 0 {
			return true
		}
	}
	return false
}

// UnmarshalCaddyfile reads the directive, which has no arguments:
//
//	gatehouse_guard
func (g *Guard) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if d.NextArg() {
		return d.ArgErr()
	}
	return noBlock(d, "gatehouse_guard")
}

var (
	_ caddyhttp.MiddlewareHandler = (*Guard)(nil)
	_ caddyfile.Unmarshaler       = (*Guard)(nil)
	_ http.Flusher                = (*guardWriter)(nil)
	_ http.Hijacker               = (*guardWriter)(nil)
)
