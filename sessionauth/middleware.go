package sessionauth

import (
	"errors"
	"net/http"
	"strings"

	"github.com/gatehouse-gateway/gatehouse/internal/handler"
	"github.com/gatehouse-gateway/gatehouse/internal/problem"
)

// Route is what may differ from route to route of one cookie.
type Route struct {
	// Require refuses requests without a session: 401, or a redirect for
	// browsers that navigate.
	Require bool
	// Redirect returns where they are sent, or "" for nowhere. The original
	// path and query are appended as return_to.
	Redirect func(*http.Request) string
	// ForceValidate asks the store on every request with a token.
	ForceValidate bool
	// AllowedOrigins returns the hosts of origins that may act with the session
	// besides the request's own host: exact, or *.example.com for any subdomain.
	// Nil: none.
	AllowedOrigins func(*http.Request) []string
	// AnyOrigin allows every origin.
	AnyOrigin bool
	// Commands are those that the backend may send. Zero: none.
	Commands CommandSet
}

// Middleware does the session work of a route. It is safe for concurrent use.
type Middleware struct {
	manager *Manager
	route   Route
}

// ServeHTTP finds the request's session, passes the request on and sees to the
// response. The request's header is changed in place: identity in, token out.
//
// A refusal is returned as a *problem.Error and not written; cookies that go
// with it are in w's header then. Only the redirect to sign in is written here.
// Other errors are those of next.
//
// Several middlewares of one cookie and site may stand behind each other: the
// first does the work, the others add Require, ForceValidate and AllowedOrigins.
//
// The session is in the context of the request that next gets: FromContext.
func (mw *Middleware) ServeHTTP(w http.ResponseWriter, r *http.Request, next handler.Handler) error {
	return mw.ServeIn(nil, w, r, next)
}

// Place keeps the session of one request, in servers that have a place for such
// things with each request.
type Place interface {
	// Session returns the session that was put last by a middleware that is
	// still at work, or nil. When a middleware is done is for the server to see.
	Session() *Session
	// Put keeps the session of r, which is passed on next.
	Put(r *http.Request, s *Session)
}

// ServeIn is ServeHTTP with the session in a place of the server's own. It saves
// the context and the copy of the request that holds it. Nil: the context.
func (mw *Middleware) ServeIn(place Place, w http.ResponseWriter, r *http.Request, next handler.Handler) error {
	m := mw.manager
	https := m.settings.HTTPS(r)
	site, cookie := m.settings.Site(r), m.cookieName(https)
	var outer *Session
	if place != nil {
		outer = place.Session()
	} else {
		outer = FromContext(r.Context())
	}
	if first := outer.find(site, cookie); first != nil {
		return mw.join(first, w, r, next)
	}
	if m.guarded {
		// What the guard could not see: of another middleware, of a handler in
		// front. Other fields of the namespace may be the gateway's.
		stripIdentity(r.Header)
	} else {
		if ConnectionNamesReserved(r.Header) {
			return problem.New("bad-connection-header", nil)
		}
		StripHeader(r.Header)
	}
	if m.sameSite == http.SameSiteNoneMode && !https {
		return errSameSiteNone
	}
	ex := &exchange{w: w, parent: r.Context(), m: m, req: r, cookie: cookie, https: https, allowed: mw.route.Commands}
	ex.session.Site, ex.session.exchange = site, ex
	if outer != nil {
		ex.outer = outer.exchange
	}
	ex.keepHeader()
	if refusal := ex.identify(&mw.route); refusal != nil {
		return refusal
	}
	if done, err := mw.require(ex, w, r, true); done {
		return err
	}
	if place != nil {
		place.Put(r, &ex.session)
	}
	if place == nil || wantsEventStream(r) {
		// The body of an event stream may be silent for long, so that only the
		// context can end it.
		r = r.WithContext((*exchangeContext)(ex))
	}
	return ex.serve(next, r)
}

// wantsEventStream reports whether a request asks for server-sent events.
func wantsEventStream(r *http.Request) bool {
	for _, value := range r.Header["Accept"] {
		if strings.Contains(strings.ToLower(value), "text/event-stream") {
			return true
		}
	}
	return false
}

// join adds what this route asks for to the work of the first middleware.
func (mw *Middleware) join(first *exchange, w http.ResponseWriter, r *http.Request, next handler.Handler) error {
	if mw.route.AllowedOrigins != nil {
		switch checkOrigin(r, &mw.route) {
		case originRefused, originBad:
			first.m.observer.Decided(OutcomeOriginRefused)
			return problem.New("origin-not-allowed", nil)
		case originIgnored:
			first.m.observer.Decided(OutcomeForeignOrigin)
			first.ignore(r)
		}
	}
	if mw.route.ForceValidate && !first.session.Anonymous() {
		if refusal := first.evaluate(r, true); refusal != nil {
			return refusal
		}
	}
	if done, err := mw.require(first, w, r, false); done {
		return err
	}
	return next.ServeHTTP(w, r)
}

// require answers a request that needs a session and has none. done is false
// where the request may go on. alone says that the response does not pass
// through ex.
func (mw *Middleware) require(ex *exchange, w http.ResponseWriter, r *http.Request, alone bool) (done bool, err error) {
	if !mw.route.Require || !ex.session.Anonymous() || isPreflight(r) {
		return false, nil
	}
	redirect := ""
	if mw.route.Redirect != nil {
		redirect = mw.route.Redirect(r)
	}
	original := ex.m.settings.OriginalURI(r)
	if redirect != "" && isTarget(redirect, original, r.Host) {
		return false, nil
	}
	ex.m.observer.Decided(OutcomeRequired)
	if alone {
		ex.putDecided(w.Header())
	}
	if redirect != "" && isNavigation(r) {
		writeRedirect(w, loginURL(redirect, original))
		return true, nil
	}
	w.Header()["Www-Authenticate"] = []string{"Gatehouse-Session"} // RFC 9110, section 15.5.2
	return true, problem.New("session-required", nil)
}

// Wrap makes a plain http.Handler of the middleware: refusals are written as
// problem documents.
func (mw *Middleware) Wrap(next http.Handler) http.Handler {
	inner := handler.FromHTTP(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := mw.ServeHTTP(w, r, inner)
		if err == nil {
			return
		}
		if refusal, ok := errors.AsType[*problem.Error](err); ok {
			refusal.Write(w, r, "")
			return
		}
		mw.manager.log.Error("request failed", "error", err)
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
	})
}

// exchangeKey finds the exchange in a request's context.
type exchangeKey struct{}

// find looks for a first middleware of the same cookie and site, from that of
// the session outwards.
func (s *Session) find(site, cookie string) *exchange {
	if s == nil {
		return nil
	}
	for ex := s.exchange; ex != nil; ex = ex.outer {
		if ex.cookie == cookie && ex.session.Site == site {
			return ex
		}
	}
	return nil
}
