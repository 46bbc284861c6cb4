package router_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// suspects makes a pool of two engines, of which b has reported the same busy or wedged figures ten times.
func suspects(t *testing.T, cfg router.Config, running, waiting float64) (*router.Pool, *clock) {
	t.Helper()
	c := newClock()
	p := newPool(t, c, cfg, "a", "b")
	for i := range 10 {
		c.advance(500 * time.Millisecond)
		busy(t, p, c, "a", float64(i%2), 0)
		busy(t, p, c, "b", running, waiting)
		suspect := candidate(t, scored(t, p, router.Request{}), "b").Suspect
		require.Equal(t, i == 9, suspect != "", "after %d observations", i+1)
	}
	return p, c
}

func TestSuspectEndpoint(t *testing.T) {
	for name, figures := range map[telemetry.SuspectReason][2]float64{telemetry.SuspectFrozen: {3, 1}, telemetry.SuspectWedged: {0, 4}} {
		t.Run(string(name), func(t *testing.T) {
			p, c := suspects(t, router.Config{ProbeAfter: 30 * time.Second}, figures[0], figures[1])
			b := candidate(t, scored(t, p, router.Request{}), "b")
			require.Equal(t, name, b.Suspect)
			require.Equal(t, telemetry.Missing, b.Freshness)
			require.Equal(t, telemetry.Missing, b.Requests.Class)
			require.Equal(t, 1600.0, b.Terms.Uncertainty, "priced as unknown")
			require.False(t, b.ProbeDue)
			require.Equal(t, 1.0, b.Load.Requests, "the mean of those that are known")
			require.Equal(t, name, p.Stats().Endpoints[1].Suspect)

			both := func() { // the readings stand still, and are new
				busy(t, p, c, "a", 1, 0)
				busy(t, p, c, "b", figures[0], figures[1])
			}
			c.advance(30*time.Second - time.Millisecond)
			both()
			require.Equal(t, "a", scored(t, p, router.Request{}).Endpoint, "not yet")
			c.advance(time.Millisecond)
			both()
			b = candidate(t, scored(t, p, router.Request{}), "b")
			require.True(t, b.ProbeDue)
			require.Zero(t, b.Load.Requests+b.Terms.Uncertainty, "priced as if free")
			probe := mustReserve(t, p, router.Request{PromptTokens: 1000})
			require.Equal(t, "b", probe.Endpoint().ID, "one request goes to see")
			require.True(t, probe.Decision().Probe)

			for range 5 { // one at a time, while a is trusted
				l := mustReserve(t, p, router.Request{PromptTokens: 100_000})
				require.Equal(t, "a", l.Endpoint().ID)
				require.Equal(t, router.Probing, candidate(t, scored(t, p, router.Request{}), "b").Excluded)
			}
			alone := router.Request{Exclude: []string{"a"}, ExcludeHard: true}
			require.Equal(t, "b", scored(t, p, alone).Endpoint, "the limit holds beside trusted ones only")

			c.advance(40 * time.Second)
			probe.Cancel()
			both()
			require.Equal(t, router.NoReason, candidate(t, scored(t, p, router.Request{}), "b").Excluded)
			require.False(t, candidate(t, scored(t, p, router.Request{}), "b").ProbeDue, "the next one is due after the last has ended")
			c.advance(30 * time.Second)
			both()
			require.True(t, candidate(t, scored(t, p, router.Request{}), "b").ProbeDue)

			busy(t, p, c, "a", 1, 0)
			c.advance(time.Second)
			busy(t, p, c, "b", 2, 0) // a figure has moved and a request runs
			b = candidate(t, scored(t, p, router.Request{}), "b")
			require.Empty(t, b.Suspect)
			require.Equal(t, telemetry.Fresh, b.Freshness)
		})
	}
}

func TestAllSuspectStillServe(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a", "b")
	for range 10 {
		c.advance(500 * time.Millisecond)
		busy(t, p, c, "a", 3, 1)
		busy(t, p, c, "b", 3, 1)
	}
	got := map[string]int{}
	for range 20 {
		l := mustReserve(t, p, router.Request{PromptTokens: 100})
		require.True(t, l.Decision().Degraded)
		got[l.Endpoint().ID]++
	}
	require.Equal(t, map[string]int{"a": 10, "b": 10}, got, "nobody is trusted, so the limit of one does not hold")
}

