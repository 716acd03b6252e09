// Package handler has the one function type by which the features of this
// module pass a request on. It has the method set of Caddy's handlers, so that
// a Caddy handler serves as it is and the features need not import Caddy.
package handler

import "net/http"

// Handler answers a request or returns an error, which the caller answers.
// A *problem.Error is a refusal that the client may see.
type Handler interface {
	ServeHTTP(http.ResponseWriter, *http.Request) error
}

// Func is a function that serves as a Handler.
type Func func(http.ResponseWriter, *http.Request) error

// ServeHTTP calls f.
func (f Func) ServeHTTP(w http.ResponseWriter, r *http.Request) error { return f(w, r) }

// FromHTTP makes a Handler of a plain one. It never returns an error.
func FromHTTP(h http.Handler) Handler {
	return Func(func(w http.ResponseWriter, r *http.Request) error {
		h.ServeHTTP(w, r)
		return nil
	})
}
