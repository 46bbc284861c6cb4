package calibrate_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/score/calibrate"
)

// traffic are requests at random moments: conversations that grow turn by turn, so that prefixes are shared.
func traffic(n int, perSecond float64, seed uint64) []world.Arrival {
	r := rand.New(rand.NewPCG(seed, 3))
	var at float64
	out := make([]world.Arrival, n)
	talks := make([][]uint64, 60)
	for i := range out {
		at += r.ExpFloat64() / perSecond
		talk := r.IntN(len(talks))
		if len(talks[talk]) > 500 {
			talks[talk] = nil
		}
		for range 1 + int(20*math.Exp(2*r.Float64())) {
			talks[talk] = append(talks[talk], r.Uint64())
		}
		blocks := talks[talk][:len(talks[talk]):len(talks[talk])]
		out[i] = world.Arrival{
			At: time.Duration(at * 1e9), Blocks: blocks, OutputTokens: 1 + int64(30*math.Exp(2.5*r.Float64())),
			Ask: world.Ask{PromptTokens: int64(16*len(blocks) + 5), ExpectedOutputTokens: 150},
		}
	}
	return out
}

// books are what an observer has seen: receipts for the calibrator and, of the terms that the router itself recorded, the mean
// errors of what it predicted for the first token and for the time after it.
type books struct {
	calibrate.Calibrator
	receipts      []*router.Receipt
	first, decode float64
}

func (b *books) Ended(r *router.Receipt) {
	b.Calibrator.Ended(r)
	b.receipts = append(b.receipts, r)
	o := r.Outcome
	b.first += math.Abs(o.FirstTokenMS - r.Terms.Start())
	b.decode += math.Abs(o.CompletionMS - o.FirstTokenMS - r.Terms.Decode/float64(r.OutputTokens)*float64(o.Tokens))
}

func (b *books) errors() (first, decode float64) {
	n := float64(len(b.receipts))
	return b.first / n, b.decode / n
}

// serve runs the router before engines of which it believes what is given.
func serve(t testing.TB, engines []string, believed func(i int) score.Profile, arrivals []world.Arrival) *books {
	t.Helper()
	b := new(books)
	cfg := world.Config{Chooser: world.PoolChooser(router.Config{Receipts: router.Receipts{Observer: b}})}
	for i, engine := range engines {
		truth, known := sim.ProfileByName(engine)
		require.True(t, known)
		cfg.Engines = append(cfg.Engines, world.Engine{ID: fmt.Sprintf("e%d", i), Profile: truth, Believed: believed(i)})
	}
	_, err := world.Run(cfg, world.NewList(arrivals))
	require.NoError(t, err)
	return b
}

// The whole way: a router with a wrong profile serves simulated engines, what a calibration finds is adopted, and predictions
// for other traffic are better, by the router's own record.
func TestWrongProfileInTheSimulator(t *testing.T) {
	for _, tc := range []struct {
		name    string
		engines []string
		by      float64
		rate    float64 // requests/s
		n       int     // requests: enough for the engine that gets the fewest
		least   float64 // share by which the errors must fall
	}{
		{"half", []string{"h100-8b", "h100-8b", "h100-8b"}, 0.5, 8, 3000, 0.5},
		{"double", []string{"h100-8b", "h100-8b", "h100-8b"}, 2, 24, 3000, 0.5},
		{"little memory", []string{"rtx4090-8b", "rtx4090-8b", "rtx4090-8b", "rtx4090-8b"}, 2, 3, 3000, 0.15},
		{"one profile for all", []string{"h100-8b", "h100-8b", "a100-8b", "rtx4090-8b"}, 1, 8, 6000, 0.5},
	} {
		wrong := scaled(named(t, "h100-8b"), tc.by)
		b := serve(t, tc.engines, func(int) score.Profile { return wrong }, traffic(tc.n, tc.rate, 1))
		r := fit(t, &b.Calibrator, calibrate.Options{})
		adopted := func(i int) score.Profile {
			p, ok := r.Profiles[fmt.Sprintf("e%d", i)]
			if !ok {
				p = wrong
			}
			return p
		}
		first, decode := serve(t, tc.engines, func(int) score.Profile { return wrong }, traffic(1000, tc.rate, 2)).errors()
		first2, decode2 := serve(t, tc.engines, adopted, traffic(1000, tc.rate, 2)).errors()
		t.Logf("%s: first token %.4g -> %.4g ms, decode %.4g -> %.4g ms", tc.name, first, first2, decode, decode2)
		require.Less(t, first2, (1-tc.least)*first, "%s\n%s", tc.name, &r)
		require.Less(t, decode2, (1-tc.least)*decode, "%s\n%s", tc.name, &r)
	}
}

// Receipts of the simulator survive the way through a file: same report.
func TestFileOfTheSimulator(t *testing.T) {
	wrong := scaled(named(t, "h100-8b"), 2)
	b := serve(t, []string{"h100-8b", "h100-8b"}, func(int) score.Profile { return wrong }, traffic(1000, 8, 1))
	var file bytes.Buffer
	lines := router.NewJSONLines(&file, len(b.receipts))
	for _, r := range b.receipts {
		lines.Ended(r)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, lines.Run(ended))
	var c calibrate.Calibrator
	n, err := c.AddLines(&file)
	require.NoError(t, err)
	require.Equal(t, len(b.receipts), n)
	require.Equal(t, fit(t, &b.Calibrator, calibrate.Options{}), fit(t, &c, calibrate.Options{}))
}
