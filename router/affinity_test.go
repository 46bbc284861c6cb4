package router_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// warm makes a pool of a and b with the flat profile, both idle, in which a holds the prompt.
func warm(t *testing.T, cfg router.Config) (*router.Pool, *clock, router.Request) {
	t.Helper()
	c := newClock()
	cfg.Now = c.now
	p, err := router.New(cfg)
	require.NoError(t, err)
	require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a", Profile: flat}, {ID: "b", Profile: flat}}))
	idle(t, p, c, "a", "b")
	req := router.Request{Prefix: long(t, 1, 100), ExpectedOutputTokens: 1}
	only := req
	only.Exclude, only.ExcludeHard = []string{"b"}, true
	mustReserve(t, p, only).Done(router.Usage{})
	c.advance(time.Second)
	idle(t, p, c, "a", "b")
	return p, c, req
}

// report says that the engine has that many waiting requests and tokens, and so much memory in use.
func report(t *testing.T, p *router.Pool, c *clock, id string, waiting, tokens, kv float64) {
	t.Helper()
	require.NoError(t, p.Observe(id, telemetry.Snapshot{
		ObservedAt: c.now(), Running: telemetry.V(1), Waiting: telemetry.V(waiting), WaitingTokens: telemetry.V(tokens), KVShare: telemetry.V(kv),
	}))
}

func TestAffinityCounts(t *testing.T) {
	p, _, req := warm(t, router.Config{})
	d := scored(t, p, req)
	require.Equal(t, "a", d.Endpoint)
	a, b := candidate(t, d, "a"), candidate(t, d, "b")
	require.EqualValues(t, 1600, a.Cached)
	require.Equal(t, 1600.0, a.Terms.Saved)
	require.Zero(t, a.Terms.Prefill)
	require.Equal(t, 1600.0, b.Terms.Prefill)
	require.Zero(t, b.Terms.Saved)
	l := mustReserve(t, p, req)
	require.EqualValues(t, 1600, l.Decision().Cached)
	sums, err := p.Ledger("a")
	require.NoError(t, err)
	require.Zero(t, sums.Live.Prefill, "only uncached tokens are booked")

	other := req
	other.Prefix = scopedPrompt(t, "other", 1, 2, 3)
	require.Zero(t, candidate(t, scored(t, p, other), "a").Cached, "nothing across scopes")
}

func TestBoundsOnAffinity(t *testing.T) {
	for _, x := range []struct {
		name                string
		bounds              router.Bounds
		waiting, tokens, kv float64
		want                router.Reason
	}{
		{"inside", router.Bounds{}, 16, 4000, 0.9, router.NoReason},
		{"waiting", router.Bounds{MaxWaiting: 3}, 4, 0, 0, router.WithheldWaiting},
		{"waiting, at the bound", router.Bounds{MaxWaiting: 4}, 4, 0, 0, router.NoReason},
		{"waiting, by default 128", router.Bounds{}, 129, 0, 0, router.WithheldWaiting},
		{"waiting none", router.Bounds{MaxWaiting: router.None}, 1, 0, 0, router.WithheldWaiting},
		{"memory", router.Bounds{MaxKV: 0.5}, 0, 0, 0.51, router.WithheldKV},
		{"memory, with the request itself", router.Bounds{MaxKV: 0.5}, 0, 0, 0.5 - 1600.0/(1<<20), router.WithheldKV},
		{"memory, just inside", router.Bounds{MaxKV: 0.5}, 0, 0, 0.5 - 1602.0/(1<<20), router.NoReason},
		{"queue delay", router.Bounds{MaxQueueDelay: time.Second, MaxLead: time.Hour}, 0, 1001, 0, router.WithheldQueueDelay},
		{"queue delay, at the bound", router.Bounds{MaxQueueDelay: time.Second, MaxLead: time.Hour}, 0, 1000, 0, router.NoReason},
		{"lead", router.Bounds{MaxLead: time.Second}, 0, 1001, 0, router.WithheldLead},
		{"lead, at the bound", router.Bounds{MaxLead: time.Second}, 0, 1000, 0, router.NoReason},
		{"lead, by default 5 s", router.Bounds{}, 0, 5001, 0, router.WithheldLead},
	} {
		t.Run(x.name, func(t *testing.T) {
			p, c, req := warm(t, router.Config{Bounds: x.bounds})
			report(t, p, c, "a", 0, 0, 0)
			c.advance(time.Second)
			report(t, p, c, "b", 0, 0, 0)
			report(t, p, c, "a", x.waiting, x.tokens, x.kv)
			d := scored(t, p, req)
			a := candidate(t, d, "a")
			require.Equal(t, x.want, a.Withheld, "want %q, got %q", x.want, a.Withheld)
			require.False(t, d.AffinityLifted)
			require.EqualValues(t, 1600, a.Cached, "known all the same")
			if x.want == router.NoReason {
				require.Equal(t, 1600.0, a.Terms.Saved)
				return
			}
			require.Zero(t, a.Terms.Saved)
			require.Equal(t, 1600.0, a.Terms.Prefill, "it competes on its cold cost")
			require.Equal(t, router.NoReason, a.Excluded, "and is not left out")
			require.Equal(t, "b", d.Endpoint)
			require.Contains(t, d.Explain(), "affinity withheld: "+x.want.String())
		})
	}
}

