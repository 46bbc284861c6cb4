package calibrate_test

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/score/calibrate"
	"github.com/isobar-go/isobar/telemetry"
)

func TestWrongProfilesFindTheTruth(t *testing.T) {
	for _, name := range score.ProfileNames() {
		for _, by := range []float64{0.3, 3} {
			truth := named(t, name)
			l := lab{truth: truth, believed: scaled(truth, by), noise: 0.1}
			r := fit(t, calibrator(l.receipts(4000, 1)), calibrate.Options{})
			require.Contains(t, r.Profiles, "a", "%s x %v\n%s", name, by, &r)
			got := r.Profiles["a"]
			near(t, truth.PrefillToken, got.PrefillToken, 0.03, name+" prefill")
			near(t, truth.Base, got.Base, 0.03, name+" base")
			near(t, truth.KVToken, got.KVToken, 0.1, name+" kv")
			near(t, truth.Attention, got.Attention, 0.25, name+" attention")
			require.Equal(t, truth.KVCapacity, got.KVCapacity)
			f := r.Fits[0]
			require.Equal(t, calibrate.Adopted, f.Prefill)
			require.Equal(t, calibrate.Adopted, f.Decode)
			require.Less(t, f.FirstToken.After, f.FirstToken.Before/3)
			require.Less(t, f.Completion.After, f.Completion.Before/3)
		}
	}
}

func TestRightProfileStays(t *testing.T) {
	for seed := range uint64(20) {
		truth := named(t, "a100-8b")
		l := lab{truth: truth, believed: truth, noise: 0.2, outliers: 0.05}
		r := fit(t, calibrator(l.receipts(1000, seed)), calibrate.Options{Seed: seed})
		require.Empty(t, r.Profiles, "seed %d\n%s", seed, &r)
		require.False(t, r.Adopted())
		require.Equal(t, r.Fits[0].Old, r.Fits[0].New)
	}
}

func TestTooLittle(t *testing.T) {
	truth := named(t, "h100-8b")
	r := fit(t, calibrator(), calibrate.Options{})
	require.Empty(t, r.Fits)
	require.Empty(t, r.Profiles)
	for _, n := range []int{1, 2, 5, 20, 100, 199} {
		l := lab{truth: truth, believed: scaled(truth, 3), noise: 0.1}
		r := fit(t, calibrator(l.receipts(n, 1)), calibrate.Options{})
		require.Empty(t, r.Profiles)
		require.Equal(t, calibrate.TooFew, r.Fits[0].Prefill)
		require.Equal(t, calibrate.TooFew, r.Fits[0].Decode)
	}
	// With the least that can be asked for, noise alone is never adopted.
	for seed := range uint64(60) {
		l := lab{truth: truth, believed: truth, noise: 0.3}
		r := fit(t, calibrator(l.receipts(20+int(seed), seed)), calibrate.Options{MinReceipts: 20, Seed: seed})
		require.Empty(t, r.Profiles, "%s", &r)
	}
}

func TestEqualSizesTellNothing(t *testing.T) {
	truth := named(t, "h100-8b")
	l := lab{
		truth: truth, believed: scaled(truth, 2), noise: 0.05, size: func(*rand.Rand) (float64, float64) { return 1000, 100 },
		change: func(r *router.Receipt) {
			r.Cached, r.Outcome.Usage.CachedTokens = 0, 0
			r.Candidates[1].Load = score.Load{Requests: 7, KV: 20_000, KVCapacity: 421_011}
			r.Outcome.FirstTokenMS = 30.6 + float64(r.Number%7)
			r.Outcome.CompletionMS = r.Outcome.FirstTokenMS + 850 + 10*float64(r.Number%9)
		},
	}
	r := fit(t, calibrator(l.receipts(2000, 1)), calibrate.Options{})
	f := r.Fits[0]
	require.Equal(t, calibrate.Collinear, f.Prefill, "%s", &r)
	byName := map[string]calibrate.Coefficient{}
	for _, c := range f.Coefficients {
		byName[c.Name] = c
	}
	for _, name := range []string{"prefill_ms_per_token", "attention_ms_per_token_ctx", "kv_ms_per_token", "sequence_ms"} {
		c := byName[name]
		require.Equal(t, calibrate.Collinear, c.Verdict, name)
		require.Equal(t, c.Old, c.New, name)
		require.Equal(t, c.Old, c.Fitted, name)
	}
	// What a token takes in all is known, and only that is taken from the data.
	require.Equal(t, calibrate.Adopted, byName["base_ms"].Verdict)
	p := r.Profiles["a"]
	near(t, 890.0/99, p.TokenMS(8, 21_000), 0.02, "time per token")
}

