package world_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

func listen(t *testing.T, cfg world.Config, list []world.Arrival) ([]*listener, *world.Result) {
	t.Helper()
	var all []*listener
	cfg.Chooser = func(e world.Env) (world.Chooser, error) {
		all = append(all, &listener{env: e})
		return all[len(all)-1], nil
	}
	r := run(t, cfg, list)
	return all, r
}

// A report says what was true when the poll reached the engine, and carries the time at which it was sent.
func TestReports(t *testing.T) {
	const net, lag, period = 3 * time.Millisecond, 40 * time.Millisecond, 200 * time.Millisecond
	cfg := world.Config{Engines: engines(2, small()), Net: net, Telemetry: world.Telemetry{Period: period, Lag: lag}}
	all, r := listen(t, cfg, steady())
	l := all[0]
	phases := map[time.Duration]bool{}
	for e, reports := range l.reports {
		var before time.Duration
		for i, rep := range reports {
			at := rep.ObservedAt.Sub(l.start)
			switch i {
			case 0:
				require.Zero(t, at, "polled before anybody is served")
			case 1:
				phases[at%period] = true
			default:
				require.Equal(t, period, at-before)
			}
			before = at
			running := 0
			for _, rec := range r.Records {
				if rec.Engine == e && rec.Start >= 0 && rec.Start <= at+net && rec.End-net > at+net {
					running++
				}
			}
			require.Equal(t, running, rep.Running, "engine %d at %v", e, at)
			require.EqualValues(t, 4096, rep.KVCapacity)
			require.EqualValues(t, -1, rep.WaitingTokens)
		}
	}
	require.Len(t, phases, 2, "each has a phase of its own")

	cfg.Telemetry.InStep, cfg.Telemetry.WaitingTokens = true, true
	all, _ = listen(t, cfg, steady())
	require.Zero(t, all[0].reports[1][3].ObservedAt.Sub(all[0].start)%period)
	require.GreaterOrEqual(t, all[0].reports[1][3].WaitingTokens, int64(0))
	for i, at := range all[0].at[:10] { // both engines report in one instant
		require.Equal(t, time.Duration(i/2)*period+2*net+lag, at.Sub(all[0].start))
	}
}

// Polls fail in the share that was asked for; the times of an engine are off by one and the same error.
func TestLossAndSkew(t *testing.T) {
	cfg := world.Config{
		Engines: engines(2, small()), Gateways: 2,
		Telemetry: world.Telemetry{Period: 50 * time.Millisecond, InStep: true, Loss: 0.25, Skew: 20 * time.Millisecond},
	}
	all, _ := listen(t, cfg, steady())
	lost, heard := 0, 0
	offs := map[time.Duration]bool{}
	for _, l := range all {
		for e := range 2 {
			lost += l.lost[e]
			heard += len(l.reports[e])
			for _, rep := range l.reports[e] {
				off := (rep.ObservedAt.Sub(l.start)+25*time.Millisecond)%(50*time.Millisecond) - 25*time.Millisecond
				require.LessOrEqual(t, off.Abs(), 20*time.Millisecond)
				offs[off] = true
			}
		}
	}
	require.InDelta(t, 0.25, float64(lost)/float64(lost+heard), 0.05)
	require.Len(t, offs, 2)
}

// The streams of an engine report how far they are every so many passes.
func TestProgress(t *testing.T) {
	cfg := world.Config{Engines: engines(1, small()), ProgressEvery: 4}
	all, _ := listen(t, cfg, []world.Arrival{one(0, 100, 14), one(time.Hour, 10, 3)})
	require.Equal(t, map[int][]int64{0: {4, 8, 12, 2}}, all[0].steps, "the 16th pass is the second of the second request")
	require.Equal(t, []int{0, 0}, all[0].first)
	cfg.ProgressEvery = world.None
	all, _ = listen(t, cfg, []world.Arrival{one(0, 100, 14)})
	require.Empty(t, all[0].steps)
}

