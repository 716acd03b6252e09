package caddymodule

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/gatehouse-gateway/gatehouse/internal/problem"
)

// answerProblem answers a refusal: through the site's error routes where one
// applies to this request and status, as a problem document otherwise. Any
// other error is returned as it is.
func answerProblem(w http.ResponseWriter, r *http.Request, err error) error {
	refusal, ok := errors.AsType[*problem.Error](err)
	if !ok {
		return err
	}
	if repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		repl.Set("http.gatehouse.error_code", refusal.Code)
	}
	if srv, ok := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok && hasErrorRoutes(srv) {
		handlerErr := caddyhttp.Error(refusal.Status, refusal)
		if errorRouteApplies(srv, r, handlerErr) {
			refusal.SetHeader(w.Header())
			return handlerErr
		}
		refusal.Write(w, r, handlerErr.ID)
		return nil
	}
	refusal.Write(w, r, newErrorID())
	return nil
}

// newErrorID makes an id as Caddy gives its errors: 9 characters, for people
// to read out and to find in logs. It is no secret.
func newErrorID() string {
	const dict = "abcdefghijkmnpqrstuvwxyz23456789"
	var b [9]byte
	for i := range b {
		b[i] = dict[rand.IntN(len(dict))]
	}
	return string(b[:])
}

// hasErrorRoutes reports whether the server has error routes besides the guard.
func hasErrorRoutes(srv *caddyhttp.Server) bool {
	if srv == nil || srv.Errors == nil {
		return false
	}
	return slices.ContainsFunc(srv.Errors.Routes, func(route caddyhttp.Route) bool { return !onlyGuards(route) })
}

func onlyGuards(route caddyhttp.Route) bool {
	return !slices.ContainsFunc(route.Handlers, func(h caddyhttp.MiddlewareHandler) bool {
		_, ok := h.(*Guard)
		return !ok
	})
}

// errorRouteApplies reports whether an error route of the server would handle
// the error: error routes belong to the server, so those of another site or
// another status must not swallow it. The routes' matchers are tried as Caddy
// will try them: on the original request, with the error's placeholders set.
func errorRouteApplies(srv *caddyhttp.Server, r *http.Request, handlerErr caddyhttp.HandlerError) bool {
	probe := r.WithContext(r.Context())
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok && original.URL != nil {
		url := *original.URL
		probe.Method, probe.RemoteAddr, probe.RequestURI, probe.URL = original.Method, original.RemoteAddr, original.RequestURI, &url
	}
	probe = srv.Errors.WithError(probe, handlerErr)
	applies := anyRouteApplies(srv.Errors.Routes, probe)
	if !applies {
		forgetError(r.Context())
	}
	return applies
}

// forgetError takes the error's placeholders back.
func forgetError(ctx context.Context) {
	repl, ok := ctx.Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return
	}
	for _, name := range []string{"http.error", "http.error.status_code", "http.error.status_text", "http.error.id", "http.error.trace", "http.error.message"} {
		repl.Delete(name)
	}
}

// anyRouteApplies looks for a route that matches and does more than lead to
// routes that do not. A matcher that fails counts as a match: Caddy would
// answer the error then.
func anyRouteApplies(routes caddyhttp.RouteList, r *http.Request) bool {
	for _, route := range routes {
		matches, err := route.MatcherSets.AnyMatchWithError(r)
		if err != nil {
			return true
		}
		if !matches {
			continue
		}
		for _, h := range route.Handlers {
			switch h := h.(type) {
			case *Guard:
			case *caddyhttp.Subroute:
				if anyRouteApplies(h.Routes, r) {
					return true
				}
			default:
				return true
			}
		}
		if route.Terminal {
			return false
		}
	}
	return false
}
