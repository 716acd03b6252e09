package chunkedupload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	tusd "github.com/tus/tusd/v2/pkg/handler"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// Defaults of Config.
const (
	DefaultMaxSize     int64 = 10 << 30
	DefaultExpireAfter       = 24 * time.Hour
	DefaultWait              = 25 * time.Second
)

// Config says how a Handler works. Only Store is required.
type Config struct {
	// Store keeps the uploads. It may be shared by handlers and gateways.
	Store uploadstore.Store
	// Shared holds the deliveries that this process runs. Handlers over one
	// store must use the same one, so that it outlives a handler that is
	// replaced. Nil: the handler has its own and closes it.
	Shared *Shared

	// Base is the path under which uploads live, as this handler sees it,
	// without a trailing slash. Uploads are made by POST to it. Empty: the root.
	Base string
	// MaxSize bounds one upload, in bytes. Zero: DefaultMaxSize.
	MaxSize int64
	// ExpireAfter is how long an upload is kept without progress, and how long
	// after its outcome. It is fixed for an upload when that is made. Zero:
	// DefaultExpireAfter.
	ExpireAfter time.Duration
	// Wait is how long a client is kept waiting for the outcome. Zero:
	// DefaultWait.
	Wait time.Duration
	// RequireSession refuses requests without an owner.
	RequireSession bool

	// Owner names the signed-in user; empty: no session. Nil: nobody is.
	Owner func(*http.Request) string
	// Site names the site. Nil: the request's host without port, lower case.
	Site func(*http.Request) string
	// OriginalURI is the URI as the client sent it, from which Location is
	// built. Nil: r.URL.
	OriginalURI func(*http.Request) *url.URL
	// Detach makes the request of a delivery, which outlives the given one: its
	// context must not be cancelled with it, and nothing in it may be shared
	// with it. It is given the method, the header and the URI of the creation,
	// as the client sent that, in the context of the completing request. Nil: a
	// clone with context.WithoutCancel.
	Detach func(*http.Request) *http.Request
	// Unreached reports whether an error of the next handler means that the
	// application was never reached. Nil: an error of dialling (net.OpError).
	Unreached func(error) bool

	// Observer is told what happens. Nil: nobody is.
	Observer Observer
	// Logger gets faults. Nil: discarded.
	Logger *slog.Logger
	// Now is the clock. Nil: time.Now.
	Now func() time.Time
}

// Handler is the middleware. It is safe for concurrent use.
type Handler struct {
	cfg    Config
	store  uploadstore.Store
	shared *Shared
	log    *slog.Logger
	tus    *tusd.UnroutedHandler

	patience   time.Duration // with a writer that is in the way; less in tests
	ownsShared bool
	mu         sync.Mutex
	stop       context.CancelFunc // of the clean-up; nil unless it runs
	wg         sync.WaitGroup
}

// New checks cfg and makes a Handler of it. It starts nothing.
func New(cfg Config) (*Handler, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("chunkedupload: %w", err)
	}
	h := &Handler{ownsShared: cfg.Shared == nil, patience: writePatience}
	cfg.setDefaults()
	h.cfg, h.store, h.shared, h.log = cfg, cfg.Store, cfg.Shared, cfg.Logger
	var err error
	if h.tus, err = newTusd(h, cfg.MaxSize); err != nil {
		return nil, fmt.Errorf("chunkedupload: %w", err)
	}
	return h, nil
}

func (c *Config) validate() error {
	switch {
	case c.Store == nil:
		return errors.New("a store is required")
	case c.Base != "" && (c.Base[0] != '/' || strings.HasSuffix(c.Base, "/")):
		return fmt.Errorf("base %q must begin with a slash and end without one", c.Base)
	case strings.ContainsAny(c.Base, "?#*"):
		return fmt.Errorf("base %q must be a plain path", c.Base)
	case c.MaxSize < 0:
		return fmt.Errorf("the largest size of an upload is negative: %d", c.MaxSize)
	case c.ExpireAfter < 0:
		return fmt.Errorf("the time until expiry is negative: %s", c.ExpireAfter)
	case c.Wait < 0:
		return fmt.Errorf("the time to wait for an outcome is negative: %s", c.Wait)
	}
	return nil
}

func (c *Config) setDefaults() {
	setDefault(&c.MaxSize, DefaultMaxSize)
	setDefault(&c.ExpireAfter, DefaultExpireAfter)
	setDefault(&c.Wait, DefaultWait)
	setDefault(&c.Logger, slog.New(slog.DiscardHandler))
	if c.Shared == nil {
		c.Shared = NewShared()
	}
	if c.Owner == nil {
		c.Owner = func(*http.Request) string { return "" }
	}
	if c.Site == nil {
		c.Site = hostSite
	}
	if c.OriginalURI == nil {
		c.OriginalURI = func(r *http.Request) *url.URL { return r.URL }
	}
	if c.Detach == nil {
		c.Detach = func(r *http.Request) *http.Request { return r.Clone(context.WithoutCancel(r.Context())) }
	}
	if c.Unreached == nil {
		c.Unreached = dialFailed
	}
	if c.Observer == nil {
		c.Observer = noObserver{}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// hostSite is the request's host without port, lower case.
func hostSite(r *http.Request) string {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

func dialFailed(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// Start begins the clean-up: about once a minute expired uploads are removed
// and lapsed deliveries settled. Starting twice is starting once.
func (h *Handler) Start() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.stop = cancel
	h.wg.Go(func() { h.cleanUpRegularly(ctx) })
}

// Close stops the clean-up and waits for it. Requests and deliveries go on,
// unless the handler has its own Shared, which is closed.
func (h *Handler) Close() error {
	h.mu.Lock()
	if h.stop != nil {
		h.stop()
		h.stop = nil
	}
	h.mu.Unlock()
	h.wg.Wait()
	if h.ownsShared {
		return h.shared.Close()
	}
	return nil
}