func TestLeadIsOverTheBestAlternative(t *testing.T) {
	p, c, req := warm(t, router.Config{Bounds: router.Bounds{MaxLead: time.Second}})
	c.advance(time.Second)
	report(t, p, c, "a", 0, 4000, 0)
	report(t, p, c, "b", 0, 3000, 0)
	require.Equal(t, router.NoReason, candidate(t, scored(t, p, req), "a").Withheld)
	require.NoError(t, p.Drain("b"))
	require.Equal(t, router.NoReason, candidate(t, scored(t, p, req), "a").Withheld, "alone it leads nobody")
	require.NoError(t, p.Add(router.Endpoint{ID: "c", Profile: flat}))
	report(t, p, c, "c", 0, 2999, 0)
	require.Equal(t, router.WithheldLead, candidate(t, scored(t, p, req), "a").Withheld)
	require.NoError(t, p.Ready("b"))
	require.Equal(t, router.WithheldLead, candidate(t, scored(t, p, req), "a").Withheld)
}

func TestAffinityIsLiftedWhenAllAreOutside(t *testing.T) {
	p, c, req := warm(t, router.Config{Bounds: router.Bounds{MaxWaiting: 2}})
	c.advance(time.Second)
	report(t, p, c, "a", 3, 0, 0)
	report(t, p, c, "b", 2, 0, 0)
	require.Equal(t, router.WithheldWaiting, candidate(t, scored(t, p, req), "a").Withheld)
	c.advance(time.Second)
	report(t, p, c, "a", 3, 0, 0)
	report(t, p, c, "b", 3, 0, 0)
	d := scored(t, p, req)
	require.True(t, d.AffinityLifted)
	require.Equal(t, "a", d.Endpoint, "diverting would only make misses")
	require.Equal(t, 1600.0, d.Terms.Saved)
	require.Equal(t, router.NoReason, d.Withheld)
	require.NoError(t, p.Drain("b"))
	require.True(t, scored(t, p, req).AffinityLifted, "those that cannot serve do not count")
}

func TestNoAffinityFromWhatIsNotFresh(t *testing.T) {
	for age, class := range map[time.Duration]telemetry.Class{3 * time.Second: telemetry.Aging, 11 * time.Second: telemetry.Stale} {
		p, c, req := warm(t, router.Config{})
		c.advance(age)
		idle(t, p, c, "b")
		a := candidate(t, scored(t, p, req), "a")
		require.Equal(t, class, a.Freshness)
		require.Equal(t, router.WithheldNotFresh, a.Withheld)
		require.Zero(t, a.Terms.Saved)
		l := mustReserve(t, p, router.Request{Prefix: req.Prefix, Exclude: []string{"b"}, ExcludeHard: true})
		sums, err := p.Ledger("a")
		require.NoError(t, err)
		require.Zero(t, sums.Live.Prefill, "but there is nothing to compute if it goes there")
		l.Cancel()
		require.NoError(t, p.Drain("b"))
		d := scored(t, p, req)
		require.Equal(t, router.NoReason, candidate(t, d, "a").Withheld, "no other is known better")
		require.Equal(t, 1600.0, d.Terms.Saved)
		require.Equal(t, class == telemetry.Stale, d.Degraded)
		require.NoError(t, p.Ready("b"))
		a = candidate(t, scored(t, p, req), "a")
		require.Equal(t, router.WithheldNotFresh, a.Withheld)
		require.Zero(t, a.Terms.Saved, "and back")
	}
}