func TestOutliersAreNotFollowed(t *testing.T) {
	truth := named(t, "a100-8b")
	l := lab{truth: truth, believed: scaled(truth, 2), noise: 0.1, outliers: 0.2}
	r := fit(t, calibrator(l.receipts(4000, 1)), calibrate.Options{})
	p := r.Profiles["a"]
	near(t, truth.PrefillToken, p.PrefillToken, 0.03, "prefill")
	near(t, truth.Base, p.Base, 0.03, "base")
}

func TestOverheadIsNotThePriceOfAToken(t *testing.T) {
	truth := named(t, "a100-8b")
	l := lab{truth: truth, believed: scaled(truth, 0.5), noise: 0.1, overhead: 40}
	r := fit(t, calibrator(l.receipts(4000, 1)), calibrate.Options{})
	near(t, 40, r.Fits[0].Overhead, 0.1, "overhead")
	near(t, truth.PrefillToken, r.Profiles["a"].PrefillToken, 0.05, "prefill")
}

// Telemetry that says three times what waits must not make tokens cheap.
func TestQueueIsNotThePriceOfAToken(t *testing.T) {
	truth := named(t, "a100-8b")
	l := lab{truth: truth, believed: scaled(truth, 2), noise: 0.1, change: func(r *router.Receipt) { r.Candidates[1].Load.PendingPrefill *= 3 }}
	r := fit(t, calibrator(l.receipts(4000, 1)), calibrate.Options{})
	c := r.Fits[0].Coefficients[1]
	require.Equal(t, "prefill_ms_per_token", c.Name)
	near(t, truth.PrefillToken, c.Fitted, 0.05, "prefill")
	near(t, truth.PrefillToken/3, r.Fits[0].QueueToken, 0.05, "queue")
	require.Less(t, c.Low, truth.PrefillToken)
	require.Greater(t, c.High, truth.PrefillToken)
}

// A few long spells of slowness and haste are less evidence than as many independent receipts.
func TestSpellsAreNotTakenForTheEngine(t *testing.T) {
	truth := named(t, "a100-8b")
	adopted := 0
	for seed := range uint64(40) {
		spells := rand.New(rand.NewPCG(seed, 1))
		factor := 1.0
		l := lab{truth: truth, believed: truth, noise: 0.1, change: func(r *router.Receipt) {
			if r.Number%100 == 0 {
				factor = 0.7 + 0.6*spells.Float64()
			}
			r.Outcome.FirstTokenMS *= factor
			r.Outcome.CompletionMS *= factor
		}}
		if r := fit(t, calibrator(l.receipts(1200, seed)), calibrate.Options{Seed: seed}); r.Adopted() {
			adopted++
		}
	}
	require.LessOrEqual(t, adopted, 2)
}

func TestEstimatedPromptsArePricedAsEstimated(t *testing.T) {
	truth := named(t, "a100-8b")
	truth.Attention = 0
	l := lab{truth: truth, believed: truth, noise: 0.1, estimate: 0.5}
	r := fit(t, calibrator(l.receipts(4000, 1)), calibrate.Options{})
	near(t, 2, r.Fits[0].PromptRatio, 0.01, "ratio")
	near(t, 2*truth.PrefillToken, r.Profiles["a"].PrefillToken, 0.05, "prefill per estimated token")
}

// Without the engine's word on usage there are the index's cached tokens and the host's count of tokens.
func TestUsageUnknown(t *testing.T) {
	truth := named(t, "a100-8b")
	l := lab{truth: truth, believed: scaled(truth, 2), noise: 0.1, change: func(r *router.Receipt) { r.Outcome.Usage = router.Usage{} }}
	r := fit(t, calibrator(l.receipts(3000, 1)), calibrate.Options{})
	near(t, truth.PrefillToken, r.Profiles["a"].PrefillToken, 0.05, "prefill")
	near(t, truth.Base, r.Profiles["a"].Base, 0.05, "base")
	require.Zero(t, r.Fits[0].PromptRatio)

	l.change = func(r *router.Receipt) { r.Outcome.Usage, r.Outcome.Tokens = router.Usage{}, 0 }
	r = fit(t, calibrator(l.receipts(3000, 1)), calibrate.Options{})
	near(t, truth.PrefillToken, r.Profiles["a"].PrefillToken, 0.05, "prefill")
	require.Equal(t, 2*truth.Base, r.Profiles["a"].Base)
	require.Equal(t, calibrate.TooFew, r.Fits[0].Decode)
}

