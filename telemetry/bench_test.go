package telemetry_test

import (
	"testing"
	"time"

	"github.com/isobar-go/isobar/telemetry"
)

func BenchmarkState(b *testing.B) {
	s := newStore()
	s.Observe(at(1), busy, 0)
	b.ReportAllocs()
	for b.Loop() {
		if !s.State().SeenAny {
			b.Fatal("nothing seen")
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	for name, ranks := range map[string][]rank{
		"plain": nil,
		"ranks": {{ID: 0, Running: v(1), KVShare: v(0.1)}, {ID: 1, Running: v(2)}, {ID: 2, Running: v(3)},
			{ID: 3, Running: v(4)}},
	} {
		b.Run(name, func(b *testing.B) {
			s, in, now := newStore(), busy, at(0)
			in.Ranks = ranks
			in.Epoch = "a"
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(time.Millisecond)
				if s.Observe(now, in, 1).Dropped != "" {
					b.Fatal("dropped")
				}
			}
		})
	}
}

func BenchmarkStateWhileObserving(b *testing.B) {
	s := newStore()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		now := at(0)
		for i := 0; pb.Next(); i++ {
			if i%64 == 0 {
				now = now.Add(time.Millisecond)
				s.Observe(now, busy, 1)
			}
			_ = telemetry.Limits{}.Of(s.State().Running, now)
		}
	})
}
