package redisconn

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// EvictionPolicy returns the server's maxmemory-policy (INFO memory), for
// which the user needs the right to INFO.
func (c *Conn) EvictionPolicy(ctx context.Context) (string, error) {
	ctx, cancel := c.WithTimeout(ctx)
	defer cancel()
	info, err := c.client.Info(ctx, "memory").Result()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(info) {
		if policy, ok := strings.CutPrefix(line, "maxmemory_policy:"); ok {
			return strings.TrimSpace(policy), nil
		}
	}
	return "", errors.New("redis: INFO names no maxmemory_policy")
}

// MayEvict reports whether a server with this maxmemory-policy forgets live
// keys when its memory is full.
func MayEvict(policy string) bool { return policy != "noeviction" }

// IsForbidden reports whether an error means that the user lacks the right to a
// command or key (NOPERM).
func IsForbidden(err error) bool { return redis.HasErrorPrefix(err, "NOPERM") }