// Where the engine says what was cached, a wrong index does no harm.
func TestEnginesWordOnTheCache(t *testing.T) {
	truth := named(t, "a100-8b")
	l := lab{truth: truth, believed: scaled(truth, 2), noise: 0.1, change: func(r *router.Receipt) { r.Cached = 0 }}
	r := fit(t, calibrator(l.receipts(3000, 1)), calibrate.Options{})
	near(t, truth.PrefillToken, r.Profiles["a"].PrefillToken, 0.05, "prefill")
}

func TestPartsAreAdoptedApart(t *testing.T) {
	truth := named(t, "a100-8b")
	slow := truth
	slow.Base, slow.KVToken, slow.Sequence = 3*truth.Base, 3*truth.KVToken, 3*truth.Sequence
	l := lab{truth: truth, believed: slow, noise: 0.1}
	r := fit(t, calibrator(l.receipts(3000, 1)), calibrate.Options{})
	require.Equal(t, calibrate.NoGain, r.Fits[0].Prefill)
	require.Equal(t, calibrate.Adopted, r.Fits[0].Decode)
	require.Equal(t, truth.PrefillToken, r.Profiles["a"].PrefillToken)
	near(t, truth.Base, r.Profiles["a"].Base, 0.03, "base")

	slow = truth
	slow.PrefillToken, slow.Attention = 3*truth.PrefillToken, 3*truth.Attention
	l.believed = slow
	r = fit(t, calibrator(l.receipts(3000, 1)), calibrate.Options{})
	require.Equal(t, calibrate.Adopted, r.Fits[0].Prefill)
	require.Equal(t, calibrate.NoGain, r.Fits[0].Decode)
	require.Equal(t, truth.Base, r.Profiles["a"].Base)
}

// One engine of four is another machine under the same profile: the three keep it, the one gets its own.
func TestEndpointsAreFittedApart(t *testing.T) {
	h100, a100 := named(t, "h100-8b"), named(t, "a100-8b")
	var sets [][]*router.Receipt
	for i, id := range []string{"a", "b", "c", "odd"} {
		truth := h100
		if id == "odd" {
			truth = a100
		}
		l := lab{truth: truth, believed: h100, noise: 0.1, endpoint: id}
		sets = append(sets, l.receipts(1500, uint64(i)))
	}
	r := fit(t, calibrator(sets...), calibrate.Options{})
	near(t, a100.PrefillToken, r.Profiles["odd"].PrefillToken, 0.05, "prefill")
	near(t, a100.Base, r.Profiles["odd"].Base, 0.05, "base")
	for _, id := range []string{"a", "b", "c"} {
		if p, changed := r.Profiles[id]; changed {
			near(t, h100.PrefillToken, p.PrefillToken, 0.03, "prefill")
			near(t, h100.Base, p.Base, 0.03, "base")
		}
	}
	// Without fits of their own nobody is made worse.
	r = fit(t, calibrator(sets...), calibrate.Options{MinEndpoint: calibrate.None})
	for _, id := range []string{"a", "b", "c"} {
		require.NotContains(t, r.Profiles, id, "%s", &r)
	}
}

// Three of four engines are slower than believed, one is not: what suits the three is kept from it.
func TestWhomTheCommonFitMakesWorse(t *testing.T) {
	truth := named(t, "h100-8b")
	var sets [][]*router.Receipt
	for i, id := range []string{"a", "b", "c", "right"} {
		l := lab{truth: scaled(truth, 2), believed: truth, noise: 0.1, endpoint: id}
		if id == "right" {
			l.truth = truth
		}
		sets = append(sets, l.receipts(500, uint64(i)))
	}
	r := fit(t, calibrator(sets...), calibrate.Options{MinEndpoint: calibrate.None})
	require.Len(t, r.Profiles, 3)
	require.NotContains(t, r.Profiles, "right")
	require.Equal(t, []string{"right"}, r.Fits[0].Kept)
	require.Contains(t, r.String(), "not for right")
}

