package router_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// undecayed are limits with which a reading counts in full until it is stale, so that figures are whole numbers.
var undecayed = router.Freshness{Decay: router.None}

// sized makes a pool of endpoints with a memory of 100,000 tokens.
func sized(t *testing.T, c *clock, cfg router.Config, ids ...string) *router.Pool {
	t.Helper()
	p := newPool(t, c, cfg)
	for _, id := range ids {
		require.NoError(t, p.Add(router.Endpoint{ID: id, Profile: score.Profile{PrefillToken: 1, KVCapacity: 100_000}}))
	}
	return p
}

// seen is the endpoint as a decision sees it. Ordinary requests and those with a wish are computed by two paths: both must see the same.
func seen(t *testing.T, p *router.Pool, id string) router.Candidate {
	t.Helper()
	plain := candidate(t, scored(t, p, router.Request{PromptTokens: 10}), id)
	wish := candidate(t, scored(t, p, router.Request{PromptTokens: 10, Exclude: []string{"no such endpoint"}}), id)
	require.Equal(t, plain, wish)
	return plain
}

func observe(t *testing.T, p *router.Pool, c *clock, id string, s telemetry.Snapshot) {
	t.Helper()
	s.ObservedAt = c.now()
	require.NoError(t, p.Observe(id, s))
}

// The memory that the pool's own open leases will need is counted although the engine's gauge still stands at zero.
func TestAMemoryGaugeThatLagsDoesNotEraseOwnLeases(t *testing.T) {
	c := newClock()
	p := sized(t, c, router.Config{Freshness: undecayed}, "a")
	zero := telemetry.Snapshot{Running: telemetry.V(0), Waiting: telemetry.V(0), WaitingTokens: telemetry.V(0), KVUsed: telemetry.V(0)}
	observe(t, p, c, "a", zero)
	c.advance(100 * time.Millisecond)
	var leases []*router.Lease
	for range 3 {
		leases = append(leases, mustReserve(t, p, router.Request{PromptTokens: 10_000, ExpectedOutputTokens: 100}))
	}
	c.advance(5 * time.Second)
	observe(t, p, c, "a", zero)
	require.Equal(t, 30_300.0, seen(t, p, "a").KV.Value)
	for _, l := range leases {
		l.Cancel()
	}
	require.Zero(t, seen(t, p, "a").KV.Value)
}

// A memory figure from before the counts knows nothing of what was sent in between, and still knows what others use.
func TestAMemoryFigureOlderThanTheCountsKeepsWhatOthersUse(t *testing.T) {
	c := newClock()
	p := sized(t, c, router.Config{Freshness: undecayed}, "a")
	observe(t, p, c, "a", telemetry.Snapshot{
		KVUsed: telemetry.V(40_000), Running: telemetry.V(4), Waiting: telemetry.V(0), WaitingTokens: telemetry.V(0),
	})
	c.advance(200 * time.Millisecond)
	mustReserve(t, p, router.Request{PromptTokens: 50_000, ExpectedOutputTokens: 1000})
	require.Equal(t, 91_000.0, seen(t, p, "a").KV.Value)
	c.advance(300 * time.Millisecond)
	observe(t, p, c, "a", telemetry.Snapshot{Running: telemetry.V(5), Waiting: telemetry.V(0), WaitingTokens: telemetry.V(0)})
	require.Equal(t, 91_000.0, seen(t, p, "a").KV.Value)
}

// The size of the memory may be known from the profile alone.
func TestUsedMemoryCountsWhereOnlyTheProfileKnowsTheCapacity(t *testing.T) {
	c := newClock()
	p := sized(t, c, router.Config{}, "full", "free")
	for id, used := range map[string]float64{"full": 99_000, "free": 0} {
		observe(t, p, c, id, telemetry.Snapshot{Running: telemetry.V(0), Waiting: telemetry.V(0), KVUsed: telemetry.V(used)})
	}
	full := seen(t, p, "full")
	require.Equal(t, router.Figure{Class: telemetry.Fresh, Value: 99_000}, full.KV)
	require.Equal(t, 99_000.0, full.Load.KV)
	require.Equal(t, 100_000.0, full.KVCapacity)
	require.Greater(t, full.Total, seen(t, p, "free").Total)

	q := newPool(t, c, router.Config{}, "a")
	observe(t, q, c, "a", telemetry.Snapshot{Running: telemetry.V(0), Waiting: telemetry.V(0), KVUsed: telemetry.V(99_000)})
	require.Equal(t, telemetry.Missing, seen(t, q, "a").KV.Class, "tokens of a memory of unknown size")
}

