package workload

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var many = Load{Seed: 3, Requests: 20_000}

// within wants got to differ by at most the given share of want.
func within(t *testing.T, want, got, share float64, what string) {
	t.Helper()
	assert.InDelta(t, want, got, math.Abs(want)*share, what)
}

// poissonly wants the given rate to 4 standard errors, and the gaps of a Poisson process.
func poissonly(t *testing.T, rate float64, s Summary) {
	t.Helper()
	within(t, rate, s.Rate, 4/math.Sqrt(float64(s.Requests)), "rate")
	assert.InDelta(t, 1, s.GapCV, 0.04, "gap CV")
}

func TestTinyChats(t *testing.T) {
	s := Summarize(generate(t, TinyChats{Load: many}))
	poissonly(t, 40, s)
	within(t, 60, s.Input.P50, 0.05, "input p50")
	within(t, 82, s.Input.Mean, 0.05, "input mean")
	within(t, 80, s.Output.P50, 0.05, "output p50")
	within(t, 110, s.Output.Mean, 0.05, "output mean")
	assert.Zero(t, s.Hit)
}

func TestHeavyTail(t *testing.T) {
	w := generate(t, HeavyTail{Load: many})
	s := Summarize(w)
	poissonly(t, 6, s)
	within(t, 1300, s.Input.P50, 0.1, "input p50, the tail lifts it")
	assert.EqualValues(t, 120_000, s.Input.Max)
	assert.EqualValues(t, 8000, s.Output.Max)
	var in []float64
	tail, sum := 0, 0.0
	for i := range w {
		in = append(in, float64(w[i].PromptTokens))
		sum += in[i]
		if in[i] > 32_000 {
			tail++
		}
	}
	// Beyond 32,000 there is only the tail: 5 % x (8/32)^1.1.
	within(t, 0.05*math.Pow(0.25, 1.1), float64(tail)/20_000, 0.2, "tail")
	slices.Sort(in)
	top := 0.0
	for _, x := range in[len(in)*99/100:] {
		top += x
	}
	assert.InDelta(t, 0.24, top/sum, 0.04, "share of the longest 1 %")
}

func TestLongPrompts(t *testing.T) {
	w := generate(t, LongPrompts{Load: many})
	s := Summarize(w)
	within(t, 24_000, s.Input.P50, 0.02, "input p50")
	within(t, 25_100, s.Input.Mean, 0.02, "input mean")
	within(t, 150, s.Output.P50, 0.05, "output p50")
	within(t, math.Sqrt(15), s.GapCV, 0.02, "gap CV")
	within(t, 0.8, s.Rate, 0.01, "rate")
	for i := range w {
		require.Equal(t, time.Duration(i/16), w[i].Arrival/(20*time.Second))
		require.Less(t, w[i].Arrival%(20*time.Second), 100*time.Millisecond)
		require.EqualValues(t, i, w[i].ID)
	}
}

func TestColdStart(t *testing.T) {
	// A rate of 40 before, so that there is enough to count.
	w := generate(t, ColdStart{Load: Load{Seed: 3, Requests: 20_000, Rate: 40}})
	count := func(from, to time.Duration) float64 {
		return float64(len(w.Filter(func(r *Request) bool { return from <= r.Arrival && r.Arrival < to })))
	}
	within(t, 40*60, count(0, time.Minute), 4/math.Sqrt(2400), "calm")
	// The integral of 40 (1 + 9 x 2^(-t/30 s)) over the first half-life.
	rush := 40 * (30 + 9*30/math.Ln2*0.5)
	within(t, rush, count(time.Minute, 90*time.Second), 4/math.Sqrt(rush), "rush")
	within(t, 40*(30+9*30/math.Ln2*0.25), count(90*time.Second, 2*time.Minute), 0.06, "half of it")
	old, young := map[uint64]bool{}, map[uint64]bool{}
	for i := range w {
		r := &w[i]
		require.EqualValues(t, 4000/16, r.Segments[0].Blocks)
		if r.Arrival < time.Minute {
			old[r.Segments[0].First] = true
		} else {
			young[r.Segments[0].First] = true
		}
	}
	assert.Len(t, old, 16)
	assert.Len(t, young, 16)
	for first := range old {
		assert.False(t, young[first], "every prompt is new after the change")
	}
}

func TestColdStartRushesAtOnce(t *testing.T) {
	// One arrival in 1000 s before, one in a second after: the first one does not wait for the old rate. 100 seeds, 4 standard
	// errors.
	sum := 0.0
	for seed := range uint64(100) {
		w := generate(t, ColdStart{Load: Load{Seed: seed, Requests: 10, Rate: 0.001}, Peak: 1000, HalfLife: time.Hour})
		w = w.Filter(func(r *Request) bool { return r.Arrival >= time.Minute })
		sum += (w[0].Arrival - time.Minute).Seconds()
	}
	assert.InDelta(t, 1, sum/100, 0.4)
}