// An engine that has not been heard of for a minute is not known as well as those that are aging.
func TestStaleHolderBesideAging(t *testing.T) {
	p, c, req := warm(t, router.Config{})
	c.advance(time.Minute)
	idle(t, p, c, "b")
	c.advance(76 * time.Second) // b has reported twice in a minute
	d := scored(t, p, req)
	require.Equal(t, "b", d.Endpoint)
	require.Less(t, candidate(t, d, "b").Terms.Uncertainty, candidate(t, d, "a").Terms.Uncertainty)
	require.Equal(t, telemetry.Aging, candidate(t, d, "b").Freshness)
	require.Equal(t, router.WithheldNotFresh, candidate(t, d, "a").Withheld)
}

// Without telemetry the pool still knows what it has sent where: it weighs that against what is cached, by cost.
func TestAffinityWithoutTelemetry(t *testing.T) {
	for name, heard := range map[string]bool{"never heard of": false, "silent for an hour": true} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			p, err := router.New(router.Config{Now: c.now})
			require.NoError(t, err)
			require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a", Profile: flat}, {ID: "b", Profile: flat}}))
			if heard {
				idle(t, p, c, "a", "b")
				c.advance(time.Hour)
			}
			onA := func(r router.Request) *router.Lease {
				r.Exclude, r.ExcludeHard = []string{"b"}, true
				return mustReserve(t, p, r)
			}
			req := router.Request{Prefix: long(t, 1, 100), ExpectedOutputTokens: 1}
			onA(req).Done(router.Usage{})
			d := scored(t, p, req)
			require.True(t, d.Degraded)
			require.Equal(t, "a", d.Endpoint, "held there")
			require.Equal(t, 1600.0, d.Terms.Saved)
			onA(router.Request{PromptTokens: 1000, ExpectedOutputTokens: 1})
			require.Equal(t, "a", scored(t, p, req).Endpoint, "one second of other prompts is less than what is saved")
			for range 20 {
				onA(router.Request{PromptTokens: 1000, ExpectedOutputTokens: 1})
			}
			require.Equal(t, "b", scored(t, p, req).Endpoint, "21 seconds are more")
		})
	}
}

// Whether affinity counts is settled before deadlines are, on a new view as on one that has seen other requests.
func TestAgedAffinityMeetsADeadline(t *testing.T) {
	for _, earlier := range []int{0, 1, 3} {
		p, c, req := warm(t, router.Config{})
		c.advance(3 * time.Second)
		for range earlier {
			scored(t, p, req)
		}
		req.Deadline = c.now().Add(800 * time.Millisecond) // the cold prompt would take twice that
		d := scored(t, p, req)
		require.Equal(t, "a", d.Endpoint)
		require.Equal(t, router.MissesDeadline, candidate(t, d, "b").Excluded)
	}
}

func TestGiveUp(t *testing.T) {
	// b is warm for nobody and idle; a is warm and its queue costs the request itself 900 ms more, which the displacement
	// that it avoids outweighs.
	choose := func(g router.GiveUp) string {
		p, c, req := warm(t, router.Config{Bounds: router.Bounds{GiveUp: g}, Weights: score.Weights{Wait: router.None}})
		c.advance(time.Second)
		report(t, p, c, "a", 0, 2500, 0)
		report(t, p, c, "b", 0, 0, 0)
		return scored(t, p, req).Endpoint
	}
	require.Equal(t, "a", choose(router.GiveUp{}))
	require.Equal(t, "b", choose(router.GiveUp{Ratio: router.None, Extra: router.None}), "greedy")
	require.Equal(t, "b", choose(router.GiveUp{Ratio: 0.5, Extra: router.None}))
	require.Equal(t, "a", choose(router.GiveUp{Ratio: 0.6, Extra: router.None}))
	require.Equal(t, "b", choose(router.GiveUp{Ratio: router.None, Extra: 850 * time.Millisecond}))
	require.Equal(t, "a", choose(router.GiveUp{Ratio: router.None, Extra: 950 * time.Millisecond}))
}
