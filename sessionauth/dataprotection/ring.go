package dataprotection

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore"
)

const (
	// DefaultKeyLifetime is how long a new key may seal.
	DefaultKeyLifetime = 90 * 24 * time.Hour
	// MinKeyLifetime is the shortest lifetime of new keys, as in .NET.
	MinKeyLifetime = 7 * 24 * time.Hour
)

// Options describe a Ring.
type Options struct {
	// Repository holds the keys. Required.
	Repository ringstore.Repository
	// ApplicationName is the first purpose of every token, the application
	// discriminator of ASP.NET Core, taken exactly as it is. Empty: none.
	ApplicationName string
	// KeyLifetime is how long a key made here may seal, from its creation.
	// Default DefaultKeyLifetime, at least MinKeyLifetime.
	KeyLifetime time.Duration
	// AutoGenerate allows keys to be made when one is needed.
	AutoGenerate bool
	// Logger gets what is skipped in the ring, and each change between readable
	// and not. Nil discards.
	Logger *slog.Logger
	// Now is the clock that keys' dates are compared with. Default time.Now.
	Now func() time.Time
	// OnError is told, once for each change of state, that the ring could not
	// be read again (the last good one stays in use) or that a key could not be
	// made. It is called from the background work, so it must not wait for the
	// Ring. Nil: nobody.
	OnError func(error)
}

// Ring is a shared key ring. It is safe for concurrent use.
//
// Once it has been read it is read again about every 45 seconds, in the
// background, until Close.
type Ring struct {
	repository ringstore.Repository
	purposes   []string // that begin every chain
	lifetime   time.Duration
	generates  bool
	log        *slog.Logger
	now        func() time.Time
	onError    func(error)

	current atomic.Pointer[keyring] // nil until it was read
	epoch   atomic.Uint64

	ctx    context.Context // of the background work
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	reads  reads
	makes  makes
}

// New makes a Ring. It does no I/O and starts nothing. Close it when done.
func New(o Options) (*Ring, error) {
	if o.Repository == nil {
		return nil, errors.New("dataprotection: no repository")
	}
	if o.KeyLifetime == 0 {
		o.KeyLifetime = DefaultKeyLifetime
	}
	if o.KeyLifetime < MinKeyLifetime {
		return nil, fmt.Errorf("dataprotection: key lifetime %v is less than %v", o.KeyLifetime, MinKeyLifetime)
	}
	r := &Ring{
		repository: o.Repository, lifetime: o.KeyLifetime, generates: o.AutoGenerate,
		log: o.Logger, now: o.Now, onError: o.OnError,
	}
	if o.ApplicationName != "" {
		r.purposes = []string{o.ApplicationName}
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.now == nil {
		r.now = time.Now
	}
	if r.onError == nil {
		r.onError = func(error) {}
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// Load reads the ring if it was never read. An empty ring is fine. The error
// is ErrBroken when the ring is there and cannot be read (a server should then
// not start), or ErrUnavailable when it is away (it is tried again at need).
func (r *Ring) Load(ctx context.Context) error {
	if r.current.Load() != nil {
		return nil
	}
	return r.read(ctx, joinRead)
}

// Reload reads the ring anew. When it fails the last good ring stays in use.
// Errors are as of Load.
func (r *Ring) Reload(ctx context.Context) error { return r.read(ctx, freshRead) }

// Close ends the background work and waits for it. What was read stays in
// use, so requests that are still under way can finish; nothing is read or
// made any more.
func (r *Ring) Close() error {
	r.mu.Lock()
	r.closed = true
	r.reads.stopTimer()
	r.mu.Unlock()
	r.cancel()
	r.work.Wait()
	return nil
}

// Epoch changes whenever a key was removed, revoked or became unusable, so
// that what Open returned before may be refused now. A cache of opened tokens
// takes the epoch before it opens a token, and forgets what it holds of another
// epoch. Epoch takes no lock.
func (r *Ring) Epoch() uint64 { return r.epoch.Load() }

// ring returns the ring as last read, and reads it if it never was.
func (r *Ring) ring(ctx context.Context) (*keyring, error) {
	if ring := r.current.Load(); ring != nil {
		return ring, nil
	}
	if err := r.read(ctx, pacedRead); err != nil {
		return nil, err
	}
	return r.current.Load(), nil
}

// Secret derives a secret that is the same on every server that shares the
// ring: HKDF-SHA256 (RFC 5869) of the master key of the oldest key that can be
// read, without salt, bound to the label. Neither revocation nor rotation
// changes it. The first key is made where there is none. Errors are
// ErrUnavailable, ErrBroken and ErrNoKey.
func (r *Ring) Secret(ctx context.Context, label string) ([32]byte, error) {
	ring, err := r.ring(ctx)
	if err != nil {
		return [32]byte{}, err
	}
	oldest := ring.oldest()
	if oldest == nil {
		if _, err := r.sealing(ctx); err != nil {
			return [32]byte{}, err
		}
		if oldest = r.current.Load().oldest(); oldest == nil {
			return [32]byte{}, ErrNoKey
		}
	}
	secret, err := hkdf.Key(sha256.New, oldest.master, nil, "Gatehouse.Secret.v1\x00"+label, 32)
	if err != nil {
		return [32]byte{}, fmt.Errorf("dataprotection: deriving a secret: %w", err)
	}
	return [32]byte(secret), nil
}

// KeyInfo describes a key without its secret.
type KeyInfo struct {
	ID        KeyID
	Created   time.Time
	Activates time.Time
	Expires   time.Time // it opens tokens afterwards too
	Revoked   bool
	Default   bool  // it seals now
	Usable    bool  // it opens tokens: neither revoked nor unreadable
	WhyNot    error // nil when Usable; else ErrRevoked or ErrUnusableKey
}

// Keys lists the keys of the ring, the oldest first. It reads the ring if it
// was never read; call Reload before for the latest.
func (r *Ring) Keys(ctx context.Context) ([]KeyInfo, error) {
	ring, err := r.ring(ctx)
	if err != nil {
		return nil, err
	}
	chosen := ring.chosen(r.now())
	infos := make([]KeyInfo, 0, len(ring.keys))
	for i := range ring.keys {
		k := &ring.keys[i]
		info := KeyInfo{
			ID: k.id, Created: k.created, Activates: k.activates, Expires: k.expires,
			Revoked: k.revoked, Usable: k.canSeal(), WhyNot: k.unusable,
			Default: chosen.seal == k,
		}
		if k.revoked {
			info.WhyNot = ErrRevoked
		}
		infos = append(infos, info)
	}
	return infos, nil
}
