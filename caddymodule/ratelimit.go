package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/gatehouse-gateway/gatehouse/internal/problem"
	"github.com/gatehouse-gateway/gatehouse/ratelimit"
	"github.com/gatehouse-gateway/gatehouse/sessionauth"
)

// ClientRateLimit refuses a client's requests over a limit with 429 and
// Retry-After, and tells clients where they stand in the RateLimit and
// RateLimit-Policy fields. A request is admitted only if all zones that apply
// admit it; a refused request is charged nowhere.
//
// Placeholder: {http.client_rate_limit.zone} is the zone that refused.
type ClientRateLimit struct {
	// The zones: limits with a name.
	Zones []*LimitZone `json:"zone,omitempty"`

	// To how many bits an IPv6 address is cut, so that a network is one client.
	// Default: 64.
	IPv6Prefix int `json:"ipv6_prefix,omitempty"`

	// Addresses and networks that no zone counts.
	Exempt []string `json:"exempt,omitempty"`

	// exact (default): never more than a zone's events over all gateways.
	Mode string `json:"mode,omitempty"`

	// What happens while the store is away: reject (default, 503), allow, or
	// local (this gateway counts alone).
	OnStoreFailure string `json:"on_store_failure,omitempty"`

	// Whether responses carry RateLimit and RateLimit-Policy. Default: true.
	Headers *bool `json:"headers,omitempty"`

	// The site that the counts belong to. Default: the domain of session_auth
	// if set, else the request's host.
	Site string `json:"site,omitempty"`

	app     *App
	limiter *ratelimit.Limiter
	log     *zap.Logger
}

// LimitZone is one limit.
type LimitZone struct {
	// The zone's name, as clients see it: printable ASCII.
	Name string `json:"name"`

	// Which requests it counts. Default: all that reach the handler.
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	// What a client is: text with placeholders. {client_ip} in it is cut to
	// ipv6_prefix. When a placeholder is empty the client's address is the key.
	// Default: the signed-in user, else the client's address.
	Key string `json:"key,omitempty"`

	// Length of the window.
	Window caddy.Duration `json:"window"`

	// How many requests a client may make in a window.
	Events int64 `json:"events"`

	// fixed_window (default): windows that start at the same instants on every
	// gateway.
	Algorithm string `json:"algorithm,omitempty"`

	// What a request counts: a whole number, or a placeholder. Default: 1.
	Cost string `json:"cost,omitempty"`

	// Count and report, but never refuse.
	DryRun bool `json:"dry_run,omitempty"`

	matchers caddyhttp.MatcherSets
}

// CaddyModule returns the module's ID and constructor.
func (ClientRateLimit) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.client_rate_limit",
		New: func() caddy.Module { return new(ClientRateLimit) },
	}
}

// Provision sets the handler up; it asks no store.
func (l *ClientRateLimit) Provision(ctx caddy.Context) error {
	app, err := gatehouseApp(ctx)
	if err != nil {
		return err
	}
	srv, err := app.register(ctx)
	if err != nil {
		return err
	}
	l.app, l.log = app, ctx.Logger()
	if listensOnUnix(srv) {
		l.log.Warn("the server listens on a Unix socket, where clients have no address: they share one limit unless a key says otherwise")
	}
	config, err := l.config(ctx)
	if err != nil {
		return err
	}
	l.limiter, err = ratelimit.New(config)
	return err
}

