package score_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

func model() *score.Model { return score.NewModel(score.Weights{}, telemetry.Limits{}) }

func terms(p score.Profile, l score.Load, f score.Freshness, r score.Request, m score.Match) score.Terms {
	p = p.WithDefaults()
	q := model().Quote(&p, &r)
	var t score.Terms
	q.Terms(&l, f, m, &t)
	return t
}

func TestTermsOnSmallNumbers(t *testing.T) {
	p, err := score.FromRates(8000, 20)
	require.NoError(t, err)
	p.KVCapacity = 100_000
	got := terms(p, score.Load{Requests: 3, PendingPrefill: 800, KV: 20_000, Shared: 400, KVCapacity: 100_000},
		score.Freshness{Class: telemetry.Fresh}, score.Request{Prompt: 4000, Output: 1000}, score.Match{Cached: 1600})
	require.InDelta(t, 100, got.Queue, 1e-9)          // 800 tokens at 8000/s
	require.InDelta(t, 300, got.Prefill, 1e-9)        // 2400 uncached
	require.InDelta(t, 200, got.Saved, 1e-9)          // 1600 cached
	require.InDelta(t, 100.0/3, got.KVPressure, 1e-9) // a quarter full: 100 * 0.25/0.75
	require.InDelta(t, 2400, got.Displacement, 1e-9)
	perToken := 20 + 4*p.Sequence + 24_400*p.KVToken // 20000 + 400 + 4000
	require.InDelta(t, 1000*perToken, got.Decode, 1e-6)
	require.InDelta(t, 3*(300+1000*(4000*p.KVToken+p.Sequence)), got.Interference, 1e-6)
	require.InDelta(t, got.Queue+got.Prefill+got.Decode+got.KVPressure+got.Interference+got.Displacement+got.Wait, got.Total(), 1e-9)
	require.InDelta(t, 10*got.Queue, got.Wait, 1e-9)
	require.InDelta(t, 400, got.Start(), 1e-9)
}

func TestPrefillTimeFollowsThePassFormula(t *testing.T) {
	// c n + pa n (ctx + n/2), and in two chunks the same as in one.
	p := score.Profile{PrefillToken: 0.1, Attention: 1e-5}
	require.InDelta(t, 100+1e-5*1000*(500+500), p.PrefillMS(1000, 500), 1e-9)
	require.InDelta(t, p.PrefillMS(1000, 0), p.PrefillMS(600, 0)+p.PrefillMS(400, 600), 1e-9)
}

func TestUncertaintyBeginsWhereFreshnessEnds(t *testing.T) {
	m := score.NewModel(score.Weights{}, telemetry.Limits{})
	at := func(age time.Duration) float64 {
		return m.UncertaintyMS(score.Freshness{Class: telemetry.Aging, Age: age, FreshFor: 12 * time.Second})
	}
	require.Zero(t, at(12*time.Second))
	require.InDelta(t, 200, at(13*time.Second), 1e-9, "without a step")
	require.InDelta(t, 1600, at(20*time.Second), 1e-9)
	require.InDelta(t, 1600, at(25*time.Second), 1e-9)
	require.InDelta(t, 200, m.UncertaintyMS(score.Freshness{Class: telemetry.Aging, Age: 3 * time.Second, FreshFor: -1}), 1e-9)
}

func TestUncertaintyGrowsFromFreshToStale(t *testing.T) {
	m := model()
	at := func(c telemetry.Class, age time.Duration) float64 {
		return m.UncertaintyMS(score.Freshness{Class: c, Age: age})
	}
	require.Zero(t, at(telemetry.Fresh, time.Second))
	require.InDelta(t, 200, at(telemetry.Aging, 3*time.Second), 1e-9)
	require.InDelta(t, 1600, at(telemetry.Stale, time.Hour), 1e-9)
	require.InDelta(t, 1600, at(telemetry.Missing, 0), 1e-9)
}

