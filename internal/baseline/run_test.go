package baseline_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/internal/baseline"
	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/workload"
	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/router"
)

// service is a small world in which everything happens that a chooser may meet.
func service(t testing.TB, m world.Maker, seed uint64) (world.Config, world.Source) {
	t.Helper()
	h100, _ := sim.ProfileByName("h100-8b")
	a100, _ := sim.ProfileByName("a100-8b")
	s, err := workload.BuildScenario("shared-prefixes", workload.Size{Seed: seed, Requests: 300, Endpoints: 4})
	require.NoError(t, err)
	src, err := s.Source()
	require.NoError(t, err)
	cfg := world.Config{
		Seed: seed, Engines: []world.Engine{{Profile: h100}, {Profile: a100}, {Profile: h100}, {Profile: h100}}, Gateways: 2, Retries: 5, Chooser: m,
		Telemetry: world.Telemetry{Period: 500 * time.Millisecond, Loss: 0.1},
		Incidents: []world.Incident{
			{Kind: world.Drain, Engine: 0, At: time.Second, For: 4 * time.Second},
			{Kind: world.Die, Engine: 1, At: 2 * time.Second, For: 5 * time.Second, Notice: 500 * time.Millisecond},
			{Kind: world.Restart, Engine: 2, At: 3 * time.Second, For: time.Second},
			{Kind: world.Silent, Engine: 3, At: time.Second, For: 5 * time.Second},
		},
	}
	return cfg, world.FromWorkload(src)
}

// In a world with everything in it every request ends, the books close, nothing goes where it must not, and a run can be repeated.
func TestRuns(t *testing.T) {
	for _, name := range baseline.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, err := baseline.ByName(name)
			require.NoError(t, err)
			run := func() *world.Result {
				cfg, src := service(t, m, 1)
				res, err := world.Run(cfg, src)
				require.NoError(t, err)
				return res
			}
			res := run()
			finished, used := 0, map[int]int{}
			for _, r := range res.Records {
				require.NotEqual(t, world.Open, r.Outcome)
				require.NotEqual(t, world.Unfinished, r.Outcome)
				if r.Outcome == world.Finished {
					finished++
					used[r.Engine]++
				}
				if r.Engine == 0 && r.Sent != world.Never {
					require.False(t, r.Sent >= time.Second && r.Sent < 5*time.Second, "engine 0 drains at %v", r.Sent)
				}
				if r.Engine == 1 && r.Sent != world.Never {
					require.False(t, r.Sent >= 2500*time.Millisecond && r.Sent < 7*time.Second, "engine 1 is gone at %v", r.Sent)
				}
			}
			require.Greater(t, finished, 290)
			require.GreaterOrEqual(t, len(used), 3, "some leave out the slow one")
			require.Equal(t, res.Digest(), run().Digest())
		})
	}
}

// A lone request takes as long as the oracle says, but for the network.
func TestOracleIsRight(t *testing.T) {
	p, _ := sim.ProfileByName("h100-8b")
	m, err := baseline.ByName("oracle")
	require.NoError(t, err)
	res, err := world.Run(world.Config{Engines: []world.Engine{{Profile: p}}, Chooser: m}, world.NewList([]world.Arrival{
		{Ask: world.Ask{PromptTokens: 5000, ExpectedOutputTokens: 300}, OutputTokens: 300},
	}))
	require.NoError(t, err)
	r := &res.Records[0]
	e2e, _ := r.E2E()
	ttft, _ := r.TTFT()
	require.InDelta(t, float64(e2e)/1e6-2, r.Terms.Own(), 0.001)
	require.InDelta(t, float64(ttft)/1e6-2, r.Terms.Start(), 0.001)
}

// Watching changes nothing; each oracle has no regret by its own measure, and a rule that looks away has.
func TestWatch(t *testing.T) {
	mean := func(name string) (own, all float64) {
		m, err := baseline.ByName(name)
		require.NoError(t, err)
		n := 0.0
		cfg, src := service(t, baseline.Watch(m, func(r baseline.Regret) {
			require.GreaterOrEqual(t, r.Own, 0.0)
			require.GreaterOrEqual(t, r.All, 0.0)
			require.GreaterOrEqual(t, r.Chosen, r.Own)
			if !math.IsInf(r.Own, 1) {
				own += r.Own
				all += r.All
				n++
			}
		}), 2)
		watched, err := world.Run(cfg, src)
		require.NoError(t, err)
		require.Greater(t, n, 290.0)
		cfg, src = service(t, m, 2)
		alone, err := world.Run(cfg, src)
		require.NoError(t, err)
		require.Equal(t, alone.Digest(), watched.Digest(), name)
		return own / n, all / n
	}
	own, others := mean("oracle")
	require.Zero(t, own)
	require.Positive(t, others)
	own, others = mean("oracle-others")
	require.Positive(t, own)
	require.Zero(t, others)
	own, others = mean("random")
	require.Positive(t, own)
	require.Positive(t, others)

	refuse := func(world.Env) (world.Chooser, error) { return nil, router.ErrNoEndpoints }
	_, err := baseline.Watch(refuse, func(baseline.Regret) {})(world.Env{})
	require.ErrorIs(t, err, router.ErrNoEndpoints)
}
