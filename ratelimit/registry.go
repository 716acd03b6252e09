package ratelimit

import (
	"fmt"
	"sync"
	"time"

	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
)

// Settings are what zones of one name on one site must agree in.
type Settings struct {
	Algorithm limitstore.Algorithm // 0 means limitstore.FixedWindow
	Window    time.Duration
	Events    int64
	// Key is the text from which the client key is made, as configured.
	Key string
}

// Registry notices zones of one configuration that have the same site and
// name but other settings, which would show two limits under one name. Make
// one for each configuration: the next may change settings while the former
// still serves. The zero value is ready. It is safe for concurrent use.
type Registry struct {
	mu    sync.Mutex
	zones map[zoneName]Settings
}

type zoneName struct{ site, name string }

// Register notes a zone. It returns an error when the configuration already
// has a zone of that site and name with other settings. Site is the
// configured one; empty means the request's host.
func (r *Registry) Register(site, name string, s Settings) error {
	if s.Algorithm == 0 {
		s.Algorithm = limitstore.FixedWindow
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if other, ok := r.zones[zoneName{site, name}]; ok && other != s {
		return fmt.Errorf("ratelimit: zone %q is defined twice%s: once as %v, once as %v", name, ofSite(site), other, s)
	}
	if r.zones == nil {
		r.zones = make(map[zoneName]Settings)
	}
	r.zones[zoneName{site, name}] = s
	return nil
}

// String describes the settings in the words of the configuration.
func (s Settings) String() string {
	text := fmt.Sprintf("%v, window %v, events %d", s.Algorithm, s.Window, s.Events)
	if s.Key != "" {
		text += fmt.Sprintf(", key %q", s.Key)
	}
	return text
}

func ofSite(site string) string {
	if site == "" {
		return ""
	}
	return fmt.Sprintf(" for site %q", site)
}
