package baseline_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/prefix"
)

// situation is a case worked by hand: what has happened before a request, and where the request may go.
type situation struct {
	rule, what string
	engines    int
	before     func(g *gateway) *world.Request
	want       map[int]bool
}

// hold makes engine i hold the prompt of a request that has ended.
func hold(g *gateway, i int, tokens int64, blocks []uint64) {
	r := g.ask(tokens, blocks...)
	for k := range g.engines {
		if k != i {
			r.Avoid = append(r.Avoid, g.engines[k].ID)
		}
	}
	require.Equal(g.tb, i, g.send(r))
	g.end(r.Slot)
}

var hand = []situation{
	{"random", "any", 3, func(g *gateway) *world.Request { return g.ask(1) }, set(0, 1, 2)},
	{"round-robin", "the start is drawn", 3, func(g *gateway) *world.Request { return g.ask(1) }, set(0, 1, 2)},
	{"least-requests", "2, 1, 1 in flight", 3, func(g *gateway) *world.Request {
		g.on(0, 2, 1)
		g.on(1, 1, 1000)
		g.on(2, 1, 1)
		return g.ask(1)
	}, set(1, 2)},
	{"least-requests", "what has ended does not count", 2, func(g *gateway) *world.Request {
		g.on(0, 1, 1)
		for _, s := range g.on(1, 2, 1) {
			g.end(s)
		}
		return g.ask(1)
	}, set(1)},
	{"power-of-two", "the worst of three loses every pair", 3, func(g *gateway) *world.Request {
		g.on(0, 1, 1)
		return g.ask(1)
	}, set(1, 2)},
	{"power-of-two", "two: the lower", 2, func(g *gateway) *world.Request {
		g.on(1, 1, 1)
		return g.ask(1)
	}, set(0)},
	{"power-of-two", "one", 1, func(g *gateway) *world.Request { return g.ask(1) }, set(0)},
	{"queue-only", "reported 3, 2, 2 waiting; what was sent does not count", 3, func(g *gateway) *world.Request {
		g.report(0, 0, 3, 0)
		g.report(1, 60, 2, 0.9)
		g.report(2, 0, 2, 0)
		g.on(1, 5, 1)
		return g.ask(1)
	}, set(1, 2)},
	{"queue-only", "the unknown counts as the mean of 1 and 4", 3, func(g *gateway) *world.Request {
		g.report(0, 0, 4, 0)
		g.report(1, 0, 1, 0)
		return g.ask(1)
	}, set(1)},
	{"queue-only", "nothing is known", 2, func(g *gateway) *world.Request { return g.ask(1) }, set(0, 1)},
	{"queue-only", "an older report is dropped", 2, func(g *gateway) *world.Request {
		g.report(0, 0, 0, 0)
		g.report(1, 0, 1, 0)
		g.now = g.now.Add(-time.Second)
		g.report(0, 0, 9, 0)
		return g.ask(1)
	}, set(0)},
	{"prefix-only", "the longer match, however loaded", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		hold(g, 1, 48, path(1, 3))
		g.on(0, 9, 1000)
		return g.ask(80, path(1, 5)...)
	}, set(0)},
	{"prefix-only", "equal matches: fewest in flight", 3, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		hold(g, 1, 64, path(1, 4))
		g.on(0, 1, 1)
		return g.ask(80, path(1, 5)...)
	}, set(1)},
	{"prefix-only", "what engines tell counts instead of what was routed", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		q, _ := prefix.FromChain(g.scope, 16, path(1, 4))
		g.c.Cache(0, prefix.Event{Kind: prefix.Cleared})
		g.c.Cache(1, prefix.Event{Kind: prefix.Stored, Prefix: q})
		return g.ask(80, path(1, 5)...)
	}, set(1)},
	{"gateway-cache-aware", "32 of 64 tokens are not more than half: fewest in flight", 2, func(g *gateway) *world.Request {
		hold(g, 0, 32, path(1, 2))
		g.on(0, 1, 1)
		return g.ask(64, path(1, 4)...)
	}, set(1)},
	{"gateway-cache-aware", "32 of 63 tokens are", 2, func(g *gateway) *world.Request {
		hold(g, 0, 32, path(1, 2))
		g.on(0, 1, 1)
		return g.ask(63, path(1, 3)...)
	}, set(0)},
	// Two engines, 64 and 0 in flight: mean 32, the bounds are 35.2 and 64.
	{"gateway-cache-aware", "64 is not above mean + 32", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		g.on(0, 64, 1)
		return g.ask(80, path(1, 5)...)
	}, set(0)},
	{"gateway-cache-aware", "66 against 0: 66 > 33 + 32", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		g.on(0, 66, 1)
		return g.ask(80, path(1, 5)...)
	}, set(1)},
	// 433 and 367: mean 400, 433 > 432 but not above 440.
	{"gateway-cache-aware", "433 against 367: not above 1.1 x 400", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		g.on(0, 433, 1)
		g.on(1, 367, 1)
		return g.ask(80, path(1, 5)...)
	}, set(0)},
	{"gateway-cache-aware", "it goes by what was routed, whatever engines tell", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		g.c.Cache(0, prefix.Event{Kind: prefix.Cleared})
		g.on(0, 1, 1)
		return g.ask(80, path(1, 5)...)
	}, set(0)},
	// 2 x 1024 / 2000 = 1.024 s against 0.15 x 0.875/0.125 = 1.05 s and 1 x 1024/2000 + 0.15 x 0.8/0.2 = 1.112 s.
	{"gateway-least-load", "2 waiting; seven eighths full; 1 waiting and 80 % full", 3, func(g *gateway) *world.Request {
		g.report(0, 0, 2, 0)
		g.report(1, 0, 0, 0.875)
		g.report(2, 0, 1, 0.8)
		return g.ask(1)
	}, set(0)},
	{"gateway-least-load", "tokens sent since the poll: 2000/2000 = 1 s against 0.512 s", 2, func(g *gateway) *world.Request {
		g.report(0, 0, 0, 0)
		g.report(1, 0, 1, 0)
		g.on(0, 2, 1000)
		return g.ask(1)
	}, set(1)},
	{"gateway-least-load", "a poll forgets them", 2, func(g *gateway) *world.Request {
		g.report(1, 0, 1, 0)
		g.on(0, 2, 1000)
		g.report(0, 0, 0, 0)
		return g.ask(1)
	}, set(0)},
	{"gateway-least-load", "reported tokens and rate: 2000/4000 = 0.5 s against 0.512 s", 2, func(g *gateway) *world.Request {
		g.report(1, 0, 1, 0)
		g.c.Observe(0, &world.Report{ObservedAt: g.now.Add(-time.Second), Epoch: "1", KVCapacity: 1})
		g.c.Observe(0, &world.Report{ObservedAt: g.now, Epoch: "1", Generated: 4000, Waiting: 9, WaitingTokens: 2000, KVCapacity: 1})
		return g.ask(1)
	}, set(0)},
	{"gateway-least-load", "after a restart the rate is not known: 2000/2000 = 1 s", 2, func(g *gateway) *world.Request {
		g.report(1, 0, 1, 0)
		g.c.Observe(0, &world.Report{ObservedAt: g.now.Add(-time.Second), Epoch: "0", KVCapacity: 1})
		g.c.Observe(0, &world.Report{ObservedAt: g.now, Epoch: "1", Generated: 4000, WaitingTokens: 2000, KVCapacity: 1})
		return g.ask(1)
	}, set(1)},
	{"gateway-least-load", "a full memory is dear, not infinite: the queue still counts", 2, func(g *gateway) *world.Request {
		g.report(0, 0, 1, 1)
		g.report(1, 0, 0, 1)
		return g.ask(1)
	}, set(1)},
	// 3 x 0.4 + 2 x 0 + 2 x 0.5 = 2.2 against 0 + 2 + 2 x 0.05 = 2.1; the queue alone moves the second to 2 + 2 x 0.2 = 2.4.
	{"weighted-3-2-2", "cached 40 %, longest queue, half full, against shortest queue, 95 % full", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		g.report(0, 0, 9, 0.5)
		g.report(1, 0, 1, 0.95)
		return g.ask(160, path(1, 10)...)
	}, set(0)},
	{"weighted-3-2-2", "the same, 80 % full", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		g.report(0, 0, 9, 0.5)
		g.report(1, 0, 1, 0.8)
		return g.ask(160, path(1, 10)...)
	}, set(1)},
	{"weighted-3-2-2", "the least difference of queues counts in full: 1.2 + 0 against 0 + 2", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		g.report(0, 0, 2, 0)
		g.report(1, 0, 1, 0)
		return g.ask(160, path(1, 10)...)
	}, set(1)},
	{"weighted-3-2-2", "equal queues do not count", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		g.report(0, 0, 2, 0)
		g.report(1, 0, 2, 0)
		return g.ask(160, path(1, 10)...)
	}, set(0)},
	{"weighted-3-2-2", "all equal", 2, func(g *gateway) *world.Request { return g.ask(160, path(1, 10)...) }, set(0, 1)},
	{"sticky-until-saturated", "80 of 100 tokens", 2, func(g *gateway) *world.Request {
		hold(g, 0, 80, path(1, 5))
		g.on(0, 1, 1000)
		return g.ask(100, path(1, 6)...)
	}, set(0)},
	{"sticky-until-saturated", "80 of 101 tokens are too few: fewest tokens in flight", 2, func(g *gateway) *world.Request {
		hold(g, 0, 80, path(1, 5))
		g.on(0, 1, 1000)
		return g.ask(101, path(1, 6)...)
	}, set(1)},
	// 18 s are 286,704 tokens.
	{"sticky-until-saturated", "exactly 18 s slower", 2, func(g *gateway) *world.Request {
		hold(g, 0, 80, path(1, 5))
		g.on(0, 4, 71_676)
		return g.ask(100, path(1, 6)...)
	}, set(0)},
	{"sticky-until-saturated", "one token more", 2, func(g *gateway) *world.Request {
		hold(g, 0, 80, path(1, 5))
		g.on(0, 4, 71_676)
		g.on(0, 1, 1)
		return g.ask(100, path(1, 6)...)
	}, set(1)},
	{"sticky-until-saturated", "generated tokens are in flight too", 2, func(g *gateway) *world.Request {
		hold(g, 0, 80, path(1, 5))
		for _, s := range g.on(0, 4, 71_676) {
			g.c.Progress(s, 1)
		}
		return g.ask(100, path(1, 6)...)
	}, set(1)},
	{"sticky-until-saturated", "the best of two sticky ones", 3, func(g *gateway) *world.Request {
		hold(g, 0, 80, path(1, 5))
		hold(g, 1, 80, path(1, 5))
		g.on(0, 1, 2)
		g.on(1, 1, 1)
		return g.ask(100, path(1, 6)...)
	}, set(1)},
	{"sticky-until-saturated", "nobody else is there", 1, func(g *gateway) *world.Request {
		hold(g, 0, 80, path(1, 5))
		g.on(0, 5, 90_000)
		return g.ask(100, path(1, 6)...)
	}, set(0)},
	// Blocks: 0 + (160-64)/16 + 160/16 = 16 against 160/16 + 0 = 10, and against 10 + 10 for the request of 160 before its first token.
	{"kv-router", "saved blocks against decode blocks", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		for _, s := range g.on(0, 1, 160) {
			g.c.FirstToken(s)
		}
		return g.ask(160, path(1, 10)...)
	}, set(1)},
	{"kv-router", "6 + 3 = 9 against 10", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		for _, s := range g.on(0, 1, 48) {
			g.c.FirstToken(s)
		}
		return g.ask(160, path(1, 10)...)
	}, set(0)},
	{"kv-router", "6 + 3 + 3 before its first token = 12 against 10", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		g.on(0, 1, 48)
		return g.ask(160, path(1, 10)...)
	}, set(1)},
	// 64 cached of 160: 96 + pending 60 = 156 against 160.
	{"lpwl", "pending + uncached", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		g.on(0, 1, 60)
		return g.ask(160, path(1, 10)...)
	}, set(0)},
	{"lpwl", "96 + 65 against 160", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		g.on(0, 1, 65)
		return g.ask(160, path(1, 10)...)
	}, set(1)},
	{"lpwl", "with its first token nothing is pending", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		for _, s := range g.on(0, 9, 65) {
			g.c.FirstToken(s)
			g.c.FirstToken(s)
		}
		return g.ask(160, path(1, 10)...)
	}, set(0)},
	{"lpwl", "ties: fewest requests", 2, func(g *gateway) *world.Request {
		for _, s := range g.on(0, 1, 65) {
			g.c.FirstToken(s)
		}
		return g.ask(160)
	}, set(1)},
	{"lpwl", "further ties: the one not chosen for longest", 3, func(g *gateway) *world.Request {
		for _, i := range []int{1, 2, 0} {
			g.end(g.on(i, 1, 65)[0])
		}
		return g.ask(160)
	}, set(1)},
	// 0: (96 + 10) x 2 = 212 against 160 x 1 = 160; with (96 + 0) x 1 it is the less.
	{"lmetric", "(10 + 96) x 2 against 160 x 1", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		g.on(0, 1, 10)
		return g.ask(160, path(1, 10)...)
	}, set(1)},
	{"lmetric", "96 x 1 against 160 x 1", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		return g.ask(160, path(1, 10)...)
	}, set(0)},
	{"lmetric", "(10 + 96) x 2 = 212 against 160 x 2", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		g.on(0, 1, 10)
		g.c.FirstToken(g.on(1, 1, 1000)[0])
		return g.ask(160, path(1, 10)...)
	}, set(0)},
	// Loads 2 and 0, mean 1: 0.4 - 1 against 0 + 1. Loads 3 and 2, mean 2.5: 0.4 - 0.2 against 0 + 0.2.
	{"loadaware", "0.4 - 1 against 1", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		g.on(0, 2, 1)
		return g.ask(160, path(1, 10)...)
	}, set(1)},
	{"loadaware", "loads 6 and 5: 0.4 - 0.09 against 0.09", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		g.on(0, 6, 1)
		g.on(1, 5, 1)
		return g.ask(160, path(1, 10)...)
	}, set(0)},
	{"loadaware", "a mean below 1 counts as 1: loads 1, 0, 0, 0: 0.8 - 0.75 against 0.25", 4, func(g *gateway) *world.Request {
		hold(g, 0, 128, path(1, 8))
		g.on(0, 1, 1)
		return g.ask(160, path(1, 10)...)
	}, set(1, 2, 3)},
	// 1 ms a token: queue 50 + 96 = 146 against 160.
	{"mooncake-conductor", "50 + 96 ms against 160", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		g.on(0, 1, 50)
		return g.ask(160, path(1, 10)...)
	}, set(0)},
	{"mooncake-conductor", "70 + 96 ms against 160", 2, func(g *gateway) *world.Request {
		hold(g, 0, 64, path(1, 4))
		g.on(0, 1, 70)
		return g.ask(160, path(1, 10)...)
	}, set(1)},
	{"prequal-hcl", "all cold: the lowest latency, however many in flight", 3, func(g *gateway) *world.Request {
		latencies(g, 30, 20, 10)
		g.report(0, 0, 5, 0)
		g.report(1, 3, 2, 0)
		g.report(2, 5, 0, 0)
		return g.ask(1)
	}, set(2)},
	{"prequal-hcl", "the one above the quantile is hot", 3, func(g *gateway) *world.Request {
		latencies(g, 30, 20, 10)
		for range 30 { // a history of 5, 5, 5 ...
			for i := range 3 {
				g.report(i, 5, 0, 0)
			}
			r := g.ask(1)
			g.send(r)
			g.end(r.Slot)
		}
		g.report(0, 5, 0, 0)
		g.report(1, 5, 0, 0)
		g.report(2, 6, 0, 0)
		return g.ask(1)
	}, set(1)},
	{"prequal-hcl", "all hot: the fewest in flight", 3, func(g *gateway) *world.Request {
		latencies(g, 30, 20, 10)
		for range 30 {
			for i := range 3 {
				g.report(i, 1, 0, 0)
			}
			r := g.ask(1)
			g.send(r)
			g.end(r.Slot)
		}
		g.report(0, 8, 0, 0)
		g.report(1, 5, 2, 0)
		g.report(2, 9, 0, 0)
		return g.ask(1)
	}, set(1)},
	{"prequal-hcl", "an unknown latency is the mean of 10 and 30", 3, func(g *gateway) *world.Request {
		latencies(g, 30, 0, 10)
		for i := range 3 {
			g.report(i, 1, 0, 0)
		}
		return g.ask(1)
	}, set(2)},
	{"prequal-hcl", "the latency is that at as many in flight: 100 ms at 20 against 50 ms", 2, func(g *gateway) *world.Request {
		depends(g)
		g.report(0, 19, 0, 0)
		g.report(1, 20, 0, 0)
		return g.ask(1)
	}, set(1)},
	{"prequal-hcl", "10 ms at 1 against 50 ms", 2, func(g *gateway) *world.Request {
		depends(g)
		g.report(0, 2, 0, 0)
		g.report(1, 20, 0, 0)
		return g.ask(1)
	}, set(0)},
	{"prequal-hcl", "reports older than 1 s are no probes: any", 2, func(g *gateway) *world.Request {
		latencies(g, 30, 20)
		g.report(0, 1, 0, 0)
		g.report(1, 1, 0, 0)
		g.now = g.now.Add(time.Second + 1)
		return g.ask(1)
	}, set(0, 1)},
	{"own-only", "reports are not heard", 2, func(g *gateway) *world.Request {
		g.report(0, 60, 500, 0.99)
		g.on(1, 3, 5000)
		return g.ask(1000)
	}, set(0)},
	{"own-only", "the warm one, though nothing is reported", 2, func(g *gateway) *world.Request {
		hold(g, 1, 16_000, path(1, 1000))
		g.now = g.now.Add(time.Hour)
		return g.ask(16_010, path(1, 1000)...)
	}, set(1)},
	{"oracle", "the idle one", 2, func(g *gateway) *world.Request {
		require.NoError(g.tb, g.true[0].Submit(sim.Request{ID: 1, PromptTokens: 5000, OutputTokens: 10}))
		return g.ask(100)
	}, set(1)},
	{"oracle", "what is really cached", 2, func(g *gateway) *world.Request {
		require.NoError(g.tb, g.true[1].Submit(sim.Request{ID: 1, PromptTokens: 160, OutputTokens: 1, Blocks: path(1, 10)}))
		g.true[1].Step(nil)
		return g.ask(200, path(1, 10)...)
	}, set(1)},
	{"oracle", "what is under way", 2, func(g *gateway) *world.Request {
		require.NoError(g.tb, g.true[1].Submit(sim.Request{ID: 1, PromptTokens: 10, OutputTokens: 1}))
		g.coming = map[int][]sim.Request{0: {{ID: 2, PromptTokens: 1000, OutputTokens: 1}}}
		return g.ask(100)
	}, set(1)},
	{"oracle", "not the one that is down", 2, func(g *gateway) *world.Request {
		g.true[0] = nil
		require.NoError(g.tb, g.true[1].Submit(sim.Request{ID: 1, PromptTokens: 5000, OutputTokens: 10}))
		return g.ask(100)
	}, set(1)},
	{"oracle", "all are down", 2, func(g *gateway) *world.Request {
		g.true[0], g.true[1] = nil, nil
		return g.ask(100)
	}, set(0, 1)},
	// The newcomer's 600 tokens of prefill take 610 ms. On engine 0 ten streams of 50 ms each would stand still for that long; on engine 1
	// one prompt of 700 tokens comes first, and costs the newcomer 700 ms.
	{"oracle", "itself first", 2, streams, set(0)},
	{"oracle-others", "ten streams are dearer than a wait", 2, streams, set(1)},
}

