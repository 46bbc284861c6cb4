package admission_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/admission"
)

func newLimiter(tb testing.TB, cfg admission.LimitConfig) *admission.Limiter {
	tb.Helper()
	l, err := admission.NewLimiter(cfg)
	require.NoError(tb, err)
	return l
}

func newLimitLoop(tb testing.TB, cfg admission.LimitConfig, profile string, seed uint64) *limitLoop {
	e, ok := limitProfile(profile)
	require.True(tb, ok)
	return &limitLoop{limiter: newLimiter(tb, cfg), engine: e, demand: 400, rng: rand.New(rand.NewPCG(seed, 2))}
}

func TestLimitConfig(t *testing.T) {
	for _, tc := range []struct {
		cfg  admission.LimitConfig
		want string // part of the fault; empty = none
	}{
		{admission.LimitConfig{}, ""},
		{admission.LimitConfig{Min: 1, Max: 1, Start: 1, Gain: 0.9, Block: 2, Memory: 2}, ""},
		{admission.LimitConfig{Min: 1000}, ""},
		{admission.LimitConfig{Max: 3}, ""},
		{admission.LimitConfig{Max: 1 << 20, Block: 1024}, ""},
		{admission.LimitConfig{Min: -1}, "LimitConfig.Min = -1"},
		{admission.LimitConfig{Max: -1}, "LimitConfig.Max = -1"},
		{admission.LimitConfig{Max: 1<<20 + 1}, "LimitConfig.Max = 1048577"},
		{admission.LimitConfig{Min: 9, Max: 8}, "LimitConfig.Min = 9"},
		{admission.LimitConfig{Start: 7}, "LimitConfig.Start = 7 must be 0 or from Min = 8 to Max = 256"},
		{admission.LimitConfig{Start: 257}, "LimitConfig.Start = 257"},
		{admission.LimitConfig{Start: -1}, "LimitConfig.Start = -1"},
		{admission.LimitConfig{Gain: 1}, "LimitConfig.Gain = 1"},
		{admission.LimitConfig{Gain: -0.1}, "LimitConfig.Gain = -0.1"},
		{admission.LimitConfig{Gain: math.NaN()}, "LimitConfig.Gain = NaN"},
		{admission.LimitConfig{Block: 1}, "LimitConfig.Block = 1"},
		{admission.LimitConfig{Block: -1}, "LimitConfig.Block = -1"},
		{admission.LimitConfig{Block: 1025}, "LimitConfig.Block = 1025"},
		{admission.LimitConfig{Memory: 7}, "LimitConfig.Memory = 7"},
		{admission.LimitConfig{Memory: 1<<20 + 1}, "LimitConfig.Memory = 1048577"},
	} {
		l, err := admission.NewLimiter(tc.cfg)
		if tc.want != "" {
			require.ErrorContains(t, err, "admission: "+tc.want)
			require.Nil(t, l)
			continue
		}
		require.NoError(t, err, "%+v", tc.cfg)
		require.Equal(t, tc.cfg.WithDefaults(), l.Config())
		require.Equal(t, l.Config(), l.Config().WithDefaults())
		require.Equal(t, l.Config().Start, l.Limit(), "%+v", tc.cfg)
	}
	require.Equal(t,
		admission.LimitConfig{Min: 8, Max: 256, Start: 256, Gain: 0.2, Block: 8, Memory: 240}, admission.LimitConfig{}.WithDefaults())
	require.Equal(t, admission.Change{}, newLimiter(t, admission.LimitConfig{}).Last())
	// A start between two levels.
	require.Equal(t, 95, newLimiter(t, admission.LimitConfig{Start: 100}).Limit())
	// Both faults are told.
	err := admission.LimitConfig{Gain: 2, Block: 1}.Validate()
	require.ErrorContains(t, err, "Gain")
	require.ErrorContains(t, err, "Block")
}

