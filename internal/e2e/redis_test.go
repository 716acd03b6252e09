package e2e

import (
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse-gateway/gatehouse/internal/servers"
)

// The tests look at the records themselves, so that what they see does not lean
// on the code that wrote them.

func redisOf(t testing.TB, server *servers.Redis) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { client.Close() })
	return client
}

// sessionKeys lists the keys of the sessions that the store holds.
func sessionKeys(t testing.TB, server *servers.Redis) []string {
	t.Helper()
	keys, err := redisOf(t, server).Keys(t.Context(), "gatehouse:s:*").Result()
	if err != nil {
		t.Fatalf("listing the sessions: %v", err)
	}
	return keys
}

// generation reads the generation of the only session that the store holds.
func generation(t testing.TB, server *servers.Redis) int {
	t.Helper()
	keys := sessionKeys(t, server)
	if len(keys) != 1 {
		t.Fatalf("the store holds %d sessions, want one: %q", len(keys), keys)
	}
	text, err := redisOf(t, server).HGet(t.Context(), keys[0], "g").Result()
	if err != nil {
		t.Fatalf("reading the generation: %v", err)
	}
	number, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("the generation is %q: %v", text, err)
	}
	return number
}
