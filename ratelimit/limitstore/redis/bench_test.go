package redis

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/redisconn"
	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore"
	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore/storetest"
)

func BenchmarkDecide32Callers(b *testing.B)       { benchmark(b, 32, 1_000) }
func BenchmarkDecide64Callers(b *testing.B)       { benchmark(b, 64, 1_000) }
func BenchmarkDecide32CallersHotKey(b *testing.B) { benchmark(b, 32, 1) }
func BenchmarkDecideAlone(b *testing.B)           { benchmark(b, 1, 1_000) }

func benchmark(b *testing.B, callers, keys int) {
	s := open(b, redisconn.Options{Address: server.Addr, Timeout: 10 * time.Second})
	limits := make([]limitstore.Limit, keys)
	for i := range limits {
		limits[i] = storetest.Limit(1<<40, 1)
	}
	storetest.Ask(b, s, limits[0])
	before, cpu := commandCalls(b, s, "evalsha"), serverCPU(b, s)
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			d := &limitstore.Decision{Limits: make([]limitstore.Limit, 1), States: make([]limitstore.State, 1)}
			for i := c; i < b.N; i += callers {
				d.Limits[0] = limits[i%keys]
				if err := s.Decide(b.Context(), d); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(commandCalls(b, s, "evalsha")-before)/float64(b.N), "commands/op")
	b.ReportMetric((serverCPU(b, s)-cpu)*1e6/float64(b.N), "redis-cpu-us/op")
}

// serverCPU returns the seconds of processor time that the server has used.
func serverCPU(b *testing.B, s *Store) float64 {
	m := s.conn.Client().InfoMap(b.Context(), "cpu").Val()
	var sum float64
	for _, name := range []string{"used_cpu_sys", "used_cpu_user"} {
		sum += parseFloat(m["CPU"][name])
	}
	return sum
}

func parseFloat(s string) float64 {
	f, _ := strconv.ParseFloat(s, 64)
	return f
}
