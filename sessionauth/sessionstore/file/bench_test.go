package file

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

func BenchmarkGet(b *testing.B) {
	s := openAt(b, newPath(b))
	key := mustStart(b, s, "u1")
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := s.Get(b.Context(), key); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetParallel(b *testing.B) {
	s := openAt(b, newPath(b))
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

func BenchmarkRefresh(b *testing.B) {
	s := openAt(b, newPath(b))
	key := mustStart(b, s, "u1")
	before := transactions(b, s)
	generation := uint32(0)
	b.ReportAllocs()
	for b.Loop() {
		rec, err := s.Refresh(b.Context(), key, refreshOf(generation))
		if err != nil {
			b.Fatal(err)
		}
		generation = rec.Generation
	}
	b.ReportMetric(float64(transactions(b, s)-before)/float64(b.N), "syncs/op")
}

// BenchmarkRefreshParallel has 50 clients a processor, each with a session.
func BenchmarkRefreshParallel(b *testing.B) {
	s := openAt(b, newPath(b))
	keys := startMany(b, s, 512, time.Hour)
	before := transactions(b, s)
	var next atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	b.SetParallelism(50)
	b.RunParallel(func(pb *testing.PB) {
		key := keys[int(next.Add(1))%len(keys)]
		for pb.Next() {
			rec, _, err := s.Get(b.Context(), key)
			if err == nil {
				_, err = s.Refresh(b.Context(), key, refreshOf(rec.Generation))
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(transactions(b, s)-before)/float64(b.N), "syncs/op")
}

func refreshOf(generation uint32) sessionstore.Refresh {
	return sessionstore.Refresh{Generation: generation, Lifetime: time.Hour, Device: "Agent/1.0", IP: "192.0.2.1"}
}