func TestPopularPrefix(t *testing.T) {
	w := generate(t, PopularPrefix{Load: many})
	s := Summarize(w)
	poissonly(t, 15, s)
	within(t, 6400, s.Input.P50, 0.02, "input p50")
	within(t, 6551, s.Input.Mean, 0.02, "input mean")
	within(t, 200, s.Output.P50, 0.05, "output p50")
	within(t, 0.8*6000/6551, s.Hit, 0.02, "hit")
	for _, r := range generate(t, PopularPrefix{Load: Load{Requests: 5}, Share: 1}) {
		require.Len(t, r.Segments, 2, "no number continues the prefix")
	}
}

func TestSharedPrefixes(t *testing.T) {
	w := generate(t, SharedPrefixes{Load: many})
	s := Summarize(w)
	poissonly(t, 12, s)
	within(t, 150, s.Output.P50, 0.05, "output p50")
	assert.InDelta(t, 0.90, s.Hit, 0.02, "hit")
	short, err := Head(w, 2000)
	require.NoError(t, err)
	assert.InDelta(t, 0.81, Summarize(short).Hit, 0.03, "hit of the first 2000")
	count := map[uint64]int{}
	for i := range w {
		n := w[i].Segments[0].Blocks * BlockTokens
		require.True(t, n > 2000-16 && n <= 8000)
		count[w[i].Segments[0].First]++
	}
	assert.Len(t, count, 256)
	var shares []int
	for _, n := range count {
		shares = append(shares, n)
	}
	slices.Sort(shares)
	harmonic := 0.0
	for k := range 256 {
		harmonic += 1 / float64(k+1)
	}
	within(t, 20_000/harmonic, float64(shares[255]), 0.08, "the first prompt")
	within(t, 20_000/harmonic/2, float64(shares[254]), 0.1, "the second")
}

func TestAdapters(t *testing.T) {
	w := generate(t, Adapters{Load: many, Adapters: 3, Burst: 2})
	s := Summarize(w)
	poissonly(t, 10, s)
	within(t, 900, s.Input.P50, 0.05, "input p50")
	within(t, 150, s.Output.P50, 0.05, "output p50")
	for i := range w {
		require.Equal(t, fmt.Sprintf("adapter-%d", i/2%3), w[i].Adapter)
		require.Equal(t, fmt.Sprintf("digest-%d", i/2%3), w[i].AdapterDigest)
	}
	assert.Equal(t, 500/16, common(w[0], w[1]), "one adapter, one system prompt")
	assert.Zero(t, common(w[1], w[2]), "nothing across adapters")
	assert.Equal(t, 500/16, common(w[0], w[6]))
}

func TestTenantSkew(t *testing.T) {
	w := generate(t, TenantSkew{Load: many})
	poissonly(t, 12, Summarize(w))
	count := map[string]int{}
	for i := range w {
		count[w[i].Tenant]++
	}
	assert.Len(t, count, 10)
	within(t, 0.7, float64(count["tenant-0"])/20_000, 0.02, "share of the heavy one")
	within(t, 0.3/9, float64(count["tenant-4"])/20_000, 0.2, "share of another")
	heavy := Summarize(w.Filter(func(r *Request) bool { return r.Tenant == "tenant-0" }))
	light := Summarize(w.Filter(func(r *Request) bool { return r.Tenant != "tenant-0" }))
	within(t, 2500, heavy.Input.P50, 0.04, "heavy p50")
	within(t, 300, light.Input.P50, 0.04, "light p50")
}

func TestInteractiveBatch(t *testing.T) {
	w := generate(t, InteractiveBatch{Load: many})
	people := w.Filter(func(r *Request) bool { return r.Class == ClassInteractive })
	bulk := w.Filter(func(r *Request) bool { return r.Class == ClassBatch })
	require.Len(t, w, len(people)+len(bulk))
	s := Summarize(people)
	poissonly(t, 8, s)
	within(t, 500, s.Input.P50, 0.04, "input p50")
	within(t, 120, s.Output.P50, 0.04, "output p50")
	for i, r := range bulk {
		require.Equal(t, time.Duration(i/120)*time.Minute+30*time.Second, r.Arrival)
		require.Equal(t, "batch", r.Label)
		require.Equal(t, 10*time.Minute, r.Deadline)
	}
	for _, r := range people {
		require.Equal(t, "interactive", r.Label)
		require.Equal(t, 10*time.Second, r.Deadline)
	}
	s = Summarize(bulk)
	within(t, 4000, s.Input.P50, 0.04, "batch input p50")
	within(t, 400, s.Output.P50, 0.04, "batch output p50")
}

