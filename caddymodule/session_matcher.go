package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// MatchSession matches requests that have a session, and, with a claim, those
// whose session has that claim: present and not false or null without values,
// else equal to one of the values, or a list that holds one.
//
// It looks at what session_auth found, so it must be evaluated after it, in a
// route or handle block behind it. Evaluated earlier it is an error, never "no
// session".
type MatchSession struct {
	// Dot path of a claim that the session must have. Default: none.
	Claim string `json:"claim,omitempty"`

	// Values of which the claim must have one. Default: any.
	Values []string `json:"values,omitempty"`
}

// CaddyModule returns the module's ID and constructor.
func (MatchSession) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.matchers.session",
		New: func() caddy.Module { return new(MatchSession) },
	}
}

// Validate refuses values without a claim.
func (m *MatchSession) Validate() error {
	if m.Claim == "" && len(m.Values) > 0 {
		return errors.New("session matcher: values need a claim")
	}
	return nil
}

// errSessionUnknown means that the matcher ran before session_auth.
var errSessionUnknown = errors.New("the session matcher was evaluated before session_auth ran: put it on a route, handle or handler behind session_auth")

// MatchWithError reports whether the request's session matches.
func (m *MatchSession) MatchWithError(r *http.Request) (bool, error) {
	session := requestSession(r)
	if session == nil {
		return false, caddyhttp.Error(http.StatusInternalServerError, errSessionUnknown)
	}
	if session.Anonymous() {
		return false, nil
	}
	if m.Claim == "" {
		return true, nil
	}
	value, ok := session.Claim(m.Claim)
	if !ok {
		return false, nil
	}
	return claimMatches(value, m.Values), nil
}

// claimMatches compares a claim, as JSON gives it, with wanted texts.
func claimMatches(value any, wanted []string) bool {
	if list, ok := value.([]any); ok && len(wanted) > 0 {
		return slices.ContainsFunc(list, func(item any) bool { return claimMatches(item, wanted) })
	}
	if len(wanted) == 0 {
		return value != nil && value != false
	}
	switch v := value.(type) {
	case string:
		return slices.Contains(wanted, v)
	case json.Number, bool:
		return slices.Contains(wanted, fmt.Sprint(v))
	}
	return false
}

// UnmarshalCaddyfile reads the matcher:
//
//	session [<claim> [<value>…]]
func (m *MatchSession) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	for d.Next() {
		if m.Claim != "" {
			return d.Err("session is already set")
		}
		if d.NextArg() {
			m.Claim = d.Val()
			m.Values = d.RemainingArgs()
		}
		if err := noBlock(d, "session"); err != nil {
			return err
		}
	}
	if len(m.Values) == 0 {
		m.Values = nil
	}
	return nil
}

var (
	_ caddyhttp.RequestMatcherWithError = (*MatchSession)(nil)
	_ caddyfile.Unmarshaler             = (*MatchSession)(nil)
	_ caddy.Validator                   = (*MatchSession)(nil)
)