// An engine that tells its memory and nothing else is not charged twice for what it holds.
func TestAnEngineThatReportsMemoryOnly(t *testing.T) {
	c := newClock()
	p := sized(t, c, router.Config{Freshness: undecayed}, "a")
	mustReserve(t, p, router.Request{PromptTokens: 30_000, ExpectedOutputTokens: 1000}).FirstToken()
	c.advance(time.Second)
	observe(t, p, c, "a", telemetry.Snapshot{KVUsed: telemetry.V(31_000)})
	require.Equal(t, 31_000.0, seen(t, p, "a").KV.Value)
	c.advance(time.Second)
	mustReserve(t, p, router.Request{PromptTokens: 5000, ExpectedOutputTokens: 1000})
	require.Equal(t, 37_000.0, seen(t, p, "a").KV.Value, "what it cannot have seen is added")
}

// Figures of two ages are reconciled by the older one: what was sent in between is in one of them only.
func TestTheOldestFigureInUseSaysWhichLeasesWereSeen(t *testing.T) {
	c := newClock()
	p := sized(t, c, router.Config{Freshness: undecayed}, "a")
	observe(t, p, c, "a", telemetry.Snapshot{Running: telemetry.V(3), Waiting: telemetry.V(0)})
	c.advance(time.Second)
	for range 2 {
		mustReserve(t, p, router.Request{PromptTokens: 10})
	}
	c.advance(time.Second)
	observe(t, p, c, "a", telemetry.Snapshot{Waiting: telemetry.V(0)})
	require.Equal(t, 5.0, seen(t, p, "a").Requests.Value)
	require.EqualValues(t, 2, seen(t, p, "a").OwnUnobserved)
	observe(t, p, c, "a", telemetry.Snapshot{Running: telemetry.V(5)})
	require.Equal(t, 5.0, seen(t, p, "a").Requests.Value)
	require.Zero(t, seen(t, p, "a").OwnUnobserved)
}

// Requests whose length nobody knows say nothing about the length of prompts.
func TestRequestsOfUnknownLengthTeachNothing(t *testing.T) {
	c := newClock()
	p := sized(t, c, router.Config{}, "a")
	busy(t, p, c, "a", 8, 40)
	before := seen(t, p, "a").Pending.Value
	require.Equal(t, 40*1024.0, before)
	for range 600 {
		mustReserve(t, p, router.Request{}).Done(router.Usage{})
	}
	require.Equal(t, before, seen(t, p, "a").Pending.Value)
}

// Among equals, an endpoint of which nothing is known is priced like the others at every age of their readings: not as if it were idle
// once they are old, and not at figures that have lost their weight with the others.
func TestUnknownIsPricedLikeItsPeersAtEveryAge(t *testing.T) {
	c := newClock()
	p := sized(t, c, router.Config{}, "a", "b", "unknown")
	for _, id := range []string{"a", "b"} {
		observe(t, p, c, id, telemetry.Snapshot{
			Running: telemetry.V(90), Waiting: telemetry.V(10), WaitingTokens: telemetry.V(900_000), KVUsed: telemetry.V(90_000),
		})
	}
	for range 95 {
		want, got := seen(t, p, "a"), seen(t, p, "unknown")
		require.InDelta(t, want.Load.Requests, got.Load.Requests, 1e-6, "at %v", want.Age)
		require.InDelta(t, want.Load.PendingPrefill, got.Load.PendingPrefill, 1e-3, "at %v", want.Age)
		require.InDelta(t, want.Load.KV, got.Load.KV, 1e-3, "at %v", want.Age)
		c.advance(100 * time.Millisecond)
	}
	require.Equal(t, telemetry.Aging, seen(t, p, "a").Freshness)
}

