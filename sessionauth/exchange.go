package sessionauth

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/handler"
	"github.com/gatehouse-gateway/gatehouse/internal/problem"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// exchange is all that the middleware knows of one request and its response,
// in one allocation: it is the response writer that next gets and, by another
// name, the context. It is not used again for other requests, since contexts
// outlive them.
type exchange struct {
	w       http.ResponseWriter // the client's; nil in one that was detached
	parent  context.Context     // the request's
	outer   *exchange           // of a middleware with another cookie or site in front
	m       *Manager
	req     *http.Request
	cookie  string // its name
	https   bool
	allowed CommandSet

	session   Session
	values    [4]string // of the identity fields
	presented *opened   // the readable token of the request, also when it was rejected
	ignored   bool      // the cookie was ignored: the request may not act on it
	look      *lookup   // nil: the store was not asked
	decision  decision

	begun    bool           // the final response has begun
	sent     int            // with how many fields in its header; 0: not known
	hijacked bool           // and the connection is no longer ours
	conn     closer         // with hijacked
	refusal  *problem.Error // set: next's response is dropped for it
	line     string         // our Set-Cookie line

	// What was in the header before next ran: some fields, and in more those for
	// which there was no room.
	before [4]headerField
	count  int
	more   http.Header

	cancellation atomic.Pointer[cancellation] // made when somebody waits for the context's end
}

type cancellation struct {
	context.Context
	cancel context.CancelFunc
}

type closer interface{ Close() error }

type headerField struct {
	name   string
	values []string
}

// identify finds the request's session: origin, cookie, token, store. The
// result is in ex and in the request's header.
func (ex *exchange) identify(route *Route) *problem.Error {
	r, m := ex.req, ex.m
	switch checkOrigin(r, route) {
	case originBad:
		m.observer.Decided(OutcomeOriginBad)
		return problem.New("bad-origin", nil)
	case originRefused:
		m.observer.Decided(OutcomeOriginRefused)
		return problem.New("origin-not-allowed", nil)
	case originPreflight:
		m.observer.Decided(OutcomeMissing) // whatever cookie it has does not count
		ex.ignore(r)
		return nil
	case originIgnored:
		m.observer.Decided(OutcomeForeignOrigin)
		ex.ignore(r)
		return nil
	}
	found := findCookies(r.Header, ex.cookie)
	if found.n == 0 {
		ex.decision = decision{action: actAnonymous, outcome: OutcomeMissing}
		m.observer.Decided(OutcomeMissing)
		return nil
	}
	if !m.forward {
		hideCookie(r.Header, ex.cookie)
	}
	if refusal := ex.open(&found); refusal != nil {
		return refusal
	}
	if ex.presented == nil {
		m.observer.Decided(ex.decision.outcome)
		return nil
	}
	return ex.evaluate(r, route.ForceValidate)
}

// open opens the cookies and picks the one that counts: the only session among
// them, in its newest generation.
func (ex *exchange) open(found *cookies) *problem.Error {
	ex.decision = decision{action: actAnonymous, outcome: OutcomeUnreadable, clear: true}
	ambiguous := false
	for _, value := range found.values[:found.n] {
		o, err := ex.m.open(ex.parent, ex.session.Site, ex.cookie, value)
		switch {
		case err == nil:
			switch p := ex.presented; {
			case p == nil:
				ex.presented = o
			case p.id != o.id:
				ambiguous = true
			case o.refreshed.After(p.refreshed):
				ex.presented = o
			}
		case errors.Is(err, dataprotection.ErrUnknownKey):
			// Another gateway may know the key: the cookie stays.
			ex.decision.outcome, ex.decision.clear = OutcomeUnknownKey, false
		case errors.Is(err, dataprotection.ErrUnreadable), errors.Is(err, errToken):
			ex.m.log.Debug("session cookie unreadable", "error", err)
		default:
			return ex.ringAway(err)
		}
	}
	if ambiguous {
		ex.presented = nil
		ex.decision = decision{action: actAnonymous, outcome: OutcomeAmbiguous, clear: true}
	}
	return nil
}

func (ex *exchange) ringAway(err error) *problem.Error {
	ex.m.observer.Decided(OutcomeRingUnavailable)
	ex.m.log.Error("key ring unavailable", "error", err)
	return problem.New("key-ring-unavailable", err).WithRetryAfter(retryAfter)
}

