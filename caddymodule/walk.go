package caddymodule

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

// reach tells whose requests can come to a place in a server's routes.
type reach struct {
	hosts  []string // lower case, with wildcards; nil = any host
	except []string // hosts whose requests an earlier route has taken for itself
}

// visitor is called for each handler of a server's routes.
type visitor func(h caddyhttp.MiddlewareHandler, at reach)

// walkServer visits every handler that the server's routes hold, whatever the
// nesting.
func walkServer(srv *caddyhttp.Server, visit visitor) {
	w := walker{server: srv, visit: visit, named: make(map[string]bool)}
	w.routes(srv.Routes, reach{})
	if srv.Errors != nil {
		w.routes(srv.Errors.Routes, reach{})
	}
}

type walker struct {
	server *caddyhttp.Server
	visit  visitor
	named  map[string]bool // named routes under way, against cycles
}

func (w *walker) routes(routes caddyhttp.RouteList, at reach) {
	for _, route := range routes {
		w.route(route, at)
		if route.Terminal && onlyHosts(route.MatcherSets) {
			taken := narrow(nil, route.MatcherSets)
			at.except = append(slices.Clip(at.except), taken...)
		}
	}
}

// onlyHosts reports whether matcher sets take all requests of their hosts.
func onlyHosts(sets caddyhttp.MatcherSets) bool {
	for _, set := range sets {
		if len(set) != 1 {
			return false
		}
		switch set[0].(type) {
		case *caddyhttp.MatchHost, caddyhttp.MatchHost:
		default:
			return false
		}
	}
	return true
}

func (w *walker) route(route caddyhttp.Route, at reach) {
	at.hosts = narrow(at.hosts, route.MatcherSets)
	for _, h := range route.Handlers {
		w.visit(h, at)
		switch h := h.(type) {
		case *Guard:
			w.routes(h.routes, at)
		case *caddyhttp.Subroute:
			w.routes(h.Routes, at)
			if h.Errors != nil {
				w.routes(h.Errors.Routes, at)
			}
		case *reverseproxy.Handler:
			for _, rh := range h.HandleResponse {
				w.routes(rh.Routes, at)
			}
		case *caddyhttp.Invoke:
			named, ok := w.server.NamedRoutes[h.Name]
			if ok && named != nil && !w.named[h.Name] {
				w.named[h.Name] = true
				w.route(*named, at)
				delete(w.named, h.Name)
			}
		}
	}
}

// narrow returns the hosts that remain behind matcher sets, of which one must
// match. A set without a host matcher leaves all.
func narrow(hosts []string, sets caddyhttp.MatcherSets) []string {
	var named []string
	for _, set := range sets {
		found := false
		for _, m := range set {
			switch m := m.(type) {
			case *caddyhttp.MatchHost:
				named, found = append(named, *m...), true
			case caddyhttp.MatchHost:
				named, found = append(named, m...), true
			}
		}
		if !found {
			return hosts
		}
	}
	if named == nil {
		return hosts
	}
	lower := make([]string, len(named))
	for i, host := range named {
		lower[i] = strings.ToLower(host)
	}
	return lower
}

// mayMeet reports whether requests of one host can reach both of two places.
// Patterns are compared as text and by their wildcard; placeholders may be
// anything.
func mayMeet(a, b reach) bool {
	switch {
	case a.hosts == nil && b.hosts == nil:
		return true
	case a.hosts == nil:
		return slices.ContainsFunc(b.hosts, func(host string) bool { return !a.excludes(host) })
	case b.hosts == nil:
		return mayMeet(b, a)
	}
	return slices.ContainsFunc(a.hosts, func(x string) bool {
		return slices.ContainsFunc(b.hosts, func(y string) bool { return hostsOverlap(x, y) })
	})
}

// excludes reports whether requests of a host, or of all that a pattern stands
// for, never come here.
func (r reach) excludes(host string) bool {
	return !strings.Contains(host, "{") && slices.ContainsFunc(r.except, func(taken string) bool {
		return taken == host || wildcardCovers(taken, host)
	})
}

func hostsOverlap(x, y string) bool {
	if x == y || strings.Contains(x, "{") || strings.Contains(y, "{") {
		return true
	}
	return wildcardCovers(x, y) || wildcardCovers(y, x)
}

func wildcardCovers(pattern, host string) bool {
	rest, ok := strings.CutPrefix(pattern, "*.")
	if !ok {
		return pattern == "*"
	}
	_, parent, ok := strings.Cut(host, ".")
	return ok && parent == rest
}

// claim is one handler's say on something that must be the same wherever it is
// used: the settings of a session cookie, or of a limit's zone.
type claim struct {
	what  string // for the error: session cookie "x", zone "y"
	site  string // "" = the request's host
	at    reach  // whose requests can reach the handler
	print string // equal for equal settings
}

// checkAgreement refuses settings that contradict each other: two session_auth
// with one cookie and site, two zones with one name and site.
func (a *App) checkAgreement() error {
	var claims []claim
	for srv := range a.servers {
		walkServer(srv, func(h caddyhttp.MiddlewareHandler, at reach) {
			if c, ok := h.(interface{ claims(reach) []claim }); ok {
				claims = append(claims, c.claims(at)...)
			}
		})
	}
	for i, x := range claims {
		for _, y := range claims[:i] {
			if x.what == y.what && x.site == y.site && x.print != y.print && (x.site != "" || mayMeet(x.at, y.at)) {
				return fmt.Errorf("%s has different settings in two places of %s: give both the same ones, by a name in the gatehouse option where that is possible", x.what, siteName(x, y))
			}
		}
	}
	return nil
}

// siteName names where two claims meet.
func siteName(x, y claim) string {
	switch {
	case x.site != "":
		return "site " + x.site
	case len(x.at.hosts) > 0:
		return "site " + strings.Join(x.at.hosts, " ")
	case len(y.at.hosts) > 0:
		return "site " + strings.Join(y.at.hosts, " ")
	}
	return "one site"
}

// claims tells the settings of the session cookie.
func (s *SessionAuth) claims(at reach) []claim {
	name := s.effective.Cookie
	if name == "" {
		name = "(default)"
	}
	return []claim{{
		what: fmt.Sprintf("session cookie %q", name), site: s.effective.fixedSite(), at: at,
		print: s.effective.fingerprint(),
	}}
}