// In short prompts attention costs next to nothing, and so nothing is learned of it.
func TestWhatIsUncertainStays(t *testing.T) {
	truth := named(t, "h100-8b")
	l := lab{truth: truth, believed: scaled(truth, 2), noise: 0.2, size: func(r *rand.Rand) (float64, float64) {
		return float64(50 + r.IntN(300)), float64(20 + r.IntN(300))
	}}
	r := fit(t, calibrator(l.receipts(1000, 1)), calibrate.Options{})
	for _, c := range r.Fits[0].Coefficients {
		switch c.Name {
		case "attention_ms_per_token_ctx":
			require.Equal(t, calibrate.Uncertain, c.Verdict)
			require.Equal(t, 2*truth.Attention, c.New)
			require.Zero(t, c.High)
		case "prefill_ms_per_token":
			require.Equal(t, calibrate.Adopted, c.Verdict)
			near(t, truth.PrefillToken, c.New, 0.05, c.Name)
		}
	}
}

func TestWhatCountsAsBetter(t *testing.T) {
	better := calibrate.Errors{Receipts: 100, Before: 100, After: 80, MedianBefore: 50, MedianAfter: 40}
	with := func(change func(*calibrate.Errors)) calibrate.Errors {
		e := better
		change(&e)
		return e
	}
	never := calibrate.Options{Noise: calibrate.None, MinGain: calibrate.None}
	for _, tc := range []struct {
		o           calibrate.Options
		gain, noise float64
		errors      calibrate.Errors
		want        bool
	}{
		{calibrate.Options{}, 20, 6, better, true},
		{calibrate.Options{}, 20, 7, better, false},
		{calibrate.Options{Noise: 2}, 20, 7, better, true},
		{calibrate.Options{}, 4, 0.1, better, false},
		{calibrate.Options{MinGain: 0.03}, 4, 0.1, better, true},
		{calibrate.Options{}, 20, 6, with(func(e *calibrate.Errors) { e.MedianAfter = 51 }), false},
		{calibrate.Options{}, 20, 6, with(func(e *calibrate.Errors) { e.Receipts = 0 }), false},
		{never, 1, 100, better, true},
		{never, 0, 0, better, false},
		{never, -1, 0, better, false},
	} {
		require.Equal(t, tc.want, calibrate.Better(tc.o, tc.gain, tc.noise, tc.errors), "%+v", tc)
	}
}

// Where one split would believe noise, many do not.
func TestMoreSplitsBelieveLess(t *testing.T) {
	truth := named(t, "h100-8b")
	adopted := map[int]int{}
	for seed := range uint64(60) {
		l := lab{truth: truth, believed: truth, noise: 0.3}
		c := calibrator(l.receipts(60, seed))
		for _, splits := range []int{1, 20} {
			o := calibrate.Options{MinReceipts: 20, Splits: splits, Noise: calibrate.None, MinGain: calibrate.None, Seed: seed}
			if r := fit(t, c, o); r.Adopted() {
				adopted[splits]++
			}
		}
	}
	require.Greater(t, adopted[1], 10)
	require.Less(t, adopted[20], adopted[1]/3)
}

func TestFewReceiptsOfAnEndpointAreDrawnToItsPeers(t *testing.T) {
	truth := named(t, "h100-8b")
	var sets [][]*router.Receipt
	for i, id := range []string{"a", "b", "c"} {
		l := lab{truth: truth, believed: scaled(truth, 2), noise: 0.4, endpoint: id}
		sets = append(sets, l.receipts(500, uint64(i)))
	}
	off := func(o calibrate.Options) (sum float64) {
		r := fit(t, calibrator(sets...), o)
		for _, f := range r.Fits[1:] {
			require.True(t, f.Single)
			for _, c := range f.Coefficients {
				if c.Name == "base_ms" || c.Name == "prefill_ms_per_token" {
					sum += (c.Fitted/c.Old - 1) * (c.Fitted/c.Old - 1)
				}
			}
		}
		return sum
	}
	require.Less(t, off(calibrate.Options{Shrink: 1000}), 0.7*off(calibrate.Options{Shrink: calibrate.None}))
}