// Whatever the engine and the noise, the limit ends within a level or two of the knee, and costs hardly any throughput.
func TestLimiterFindsTheKnee(t *testing.T) {
	for _, tc := range []struct {
		profile     string
		context, kv float64
		start       int
	}{
		{"a100-8b", 1000, 0, 0}, {"a100-8b", 1000, 0, 16}, {"rtx4090-8b", 1000, 0, 0}, {"rtx4090-8b", 4000, 0, 0}, {"h100-8b", 500, 0, 0},
		{"rtx4090-8b", 1000, 41408, 0},
	} {
		for _, noise := range []float64{0, 0.05, 0.1, 0.2} {
			t.Run(fmt.Sprintf("%s context %v kv %v start %d noise %v", tc.profile, tc.context, tc.kv, tc.start, noise), func(t *testing.T) {
				var learned, share []float64
				var best float64
				for seed := range uint64(12) {
					l := newLimitLoop(t, admission.LimitConfig{Start: tc.start}, tc.profile, seed)
					l.engine.context, l.engine.kv, l.noise = tc.context, tc.kv, noise
					best = float64(l.engine.best(8, 256, 0.2))
					for s := range 1500 {
						l.step()
						if s >= 900 && s%20 == 0 {
							learned = append(learned, float64(l.limiter.Learned()))
							share = append(share, l.engine.throughput(l.running)/l.engine.throughput(best))
						}
					}
				}
				slices.Sort(learned)
				slices.Sort(share)
				wide := 2.2 * math.Log(1.25)
				if noise > 0.1 {
					wide = 3.2 * math.Log(1.25)
				}
				quantile := func(x []float64, q float64) float64 { return x[int(q*float64(len(x)-1))] }
				require.InDelta(t, math.Log(best), math.Log(quantile(learned, 0.5)), math.Log(1.25), "median")
				require.InDelta(t, math.Log(best), math.Log(quantile(learned, 0.05)), wide, "5 %%")
				require.InDelta(t, math.Log(best), math.Log(quantile(learned, 0.95)), wide, "95 %%")
				require.Greater(t, quantile(share, 0.05), 0.8)
				require.Greater(t, quantile(share, 0.5), 0.99)
			})
		}
	}
}

// With the load below the limit nothing is changed, whatever the figures.
func TestLimiterIsNotFooledByTooLittleLoad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, err := admission.NewLimiter(admission.LimitConfig{Min: 1, Max: 100, Start: rapid.IntRange(2, 100).Draw(t, "start"), Block: 4})
		require.NoError(t, err)
		for i := range int64(300) {
			running := float64(l.Limit()) / 2 * rapid.Float64Range(0, 1).Draw(t, "share")
			require.False(t, l.Observe(i*int64(time.Second), running, rapid.Float64Range(0, 1000).Draw(t, "tokens")))
		}
	})
}

// A steady load that fills the limit, whose requests become longer and longer: throughput falls all the time, on each
// level alike, and the gain from more requests stays what it is.
func TestLimiterIsNotFooledByDrift(t *testing.T) {
	for _, drift := range []float64{0.998, 1.002} { // 0.2 % a second: by 45 % in 300 s
		l := newLimitLoop(t, admission.LimitConfig{Start: 95}, "a100-8b", 1)
		l.engine = limitEngine{base: 20, perSeq: 0.02, slow: 1} // a gain of 0.9 at 95, of 0.8 at 256
		for range 600 {
			l.step()
			l.engine.slow /= drift
		}
		require.Equal(t, 256, l.limiter.Learned(), "drift %v", drift)
		for c := range l.limiter.Changes() {
			require.NotEqual(t, admission.LimitKnee, c.Reason)
		}
	}
}

// Long prompts alone, or a slow engine alone, are no reason to limit: only tokens by requests are.
func TestLimiterLooksAtThroughputNotAtTime(t *testing.T) {
	l := newLimitLoop(t, admission.LimitConfig{}, "a100-8b", 1)
	l.engine = limitEngine{base: 20000, perSeq: 10, slow: 1} // 20 s for a token
	for range 600 {
		l.step()
	}
	require.Equal(t, 256, l.limiter.Learned())
}

