package admission_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
)

func BenchmarkGateCheck(b *testing.B) {
	g := newGate(b, admission.SeedConfig{Max: 2})
	for e := range uint64(512) {
		g.Take(e, e, 0, 1)
	}
	b.ReportAllocs()
	e := uint64(0)
	for b.Loop() {
		e = (e + 1) % 512
		g.Check(e, e, 0, 2)
	}
}

// seedCycle observes an endpoint, takes a seed of a new group there and is refused a second one.
func seedCycle(g *admission.Gate) func() {
	i := int64(0)
	return func() {
		i++
		now := i * int64(10*time.Millisecond)
		e := uint64(i % 64)
		g.Observed(e, now-1)
		g.Take(e, uint64(i), now-1, now)
		g.Take(e, uint64(i)+1, now-1, now)
	}
}

func BenchmarkGateTake(b *testing.B) {
	cycle := seedCycle(newGate(b, admission.SeedConfig{Max: 1}))
	for range 10_000 {
		cycle()
	}
	b.ReportAllocs()
	for b.Loop() {
		cycle()
	}
}

func BenchmarkSurvey512(b *testing.B) {
	cfg := admission.SeedConfig{Max: 2}
	facts := make([]admission.SeedFacts, 512)
	for i := range facts {
		facts[i] = admission.SeedFacts{Waiting: float64(i % 3), Known: true, Fresh: true, Complete: true, BelowCap: true}
	}
	b.ReportAllocs()
	for b.Loop() {
		s := cfg.Survey()
		for i := range facts {
			s.Add(facts[i])
		}
		if s.Result(false) != admission.SeedsOnly {
			b.Fatal("wrong result")
		}
	}
}

func TestGateAllocatesNothingInSteadyState(t *testing.T) {
	cycle := seedCycle(newGate(t, admission.SeedConfig{Max: 1}))
	for range 10_000 {
		cycle()
	}
	require.Zero(t, testing.AllocsPerRun(2000, cycle))
}
