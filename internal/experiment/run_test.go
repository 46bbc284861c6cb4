package experiment_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/internal/experiment"
	"github.com/isobar-go/isobar/internal/workload"
)

func all(t *testing.T, g experiment.Grid) ([]experiment.Saturation, []experiment.Result) {
	t.Helper()
	var results []experiment.Result
	found, err := experiment.Run(context.Background(), g, func(r experiment.Result) error {
		results = append(results, r)
		return nil
	})
	require.NoError(t, err)
	return found, results
}

func TestResultsDoNotDependOnParallelism(t *testing.T) {
	g := small(t)
	g.Loads, g.Periods, g.Parallel = g.Loads[1:], g.Periods[:1], 1
	wantFound, want := all(t, g)
	require.Len(t, want, g.Cells())
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, n := range []int{1, 4} {
		runtime.GOMAXPROCS(n)
		g.Parallel = 0
		found, got := all(t, g)
		assert.Equal(t, wantFound, found)
		assert.Equal(t, want, got)
	}
}

func TestOrderAndProgress(t *testing.T) {
	g := small(t)
	w, err := experiment.BuiltIn("interactive-batch", 700)
	require.NoError(t, err)
	g.Workloads = []experiment.Workload{w}
	g.Policies[0].Watched, g.Policies[2].Seeds = true, 1
	var steps []experiment.Progress
	g.Progress = func(p experiment.Progress) { steps = append(steps, p) }
	g.Keep = func(c experiment.Cell) bool { return c.Seed == 2 && c.Policy == "pressure" }
	found, got := all(t, g)
	require.Len(t, found, 1)
	require.Len(t, got, g.Cells())
	assert.Equal(t, experiment.Progress{Searching: true, Done: 1, Total: 1}, steps[0])
	assert.Equal(t, experiment.Progress{Done: len(got), Total: g.Cells()}, steps[len(steps)-1])
	i := 0
	for _, load := range g.Loads {
		for k, seed := range g.Seeds {
			for _, gateways := range g.Gateways {
				for _, period := range g.Periods {
					for _, p := range g.Policies {
						if k > 0 && p.Seeds == 1 {
							continue
						}
						r := got[i]
						i++
						want := experiment.Cell{Group: experiment.Group{
							Workload: "interactive-batch", Fleet: g.Fleets[0].Name, Load: load, Period: period, Gateways: gateways,
						}, Policy: p.Name, Seed: seed, Speed: load * found[0].Speed}
						require.Equal(t, want, r.Cell)
						assert.Equal(t, g.Keep(r.Cell), r.Detail != nil)
						assert.Equal(t, p.Watched, r.Regret.Choices == r.Figures.Requests, r.Regret)
						if p.Watched {
							assert.Greater(t, r.Regret.Own, 0.0)
						}
						require.Len(t, r.Classes, 2)
						assert.Equal(t, r.Figures.Requests, r.Classes[0].Figures.Requests+r.Classes[1].Figures.Requests)
						if r.Detail != nil {
							assert.Equal(t, r.Figures, r.Detail.Figures(g.SLO))
							assert.NotEmpty(t, r.Detail.Engines[0].Series)
						}
					}
				}
			}
		}
	}
}

func TestSameArrivalsForAllPolicies(t *testing.T) {
	g := small(t)
	g.Workloads, g.Gateways, g.Periods, g.Loads = g.Workloads[:1], nil, nil, nil
	g.Keep = func(experiment.Cell) bool { return true }
	_, got := all(t, g)
	for k := 0; k < len(got); k += len(g.Policies) {
		for _, other := range got[k+1 : k+len(g.Policies)] {
			for i := range other.Detail.Records {
				require.Equal(t, got[k].Detail.Records[i].Arrival, other.Detail.Records[i].Arrival)
				require.Equal(t, got[k].Detail.Records[i].PromptTokens, other.Detail.Records[i].PromptTokens)
			}
		}
	}
	assert.NotEqual(t, got[0].Detail.Records[9].Arrival, got[len(g.Policies)].Detail.Records[9].Arrival, "seeds differ")
}

func TestRunFails(t *testing.T) {
	g := small(t)
	g.Gateways, g.Periods = nil, nil
	bad := errors.New("no")
	n := 0
	_, err := experiment.Run(context.Background(), g, func(experiment.Result) error {
		if n++; n == 3 {
			return bad
		}
		return nil
	})
	require.ErrorIs(t, err, bad)
	assert.Equal(t, 3, n)

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = experiment.Run(ctx, g, func(experiment.Result) error { return nil })
	require.ErrorIs(t, err, context.Canceled)

	g = small(t)
	build := g.Workloads[0].Build
	g.Workloads[0].Build = func(f experiment.Fleet, seed uint64, speed float64) (workload.Scenario, error) {
		if seed == 2 {
			return workload.Scenario{}, bad
		}
		return build(f, seed, speed)
	}
	_, err = experiment.Run(context.Background(), g, func(experiment.Result) error { return nil })
	require.ErrorIs(t, err, bad)
	assert.ErrorContains(t, err, "experiment: pressure, shared-prefixes, 2 x h100-8b/a100-8b, 60 %, polls every 100ms, 1 gateway, seed 2: no")
}