func TestAgentic(t *testing.T) {
	w := generate(t, Agentic{Seed: 3, Sessions: 1000})
	s := Summarize(w)
	assert.Equal(t, 1000, s.Sessions)
	within(t, 23, float64(s.Requests)/1000, 0.12, "turns")
	within(t, 220, s.Output.P50, 0.05, "output p50")
	within(t, 400, s.Output.Mean, 0.07, "output mean")
	within(t, 8000, s.Think.P50, 0.05, "think p50")
	within(t, 16_400, s.Think.Mean, 0.07, "think mean")
	assert.InDelta(t, 0.96, s.Hit, 0.01, "hit")
	assert.LessOrEqual(t, s.Input.Max, 130_000.0)

	last := map[uint64]Request{}
	heads := map[uint64]int{}
	var starts Workload
	var all, had []uint64
	for _, r := range w {
		all = r.AppendAll(all[:0])
		require.EqualValues(t, (r.PromptTokens+r.OutputTokens)/16, len(all), "the output has numbers too")
		if before, ok := last[r.Session]; ok {
			require.Equal(t, before.Turn+1, r.Turn)
			require.Greater(t, r.PromptTokens, before.PromptTokens+before.OutputTokens)
			had = before.AppendAll(had[:0])
			require.LessOrEqual(t, int64(len(had)), r.PromptBlocks())
			require.True(t, slices.Equal(had, all[:len(had)]), "a prompt holds all that came before")
			require.Equal(t, before.Arrival+time.Second+time.Duration(before.OutputTokens)*20*time.Millisecond+r.Think, r.Arrival)
		} else {
			heads[r.Segments[0].First]++
			starts = append(starts, r)
		}
		last[r.Session] = r
	}
	within(t, 0.25, Summarize(starts).Rate, 4/math.Sqrt(1000), "session rate")
	var shares []int
	for _, n := range heads {
		shares = append(shares, n)
	}
	slices.Sort(shares)
	require.Len(t, shares, 3)
	within(t, 1000*6.0/11, float64(shares[2]), 0.1, "the most used version")
	assert.Equal(t, 15_000/16, func() int {
		for _, r := range last {
			if a := w[0]; r.Session != a.Session && r.Segments[0].First == a.Segments[0].First {
				return common(a, r)
			}
		}
		return -1
	}(), "sessions of one version share the tools and no more")
}

func generators() []Generator {
	l := Load{Seed: 5, Requests: 300}
	return []Generator{
		TinyChats{Load: l}, HeavyTail{Load: l}, LongPrompts{Load: l}, ColdStart{Load: l}, PopularPrefix{Load: l}, SharedPrefixes{Load: l},
		Adapters{Load: l}, TenantSkew{Load: l}, InteractiveBatch{Load: l}, Agentic{Seed: 5, Sessions: 20},
	}
}

func TestGeneratorsKeepTheirPromises(t *testing.T) {
	var all []Workload
	for _, g := range generators() {
		w := generate(t, g)
		require.NoError(t, w.Check(), "%T", g)
		assert.Equal(t, w, generate(t, g), "%T: the same again", g)
		for i := range w {
			require.EqualValues(t, i, w[i].ID, "%T", g)
			require.True(t, i == 0 || w[i-1].Arrival <= w[i].Arrival, "%T", g)
			require.Equal(t, w[i].PromptTokens/BlockTokens, w[i].PromptBlocks(), "%T", g)
		}
		all = append(all, w)
	}
	other := generate(t, SharedPrefixes{Load: Load{Seed: 6, Requests: 300}})
	longer := generate(t, SharedPrefixes{Load: Load{Seed: 5, Requests: 300}, MaxTokens: 9000})
	require.NoError(t, Merge(append(all, other, longer)...).Check(), "blocks of different generators never meet")
	assert.NotEqual(t, all[5], other)
}

