package caddymodule

import (
	"context"
	"path/filepath"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload"
	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore/directory"
)

// DirectoryUploadStore keeps uploads in a directory. Gateways that share the
// directory share the uploads, with no other store between them.
type DirectoryUploadStore struct {
	// The directory. Default: gatehouse/uploads in Caddy's data directory.
	Path string `json:"path,omitempty"`

	entry *uploadEntry
	held  held
}

type uploadEntry struct {
	store      *directory.Store
	deliveries *chunkedupload.Shared
}

// drainTime is how long deliveries may still take when the gateway stops.
const drainTime = 10 * time.Second

// Destruct lets running deliveries end and stops the background work.
func (e *uploadEntry) Destruct() error {
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	_ = e.deliveries.Drain(ctx) // what is left is cancelled by Close
	return closeAll(e.deliveries.Close, e.store.Close)
}

// CaddyModule returns the module's ID and constructor.
func (DirectoryUploadStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "gatehouse.upload_stores.directory", New: func() caddy.Module { return new(DirectoryUploadStore) }}
}

// Provision takes the directory's store; the directory is not touched.
func (s *DirectoryUploadStore) Provision(caddy.Context) error {
	path, err := expand("store directory path", s.Path)
	if err != nil {
		return err
	}
	if path == "" {
		path = dataPath("uploads")
	}
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	key := poolKey("uploads", path)
	entry, err := acquire(uploadPool, key, func() (*uploadEntry, error) {
		store, err := directory.Open(directory.Options{Path: path, Logger: processLogger(s)})
		if err != nil {
			return nil, err
		}
		return &uploadEntry{store, chunkedupload.NewShared()}, nil
	})
	if err != nil {
		return err
	}
	s.entry, s.held = entry, held{uploadPool, key}
	return nil
}

// Cleanup gives the store back.
func (s *DirectoryUploadStore) Cleanup() error { return s.held.release() }

// UploadStore returns the store.
func (s *DirectoryUploadStore) UploadStore() uploadstore.Store { return s.entry.store }

// Deliveries returns those that this process runs from the directory.
func (s *DirectoryUploadStore) Deliveries() *chunkedupload.Shared { return s.entry.deliveries }

// UnmarshalCaddyfile reads the store:
//
//	store directory [<path>]
func (s *DirectoryUploadStore) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // module name
	if d.NextArg() {
		s.Path = d.Val()
		if d.NextArg() {
			return d.ArgErr()
		}
	}
	return noBlock(d, "store directory")
}

var (
	_ UploadStoreProvider   = (*DirectoryUploadStore)(nil)
	_ caddy.Provisioner     = (*DirectoryUploadStore)(nil)
	_ caddy.CleanerUpper    = (*DirectoryUploadStore)(nil)
	_ caddyfile.Unmarshaler = (*DirectoryUploadStore)(nil)
)
