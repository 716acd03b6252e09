// Package problem holds the refusals that clients see: one type, one table of
// codes, one way to write them (RFC 9457, problem details).
package problem

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"time"
)

// TypePrefix begins the type URI of every problem of this module.
const TypePrefix = "urn:gatehouse:problem:"

// ContentType is the media type of a problem document.
const ContentType = "application/problem+json"

// Error is a refusal that the client sees. Code, Status and Detail are public;
// Err is for the log alone and never leaves the gateway.
type Error struct {
	// Code is the stable name of the problem, one of the table in codes.go.
	Code string
	// Status is the HTTP status. New takes it from the table.
	Status int
	// Detail explains this occurrence to the client. Empty: no detail.
	Detail string
	// RetryAfter is how long the client should wait; zero means that waiting
	// does not help. It is sent in whole seconds, rounded up, at least 1.
	RetryAfter time.Duration
	// Type replaces the type URI, for problem types registered elsewhere.
	Type string
	// Members are extension members of the document (RFC 9457, section 3.2).
	Members map[string]any
	// Err is the private cause.
	Err error
}

// New makes a refusal with the status that the table gives for code. It panics
// on a code that is not in the table, which is a mistake in this module.
func New(code string, cause error) *Error {
	entry, ok := Codes[code]
	if !ok {
		panic("problem: code " + code + " is not in the table")
	}
	return &Error{Code: code, Status: entry.Status, Err: cause}
}

// WithDetail sets the public explanation and returns e.
func (e *Error) WithDetail(format string, args ...any) *Error {
	e.Detail = fmt.Sprintf(format, args...)
	return e
}

// WithRetryAfter sets how long to wait and returns e.
func (e *Error) WithRetryAfter(d time.Duration) *Error {
	e.RetryAfter = d
	return e
}

// WithStatus replaces the table's status and returns e.
func (e *Error) WithStatus(status int) *Error {
	e.Status = status
	return e
}

// Error is for logs: the code and the private cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Code
	}
	return e.Code + ": " + e.Err.Error()
}

// Unwrap returns the private cause.
func (e *Error) Unwrap() error { return e.Err }

// SetHeader sets the fields that go with the refusal whoever writes its body:
// Retry-After.
func (e *Error) SetHeader(h http.Header) {
	if e.RetryAfter > 0 {
		h["Retry-After"] = []string{RetrySeconds(e.RetryAfter)}
	}
}

// RetrySeconds writes d as Retry-After does: whole seconds, rounded up, at
// least 1 (RFC 9110, section 10.2.3).
func RetrySeconds(d time.Duration) string {
	return strconv.FormatInt(max(int64((d+time.Second-1)/time.Second), 1), 10)
}

// Document returns the problem document. An empty requestID is left out.
func (e *Error) Document(requestID string) []byte {
	doc := make(map[string]any, 6+len(e.Members))
	maps.Copy(doc, e.Members)
	doc["type"] = TypePrefix + e.Code
	if e.Type != "" {
		doc["type"] = e.Type
	}
	doc["title"] = Codes[e.Code].Title
	doc["status"] = e.Status
	doc["code"] = e.Code
	if e.Detail != "" {
		doc["detail"] = e.Detail
	}
	if requestID != "" {
		doc["request_id"] = requestID
	}
	body, err := json.Marshal(doc)
	if err != nil { // only an unmarshalable member, which is a mistake of ours
		panic("problem: " + err.Error())
	}
	return append(body, '\n')
}

// Write answers the request with the problem document. The body is left out
// for HEAD. Fields of a representation that was under way are removed.
func (e *Error) Write(w http.ResponseWriter, r *http.Request, requestID string) {
	h := w.Header()
	for _, name := range []string{"Content-Length", "Content-Encoding", "Content-Disposition", "Etag", "Last-Modified", "Accept-Ranges", "Trailer"} {
		delete(h, name)
	}
	e.SetHeader(h)
	h["Content-Type"] = []string{ContentType}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	if _, ok := h["Cache-Control"]; !ok {
		h["Cache-Control"] = []string{"no-store"}
	}
	body := e.Document(requestID)
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(e.Status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body)
	}
}
