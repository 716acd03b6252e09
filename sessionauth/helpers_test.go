package sessionauth

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gatehouse-gateway/gatehouse/internal/handler"
	"github.com/gatehouse-gateway/gatehouse/internal/problem"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a clock that tests set.
type clock struct{ nanos atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.nanos.Store(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC).UnixNano())
	return c
}

func (c *clock) now() time.Time          { return time.Unix(0, c.nanos.Load()).UTC() }
func (c *clock) advance(d time.Duration) { c.nanos.Add(int64(d)) }

// memoryRing is a ring repository in memory.
type memoryRing struct {
	mu       sync.Mutex
	elements []ringstore.Element
	err      error
}

func (m *memoryRing) Elements(context.Context) ([]ringstore.Element, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.elements), m.err
}

func (m *memoryRing) Add(_ context.Context, name string, xml []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	m.elements = append(m.elements, ringstore.Element{Name: name, XML: slices.Clone(xml)})
	return nil
}

func newRing(t testing.TB, repository ringstore.Repository) *dataprotection.Ring {
	t.Helper()
	r, err := dataprotection.New(dataprotection.Options{Repository: repository, ApplicationName: "gatehouse", AutoGenerate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// testStore is a session store in memory with a clock of its own. before is
// asked before each call and may fail it; calls counts them.
type testStore struct {
	clock  *clock
	before func(operation string) error

	mu      sync.Mutex
	records map[sessionstore.Key]sessionstore.Record
	calls   map[string]int
}

func newTestStore(c *clock) *testStore {
	return &testStore{clock: c, records: map[sessionstore.Key]sessionstore.Record{}, calls: map[string]int{}}
}

func (s *testStore) enter(ctx context.Context, operation string) error {
	s.mu.Lock()
	s.calls[operation]++
	before := s.before
	s.mu.Unlock()
	if before != nil {
		if err := before(operation); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (s *testStore) failWith(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = nil
	if err != nil {
		s.before = func(string) error { return err }
	}
}

// count returns how often an operation was called since the last count.
func (s *testStore) count(operation string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.calls[operation]
	s.calls[operation] = 0
	return n
}

func (s *testStore) liveLocked(key sessionstore.Key) (sessionstore.Record, error) {
	r, ok := s.records[key]
	if !ok || !s.clock.now().Before(r.Expires()) {
		return sessionstore.Record{}, sessionstore.ErrNotFound
	}
	return r, nil
}

func (s *testStore) endLocked(site string, keep sessionstore.ID, ends []sessionstore.End) (ended []sessionstore.Ended) {
	for key, r := range s.records {
		for _, e := range ends {
			if key.Site == site && key.ID != keep && r.User == e.User && (e.ID == key.ID || e.ID.IsZero() && e.Except != key.ID) {
				delete(s.records, key)
				ended = append(ended, sessionstore.Ended{ID: key.ID, User: r.User})
				break
			}
		}
	}
	return ended
}

func (s *testStore) Get(ctx context.Context, key sessionstore.Key) (sessionstore.Record, time.Time, error) {
	if err := s.enter(ctx, "get"); err != nil {
		return sessionstore.Record{}, time.Time{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.liveLocked(key)
	return r, s.clock.now(), err
}

func (s *testStore) Start(ctx context.Context, st sessionstore.Start, ends ...sessionstore.End) (sessionstore.Record, []sessionstore.Ended, error) {
	if err := s.enter(ctx, "start"); err != nil {
		return sessionstore.Record{}, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.now().Truncate(time.Millisecond)
	r := sessionstore.Record{
		User: st.User, Claims: st.Claims, ClaimsVersion: 1, Created: now, Refreshed: now,
		Lifetime: st.Lifetime, Persistent: st.Persistent, Device: st.Device, IP: st.IP,
	}
	if st.MaxAge > 0 {
		r.Until = now.Add(st.MaxAge)
	}
	ended := s.endLocked(st.Key.Site, st.Key.ID, ends)
	s.records[st.Key] = r
	return r, ended, st.Check()
}

func (s *testStore) Refresh(ctx context.Context, key sessionstore.Key, f sessionstore.Refresh) (sessionstore.Record, error) {
	if err := s.enter(ctx, "refresh"); err != nil {
		return sessionstore.Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.liveLocked(key)
	if err != nil {
		return r, err
	}
	if r.Generation != f.Generation {
		return sessionstore.Record{}, sessionstore.ErrConflict
	}
	r.Generation++
	r.Refreshed, r.Lifetime, r.Device, r.IP = s.clock.now().Truncate(time.Millisecond), f.Lifetime, f.Device, f.IP
	s.records[key] = r
	return r, nil
}

func (s *testStore) Update(ctx context.Context, key sessionstore.Key, u sessionstore.Update, ends ...sessionstore.End) (sessionstore.Record, []sessionstore.Ended, error) {
	if err := s.enter(ctx, "update"); err != nil {
		return sessionstore.Record{}, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.liveLocked(key)
	if err != nil {
		return r, nil, err
	}
	if u.Claims != nil {
		r.Claims = u.Claims
		r.ClaimsVersion++
	}
	at := key
	if !u.NewID.IsZero() {
		at.ID = u.NewID
		r.Generation, r.Refreshed = 0, s.clock.now().Truncate(time.Millisecond)
		delete(s.records, key)
	}
	s.records[at] = r
	return r, s.endLocked(key.Site, at.ID, ends), nil
}

func (s *testStore) End(ctx context.Context, site string, ends ...sessionstore.End) ([]sessionstore.Ended, error) {
	if err := s.enter(ctx, "end"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endLocked(site, sessionstore.ID{}, ends), nil
}

func (s *testStore) List(ctx context.Context, site, user string) (list []sessionstore.Listed, err error) {
	if err := s.enter(ctx, "list"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, r := range s.records {
		if key.Site == site && r.User == user {
			list = append(list, sessionstore.Listed{ID: key.ID, Record: r})
		}
	}
	return list, nil
}

// record returns the only record of the store.
func (s *testStore) record(t *testing.T) sessionstore.Record {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.records) != 1 {
		t.Fatalf("store has %d records, want 1", len(s.records))
	}
	for _, r := range s.records {
		return r
	}
	panic("unreachable")
}

func (s *testStore) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.records)
}

// recorder is an Observer that writes everything down.
type recorder struct {
	mu     sync.Mutex
	lines  []string
	events []string
}

func (o *recorder) add(list *[]string, parts ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	*list = append(*list, strings.Join(parts, " "))
}

func (o *recorder) Decided(out Outcome) { o.add(&o.lines, out.String()) }
func (o *recorder) StoreAsked(op string, _ time.Duration, err error) {
	if err != nil {
		o.add(&o.lines, "store", op, "failed")
	}
}
func (o *recorder) Commanded(command string, refused bool) {
	if refused {
		command += "!"
	}
	o.add(&o.lines, "command", command)
}
func (o *recorder) SessionStarted(_, user, _ string) { o.add(&o.events, "started", user) }
func (o *recorder) SessionEnded(_, user, _ string, reason EndReason) {
	o.add(&o.events, "ended", user, string(reason))
}

func (o *recorder) take(list *[]string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := *list
	*list = nil
	return out
}

func (o *recorder) takeLines() []string  { return o.take(&o.lines) }
func (o *recorder) takeEvents() []string { return o.take(&o.events) }

// gateway is a Manager with everything under a test's control.
type gateway struct {
	*Manager
	t        testing.TB
	clock    *clock
	store    *testStore
	observer *recorder
	route    Route
}

func newGateway(t testing.TB, change ...func(*Settings)) *gateway {
	t.Helper()
	c := newClock()
	g := &gateway{t: t, clock: c, store: newTestStore(c), observer: new(recorder), route: Route{Commands: AllCommands}}
	s := Settings{Store: g.store, Observer: g.observer, Now: c.now, Ring: newRing(t, new(memoryRing))}
	for _, f := range change {
		f(&s)
	}
	m, err := NewManager(s)
	if err != nil {
		t.Fatal(err)
	}
	g.Manager = m
	t.Cleanup(func() { m.Close() })
	return g
}

// seen is what the backend saw of a request.
type seen struct {
	header  http.Header
	session Session
	asked   bool
}

func (s *seen) user() string { return s.header.Get("Gatehouse-User") }

// do runs a request through the gateway to a backend that answers with the
// given header fields ("Name: value").
func (g *gateway) do(r *http.Request, fields ...string) (*httptest.ResponseRecorder, *seen) {
	g.t.Helper()
	saw := new(seen)
	w := httptest.NewRecorder()
	backend := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		saw.asked, saw.header, saw.session = true, r.Header.Clone(), *FromContext(r.Context())
		for _, f := range fields {
			name, value, _ := strings.Cut(f, ": ")
			w.Header().Add(name, value)
		}
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write([]byte("body"))
	})
	g.Middleware(g.route).Wrap(backend).ServeHTTP(w, r)
	return w, saw
}

func request(cookie string) *http.Request {
	r := httptest.NewRequest("GET", "https://app.example/page?x=1", nil)
	r.Header.Set("User-Agent", "test browser")
	if cookie != "" {
		r.Header.Set("Cookie", cookie)
	}
	return r
}

// cookieOf returns the "name=value" of the session cookie that a response sets.
// It is "" where the response sets none, and ends with "=" where it is cleared.
func cookieOf(w *httptest.ResponseRecorder) string {
	for _, line := range w.Header()["Set-Cookie"] {
		if pair, _, _ := strings.Cut(line, ";"); strings.Contains(pair, "gatehouse=") {
			return pair
		}
	}
	return ""
}

const cleared = "__Host-gatehouse="

// signIn starts a session and returns its cookie.
func (g *gateway) signIn(command string) string {
	g.t.Helper()
	w, _ := g.do(request(""), "Gatehouse-Session-Start: "+command)
	cookie := cookieOf(w)
	if w.Code != 200 || !strings.HasPrefix(cookie, cleared+magic) {
		g.t.Fatalf("sign-in: status %d, cookie %q, body %s", w.Code, cookie, w.Body)
	}
	g.observer.takeLines()
	g.observer.takeEvents()
	for _, op := range []string{"get", "start", "refresh", "update", "end"} {
		g.store.count(op)
	}
	return cookie
}

const u1 = `{"user":"u1","claims":{"role":"admin"}}`

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	p, ok := errors.AsType[*problem.Error](err)
	if !ok || p.Code != code {
		t.Fatalf("error is %v, want problem %s", err, code)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

var errDown = errors.New("store is down")

// next makes a handler that never returns an error.
func next(f http.HandlerFunc) handler.Handler { return handler.FromHTTP(f) }

func newRecorder() *httptest.ResponseRecorder { return httptest.NewRecorder() }
