package caddymodule

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/caddyserver/caddy/v2"

	"github.com/gatehouse-gateway/gatehouse/sessionauth"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// What outlives a reload, also one that fails, lives in these pools. An entry
// is keyed by every setting that shapes it (hashed, since some are secrets) and
// closed when the last configuration that uses it is gone.
var (
	redisPool       = caddy.NewUsagePool() // *redisEntry
	memoryPool      = caddy.NewUsagePool() // *memoryEntry
	ringPool        = caddy.NewUsagePool() // *ringEntry
	sessionFilePool = caddy.NewUsagePool() // *sessionFileEntry
	uploadPool      = caddy.NewUsagePool() // *uploadEntry
)

// SessionKeeper is a session store with the state of session_auth that belongs
// to it rather than to a configuration: ids that this gateway has ended, ends
// that are still to be stored, opened tokens.
type SessionKeeper struct {
	Store  sessionstore.Store
	Shared *sessionauth.Shared
}

func newSessionKeeper(store sessionstore.Store) *SessionKeeper {
	return &SessionKeeper{Store: store, Shared: sessionauth.NewShared()}
}

// poolKey hashes the settings that shape a pooled resource.
func poolKey(kind string, settings any) string {
	raw, err := json.Marshal(settings)
	if err != nil {
		panic("pool key: " + err.Error()) // settings are plain structs of ours
	}
	sum := sha256.Sum256(append([]byte(kind+"\x00"), raw...))
	return kind + "-" + hex.EncodeToString(sum[:16])
}

// acquire takes a pooled resource or makes it.
func acquire[T caddy.Destructor](pool *caddy.UsagePool, key string, make func() (T, error)) (T, error) {
	value, _, err := pool.LoadOrNew(key, func() (caddy.Destructor, error) { return make() })
	if err != nil {
		var none T
		return none, err
	}
	entry, ok := value.(T)
	if !ok {
		var none T
		return none, fmt.Errorf("pooled resource has another type: %T", value)
	}
	return entry, nil
}

// held is a pooled resource that a module holds; the zero value holds none.
type held struct {
	pool *caddy.UsagePool
	key  string
}

// release gives the resource back, once.
func (h *held) release() error {
	if h.pool == nil {
		return nil
	}
	pool := h.pool
	h.pool = nil
	_, err := pool.Delete(h.key)
	return err
}

// closeAll runs all, in order, and joins their errors.
func closeAll(closers ...func() error) error {
	var errs []error
	for _, c := range closers {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}