// The newest life of an endpoint decides; an older profile of the same life is no loss of receipts.
func TestLivesAndProfilesOfAnEndpoint(t *testing.T) {
	truth := named(t, "h100-8b")
	l := lab{truth: truth, believed: scaled(truth, 2), noise: 0.1}
	early := l.receipts(600, 1)
	l.believed = scaled(truth, 4)
	late := l.receipts(600, 2)
	r := fit(t, calibrator(late, early), calibrate.Options{})
	require.Len(t, r.Fits, 1)
	require.Equal(t, 1200, r.Fits[0].Receipts)
	require.Equal(t, 4*truth.Base, r.Fits[0].Old.Base)

	l.change = func(r *router.Receipt) { r.Incarnation, r.Candidates[1].Incarnation = "2", "2" }
	l.truth = scaled(truth, 3)
	l.believed = truth
	r = fit(t, calibrator(early, late, l.receipts(600, 3)), calibrate.Options{})
	require.Len(t, r.Fits, 1, "the old life has no endpoint any more")
	near(t, 3*truth.Base, r.Profiles["a"].Base, 0.05, "base")
}

func TestDeterministicAndSeeded(t *testing.T) {
	truth := named(t, "h100-8b")
	l := lab{truth: truth, believed: scaled(truth, 2), noise: 0.1}
	receipts := l.receipts(1000, 1)
	a, b := fit(t, calibrator(receipts), calibrate.Options{Seed: 4}), fit(t, calibrator(receipts), calibrate.Options{Seed: 4})
	require.Equal(t, a, b)
	require.NotEqual(t, a.Fits[0].Fitted, fit(t, calibrator(receipts), calibrate.Options{Seed: 5}).Fits[0].Fitted)
	require.Equal(t, a.Fits[0].Receipts, a.Fits[0].Fitted+a.Fits[0].HeldOut)
}

func TestWhoIsLeftOut(t *testing.T) {
	truth := named(t, "h100-8b")
	for want, change := range map[calibrate.Left]func(*router.Receipt){
		calibrate.Kept:         func(*router.Receipt) {},
		calibrate.NotEnded:     func(r *router.Receipt) { r.Outcome = nil },
		calibrate.NotCompleted: func(r *router.Receipt) { r.Outcome.Cause = router.Cancelled },
		calibrate.NoCandidate:  func(r *router.Receipt) { r.Candidates = r.Candidates[:1] },
		calibrate.Probe:        func(r *router.Receipt) { r.Probe = true },
		calibrate.NoSize:       func(r *router.Receipt) { r.PromptTokens = 0 },
		calibrate.NoFirstToken: func(r *router.Receipt) { r.Outcome.FirstTokenMS = 0 },
		calibrate.BadFigures:   func(r *router.Receipt) { r.Outcome.CompletionMS = r.Outcome.FirstTokenMS - 1 },
		calibrate.ColdAdapter:  func(r *router.Receipt) { r.Adapter, r.Candidates[1].AdapterNeeded = true, 0.5 },
		calibrate.FullEngine:   func(r *router.Receipt) { r.Candidates[1].Load.Requests = float64(r.Candidates[1].Profile.MaxRunning) },
		calibrate.SilentEngine: func(r *router.Receipt) { r.Candidates[1].Load.Silence = 1 },
		calibrate.LoadUnknown:  func(r *router.Receipt) { r.Freshness = telemetry.Stale },
	} {
		l := lab{truth: truth, believed: truth, change: change}
		c := calibrator(l.receipts(30, 1))
		r := fit(t, c, calibrate.Options{})
		require.Equal(t, 30, r.Receipts)
		if want == calibrate.Kept {
			require.Equal(t, 30, r.Used)
			require.Empty(t, r.Left)
			continue
		}
		require.Zero(t, r.Used, want)
		require.Equal(t, []calibrate.LeftOut{{Reason: want, Receipts: 30}}, r.Left)
	}
	for _, change := range []func(*router.Receipt){
		func(r *router.Receipt) { r.Outcome.Cause = router.Failed },
		func(r *router.Receipt) { r.Outcome.Cause = router.Refused },
		func(r *router.Receipt) { r.Rejected = "saturated" },
		func(r *router.Receipt) { r.Candidates[1].Profile = nil },
		func(r *router.Receipt) { r.Candidates[1].Profile = &score.Profile{Base: -1} },
		func(r *router.Receipt) { r.Candidates[1].Load.KV = -1 },
		func(r *router.Receipt) { r.Outcome.Usage.OutputTokens = -5 },
		func(r *router.Receipt) { r.Outcome.CompletionMS = 1e300 },
	} {
		l := lab{truth: truth, believed: truth, change: change}
		require.Zero(t, fit(t, calibrator(l.receipts(30, 1)), calibrate.Options{}).Used)
	}
	require.Equal(t, calibrate.NotEnded, new(calibrate.Calibrator).Add(nil))
	l := lab{truth: truth, believed: truth, change: func(r *router.Receipt) { r.Freshness = telemetry.Stale }}
	require.Equal(t, 30, fit(t, calibrator(l.receipts(30, 1)), calibrate.Options{LoadUnknown: true}).Used)
}

