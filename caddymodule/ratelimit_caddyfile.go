package caddymodule

import (
	"encoding/json"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// parseClientRateLimit reads the directive:
//
//	client_rate_limit [<matcher>] {
//		zone <name> {
//			match {
//				<matchers>
//			}
//			key <text>
//			window <duration>
//			events <count>
//			algorithm fixed_window
//			cost <number or placeholder>
//			dry_run
//		}
//		ipv6_prefix <bits>
//		exempt <address or network>…
//		mode exact
//		on_store_failure reject|allow|local
//		headers on|off
//		site <name>
//	}
func parseClientRateLimit(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	l := new(ClientRateLimit)
	return l, l.UnmarshalCaddyfile(h.Dispenser)
}

// UnmarshalCaddyfile reads the directive; see parseClientRateLimit for its
// syntax.
func (l *ClientRateLimit) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // directive name
	if d.NextArg() {
		return d.ArgErr()
	}
	seen := once{}
	for d.NextBlock(0) {
		word := d.Val()
		if word != "zone" && word != "exempt" {
			if err := seen.check(d); err != nil {
				return err
			}
		}
		var err error
		switch word {
		case "zone":
			err = l.parseZone(d)
		case "ipv6_prefix":
			var bits int64
			if err = parseCount(d, &bits, 1); err == nil && bits > 128 {
				err = d.Errf("ipv6_prefix: %d is above 128", bits)
			}
			l.IPv6Prefix = int(bits)
		case "exempt":
			var added []string
			if err = parseList(d, &added); err != nil {
				break
			}
			for _, text := range added {
				if _, bad := parsePrefix(text); bad != nil {
					return d.Errf("exempt: %v", bad)
				}
			}
			l.Exempt = append(l.Exempt, added...)
		case "mode":
			if err = parseString(d, &l.Mode); err == nil && l.Mode != "exact" {
				err = d.Errf("mode: want exact, not %q", l.Mode)
			}
		case "on_store_failure":
			if err = parseString(d, &l.OnStoreFailure); err == nil {
				if _, bad := failurePolicy(l.OnStoreFailure); bad != nil {
					err = d.Err(bad.Error())
				}
			}
		case "headers":
			var on bool
			err = parseOnOff(d, &on)
			l.Headers = &on
		case "site":
			err = parseString(d, &l.Site)
		default:
			err = unknownWord(d, "zone", "ipv6_prefix", "exempt", "mode", "on_store_failure", "headers", "site")
		}
		if err != nil {
			return err
		}
	}
	if len(l.Zones) == 0 {
		return d.Err("client_rate_limit needs at least one zone")
	}
	return nil
}

func (l *ClientRateLimit) parseZone(d *caddyfile.Dispenser) error {
	zone := new(LimitZone)
	if !d.AllArgs(&zone.Name) {
		return d.ArgErr()
	}
	for _, other := range l.Zones {
		if other.Name == zone.Name {
			return d.Errf("zone %q is already set", zone.Name)
		}
	}
	seen := once{}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := seen.check(d); err != nil {
			return err
		}
		if err := zone.parse(d); err != nil {
			return err
		}
	}
	if zone.Window == 0 || zone.Events == 0 {
		return d.Errf("zone %q needs window and events", zone.Name)
	}
	l.Zones = append(l.Zones, zone)
	return nil
}

func (z *LimitZone) parse(d *caddyfile.Dispenser) error {
	switch d.Val() {
	case "match":
		set, err := caddyhttp.ParseCaddyfileNestedMatcherSet(d)
		if err != nil {
			return err
		}
		z.MatcherSetsRaw = caddyhttp.RawMatcherSets{set}
		return nil
	case "key":
		if err := parseString(d, &z.Key); err != nil {
			return err
		}
		if _, err := compileKey(z.Key); err != nil {
			return d.Err(err.Error())
		}
		return nil
	case "window":
		return parseDuration(d, &z.Window)
	case "events":
		return parseCount(d, &z.Events, 1)
	case "algorithm":
		if err := parseString(d, &z.Algorithm); err != nil {
			return err
		}
		if z.Algorithm != "fixed_window" {
			return d.Errf("algorithm: want fixed_window, not %q", z.Algorithm)
		}
		return nil
	case "cost":
		return parseString(d, &z.Cost)
	case "dry_run":
		return parseFlag(d, &z.DryRun)
	}
	return unknownWord(d, "match", "key", "window", "events", "algorithm", "cost", "dry_run")
}

var (
	_ caddyfile.Unmarshaler = (*ClientRateLimit)(nil)
	_ json.Unmarshaler      = (*Size)(nil)
	_ caddy.Module          = ClientRateLimit{}
)