func TestProfiles(t *testing.T) {
	for _, name := range score.ProfileNames() {
		p, err := score.ProfileByName(name)
		require.NoError(t, err)
		require.NoError(t, p.Validate())
		require.Positive(t, p.KVCapacity)
	}
	_, err := score.ProfileByName("abacus")
	require.ErrorContains(t, err, `"abacus"`)
	def, err := score.ProfileByName(score.DefaultProfile)
	require.NoError(t, err)
	require.Equal(t, def.PrefillToken, score.Profile{}.WithDefaults().PrefillToken)
	_, err = score.FromRates(math.NaN(), 20)
	require.ErrorContains(t, err, "NaN")
	_, err = score.FromRates(8000, -1)
	require.ErrorContains(t, err, "-1")
	err = score.Profile{Base: -1, KVCapacity: -2}.Validate()
	require.ErrorContains(t, err, "Profile.Base = -1")
	require.ErrorContains(t, err, "Profile.KVCapacity = -2")
}

func TestFullEngineIsWaitedFor(t *testing.T) {
	p, err := score.FromRates(8000, 20)
	require.NoError(t, err)
	p.MaxRunning = 4
	queue := func(requests, output float64) float64 {
		got := terms(p, score.Load{Requests: requests, PendingPrefill: 800, KV: 1000, Shared: 500, Output: output},
			score.Freshness{Class: telemetry.Fresh}, score.Request{Prompt: 4000, Output: 7}, score.Match{})
		require.InDelta(t, got.Queue, got.Wait/10, 1e-9)
		return got.Queue
	}
	require.InDelta(t, 100, queue(3, 200), 1e-9, "the last slot")
	turn := 200 * p.TokenMS(4, 1500)
	require.InDelta(t, 100+turn/4, queue(4, 200), 1e-6, "one of four has to end")
	require.InDelta(t, 100+turn, queue(7, 200), 1e-6, "all four have to")
	require.InDelta(t, 100, queue(7, 0), 1e-9, "not known how long they take")
	require.InDelta(t, 100, queue(7, -5), 1e-9)
	p.MaxRunning = 0
	require.InDelta(t, 100, queue(7, 200), 1e-9, "not known how many there are")
}

// What a silent engine will be silent for adds to what waits there.
func TestSilenceIsWaitedFor(t *testing.T) {
	p, err := score.FromRates(8000, 20)
	require.NoError(t, err)
	for silence, want := range map[float64]float64{0: 100, 250: 350, -1: 100} {
		l := score.Load{Requests: 2, PendingPrefill: 800, KV: 1000, Silence: silence}
		got := terms(p, l, score.Freshness{Class: telemetry.Fresh}, score.Request{Prompt: 4000, Output: 7}, score.Match{})
		require.InDelta(t, want, got.Queue, 1e-9)
		require.InDelta(t, 10*want, got.Wait, 1e-9)
	}
}

func TestWeightsZeroIsDefaultAndNegativeIsOff(t *testing.T) {
	w := score.Weights{Displacement: -7}.WithDefaults()
	require.Equal(t, w, w.WithDefaults())
	m := score.NewModel(w, telemetry.Limits{})
	require.Zero(t, m.Weights().Displacement)
	require.Equal(t, 1.0, m.Weights().Interference)
}

// Generators of sane and insane figures.

func drawProfile(t *rapid.T) score.Profile {
	f := func(name string, top float64) float64 { return rapid.Float64Range(0, top).Draw(t, name) }
	return score.Profile{
		Base: f("base", 100), PrefillToken: f("c", 1), KVToken: f("kv", 1e-3), Attention: f("pa", 1e-5), Sequence: f("seq", 1),
		KVCapacity: rapid.Int64Range(0, 1_000_000).Draw(t, "capacity"), MaxRunning: rapid.Int64Range(0, 512).Draw(t, "max"),
	}
}

func drawLoad(t *rapid.T) score.Load {
	l := score.Load{
		Requests: rapid.Float64Range(0, 1000).Draw(t, "requests"), PendingPrefill: rapid.Float64Range(0, 1e6).Draw(t, "pending"),
		KV: rapid.Float64Range(0, 1e6).Draw(t, "kv used"), Silence: rapid.Float64Range(0, 1e5).Draw(t, "silence"),
	}
	if rapid.Bool().Draw(t, "capacity known") {
		l.KVCapacity = rapid.Float64Range(1, 1e6).Draw(t, "kv capacity")
	} else {
		l.KVShare = rapid.Float64Range(0, 1).Draw(t, "share")
	}
	return l
}

