package redis

import (
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

func BenchmarkGet(b *testing.B) {
	s := open(b, server.Addr, "")
	key := mustStart(b, s, "u1")
	perOp(b, s, func() error {
		_, _, err := s.Get(b.Context(), key)
		return err
	})
}

func BenchmarkRefresh(b *testing.B) {
	s := open(b, server.Addr, "")
	key := mustStart(b, s, "u1")
	generation := uint32(0)
	perOp(b, s, func() error {
		rec, err := s.Refresh(b.Context(), key, sessionstore.Refresh{Generation: generation, Lifetime: time.Hour, Device: "Agent/1.0", IP: "192.0.2.1"})
		generation = rec.Generation
		return err
	})
}

func BenchmarkGetParallel(b *testing.B) {
	s := open(b, server.Addr, "")
	key := mustStart(b, s, "u1")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, _, err := s.Get(b.Context(), key); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// perOp reports also the scripts that the server ran for one operation.
func perOp(b *testing.B, s *Store, op func() error) {
	must(b, op()) // the server knows the script
	before := info(b, s)
	b.ReportAllocs()
	for b.Loop() {
		if err := op(); err != nil {
			b.Fatal(err)
		}
	}
	after := info(b, s)
	b.ReportMetric(float64(after["evalsha"]+after["eval"]-before["evalsha"]-before["eval"])/float64(b.N), "trips/op")
}