// evaluate decides about the presented token, asks the store where that is
// needed and was not done yet, and carries the decision out on r.
func (ex *exchange) evaluate(r *http.Request, force bool) *problem.Error {
	m, p := ex.m, ex.presented
	now := m.now()
	c := circumstances{denied: m.shared.denials.denied(p, now), force: force}
	set := p.set
	if set == nil {
		set, c.claims = m.stored(p, now)
	}
	if ex.look != nil {
		c.device = deviceOf(ex.req)
	}
	d := decide(&p.token, ex.look, now, c, m.timing)
	if d.action == actLookUp {
		ex.look = m.lookUp(ex.parent, p.key())
		now = m.now()
		c.denied, c.device = m.shared.denials.denied(p, now), deviceOf(ex.req)
		d = decide(&p.token, ex.look, now, c, m.timing)
	}
	m.observer.Decided(d.outcome)
	switch d.action {
	case actAccept:
		ex.decision = d
		ex.accept(r, set)
		return nil
	case actRefuse:
		// The first decision of the request, if any, stands: nothing is known.
		return problem.New("session-store-unavailable", nil).WithRetryAfter(retryAfter)
	}
	ex.decision = d
	ex.reject(r, now, c.denied)
	return nil
}

// stored returns what the cache has of a token's claims.
func (m *Manager) stored(p *opened, now time.Time) (*claimSet, stock) {
	set, age, ok := m.shared.claims.get(p.key(), p.claimsVersion, now)
	switch {
	case !ok:
		return nil, stockNone
	case age <= m.refreshAfter:
		return set, stockFresh
	case age <= m.refreshAfter+m.acceptStale:
		return set, stockOld
	}
	return nil, stockNone
}

// accept gives the request the session: as the record has it where it was
// looked up, else as the token has it.
func (ex *exchange) accept(r *http.Request, set *claimSet) {
	p := ex.presented
	s := &ex.session
	s.ID, s.User, s.State, s.Persistent = p.public, p.user, StateActive, p.persistent
	s.Generation, s.Refreshed, s.Expires = p.generation, p.refreshed, p.expires()
	if ex.decision.outcome == OutcomeStale {
		s.State = StateStale
	}
	if look := ex.look; look != nil && !look.failed {
		record := &look.record
		s.Generation, s.Refreshed, s.Expires = record.Generation, record.Refreshed, record.Expires()
		if p.set == nil || record.ClaimsVersion != p.claimsVersion {
			set = newClaimSet(claimsText(record.Claims))
		}
		if p.set == nil {
			ex.m.shared.claims.put(p.key(), record.ClaimsVersion, set, ex.m.now())
		}
	}
	s.claims, s.Claims = set, set.raw
	ex.values = [4]string{p.field, p.public, set.header, s.State}
	h := r.Header
	h[headerUser] = ex.values[0:1:1]
	h[headerSession] = ex.values[1:2:2]
	h[headerClaims] = ex.values[2:3:3]
	h[headerState] = ex.values[3:4:4]
}

// reject makes the request anonymous because of its token.
func (ex *exchange) reject(r *http.Request, now time.Time, denied bool) {
	m, p := ex.m, ex.presented
	ex.anonymous(r)
	switch {
	case ex.decision.end:
		end := sessionstore.End{User: ex.look.record.User, ID: p.id}
		m.log.Info("session ended: its token is of a generation that the session has left", "session", p.public)
		if m.end(ex.detached(), p.site, p.id, always(EndGeneration), end) != nil {
			m.endLater(p.site, p.id, EndGeneration, end)
		} else {
			m.deny(p.site, p.id)
		}
	case !denied:
		m.shared.denials.add(p.key(), now, now.Add(forgetAbsent), false)
		if ex.decision.outcome == OutcomeExpired {
			m.observer.SessionEnded(p.site, p.user, p.public, EndExpired)
		}
	}
}

// ignore makes the request anonymous because of its origin. The cookie is not
// the backend's to see then, and no command acts on it.
func (ex *exchange) ignore(r *http.Request) {
	hideCookie(r.Header, ex.cookie)
	ex.presented, ex.ignored = nil, true
	ex.decision = decision{action: actAnonymous, outcome: OutcomeForeignOrigin}
	ex.anonymous(r)
}

func (ex *exchange) anonymous(r *http.Request) {
	ex.session = Session{Site: ex.session.Site, exchange: ex}
	stripIdentity(r.Header)
}

// deviceOf is the client's device as records keep it: its User-Agent, cut to
// what a record holds.
func deviceOf(r *http.Request) string {
	agent := r.UserAgent()
	return strings.ToValidUTF8(agent[:min(len(agent), sessionstore.MaxDevice)], "")
}

// addressOf is the client's address, cut to what a record holds.
func (ex *exchange) addressOf() string {
	ip := ex.m.settings.ClientIP(ex.req)
	return ip[:min(len(ip), sessionstore.MaxIP)]
}

// detached is the request's context for what must be done although the client
// may have gone.
func (ex *exchange) detached() context.Context { return context.WithoutCancel(ex.parent) }

