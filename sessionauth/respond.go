package sessionauth

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/problem"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// begin sees to the start of the final response, once: the backend's commands,
// or else the refresh of the session. It reports whether the response may be
// written; otherwise it has been dropped for a refusal.
func (ex *exchange) begin(status int) bool {
	ex.begun = true
	h := ex.w.Header()
	raw, commanded := takeCommands(h)
	if commanded && ex.switches(status) {
		raw = rawCommands{fieldEnd: raw[fieldEnd]} // nothing else counts there
		commanded = len(raw[fieldEnd]) > 0
	}
	if !commanded {
		ex.putDecided(h)
		ex.sent = len(h)
		return true
	}
	if refusal := ex.obey(raw); refusal != nil {
		ex.drop(refusal)
		return false
	}
	if ex.line != "" {
		putCookie(h, ex.cookie, ex.line)
	}
	return true
}

// switches reports whether a status begins another protocol: 101, or success
// where the client asked with an extended CONNECT.
func (ex *exchange) switches(status int) bool {
	return status == http.StatusSwitchingProtocols || status/100 == 2 && isExtendedConnect(ex.req)
}

// beginError does what the start of a response does, for one that somebody
// else will write to an error of next. Commands of a response that failed do
// not count.
func (ex *exchange) beginError() {
	ex.begun = true
	h := ex.w.Header()
	StripHeader(h)
	ex.putDecided(h)
}

// putDecided puts the cookie that follows from the request alone into a
// header: cleared, refreshed, sent again, or none.
func (ex *exchange) putDecided(h http.Header) {
	switch d := ex.decision; {
	case d.clear:
		ex.clearCookie()
	case d.refresh:
		ex.refresh()
	case d.reissue:
		ex.reissue(&ex.look.record, ex.look.now)
	}
	if ex.line != "" {
		putCookie(h, ex.cookie, ex.line)
	}
}

// cleanHijacked cleans a header that next writes to the connection by itself.
// There is no response to replace any more: a bad command and an end that could
// not be stored cut the connection.
func (ex *exchange) cleanHijacked(h http.Header) {
	raw, commanded := takeCommands(h)
	raw = rawCommands{fieldEnd: raw[fieldEnd]}
	if !commanded || len(raw[fieldEnd]) == 0 {
		return
	}
	if ex.obey(raw) != nil {
		_ = ex.conn.Close()
		return
	}
	if ex.line != "" {
		putCookie(h, ex.cookie, ex.line)
	}
}

// clearCookie has the client's cookie cleared.
func (ex *exchange) clearCookie() {
	if !ex.ignored {
		ex.line = ex.m.clearCookieLine(ex.cookie, ex.https)
	}
}

// mayRotate reports whether the client can be expected to take a new
// generation: it is there, and means to show what it fetched.
func (ex *exchange) mayRotate() bool {
	if ex.parent.Err() != nil {
		return false
	}
	for _, value := range ex.req.Header["Sec-Purpose"] {
		purpose, _, _ := strings.Cut(value, ";")
		if strings.TrimSpace(purpose) == "prefetch" {
			return false
		}
	}
	return true
}

// refresh moves the session to its next generation, if it is still in the one
// that was looked up. Only the request that does so sends the new cookie; a
// fault costs nothing but the refresh.
func (ex *exchange) refresh() {
	m, p, seen := ex.m, ex.presented, &ex.look.record
	if !ex.mayRotate() {
		m.observer.Decided(OutcomeNotRotated)
		if ex.decision.reissue {
			ex.reissue(seen, ex.look.now)
		}
		return
	}
	record, err := ex.rotate(p, seen)
	switch {
	case err == nil:
		m.observer.Decided(OutcomeRotated)
		ex.issue(tokenOf(p.secret, &record), record.Refreshed)
	case errors.Is(err, sessionstore.ErrConflict):
		m.observer.Decided(OutcomeLostRace)
	case errors.Is(err, sessionstore.ErrNotFound):
		m.observer.Decided(OutcomeEnded)
		m.deny(p.site, p.id)
	default:
		m.observer.Decided(OutcomeRefreshFailed)
	}
}

