package router_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

// TestAnAnswerContainsItsRequest: a report that comes with an answer a millisecond after the grant counts the request once, not
// once as reported and once more as not yet seen; a poll of the same age cannot know.
func TestAnAnswerContainsItsRequest(t *testing.T) {
	for _, answered := range []bool{true, false} {
		c := newClock()
		p := newPool(t, c, router.Config{Caps: admission.Caps{Aggregate: 2}}, "a")
		l, err := p.Reserve(context.Background(), router.Request{PromptTokens: 10})
		require.NoError(t, err)
		c.advance(time.Millisecond)
		report := counts(1, 0)
		if answered {
			require.NoError(t, p.ObserveAnswer(l, report))
		} else {
			require.NoError(t, p.Observe("a", report))
		}
		sums, err := p.Ledger("a")
		require.NoError(t, err)
		_, err = p.Score(router.Request{PromptTokens: 10})
		if answered {
			require.Zero(t, sums.Unobserved.Requests)
			require.NoError(t, err)
		} else {
			require.EqualValues(t, 1, sums.Unobserved.Requests)
			require.ErrorIs(t, err, router.ErrSaturated, "one reported, one not seen")
		}
		l.Done(router.Usage{})
		sums, err = p.Ledger("a")
		require.NoError(t, err)
		require.Equal(t, answered, sums.Departed.Requests == 1, "what is in the report is taken off again when it ends")
	}
}

// TestAnOldAnswerTeachesNothing: an answer whose counts are older than those of a poll does not tell what the poll contains.
func TestAnOldAnswerTeachesNothing(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a")
	l, err := p.Reserve(context.Background(), router.Request{PromptTokens: 10})
	require.NoError(t, err)
	c.advance(2 * time.Millisecond)
	require.NoError(t, p.Observe("a", counts(0, 0)))
	late := counts(1, 0)
	late.ObservedAt = c.now().Add(-time.Millisecond)
	require.NoError(t, p.ObserveAnswer(l, late))
	sums, err := p.Ledger("a")
	require.NoError(t, err)
	require.EqualValues(t, 1, sums.Unobserved.Requests)
	l.Cancel()
}

// TestReportsOfAnotherLife: what a former incarnation has said does not count for the one that took its id.
func TestReportsOfAnotherLife(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{})
	require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a", Incarnation: "one"}}))
	l, err := p.Reserve(context.Background(), router.Request{PromptTokens: 10})
	require.NoError(t, err)
	require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a", Incarnation: "two"}}))
	late := counts(7, 0)
	late.Incarnation = "one"
	require.EqualError(t, p.Observe("a", late), `router: incarnation "one" of endpoint "a" is not in the pool`)
	require.EqualError(t, p.ObserveAnswer(l, counts(7, 0)), `router: incarnation "one" of endpoint "a" is not in the pool`)
	require.Zero(t, p.Stats().Snapshots)
	present, err := p.Reserve(context.Background(), router.Request{PromptTokens: 10})
	require.NoError(t, err)
	require.EqualError(t, p.ObserveAnswer(present, late), `router: incarnation "one" of endpoint "a" is not in the pool`)
	require.Zero(t, p.Stats().Snapshots)
	late.Incarnation = "two"
	require.NoError(t, p.ObserveAnswer(present, late))
	present.Cancel()
	require.NoError(t, p.Observe("a", late))
	require.InDelta(t, 7, p.Stats().Endpoints[0].Requests, 0)
	l.Done(router.Usage{})

	other := newPool(t, c, router.Config{}, "a")
	require.ErrorContains(t, other.ObserveAnswer(l, counts(1, 0)), "not of this pool")
	require.ErrorContains(t, p.ObserveAnswer(nil, counts(1, 0)), "not of this pool")
}

// TestOccupiedMemoryIsNoPressure: an engine whose figure counts evictable prefixes reads as full as soon as it is warm. That says
// that it has at most so much in use, and does not send its requests to a peer under real pressure.
// TestShortRequestsBetweenPollsShowLife: an engine whose figures stand still is not frozen while requests of ours come and go there
// between its reports.
func TestShortRequestsBetweenPollsShowLife(t *testing.T) {
	for _, traffic := range []bool{true, false} {
		c := newClock()
		p := newPool(t, c, router.Config{}, "a")
		for range 15 {
			c.advance(time.Second)
			require.NoError(t, p.Observe("a", counts(3, 0)))
			if traffic {
				l, err := p.Reserve(context.Background(), router.Request{PromptTokens: 10})
				require.NoError(t, err)
				l.Done(router.Usage{})
			}
		}
		require.Equal(t, !traffic, p.Stats().Endpoints[0].Suspect != "")
	}
}

func TestOccupiedMemoryIsNoPressure(t *testing.T) {
	t.Run("in tokens", func(t *testing.T) { occupiedMemory(t, telemetry.V(100_000)) })
	t.Run("as a share", func(t *testing.T) { occupiedMemory(t, telemetry.Reading{}) })
}

func occupiedMemory(t *testing.T, capacity telemetry.Reading) {
	c := newClock()
	k := &keeper{}
	cfg := router.Config{TieWindow: router.None, Receipts: router.Receipts{Observer: k}, Freshness: router.Freshness{Decay: router.None}}
	p := newPool(t, c, cfg, "full", "warm", "peer")
	c.advance(time.Second)
	say := func(id string, share float64, occupied bool) {
		c.advance(time.Millisecond)
		require.NoError(t, p.Observe(id, telemetry.Snapshot{
			Running: telemetry.V(2), Waiting: telemetry.V(0), WaitingTokens: telemetry.V(0), KVShare: telemetry.V(share), KVOccupied: occupied, KVCapacity: capacity,
		}))
	}
	kv := func(id string) float64 {
		d, err := p.Score(router.Request{PromptTokens: 100, MaxOutputTokens: 10})
		require.NoError(t, err)
		for _, x := range d.Candidates {
			if x.ID == id {
				require.Equal(t, id == "warm", x.KVOccupied)
				require.Equal(t, telemetry.Fresh, x.Freshness)
				if x.KVCapacity > 0 {
					return x.Load.KV / x.KVCapacity
				}
				return x.Load.KVShare
			}
		}
		return -1
	}
	say("full", 0.9, false)
	say("peer", 0.3, false)
	say("warm", 0.98, true)
	require.InDelta(t, 0.6, kv("warm"), 1e-9, "the mean of those that say what they hold")
	require.InDelta(t, 0.9, kv("full"), 1e-9)
	say("warm", 0.2, true)
	require.InDelta(t, 0.2, kv("warm"), 1e-9, "and at most what is occupied")
	say("full", 0.9, true)
	say("peer", 0.9, true)
	require.InDelta(t, 0, kv("warm"), 1e-9, "nobody says what it holds: the ledger alone")

	say("full", 0.9, false)
	say("peer", 0.8, false)
	say("warm", 0.98, true)
	l, err := p.Reserve(context.Background(), router.Request{PromptTokens: 100, MaxOutputTokens: 10})
	require.NoError(t, err)
	d, err := router.Replay(k.decided[0], cfg)
	require.NoError(t, err)
	require.Equal(t, l.Endpoint().ID, d.Endpoint)
	for i, x := range d.Candidates {
		require.Equal(t, k.decided[0].Candidates[i].Total, x.Total, x.ID)
	}
	l.Cancel()
}
