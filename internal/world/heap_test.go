package world

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/router"
)

// The heap gives what a stable sort by time and rank would.
func TestHeapAgainstSort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h heap
		var naive []event
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				e := event{
					at: rapid.Int64Range(0, 4).Draw(t, "at"), ref: uint64(len(naive)) | rapid.Uint64().Draw(t, "ref")<<8,
					rank: rankOf(eventKind(rapid.IntRange(0, 3).Draw(t, "kind")), rapid.Uint64Range(0, 2).Draw(t, "who")),
				}
				h.push(e)
				naive = append(naive, e)
				slices.SortStableFunc(naive, func(a, b event) int {
					switch {
					case a.at != b.at:
						return int(a.at - b.at)
					case a.rank < b.rank:
						return -1
					case a.rank > b.rank:
						return 1
					}
					return 0
				})
			},
			"pop": func(t *rapid.T) {
				if len(naive) == 0 {
					return
				}
				e := h.pop()
				e.seq = 0
				require.Equal(t, naive[0], e)
				naive = naive[1:]
			},
			"": func(t *rapid.T) { require.Len(t, h.list, len(naive)) },
		})
	})
}

// The draws are uniform and have nothing to do with each other.
func TestDraw(t *testing.T) {
	var tenths [10]int
	product := 0.0
	const n = 20000
	for i := range uint64(n) {
		a, b := draw(1, drawLoss, i, 0), draw(1, drawLoss, 0, i)
		tenths[int(a*10)]++
		product += (a - 0.5) * (b - 0.5)
	}
	for _, c := range tenths {
		require.InDelta(t, n/10, c, 5*math.Sqrt(n/10))
	}
	require.InDelta(t, 0, product/n, 5.0/12/math.Sqrt(n))
	require.NotEqual(t, draw(1, drawLoss, 1, 1), draw(2, drawLoss, 1, 1))
	require.NotEqual(t, draw(1, drawLoss, 1, 1), draw(1, drawPhase, 1, 1))
}

// broken is a world with one engine in which a test can break something.
func broken(t *testing.T, n int) *world {
	t.Helper()
	p, _ := sim.ProfileByName("h100-8b")
	list := make([]Arrival, n)
	for i := range list {
		list[i] = Arrival{Ask: Ask{PromptTokens: 100}, OutputTokens: 50}
	}
	w, err := newWorld(Config{Engines: []Engine{{Profile: p}}}, NewList(list))
	require.NoError(t, err)
	w.until(t, func() bool { return len(w.records) == n })
	return w
}

// until steps until the condition holds.
func (w *world) until(t *testing.T, what func() bool) {
	t.Helper()
	for !what() {
		require.True(t, w.step())
		require.NoError(t, w.fault)
	}
}

// Every check of a run finds what it is there to find.
func TestInvariantsCanBreak(t *testing.T) {
	running := func(w *world) func() bool { return func() bool { return w.nodes[0].engine.State().Running > 0 } }
	for name, c := range map[string]struct {
		break_ func(t *testing.T, w *world)
		want   string
	}{
		"an event in the past": {func(t *testing.T, w *world) {
			w.until(t, running(w))
			w.push(w.now-1, evSample, 0, 0)
		}, "before its cause"},
		"an idle engine": {func(t *testing.T, w *world) {
			w.until(t, running(w))
			n := w.nodes[0]
			n.settle()
			n.busy = false
			w.sample()
		}, "requests running, 0 waiting"},
		"a lost pass": {func(t *testing.T, w *world) {
			w.until(t, running(w))
			w.nodes[0].settle()
			w.nodes[0].token++
			w.cfg.SampleEvery *= 1000 // it would see the idle engine
		}, "nothing will ever happen"},
		"blocks of nobody": {func(_ *testing.T, w *world) { w.nodes[0].check(0, 0, 3) }, "3 blocks in use by nobody"},
		"too many running": {func(_ *testing.T, w *world) {
			w.nodes[0].busy = true
			w.nodes[0].check(1000, 0, 3)
		}, "more than 256"},
		"two ends": {func(t *testing.T, w *world) {
			w.records[0].Outcome = Finished
			w.until(t, running(w))
			w.end(0, Failed)
		}, "ends as finished and as failed"},
		"a lost request": {func(t *testing.T, w *world) {
			w.until(t, func() bool { return w.open == 0 })
			w.records[1].Outcome = Open
		}, "never ended"},
		"a late start": {func(t *testing.T, w *world) {
			w.until(t, func() bool { return w.open == 0 })
			w.records[1].FirstToken = w.records[1].Start - 1
		}, "FirstToken at"},
		"a cached last token": {func(t *testing.T, w *world) {
			w.until(t, func() bool { return w.open == 0 })
			w.records[1].Cached = w.records[1].PromptTokens
		}, "the last never can be"},
		"a lost slot": {func(t *testing.T, w *world) {
			w.until(t, func() bool { return w.open == 0 })
			w.gates[0].take()
		}, "slots are open"},
		"an open lease": {func(t *testing.T, w *world) {
			w.until(t, func() bool { return w.open == 0 })
			_, err := w.gates[0].chooser.Choose(&Request{Ask: Ask{PromptTokens: 1}, Slot: 9})
			require.NoError(t, err)
		}, "1 leases are open"},
		"an unknown engine": {func(_ *testing.T, w *world) {
			w.gates[0].chooser.(*poolChooser).note(errors.New("boom"))
		}, "boom"},
		"a request left in its engine": {func(t *testing.T, w *world) {
			w.until(t, func() bool { return w.open == 0 })
			require.NoError(t, w.nodes[0].engine.Submit(sim.Request{ID: 1 << 40, PromptTokens: 1, OutputTokens: 1}))
		}, "3 requests came in, 2 finished"},
	} {
		t.Run(name, func(t *testing.T) {
			w := broken(t, 2)
			c.break_(t, w)
			for w.fault == nil && w.step() {
			}
			if w.fault == nil {
				w.finish()
			}
			require.ErrorContains(t, w.fault, c.want)
		})
	}
	w := broken(t, 2)
	for w.step() {
	}
	w.finish()
	require.NoError(t, w.fault, "nothing was broken")
}

// A chooser that names an engine that is not there ends the run.
func TestWrongEngine(t *testing.T) {
	for _, engine := range []int{-1, 1} {
		cfg := Config{Engines: broken(t, 0).cfg.Engines, Chooser: func(Env) (Chooser, error) { return wrong{engine: engine}, nil }}
		_, err := Run(cfg, NewList([]Arrival{{Ask: Ask{PromptTokens: 1}, OutputTokens: 1}}))
		require.ErrorContains(t, err, "names engine")
	}
	_, err := Run(Config{Engines: broken(t, 0).cfg.Engines, Chooser: func(Env) (Chooser, error) { return nil, errors.New("no") }}, NewList(nil))
	require.ErrorContains(t, err, "chooser of gateway 0: no")
	_, err = Run(Config{Engines: broken(t, 0).cfg.Engines, Chooser: PoolChooser(router.Config{TieWindow: 1, Receipts: router.Receipts{Sample: 2}})}, NewList(nil))
	require.ErrorContains(t, err, "Receipts.Sample")
}

type wrong struct {
	Deaf
	engine int
}

func (w wrong) Choose(*Request) (Choice, error) { return Choice{Engine: w.engine}, nil }
