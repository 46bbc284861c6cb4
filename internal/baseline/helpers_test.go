package baseline_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/internal/baseline"
	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
)

// flat is a profile whose figures are easy to compute with: 1 ms a prompt token.
func flat() score.Profile {
	return score.Profile{Base: 10, PrefillToken: 1, KVCapacity: 100_000, BlockSize: 16, MaxRunning: 64}
}

// gateway drives a chooser as a world would.
type gateway struct {
	tb      testing.TB
	c       world.Chooser
	now     time.Time
	scope   prefix.Scope
	engines []router.Endpoint
	number  int
	free    []int
	slots   int
	true    []*sim.Engine // for oracles
	coming  map[int][]sim.Request
}

// open makes the chooser of that name before n engines, "a", "b" and so on.
func open(tb testing.TB, name string, n int, seed uint64) *gateway {
	tb.Helper()
	maker, err := baseline.ByName(name)
	require.NoError(tb, err)
	return openMaker(tb, maker, n, seed)
}

func openMaker(tb testing.TB, maker world.Maker, n int, seed uint64) *gateway {
	tb.Helper()
	scope, err := prefix.NewScope(prefix.Parts{Model: "m"})
	require.NoError(tb, err)
	g := &gateway{tb: tb, now: time.Unix(1000, 0), scope: scope}
	p := sim.Profile{Base: 10, PerToken: 1, KVTokens: 100_000, BlockSize: 16, MaxSeqs: 64, Budget: 1000}
	for i := range n {
		g.engines = append(g.engines, router.Endpoint{ID: fmt.Sprintf("%c", 'a'+i), Profile: flat()})
		e, err := sim.New(p, sim.Options{})
		require.NoError(tb, err)
		g.true = append(g.true, e)
	}
	g.c, err = maker(world.Env{
		Gateways: 1, Seed: seed, Endpoints: g.engines, BlockTokens: 16, Now: func() time.Time { return g.now },
		Truth: func(i int) world.Truth {
			return world.Truth{Engine: g.true[i], Up: g.true[i] != nil, Slow: 1, Coming: g.coming[i]}
		},
	})
	require.NoError(tb, err)
	return g
}

// ask is a request of that many prompt tokens that begins with the given blocks.
func (g *gateway) ask(tokens int64, blocks ...uint64) *world.Request {
	r := &world.Request{Ask: world.Ask{PromptTokens: tokens}, Number: g.number, At: g.now, Blocks: blocks}
	if len(blocks) > 0 {
		q, err := prefix.FromChain(g.scope, 16, blocks)
		require.NoError(g.tb, err)
		r.Prefix = q
	}
	return r
}

// try chooses for the request and gives it a slot.
func (g *gateway) try(r *world.Request) (world.Choice, error) {
	g.number++
	r.Slot = g.slots
	if n := len(g.free); n > 0 {
		r.Slot = g.free[n-1]
	}
	c, err := g.c.Choose(r)
	if err == nil {
		if r.Slot == g.slots {
			g.slots++
		} else {
			g.free = g.free[:len(g.free)-1]
		}
	}
	return c, err
}

// send is try where an engine must be found; it returns its number.
func (g *gateway) send(r *world.Request) int {
	g.tb.Helper()
	c, err := g.try(r)
	require.NoError(g.tb, err)
	return c.Engine
}

func (g *gateway) end(slot int) {
	g.c.End(slot, world.Done, router.Usage{OutputTokens: 100})
	g.free = append(g.free, slot)
}

// on sends n requests of that many tokens, without a prefix, to one engine.
func (g *gateway) on(engine, n int, tokens int64) (slots []int) {
	g.tb.Helper()
	for range n {
		r := g.ask(tokens)
		for i := range g.engines {
			if i != engine {
				r.Avoid = append(r.Avoid, g.engines[i].ID)
			}
		}
		require.Equal(g.tb, engine, g.send(r))
		slots = append(slots, r.Slot)
	}
	return slots
}

// report tells of an engine: waiting requests and the share of KV memory in use.
func (g *gateway) report(engine, running, waiting int, share float64) {
	g.c.Observe(engine, &world.Report{
		ObservedAt: g.now, Running: running, Waiting: waiting, WaitingTokens: -1, KVUsed: int64(share * 100_000), KVCapacity: 100_000, Epoch: "1",
	})
}

// choices are the engines that a rule can choose in a situation, over many seeds.
func choices(t *testing.T, name string, n int, situation func(g *gateway) *world.Request) map[int]bool {
	t.Helper()
	got := map[int]bool{}
	for seed := range uint64(40) {
		g := open(t, name, n, seed)
		r := situation(g)
		got[g.send(r)] = true
	}
	return got
}

func set(engines ...int) map[int]bool {
	m := map[int]bool{}
	for _, e := range engines {
		m[e] = true
	}
	return m
}

// path is a run of block hashes, another for each group.
func path(group uint64, blocks int) []uint64 {
	r := rand.New(rand.NewPCG(group, 7))
	list := make([]uint64, blocks)
	for i := range list {
		list[i] = r.Uint64()
	}
	return list
}