func drawRequest(t *rapid.T) score.Request {
	return score.Request{
		Prompt: rapid.Float64Range(0, 2e5).Draw(t, "prompt"), Output: rapid.Float64Range(0, 1e4).Draw(t, "output"),
		Adapter: rapid.Bool().Draw(t, "adapter"),
	}
}

func drawFreshness(t *rapid.T) score.Freshness {
	age := rapid.Int64Range(0, int64(20*time.Second)).Draw(t, "age")
	return score.Freshness{Class: telemetry.Limits{}.Classify(time.Duration(age)), Age: time.Duration(age)}
}

func drawMatch(t *rapid.T) score.Match {
	return score.Match{
		Cached: rapid.Float64Range(0, 3e5).Draw(t, "cached"), Withheld: rapid.Bool().Draw(t, "withheld"),
		AdapterNeeded: rapid.Float64Range(0, 1).Draw(t, "needed"),
	}
}

// slack is for the rounding of sums.
func slack(v float64) float64 { return 1e-9 * (1 + math.Abs(v)) }

func TestWorseNeverImproves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, l, r, f, m := drawProfile(t), drawLoad(t), drawRequest(t), drawFreshness(t), drawMatch(t)
		base := terms(p, l, f, r, m)
		more := rapid.Float64Range(0, 1e5).Draw(t, "more")
		worse := map[string]score.Terms{}

		l2 := l
		l2.PendingPrefill += more
		worse["more backlog"] = terms(p, l2, f, r, m)
		l2 = l
		l2.Silence += more
		worse["longer silence"] = terms(p, l2, f, r, m)
		l2 = l
		l2.Requests += more
		worse["more requests"] = terms(p, l2, f, r, m)
		l2 = l
		l2.KV += more
		l2.KVShare = min(1, l.KVShare+more/1e5)
		worse["fuller memory"] = terms(p, l2, f, r, m)

		f2 := f
		f2.Age += time.Duration(more * 1e6)
		f2.Class = telemetry.Limits{}.Classify(f2.Age)
		worse["older snapshot"] = terms(p, l, f2, r, m)

		m2 := m
		m2.Cached -= more
		worse["less cache"] = terms(p, l, f, r, m2)
		m2 = m
		m2.Withheld = true
		worse["affinity withheld"] = terms(p, l, f, r, m2)
		m2 = m
		m2.AdapterNeeded = min(1, m.AdapterNeeded+more/1e5)
		worse["colder adapter"] = terms(p, l, f, r, m2)

		// The zero profile stands for the default, so that a slower one than zero is compared with it only when it is
		// not zero itself.
		if p.Base > 0 {
			for name, slower := range map[string]func(*score.Profile){
				"base": func(p *score.Profile) { p.Base += more }, "prefill": func(p *score.Profile) { p.PrefillToken += more },
				"kv": func(p *score.Profile) { p.KVToken += more }, "attention": func(p *score.Profile) { p.Attention += more },
				"sequence": func(p *score.Profile) { p.Sequence += more },
			} {
				p2 := p
				slower(&p2)
				worse["slower "+name] = terms(p2, l, f, r, m)
			}
		}
		for name, w := range worse {
			if w.Total() < base.Total()-slack(base.Total()) || w.Own() < base.Own()-slack(base.Own()) {
				t.Fatalf("%s improves: total %v -> %v, own %v -> %v", name, base.Total(), w.Total(), base.Own(), w.Own())
			}
		}
	})
}

func TestSavedIsBoundedByWhatItAvoids(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, l, r, f, m := drawProfile(t), drawLoad(t), drawRequest(t), drawFreshness(t), drawMatch(t)
		got, cold := terms(p, l, f, r, m), terms(p, l, f, r, score.Match{})
		if got.Saved < 0 || got.Saved > cold.Prefill+slack(cold.Prefill) {
			t.Fatalf("saved %v of a prefill of %v", got.Saved, cold.Prefill)
		}
		if math.Abs(got.Saved+got.Prefill-cold.Prefill) > slack(cold.Prefill) {
			t.Fatalf("saved %v + prefill %v is not the cold prefill %v", got.Saved, got.Prefill, cold.Prefill)
		}
		if (f.Class != telemetry.Fresh || m.Withheld) && got.Saved != 0 {
			t.Fatalf("saved %v from class %v, withheld %v", got.Saved, f.Class, m.Withheld)
		}
	})
}

