package world_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/world"
)

// A request alone: every time in its record by hand.
func TestOneRequest(t *testing.T) {
	p := small()
	r := run(t, world.Config{Engines: engines(1, p), Chooser: only(0)}, []world.Arrival{one(time.Second, 600, 3)})
	pass := func(tokens, seqs, context int64, pairs float64) time.Duration {
		return passTime(p, sim.Pass{Tokens: tokens, Seqs: seqs, DecodeContext: context, Pairs: pairs})
	}
	got := r.Records[0]
	sent := time.Second
	start := sent + time.Millisecond
	first := start + pass(512, 1, 0, 512*256) + pass(88, 1, 0, 88*(512+44)) // the budget of a pass is 512
	end := first + pass(1, 1, 601, 0) + pass(1, 1, 602, 0)
	require.Equal(t, world.Record{
		PromptTokens: 600, OutputTokens: 3, Arrival: sent, Sent: sent, Queued: start, Start: start,
		FirstToken: first + time.Millisecond, End: end + time.Millisecond, Outcome: world.Finished, Attempts: 1,
	}, got)
	require.Equal(t, end-start, r.Engines[0].Busy)
	require.EqualValues(t, 4, r.Engines[0].Totals.Passes)
	require.Equal(t, got.End, r.End)
}

// What comes in the very moment in which a quiet pass ends, comes too late for the next one, jump or no jump.
func TestArrivalAtTheEndOfAQuietPass(t *testing.T) {
	p := small()
	at := passTime(p, sim.Pass{Tokens: 100, Seqs: 1, Pairs: 100 * 50})
	for i := range int64(5) {
		at += passTime(p, sim.Pass{Tokens: 1, Seqs: 1, DecodeContext: 101 + i})
	}
	cfg := world.Config{Engines: engines(1, p), Chooser: only(0), Net: world.None, Telemetry: world.Telemetry{Period: world.None}}
	list := []world.Arrival{one(0, 100, 50), one(at, 10, 1)}
	r := run(t, cfg, list)
	require.Equal(t, at+passTime(p, sim.Pass{Tokens: 1, Seqs: 1, DecodeContext: 106}), r.Records[1].Start)
	cfg.PassByPass = true
	require.Equal(t, run(t, cfg, list), r)
}