// What a chooser is given has no output length, not even in the capacity of a slice, and does not depend on it.
func TestRoutersDoNotKnowOutputs(t *testing.T) {
	for _, typ := range []reflect.Type{reflect.TypeFor[world.Ask](), reflect.TypeFor[world.Request](), reflect.TypeFor[world.Report]()} {
		for i := range typ.NumField() {
			name := typ.Field(i).Name
			known := name == "MaxOutputTokens" || name == "ExpectedOutputTokens"
			require.True(t, known || !strings.Contains(strings.ToLower(name), "output"), "%v.%s", typ, name)
		}
	}
	list := arrivals(3, shape{n: 50, perSecond: 1e6, prompt: 300, output: 60, groups: 3, outputs: true})
	cfg := world.Config{Engines: engines(2, small())}
	all, _ := listen(t, cfg, list)
	for _, r := range all[0].asked {
		require.EqualValues(t, r.PromptTokens/16, len(r.Blocks))
		require.Equal(t, len(r.Blocks), cap(r.Blocks))
		require.Equal(t, len(r.Blocks), r.Prefix.Blocks())
	}
	// All of them come before the first one ends: whatever the lengths, the choices are the same.
	choices := func(list []world.Arrival) []int {
		var out []int
		for _, r := range run(t, world.Config{Engines: engines(4, small())}, list).Records {
			out = append(out, r.Engine)
		}
		return out
	}
	want := choices(list)
	for i := range list {
		list[i].OutputTokens = 60 - list[i].OutputTokens + 1
		list[i].Blocks = list[i].Blocks[:list[i].Ask.PromptTokens/16]
	}
	require.Equal(t, want, choices(list))
}

// With exact events that take no time, what the router believes to be cached is what is cached.
func TestExactCache(t *testing.T) {
	maker := world.PoolChooser(router.Config{})
	checked, cached := 0, int64(0)
	cfg := world.Config{
		Engines: engines(3, small()), Net: world.None, Cache: world.Cache{Exact: true}, Retries: 2,
		Incidents: []world.Incident{{Kind: world.Restart, Engine: 1, At: 6 * second, For: second}},
	}
	cfg.Chooser = func(e world.Env) (world.Chooser, error) {
		c, err := maker(e)
		return &auditor{Chooser: c, audit: func(r *world.Request) {
			for i, ep := range e.Endpoints {
				truth := e.Truth(i)
				if !truth.Up {
					continue
				}
				// One token more than the prompt, so that its last block counts as it does in the index.
				want := truth.Engine.Cached(sim.Request{Blocks: r.Blocks, PromptTokens: r.PromptTokens + 1})
				got, err := c.(interface{ Pool() *router.Pool }).Pool().Cached(ep.ID, r.Prefix)
				require.NoError(t, err)
				require.Equal(t, want, got, "request %d, engine %d", r.Number, i)
				checked++
				cached += got
			}
		}}, err
	}
	list := arrivals(5, shape{n: 600, perSecond: 40, prompt: 700, output: 30, groups: 6, outputs: true, patience: 2 * second})
	run(t, cfg, list)
	require.Greater(t, checked, 1000)
	require.Positive(t, cached)

	// Approximate knowledge is another.
	cfg.Chooser, cfg.Cache.Exact = maker, false
	f := run(t, cfg, list).Figures(world.SLO{})
	require.NotEqual(t, f.HitShare, f.PredictedHitShare)
}

// auditor looks before every choice.
type auditor struct {
	world.Chooser
	audit func(r *world.Request)
}

func (a *auditor) Choose(r *world.Request) (world.Choice, error) {
	a.audit(r)
	return a.Chooser.Choose(r)
}