// rotate is the conditional write of a refresh.
func (ex *exchange) rotate(p *opened, seen *sessionstore.Record) (record sessionstore.Record, err error) {
	err = ex.m.write(ex.detached(), "refresh", p.id, func(ctx context.Context) error {
		record, err = ex.m.store.Refresh(ctx, p.key(), sessionstore.Refresh{
			Generation: seen.Generation,
			Lifetime:   ex.m.lifetimeOf(seen.Persistent),
			Device:     deviceOf(ex.req),
			IP:         ex.addressOf(),
		})
		return err
	})
	return record, err
}

// reissue sends the token of a record as it is.
func (ex *exchange) reissue(record *sessionstore.Record, now time.Time) {
	ex.m.observer.Decided(OutcomeReissued)
	ex.issue(tokenOf(ex.presented.secret, record), now)
}

// issue makes the Set-Cookie line of a token that the client could do without.
func (ex *exchange) issue(t *token, now time.Time) {
	line, err := ex.m.seal(ex.detached(), ex.session.Site, ex.cookie, t, now, ex.https)
	if err != nil {
		ex.m.log.Error("sealing a session token failed", "session", formatID(publicID(t.secret)), "error", err)
		return
	}
	ex.line = line
}

// obey carries out the commands of a response. The result is in ex.line; a
// refusal takes the response's place.
func (ex *exchange) obey(raw rawCommands) *problem.Error {
	c, err := parseCommands(raw, ex.allowed, !ex.session.Anonymous())
	if err != nil {
		ex.m.observer.Commanded("", true)
		ex.m.log.Error("bad session command from the application", "error", err)
		return problem.New("bad-session-command", err)
	}
	name, refusal := "end", (*problem.Error)(nil)
	switch {
	case c.start != nil:
		name, refusal = "start", ex.start(&c)
	case c.update != nil:
		name, refusal = "update", ex.update(&c)
	default:
		refusal = ex.end(&c)
	}
	ex.m.observer.Commanded(name, refusal != nil)
	return refusal
}

// start makes a new session in place of the presented one.
func (ex *exchange) start(c *commands) *problem.Error {
	m, site := ex.m, ex.session.Site
	secret := newSecret()
	key := sessionstore.Key{Site: site, ID: publicID(secret)}
	start := sessionstore.Start{
		Key: key, User: c.start.user, Claims: c.start.claims,
		Lifetime: m.lifetimeOf(c.start.persistent), MaxAge: m.maxLifetime, Persistent: c.start.persistent,
		Device: deviceOf(ex.req), IP: ex.addressOf(),
	}
	// The token is tried first: a session that nobody can be given must not
	// replace the one that is there.
	now := m.now()
	trial := &token{user: start.User, secret: secret, claims: string(start.Claims), refreshed: now, lifetime: start.Lifetime}
	if _, err := m.protector(site, ex.cookie).Seal(ex.detached(), trial.encode(nil)); err != nil {
		return ex.ringAway(err)
	}
	var record sessionstore.Record
	var ended []sessionstore.Ended
	err := m.write(ex.detached(), "start", key.ID, func(ctx context.Context) (err error) {
		record, ended, err = m.store.Start(ctx, start, ex.endsOfStart(c)...)
		return err
	})
	if err != nil {
		return ex.storeAway(err)
	}
	if p := ex.presented; p != nil {
		m.deny(site, p.id)
	}
	m.noteEnded(site, ended, ex.reasonOfStart)
	m.observer.SessionStarted(site, record.User, formatID(key.ID))
	return ex.mustIssue(tokenOf(secret, &record))
}

// endsOfStart are the sessions that end with the start of a new one.
func (ex *exchange) endsOfStart(c *commands) (ends []sessionstore.End) {
	if p := ex.presented; p != nil {
		ends = append(ends, sessionstore.End{User: p.user, ID: p.id})
	}
	if c.end == endOthers {
		ends = append(ends, sessionstore.End{User: c.start.user})
	}
	return ends
}

func (ex *exchange) reasonOfStart(id sessionstore.ID) EndReason {
	if p := ex.presented; p != nil && p.id == id {
		return EndReplaced
	}
	return EndSignedOut
}

