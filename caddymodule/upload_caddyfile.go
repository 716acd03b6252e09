package caddymodule

import (
	"encoding/json"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

// parseChunkedUpload reads the directive:
//
//	chunked_upload [<matcher>] {
//		base <path>
//		store directory [<path>]
//		protocols tus
//		max_size <size>
//		require_session
//		expire_after <duration>
//		deliver stream
//		wait <duration>
//		site <name>
//	}
//
// Without base, the directive's single path matcher gives it.
func parseChunkedUpload(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	if !h.Next() {
		return nil, h.ArgErr()
	}
	matcher, err := h.ExtractMatcherSet()
	if err != nil {
		return nil, err
	}
	u := new(ChunkedUpload)
	if err := u.UnmarshalCaddyfile(h.Dispenser); err != nil {
		return nil, err
	}
	if u.Base == "" {
		if u.Base = baseOf(matcher); u.Base == "" {
			return nil, h.Err("chunked_upload needs base, or a single path matcher like /files*")
		}
	}
	if err := u.check(); err != nil {
		return nil, h.Err(err.Error())
	}
	return h.NewRoute(matcher, u), nil
}

// baseOf returns the path of a matcher set's single path pattern, without its
// asterisk and trailing slash.
func baseOf(matcher caddy.ModuleMap) string {
	var patterns []string
	if raw, ok := matcher["path"]; !ok || json.Unmarshal(raw, &patterns) != nil || len(patterns) != 1 {
		return ""
	}
	base := strings.TrimRight(strings.TrimSuffix(patterns[0], "*"), "/")
	if strings.Contains(base, "*") {
		return ""
	}
	return base
}

// UnmarshalCaddyfile reads the directive; see parseChunkedUpload for its
// syntax.
func (u *ChunkedUpload) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // directive name
	if d.NextArg() {
		return d.ArgErr()
	}
	seen := once{}
	for d.NextBlock(0) {
		if err := seen.check(d); err != nil {
			return err
		}
		var err error
		switch d.Val() {
		case "base":
			if err = parseString(d, &u.Base); err == nil {
				u.Base = strings.TrimRight(u.Base, "/")
			}
		case "store":
			err = guestModule(d, "gatehouse.upload_stores", &u.StoreRaw)
		case "protocols":
			err = parseList(d, &u.Protocols)
		case "max_size":
			err = parseSize(d, &u.MaxSize)
		case "require_session":
			err = parseFlag(d, &u.RequireSession)
		case "expire_after":
			err = parseDuration(d, &u.ExpireAfter)
		case "deliver":
			err = parseString(d, &u.Deliver)
		case "wait":
			err = parseDuration(d, &u.Wait)
		case "site":
			err = parseString(d, &u.Site)
		default:
			err = unknownWord(d, "base", "store", "protocols", "max_size", "require_session", "expire_after", "deliver", "wait", "site")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var _ caddyfile.Unmarshaler = (*ChunkedUpload)(nil)
