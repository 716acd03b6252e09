package caddymodule

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

var sessionSettingWords = []string{
	"cookie", "domain", "path", "same_site", "refresh_after", "grace", "lifetime", "persistent_lifetime",
	"max_lifetime", "on_store_failure", "forward_cookie", "site",
}

// parse reads one subdirective of the settings that routes share; known is
// false where the word is none of them.
func (s *SessionSettings) parse(d *caddyfile.Dispenser, seen once) (known bool, err error) {
	word := d.Val()
	switch word {
	case "cookie", "domain", "path", "same_site", "refresh_after", "grace", "lifetime", "persistent_lifetime",
		"max_lifetime", "on_store_failure", "forward_cookie", "site":
		if err := seen.check(d); err != nil {
			return true, err
		}
	default:
		return false, nil
	}
	switch word {
	case "cookie":
		err = parseString(d, &s.Cookie)
	case "domain":
		err = parseString(d, &s.Domain)
	case "path":
		err = parseString(d, &s.Path)
	case "same_site":
		if err = parseString(d, &s.SameSite); err == nil {
			if _, bad := s.sameSite(); bad != nil {
				err = d.Err(bad.Error())
			}
		}
	case "refresh_after":
		err = parseDuration(d, &s.RefreshAfter)
	case "grace":
		err = parseDuration(d, &s.Grace)
	case "lifetime":
		err = parseDuration(d, &s.Lifetime)
	case "persistent_lifetime":
		err = parseDuration(d, &s.PersistentLifetime)
	case "max_lifetime":
		var text string
		if err = parseString(d, &text); err == nil {
			limit, bad := ParseLimit(text)
			if s.MaxLifetime = &limit; bad != nil {
				err = d.Errf("max_lifetime: %v", bad)
			}
		}
	case "on_store_failure":
		err = s.parseStoreFailure(d)
	case "forward_cookie":
		err = parseOnOff(d, &s.ForwardCookie)
	case "site":
		err = parseString(d, &s.Site)
	}
	return true, err
}

func (s *SessionSettings) parseStoreFailure(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	switch {
	case len(args) == 1 && args[0] == "reject":
		s.OnStoreFailure = &SessionStoreFailure{Policy: "reject"}
		return nil
	case len(args) == 2 && args[0] == "accept_stale":
		dur, err := caddy.ParseDuration(args[1])
		if err != nil || dur <= 0 {
			return d.Errf("on_store_failure: %q is no duration above zero", args[1])
		}
		s.OnStoreFailure = &SessionStoreFailure{Policy: "accept_stale", For: caddy.Duration(dur)}
		return nil
	}
	return d.Err("on_store_failure: want reject, or accept_stale <duration>")
}

// parseSessionAuth reads the directive:
//
//	session_auth [<matcher>] [<name>] {
//		cookie <name>
//		domain <domain>
//		path <path>
//		same_site lax|strict|none
//		refresh_after <duration>
//		grace <duration>
//		lifetime <duration>
//		persistent_lifetime <duration>
//		max_lifetime <duration>|off
//		on_store_failure reject | accept_stale <duration>
//		forward_cookie on|off
//		site <name>
//		require [redirect <url>]
//		force_validate
//		allowed_origins <host>… | any
//		commands on|off|start update end event
//	}
func parseSessionAuth(h httpcaddyfile.Helper) (*SessionAuth, error) {
	s := new(SessionAuth)
	return s, s.UnmarshalCaddyfile(h.Dispenser)
}

// UnmarshalCaddyfile reads the directive; see parseSessionAuth for its syntax.
func (s *SessionAuth) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // directive name
	if d.NextArg() {
		s.Name = d.Val()
		if d.NextArg() {
			return d.ArgErr()
		}
	}
	seen := once{}
	for d.NextBlock(0) {
		word := d.Val()
		if known, err := s.SessionSettings.parse(d, seen); err != nil {
			return err
		} else if known {
			if s.Name != "" {
				return d.Errf("%s belongs to the settings named %q, in the gatehouse option", word, s.Name)
			}
			continue
		}
		if err := s.parseRoute(d, seen); err != nil {
			return err
		}
	}
	return nil
}

// parseRoute reads what may differ by route.
func (s *SessionAuth) parseRoute(d *caddyfile.Dispenser, seen once) error {
	word := d.Val()
	switch word {
	case "require", "force_validate", "allowed_origins", "commands":
		if err := seen.check(d); err != nil {
			return err
		}
	}
	switch word {
	case "require":
		args := d.RemainingArgs()
		switch {
		case len(args) == 0:
			s.Require = new(SessionRequirement)
		case len(args) == 2 && args[0] == "redirect":
			s.Require = &SessionRequirement{Redirect: args[1]}
		default:
			return d.Err("require: want nothing more, or redirect <url>")
		}
		return nil
	case "force_validate":
		return parseFlag(d, &s.ForceValidate)
	case "allowed_origins":
		return parseList(d, &s.AllowedOrigins)
	case "commands":
		if err := parseList(d, &s.Commands); err != nil {
			return err
		}
		if _, err := parseCommands(s.Commands); err != nil {
			return d.Err(err.Error())
		}
		return nil
	}
	return unknownWord(d, append(append([]string{}, sessionSettingWords...), "require", "force_validate", "allowed_origins", "commands")...)
}

var _ caddyfile.Unmarshaler = (*SessionAuth)(nil)