func TestUnobservedMax(t *testing.T) {
	for _, c := range []struct{ set, want int }{{0, 4}, {1, 1}, {router.None, 0}, {9, 9}} {
		clk := newClock()
		p := newPool(t, clk, router.Config{UnobservedMax: c.set, Policy: router.LeastRequests()}, "new", "old")
		for range 20 {
			mustReserve(t, p, router.Request{Exclude: []string{"new"}, ExcludeHard: true})
		}
		busy(t, p, clk, "old", 0, 0)
		got := map[string]int{}
		for range 10 {
			got[mustReserve(t, p, router.Request{}).Endpoint().ID]++
		}
		require.Equal(t, c.want, got["new"], "UnobservedMax %d", c.set)
		if c.want < 10 {
			require.Equal(t, router.UnobservedLimit, candidate(t, scored(t, p, router.Request{}), "new").Excluded)
		}
		busy(t, p, clk, "new", 0, 0)
		require.Equal(t, "new", mustReserve(t, p, router.Request{}).Endpoint().ID, "the first reading lifts it")
	}
}

// Who has its first token shows that the endpoint works, and makes room for another; who ends without one makes room, too.
func TestUnobservedMaxCountsWhoWaits(t *testing.T) {
	for name, shown := range map[string]func(*router.Lease){
		"first token": (*router.Lease).FirstToken,
		"progress":    func(l *router.Lease) { l.Progress(3) },
		"done":        func(l *router.Lease) { l.Done(router.Usage{}) },
		"cancelled":   (*router.Lease).Cancel,
	} {
		t.Run(name, func(t *testing.T) {
			clk := newClock()
			p := newPool(t, clk, router.Config{UnobservedMax: 2, Policy: router.LeastRequests()}, "new", "old")
			busy(t, p, clk, "old", 50, 0)
			first := mustReserve(t, p, router.Request{})
			for _, want := range []string{"new", "old"} {
				require.Equal(t, want, mustReserve(t, p, router.Request{}).Endpoint().ID)
			}
			shown(first)
			for _, want := range []string{"new", "old"} {
				require.Equal(t, want, mustReserve(t, p, router.Request{}).Endpoint().ID)
			}
			require.NoError(t, p.Remove("new"))
			require.NoError(t, p.Add(router.Endpoint{ID: "new"}))
			require.Equal(t, "old", mustReserve(t, p, router.Request{}).Endpoint().ID, "its leases are found again")
		})
	}
}

// That room is offered to those who wait for it.
func TestUnobservedMaxInQueue(t *testing.T) {
	for name, shown := range map[string]func(*router.Lease){
		"first token": (*router.Lease).FirstToken, "progress": func(l *router.Lease) { l.Progress(3) },
	} {
		t.Run(name, func(t *testing.T) {
			clk := newClock()
			p := newPool(t, clk, router.Config{UnobservedMax: 1, Caps: admission.Caps{Endpoint: 50}, Queue: router.Queue{Max: 4}}, "new", "old")
			busy(t, p, clk, "old", 50, 0)
			first := granted(t, enqueue(t, p, router.Request{}))
			ticket := enqueue(t, p, router.Request{})
			require.False(t, done(ticket))
			shown(first)
			require.Equal(t, "new", granted(t, ticket).Endpoint().ID)
		})
	}
}

