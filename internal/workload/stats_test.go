package workload

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSpread(t *testing.T) {
	v := make([]float64, 100)
	for i := range v {
		v[i] = float64(100 - i)
	}
	assert.Equal(t, Spread{Mean: 50.5, P50: 50, P90: 90, P99: 99, Max: 100}, spread(v))
	assert.Equal(t, Spread{Mean: 7, P50: 7, P90: 7, P99: 7, Max: 7}, spread([]float64{7}))
	assert.Zero(t, spread(nil))
}

func TestSummarize(t *testing.T) {
	assert.Zero(t, Summarize(nil))
	w := Workload{
		{ID: 0, Arrival: 2 * time.Second, PromptTokens: 160, OutputTokens: 2, Segments: []Segment{{1, 10}}, Session: 4},
		{ID: 1, Arrival: 1 * time.Second, PromptTokens: 100, OutputTokens: 1, Segments: []Segment{{1, 6}}},
		{ID: 2, Arrival: 4 * time.Second, PromptTokens: 340, OutputTokens: 3, Segments: []Segment{{1, 8}, {40, 13}}, Session: 4, Turn: 1, Think: time.Second},
	}
	s := Summarize(w)
	assert.Equal(t, 3, s.Requests)
	assert.Equal(t, 1, s.Sessions)
	assert.Equal(t, 3*time.Second, s.Span)
	assert.InDelta(t, 2.0/3, s.Rate, 1e-12)
	assert.InDelta(t, 200, s.Input.Mean, 1e-12)
	assert.InDelta(t, 1000, s.Think.Mean, 1e-12)
	assert.InDelta(t, (0+6*16+8*16)/600.0, s.Hit, 1e-12, "in order of arrival")
	assert.EqualValues(t, 6+4+13, s.Blocks)
	assert.InDelta(t, 1.0/3, s.GapCV, 1e-12)
	assert.Contains(t, s.String(), "3 requests, 1 sessions, 3 s, 0.67/s; in 200/160/340/340")
	assert.EqualValues(t, 0, w[0].ID, "the argument stays as it was")
}

func TestCountCV(t *testing.T) {
	w := Workload{{Arrival: 0}, {Arrival: 1}, {Arrival: 2}, {Arrival: 10}, {Arrival: 25}}
	cv, err := CountCV(w, 10)
	require.NoError(t, err)
	assert.InDelta(t, 0.5, cv, 1e-12, "counts 3 and 1")
	_, err = CountCV(w, 0)
	require.ErrorContains(t, err, "window is 0s")
	_, err = CountCV(Workload{{}, {Arrival: time.Hour}}, 1)
	require.ErrorContains(t, err, "there would be 3600000000000 of them")
	cv, err = CountCV(nil, 1)
	require.NoError(t, err)
	assert.Zero(t, cv)
	cv, err = CountCV(w, time.Hour)
	require.NoError(t, err)
	assert.Zero(t, cv)
}

// The cache by runs agrees with one that holds every single id, for prompts that are paths in a tree.
func TestInfiniteCache(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		naive := map[uint64]bool{}
		cache := newInfiniteCache()
		for range rapid.IntRange(1, 12).Draw(t, "requests") {
			r := Request{PromptTokens: 16 * int64(rapid.IntRange(0, 14).Draw(t, "blocks")), OutputTokens: 1}
			node := uint64(0)
			for range rapid.IntRange(0, 3).Draw(t, "runs") {
				node = node*3 + uint64(rapid.IntRange(1, 2).Draw(t, "branch"))
				n := int64(5)
				if rapid.Bool().Draw(t, "last") {
					n = rapid.Int64Range(1, 5).Draw(t, "length")
				}
				r.Segments = appendSegment(r.Segments, Segment{node * 100, n})
				if n < 5 {
					break
				}
			}
			r.Salt = rapid.SampledFrom([]string{"", "x"}).Draw(t, "salt")
			want, warm := int64(0), true
			for _, id := range r.AppendBlocks(nil) {
				if warm = warm && naive[id]; warm {
					want++
				}
			}
			for _, id := range r.AppendBlocks(nil) {
				naive[id] = true
			}
			require.Equal(t, want, cache.add(&r))
			require.EqualValues(t, len(naive), cache.blocks)
		}
	})
}