func (l *ClientRateLimit) config(ctx caddy.Context) (ratelimit.Config, error) {
	if l.Mode != "" && l.Mode != "exact" {
		return ratelimit.Config{}, fmt.Errorf("mode: want exact, not %q", l.Mode)
	}
	if len(l.Zones) == 0 {
		return ratelimit.Config{}, errors.New("at least one zone is needed")
	}
	config := ratelimit.Config{
		Shared: l.app.store.Limits(), ClientAddr: clientIP, IPv6Prefix: l.IPv6Prefix,
		Headers: l.Headers == nil || *l.Headers, Observer: newLimitObserver(l.Zones), Logger: featureLogger(ctx),
	}
	if l.app.store.Shared() {
		config.HashSecret = l.app.limitSecret
	}
	var err error
	if config.OnStoreFailure, err = failurePolicy(l.OnStoreFailure); err != nil {
		return config, err
	}
	for _, text := range l.Exempt {
		prefix, err := parsePrefix(text)
		if err != nil {
			return config, fmt.Errorf("exempt: %w", err)
		}
		config.Exempt = append(config.Exempt, prefix)
	}
	for _, zone := range l.Zones {
		z, err := l.zone(ctx, zone)
		if err != nil {
			return config, fmt.Errorf("zone %q: %w", zone.Name, err)
		}
		config.Zones = append(config.Zones, z)
	}
	return config, nil
}

func failurePolicy(word string) (ratelimit.FailurePolicy, error) {
	switch word {
	case "", "reject":
		return ratelimit.Reject, nil
	case "allow":
		return ratelimit.Allow, nil
	case "local":
		return ratelimit.Local, nil
	}
	return 0, fmt.Errorf("on_store_failure: want reject, allow or local, not %q", word)
}

func parsePrefix(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is neither an address nor a network like 10.0.0.0/8", text)
	}
	return prefix.Masked(), nil
}

func (l *ClientRateLimit) zone(ctx caddy.Context, zone *LimitZone) (ratelimit.Zone, error) {
	if zone.Algorithm != "" && zone.Algorithm != "fixed_window" {
		return ratelimit.Zone{}, fmt.Errorf("algorithm: want fixed_window, not %q", zone.Algorithm)
	}
	if zone.Window == 0 || zone.Events == 0 {
		return ratelimit.Zone{}, errors.New("window and events are required")
	}
	z := ratelimit.Zone{
		Name: zone.Name, Window: time.Duration(zone.Window), Events: zone.Events, DryRun: zone.DryRun,
		Site: func(r *http.Request) string { return siteOf(r, l.Site) },
	}
	if zone.MatcherSetsRaw != nil {
		sets, err := ctx.LoadModule(zone, "MatcherSetsRaw")
		if err != nil {
			return z, fmt.Errorf("match: %w", err)
		}
		if err := zone.matchers.FromInterface(sets); err != nil {
			return z, fmt.Errorf("match: %w", err)
		}
		z.Applies = func(r *http.Request) bool {
			// A matcher that fails must not free a client of its limit.
			matches, err := zone.matchers.AnyMatchWithError(r)
			return matches || err != nil
		}
	}
	key, err := compileKey(zone.Key)
	if err != nil {
		return z, err
	}
	prefix := l.IPv6Prefix
	z.Key = func(r *http.Request) string { return key.expand(r, prefix) }
	if zone.Cost != "" {
		if z.Cost, err = compileCost(zone.Cost); err != nil {
			return z, err
		}
	}
	return z, nil
}

// compileCost compiles a cost: a number is checked now, a placeholder is read
// at each request.
func compileCost(text string) (func(*http.Request) int64, error) {
	if !strings.Contains(text, "{") {
		cost, err := strconv.ParseInt(text, 10, 64)
		if err != nil || cost < 0 {
			return nil, fmt.Errorf("cost: %q is no whole number from 0 on", text)
		}
		return func(*http.Request) int64 { return cost }, nil
	}
	return func(r *http.Request) int64 {
		cost, _, ok := ratelimit.ParseCost(replace(r, text))
		if !ok {
			return -1 // counts as 1, and is logged
		}
		return cost
	}, nil
}

// Cleanup has nothing to release: the counts belong to the store.
func (l *ClientRateLimit) Cleanup() error { return nil }