func TestLimiterAtItsBounds(t *testing.T) {
	reasons := func(l *admission.Limiter) (out []admission.LimitReason) {
		for c := range l.Changes() {
			out = append(out, c.Reason)
		}
		return out
	}
	flat := newLimitLoop(t, admission.LimitConfig{Min: 100, Max: 125, Memory: 4000}, "a100-8b", 1)
	flat.engine = limitEngine{perSeq: 1, slow: 1}
	for range 100 {
		flat.step()
	}
	require.Equal(t, []admission.LimitReason{admission.LimitExploring, admission.LimitConfirming, admission.LimitFloor}, reasons(flat.limiter))
	require.Equal(t, 100, flat.limiter.Limit())

	steep := newLimitLoop(t, admission.LimitConfig{Min: 100, Max: 125, Start: 100, Memory: 4000}, "a100-8b", 1)
	steep.engine = limitEngine{base: 10, slow: 1}
	for range 100 {
		steep.step()
	}
	require.Equal(t, []admission.LimitReason{admission.LimitExploring, admission.LimitConfirming, admission.LimitCeiling}, reasons(steep.limiter))
	last := steep.limiter.Last()
	require.Equal(t, 100, last.From)
	require.Equal(t, 125, last.To)
	require.InDelta(t, 1, last.Gain, 1e-6)
	require.InDelta(t, 10000, last.Throughput, 300)
	require.InDelta(t, 100, last.Running, 3)
	require.InDelta(t, 10, last.PerToken, 1e-6)

	one := newLimiter(t, admission.LimitConfig{Min: 7, Max: 7})
	for i := range int64(1000) {
		require.False(t, one.Observe(i*int64(time.Second), 7, 700))
	}
	require.Equal(t, 7, one.Limit())
}

func TestLimiterGivesUpATrialWithoutLoad(t *testing.T) {
	for name, demand := range map[string]float64{"idle": 0, "less": 92} {
		l := newLimitLoop(t, admission.LimitConfig{Start: 95}, "a100-8b", 1)
		for l.limiter.Last().Reason != admission.LimitExploring {
			l.step()
		}
		require.Equal(t, 119, l.limiter.Limit(), name)
		l.demand = demand
		for range 40 {
			l.step()
		}
		require.Equal(t, admission.LimitNoLoad, l.limiter.Last().Reason, name)
		require.Equal(t, 95, l.limiter.Limit(), name)
	}
}

func TestLimiterTriesAgain(t *testing.T) {
	l := newLimitLoop(t, admission.LimitConfig{}, "a100-8b", 1)
	l.noise = 0.02
	var tried [2]int // down, up, after what is there to learn has been learned
	for s := range 3000 {
		l.step()
		if c := l.limiter.Last(); s > 1000 && c.At == l.now && c.Reason == admission.LimitExploring {
			if c.To > c.From {
				tried[1]++
			} else {
				tried[0]++
			}
		}
	}
	// Once in 240 observations each, and a few where a result is in doubt.
	for _, n := range tried {
		require.GreaterOrEqual(t, n, 5)
		require.LessOrEqual(t, n, 40)
	}
}

// What is not a usable interval changes nothing, not even what the next one means.
func TestLimiterLeavesOutWhatSaysNothing(t *testing.T) {
	type move struct {
		from, to int
		reason   admission.LimitReason
	}
	var clean []move
	for _, bad := range []struct{ running, tokens float64 }{
		{0, 5000}, {0.5, 5000}, {-3, 5000}, {math.NaN(), 5000}, {math.Inf(1), 5000}, {1e13, 5000}, {100, 0}, {100, -1}, {100, math.NaN()},
		{100, math.Inf(1)}, {100, 1e13}, {119, 5000}, // the last one is good, but for its empty interval
	} {
		var moves []move
		l := newLimitLoop(t, admission.LimitConfig{}, "a100-8b", 1)
		for i := range 600 {
			l.step()
			if clean != nil && i%4 == 3 {
				if bad.running != 119 {
					l.now += int64(time.Second)
				}
				require.False(t, l.limiter.Observe(l.now, bad.running, bad.tokens), "%+v", bad)
			}
			if c := l.limiter.Last(); c.At == l.now {
				moves = append(moves, move{c.From, c.To, c.Reason})
			}
		}
		if clean == nil {
			clean = moves
			require.NotEmpty(t, clean)
		}
		require.Equal(t, clean, moves, "%+v", bad)
	}

	l := newLimiter(t, admission.LimitConfig{})
	for i := range int64(1000) {
		require.False(t, l.Observe(i*int64(6*time.Minute), 256, 5000), "longer than 5 minutes")
	}
}