// A list of adapters tells when each was last seen: one that nobody has looked at for an hour is not known to be there.
func TestAnAdapterIsKnownAsLongAsItWasVerified(t *testing.T) {
	for _, x := range []struct {
		name     string
		verified time.Duration
		want     float64
	}{{"just now", time.Second, 0}, {"an hour ago", time.Hour, 0.5}} {
		t.Run(x.name, func(t *testing.T) {
			c := newClock()
			c.advance(2 * time.Hour)
			p := newPool(t, c, router.Config{}, "a")
			observe(t, p, c, "a", telemetry.Snapshot{
				Running: telemetry.V(0), Waiting: telemetry.V(0),
				Adapters: telemetry.AdapterReport{Known: true, Adapters: []telemetry.Adapter{
					{ID: "x", Digest: "1", State: telemetry.AdapterReady, VerifiedAt: c.ago(x.verified)},
				}},
			})
			d := scored(t, p, router.Request{Adapter: router.Adapter{ID: "x", Digest: "1"}})
			require.Equal(t, x.want, d.Candidates[0].AdapterNeeded)
		})
	}
}

// An engine can reuse whole blocks of its own size only: so much is saved, and so much less is booked.
func TestCachedTokensAreWholeBlocksOfTheEngine(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{})
	e := router.Endpoint{ID: "a", Profile: score.Profile{PrefillToken: 1, KVCapacity: 1 << 20, BlockSize: 64}}
	require.NoError(t, p.Add(e))
	idle(t, p, c, "a")
	req := router.Request{Prefix: long(t, 1, 7), ExpectedOutputTokens: 1} // 112 tokens in blocks of 16
	mustReserve(t, p, req).Done(router.Usage{})
	c.advance(time.Second)
	idle(t, p, c, "a")
	a := candidate(t, scored(t, p, req), "a")
	require.EqualValues(t, 64, a.Cached)
	require.Equal(t, 64.0, a.Terms.Saved)
	mustReserve(t, p, req)
	sums, err := p.Ledger("a")
	require.NoError(t, err)
	require.EqualValues(t, 112-64, sums.Live.Prefill)
}

// The reported size of the memory bounds what the index holds, also after the host has named the same endpoints again.
func TestTheReportedCapacityBoundsTheIndexAfterTheSameListAgain(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a")
	held := func() int64 { return p.Stats().Endpoints[0].CachedTokens }
	fill := func(first int) {
		for i := range 4 {
			mustReserve(t, p, router.Request{Prefix: long(t, first+i, 40)}).Done(router.Usage{})
		}
	}
	report := func() {
		c.advance(time.Second)
		observe(t, p, c, "a", telemetry.Snapshot{
			Running: telemetry.V(0), Waiting: telemetry.V(0), KVUsed: telemetry.V(0), KVCapacity: telemetry.V(1024),
		})
	}
	report()
	fill(1)
	require.LessOrEqual(t, held(), int64(1024))
	require.NoError(t, p.SetEndpoints(plain("a")))
	fill(11)
	require.LessOrEqual(t, held(), int64(1024))
	require.NoError(t, p.Add(router.Endpoint{ID: "a"}))
	report()
	fill(21)
	require.LessOrEqual(t, held(), int64(1024))
	require.Positive(t, held())

	require.NoError(t, p.Add(router.Endpoint{ID: "a", Profile: score.Profile{KVCapacity: 2048}}))
	fill(31)
	require.Greater(t, held(), int64(1024), "what is configured comes first")
	require.LessOrEqual(t, held(), int64(2048))
	require.NoError(t, p.Add(router.Endpoint{ID: "a"}))
	fill(41)
	require.LessOrEqual(t, held(), int64(1024), "and the reported size again without it")
}