func TestCircuit(t *testing.T) {
	one := func(t *testing.T) (*router.Pool, *clock) {
		c := newClock()
		p := newPool(t, c, router.Config{}, "a")
		return p, c
	}
	state := func(p *router.Pool) string { return p.Stats().Endpoints[0].Circuit }
	fail := func(t *testing.T, p *router.Pool, n int) {
		for range n {
			mustReserve(t, p, router.Request{}).Fail(errors.New("x"))
		}
	}
	t.Run("five in a row open it, and one probe closes it", func(t *testing.T) {
		p, c := one(t)
		fail(t, p, 4)
		mustReserve(t, p, router.Request{}).Done(router.Usage{})
		fail(t, p, 4)
		mustReserve(t, p, router.Request{}).Cancel() // never counts
		require.Equal(t, "closed", state(p))
		fail(t, p, 1)
		require.Equal(t, "open", state(p))
		rejected(t, p, router.Request{}, router.ErrNoEndpoints)
		c.advance(time.Second/2 - 1)
		rejected(t, p, router.Request{}, router.ErrNoEndpoints)
		c.advance(1)
		require.Equal(t, "half-open", state(p))
		probe := mustReserve(t, p, router.Request{})
		require.True(t, probe.Decision().Probe)
		rejected(t, p, router.Request{}, router.ErrNoEndpoints) // one at a time
		probe.Cancel()                                          // says nothing
		probe = mustReserve(t, p, router.Request{})
		require.True(t, probe.Decision().Probe)
		probe.Done(router.Usage{})
		require.Equal(t, "closed", state(p))
		require.False(t, mustReserve(t, p, router.Request{}).Decision().Probe)
		require.EqualValues(t, 1, p.Stats().Endpoints[0].Opened)
	})
	t.Run("each failed probe doubles the time up to a minute", func(t *testing.T) {
		p, c := one(t)
		fail(t, p, 5)
		for _, wait := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 120, 120} {
			c.advance(wait*time.Second/2 - 1)
			require.Equal(t, "open", state(p))
			c.advance(1)
			fail(t, p, 1)
		}
		c.advance(60 * time.Second)
		mustReserve(t, p, router.Request{}).Done(router.Usage{})
		fail(t, p, 5)
		c.advance(time.Second / 2)
		require.Equal(t, "half-open", state(p), "closed once, it begins at half a second again")
	})
	t.Run("what fails along with another is one failure", func(t *testing.T) {
		p, c := one(t)
		old := reserveN(t, p, router.Request{}, 10)
		c.advance(time.Second)
		for _, l := range old[:9] {
			l.Fail(nil)
		}
		fail(t, p, 3)
		require.Equal(t, "closed", state(p), "1 + 3")
		c.advance(100*time.Millisecond - 1)
		old[9].Fail(nil)
		require.Equal(t, "closed", state(p), "still along with them")
		fail(t, p, 1)
		require.Equal(t, "open", state(p))
	})
	t.Run("half of the last twenty open it", func(t *testing.T) {
		p, _ := one(t)
		for i := range 19 {
			require.Equal(t, "closed", state(p), "after %d", i)
			l := mustReserve(t, p, router.Request{})
			if i%2 == 0 {
				l.Done(router.Usage{})
			} else {
				l.Fail(nil)
			}
		}
		fail(t, p, 1)
		require.Equal(t, "open", state(p))
	})
	t.Run("leases from before it opened say nothing", func(t *testing.T) {
		p, c := one(t)
		old := reserveN(t, p, router.Request{}, 12)
		c.advance(time.Second)
		for _, l := range old[:5] {
			l.Fail(nil)
			c.advance(100 * time.Millisecond)
		}
		require.Equal(t, "open", state(p))
		for _, l := range old[5:] {
			l.Fail(nil)
		}
		c.advance(5 * time.Second)
		require.Equal(t, "half-open", state(p))
		require.EqualValues(t, 1, p.Stats().Endpoints[0].Opened)
	})
	t.Run("nor do they when it has closed since", func(t *testing.T) {
		p, c := one(t)
		old := reserveN(t, p, router.Request{}, 12)
		c.advance(time.Second)
		fail(t, p, 5)
		c.advance(5 * time.Second)
		mustReserve(t, p, router.Request{}).Done(router.Usage{})
		for _, l := range old {
			l.Fail(nil)
		}
		require.Equal(t, "closed", state(p))
	})
	t.Run("where everything is known of the endpoint, too", func(t *testing.T) {
		c := newClock()
		p := newPool(t, c, router.Config{})
		require.NoError(t, p.Add(router.Endpoint{ID: "a", Profile: flat}))
		for range 2 {
			busy(t, p, c, "a", 1, 0)
			fail(t, p, 5)
			rejected(t, p, router.Request{}, router.ErrNoEndpoints)
			c.advance(5 * time.Second)
			busy(t, p, c, "a", 1, 0)
			require.True(t, scored(t, p, router.Request{}).Probe)
			mustReserve(t, p, router.Request{}).Done(router.Usage{})
			require.False(t, scored(t, p, router.Request{}).Probe)
		}
	})
	t.Run("off", func(t *testing.T) {
		c := newClock()
		p := newPool(t, c, router.Config{Circuit: router.Circuit{Failures: router.None, Window: router.None}}, "a")
		fail(t, p, 200)
		require.Equal(t, "closed", state(p))
	})
}

// The weight of a reading beside the ledger is exp(-age/tau): seen in the requests that the cost is computed from.
func TestDecayOfReadings(t *testing.T) {
	const tau = 3 * time.Second
	c := newClock()
	p := newPool(t, c, router.Config{Freshness: router.Freshness{FreshFor: time.Hour, StaleAfter: 2 * time.Hour, Decay: tau}}, "a")
	busy(t, p, c, "a", 1000, 0)
	for age := time.Duration(0); age < 17*tau; age += 7 * time.Millisecond {
		got := candidate(t, scored(t, p, router.Request{}), "a").Load.Requests / 1000
		require.InDelta(t, math.Exp(-age.Seconds()/tau.Seconds()), got, 1e-4, "at %v", age)
		c.advance(7 * time.Millisecond)
	}
	t.Run("towards the ledger's own load by the number of gateways", func(t *testing.T) {
		c := newClock()
		p := newPool(t, c, router.Config{Replicas: 3}, "a")
		for range 4 {
			mustReserve(t, p, router.Request{})
		}
		c.advance(time.Second)
		busy(t, p, c, "a", 50, 0)
		for _, age := range []float64{0, 0.5, 1, 2} {
			got := candidate(t, scored(t, p, router.Request{}), "a").Load.Requests
			require.InDelta(t, 12+math.Exp(-age)*(50-12), got, 1e-2, "at %v s", age)
			c.advance(time.Duration(float64(time.Second) * map[float64]float64{0: 0.5, 0.5: 0.5, 1: 1, 2: 0}[age]))
		}
	})
}

