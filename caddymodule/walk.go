package caddymodule

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

// visitor is called for each handler of a server's routes with the hosts whose
// requests can reach it; nil stands for any host.
type visitor func(h caddyhttp.MiddlewareHandler, hosts []string)

// walkServer visits every handler that the server's routes hold, whatever the
// nesting.
func walkServer(srv *caddyhttp.Server, visit visitor) {
	w := walker{server: srv, visit: visit, named: make(map[string]bool)}
	w.routes(srv.Routes, nil)
	if srv.Errors != nil {
		w.routes(srv.Errors.Routes, nil)
	}
}

type walker struct {
	server *caddyhttp.Server
	visit  visitor
	named  map[string]bool // named routes under way, against cycles
}

func (w *walker) routes(routes caddyhttp.RouteList, hosts []string) {
	for _, route := range routes {
		w.route(route, hosts)
	}
}

func (w *walker) route(route caddyhttp.Route, hosts []string) {
	hosts = narrow(hosts, route.MatcherSets)
	for _, h := range route.Handlers {
		w.visit(h, hosts)
		switch h := h.(type) {
		case *Guard:
			w.routes(h.routes, hosts)
		case *caddyhttp.Subroute:
			w.routes(h.Routes, hosts)
			if h.Errors != nil {
				w.routes(h.Errors.Routes, hosts)
			}
		case *reverseproxy.Handler:
			for _, rh := range h.HandleResponse {
				w.routes(rh.Routes, hosts)
			}
		case *caddyhttp.Invoke:
			named, ok := w.server.NamedRoutes[h.Name]
			if ok && named != nil && !w.named[h.Name] {
				w.named[h.Name] = true
				w.route(*named, hosts)
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

// mayMeet reports whether a request can reach both of two host sets. Patterns
// are compared as text and by their wildcard; placeholders may be anything.
func mayMeet(a, b []string) bool {
	if a == nil || b == nil {
		return true
	}
	return slices.ContainsFunc(a, func(x string) bool {
		return slices.ContainsFunc(b, func(y string) bool { return hostsOverlap(x, y) })
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
	what  string   // for the error: session cookie "x", zone "y"
	site  string   // "" = the request's host
	hosts []string // where the handler can be reached; nil = any host
	print string   // equal for equal settings
}

// checkAgreement refuses settings that contradict each other: two session_auth
// with one cookie and site, two zones with one name and site.
func (a *App) checkAgreement() error {
	var claims []claim
	for srv := range a.servers {
		walkServer(srv, func(h caddyhttp.MiddlewareHandler, hosts []string) {
			if c, ok := h.(interface{ claims(hosts []string) []claim }); ok {
				claims = append(claims, c.claims(hosts)...)
			}
		})
	}
	for i, x := range claims {
		for _, y := range claims[:i] {
			if x.what == y.what && x.site == y.site && x.print != y.print && (x.site != "" || mayMeet(x.hosts, y.hosts)) {
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
	case len(x.hosts) > 0:
		return "site " + strings.Join(x.hosts, " ")
	case len(y.hosts) > 0:
		return "site " + strings.Join(y.hosts, " ")
	}
	return "one site"
}

// claims tells the settings of the session cookie.
func (s *SessionAuth) claims(hosts []string) []claim {
	name := s.effective.Cookie
	if name == "" {
		name = "(default)"
	}
	return []claim{{
		what: fmt.Sprintf("session cookie %q", name), site: s.effective.fixedSite(), hosts: hosts,
		print: s.effective.fingerprint(),
	}}
}
