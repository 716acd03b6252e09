package caddymodule

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

// parseGlobalOption reads the global option:
//
//	gatehouse {
//		store <module> …
//		session_store <module> …
//		key_ring <module> …
//		session <name> { … }
//	}
//
// The option may stand more than once: different parts are merged, a part that
// is set twice is refused.
func parseGlobalOption(d *caddyfile.Dispenser, existing any) (any, error) {
	app := new(App)
	if previous, ok := existing.(httpcaddyfile.App); ok {
		if err := json.Unmarshal(previous.Value, app); err != nil {
			return nil, fmt.Errorf("reading the earlier gatehouse option: %w", err)
		}
	}
	if err := app.UnmarshalCaddyfile(d); err != nil {
		return nil, err
	}
	return httpcaddyfile.App{Name: "gatehouse", Value: caddyconfig.JSON(app, nil)}, nil
}

// UnmarshalCaddyfile adds the option's parts to the app.
func (a *App) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // option name
	if d.NextArg() {
		return d.ArgErr()
	}
	for d.NextBlock(0) {
		var err error
		switch word := d.Val(); word {
		case "store":
			err = guestModule(d, "gatehouse.stores", &a.StoreRaw)
		case "session_store":
			err = guestModule(d, "gatehouse.session_stores", &a.SessionStoreRaw)
		case "key_ring":
			err = guestModule(d, "gatehouse.key_rings", &a.KeyRingRaw)
		case "session":
			err = a.parseSession(d)
		default:
			err = unknownWord(d, "store", "session_store", "key_ring", "session")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *App) parseSession(d *caddyfile.Dispenser) error {
	var name string
	if !d.AllArgs(&name) {
		return d.ArgErr()
	}
	if _, exists := a.Sessions[name]; exists {
		return d.Errf("session %q is already set", name)
	}
	settings, seen := new(SessionSettings), once{}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		known, err := settings.parse(d, seen)
		if err != nil {
			return err
		}
		if !known {
			return unknownWord(d, sessionSettingWords...)
		}
	}
	if a.Sessions == nil {
		a.Sessions = make(map[string]*SessionSettings)
	}
	a.Sessions[name] = settings
	return nil
}

// guestModule reads "<word> <module> …" into the module's JSON with its name as
// "type".
func guestModule(d *caddyfile.Dispenser, namespace string, into *json.RawMessage) error {
	word := d.Val()
	if *into != nil {
		return d.Errf("%s is already set", word)
	}
	if !d.NextArg() {
		return d.ArgErr()
	}
	name := d.Val()
	module, err := caddyfile.UnmarshalModule(d, namespace+"."+name)
	if err != nil {
		return err
	}
	raw := caddyconfig.JSONModuleObject(module, "type", name, nil)
	if bytes.Equal(raw, []byte("null")) {
		return d.Errf("%s %s gave no configuration", word, name)
	}
	*into = raw
	return nil
}

var (
	_ caddyfile.Unmarshaler = (*App)(nil)
	_ caddy.Module          = (*App)(nil)
)