// Late events are believed late.
func TestCacheDelay(t *testing.T) {
	heard := map[prefix.EventKind]int{}
	var at []time.Duration
	cfg := world.Config{Engines: engines(1, small()), Cache: world.Cache{Exact: true, Delay: 30 * time.Millisecond}}
	cfg.Chooser = func(e world.Env) (world.Chooser, error) {
		start := e.Now()
		return &tap{choose: func() world.Choice { return world.Choice{} }, cache: func(ev prefix.Event) {
			heard[ev.Kind]++
			at = append(at, e.Now().Sub(start))
		}}, nil
	}
	a := one(0, 64, 40)
	a.Blocks = []uint64{1, 2, 3, 4}
	run(t, cfg, []world.Arrival{a})
	require.Equal(t, map[prefix.EventKind]int{prefix.Stored: 1}, heard, "four blocks in one event")
	require.Equal(t, []time.Duration{32 * time.Millisecond}, at)
}

type tap struct {
	world.Deaf
	choose func() world.Choice
	cache  func(prefix.Event)
}

func (p *tap) Choose(*world.Request) (world.Choice, error) { return p.choose(), nil }

func (p *tap) Cache(_ int, e prefix.Event) { p.cache(e) }

// One place, two adapters by turns: each request but those that follow its like waits for a load.
func TestAdapters(t *testing.T) {
	cfg := world.Config{Engines: engines(1, small()), Telemetry: world.Telemetry{Period: 100 * time.Millisecond, InStep: true}}
	cfg.Engines[0].AdapterSlots, cfg.Engines[0].AdapterLoad = 1, 300*time.Millisecond
	var list []world.Arrival
	for i, id := range "ABBA" {
		a := one(time.Duration(i)*time.Second, 50, 5)
		a.Ask.Adapter = router.Adapter{ID: string(id), Digest: "1"}
		list = append(list, a)
	}
	all, r := listen(t, cfg, list)
	for i, cold := range []bool{true, true, false, true} {
		rec := r.Records[i]
		require.Equal(t, cold, rec.ColdLoad)
		wait := time.Duration(0)
		if cold {
			wait = 300 * time.Millisecond
		}
		require.Equal(t, wait, rec.Start-rec.Queued)
	}
	last := all[0].reports[0][31]
	require.Equal(t, 3100*time.Millisecond, last.ObservedAt.Sub(all[0].start))
	require.Equal(t, []telemetry.Adapter{{ID: "A", Digest: "1", State: telemetry.AdapterLoading}}, last.Adapters)
	require.Equal(t, 1, last.Waiting)

	// One place and two adapters in use at once: the second waits for the first to end, not only to load.
	list[1].At = list[0].At
	list[0].OutputTokens = 100
	r = run(t, world.Config{Engines: cfg.Engines, Chooser: only(0)}, list[:2])
	require.Equal(t, r.Records[0].End-time.Millisecond+300*time.Millisecond, r.Records[1].Start)
}

// An oracle sees what no router does: who is on the way, what runs, and when the pass ends, jump or no jump.
func TestTruth(t *testing.T) {
	for _, each := range []bool{false, true} {
		var seen []world.Truth
		var waiting []int
		cfg := world.Config{Engines: engines(1, small()), PassByPass: each}
		cfg.Chooser = func(e world.Env) (world.Chooser, error) {
			return fixed{choose: func(*world.Request) (world.Choice, error) {
				truth := e.Truth(0)
				seen = append(seen, truth)
				waiting = append(waiting, truth.Engine.State().Running)
				return world.Choice{}, nil
			}}, nil
		}
		r := run(t, cfg, []world.Arrival{one(0, 100, 50), one(0, 20, 50), one(300*time.Millisecond, 10, 1)})
		require.Empty(t, seen[0].Coming)
		require.Zero(t, seen[0].PassEnd)
		require.Len(t, seen[1].Coming, 1)
		require.EqualValues(t, 100, seen[1].Coming[0].PromptTokens)
		require.Empty(t, seen[2].Coming)
		require.Equal(t, []int{0, 0, 2}, waiting)
		require.Equal(t, r.Records[2].Start, seen[2].PassEnd, "the third starts when the pass that it has seen is over")
		require.Equal(t, [2]any{true, 1.0}, [2]any{seen[2].Up, seen[2].Slow})
	}
}