func TestGeneratorsRefuse(t *testing.T) {
	bad := Length{Median: -1}
	l := Load{Requests: 10}
	for want, g := range map[string]Generator{
		"Load.Requests is -1":                     TinyChats{Load: Load{Requests: -1}},
		"Load.Requests is 6e+07":                  TinyChats{Load: Load{Requests: 60_000_000}},
		"Load.Rate is -1":                         HeavyTail{Load: Load{Rate: -1}},
		"Load.Rate is NaN":                        HeavyTail{Load: Load{Rate: math.NaN()}},
		"Load.Requests/Load.Rate (s) is 5e+10":    HeavyTail{Load: Load{Rate: 1e-3, Requests: 50_000_000}},
		"Prompt: workload: Length.Median is -1":   TinyChats{Load: l, Prompt: bad},
		"Output: workload: Length":                TinyChats{Load: l, Output: bad},
		"PerWave is -1":                           LongPrompts{Load: l, PerWave: -1},
		"Every (s) is -1":                         LongPrompts{Load: l, Every: -time.Second},
		"Within (s) is 21, it must be in [0, 20]": LongPrompts{Load: l, Within: 21 * time.Second},
		"Load.Requests/PerWave*Every (s) is 5e+":  LongPrompts{Load: Load{Requests: 50_000_000}, PerWave: 1, Every: 1e6 * time.Second},
		"After (s) is -1":                         ColdStart{Load: l, After: -time.Second},
		"Peak is 0.5":                             ColdStart{Load: l, Peak: 0.5},
		"HalfLife (s)":                            ColdStart{Load: l, HalfLife: -1},
		"Prompts is -1":                           ColdStart{Load: l, Prompts: -1},
		"PrefixTokens is -1":                      ColdStart{Load: l, PrefixTokens: -1},
		"Rest: ":                                  ColdStart{Load: l, Rest: bad},
		"Share is 2":                              PopularPrefix{Load: l, Share: 2},
		"PrefixTokens is -2":                      PopularPrefix{Load: l, PrefixTokens: -2},
		"Zipf is -1":                              SharedPrefixes{Load: l, Zipf: -1},
		"MinTokens is -1":                         SharedPrefixes{Load: l, MinTokens: -1},
		"MaxTokens is 5":                          SharedPrefixes{Load: l, MaxTokens: 5},
		"Prompts is 2e+06":                        SharedPrefixes{Load: l, Prompts: 2e6},
		"Adapters is -1":                          Adapters{Load: l, Adapters: -1},
		"Burst is -1":                             Adapters{Load: l, Burst: -1},
		"SystemTokens is -1":                      Adapters{Load: l, SystemTokens: -1},
		"Tenants is 1,":                           TenantSkew{Load: l, Tenants: 1},
		"Share is -1":                             TenantSkew{Load: l, Share: -1},
		"Heavy: ":                                 TenantSkew{Load: l, Heavy: bad},
		"Light: ":                                 TenantSkew{Load: l, Light: bad},
		"Size is -1":                              InteractiveBatch{Load: l, Size: -1},
		"Soon (s)":                                InteractiveBatch{Load: l, Soon: -1},
		"Late (s)":                                InteractiveBatch{Load: l, Late: -1},
		"BatchPrompt: ":                           InteractiveBatch{Load: l, BatchPrompt: bad},
		"BatchOutput: ":                           InteractiveBatch{Load: l, BatchOutput: bad},
		"Sessions is -1":                          Agentic{Sessions: -1},
		"Rate is -1":                              Agentic{Rate: -1},
		"Sessions/Rate (s)":                       Agentic{Sessions: 1e6, Rate: 1e-6},
		"Sessions*Turns":                          Agentic{Sessions: 1e6, Turns: 1e3, Rate: 1},
		"Versions is -1":                          Agentic{Versions: -1},
		"ToolsTokens is -1":                       Agentic{ToolsTokens: -1},
		"Turns is 0.5":                            Agentic{Turns: 0.5},
		"Think (s)":                               Agentic{Think: -1},
		"ThinkSigma is 9":                         Agentic{ThinkSigma: 9},
		"MaxContext is -1":                        Agentic{MaxContext: -1},
		"MaxContext is 10, no request fits":       Agentic{MaxContext: 10},
		"First: ":                                 Agentic{First: bad},
		"Added: ":                                 Agentic{Added: bad},
	} {
		w, err := g.Generate()
		require.ErrorContains(t, err, "workload: "+want)
		assert.Nil(t, w)
	}
}

// One workload is read by many sources at once, and nothing depends on how many threads there are.
func TestConcurrentReaders(t *testing.T) {
	w := generate(t, Agentic{Seed: 1, Sessions: 20})
	want := play(t, must(NewLoop(w, LoopConfig{Concurrent: 4})))
	for _, procs := range []int{1, 2, 4} {
		before := runtime.GOMAXPROCS(procs)
		results := make([]Workload, 8)
		var wg sync.WaitGroup
		for i := range results {
			wg.Go(func() {
				results[i] = play(t, must(NewLoop(w, LoopConfig{Concurrent: 4})))
				for k := range w {
					_ = w[k].AppendAll(nil)
				}
				_ = must(Jitter(w, time.Second, uint64(i)))
				_ = Summarize(w)
			})
		}
		wg.Wait()
		runtime.GOMAXPROCS(before)
		for _, got := range results {
			require.Equal(t, want, got)
		}
	}
}