// serve passes the request on and sees the response through.
func (ex *exchange) serve(next handler.Handler, r *http.Request) error {
	err := ex.call(next, r)
	if ex.refusal == nil && !ex.begun {
		if err != nil {
			ex.beginError()
		} else {
			ex.begin(http.StatusOK) // what the server sends where nothing was written
		}
	}
	if c := ex.cancellation.Load(); c != nil {
		c.cancel()
	}
	if ex.refusal != nil {
		ex.restoreHeader() // again: what next set since, trailers above all
		return ex.refusal
	}
	if h := ex.w.Header(); !ex.m.guarded && !ex.hijacked && len(h) != ex.sent {
		StripHeader(h) // what was added since the header was sent: trailers
	}
	return err
}

// call runs next. While its response is dropped, next is expected to abort,
// and the proxies' way to do so is a panic.
func (ex *exchange) call(next handler.Handler, r *http.Request) error {
	defer func() {
		if ex.refusal == nil {
			return // a panic goes on by itself
		}
		if v := recover(); v != nil && v != http.ErrAbortHandler {
			panic(v)
		}
	}()
	return next.ServeHTTP(ex, r)
}

// keepHeader cleans the response's header and remembers what is in it before
// next runs.
func (ex *exchange) keepHeader() {
	if !ex.m.guarded {
		StripHeader(ex.w.Header()) // trailers too, which rememberHeader leaves
	}
	ex.rememberHeader(true)
}

// rememberHeader remembers the fields of the response's header, those of the
// namespace apart, which it removes if it is told so.
func (ex *exchange) rememberHeader(strip bool) {
	h := ex.w.Header()
	ex.count, ex.more = 0, nil
	for name, values := range h {
		switch {
		case IsReserved(name):
			if strip {
				delete(h, name)
			}
		case ex.more != nil:
			ex.more[name] = values
		case ex.count < len(ex.before):
			ex.before[ex.count] = headerField{name, values}
			ex.count++
		default:
			ex.more = http.Header{name: values}
		}
	}
}

// KeepHeader tells the middlewares that a request has passed that what is in
// the response's header now is not the backend's: it stays when they drop the
// backend's response. Commands in it go on counting. It is for handlers between
// a Middleware and the backend that add fields before they pass the request on.
// s is the session of the last of the middlewares, nil where there is none.
func (s *Session) KeepHeader() {
	if s == nil {
		return
	}
	for ex := s.exchange; ex != nil; ex = ex.outer {
		if !ex.begun && ex.w != nil {
			ex.rememberHeader(false)
		}
	}
}

// restoreHeader takes the response's header back to what it was before next
// ran, with our cookie.
func (ex *exchange) restoreHeader() {
	h := ex.w.Header()
	clear(h)
	maps.Copy(h, ex.more)
	for _, field := range ex.before[:ex.count] {
		h[field.name] = field.values
	}
	StripHeader(h)
	if ex.line != "" {
		putCookie(h, ex.cookie, ex.line)
	}
}

// drop gives up next's response for a refusal: its header goes, and its
// transfer ends, by an error when next writes the first byte of the body, or
// already now where next has a context of ours.
func (ex *exchange) drop(refusal *problem.Error) {
	ex.refusal = refusal
	ex.restoreHeader()
	(*exchangeContext)(ex).cancellable().cancel()
}

// detach copies what is known of the request, without the response.
func (ex *exchange) detach() *exchange {
	if ex == nil {
		return nil
	}
	copied := &exchange{
		parent: ex.detached(), outer: ex.outer.detach(), m: ex.m, req: ex.req, cookie: ex.cookie, https: ex.https,
		session: ex.session, presented: ex.presented, ignored: ex.ignored, look: ex.look, decision: ex.decision,
	}
	copied.session.exchange = copied
	return copied
}

// exchangeContext is the context of the request that next gets, where it gets
// one of ours. It costs nothing until somebody waits for its end.
type exchangeContext exchange

func (c *exchangeContext) Deadline() (time.Time, bool) { return c.parent.Deadline() }

func (c *exchangeContext) Value(key any) any {
	if _, ours := key.(exchangeKey); ours {
		return (*exchange)(c)
	}
	return c.current().Value(key)
}

func (c *exchangeContext) Done() <-chan struct{} { return c.cancellable().Done() }

func (c *exchangeContext) Err() error { return c.current().Err() }

// current is the inner context where there is one, so that contexts derived
// from this one find the one that ends them.
func (c *exchangeContext) current() context.Context {
	if inner := c.cancellation.Load(); inner != nil {
		return inner.Context
	}
	return c.parent
}

func (c *exchangeContext) cancellable() *cancellation {
	for {
		if inner := c.cancellation.Load(); inner != nil {
			return inner
		}
		made := new(cancellation)
		made.Context, made.cancel = context.WithCancel(c.parent)
		if c.cancellation.CompareAndSwap(nil, made) {
			return made
		}
		made.cancel() // somebody else was faster
	}
}
