package redis

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/gatehouse-gateway/gatehouse/internal/servers"
)

// server is the Redis that most tests share, each with a prefix of its own.
var server *servers.Redis

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "gatehouse-redis-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if server, err = servers.NewRedis(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	server.Kill()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