func TestInOrder(t *testing.T) {
	do := func(i int) (int, error) {
		if i == 17 {
			return 0, errors.New("17")
		}
		if i%2 == 0 {
			runtime.Gosched()
		}
		return i * i, nil
	}
	for _, parallel := range []int{1, 3} {
		var got []int
		err := experiment.InOrder(context.Background(), parallel, slices.Values([]int{0, 1, 2, 3, 4, 5}), do, func(v int) error {
			got = append(got, v)
			return nil
		})
		require.NoError(t, err)
		assert.Equal(t, []int{0, 1, 4, 9, 16, 25}, got)
		n := 0
		endless := func(yield func(int) bool) {
			for i := 0; yield(i); i++ {
			}
		}
		err = experiment.InOrder(context.Background(), parallel, endless, do, func(int) error { n++; return nil })
		require.EqualError(t, err, "17")
		assert.Equal(t, 17, n)
	}
}

func TestValidate(t *testing.T) {
	ok := small(t)
	require.NoError(t, ok.Validate())
	for _, c := range []struct {
		change func(g *experiment.Grid)
		want   string
	}{
		{func(g *experiment.Grid) { g.Policies = nil }, "Grid.Policies is empty"},
		{func(g *experiment.Grid) { g.Policies = append(g.Policies, g.Policies[0]) }, `Grid.Policies[3].Name = "pressure" is there twice`},
		{func(g *experiment.Grid) { g.Policies = []experiment.Policy{{}} }, "Grid.Policies[0].Name is empty"},
		{func(g *experiment.Grid) { g.Policies = []experiment.Policy{{Name: "x"}} }, "Grid.Policies[0].Make is nil"},
		{func(g *experiment.Grid) { g.Workloads = []experiment.Workload{{Name: "x"}} }, "Grid.Workloads[0].Build is nil"},
		{func(g *experiment.Grid) { g.Fleets = []experiment.Fleet{{Name: "x"}} }, "Grid.Fleets[0].Engines is empty"},
		{func(g *experiment.Grid) { g.Policies[0].Seeds = -1 }, "Grid.Policies[0].Seeds = -1 is negative"},
		{func(g *experiment.Grid) { g.Workloads[1].Seeds = -2 }, "Grid.Workloads[1].Seeds = -2 is negative"},
		{func(g *experiment.Grid) { g.Loads = []float64{0} }, "Grid.Loads[0] = 0 is not above 0"},
		{func(g *experiment.Grid) { g.Periods = []time.Duration{-1} }, "Grid.Periods[0] = -1ns is not above 0"},
		{func(g *experiment.Grid) { g.Gateways = []int{0} }, "Grid.Gateways[0] = 0 is below 1"},
		{func(g *experiment.Grid) { g.Seeds = []uint64{7, 7} }, "Grid.Seeds[1] = 7 is there twice"},
		{func(g *experiment.Grid) { g.Parallel = -1 }, "Grid.Parallel = -1 is negative"},
		{func(g *experiment.Grid) { g.Search.Keep = 1 }, "Grid.Search.Keep = 1 is not above 0 and below 1"},
		{func(g *experiment.Grid) { g.Search.Stretch = 0.5 }, "Grid.Search.Stretch = 0.5"},
		{func(g *experiment.Grid) { g.Search.Light = 100 }, "Grid.Search.Light = 100"},
	} {
		g := small(t)
		c.change(&g)
		err := g.Validate()
		if assert.ErrorContains(t, err, c.want) {
			_, err2 := experiment.Run(context.Background(), g, nil)
			assert.EqualError(t, err2, err.Error())
		}
	}
}

