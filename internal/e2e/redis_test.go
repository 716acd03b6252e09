package e2e

import (
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse-gateway/gatehouse/internal/servers"
)

// generation reads the generation of the only session that the store holds. It
// looks at the record itself, so that what it says does not lean on the code
// that wrote it.
func generation(t testing.TB, server *servers.Redis) int {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer client.Close()
	keys, err := client.Keys(t.Context(), "gatehouse:s:*").Result()
	if err != nil {
		t.Fatalf("listing the sessions: %v", err)
	}
	if len(keys) != 1 {
		t.Fatalf("the store holds %d sessions, want one: %q", len(keys), keys)
	}
	text, err := client.HGet(t.Context(), keys[0], "g").Result()
	if err != nil {
		t.Fatalf("reading the generation: %v", err)
	}
	number, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("the generation is %q: %v", text, err)
	}
	return number
}
