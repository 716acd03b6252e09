package ratelimit

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
)

// Zone is one limit. Its counts are told apart by its site, name, window and
// algorithm: zones that agree in these share their counts, wherever they
// stand. Events may differ from one configuration to the next; the counts are
// kept.
type Zone struct {
	// Name appears in response headers, logs and metrics: 1 to 64 visible
	// ASCII characters or spaces.
	Name string
	// Site returns the site that a request belongs to. Default: the request's
	// host without its port, in lower case.
	Site func(*http.Request) string
	// Algorithm is how the zone counts. Default: limitstore.FixedWindow, the
	// only one.
	Algorithm limitstore.Algorithm
	// Window is its length: whole milliseconds, up to limitstore.MaxWindow. It
	// is told to clients when it is in whole seconds.
	Window time.Duration
	// Events is how much cost a client may spend in a window, 1 to
	// limitstore.MaxAmount.
	Events int64
	// Applies tells whether the zone concerns the request. nil: always.
	Applies func(*http.Request) bool
	// Key returns what is counted apart. nil, and an empty result: the client
	// address.
	Key func(*http.Request) string
	// Cost returns what the request costs. nil: 1. With 0 the zone admits and
	// charges nothing; a negative cost counts as 1 and is logged; one above
	// Events is refused for good. ParseCost reads costs from text.
	Cost func(*http.Request) int64
	// DryRun makes the zone count and report, but not refuse. It is not shown
	// to clients, and changes no decision of other zones.
	DryRun bool
}

const maxNameLength = 64

// zone is a checked Zone with what can be computed once.
type zone struct {
	Zone
	policy  string // its item of RateLimit-Policy
	item    string // the beginning of its item of RateLimit
	refused *Refused
}

func newZone(z Zone) (*zone, error) {
	if z.Algorithm == 0 {
		z.Algorithm = limitstore.FixedWindow
	}
	if err := z.check(); err != nil {
		return nil, err
	}
	if z.Site == nil {
		z.Site = requestSite
	}
	name := quote(z.Name)
	policy := name + ";q=" + strconv.FormatInt(z.Events, 10)
	if z.Window%time.Second == 0 {
		policy += ";w=" + strconv.FormatInt(int64(z.Window/time.Second), 10)
	}
	return &zone{Zone: z, policy: policy, item: name + ";r=", refused: &Refused{Zone: z.Name}}, nil
}

func (z *Zone) check() error {
	switch {
	case z.Name == "":
		return errors.New("ratelimit: a zone has no name")
	case len(z.Name) > maxNameLength || !printable(z.Name):
		return fmt.Errorf("ratelimit: zone name %q is not 1 to %d printable ASCII characters", z.Name, maxNameLength)
	case z.Algorithm != limitstore.FixedWindow:
		return fmt.Errorf("ratelimit: zone %q: unknown %v", z.Name, z.Algorithm)
	case z.Window < time.Millisecond || z.Window > limitstore.MaxWindow || z.Window%time.Millisecond != 0:
		return fmt.Errorf("ratelimit: zone %q: window %v is not whole milliseconds from 1ms to %v", z.Name, z.Window, limitstore.MaxWindow)
	case z.Events < 1 || z.Events > limitstore.MaxAmount:
		return fmt.Errorf("ratelimit: zone %q: events %d is not from 1 to %d", z.Name, z.Events, int64(limitstore.MaxAmount))
	}
	return nil
}

// limit is the zone's part of a decision.
func (z *zone) limit(cost int64) limitstore.Limit {
	return limitstore.Limit{Algorithm: z.Algorithm, Window: z.Window, Events: z.Events, Cost: cost, Advisory: z.DryRun}
}
