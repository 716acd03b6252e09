package problem

import "net/http"

// Entry is a row of the table of codes.
type Entry struct {
	Status int
	Title  string
}

// Codes is the one table of problem codes. docs/errors.md explains each; a
// test holds the two together.
var Codes = map[string]Entry{
	// The namespace guard.
	"bad-connection-header": {http.StatusBadRequest, "Connection header names a gateway header"},
	"guard-missing":         {http.StatusInternalServerError, "Server is not guarded"},

	// Sessions.
	"session-required":          {http.StatusUnauthorized, "Session required"},
	"session-store-unavailable": {http.StatusServiceUnavailable, "Session store unavailable"},
	"session-end-not-durable":   {http.StatusServiceUnavailable, "Sign-out not yet stored"},
	"bad-session-command":       {http.StatusBadGateway, "Bad session command from the application"},
	"origin-not-allowed":        {http.StatusForbidden, "Origin not allowed"},
	"bad-origin":                {http.StatusBadRequest, "Bad Origin header"},
	"key-ring-unavailable":      {http.StatusServiceUnavailable, "Key ring unavailable"},

	// Limits.
	"rate-limited":                 {http.StatusTooManyRequests, "Too many requests"},
	"rate-limit-store-unavailable": {http.StatusServiceUnavailable, "Rate limit store unavailable"},

	// Uploads.
	"upload-not-found":           {http.StatusNotFound, "Upload not found"},
	"upload-closed":              {http.StatusGone, "Upload closed"},
	"upload-too-large":           {http.StatusRequestEntityTooLarge, "Upload too large"},
	"upload-locked":              {http.StatusLocked, "Upload in use"},
	"upload-interrupted":         {http.StatusConflict, "Upload interrupted"},
	"upload-store-unavailable":   {http.StatusServiceUnavailable, "Upload store unavailable"},
	"upload-store-full":          {http.StatusInsufficientStorage, "Upload store full"},
	"upload-backend-unavailable": {http.StatusServiceUnavailable, "Application unavailable"},
	"upload-bad-request":         {http.StatusBadRequest, "Bad upload request"},
	"upload-offset-mismatch":     {http.StatusConflict, "Upload offset does not match"},
	"upload-changed":             {http.StatusConflict, "Upload content changed"},
	"upload-version":             {http.StatusPreconditionFailed, "Upload protocol version not supported"},
	"upload-bad-media-type":      {http.StatusUnsupportedMediaType, "Unsupported media type for an upload"},
}