func TestEverythingIsFiniteForAnyInput(t *testing.T) {
	any := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 0, math.MaxFloat64}))
	rapid.Check(t, func(t *rapid.T) {
		l := score.Load{
			Requests: any.Draw(t, "requests"), PendingPrefill: any.Draw(t, "pending"), KV: any.Draw(t, "kv"),
			KVCapacity: any.Draw(t, "capacity"), KVShare: any.Draw(t, "share"),
		}
		r := score.Request{Prompt: any.Draw(t, "prompt"), Output: any.Draw(t, "output"), Adapter: true}
		m := score.Match{Cached: any.Draw(t, "cached"), AdapterNeeded: any.Draw(t, "needed")}
		f := score.Freshness{Class: telemetry.Class(rapid.IntRange(0, 5).Draw(t, "class")), Age: time.Duration(rapid.Int64().Draw(t, "age"))}
		got := terms(drawProfile(t), l, f, r, m)
		for name, v := range map[string]float64{
			"queue": got.Queue, "prefill": got.Prefill, "saved": got.Saved, "decode": got.Decode, "adapter": got.Adapter, "kv": got.KVPressure,
			"uncertainty": got.Uncertainty, "interference": got.Interference, "displacement": got.Displacement, "total": got.Total(),
		} {
			if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
				t.Fatalf("%s = %v", name, v)
			}
		}
	})
}

func TestNativeFiguresAreThoseOfTheTerms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, l, r, f, m := drawProfile(t).WithDefaults(), drawLoad(t), drawRequest(t), drawFreshness(t), drawMatch(t)
		q := model().Quote(&p, &r)
		n := q.Native(&l, f, m)
		got := terms(p, l, f, r, m)
		if math.Abs(n.PendingTokens*p.PrefillToken+l.Silence-got.Queue) > slack(got.Queue) ||
			math.Abs(p.PrefillMS(n.UncachedTokens, n.CachedTokens)-got.Prefill) > slack(got.Prefill) ||
			math.Abs(n.AdapterNeeded*p.AdapterLoad-got.Adapter) > slack(got.Adapter) {
			t.Fatalf("%+v does not explain %+v", n, got)
		}
	})
}

func TestTotalsAreThoseOfTheTerms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, l, r, f, m := drawProfile(t).WithDefaults(), drawLoad(t), drawRequest(t), drawFreshness(t), drawMatch(t)
		q := model().Quote(&p, &r)
		want := terms(p, l, f, r, m)
		n := q.Native(&l, f, m)
		queue, own, total := q.Totals(&l, n.CachedTokens, n.AdapterNeeded, want.Uncertainty)
		if queue != want.Queue || own != want.Own() || total != want.Total() {
			t.Fatalf("(%v, %v, %v), want (%v, %v, %v)", queue, own, total, want.Queue, want.Own(), want.Total())
		}
	})
}

func TestOrdinaryTermsAllocateNothing(t *testing.T) {
	p := score.Profile{}.WithDefaults()
	r := score.Request{Prompt: 1000, Output: 100}
	q := model().Quote(&p, &r)
	l := score.Load{Requests: 3, KV: 1000, KVCapacity: 1e5}
	var out score.Terms
	require.Zero(t, testing.AllocsPerRun(100, func() { q.Terms(&l, score.Freshness{Class: telemetry.Fresh}, score.Match{}, &out) }))
}

func BenchmarkTerms(b *testing.B) {
	p := score.Profile{}.WithDefaults()
	r := score.Request{Prompt: 4000, Output: 200}
	q := model().Quote(&p, &r)
	l := score.Load{Requests: 12, PendingPrefill: 3000, KV: 1e5, KVCapacity: 4e5}
	var out score.Terms
	b.ReportAllocs()
	for b.Loop() {
		q.Terms(&l, score.Freshness{Class: telemetry.Fresh}, score.Match{Cached: 1600}, &out)
	}
}
