package caddymodule

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/gatehouse-gateway/gatehouse/internal/problem"
	"github.com/gatehouse-gateway/gatehouse/sessionauth"
)

// SessionSettings are what all routes share that use one session cookie.
type SessionSettings struct {
	// Name of the cookie. Default: __Host-gatehouse; with a domain or another
	// path __Secure-gatehouse; over plain HTTP gatehouse.
	Cookie string `json:"cookie,omitempty"`

	// Domain attribute of the cookie, which is then the site too. Default: none,
	// the cookie is for the request's host alone.
	Domain string `json:"domain,omitempty"`

	// Path attribute of the cookie. Default: /.
	Path string `json:"path,omitempty"`

	// SameSite attribute: lax (default), strict or none. None needs HTTPS.
	SameSite string `json:"same_site,omitempty"`

	// How long a token is good without a look at the session store. Default: 10m.
	RefreshAfter caddy.Duration `json:"refresh_after,omitempty"`

	// How long the generation before the present one is still accepted, from
	// the same device. Default: 10m.
	Grace caddy.Duration `json:"grace,omitempty"`

	// A session that is not used for that long ends. Default: 1d.
	Lifetime caddy.Duration `json:"lifetime,omitempty"`

	// The same for a session that was started as persistent. Default: 30d.
	PersistentLifetime caddy.Duration `json:"persistent_lifetime,omitempty"`

	// A session ends that long after its start, however much it is used: a
	// duration (default 90d) or "off".
	MaxLifetime *Limit `json:"max_lifetime,omitempty"`

	// What happens to a token that is due while the session store cannot be
	// asked. Default: the request is refused with 503, the cookie is kept.
	OnStoreFailure *SessionStoreFailure `json:"on_store_failure,omitempty"`

	// Whether the backend gets the session cookie too. Default: false.
	ForwardCookie bool `json:"forward_cookie,omitempty"`

	// The site that sessions belong to. Default: the domain if set, else the
	// request's host.
	Site string `json:"site,omitempty"`
}

// SessionStoreFailure says what happens while the session store is away.
type SessionStoreFailure struct {
	// reject (default) or accept_stale.
	Policy string `json:"policy,omitempty"`

	// With accept_stale: for how much longer a due token is accepted.
	For caddy.Duration `json:"for,omitempty"`
}

// check validates the settings without a request.
func (s *SessionSettings) check() error {
	if _, err := s.sameSite(); err != nil {
		return err
	}
	if f := s.OnStoreFailure; f != nil {
		switch {
		case f.Policy == "accept_stale" && f.For > 0, (f.Policy == "reject" || f.Policy == "") && f.For == 0:
		default:
			return fmt.Errorf("on_store_failure: want reject, or accept_stale with a duration")
		}
	}
	return nil
}

func (s *SessionSettings) sameSite() (http.SameSite, error) {
	switch strings.ToLower(s.SameSite) {
	case "", "lax":
		return http.SameSiteLaxMode, nil
	case "strict":
		return http.SameSiteStrictMode, nil
	case "none":
		return http.SameSiteNoneMode, nil
	}
	return 0, fmt.Errorf("same_site: want lax, strict or none, not %q", s.SameSite)
}

// fixedSite is the site where it does not depend on the request.
func (s *SessionSettings) fixedSite() string {
	if s.Site != "" {
		return strings.ToLower(s.Site)
	}
	return strings.ToLower(strings.TrimPrefix(s.Domain, "."))
}

// SessionAuth gives requests a session: it opens the session cookie, tells the
// backend who is signed in (Gatehouse-User, Gatehouse-Session,
// Gatehouse-Claims, Gatehouse-Session-State), refreshes the cookie, and carries
// out the commands that the backend sends in its response
// (Gatehouse-Session-Start, -Update, -End).
//
// Placeholders, empty on requests without a session:
//
//	{http.auth.user.id}                      the signed-in user
//	{http.auth.user.<claim>}                 a claim
//	{http.session_auth.id}                   the public id of the session
//	{http.session_auth.state}                active or stale
//	{http.session_auth.claims.<dot path>}    a claim by its path
type SessionAuth struct {
	// Name of session settings of the gatehouse app to use. Default: the
	// settings that stand here.
	Name string `json:"name,omitempty"`

	SessionSettings

	// Refuse requests without a session. Default: they pass as anonymous.
	Require *SessionRequirement `json:"require,omitempty"`

	// Ask the session store on every request. Default: only when the token is due.
	ForceValidate bool `json:"force_validate,omitempty"`

	// Hosts of other origins that may send requests with the session: exact, or
	// *.example.com for any subdomain, or "any". Default: the request's own host.
	AllowedOrigins []string `json:"allowed_origins,omitempty"`

	// Commands that the backend may send: "on" (default), "off", or any of
	// start, update, end, event.
	Commands []string `json:"commands,omitempty"`

	app        *App
	middleware *sessionauth.Middleware
	effective  *SessionSettings
	site       func(*http.Request) string
}