// streams has ten decodes on engine 0 and a long prompt on engine 1.
func streams(g *gateway) *world.Request {
	for i := range uint64(10) {
		require.NoError(g.tb, g.true[0].Submit(sim.Request{ID: i, PromptTokens: 10, OutputTokens: 20}))
	}
	g.true[0].Step(nil)
	require.NoError(g.tb, g.true[1].Submit(sim.Request{ID: 1, PromptTokens: 700, OutputTokens: 1}))
	r := g.ask(600)
	r.MaxOutputTokens = 1
	return r
}

// latencies gives each engine one request with that time to its first token, ms; 0 = none.
func latencies(g *gateway, ms ...int) {
	at := g.now
	for i, l := range ms {
		if l > 0 {
			s := g.on(i, 1, 1)[0]
			g.now = at.Add(time.Duration(l) * time.Millisecond)
			g.c.FirstToken(s)
			g.end(s)
			g.now = at
		}
	}
}

// depends makes engine 0 take 10 ms with 1 in flight and 100 ms with 20, and engine 1 always 50 ms.
func depends(g *gateway) {
	for range 5 {
		g.report(0, 1, 0, 0)
		latencies(g, 10, 50)
		g.report(0, 20, 0, 0)
		latencies(g, 100)
	}
}

func TestByHand(t *testing.T) {
	for _, s := range hand {
		t.Run(s.rule+"/"+s.what, func(t *testing.T) { require.Equal(t, s.want, choices(t, s.rule, s.engines, s.before)) })
	}
}