func TestUnknownIsNeitherBestNorWorst(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "idle", "new", "full")
	busy(t, p, c, "idle", 0, 0)
	busy(t, p, c, "full", 2000, 0)
	d := scored(t, p, router.Request{PromptTokens: 100})
	require.Equal(t, 1000.0, candidate(t, d, "new").Load.Requests, "the mean of the fresh ones")
	require.Equal(t, []string{"idle", "new", "full"}, []string{d.Candidates[0].ID, d.Candidates[1].ID, d.Candidates[2].ID})
}

// Nor is it ever less than the pool's own.
func TestUnknownIsNotLessThanOurOwn(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Replicas: 2}, "new", "seen")
	for range 4 {
		mustReserve(t, p, router.Request{PromptTokens: 500, Exclude: []string{"seen"}, ExcludeHard: true})
	}
	busy(t, p, c, "seen", 3, 0)
	c.advance(time.Second)
	require.NoError(t, p.Observe("new", telemetry.Snapshot{ObservedAt: c.now(), KVShare: telemetry.V(0.2)}))
	load := candidate(t, scored(t, p, router.Request{}), "new").Load
	// Four leases of ours, two like them of the other gateway and half of its other two; and as much more as "seen" has, by its weight.
	require.InDelta(t, 7+math.Exp(-1)*(3-1), load.Requests, 1e-9)
	// It has nothing to prefill, where half of 1000 tokens were to be expected.
	require.InDelta(t, 3500-math.Exp(-1)*500, load.PendingPrefill, 1e-9)
	for range 30 {
		mustReserve(t, p, router.Request{PromptTokens: 500, Exclude: []string{"new"}, ExcludeHard: true})
	}
	c.advance(100 * time.Millisecond)
	busy(t, p, c, "seen", 30, 0)
	load = candidate(t, scored(t, p, router.Request{}), "new").Load
	require.Equal(t, 4.0, load.Requests, "the other gateway has nothing at all where we have thirty")
	require.Equal(t, 2000.0, load.PendingPrefill)
}

// What the ledger knows needs no report: beside peers that show the pool's own leases and no more, one without a report has its own.
func TestUnknownHasWhatOthersHaveBeyondTheLedger(t *testing.T) {
	const big = 100_000
	for _, c := range []struct {
		name           string
		lost, others   int64   // KV capacities, 0 = unknown
		before, beyond float64 // memory of "lost", tokens or share, where "seen" has what was sent, and where "more" has 3000 tokens beyond
		seenKV, moreKV float64 // reported shares
	}{
		{"sizes are known", big, big, 1200, 1200 + (0+3000)/2, 0.06, 0.09},
		{"size of the others unknown", big, 0, 6000, (6000 + 9000) / 2, 0.06, 0.09},
		{"less than is its own", big, 0, 1200, 1200, 0.01, 0.01},
		{"own size unknown", 0, big, 0.06, 0.075, 0.06, 0.09},
	} {
		t.Run(c.name, func(t *testing.T) {
			clk := newClock()
			p := newPool(t, clk, router.Config{VisibilityLag: router.None})
			require.NoError(t, p.SetEndpoints([]router.Endpoint{
				{ID: "lost", Profile: score.Profile{KVCapacity: c.lost}},
				{ID: "seen", Profile: score.Profile{KVCapacity: c.others}},
				{ID: "more", Profile: score.Profile{KVCapacity: c.others}},
			}))
			for id, n := range map[string]int{"lost": 2, "seen": 10, "more": 10} {
				others := slices.DeleteFunc([]string{"lost", "seen", "more"}, func(o string) bool { return o == id })
				for range n {
					mustReserve(t, p, router.Request{PromptTokens: 500, MaxOutputTokens: 100, Exclude: others, ExcludeHard: true})
				}
			}
			clk.advance(time.Millisecond)
			tell := func(id string, requests, tokens, kv float64) {
				require.NoError(t, p.Observe(id, telemetry.Snapshot{
					ObservedAt: clk.now(), Running: telemetry.V(requests), Waiting: telemetry.V(0), WaitingTokens: telemetry.V(tokens),
					KVShare: telemetry.V(kv),
				}))
			}
			check := func(requests, pending, kv float64) {
				t.Helper()
				load := candidate(t, scored(t, p, router.Request{}), "lost").Load
				require.Equal(t, requests, load.Requests)
				require.Equal(t, pending, load.PendingPrefill)
				if c.lost > 0 {
					require.InDelta(t, kv, load.KV, 1e-6)
				} else {
					require.InDelta(t, kv, load.KVShare, 1e-9)
				}
			}
			tell("seen", 10, 5000, c.seenKV)
			check(2, 1000, c.before)
			tell("more", 16, 8000, c.moreKV)
			check(2+(0+6)/2, 1000+(0+3000)/2, c.beyond)
		})
	}
}