// Where load comes and goes in jumps, the slope over the whole jump says nothing of the levels inside it.
func TestLimiterLearnsNothingFromAJump(t *testing.T) {
	l := newLimitLoop(t, admission.LimitConfig{ObserveOnly: true, Start: 100}, "a100-8b", 1)
	l.engine = limitEngine{base: 10, knee: 40, perToken: 0.25, slow: 1}
	for s := range 1500 {
		l.demand, l.running = 250, 0
		if s/40%2 == 0 {
			l.demand = 30
		}
		l.step()
	}
	require.Equal(t, admission.Change{}, l.limiter.Last())
}

// What was measured before a pause is not compared with what is measured after it.
func TestLimiterLearnsNothingOverAPause(t *testing.T) {
	l := newLimitLoop(t, admission.LimitConfig{ObserveOnly: true, Start: 125}, "a100-8b", 1)
	for s := range 3000 {
		fast := s / 60 % 2
		l.demand, l.engine.slow = 119, 3
		if fast == 1 {
			l.demand, l.engine.slow = 95, 1
		}
		if s%60 >= 30 {
			l.demand, l.running = 0, 0
		}
		l.step()
	}
	require.Equal(t, admission.Change{}, l.limiter.Last())
}

// Where the gain is just what is asked for, there is nothing to be sure of: a few trials, then a pause.
func TestLimiterPausesInDoubt(t *testing.T) {
	l := newLimiter(t, admission.LimitConfig{Start: 95})
	rng := rand.New(rand.NewPCG(1, 1))
	trials := 0
	for s := range int64(10_000) {
		n := float64(l.Limit())
		l.Observe(s*int64(time.Second), n, 1000*math.Pow(n, 0.2)*(0.9+0.2*rng.Float64()))
		if c := l.Last(); c.At == s*int64(time.Second) && c.Reason == admission.LimitExploring {
			trials++
		}
	}
	// Without pauses there would be one in 20 observations: 500.
	require.Less(t, trials, 360)
	require.Greater(t, trials, 50)
}

// When long contexts move the knee, what was learned before is soon given up.
func TestLimiterFollowsTheMix(t *testing.T) {
	var after []int
	for seed := range uint64(20) {
		l := newLimitLoop(t, admission.LimitConfig{Memory: 2000}, "rtx4090-8b", seed)
		l.noise = 0.05
		for range 800 {
			l.step()
		}
		l.engine.context = 20000 // from a knee at 116 to one at 19
		for range 400 {
			l.step()
		}
		after = append(after, l.limiter.Learned())
	}
	slices.Sort(after)
	require.Less(t, after[10], 60)
}

func TestObserveOnlyLeavesTheLimit(t *testing.T) {
	for _, start := range []int{200, 60} {
		l := newLimitLoop(t, admission.LimitConfig{ObserveOnly: true, Start: start}, "a100-8b", 1)
		l.engine = limitEngine{base: 20, knee: 100, perToken: 0.2, slow: 1}
		l.demand, l.swing, l.period, l.noise = 130, 0.6, 400, 0.05
		for range 1500 {
			require.Equal(t, 256, l.limiter.Limit())
			l.step()
		}
		best := float64(l.engine.best(8, 256, 0.2))
		require.InDelta(t, math.Log(best), math.Log(float64(l.limiter.Learned())), 1.2*math.Log(1.25), "start %d", start)
		for c := range l.limiter.Changes() {
			require.Contains(t, []admission.LimitReason{admission.LimitKnee, admission.LimitGain}, c.Reason)
		}
		require.Equal(t, l.limiter.Learned(), l.limiter.Last().To)
	}
}