func TestMakersRefuse(t *testing.T) {
	for want, err := range map[string]error{
		`workload "x" is not one of`:     second(experiment.BuiltIn("x", 1)),
		"requests is -1":                 second(experiment.BuiltIn("agentic", -1)),
		"n is 0":                         second(experiment.NewFleet(0, "h100-8b")),
		"profiles is empty":              second(experiment.NewFleet(1)),
		`profile "x" is not one of rtx`:  second(experiment.NewFleet(1, "x")),
		`policy "x" is not one of press`: second(experiment.PolicyByName("x")),
		"trace a has no requests":        second(experiment.FromTrace("a", nil, experiment.Replay{})),
		"Jitter is -1ns":                 second(experiment.FromTrace("a", make(workload.Workload, 1), experiment.Replay{Jitter: -1})),
		"SessionRate is -1":              second(experiment.FromTrace("a", make(workload.Workload, 1), experiment.Replay{SessionRate: -1})),
	} {
		assert.ErrorContains(t, err, "experiment: "+want)
	}
}

func second[T any](_ T, err error) error { return err }

func TestFromTrace(t *testing.T) {
	f, err := experiment.NewFleet(2, "h100-8b", "rtx4090-8b")
	require.NoError(t, err)
	w := workload.Workload{
		{ID: 0, Arrival: 0, PromptTokens: 100, OutputTokens: 40}, {ID: 1, Arrival: 10 * time.Second, PromptTokens: 41_400, OutputTokens: 9},
		{ID: 2, Arrival: 20 * time.Second, PromptTokens: 41_400, OutputTokens: 8},
	}
	trace, err := experiment.FromTrace("three", w, experiment.Replay{Jitter: time.Second, Guess: workload.Guess{Bias: 2}})
	require.NoError(t, err)
	s, err := trace.Build(f, 1, 2)
	require.NoError(t, err)
	require.Len(t, s.Requests, 2, "one does not fit into the smaller engine")
	for i, at := range []time.Duration{0, 10 * time.Second} {
		assert.GreaterOrEqual(t, s.Requests[i].Arrival, at)
		assert.Less(t, s.Requests[i].Arrival, at+500*time.Millisecond)
	}
	assert.EqualValues(t, 80, s.Requests[0].ExpectedOutputTokens)
	again, err := trace.Build(f, 1, 2)
	require.NoError(t, err)
	assert.Equal(t, s, again)
	other, err := trace.Build(f, 2, 2)
	require.NoError(t, err)
	assert.NotEqual(t, s, other)

	w = workload.Workload{{ID: 0, PromptTokens: 1, OutputTokens: 1, Session: 1}, {ID: 1, Arrival: 5, PromptTokens: 1, OutputTokens: 1, Session: 2}}
	trace, err = experiment.FromTrace("sessions", w, experiment.Replay{SessionRate: 0.5, Closed: true})
	require.NoError(t, err)
	slow, err := trace.Build(f, 1, 1)
	require.NoError(t, err)
	fast, err := trace.Build(f, 1, 10)
	require.NoError(t, err)
	assert.True(t, slow.Closed)
	assert.InEpsilon(t, 10, float64(slow.Requests[1].Arrival)/float64(fast.Requests[1].Arrival), 1e-6)
}

// Every built-in workload plays under the default policy, incidents and all.
func TestBuiltIns(t *testing.T) {
	f, err := experiment.NewFleet(4, "h100-8b")
	require.NoError(t, err)
	g := experiment.Grid{
		Policies: []experiment.Policy{experiment.Default()}, Fleets: []experiment.Fleet{f}, Seeds: []uint64{1},
		Search: experiment.Search{Light: 0.5, Most: 1, Tolerance: 1},
	}
	for _, name := range workload.ScenarioNames() {
		w, err := experiment.BuiltIn(name, 200)
		require.NoError(t, err)
		g.Workloads = append(g.Workloads, w)
	}
	_, got := all(t, g)
	require.Len(t, got, len(g.Workloads))
	for _, r := range got {
		assert.Equal(t, r.Figures.Requests, r.Figures.Finished+r.Figures.Failed, r.Workload)
		assert.LessOrEqual(t, r.Figures.Failed, r.Figures.Requests/10, r.Workload)
	}
}

func ExampleRun() {
	fleet, _ := experiment.NewFleet(2, "h100-8b")
	shared, _ := experiment.BuiltIn("shared-prefixes", 400)
	table := experiment.NewTable("")
	_, err := experiment.Run(context.Background(), experiment.Grid{
		Policies:  []experiment.Policy{experiment.Default(), experiment.RoundRobin()},
		Workloads: []experiment.Workload{shared}, Fleets: []experiment.Fleet{fleet}, Seeds: []uint64{1, 2, 3},
	}, func(r experiment.Result) error {
		table.Add(r)
		return nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	rows := table.Rows()
	fmt.Println(rows[0].Group)
	fmt.Println("more of the prompts is found cached:", rows[0].Stat("hit").Mean > rows[1].Stat("hit").Mean)
	// Output:
	// shared-prefixes, 2 x h100-8b, 80 %, polls every 1s, 1 gateway
	// more of the prompts is found cached: true
}