// drawConfig draws a world in which everything happens.
func drawConfig(t *rapid.T) (world.Config, []world.Arrival) {
	ms := func(name string, from, to int) time.Duration {
		return time.Duration(rapid.IntRange(from, to).Draw(t, name)) * time.Millisecond
	}
	p := small()
	p.KVTokens = 16 * rapid.Int64Range(80, 300).Draw(t, "blocks")
	p.MaxSeqs = rapid.IntRange(1, 12).Draw(t, "seqs")
	slow := p
	slow.Base *= 2
	cfg := world.Config{
		Seed:          rapid.Uint64Range(0, 9).Draw(t, "seed"),
		Gateways:      rapid.IntRange(1, 3).Draw(t, "gateways"),
		Spread:        rapid.SampledFrom([]world.Spread{world.ByTurns, world.BySession}).Draw(t, "spread"),
		Net:           rapid.SampledFrom([]time.Duration{0, world.None, 5 * time.Millisecond}).Draw(t, "net"),
		Retries:       rapid.IntRange(0, 2).Draw(t, "retries"),
		ProgressEvery: rapid.SampledFrom([]int{0, world.None, 1, 5}).Draw(t, "progress every"),
		SampleEvery:   rapid.SampledFrom([]time.Duration{0, world.None, 70 * time.Millisecond}).Draw(t, "sample every"),
		Telemetry: world.Telemetry{
			Period: rapid.SampledFrom([]time.Duration{world.None, 50 * time.Millisecond, 0, 3 * time.Second}).Draw(t, "period"),
			Lag:    ms("lag", 0, 100), InStep: rapid.Bool().Draw(t, "in step"), WaitingTokens: rapid.Bool().Draw(t, "waiting tokens"),
			Loss: rapid.SampledFrom([]float64{0, 0.3}).Draw(t, "loss"), Skew: ms("skew", 0, 50),
		},
	}
	for i := range rapid.IntRange(1, 4).Draw(t, "engines") {
		e := world.Engine{Profile: p, AdapterSlots: rapid.IntRange(0, 2).Draw(t, "slots"), AdapterLoad: ms("load", 1, 400)}
		if i%2 == 1 {
			e.Profile = slow
		}
		cfg.Engines = append(cfg.Engines, e)
	}
	if rapid.Bool().Draw(t, "horizon") {
		cfg.Horizon = ms("horizon at", 1, 8000)
	}
	for range rapid.IntRange(0, 5).Draw(t, "incidents") {
		x := world.Incident{
			Kind:   rapid.SampledFrom([]world.Kind{world.Drain, world.Restart, world.Die, world.Freeze, world.Stuck, world.Silent, world.Slow}).Draw(t, "kind"),
			Engine: rapid.IntRange(0, len(cfg.Engines)-1).Draw(t, "engine"),
			At:     ms("at", 0, 4000), For: ms("for", 1, 1500), Factor: rapid.SampledFrom([]float64{0.5, 3}).Draw(t, "factor"),
			Notice: ms("notice", 0, 1000),
		}
		if x.Kind != world.Freeze && rapid.IntRange(0, 5).Draw(t, "for ever") == 0 {
			x.For = 0
		}
		with := cfg
		with.Incidents = append(slices.Clone(cfg.Incidents), x)
		if with.Validate() == nil { // no two of one effect at a time
			cfg = with
		}
	}
	list := arrivals(rapid.Uint64Range(0, 1000).Draw(t, "arrivals"), shape{
		n: rapid.IntRange(1, 120).Draw(t, "n"), perSecond: rapid.SampledFrom([]float64{5, 30, 300}).Draw(t, "rate"),
		prompt: 700, output: rapid.SampledFrom([]int64{1, 20, 120}).Draw(t, "output"), groups: 5,
		adapters: rapid.IntRange(0, 3).Draw(t, "adapters"), patience: rapid.SampledFrom([]time.Duration{0, 3 * time.Second}).Draw(t, "patience"),
		outputs: rapid.Bool().Draw(t, "outputs"),
	})
	return cfg, list
}

// Whatever happens, the invariants of a run hold, jumping over quiet passes changes nothing, and a run can be repeated.
func TestAnyWorld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg, list := drawConfig(t)
		leaping, err := world.Run(cfg, world.NewList(list))
		require.NoError(t, err)
		again, err := world.Run(cfg, world.NewList(list))
		require.NoError(t, err)
		require.Equal(t, leaping.Digest(), again.Digest(), "the run cannot be repeated")
		cfg.PassByPass = true
		passing, err := world.Run(cfg, world.NewList(list))
		require.NoError(t, err)
		for i := range passing.Records {
			require.Equal(t, passing.Records[i], leaping.Records[i], "the jump changes a record")
		}
		require.Equal(t, passing, leaping)

		outcomes := map[world.Outcome]int{}
		attempts := 0
		for _, r := range leaping.Records {
			outcomes[r.Outcome]++
			attempts += r.Attempts
		}
		if cfg.Horizon == 0 {
			require.Len(t, leaping.Records, len(list))
			require.Zero(t, outcomes[world.Unfinished])
		}
		finished, submitted := 0, 0
		for _, e := range leaping.Engines {
			finished += int(e.Totals.Finished)
			submitted += int(e.Totals.Submitted)
			require.LessOrEqual(t, e.Busy, leaping.End+time.Minute)
		}
		require.GreaterOrEqual(t, finished, outcomes[world.Finished])
		require.LessOrEqual(t, submitted, attempts)
	})
}