// SessionRequirement says what happens where a session is required and there is
// none.
type SessionRequirement struct {
	// Where to send browsers that navigate; return_to is appended. Everything
	// else is refused with 401. Default: 401 for all.
	Redirect string `json:"redirect,omitempty"`
}

// CaddyModule returns the module's ID and constructor.
func (SessionAuth) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.session_auth",
		New: func() caddy.Module { return new(SessionAuth) },
	}
}

// Provision sets the handler up; it asks no store.
func (s *SessionAuth) Provision(ctx caddy.Context) error {
	app, err := gatehouseApp(ctx)
	if err != nil {
		return err
	}
	if _, err := app.register(ctx); err != nil {
		return err
	}
	s.app = app
	if s.effective, err = s.settings(); err != nil {
		return err
	}
	if err := s.effective.check(); err != nil {
		return err
	}
	commands, err := parseCommands(s.Commands)
	if err != nil {
		return err
	}
	sameSite, _ := s.effective.sameSite()
	settings := sessionauth.Settings{
		Cookie: s.effective.Cookie, Domain: s.effective.Domain, Path: s.effective.Path, SameSite: sameSite,
		RefreshAfter: time.Duration(s.effective.RefreshAfter), Grace: time.Duration(s.effective.Grace),
		Lifetime: time.Duration(s.effective.Lifetime), PersistentLifetime: time.Duration(s.effective.PersistentLifetime),
		ForwardCookie: s.effective.ForwardCookie, Guarded: true,
		Ring: app.ring, Store: app.sessions.Store, Shared: app.sessions.Shared,
		HTTPS: isHTTPS, ClientIP: clientIP, OriginalURI: originalURL,
		Observer: app.observer, Logger: featureLogger(ctx),
	}
	fixed := s.effective.fixedSite()
	s.site = func(r *http.Request) string {
		if fixed != "" {
			return fixed
		}
		return hostSite(r)
	}
	settings.Site = s.site
	if limit := s.effective.MaxLifetime; limit != nil {
		settings.MaxLifetime = limit.Duration
		if limit.Off {
			settings.MaxLifetime = -1
		}
	}
	if f := s.effective.OnStoreFailure; f != nil {
		settings.AcceptStale = time.Duration(f.For)
	}
	app.noteFresh(cmp.Or(settings.RefreshAfter, sessionauth.DefaultRefreshAfter) + settings.AcceptStale)
	manager, err := sessionauth.NewManager(settings)
	if err != nil {
		return err
	}
	s.middleware = manager.Middleware(s.route(commands))
	return nil
}

// settings returns those that apply: the named ones, or those that stand here.
func (s *SessionAuth) settings() (*SessionSettings, error) {
	if s.Name == "" {
		return &s.SessionSettings, nil
	}
	if s.SessionSettings != (SessionSettings{}) {
		return nil, fmt.Errorf("session settings may stand here or come by the name %q, not both", s.Name)
	}
	named, ok := s.app.Sessions[s.Name]
	if !ok {
		return nil, fmt.Errorf("the gatehouse option has no session named %q", s.Name)
	}
	return named, nil
}

func (s *SessionAuth) route(commands sessionauth.CommandSet) sessionauth.Route {
	route := sessionauth.Route{ForceValidate: s.ForceValidate, Commands: commands}
	if s.Require != nil {
		route.Require = true
		if target := s.Require.Redirect; target != "" {
			route.Redirect = func(r *http.Request) string { return replace(r, target) }
		}
	}
	switch {
	case len(s.AllowedOrigins) == 1 && s.AllowedOrigins[0] == "any":
		route.AnyOrigin = true
	case len(s.AllowedOrigins) > 0:
		route.AllowedOrigins = func(r *http.Request) []string {
			hosts := make([]string, len(s.AllowedOrigins))
			for i, host := range s.AllowedOrigins {
				hosts[i] = replace(r, host)
			}
			return hosts
		}
	}
	return route
}

// parseCommands reads the list of allowed commands.
func parseCommands(words []string) (sessionauth.CommandSet, error) {
	if len(words) == 0 {
		return sessionauth.AllCommands, nil
	}
	var set sessionauth.CommandSet
	for _, word := range words {
		switch word {
		case "on", "off":
			if len(words) > 1 {
				return 0, fmt.Errorf("commands: %s stands alone", word)
			}
			if word == "on" {
				return sessionauth.AllCommands, nil
			}
		case "start":
			set |= sessionauth.CommandStart
		case "update":
			set |= sessionauth.CommandUpdate
		case "end":
			set |= sessionauth.CommandEnd
		case "event":
			set |= sessionauth.CommandEvent
		default:
			return 0, fmt.Errorf("commands: want on, off, or any of start, update, end, event, not %q", word)
		}
	}
	return set, nil
}

