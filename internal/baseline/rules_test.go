package baseline_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/internal/baseline"
	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/router"
)

// Every engine in its turn, those that leave or drain are passed over and come back into their places.
func TestRoundRobin(t *testing.T) {
	g := open(t, "round-robin", 3, 1)
	first := g.send(g.ask(1))
	next := func(k int) int { return (first + k) % 3 }
	require.Equal(t, []int{next(1), next(2), first}, []int{g.send(g.ask(1)), g.send(g.ask(1)), g.send(g.ask(1))})
	g.c.Change(next(1), world.Draining)
	require.Equal(t, []int{next(2), first, next(2)}, []int{g.send(g.ask(1)), g.send(g.ask(1)), g.send(g.ask(1))})
	g.c.Change(next(1), world.Ready)
	require.Equal(t, []int{first, next(1)}, []int{g.send(g.ask(1)), g.send(g.ask(1))})
}

// A session stays where it is; when its engine goes it moves, others stay, and it comes back.
func TestSessionHash(t *testing.T) {
	g := open(t, "session-hash", 5, 1)
	home := func(session string) int {
		r := g.ask(1)
		r.Session = session
		return g.send(r)
	}
	before := map[string]int{}
	used := map[int]bool{}
	for i := range 100 {
		s := string(rune('A' + i))
		before[s] = home(s)
		used[before[s]] = true
	}
	require.Len(t, used, 5)
	g.c.Change(2, world.Gone)
	for s, was := range before {
		now := home(s)
		require.NotEqual(t, 2, now)
		if was != 2 {
			require.Equal(t, was, now)
		}
	}
	g.c.Change(2, world.Joined)
	for s, was := range before {
		require.Equal(t, was, home(s))
	}
	require.Len(t, choices(t, "session-hash", 3, func(g *gateway) *world.Request { return g.ask(1) }), 3, "without a session: any")
}

// The key is the second block and the adapter; the load of the first engine clockwise is bounded by 1.25 x (total+1)/n.
func TestBoundedHash(t *testing.T) {
	g := open(t, "chwbl", 4, 1)
	a := path(1, 2)
	home := g.send(g.ask(100, a...))
	// Total 1: 1.25 x 2/4 < 1, so that the engine with one in flight is full.
	second := g.send(g.ask(100, append(a, 5, 6)...))
	require.NotEqual(t, home, second)
	g.on(0, 10, 1)
	g.on(1, 10, 1)
	g.on(2, 10, 1)
	g.on(3, 10, 1)
	// 42 in flight: 1.25 x 43/4 = 13.4. Twelve more bring home from 11 to 14 only if the bound allowed it.
	counts := map[int]int{}
	for range 4 {
		counts[g.send(g.ask(100, append(a, 9)...))]++
	}
	// 11 -> 14: bounds 13.4, 13.75, 14.06, 14.4 for loads 11, 12, 13, 14.
	require.Equal(t, map[int]int{home: 4}, counts)
	// 15 in flight against 1.25 x 47/4 = 14.7.
	require.Equal(t, second, g.send(g.ask(100, a...)), "clockwise, to the next one")

	g = open(t, "chwbl", 4, 1)
	adapters := map[int]bool{}
	for i := range 20 {
		r := g.ask(100, a...)
		r.Adapter = router.Adapter{ID: string(rune('A' + i)), Digest: "1"}
		adapters[g.send(r)] = true
		g.end(r.Slot)
	}
	require.Len(t, adapters, 4)
	short := map[int]bool{}
	for range 20 {
		short[g.send(g.ask(3))] = true
	}
	require.Len(t, short, 4, "prompts without a block are spread")
}

// What a rule expects is what it tells.
func TestTerms(t *testing.T) {
	g := open(t, "mooncake-conductor", 1, 1)
	g.on(0, 1, 50)
	hold(g, 0, 64, path(1, 4))
	g.on(0, 1, 7)
	c, err := g.try(g.ask(160, path(1, 10)...))
	require.NoError(t, err)
	require.InDelta(t, 57, c.Terms.Queue, 1e-9)
	require.InDelta(t, 96, c.Terms.Prefill, 1e-9)
	require.EqualValues(t, 64, c.Cached)
	g.report(0, 1, 1, 0)
	g.now = g.now.Add(3 * time.Second)
	c, err = g.try(g.ask(1))
	require.NoError(t, err)
	require.Equal(t, 3*time.Second, c.Age)

	g = open(t, "oracle", 1, 1)
	require.NoError(t, g.true[0].Submit(sim.Request{ID: 1, PromptTokens: 1000, OutputTokens: 1}))
	r := g.ask(100)
	r.ExpectedOutputTokens = 3
	c, err = g.try(r)
	require.NoError(t, err)
	// 1010 ms until it starts, 110 ms for its prompt, two more tokens at 11 ms.
	require.InDelta(t, 1010, c.Terms.Queue, 1e-9)
	require.InDelta(t, 110, c.Terms.Prefill, 1e-9)
	require.InDelta(t, 22, c.Terms.Decode, 1e-9)
}

func TestMakersCheckTheirEnvironment(t *testing.T) {
	_, err := baseline.ByName("best")
	require.ErrorContains(t, err, `rule "best"`)
	require.ErrorContains(t, err, "mooncake-conductor")
	now := func() time.Time { return time.Unix(0, 0) }
	for _, name := range baseline.Names() {
		m, err := baseline.ByName(name)
		require.NoError(t, err)
		if name == "own-only" {
			continue // the pool's own checks
		}
		_, err = m(world.Env{Now: now})
		require.ErrorContains(t, err, "baseline: Env.BlockTokens = 0", name)
		_, err = m(world.Env{BlockTokens: 16})
		require.ErrorContains(t, err, "baseline: Env.Now", name)
	}
	for _, name := range []string{"oracle", "oracle-others"} {
		m, _ := baseline.ByName(name)
		_, err := m(world.Env{Now: now, BlockTokens: 16})
		require.ErrorContains(t, err, "baseline: Env.Truth")
	}
}

// A request counts in the pool at once: the fastest engine does not get the next one too, probed again or not.
func TestPrequalCountsWhatItSends(t *testing.T) {
	taken := 0
	for seed := range uint64(40) {
		g := open(t, "prequal-hcl", 8, seed)
		latencies(g, 10, 50, 50, 50, 50, 50, 50, 50)
		report := func() {
			for i := range 8 {
				g.report(i, 5, 0, 0)
			}
		}
		for range 60 {
			report()
			r := g.ask(1)
			g.send(r)
			g.end(r.Slot)
		}
		g.now = g.now.Add(2 * time.Second) // the pool is empty, its history is 5, 5, 5 ...
		report()
		if g.send(g.ask(1)) == 0 {
			taken++
			require.NotZero(t, g.send(g.ask(1)))
		}
	}
	require.Greater(t, taken, 5)
}
