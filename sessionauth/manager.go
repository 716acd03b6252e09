package sessionauth

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

const (
	// storeTimeout bounds a call of the store, whose own bound is shorter.
	storeTimeout = 5 * time.Second
	// retryAfter is what clients are told while the store or the ring is away.
	retryAfter = 2 * time.Second
	// forgetAbsent is how long an id that the store did not find is not asked
	// for again. Ids never come back, so it only spares the store dead cookies.
	forgetAbsent = 5 * time.Second
	// denyMargin is added to the life of a denial, for clocks that differ.
	denyMargin = time.Minute
	// maxProtectors bounds the cache of protectors: sites come from clients
	// where a server takes any host.
	maxProtectors = 1024
)

// keyRing is what is used of a *dataprotection.Ring.
type keyRing interface {
	Epoch() uint64
	protector(purposes ...string) protector
}

type protector interface {
	Seal(ctx context.Context, plaintext []byte) (string, error)
	Open(ctx context.Context, token string) (string, error)
}

// ring is a *dataprotection.Ring as a keyRing.
type ring struct{ *dataprotection.Ring }

func (r ring) protector(purposes ...string) protector { return r.Protector(purposes...) }

// Manager does the session work of one cookie. It is safe for concurrent use.
type Manager struct {
	timing
	cookie, domain, path         string
	sameSite                     http.SameSite
	lifetime, persistentLifetime time.Duration
	maxLifetime                  time.Duration // zero: none
	forward, guarded             bool

	ring      keyRing
	store     sessionstore.Store
	shared    *Shared
	ownShared bool
	settings  Settings // for its functions
	observer  Observer
	log       *slog.Logger
	now       func() time.Time

	mu         sync.Mutex
	protectors map[purpose]protector
}

// purpose is what tells the protectors of a Manager apart.
type purpose struct{ site, cookie string }

// NewManager makes a Manager. It does no I/O.
func NewManager(s Settings) (*Manager, error) {
	if s.Ring == nil {
		return nil, errors.New("sessionauth: no key ring")
	}
	return newManager(s, ring{s.Ring})
}

