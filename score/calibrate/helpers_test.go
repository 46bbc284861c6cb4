package calibrate_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/score/calibrate"
	"github.com/isobar-go/isobar/telemetry"
)

// lab makes receipts of which the truth is known. Its zero value is an engine of the default profile, of which the router
// believes the truth, with errors of 10 %.
type lab struct {
	truth, believed score.Profile
	endpoint        string
	noise           float64 // of every time, as a share
	overhead        float64 // of every first token, ms
	outliers        float64 // share of requests that are stalled for long
	estimate        float64 // router's tokens per real one; 0 = 1
	number          uint64
	size            func(*rand.Rand) (prompt, output float64)
	change          func(*router.Receipt)
}

func named(t testing.TB, name string) score.Profile {
	t.Helper()
	p, err := score.ProfileByName(name)
	require.NoError(t, err)
	return p
}

// scaled is a profile whose timings are wrong by a factor.
func scaled(p score.Profile, by float64) score.Profile {
	p.Base, p.PrefillToken, p.KVToken, p.Attention, p.Sequence = p.Base*by, p.PrefillToken*by, p.KVToken*by, p.Attention*by, p.Sequence*by
	return p
}

func mixed(r *rand.Rand) (prompt, output float64) {
	return math.Round(200 * math.Exp(4*r.Float64())), math.Round(20 * math.Exp(3*r.Float64()))
}

func (l *lab) receipts(n int, seed uint64) []*router.Receipt {
	r := rand.New(rand.NewPCG(seed, 7))
	if l.size == nil {
		l.size = mixed
	}
	if l.estimate == 0 {
		l.estimate = 1
	}
	if l.endpoint == "" {
		l.endpoint = "a"
	}
	out := make([]*router.Receipt, n)
	for i := range out {
		prompt, output := l.size(r)
		cached := 0.0
		if r.IntN(2) == 0 {
			cached = math.Floor(prompt * r.Float64())
		}
		batch := float64(r.IntN(60))
		load := score.Load{Requests: batch, KV: batch * 3000 * r.Float64(), KVCapacity: 421_011}
		if r.IntN(2) == 0 {
			load.PendingPrefill = float64(r.IntN(20_000))
		}
		noise := func() float64 { return math.Exp(l.noise * r.NormFloat64()) }
		uncached := prompt - cached
		start := l.truth.PrefillToken*load.PendingPrefill + l.truth.PrefillMS(uncached, cached)
		first := l.overhead + start*noise()
		if r.Float64() < l.outliers {
			first += 5000 * r.Float64()
		}
		decode := output * l.truth.TokenMS(batch+1, load.KV+prompt) * noise()
		if r.Float64() < l.outliers {
			decode += 20000 * r.Float64()
		}
		l.number++
		believed := l.believed
		seen := int64(prompt * l.estimate)
		load.PendingPrefill *= l.estimate
		out[i] = &router.Receipt{
			Decision: router.Decision{
				Number: l.number, At: time.Unix(1000, 0).Add(time.Duration(l.number) * time.Second), Endpoint: l.endpoint, Incarnation: "1",
				Freshness: telemetry.Fresh, Cached: int64(cached * l.estimate),
				Candidates: []router.Candidate{
					{ID: "other", Profile: &score.Profile{}},
					{ID: l.endpoint, Incarnation: "1", Freshness: telemetry.Fresh, Load: load, Profile: &believed},
				},
			},
			Class: router.Class(i % 3), SizeBucket: 1 << int(math.Log2(float64(max(seen, 1)))), PromptTokens: seen, OutputTokens: 256,
			Outcome: &router.OutcomeRecord{
				FirstTokenMS: first, CompletionMS: first + decode, Tokens: int64(output),
				Usage: router.Usage{PromptTokens: int64(prompt), CachedTokens: int64(cached), OutputTokens: int64(output)},
			},
		}
		if l.change != nil {
			l.change(out[i])
		}
	}
	return out
}

func calibrator(sets ...[]*router.Receipt) *calibrate.Calibrator {
	c := new(calibrate.Calibrator)
	for _, set := range sets {
		for _, r := range set {
			c.Add(r)
		}
	}
	return c
}

func fit(t testing.TB, c *calibrate.Calibrator, o calibrate.Options) calibrate.Report {
	t.Helper()
	r, err := c.Fit(o)
	require.NoError(t, err)
	return r
}

// near says that a value is within a share of another.
func near(t testing.TB, want, got, share float64, what string) {
	t.Helper()
	require.InDelta(t, want, got, share*want, what)
}