func TestOnlyTheNewestAreKept(t *testing.T) {
	truth := named(t, "h100-8b")
	old := lab{truth: scaled(truth, 9), believed: truth, endpoint: "old"}
	l := lab{truth: truth, believed: truth}
	c := &calibrate.Calibrator{Keep: 300}
	for _, r := range append(old.receipts(300, 1), l.receipts(300, 1)...) {
		require.Equal(t, calibrate.Kept, c.Add(r))
	}
	r := fit(t, c, calibrate.Options{})
	require.Equal(t, 300, r.Used)
	require.Equal(t, []calibrate.LeftOut{{Reason: calibrate.Displaced, Receipts: 300}}, r.Left)
	require.Len(t, r.Fits, 1)
	require.Equal(t, []string{"a"}, r.Fits[0].Endpoints)
	require.Empty(t, r.Profiles)
}

func TestOptionsOutOfRange(t *testing.T) {
	_, err := new(calibrate.Calibrator).Fit(calibrate.Options{Splits: 101, MinReceipts: 19, MinEndpoint: 3, MinGain: 2, Noise: 101})
	for _, field := range []string{"Splits = 101", "MinReceipts = 19", "MinEndpoint = 3", "MinGain = 2", "Noise = 101"} {
		require.ErrorContains(t, err, "calibrate: Options."+field)
	}
	o := calibrate.Options{Splits: 3, Shrink: -8, MinEndpoint: -2, MinGain: -1, Noise: -3}.WithDefaults()
	require.Equal(t, o, o.WithDefaults())
	require.NoError(t, o.Validate())
	require.Equal(t, calibrate.None, o.Shrink)
}

func TestReportAsTextAndJSON(t *testing.T) {
	truth := named(t, "a100-8b")
	l := lab{truth: truth, believed: scaled(truth, 2), noise: 0.1}
	r := fit(t, calibrator(l.receipts(1000, 1)), calibrate.Options{})
	text := r.String()
	for _, want := range []string{"1000 receipts, 1000 used", "profile 1:", "prefill adopted, decode adopted", "base_ms", "interactive", "endpoint  a"} {
		require.Contains(t, text, want)
	}
	for line := range strings.Lines(text) {
		require.NotContains(t, line, "%!")
		require.NotContains(t, line, "NaN")
	}
	data, err := json.Marshal(r)
	require.NoError(t, err)
	var back calibrate.Report
	require.NoError(t, json.Unmarshal(data, &back))
	require.Equal(t, r, back)
	byWhat := map[string]int{}
	for _, c := range r.Residuals {
		byWhat[c.By] += c.FirstToken.Receipts
	}
	require.Equal(t, map[string]int{"all": r.Fits[0].HeldOut, "class": r.Fits[0].HeldOut, "size": r.Fits[0].HeldOut, "endpoint": r.Fits[0].HeldOut}, byWhat)
	near(t, r.Fits[0].FirstToken.After, r.Residuals[0].FirstToken.After, 1e-9, "the fit's error is that of the residuals")
	require.Equal(t, "h100-8b", fit(t, calibrator((&lab{truth: truth, believed: named(t, "h100-8b")}).receipts(30, 1)), calibrate.Options{}).Fits[0].Name)
}

func TestUnknownNames(t *testing.T) {
	var l calibrate.Left
	var v calibrate.Verdict
	require.ErrorContains(t, l.UnmarshalText([]byte("x")), `calibrate: reason "x"`)
	require.ErrorContains(t, v.UnmarshalText([]byte("x")), `calibrate: verdict "x"`)
	require.Equal(t, "unknown", calibrate.Left(200).String())
	require.Equal(t, "unknown", calibrate.Verdict(200).String())
	for l := calibrate.Kept; l <= calibrate.Displaced; l++ {
		text, err := l.MarshalText()
		require.NoError(t, err)
		var back calibrate.Left
		require.NoError(t, back.UnmarshalText(text))
		require.Equal(t, l, back)
	}
}
