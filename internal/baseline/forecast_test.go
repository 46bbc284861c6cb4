package baseline_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/internal/baseline"
	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/world"
)

// ends runs an engine until it is empty and returns when each request was done, ms.
func ends(e *sim.Engine) map[uint64]float64 {
	out := map[uint64]float64{}
	at := 0.0
	for e.State().Running+e.State().Waiting > 0 {
		ms, events := e.Step(nil)
		at += ms
		for _, ev := range events {
			if ev.Kind == sim.Finished {
				out[ev.ID] = at
			}
		}
	}
	return out
}

// twin is an engine that has come into its state by the given requests, after so many passes, and perhaps in the middle of one more.
func twin(t *rapid.T, p sim.Profile, requests []sim.Request, passes int, midway bool) *sim.Engine {
	e, err := sim.New(p, sim.Options{})
	require.NoError(t, err)
	for i, r := range requests {
		require.NoError(t, e.Submit(r))
		if i%2 == 1 {
			for range passes {
				e.Step(nil)
			}
		}
	}
	if midway {
		e.Begin()
	}
	return e
}

func drawForecast(t *rapid.T, shared bool, least int64) (p sim.Profile, list []sim.Request, q sim.Request) {
	p = sim.Profile{
		Base: 5, PerToken: 0.5, PerContext: 0.25, PerPair: 0.125, PerSeq: 0.0625, Knee: 2,
		BlockSize: rapid.SampledFrom([]int64{1, 4}).Draw(t, "block size"), MaxSeqs: rapid.IntRange(1, 6).Draw(t, "seqs"),
		Budget: rapid.Int64Range(1, 64).Draw(t, "budget"),
	}
	p.KVTokens = p.BlockSize * rapid.Int64Range(least, least+80).Draw(t, "kv blocks")
	request := func(id uint64) sim.Request {
		room := min(p.Blocks()*p.BlockSize, 60)
		r := sim.Request{ID: id, PromptTokens: rapid.Int64Range(1, room/2).Draw(t, "prompt")}
		r.OutputTokens = rapid.Int64Range(1, room/2).Draw(t, "output")
		if shared {
			r.Blocks = path(rapid.Uint64Range(1, 2).Draw(t, "group"), int(r.PromptTokens/p.BlockSize))
		}
		return r
	}
	for id := range uint64(rapid.IntRange(0, 8).Draw(t, "requests")) {
		list = append(list, request(id+1))
	}
	return p, list, request(100)
}

// checkForecast compares the forecast with what the engine then does.
func checkForecast(t *rapid.T, p sim.Profile, list []sim.Request, q sim.Request) {
	passes, midway := rapid.IntRange(0, 4).Draw(t, "passes"), rapid.Bool().Draw(t, "midway")
	e := twin(t, p, list, passes, midway)
	truth := world.Truth{Engine: e, Up: true, Slow: 1}
	if midway {
		truth.PassEnd = 1 // ends at once, whatever has gone by of it
	}
	own, added := baseline.Forecast(truth, time.Second, q)
	alone := ends(twin(t, p, list, passes, midway))
	require.NoError(t, e.Submit(q))
	with := ends(e)
	require.InDelta(t, with[q.ID], own, 1e-6)
	sum := 0.0
	for id, at := range with {
		sum += at - alone[id]
	}
	require.InDelta(t, sum, added, 1e-6)
}

// Without shared blocks the forecast is what the engine does, with preemptions and all.
func TestForecastWhereMemoryIsShort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, list, q := drawForecast(t, false, 60)
		checkForecast(t, p, list, q)
	})
}

// With shared blocks too, as long as there is memory.
func TestForecastWithSharedBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, list, q := drawForecast(t, true, 2000)
		checkForecast(t, p, list, q)
	})
}

// With both it does not know which blocks are lost. It comes to an end all the same.
func TestForecastEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, list, q := drawForecast(t, true, 60)
		e := twin(t, p, list, rapid.IntRange(0, 4).Draw(t, "passes"), false)
		own, added := baseline.Forecast(world.Truth{Engine: e, Up: true, Slow: 1}, 0, q)
		require.Greater(t, own, p.Base)
		require.False(t, math.IsInf(own, 0) || math.IsNaN(added))
	})
}

// Two that run share most of the memory, and one that waits needs most of it: it gets it when both have gone.
func TestForecastOfSharedMemory(t *testing.T) {
	e, err := sim.New(sim.Profile{Base: 10, KVTokens: 80, BlockSize: 4, MaxSeqs: 3, Budget: 100}, sim.Options{})
	require.NoError(t, err)
	head := path(1, 10)
	for id := range uint64(2) {
		require.NoError(t, e.Submit(sim.Request{ID: id, PromptTokens: 42, OutputTokens: 3, Blocks: head}))
		e.Step(nil)
	}
	own, _ := baseline.Forecast(world.Truth{Engine: e, Up: true, Slow: 1}, 0, sim.Request{PromptTokens: 78, OutputTokens: 1})
	// One pass ends the first, another the second; then one for the newcomer.
	require.InDelta(t, 30, own, 1e-9)
}

// Two that wait will share blocks. When the first of them ends, these stay in use, and a third has to wait for the second.
func TestForecastOfMemoryThatWillBeShared(t *testing.T) {
	e, err := sim.New(sim.Profile{Base: 10, KVTokens: 80, BlockSize: 4, MaxSeqs: 3, Budget: 100}, sim.Options{})
	require.NoError(t, err)
	for id := range uint64(2) {
		require.NoError(t, e.Submit(sim.Request{ID: id, PromptTokens: 42, OutputTokens: 3 + 3*int64(id), Blocks: path(1, 10)}))
	}
	q := sim.Request{ID: 9, PromptTokens: 40, OutputTokens: 1}
	own, _ := baseline.Forecast(world.Truth{Engine: e, Up: true, Slow: 1}, 0, q)
	require.NoError(t, e.Submit(q))
	require.InDelta(t, ends(e)[9], own, 1e-9)
	require.InDelta(t, 70, own, 1e-9)
}

// Down is never.
func TestForecastOfWhatIsDown(t *testing.T) {
	g := open(t, "oracle", 1, 1)
	g.true[0] = nil
	c, err := g.try(g.ask(5))
	require.NoError(t, err)
	require.Zero(t, c.Terms)
	require.False(t, math.IsInf(c.Terms.Own(), 0))
}
