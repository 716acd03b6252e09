package sessionauth

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"
)

// States of a session.
const (
	StateActive = "active"
	StateStale  = "stale" // the store is away, an outage is being bridged
)

// Session is what a request's session_auth found. It belongs to the request:
// a later middleware on the way to the backend may change it, so that it is
// read while the request is served, not kept.
type Session struct {
	// Site the session belongs to; set on anonymous requests too.
	Site string
	// ID is the public id, as text. Empty on anonymous requests.
	ID string
	// User is the signed-in user as the application named it. Empty on
	// anonymous requests.
	User string
	// State is StateActive or StateStale. Empty on anonymous requests.
	State string
	// Claims are a JSON object. Not to be changed. Nil on anonymous requests.
	Claims json.RawMessage
	// Generation counts the refreshes of the session.
	Generation uint32
	// Refreshed is when the token's generation began.
	Refreshed time.Time
	// Expires is when the session ends if nothing refreshes it.
	Expires time.Time
	// Persistent says that the session outlives the browser.
	Persistent bool

	claims   *claimSet
	exchange *exchange // of the Middleware that found it
}

// Anonymous reports whether there is no session.
func (s *Session) Anonymous() bool { return s.ID == "" }

// Claim returns the claim at a dot path, decoded as encoding/json does with
// UseNumber, and whether there is one. A path has names of members, and indexes
// of lists from 0. At each step a member that has the whole rest of the path as
// its name wins, so that names with dots can be reached.
func (s *Session) Claim(path string) (any, bool) {
	if s.claims == nil {
		return nil, false
	}
	return walk(s.claims.members(), path)
}

// ClaimsPath is Claim as text: strings are as they are, null is empty, objects
// and lists are JSON.
func (s *Session) ClaimsPath(path string) (string, bool) {
	value, ok := s.Claim(path)
	if !ok {
		return "", false
	}
	return claimText(value), true
}

func walk(value any, path string) (any, bool) {
	for {
		name, rest, more := strings.Cut(path, ".")
		switch v := value.(type) {
		case map[string]any:
			if member, ok := v[path]; ok {
				return member, true
			}
			member, ok := v[name]
			if !ok {
				return nil, false
			}
			value = member
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(v) {
				return nil, false
			}
			value = v[i]
		default:
			return nil, false
		}
		if !more {
			return value, true
		}
		path = rest
	}
}

func claimText(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case json.Number:
		return v.String()
	case bool:
		return strconv.FormatBool(v)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(value) != nil {
		return ""
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// claimSet is a set of claims in the forms that requests need. It is shared by
// requests and never changes.
type claimSet struct {
	raw    []byte
	header string // base64url, as the backend gets it
	once   sync.Once
	tree   map[string]any
}

func newClaimSet(text string) *claimSet {
	return &claimSet{raw: []byte(text), header: base64.RawURLEncoding.EncodeToString([]byte(text))}
}

// members are the claims decoded, at first need.
func (c *claimSet) members() map[string]any {
	c.once.Do(func() {
		d := json.NewDecoder(bytes.NewReader(c.raw))
		d.UseNumber()
		_ = d.Decode(&c.tree) // the text was checked when the claims were set
	})
	return c.tree
}

// FromContext returns the session that Middleware.ServeHTTP put into the
// context of the request it passed on: an anonymous one where the request has
// none, nil where no Middleware ran.
func FromContext(ctx context.Context) *Session {
	if ex, _ := ctx.Value(exchangeKey{}).(*exchange); ex != nil {
		return &ex.session
	}
	return nil
}

// Detached returns the session for a copy of its request that goes on by itself
// and may outlive it. Middlewares that the copy passes find it as they would
// have found the original, and change neither that nor its response. A nil
// Session is returned as it is.
func (s *Session) Detached() *Session {
	if s == nil || s.exchange == nil {
		return s
	}
	return &s.exchange.detach().session
}
