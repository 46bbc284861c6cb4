package calibrate_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/score/calibrate"
	"github.com/isobar-go/isobar/telemetry"
)

// naive solves the same problem one unknown at a time, for as long as it takes.
func naive(a [4][4]float64, b [4]float64, p int) (x [4]float64) {
	for range 20_000 {
		for j := range p {
			rest := b[j]
			for k := range p {
				if k != j {
					rest -= a[j][k] * x[k]
				}
			}
			x[j] = max(0, rest/a[j][j])
		}
	}
	return x
}

func TestNonNegativeIsTheNaiveSolution(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.IntRange(1, 4).Draw(t, "unknowns")
		var a [4][4]float64
		var b [4]float64
		for range 12 {
			var row [4]float64
			for j := range p {
				row[j] = float64(rapid.IntRange(0, 9).Draw(t, "x"))
			}
			y := float64(rapid.IntRange(-9, 9).Draw(t, "y"))
			for j := range p {
				b[j] += row[j] * y
				for k := range p {
					a[j][k] += row[j] * row[k]
				}
			}
		}
		for j := range p {
			a[j][j] += 2 // keeps the naive one from taking for ever
		}
		got, want := calibrate.NonNegative(a, b, p), naive(a, b, p)
		for j := range p {
			if math.Abs(got[j]-want[j]) > 1e-6 {
				t.Fatalf("got %v, want %v", got, want)
			}
		}
	})
}

// The fit minimises the errors of what the cost model predicts, so both must say the same.
func TestPredictionsAreThoseOfTheCostModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := func(name string, top float64) float64 { return rapid.Float64Range(0, top).Draw(t, name) }
		p := score.Profile{
			Base: f("base", 50), PrefillToken: f("c", 1), KVToken: f("kv", 1e-3), Attention: f("pa", 1e-5), Sequence: f("seq", 1),
			MaxRunning: rapid.Int64Range(0, 64).Draw(t, "max running"),
		}.WithDefaults()
		load := score.Load{Requests: f("requests", 100), PendingPrefill: f("pending", 1e5), KV: f("kv used", 1e6)}
		prompt, output := math.Floor(f("prompt", 1e5)), math.Floor(f("output", 1e4))
		cached := math.Floor(prompt * f("cached", 1))
		q := score.NewModel(score.Weights{}, telemetry.Limits{}).Quote(&p, &score.Request{Prompt: prompt, Output: output})
		var want score.Terms
		q.Terms(&load, score.Freshness{Class: telemetry.Fresh}, score.Match{Cached: cached}, &want)
		first, completion := calibrate.Predict(p, load, prompt, cached, output)
		for _, v := range [][2]float64{{want.Start(), first}, {want.Start() + want.Decode, completion}} {
			if math.Abs(v[0]-v[1]) > 1e-9*(1+v[0]) {
				t.Fatalf("got %v and %v, the terms are %+v", first, completion, want)
			}
		}
	})
}

// Whatever the receipts say, what is adopted is a valid profile with finite figures, and no error rises on the held-out half.
func TestAdoptedIsNeverNonsense(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := func(name string, top float64) float64 { return rapid.Float64Range(0, top).Draw(t, name) }
		draw := func(name string) score.Profile {
			return score.Profile{Base: f(name+" base", 50), PrefillToken: f("c", 1), KVToken: f("kv", 1e-3), Attention: f("pa", 1e-5), Sequence: f("seq", 1)}
		}
		l := lab{
			truth: draw("truth"), believed: draw("believed"), noise: f("noise", 2), overhead: f("overhead", 1e4), outliers: f("outliers", 1),
			estimate: 0.1 + f("estimate", 3),
		}
		c := calibrator(l.receipts(rapid.IntRange(0, 300).Draw(t, "receipts"), rapid.Uint64().Draw(t, "seed")))
		r, err := c.Fit(calibrate.Options{MinReceipts: 20, MinEndpoint: 40, Splits: 2, Noise: f("errors", 3), Seed: rapid.Uint64().Draw(t, "split")})
		require.NoError(t, err)
		for id, p := range r.Profiles {
			require.NoError(t, p.Validate(), id)
		}
		for _, x := range r.Fits {
			adopted := x.Prefill == calibrate.Adopted || x.Decode == calibrate.Adopted
			require.Equal(t, adopted, x.Old != x.New)
			if x.Prefill == calibrate.Adopted {
				require.Less(t, x.FirstToken.After, x.FirstToken.Before)
				require.Less(t, x.FirstToken.MedianAfter, x.FirstToken.MedianBefore)
			}
		}
		require.NotContains(t, r.String(), "NaN")
	})
}
