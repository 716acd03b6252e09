package sessionauth

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// The defaults of Settings.
const (
	DefaultRefreshAfter       = 10 * time.Minute
	DefaultGrace              = 10 * time.Minute
	DefaultLifetime           = 24 * time.Hour
	DefaultPersistentLifetime = 30 * 24 * time.Hour
	DefaultMaxLifetime        = 90 * 24 * time.Hour
)

// Settings are what all routes share that use one cookie.
type Settings struct {
	// Cookie is the name of the session cookie. Empty: __Host-gatehouse; with a
	// Domain or another Path than / __Secure-gatehouse; over plain HTTP
	// gatehouse.
	Cookie string
	// Domain attribute of the cookie. Empty: none, the cookie is for the
	// request's host alone.
	Domain string
	// Path attribute of the cookie. Empty: /.
	Path string
	// SameSite attribute of the cookie. Zero: Lax. None needs HTTPS.
	SameSite http.SameSite

	// RefreshAfter is how long a token is believed without a look at the store.
	// Zero: 10 minutes.
	RefreshAfter time.Duration
	// Grace is how long the previous generation is accepted after a refresh,
	// from the same device. Zero: 10 minutes.
	Grace time.Duration
	// Lifetime ends a session that is not used for that long. Zero: 1 day.
	Lifetime time.Duration
	// PersistentLifetime is the same for persistent sessions. Zero: 30 days.
	PersistentLifetime time.Duration
	// MaxLifetime ends a session however much it is used. Zero: 90 days;
	// negative: never.
	MaxLifetime time.Duration
	// AcceptStale is for how much longer than RefreshAfter a token is believed
	// while the store is away. Zero: not at all, such requests get 503.
	AcceptStale time.Duration

	// Guarded says that something in front keeps the namespace clean: in the
	// request before the Middleware gets it, in the response after it has passed
	// the Middleware. It then does neither work a second time.
	Guarded bool

	// ForwardCookie lets the backend see the session cookie.
	ForwardCookie bool

	// Ring seals and opens the tokens. Required.
	Ring *dataprotection.Ring
	// Store keeps the records. Required. It must stay usable until Shared is
	// closed, since ends that could not be stored are tried again from there.
	Store sessionstore.Store
	// Shared is the state that outlives this Manager. Nil: one of its own, which
	// Manager.Close closes.
	Shared *Shared

	// Site returns the site of a request. Nil: the Domain, else the request's
	// host (HostSite).
	Site func(*http.Request) string
	// HTTPS reports whether the client speaks HTTPS. Nil: TLS on this
	// connection.
	HTTPS func(*http.Request) bool
	// ClientIP returns the client's address, which is kept in the record. Nil:
	// the host of RemoteAddr.
	ClientIP func(*http.Request) string
	// OriginalURI returns the URL as the client sent it, before rewrites. Nil:
	// the request's URL.
	OriginalURI func(*http.Request) *url.URL

	Observer Observer         // nil: none
	Logger   *slog.Logger     // nil: none
	Now      func() time.Time // nil: time.Now
}

