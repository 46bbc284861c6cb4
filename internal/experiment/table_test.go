package experiment_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/internal/experiment"
	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/router"
)

func TestStatByHand(t *testing.T) {
	assert.Equal(t, experiment.Stat{}, experiment.NewStat(nil))
	assert.Equal(t, experiment.Stat{N: 1, Mean: 7}, experiment.NewStat([]float64{7}))
	s := experiment.NewStat([]float64{1, 3}) // deviation sqrt(2), error of the mean 1
	assert.Equal(t, 2.0, s.Mean)
	assert.InDelta(t, 12.7062, s.Half, 1e-4)
	s = experiment.NewStat([]float64{2, 4, 4, 4, 5}) // deviation sqrt(1.2), error of the mean 0.4899
	assert.InDelta(t, 3.8, s.Mean, 1e-9)
	assert.InDelta(t, 2.7764*math.Sqrt(1.2/5), s.Half, 1e-4)
}

func TestQuantiles(t *testing.T) {
	for df, want := range map[int]float64{1: 12.7062, 4: 2.7764, 30: 2.0423, 31: 2.0395, 60: 2.0003, 120: 1.9799, 1e6: 1.9600} {
		assert.InDelta(t, want, experiment.Quantile95(df), 1e-4, df)
	}
}

// Of intervals of 95 %, about 95 % cover the mean.
func TestIntervalsCover(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	covered := 0
	const rounds = 4000
	for range rounds {
		values := make([]float64, 5)
		for i := range values {
			values[i] = 10 + 3*r.NormFloat64()
		}
		if s := experiment.NewStat(values); math.Abs(s.Mean-10) <= s.Half {
			covered++
		}
	}
	assert.InDelta(t, 0.95, float64(covered)/rounds, 0.012)
}

// place is a group of the tests, cell a result there.
func place(load float64, period time.Duration, gateways int) experiment.Group {
	return experiment.Group{Workload: "w", Fleet: "f", Load: load, Period: period, Gateways: gateways}
}

func cell(g experiment.Group, policy string, seed uint64, f world.Figures) experiment.Result {
	return experiment.Result{Cell: experiment.Cell{Group: g, Policy: policy, Seed: seed}, Figures: f}
}

func times(ttft, e2e, goodput, hit float64) world.Figures {
	return world.Figures{
		TTFT: world.Dist{Mean: ttft, P50: ttft, P99: 10 * ttft}, E2E: world.Dist{Mean: e2e}, Goodput: goodput, HitShare: hit,
	}
}

func TestRows(t *testing.T) {
	table := experiment.NewTable("oracle")
	g := place(0.8, time.Second, 1)
	table.Add(cell(g, "a", 1, times(10, 110, 1, 0)))
	table.Add(cell(g, "oracle", 1, times(10, 100, 1, 0)))
	second := cell(g, "a", 2, times(30, 260, 1, 0))
	second.Classes = []experiment.ClassFigures{{Class: router.ClassBatch, Figures: times(5, 5, 0, 0)}}
	second.Regret = experiment.ChoiceRegret{Choices: 3, Own: 0.2, Others: 0.4}
	table.Add(second)
	table.Add(cell(g, "oracle", 2, times(10, 200, 1, 0)))
	table.Add(cell(place(0.9, time.Second, 1), "a", 1, times(1, 1, 1, 0)))
	rows := table.Rows()
	require.Len(t, rows, 4)
	assert.Equal(t, []string{"a", "oracle", "a", "a"}, []string{rows[0].Policy, rows[1].Policy, rows[2].Policy, rows[3].Policy})
	assert.Equal(t, "batch", rows[2].Class)
	assert.Equal(t, 20.0, rows[0].Stat("ttft_mean").Mean)
	assert.InDelta(t, 12.7062*10, rows[0].Stat("ttft_mean").Half, 1e-3)
	assert.InDelta(t, 0.2, rows[0].Regret.Mean, 1e-9, "10 and 30 %")
	assert.Equal(t, experiment.Stat{N: 1, Mean: 0.2}, rows[0].ChoiceRegret)
	assert.Equal(t, experiment.Stat{N: 1, Mean: 0.4}, rows[0].OthersRegret)
	assert.Equal(t, experiment.Stat{N: 2}, rows[1].Regret)
	assert.Zero(t, rows[3].Regret, "no oracle there")
	assert.Zero(t, rows[0].Stat("nothing"))
}

func TestMetricsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range experiment.Metrics() {
		assert.False(t, seen[m.Key], m.Key)
		seen[m.Key] = true
		assert.NotEmpty(t, m.Title)
		assert.Zero(t, m.Value(&world.Figures{}), m.Key)
	}
}

func TestAccept(t *testing.T) {
	table := experiment.NewTable("oracle")
	add := func(g experiment.Group, policy string, f world.Figures) {
		for seed := range uint64(2) {
			table.Add(cell(g, policy, seed, f))
		}
	}
	now, second, four := place(0.8, 100*time.Millisecond, 1), place(0.8, time.Second, 1), place(0.5, 100*time.Millisecond, 4)
	add(now, "us", times(70, 100, 0.9, 0.5))
	add(now, "quick", times(69, 120, 0.8, 0.1))
	add(now, "warm", times(200, 105, 0.95, 0.6))
	add(now, "oracle", times(10, 99, 1, 1))
	add(second, "us", times(90, 90, 1, 1))
	add(second, "warm", times(200, 100, 1, 1))
	add(four, "us", times(70, 1, 1, 1))
	add(four, "own", times(101, 1, 1, 1))
	got := experiment.Accept(table.Rows(), experiment.Roles{
		Candidate: "us", Baselines: []string{"quick", "warm"}, OwnOnly: []string{"own"}, Shared: func(w string) bool { return w == "w" },
	})
	type line struct {
		key, against string
		value        float64
		holds        bool
	}
	var lines []line
	for _, v := range got {
		lines = append(lines, line{v.Key, v.Against, math.Round(v.Value*1e4) / 1e4, v.Holds})
		assert.InDelta(t, 0, v.Half, 1e-9)
	}
	assert.Equal(t, []line{
		{"ttft-mean", "quick", 0.0145, true}, {"ttft-mean", "warm", -0.55, true},
		{"ttft-p50", "quick", 0.0145, true}, {"ttft-p50", "warm", -0.55, true},
		{"ttft-p99", "quick", 0.0145, true}, {"ttft-p99", "warm", -0.55, true},
		{"e2e-mean", "warm", -0.0476, true}, {"e2e-mean", "warm", -0.1, true},
		{"goodput", "warm", 0.05, false}, {"goodput", "warm", 0, true},
		{"e2e-busy", "warm", -0.0476, false}, {"e2e-busy", "warm", -0.1, true},
		{"ttft-shared", "quick", 0.0145, false}, {"ttft-shared", "warm", -0.55, true},
		{"hit", "warm", 0.1667, false}, {"hit", "warm", 0, true},
		{"gateways-fresh", "own", -0.3069, true},
		{"regret", "oracle", 0.0101, true},
		{"aging", "polls every 100 ms", 0.2857, false},
	}, lines)
	judged := map[string]experiment.Judgement{}
	for _, j := range experiment.Judge(got) {
		judged[j.Key] = j
	}
	require.Len(t, judged, len(experiment.Criteria()))
	j := judged["hit"]
	assert.Equal(t, []int{2, 1}, []int{j.Places, j.Holding})
	assert.False(t, j.Passes())
	assert.InDelta(t, 0.1667, j.Worst.Value, 1e-4)
	j = judged["ttft-p99"]
	assert.True(t, j.Passes())
	j = judged["gateways-old"]
	assert.False(t, j.Passes(), "never looked at")
}
