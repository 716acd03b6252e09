package caddymodule

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore/directory"
)

// minKeyLifetime is the shortest life that ASP.NET Core gives a key.
const minKeyLifetime = 7 * 24 * time.Hour

// DirectoryKeyRing keeps the key ring in a directory, one XML file a key, in
// the format of ASP.NET Core Data Protection. Gateways (and .NET applications)
// that share the directory share the keys. The first key is made when one is
// needed, and a new one before the old one expires.
type DirectoryKeyRing struct {
	// The directory. Default: gatehouse/keys in Caddy's data directory.
	Path string `json:"path,omitempty"`

	// What keeps the tokens of applications on one ring apart. Default: gatehouse.
	ApplicationName string `json:"application_name,omitempty"`

	// How long a new key is used, at least 7d. Default: 90d.
	KeyLifetime caddy.Duration `json:"key_lifetime,omitempty"`

	// Whether gateways make keys. With false another program must. Default: true.
	AutoGenerate *bool `json:"auto_generate,omitempty"`

	entry *ringEntry
	held  held
}

type ringEntry struct{ ring *dataprotection.Ring }

// Destruct stops the ring's background work.
func (e *ringEntry) Destruct() error { return e.ring.Close() }

// CaddyModule returns the module's ID and constructor.
func (DirectoryKeyRing) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "gatehouse.key_rings.directory", New: func() caddy.Module { return new(DirectoryKeyRing) }}
}

// Provision takes the ring; it reads and writes nothing.
func (k *DirectoryKeyRing) Provision(caddy.Context) error {
	path, err := expand("key_ring path", k.Path)
	if err != nil {
		return err
	}
	if path == "" {
		path = dataPath("keys")
	}
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	name, err := expand("application_name", k.ApplicationName)
	if err != nil {
		return err
	}
	if name == "" {
		name = "gatehouse"
	}
	options := dataprotection.Options{
		Repository: directory.New(path), ApplicationName: name, KeyLifetime: time.Duration(k.KeyLifetime),
		AutoGenerate: k.AutoGenerate == nil || *k.AutoGenerate, Logger: processLogger(k),
	}
	key := poolKey("ring", []any{path, name, options.KeyLifetime, options.AutoGenerate})
	entry, err := acquire(ringPool, key, func() (*ringEntry, error) {
		ring, err := dataprotection.New(options)
		if err != nil {
			return nil, err
		}
		return &ringEntry{ring}, nil
	})
	if err != nil {
		return err
	}
	k.entry, k.held = entry, held{ringPool, key}
	return nil
}

// Validate checks the key lifetime.
func (k *DirectoryKeyRing) Validate() error {
	if k.KeyLifetime != 0 && time.Duration(k.KeyLifetime) < minKeyLifetime {
		return fmt.Errorf("key_lifetime: at least 7d")
	}
	return nil
}

// Cleanup gives the ring back.
func (k *DirectoryKeyRing) Cleanup() error { return k.held.release() }

// Ring returns the ring.
func (k *DirectoryKeyRing) Ring() *dataprotection.Ring { return k.entry.ring }

// UnmarshalCaddyfile reads the key ring:
//
//	key_ring directory {
//		path <path>
//		application_name <name>
//		key_lifetime <duration>
//		auto_generate on|off
//	}
func (k *DirectoryKeyRing) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // module name
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
		case "path":
			err = parseString(d, &k.Path)
		case "application_name":
			err = parseString(d, &k.ApplicationName)
		case "key_lifetime":
			err = parseDuration(d, &k.KeyLifetime)
		case "auto_generate":
			var on bool
			err = parseOnOff(d, &on)
			k.AutoGenerate = &on
		default:
			err = unknownWord(d, "path", "application_name", "key_lifetime", "auto_generate")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var (
	_ KeyRingProvider       = (*DirectoryKeyRing)(nil)
	_ caddy.Provisioner     = (*DirectoryKeyRing)(nil)
	_ caddy.Validator       = (*DirectoryKeyRing)(nil)
	_ caddy.CleanerUpper    = (*DirectoryKeyRing)(nil)
	_ caddyfile.Unmarshaler = (*DirectoryKeyRing)(nil)
)