// In exact mode too: passes are then never jumped over, and the router's index follows the engines.
func TestAnyWorldExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg, list := drawConfig(t)
		cfg.Cache = world.Cache{Exact: true, Delay: time.Duration(rapid.IntRange(0, 200).Draw(t, "delay")) * time.Millisecond}
		a, err := world.Run(cfg, world.NewList(list))
		require.NoError(t, err)
		b, err := world.Run(cfg, world.NewList(list))
		require.NoError(t, err)
		require.Equal(t, a.Digest(), b.Digest())
	})
}

// The same seed gives the same bytes on any number of threads, beside other runs, and with the collector at work.
func TestDeterministic(t *testing.T) {
	list := arrivals(7, shape{n: 1500, perSecond: 120, prompt: 700, output: 60, groups: 9, adapters: 3, patience: 4 * time.Second})
	cfg := world.Config{
		Seed: 3, Engines: engines(4, small()), Gateways: 3, Retries: 2, Telemetry: world.Telemetry{Period: 100 * time.Millisecond, Loss: 0.1},
		Incidents: []world.Incident{
			{Kind: world.Restart, Engine: 0, At: 3 * time.Second, For: time.Second}, {Kind: world.Freeze, Engine: 1, At: 5 * time.Second, For: time.Second},
		},
	}
	for i := range cfg.Engines {
		cfg.Engines[i].AdapterSlots = 2
	}
	want := run(t, cfg, list).Digest()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, threads := range []int{1, 2, 7} {
		runtime.GOMAXPROCS(threads)
		var wg sync.WaitGroup
		got := make([]uint64, 3)
		for i := range got {
			wg.Go(func() {
				r, err := world.Run(cfg, world.NewList(list))
				if err == nil {
					got[i] = r.Digest()
				}
				runtime.GC()
			})
		}
		wg.Wait()
		require.Equal(t, []uint64{want, want, want}, got, "%d threads", threads)
	}
	cfg.Seed++
	require.NotEqual(t, want, run(t, cfg, list).Digest(), "the seed has no influence")
}

// One engine is what the plainest loop over its passes makes of it.
func TestAgainstNaiveLoop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := small()
		p.KVTokens = 16 * rapid.Int64Range(60, 200).Draw(t, "blocks")
		list := arrivals(rapid.Uint64().Draw(t, "arrivals"), shape{n: 60, perSecond: rapid.SampledFrom([]float64{4, 40}).Draw(t, "rate"), prompt: 700, output: 80, groups: 3})
		r, err := world.Run(world.Config{Engines: engines(1, p), Chooser: only(0), Net: world.None}, world.NewList(list))
		require.NoError(t, err)

		e, err := sim.New(p, sim.Options{})
		require.NoError(t, err)
		first, last := make([]time.Duration, len(list)), make([]time.Duration, len(list))
		now, next := time.Duration(0), 0
		submit := func(until time.Duration) { // what comes in the very moment in which a pass begins has missed it
			for ; next < len(list) && list[next].At < until; next++ {
				a := list[next]
				require.NoError(t, e.Submit(sim.Request{ID: uint64(next), Blocks: a.Blocks, PromptTokens: a.Ask.PromptTokens, OutputTokens: a.OutputTokens}))
			}
		}
		for {
			ms, ok := e.Begin()
			if !ok {
				if next == len(list) {
					break
				}
				now = list[next].At
				submit(now + 1)
				continue
			}
			now += time.Duration(ms*1e6 + 0.5)
			submit(now)
			for _, ev := range e.End(nil) {
				switch ev.Kind {
				case sim.FirstToken:
					first[ev.ID] = now
				case sim.Finished:
					last[ev.ID] = now
				}
			}
		}
		for i, rec := range r.Records {
			require.Equal(t, [2]time.Duration{first[i], last[i]}, [2]time.Duration{rec.FirstToken, rec.End}, fmt.Sprint("request ", i))
		}
	})
}
