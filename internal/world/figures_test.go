package world_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/score"
)

func TestDist(t *testing.T) {
	require.Zero(t, world.NewDist(nil))
	require.Equal(t, world.Dist{N: 1, Mean: 7, P50: 7, P90: 7, P99: 7, Max: 7}, world.NewDist([]float64{7}))
	values := make([]float64, 101)
	for i := range values {
		values[i] = float64(100 - i)
	}
	require.Equal(t, world.Dist{N: 101, Mean: 50, P50: 50, P90: 90, P99: 99, Max: 100}, world.NewDist(values))
}

// Every figure of four requests by hand.
func TestSummarize(t *testing.T) {
	const s = time.Second
	records := []world.Record{
		{ // 1 s to the first token, 2 s for ten more: TPOT 200 ms
			Outcome: world.Finished, Tenant: "a", Session: "x", Engine: 0, Attempts: 1, PromptTokens: 100, Cached: 50, PredictedCached: 40, OutputTokens: 11,
			Arrival: s, Sent: s, Start: s, FirstToken: 2 * s, End: 4 * s, Deadline: 2 * s, Terms: score.Terms{Queue: 300, Prefill: 800}, Degraded: true,
		},
		{ // 1 s and 300 ms for ten more: TPOT 30 ms
			Outcome: world.Finished, Tenant: "b", Session: "x", Engine: 1, Attempts: 3, Preemptions: 2, PromptTokens: 300, OutputTokens: 11,
			Arrival: s, Sent: s, Start: s, FirstToken: 2 * s, End: 2300 * time.Millisecond, Deadline: 2 * s, Terms: score.Terms{Prefill: 500}, ColdLoad: true,
		},
		{Outcome: world.Rejected, Session: "x", Engine: -1, Arrival: s, Start: world.Never, End: s, Deadline: s},
		{Outcome: world.GaveUp, Session: "x", Engine: 1, Attempts: 1, Arrival: s, End: 9 * s, Start: 2 * s, PromptTokens: 600},
	}
	f := world.Summarize(records, world.SLO{}, nil)
	require.Equal(t, [6]int{4, 2, 1, 0, 1, 0}, [6]int{f.Requests, f.Finished, f.Rejected, f.Failed, f.GaveUp, f.Unfinished})
	require.Equal(t, [3]float64{1000, 115, 2150}, [3]float64{f.TTFT.Mean, f.TPOT.Mean, f.E2E.Mean})
	require.Equal(t, 0.25, f.Goodput)
	require.Equal(t, [2]float64{0.05, 0.04}, [2]float64{f.HitShare, f.PredictedHitShare})
	require.Equal(t, [3]int64{1000, 50, 22}, [3]int64{f.PromptTokens, f.CachedTokens, f.OutputTokens})
	require.Equal(t, [5]int{2, 2, 1, 3, 2}, [5]int{f.Preemptions, f.Retries, f.ColdLoads, f.Deadlines, f.Missed})
	require.Equal(t, 0.5, f.Churn, "0 to 1, then 1 to 1")
	fast, slow := 11/1.3, 11.0/3
	require.InDelta(t, (fast+slow)*(fast+slow)/2/(fast*fast+slow*slow), f.Jain, 1e-12)
	require.Equal(t, [3]float64{300, 500, -200}, [3]float64{f.StartError.Mean, f.StartError.Max, f.StartBias})
	require.Equal(t, 1, f.Degraded)

	require.Equal(t, 0.5, world.Summarize(records, world.SLO{TPOT: s, TTFT: s}, nil).Goodput)
	require.Zero(t, world.Summarize(records, world.SLO{TPOT: world.None}, nil).Goodput)
	b := world.Summarize(records, world.SLO{}, func(r *world.Record) bool { return r.Tenant == "b" })
	require.Equal(t, [2]float64{1, 1}, [2]float64{b.Goodput, b.Jain})
	require.Zero(t, world.Summarize(nil, world.SLO{}, nil).Goodput)

	r := world.Result{Records: records, Engines: []world.EngineResult{{Busy: 3 * s}, {Busy: s}}}
	require.Equal(t, 1.5, r.Figures(world.SLO{}).MaxWork)
}
