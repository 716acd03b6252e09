package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"

	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
)

// FailurePolicy says what becomes of requests while the store cannot be
// asked.
type FailurePolicy int

const (
	// Reject answers 503 rate-limit-store-unavailable.
	Reject FailurePolicy = iota
	// Allow admits everything.
	Allow
	// Local counts in this gateway alone. The counts are not pushed to the
	// store afterwards: at most a zone's events more are admitted on each
	// gateway at each change of state. A local table that is full rejects.
	Local
)

// String returns the policy's name in configurations.
func (p FailurePolicy) String() string {
	switch p {
	case Reject:
		return "reject"
	case Allow:
		return "allow"
	case Local:
		return "local"
	}
	return fmt.Sprintf("policy(%d)", int(p))
}

// DefaultIPv6Prefix is how much of an IPv6 address tells clients apart: the
// size of the network that a subscriber has.
const DefaultIPv6Prefix = 64

// Config describes a Limiter.
type Config struct {
	// Zones are decided together, and listed to clients in this order: 1 to
	// limitstore.MaxLimits, with distinct names.
	Zones []Zone
	// Shared is the store and what outlives this configuration. Required.
	Shared *Shared
	// ClientAddr returns the client's textual address by the trusted-proxy
	// rules; all requests without a readable one are one client. Default: the
	// address of the connection.
	ClientAddr func(*http.Request) string
	// IPv6Prefix is how many bits of an IPv6 address count, 1 to 128. Default:
	// DefaultIPv6Prefix.
	IPv6Prefix int
	// Exempt clients pass uncounted.
	Exempt []netip.Prefix
	// OnStoreFailure is the policy. Default: Reject.
	OnStoreFailure FailurePolicy
	// Headers adds RateLimit-Policy and RateLimit to every response
	// (draft-ietf-httpapi-ratelimit-headers-10).
	Headers bool
	// HashSecret returns the secret of the hashes under which clients are
	// counted. All gateways that share a store need the same one. It is asked
	// at first need, once; its failure is one of the store. nil: a random
	// secret of this process.
	HashSecret func(context.Context) ([32]byte, error)
	// Observer is told of decisions. May be nil.
	Observer Observer
	// Logger gets warnings. nil discards.
	Logger *slog.Logger
}

// New makes a Limiter. It asks no store.
func New(c Config) (*Limiter, error) {
	if c.Shared == nil {
		return nil, errors.New("ratelimit: no store")
	}
	if len(c.Zones) == 0 || len(c.Zones) > limitstore.MaxLimits {
		return nil, fmt.Errorf("ratelimit: %d zones, want 1 to %d", len(c.Zones), limitstore.MaxLimits)
	}
	if err := c.setDefaults(); err != nil {
		return nil, err
	}
	l := &Limiter{config: c, secret: newSecretSource(c.HashSecret, c.Shared.timeout)}
	names := make(map[string]bool)
	for _, configured := range c.Zones {
		z, err := newZone(configured)
		if err != nil {
			return nil, err
		}
		if names[z.Name] {
			return nil, fmt.Errorf("ratelimit: zone %q is there twice", z.Name)
		}
		names[z.Name] = true
		l.zones = append(l.zones, z)
	}
	l.policies = string(appendPolicies(nil, l.zones))
	l.questions.New = func() any { return newQuestion(len(l.zones)) }
	return l, nil
}

func (c *Config) setDefaults() error {
	if c.IPv6Prefix == 0 {
		c.IPv6Prefix = DefaultIPv6Prefix
	}
	if c.IPv6Prefix < 1 || c.IPv6Prefix > 128 {
		return fmt.Errorf("ratelimit: IPv6 prefix %d is not from 1 to 128", c.IPv6Prefix)
	}
	if c.OnStoreFailure < Reject || c.OnStoreFailure > Local {
		return fmt.Errorf("ratelimit: unknown failure %v", c.OnStoreFailure)
	}
	if c.OnStoreFailure == Local && c.Shared.local == nil {
		return errors.New("ratelimit: failure policy local needs a local table")
	}
	if c.ClientAddr == nil {
		c.ClientAddr = remoteAddress
	}
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	var err error
	c.Exempt, err = unmapped(c.Exempt)
	return err
}

// unmapped returns the prefixes in the form in which addresses are compared:
// IPv4 in IPv6 as IPv4.
func unmapped(prefixes []netip.Prefix) ([]netip.Prefix, error) {
	plain := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if !p.IsValid() {
			return nil, errors.New("ratelimit: an exempt prefix is not valid")
		}
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		plain = append(plain, p.Masked())
	}
	return plain, nil
}
