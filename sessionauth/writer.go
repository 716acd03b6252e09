package sessionauth

import (
	"bufio"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
)

// errDropped is what next gets for writing to a response that is dropped.
var errDropped = errors.New("sessionauth: the response is dropped")

// Header returns the response's header. Some handlers write the header of an
// upgrade to the connection that they have taken over, after adding the
// backend's fields to this map; then each call cleans the map, and an end
// command among the fields is carried out.
func (ex *exchange) Header() http.Header {
	h := ex.w.Header()
	if ex.hijacked {
		ex.cleanHijacked(h)
	}
	return h
}

// WriteHeader begins the response. Interim responses pass without the
// namespace; fields that wait for the final response survive them.
func (ex *exchange) WriteHeader(status int) {
	switch {
	case ex.refusal != nil:
		return
	case status >= 100 && status <= 199 && status != http.StatusSwitchingProtocols:
		ex.writeInterim(status)
		return
	case !ex.begun && !ex.begin(status):
		return
	}
	ex.w.WriteHeader(status)
}

func (ex *exchange) writeInterim(status int) {
	h := ex.w.Header()
	var kept http.Header
	for name := range h {
		if IsReserved(name) {
			kept = maps.Clone(h)
			break
		}
	}
	StripHeader(h)
	ex.w.WriteHeader(status)
	for name, values := range kept {
		if IsReserved(name) {
			h[name] = values
		}
	}
}

// ready begins the response where that was not done and reports whether it may
// be written.
func (ex *exchange) ready() bool {
	if ex.refusal != nil {
		return false
	}
	return ex.begun || ex.begin(http.StatusOK)
}

func (ex *exchange) Write(p []byte) (int, error) {
	if !ex.ready() {
		return 0, errDropped
	}
	return ex.w.Write(p)
}

// WriteString is Write for strings.
func (ex *exchange) WriteString(s string) (int, error) {
	if !ex.ready() {
		return 0, errDropped
	}
	return io.WriteString(ex.w, s)
}

// ReadFrom lets the server copy in its fastest way.
func (ex *exchange) ReadFrom(src io.Reader) (int64, error) {
	if !ex.ready() {
		return 0, errDropped
	}
	return io.Copy(ex.w, src)
}

// FlushError sends what was written, and the header if nothing was.
func (ex *exchange) FlushError() error {
	if !ex.ready() {
		return errDropped
	}
	return http.NewResponseController(ex.w).Flush()
}

// Flush is FlushError for callers that look for an http.Flusher.
func (ex *exchange) Flush() { _ = ex.FlushError() }

// Hijack hands out the connection. Where no response has begun it counts as
// the start of one with status 101.
func (ex *exchange) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if ex.refusal != nil || !ex.begun && !ex.begin(http.StatusSwitchingProtocols) {
		return nil, nil, errDropped
	}
	conn, rw, err := http.NewResponseController(ex.w).Hijack()
	if err == nil {
		ex.hijacked, ex.conn = true, conn
	}
	return conn, rw, err
}

// Push passes an HTTP/2 push on where the server can push.
func (ex *exchange) Push(target string, opts *http.PushOptions) error {
	if pusher, ok := ex.w.(http.Pusher); ok {
		return pusher.Push(target, opts)
	}
	return http.ErrNotSupported
}

// Unwrap is for http.ResponseController.
func (ex *exchange) Unwrap() http.ResponseWriter { return ex.w }

var (
	_ http.Flusher    = (*exchange)(nil)
	_ http.Hijacker   = (*exchange)(nil)
	_ http.Pusher     = (*exchange)(nil)
	_ io.ReaderFrom   = (*exchange)(nil)
	_ io.StringWriter = (*exchange)(nil)
)