// withDefaults returns the settings with defaults in place of zeros.
func (s Settings) withDefaults() Settings {
	s.Domain = strings.ToLower(strings.TrimPrefix(s.Domain, "."))
	if s.Path == "" {
		s.Path = "/"
	}
	if s.SameSite == 0 || s.SameSite == http.SameSiteDefaultMode {
		s.SameSite = http.SameSiteLaxMode
	}
	for d, preset := range map[*time.Duration]time.Duration{
		&s.RefreshAfter: DefaultRefreshAfter, &s.Grace: DefaultGrace, &s.Lifetime: DefaultLifetime,
		&s.PersistentLifetime: DefaultPersistentLifetime, &s.MaxLifetime: DefaultMaxLifetime,
	} {
		if *d == 0 {
			*d = preset
		}
	}
	if s.Site == nil {
		s.Site = siteOf(s.Domain)
	}
	if s.HTTPS == nil {
		s.HTTPS = func(r *http.Request) bool { return r.TLS != nil }
	}
	if s.ClientIP == nil {
		s.ClientIP = func(r *http.Request) string { return remoteHost(r.RemoteAddr) }
	}
	if s.OriginalURI == nil {
		s.OriginalURI = func(r *http.Request) *url.URL { return r.URL }
	}
	if s.Observer == nil {
		s.Observer = silent{}
	}
	if s.Logger == nil {
		s.Logger = slog.New(slog.DiscardHandler)
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	return s
}

func siteOf(domain string) func(*http.Request) string {
	if domain != "" {
		return func(*http.Request) string { return domain }
	}
	return func(r *http.Request) string { return HostSite(r.Host) }
}

func remoteHost(addr string) string {
	if i := strings.LastIndexByte(addr, ':'); i >= 0 {
		addr = addr[:i]
	}
	return strings.Trim(addr, "[]")
}

// Validate checks the settings that need neither ring nor store. It does no
// I/O.
func (s Settings) Validate() error {
	s = s.withDefaults()
	return errors.Join(s.validateCookie(), s.validateTimes())
}

// ValidateScheme checks what depends on how clients connect, for callers that
// know it before the first request: SameSite=None needs HTTPS. Where it is not
// known, such a request is refused.
func (s Settings) ValidateScheme(https bool) error {
	if s.SameSite == http.SameSiteNoneMode && !https {
		return errSameSiteNone
	}
	return nil
}

var errSameSiteNone = errors.New("sessionauth: same_site none needs HTTPS, as browsers refuse such a cookie otherwise; behind a proxy that ends TLS, trust its X-Forwarded-Proto")

// maxAttributes bounds name, domain and path together, so that every token fits
// its Set-Cookie line.
const maxAttributes = 1024

func (s *Settings) validateCookie() error {
	if s.Cookie != "" && !isToken(s.Cookie) {
		return fmt.Errorf("sessionauth: cookie name %q has characters that a name may not have", s.Cookie)
	}
	if hasFold(s.Cookie, "__Host-") && (s.Domain != "" || s.Path != "/") {
		return fmt.Errorf("sessionauth: cookie name %q allows no domain and no path but /: browsers would refuse the cookie", s.Cookie)
	}
	if s.Path[0] != '/' || !isAttribute(s.Path) {
		return fmt.Errorf("sessionauth: cookie path %q is no path that begins with /", s.Path)
	}
	if strings.ContainsAny(s.Domain, "/:*@") || !isAttribute(s.Domain) {
		return fmt.Errorf("sessionauth: cookie domain %q is no domain", s.Domain)
	}
	if len(s.Cookie)+len(s.Domain)+len(s.Path) > maxAttributes {
		return fmt.Errorf("sessionauth: cookie name, domain and path have more than %d bytes together", maxAttributes)
	}
	switch s.SameSite {
	case http.SameSiteLaxMode, http.SameSiteStrictMode, http.SameSiteNoneMode:
		return nil
	}
	return fmt.Errorf("sessionauth: unknown SameSite mode %d", s.SameSite)
}

func (s *Settings) validateTimes() error {
	const most = maxLifetimeMillis * time.Millisecond
	for name, d := range map[string]time.Duration{
		"refresh_after": s.RefreshAfter, "grace": s.Grace, "lifetime": s.Lifetime, "persistent_lifetime": s.PersistentLifetime,
	} {
		if d < time.Millisecond || d > most {
			return fmt.Errorf("sessionauth: %s of %v is out of range (1ms to 100 years)", name, d)
		}
	}
	if s.MaxLifetime > most || s.MaxLifetime > 0 && s.MaxLifetime < time.Millisecond {
		return fmt.Errorf("sessionauth: max_lifetime of %v is out of range (1ms to 100 years)", s.MaxLifetime)
	}
	if s.AcceptStale < 0 || s.AcceptStale > most {
		return fmt.Errorf("sessionauth: accept_stale of %v is out of range (0 to 100 years)", s.AcceptStale)
	}
	return nil
}

// isToken reports whether s is a token of RFC 9110, section 5.6.2.
func isToken(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isAlphanumeric(c) && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// isAttribute reports whether s may stand in a Set-Cookie attribute.
func isAttribute(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < 0x21 || c > 0x7E || c == ';' || c == ',' {
			return false
		}
	}
	return true
}