// Any input at all: bounds are kept, changes follow each other, figures are figures.
func TestLimiterKeepsItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := admission.LimitConfig{
			Min: rapid.IntRange(1, 20).Draw(t, "min"), Block: rapid.IntRange(2, 5).Draw(t, "block"), ObserveOnly: rapid.Bool().Draw(t, "observe-only"),
		}
		cfg.Max = cfg.Min + rapid.IntRange(0, 60).Draw(t, "more")
		cfg.Start = rapid.IntRange(cfg.Min, cfg.Max).Draw(t, "start")
		l, err := admission.NewLimiter(cfg)
		require.NoError(t, err)
		limit := l.Learned()
		wild := rapid.OneOf(
			rapid.Float64(), rapid.Float64Range(0, 100),
			rapid.SampledFrom([]float64{0, -1, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, 1e-300, 1e12}))
		now := int64(0)
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 30).Draw(t, "clock") {
			case 0:
				now = rapid.Int64().Draw(t, "now")
			case 1:
			default:
				now += int64(time.Second)
			}
			running, tokens := float64(l.Limit())*rapid.Float64Range(0.9, 1.1).Draw(t, "full"), rapid.Float64Range(1, 1000).Draw(t, "tokens")
			if rapid.IntRange(0, 20).Draw(t, "wild") == 0 {
				running, tokens = wild.Draw(t, "running"), wild.Draw(t, "any tokens")
			}
			changed := l.Observe(now, running, tokens)
			require.LessOrEqual(t, cfg.Min, l.Limit())
			require.LessOrEqual(t, l.Limit(), cfg.Max)
			if cfg.ObserveOnly {
				require.Equal(t, cfg.Max, l.Limit())
			}
			if !changed {
				continue
			}
			c := l.Last()
			require.Equal(t, limit, c.From)
			require.Equal(t, now, c.At)
			require.NotEqual(t, c.From, c.To)
			require.LessOrEqual(t, float64(c.To), max(float64(c.From)+1, 1.45*float64(c.From)))
			require.LessOrEqual(t, float64(c.From), max(float64(c.To)+1, 1.45*float64(c.To)))
			for _, v := range []float64{c.Running, c.Throughput, c.PerToken} {
				require.False(t, math.IsNaN(v) || math.IsInf(v, 0) || v < 0, "%+v", c)
			}
			limit = c.To
			if !cfg.ObserveOnly {
				require.Equal(t, limit, l.Limit())
			}
			n := 0
			for old := range l.Changes() {
				require.NotEqual(t, admission.LimitUnchanged, old.Reason)
				n++
			}
			require.LessOrEqual(t, n, 16)
		}
	})
}

func TestChangesYieldsTheLastOldestFirst(t *testing.T) {
	l := newLimitLoop(t, admission.LimitConfig{}, "rtx4090-8b", 1)
	l.engine.kv = 41408
	var all []admission.Change
	for range 900 {
		l.step()
		if c := l.limiter.Last(); c.At == l.now {
			all = append(all, c)
		}
	}
	require.Greater(t, len(all), 16)
	i := len(all) - 16
	for c := range l.limiter.Changes() {
		require.Equal(t, all[i].At, c.At)
		i++
	}
	require.Len(t, all, i)
	for range l.limiter.Changes() {
		break
	}
}

func TestLimitReasonNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range admission.LimitFloor + 1 {
		seen[r.String()] = true
	}
	require.Len(t, seen, 10)
	require.Equal(t, "unknown", (admission.LimitFloor + 1).String())
}

func TestLimiterAllocatesNothing(t *testing.T) {
	l := newLimitLoop(t, admission.LimitConfig{}, "a100-8b", 1)
	l.noise = 0.1
	require.Zero(t, testing.AllocsPerRun(2000, l.step))
}

func BenchmarkLimiterObserve(b *testing.B) {
	l := newLimitLoop(b, admission.LimitConfig{}, "a100-8b", 1)
	b.ReportAllocs()
	now := int64(0)
	for b.Loop() {
		now += int64(time.Second)
		n := float64(l.limiter.Limit())
		l.limiter.Observe(now, n, 5000+n)
	}
}