// Validate checks what needs no server.
func (s *SessionAuth) Validate() error {
	for _, host := range s.AllowedOrigins {
		if host == "any" && len(s.AllowedOrigins) > 1 {
			return fmt.Errorf("allowed_origins: any stands alone")
		}
		if strings.Contains(host, "{") {
			continue
		}
		if rest := strings.TrimPrefix(host, "*."); host == "" || strings.ContainsAny(rest, "*/:@ ") {
			return fmt.Errorf("allowed_origins: %q is no host, like app.example or *.example.com", host)
		}
	}
	return nil
}

// ServeHTTP does the session work around the rest of the route.
func (s *SessionAuth) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	p := passageOf(r)
	if p == nil {
		return answerProblem(w, r, problem.New("guard-missing", nil))
	}
	outer := p.working
	defer func() { p.working = outer }()
	err := s.middleware.ServeIn(p, w, r, next)
	if err == nil {
		return nil
	}
	if p.session == nil { // refused: for error routes it is a request without a session
		p.announce(r, &sessionauth.Session{Site: s.site(r)})
	}
	return answerProblem(w, r, err)
}

// Session is that of the session_auth at work.
func (p *passage) Session() *sessionauth.Session { return p.working }

// Put makes a session the request's before it is passed on.
func (p *passage) Put(r *http.Request, session *sessionauth.Session) {
	p.working = session
	p.announce(r, session)
}

// announce makes a session the request's for everything else. Of several, with
// cookies of their own, the last one counts, as it does for the backend.
func (p *passage) announce(r *http.Request, session *sessionauth.Session) {
	before := p.session
	p.session = session
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return
	}
	repl.Delete("http.auth.user.id") // of an authentication in front, which would hide ours
	if before != nil {
		return
	}
	repl.Map(func(key string) (any, bool) { return sessionPlaceholder(p.session, key) })
}

func sessionPlaceholder(session *sessionauth.Session, key string) (any, bool) {
	if name, ok := strings.CutPrefix(key, "http.auth.user."); ok {
		if name == "id" {
			return session.User, true
		}
		value, _ := session.ClaimsPath(name)
		return value, true
	}
	name, ok := strings.CutPrefix(key, "http.session_auth.")
	if !ok {
		return nil, false
	}
	switch name {
	case "id":
		return session.ID, true
	case "state":
		return session.State, true
	}
	if path, ok := strings.CutPrefix(name, "claims."); ok {
		value, _ := session.ClaimsPath(path)
		return value, true
	}
	return nil, false
}

// requestSession returns the session that session_auth found, or nil when it
// did not run.
func requestSession(r *http.Request) *sessionauth.Session {
	if p := passageOf(r); p != nil {
		return p.session
	}
	return nil
}

// requestUser returns the signed-in user, or "".
func requestUser(r *http.Request) string {
	if session := requestSession(r); session != nil {
		return session.User
	}
	return ""
}

// replace expands the request's placeholders; unknown ones become empty.
func replace(r *http.Request, text string) string {
	if !strings.Contains(text, "{") {
		return text
	}
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return text
	}
	return repl.ReplaceAll(text, "")
}

// isHTTPS reports whether the client speaks HTTPS: TLS on this connection, or
// said so by a trusted proxy.
func isHTTPS(r *http.Request) bool {
	if r.TLS != nil {
		return true
	}
	trusted, _ := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool)
	if !trusted {
		return false
	}
	values := r.Header["X-Forwarded-Proto"]
	return len(values) == 1 && strings.EqualFold(values[0], "https")
}

// clientIP returns the client's address by Caddy's trusted-proxy rules.
func clientIP(r *http.Request) string {
	ip, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	return ip
}

// originalURL returns the URL as the client sent it, before rewrites.
func originalURL(r *http.Request) *url.URL {
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok && original.URL != nil {
		return original.URL
	}
	return r.URL
}

// siteOf returns the site of a request for a handler with the given override:
// the override in lower case, as all sites are, else that of the request's session_auth, else the host.
func siteOf(r *http.Request, override string) string {
	if override != "" {
		return strings.ToLower(override)
	}
	if session := requestSession(r); session != nil {
		return session.Site
	}
	return hostSite(r)
}

// hostSite is the request's host without port, in lower case.
func hostSite(r *http.Request) string {
	return sessionauth.HostSite(r.Host)
}

// fingerprint tells settings apart.
func (s *SessionSettings) fingerprint() string {
	return string(caddyconfig.JSON(s, nil))
}

var (
	_ caddy.Provisioner           = (*SessionAuth)(nil)
	_ caddy.Validator             = (*SessionAuth)(nil)
	_ caddyhttp.MiddlewareHandler = (*SessionAuth)(nil)
	_ sessionauth.Place           = (*passage)(nil)
)
