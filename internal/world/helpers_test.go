package world_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/router"
)

// small is an engine that a test fills quickly: 256 blocks of 16 tokens.
func small() sim.Profile {
	return sim.Profile{
		Name: "small", Base: 10, Knee: 64, PerToken: 0.1, PerContext: 1e-3, PerPair: 1e-5, PerSeq: 0.1, KVTokens: 4096, BlockSize: 16,
		MaxSeqs: 16, Budget: 512,
	}
}

func engines(n int, p sim.Profile) []world.Engine {
	list := make([]world.Engine, n)
	for i := range list {
		list[i].Profile = p
	}
	return list
}

// shape is what a drawn list of arrivals is like.
type shape struct {
	n              int
	perSecond      float64
	prompt, output int64 // greatest
	groups         int   // of requests with the same head
	adapters       int
	patience       time.Duration
	outputs        bool // the hashes of outputs are known
}

// arrivals draws a list: exponential gaps, uniform lengths, heads of half the prompt shared within a group.
func arrivals(seed uint64, s shape) []world.Arrival {
	r := rand.New(rand.NewPCG(seed, 1))
	at := 0.0
	list := make([]world.Arrival, s.n)
	for i := range list {
		at += r.ExpFloat64() / s.perSecond
		a := &list[i]
		a.At = time.Duration(at * 1e9)
		a.OutputTokens = 1 + r.Int64N(s.output)
		a.Ask = world.Ask{
			PromptTokens: 1 + r.Int64N(s.prompt), MaxOutputTokens: s.output, Tenant: string(rune('a' + i%3)), Deadline: 20 * time.Second,
		}
		group := r.IntN(max(s.groups, 1))
		a.Ask.Session = "s" + string(rune('a'+group))
		full := a.Ask.PromptTokens / 16
		if s.outputs {
			full = (a.Ask.PromptTokens + a.OutputTokens) / 16
		}
		for b := range full {
			own := uint64(group)
			if b >= s.prompt/32 {
				own = uint64(i) + 1000
			}
			a.Blocks = append(a.Blocks, mixed(own<<20|uint64(b)+1))
		}
		if s.adapters > 0 && i%2 == 0 {
			a.Ask.Adapter = router.Adapter{ID: string(rune('A' + r.IntN(s.adapters))), Digest: "1"}
		}
		if s.patience > 0 && i%5 == 0 {
			a.Patience = time.Duration(r.Float64() * float64(s.patience))
		}
		a.Key = int64(i)
	}
	return list
}

func run(tb testing.TB, cfg world.Config, list []world.Arrival) *world.Result {
	tb.Helper()
	r, err := world.Run(cfg, world.NewList(list))
	require.NoError(tb, err)
	require.Len(tb, r.Records, len(list))
	return r
}

// fixed is a chooser that asks a function and tells another.
type fixed struct {
	world.Deaf
	choose func(r *world.Request) (world.Choice, error)
}

func (f fixed) Choose(r *world.Request) (world.Choice, error) { return f.choose(r) }

// to is a maker of choosers that ask a function.
func to(choose func(r *world.Request) (world.Choice, error)) world.Maker {
	return func(world.Env) (world.Chooser, error) { return fixed{choose: choose}, nil }
}

func only(engine int) world.Maker {
	return to(func(*world.Request) (world.Choice, error) { return world.Choice{Engine: engine}, nil })
}

func one(at time.Duration, prompt, output int64) world.Arrival {
	return world.Arrival{At: at, Ask: world.Ask{PromptTokens: prompt}, OutputTokens: output}
}

// passTime is the time of a pass, rounded as the world does.
func passTime(p sim.Profile, s sim.Pass) time.Duration {
	return time.Duration(math.Floor(p.PassTime(s)*1e6 + 0.5))
}