func TestAdapterMemory(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a", "b")
	idle(t, p, c, "a", "b")
	lora := router.Adapter{ID: "lora", Digest: "1"}
	req := router.Request{Adapter: lora, Exclude: []string{"b"}}
	needed := func(id string, a router.Adapter) float64 {
		return candidate(t, scored(t, p, router.Request{Adapter: a}), id).AdapterNeeded
	}
	require.Equal(t, 0.5, needed("a", lora), "unknown is not cold")
	mustReserve(t, p, req).Done(router.Usage{})
	require.Zero(t, needed("a", lora))
	require.Equal(t, 0.5, needed("b", lora))
	require.Equal(t, 0.5, needed("a", router.Adapter{ID: "lora", Digest: "2"}), "another version is another adapter")
	require.Equal(t, 0.5, needed("a", router.Adapter{ID: "lora1", Digest: "2"}))
	before := 0.0
	for range 40 {
		c.advance(time.Minute)
		now := needed("a", lora)
		require.Greater(t, now, before, "forgotten by and by")
		require.Less(t, now, 0.5)
		before = now
	}
	require.InDelta(t, 0.5, before, 1e-3)

	t.Run("what the engine says counts more", func(t *testing.T) {
		for _, x := range []struct {
			state telemetry.AdapterState
			want  float64
		}{
			{telemetry.AdapterReady, 0}, {telemetry.AdapterLoading, 0.5}, {telemetry.AdapterCached, 0.5}, {telemetry.AdapterUnloaded, 1},
		} {
			c.advance(time.Second)
			require.NoError(t, p.Observe("a", telemetry.Snapshot{
				ObservedAt: c.now(), Running: telemetry.V(0), Waiting: telemetry.V(0),
				Adapters: telemetry.AdapterReport{Known: true, Adapters: []telemetry.Adapter{{ID: "lora", Digest: "1", State: x.state}}},
			}))
			require.Equal(t, x.want, needed("a", lora), x.state)
			require.Equal(t, 1.0, needed("a", router.Adapter{ID: "lora", Digest: "2"}))
			require.Equal(t, 1.0, needed("a", router.Adapter{ID: "other", Digest: "1"}), "not on a list that is known")
		}
		c.advance(3 * time.Second)
		require.Less(t, needed("a", lora), 0.51, "aging, it says nothing")
	})
	t.Run("a restart forgets", func(t *testing.T) {
		q := newPool(t, c, router.Config{}, "a")
		for _, epoch := range []string{"1", "2"} {
			c.advance(time.Second)
			require.NoError(t, q.Observe("a", telemetry.Snapshot{ObservedAt: c.now(), Running: telemetry.V(0), Epoch: epoch}))
			require.Equal(t, 0.5, candidate(t, scored(t, q, router.Request{Adapter: lora}), "a").AdapterNeeded)
			mustReserve(t, q, router.Request{Adapter: lora}).Done(router.Usage{})
			require.Zero(t, candidate(t, scored(t, q, router.Request{Adapter: lora}), "a").AdapterNeeded)
		}
	})
	t.Run("the memory is bounded", func(t *testing.T) {
		q := newPool(t, c, router.Config{}, "a")
		for i := range 65 {
			mustReserve(t, q, router.Request{Adapter: router.Adapter{ID: fmt.Sprint(i), Digest: "1"}}).Done(router.Usage{})
		}
		need := func(i int) float64 {
			return candidate(t, scored(t, q, router.Request{Adapter: router.Adapter{ID: fmt.Sprint(i), Digest: "1"}}), "a").AdapterNeeded
		}
		require.Equal(t, []float64{0.5, 0, 0}, []float64{need(0), need(1), need(64)})
	})
}
