package chunkedupload

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
	"github.com/gatehouse-gateway/gatehouse/internal/handler"
	"github.com/gatehouse-gateway/gatehouse/internal/problem"
)

// route says what a request is to this handler.
type route int

const (
	routePass    route = iota // no upload protocol
	routeOptions              // asks what the server can do
	routeCreate               // makes an upload
	routeUpload               // concerns one upload
)

// sortRequest finds what a request is, and the id that it names. The id of a
// marked request may have any form; an unmarked one is looked at only if its
// id has ours.
func sortRequest(r *http.Request, base string) (kind route, id string) {
	rest, ok := below(r.URL.Path, base)
	marked := isTus(r)
	switch {
	case !ok:
		return routePass, ""
	case r.Method == http.MethodOptions:
		if r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != "" {
			return routePass, "" // a CORS preflight
		}
		return routeOptions, ""
	case rest == "" && marked && r.Method == http.MethodPost:
		return routeCreate, ""
	case rest != "" && marked && r.Method == http.MethodPost && overridesMethod(r):
		return routeUpload, rest // to be refused
	case rest != "" && (marked || isID(rest)):
		switch r.Method {
		case http.MethodHead, http.MethodPatch, http.MethodDelete:
			return routeUpload, rest
		}
	}
	return routePass, ""
}

// below returns what follows base and a slash in path.
func below(path, base string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(path, base)
	if !ok || rest == "" {
		return "", ok
	}
	return strings.CutPrefix(rest, "/")
}

// isTus reports whether a request says that it speaks tus.
func isTus(r *http.Request) bool { return len(r.Header["Tus-Resumable"]) > 0 }

// overridesMethod reports a method in a header. It would take effect behind
// all that decided by the real one.
func overridesMethod(r *http.Request) bool { return len(r.Header["X-Http-Method-Override"]) > 0 }

// ServeHTTP answers upload requests and passes all others to next untouched. A
// delivery to which next writes nothing is not answered.
// The refusals that it returns are *problem.Error; the header fields that
// belong to them are set.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next handler.Handler) error {
	kind, id := sortRequest(r, h.cfg.Base)
	var refused refusal
	switch kind {
	case routeOptions:
		h.tusOptions(w)
	case routeCreate:
		refused = h.tusCreate(w, r, next)
	case routeUpload:
		if !isTus(r) && r.Method == http.MethodHead {
			return h.unmarkedHead(w, r, next, id)
		}
		refused = h.tusUpload(w, r, next, id)
	default:
		return next.ServeHTTP(w, r)
	}
	if refused != nil {
		return refused
	}
	return nil
}

// Wrap makes plain middleware of the handler; refusals are written as problem
// documents.
func (h *Handler) Wrap(next http.Handler) http.Handler {
	after := handler.Func(func(w http.ResponseWriter, r *http.Request) error {
		next.ServeHTTP(w, r)
		if answer, ok := w.(*capture); ok {
			answer.WriteHeader(http.StatusOK) // what net/http does for a handler that wrote nothing
		}
		return nil
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// ServeHTTP returns refusals only, since after returns no errors.
		if e, ok := errors.AsType[*problem.Error](h.ServeHTTP(w, r, after)); ok {
			e.Write(w, r, "")
		}
	})
}

// find opens the upload for a request that may use it. Whoever may not is told
// that there is none.
func (h *Handler) find(ctx context.Context, r *http.Request, id, protocol string) (uploadstore.Upload, uploadstore.Status, error) {
	if !isID(id) {
		return nil, uploadstore.Status{}, uploadstore.ErrNotFound
	}
	up, err := h.store.Open(ctx, id)
	if err != nil {
		return nil, uploadstore.Status{}, err
	}
	st, err := up.Status(ctx)
	if err != nil {
		return nil, st, err
	}
	if !mayUse(&st.Info, protocol, h.cfg.Site(r), h.cfg.Owner(r)) {
		return nil, uploadstore.Status{}, uploadstore.ErrNotFound
	}
	return up, st, nil
}