func TestRandomDraws(t *testing.T) {
	// 100,000 draws: a mean is within 4 standard errors.
	const n = 100_000
	rnd := newRand(1, "test")
	mean := func(draw func() float64) float64 {
		sum := 0.0
		for range n {
			sum += draw()
		}
		return sum / n
	}
	for _, k := range []float64{0.25, 1, 4, 100} {
		assert.InDelta(t, k, mean(func() float64 { return gamma(rnd, k) }), 4*math.Sqrt(k/n), "gamma %v", k)
		assert.InDelta(t, k+k*k, mean(func() float64 { x := gamma(rnd, k); return x * x }), 0.1*(k+k*k), "gamma %v squared", k)
	}
	assert.InDelta(t, 0.5, mean(func() float64 { return exponential(rnd, 2).Seconds() }), 4*0.5/math.Sqrt(n))
	z := zipfShares(3, 1)
	assert.InDelta(t, 6.0/11, mean(func() float64 {
		if z.draw(rnd) == 0 {
			return 1
		}
		return 0
	}), 0.01)
	body := Length{Median: 100, Sigma: 0.5}
	assert.InDelta(t, 100*math.Exp(0.125), mean(func() float64 { return float64(body.draw(rnd)) }), 1)
	tail := Length{Median: 1, Tail: 1, TailFrom: 100, Alpha: 3, Max: 1e6}
	assert.InDelta(t, 150, mean(func() float64 { return float64(tail.draw(rnd)) }), 2, "Alpha/(Alpha-1) x TailFrom")
	for range 1000 {
		x := Length{Median: 10, Sigma: 4, Min: 5, Max: 50}.draw(rnd)
		require.True(t, x >= 5 && x <= 50)
	}
	assert.EqualValues(t, 7, Length{Median: 7}.draw(rnd))
	assert.EqualValues(t, MaxTokens, Length{Median: MaxTokens, Tail: 1, TailFrom: MaxTokens, Alpha: 1e-3}.draw(rnd))
}

func TestStreamsDiffer(t *testing.T) {
	seen := map[uint64]bool{}
	for seed := range uint64(100) {
		for _, purpose := range []string{"a", "b"} {
			v := newRand(seed, purpose).Uint64()
			require.False(t, seen[v])
			seen[v] = true
		}
	}
	assert.Equal(t, newRand(5, "a").Uint64(), newRand(5, "a").Uint64())
}

func TestLengthValidate(t *testing.T) {
	require.NoError(t, Length{Median: 5}.Validate())
	nan := math.NaN()
	for want, l := range map[string]Length{
		"Median is 0":    {},
		"Median is NaN":  {Median: nan},
		"Sigma is -1":    {Median: 1, Sigma: -1},
		"Sigma is NaN":   {Median: 1, Sigma: nan},
		"Tail is 2":      {Median: 1, Tail: 2},
		"TailFrom is 0":  {Median: 1, Tail: 0.5, Alpha: 1},
		"Alpha is 0":     {Median: 1, Tail: 0.5, TailFrom: 1},
		"Alpha is +Inf":  {Median: 1, Tail: 0.5, TailFrom: 1, Alpha: math.Inf(1)},
		"Min is -1":      {Median: 1, Min: -1},
		"Max is 3":       {Median: 1, Min: 4, Max: 3},
		"Max is 3000000": {Median: 1, Max: 3_000_000_000},
	} {
		require.ErrorContains(t, l.Validate(), "workload: Length."+want)
	}
}