func newManager(s Settings, keys keyRing) (*Manager, error) {
	if s.Store == nil {
		return nil, errors.New("sessionauth: no session store")
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	s = s.withDefaults()
	m := &Manager{
		timing: timing{refreshAfter: s.RefreshAfter, grace: s.Grace, acceptStale: s.AcceptStale},
		cookie: s.Cookie, domain: s.Domain, path: s.Path, sameSite: s.SameSite,
		lifetime: s.Lifetime, persistentLifetime: s.PersistentLifetime, maxLifetime: max(s.MaxLifetime, 0),
		forward: s.ForwardCookie, guarded: s.Guarded,
		ring: keys, store: s.Store, shared: s.Shared, settings: s,
		observer: s.Observer, log: s.Logger, now: s.Now,
		protectors: map[purpose]protector{},
	}
	if m.shared == nil {
		m.shared, m.ownShared = NewShared(), true
	}
	return m, nil
}

// Close closes the state that the Manager made for itself. A Shared that came
// with the Settings stays open.
func (m *Manager) Close() error {
	if m.ownShared {
		return m.shared.Close()
	}
	return nil
}

// Middleware returns the session work for a route.
func (m *Manager) Middleware(route Route) *Middleware {
	return &Middleware{manager: m, route: route}
}

// cookieName is the name of the cookie for a client that speaks HTTPS or not.
// Browsers refuse names with a prefix that promises HTTPS over plain HTTP.
func (m *Manager) cookieName(https bool) string {
	switch {
	case m.cookie != "":
		return m.cookie
	case !https:
		return "gatehouse"
	case m.domain != "" || m.path != "/":
		return "__Secure-gatehouse"
	}
	return "__Host-gatehouse"
}

// lifetimeOf is how long an unused session lasts.
func (m *Manager) lifetimeOf(persistent bool) time.Duration {
	if persistent {
		return m.persistentLifetime
	}
	return m.lifetime
}

// protector returns the protector of a site's cookie.
func (m *Manager) protector(site, cookie string) protector {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := purpose{site, cookie}
	if p, ok := m.protectors[key]; ok {
		return p
	}
	if len(m.protectors) >= maxProtectors {
		clear(m.protectors)
	}
	p := m.ring.protector("Gatehouse.Session", site, cookie, "v1")
	m.protectors[key] = p
	return p
}

// open opens a token, from the cache where it has been opened before under the
// ring's present state.
func (m *Manager) open(ctx context.Context, site, cookie, value string) (*opened, error) {
	epoch := m.ring.Epoch()
	slot := m.shared.tokens.slot(value)
	if o := slot.Load(); o != nil && o.value == value && o.site == site && o.cookie == cookie && o.epoch == epoch && o.ring == m.ring {
		return o, nil
	}
	plain, err := m.protector(site, cookie).Open(ctx, value)
	if err != nil {
		return nil, err
	}
	t, err := decodeToken(plain)
	if err != nil {
		return nil, err
	}
	o := &opened{value: value, site: site, cookie: cookie, ring: m.ring, epoch: epoch, token: t}
	o.id = publicID(t.secret)
	o.public = formatID(o.id)
	o.field = encodeUser(t.user)
	if !t.claimsStored {
		o.set = newClaimSet(t.claims)
	}
	slot.Store(o)
	return o, nil
}

// seal seals a token and returns its Set-Cookie line. Claims that make the line
// too long are left to the store.
func (m *Manager) seal(ctx context.Context, site, cookie string, t *token, now time.Time, https bool) (string, error) {
	p := m.protector(site, cookie)
	value, err := p.Seal(ctx, t.encode(nil))
	if err != nil {
		return "", err
	}
	line := m.setCookieLine(cookie, value, t, now, https)
	if len(line) < maxSetCookie || t.claimsStored {
		return line, nil
	}
	small := *t
	small.claims, small.claimsStored = "", true
	m.shared.claims.put(sessionstore.Key{Site: site, ID: publicID(t.secret)}, t.claimsVersion, newClaimSet(t.claims), m.now())
	return m.seal(ctx, site, cookie, &small, now, https)
}

// lookUp asks the store for a session. A fault is logged, unless the client has
// gone.
func (m *Manager) lookUp(ctx context.Context, key sessionstore.Key) *lookup {
	bounded, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	began := m.now()
	record, now, err := m.store.Get(bounded, key)
	switch {
	case err == nil:
		m.observer.StoreAsked("get", m.now().Sub(began), nil)
		return &lookup{record: record, now: now}
	case errors.Is(err, sessionstore.ErrNotFound):
		m.observer.StoreAsked("get", m.now().Sub(began), nil)
		return &lookup{absent: true}
	case ctx.Err() != nil:
		return &lookup{failed: true}
	}
	m.fault("get", began, key.ID, err)
	return &lookup{failed: true}
}

// write runs a call that changes the store. Requests give it a context that does
// not end with the client, since a change must not stop halfway.
func (m *Manager) write(ctx context.Context, operation string, id sessionstore.ID, call func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	began := m.now()
	err := call(bounded)
	switch {
	case err == nil, errors.Is(err, sessionstore.ErrNotFound), errors.Is(err, sessionstore.ErrConflict):
		m.observer.StoreAsked(operation, m.now().Sub(began), nil)
	default:
		m.fault(operation, began, id, err)
	}
	return err
}

// fault reports and logs a failed call of the store.
func (m *Manager) fault(operation string, began time.Time, id sessionstore.ID, err error) {
	m.observer.StoreAsked(operation, m.now().Sub(began), err)
	m.log.Error("session store failed", "operation", operation, "session", formatID(id), "error", err)
}

// deny makes this gateway refuse a session that has ended, for as long as a
// token of it could be believed without the store.
func (m *Manager) deny(site string, id sessionstore.ID) {
	now := m.now()
	m.shared.denials.add(sessionstore.Key{Site: site, ID: id}, now, now.Add(m.refreshAfter+m.acceptStale+denyMargin), false)
}

// end ends sessions, denies them in this gateway and reports those that were
// alive. reason gives the reason of each.
func (m *Manager) end(ctx context.Context, site string, id sessionstore.ID, reason func(sessionstore.ID) EndReason, ends ...sessionstore.End) error {
	var ended []sessionstore.Ended
	err := m.write(ctx, "end", id, func(ctx context.Context) (err error) {
		ended, err = m.store.End(ctx, site, ends...)
		return err
	})
	if err != nil {
		return err
	}
	m.noteEnded(site, ended, reason)
	return nil
}

// noteEnded denies sessions that the store has ended, then reports them.
func (m *Manager) noteEnded(site string, ended []sessionstore.Ended, reason func(sessionstore.ID) EndReason) {
	for _, e := range ended {
		m.deny(site, e.ID)
	}
	for _, e := range ended {
		m.observer.SessionEnded(site, e.User, formatID(e.ID), reason(e.ID))
	}
}

// endLater denies a session whose end could not be stored and has the end tried
// again. id may be zero, where others are to be ended.
func (m *Manager) endLater(site string, id sessionstore.ID, reason EndReason, ends ...sessionstore.End) {
	now := m.now()
	longest := max(m.lifetime, m.persistentLifetime)
	if !id.IsZero() {
		m.shared.denials.add(sessionstore.Key{Site: site, ID: id}, now, now.Add(longest), true)
	}
	if !m.shared.retry(&pendingEnd{manager: m, site: site, ends: ends, reason: reason, at: now, until: now.Add(longest)}) {
		m.log.Error("session end dropped: too many wait for the store", "session", formatID(id))
	}
}

func always(reason EndReason) func(sessionstore.ID) EndReason {
	return func(sessionstore.ID) EndReason { return reason }
}
