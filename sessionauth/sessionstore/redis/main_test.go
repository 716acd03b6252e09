package redis

import (
	"testing"

	"github.com/gatehouse-gateway/gatehouse/internal/servers"
)

// server is the Redis that most tests share, each with a prefix of its own.
var server *servers.Redis

func TestMain(m *testing.M) { servers.MainRedis(m, &server) }
