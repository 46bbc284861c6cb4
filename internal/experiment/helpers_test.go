package experiment_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/internal/experiment"
	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/workload"
	"github.com/isobar-go/isobar/internal/world"
)

// serial is an engine that serves one request at a time: 10 ms and 1 ms for each prompt token.
func serial() experiment.Fleet {
	return experiment.Fleet{Name: "serial", Engines: []world.Engine{{Profile: sim.Profile{
		Name: "serial", Base: 10, PerToken: 1, KVTokens: 4096, BlockSize: 16, MaxSeqs: 1, Budget: 512,
	}}}}
}

// clock is a request of 90 tokens, 100 ms on a serial engine, each second.
func clock(n int) experiment.Workload {
	return experiment.Workload{Name: "clock", Build: func(_ experiment.Fleet, _ uint64, speed float64) (workload.Scenario, error) {
		var w workload.Workload
		for i := range n {
			w = append(w, workload.Request{
				ID: uint64(i), Arrival: time.Duration(float64(i) / speed * 1e9), PromptTokens: 90, OutputTokens: 1,
			})
		}
		return workload.Scenario{Name: "clock", Requests: w}, nil
	}}
}

// small is a grid that takes a fraction of a second.
func small(t *testing.T) experiment.Grid {
	t.Helper()
	f, err := experiment.NewFleet(2, "h100-8b", "a100-8b")
	require.NoError(t, err)
	g := experiment.Grid{
		Policies: []experiment.Policy{experiment.Default(), experiment.RoundRobin()}, Fleets: []experiment.Fleet{f},
		Loads: []float64{0.6, 1.1}, Seeds: []uint64{1, 2}, Gateways: []int{1, 2}, Periods: []time.Duration{100 * time.Millisecond, time.Second},
	}
	oracle, err := experiment.PolicyByName(experiment.Oracle)
	require.NoError(t, err)
	g.Policies = append(g.Policies, oracle)
	for _, name := range []string{"shared-prefixes", "interactive-batch", "restart"} {
		w, err := experiment.BuiltIn(name, 600)
		require.NoError(t, err)
		g.Workloads = append(g.Workloads, w)
	}
	return g
}