// ServeHTTP counts the request and passes it on or refuses it.
func (l *ClientRateLimit) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	p := passageOf(r)
	if p == nil {
		return answerProblem(w, r, problem.New("guard-missing", nil))
	}
	err := l.limiter.ServeHTTP(w, r, &kept{next, p.working})
	if err == nil {
		return nil
	}
	if refused, ok := errors.AsType[*ratelimit.Refused](err); ok {
		if repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
			repl.Set("http.client_rate_limit.zone", refused.Zone)
		}
		l.app.emitLimitExceeded(siteOf(r, l.Site), refused)
	}
	return answerProblem(w, r, err)
}

// kept passes an admitted request on. The fields that it got stay on the
// response whatever session_auth makes of the backend's.
type kept struct {
	next    caddyhttp.Handler
	session *sessionauth.Session
}

func (k *kept) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	k.session.KeepHeader()
	return k.next.ServeHTTP(w, r)
}

// claims tells the settings of the zones.
func (l *ClientRateLimit) claims(at reach) []claim {
	var claims []claim
	for _, zone := range l.Zones {
		shape := *zone
		shape.Events, shape.MatcherSetsRaw, shape.Cost, shape.DryRun, shape.matchers = 0, nil, "", false, nil
		if shape.Algorithm == "" {
			shape.Algorithm = "fixed_window"
		}
		print, _ := json.Marshal(shape)
		claims = append(claims, claim{
			what: fmt.Sprintf("limit zone %q", zone.Name), site: strings.ToLower(l.Site), at: at, print: string(print),
		})
	}
	return claims
}

// listensOnUnix reports whether any listener of the server is a Unix socket.
func listensOnUnix(srv *caddyhttp.Server) bool {
	for _, addr := range srv.Listen {
		if strings.HasPrefix(addr, "unix") {
			return true
		}
	}
	return false
}

// limitKey is a compiled key: literal text and placeholders in turn.
type limitKey struct {
	parts []keyPart
}

type keyPart struct {
	literal     string
	placeholder string // name without braces
	clientIP    bool
}

// clientIPPlaceholders are the names under which the client's address appears.
var clientIPPlaceholders = map[string]bool{"client_ip": true, "http.vars.client_ip": true}

// compileKey splits a key. An empty one stands for the user, else the address.
func compileKey(text string) (*limitKey, error) {
	k := new(limitKey)
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			k.parts = append(k.parts, keyPart{literal: literal.String()})
			literal.Reset()
		}
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text) && (text[i+1] == '{' || text[i+1] == '}'):
			i++
			literal.WriteByte(text[i])
		case c == '{':
			end := strings.IndexByte(text[i:], '}')
			if end < 2 {
				return nil, fmt.Errorf("key: %q has an open or empty placeholder", text)
			}
			flush()
			name := text[i+1 : i+end]
			k.parts = append(k.parts, keyPart{placeholder: name, clientIP: clientIPPlaceholders[name]})
			i += end
		default:
			literal.WriteByte(c)
		}
	}
	flush()
	return k, nil
}

// expand returns the request's key, or "" for the client's address.
func (k *limitKey) expand(r *http.Request, ipv6Prefix int) string {
	if len(k.parts) == 0 {
		if user := requestUser(r); user != "" {
			return "user:" + user
		}
		return ""
	}
	if len(k.parts) == 1 && k.parts[0].clientIP {
		return ""
	}
	repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	var b strings.Builder
	b.WriteString("key:")
	for _, part := range k.parts {
		value := part.literal
		switch {
		case part.clientIP:
			value = ratelimit.ClientAddress(clientIP(r), ipv6Prefix)
		case part.placeholder != "":
			if repl != nil {
				value, _ = repl.GetString(part.placeholder)
			}
		}
		if value == "" {
			return ""
		}
		// Lengths keep the parts apart, whatever text a client sends.
		b.WriteString(strconv.Itoa(len(value)))
		b.WriteByte(':')
		b.WriteString(value)
	}
	return b.String()
}

var (
	_ caddy.Provisioner           = (*ClientRateLimit)(nil)
	_ caddy.CleanerUpper          = (*ClientRateLimit)(nil)
	_ caddyhttp.MiddlewareHandler = (*ClientRateLimit)(nil)
)