// update changes the claims or the id of the request's session.
func (ex *exchange) update(c *commands) *problem.Error {
	m, p := ex.m, ex.presented
	change := sessionstore.Update{Claims: c.update.claims}
	secret := p.secret
	if c.update.rotate {
		secret = newSecret()
		change.NewID = publicID(secret)
	}
	var ends []sessionstore.End
	if c.end == endOthers {
		ends = []sessionstore.End{{User: p.user, Except: p.id}}
	}
	var record sessionstore.Record
	var ended []sessionstore.Ended
	err := m.write(ex.detached(), "update", p.id, func(ctx context.Context) (err error) {
		record, ended, err = m.store.Update(ctx, p.key(), change, ends...)
		return err
	})
	switch {
	case errors.Is(err, sessionstore.ErrNotFound):
		return ex.updateEnded(c)
	case err != nil:
		return ex.storeAway(err)
	}
	if c.update.rotate {
		m.deny(p.site, p.id)
	}
	m.noteEnded(p.site, ended, always(EndSignedOut))
	return ex.issueUpdated(c, secret, &record)
}

// updateEnded is the update of a session that was ended since the request
// began. It stays ended; the response is delivered, its cookie cleared.
func (ex *exchange) updateEnded(c *commands) *problem.Error {
	ex.m.deny(ex.presented.site, ex.presented.id)
	ex.clearCookie()
	if c.end == endOthers {
		return ex.end(c)
	}
	return nil
}

// issueUpdated sends the token of an updated session, and refreshes it where
// that was due anyway: an application that updates with every request must not
// keep its sessions from being refreshed.
func (ex *exchange) issueUpdated(c *commands, secret string, record *sessionstore.Record) *problem.Error {
	now := ex.m.now()
	if ex.decision.refresh && !c.update.rotate && ex.mayRotate() && record.Generation == ex.look.record.Generation {
		refreshed, err := ex.rotate(ex.presented, record)
		if errors.Is(err, sessionstore.ErrConflict) {
			ex.m.observer.Decided(OutcomeLostRace)
			return nil
		}
		if err == nil {
			ex.m.observer.Decided(OutcomeRotated)
			record, now = &refreshed, refreshed.Refreshed
		}
	}
	if c.update.rotate {
		now = record.Refreshed
	}
	return ex.mustIssueAt(tokenOf(secret, record), now)
}

func (ex *exchange) mustIssue(t *token) *problem.Error { return ex.mustIssueAt(t, t.refreshed) }

// mustIssueAt makes the Set-Cookie line of a token that the client needs.
func (ex *exchange) mustIssueAt(t *token, now time.Time) *problem.Error {
	line, err := ex.m.seal(ex.detached(), ex.session.Site, ex.cookie, t, now, ex.https)
	if err != nil {
		return ex.ringAway(err)
	}
	ex.line = line
	return nil
}

func (ex *exchange) storeAway(err error) *problem.Error {
	ex.line = ""
	return problem.New("session-store-unavailable", err).WithRetryAfter(retryAfter)
}

// end ends sessions of the presented token's user. The token's look-up may have
// failed or rejected it: whoever holds it may end what it was for.
func (ex *exchange) end(c *commands) *problem.Error {
	m, p := ex.m, ex.presented
	if p == nil {
		ex.clearCookie()
		return nil
	}
	end := sessionstore.End{User: p.user}
	denied := sessionstore.ID{}
	switch c.end {
	case endCurrent:
		end.ID, denied = p.id, p.id
	case endOthers:
		end.Except = p.id
	case endUser:
		denied = p.id
	case endOne:
		if c.endID.IsZero() {
			return nil // no session has it, and to the store it means all
		}
		end.ID = c.endID
		if c.endID == p.id {
			denied = p.id
		}
	}
	if !denied.IsZero() {
		m.deny(p.site, denied)
		ex.clearCookie()
	} else if ex.line == "" && ex.decision.clear {
		ex.clearCookie()
	}
	if err := m.end(ex.detached(), p.site, p.id, always(EndSignedOut), end); err != nil {
		m.endLater(p.site, denied, EndSignedOut, end)
		return problem.New("session-end-not-durable", err).WithRetryAfter(retryAfter)
	}
	if denied.IsZero() && ex.line == "" {
		ex.refreshBeside()
	}
	return nil
}

// refreshBeside refreshes the presented session beside an end of others.
func (ex *exchange) refreshBeside() {
	switch d := ex.decision; {
	case d.refresh:
		ex.refresh()
	case d.reissue:
		ex.reissue(&ex.look.record, ex.look.now)
	}
}
