package router_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

func only(id string, r router.Request) router.Request {
	r.Exclude, r.ExcludeHard = []string{map[string]string{"a": "b", "b": "a"}[id]}, true
	return r
}

// Where nothing is reported, other gateways are taken to have a part of what they have where this one has its own, and the rest
// evenly: all of them together what this one has, times their number.
func TestReplicasWithoutTelemetry(t *testing.T) {
	for replicas, want := range map[int][2]float64{
		1: {6, 2},
		2: {6 + 3 + 2, 2 + 1 + 2},             // half like ours, half of 8 spread over two
		4: {6 + 3*1.5 + 3*3, 2 + 3*0.5 + 3*3}, // a fourth like ours
	} {
		c := newClock()
		p := newPool(t, c, router.Config{Replicas: replicas}, "a", "b")
		for id, n := range map[string]int{"a": 6, "b": 2} {
			reserveN(t, p, only(id, router.Request{PromptTokens: 100, ExpectedOutputTokens: 10}), n)
		}
		c.advance(time.Second)
		d := scored(t, p, router.Request{})
		for i, id := range []string{"a", "b"} {
			a := candidate(t, d, id)
			require.InDelta(t, want[i], a.Load.Requests, 1e-9, "%d gateways, %s", replicas, id)
			require.InDelta(t, 100*want[i], a.Load.PendingPrefill, 1e-9)
			if replicas == 1 {
				require.Nil(t, a.OwnMean)
				continue
			}
			require.Equal(t, router.LedgerMean{Requests: 4, Prefill: 400, KV: 440, Context: 400}, *a.OwnMean)
			a.OwnMean.Requests = 99
			require.Equal(t, 4.0, candidate(t, scored(t, p, router.Request{}), id).OwnMean.Requests, "a copy")
		}
	}
}

// What is spread stays among endpoints of one kind: an engine of another model, or a smaller one, has no part in it.
func TestReplicasOfEachKind(t *testing.T) {
	small := flat
	small.KVCapacity = 20_000
	for name, b := range map[string]router.Endpoint{
		"another model":  {ID: "b", Profile: flat, Models: []string{"other"}},
		"another engine": {ID: "b", Profile: small},
	} {
		c := newClock()
		p, err := router.New(router.Config{Now: c.now, Replicas: 4})
		require.NoError(t, err)
		require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a", Profile: flat}, b}))
		reserveN(t, p, only("a", router.Request{PromptTokens: 5000}), 20)
		c.advance(time.Second)
		report(t, p, c, "b", 0, 0, 0)
		d := scored(t, p, only("b", router.Request{PromptTokens: 100}))
		require.Equal(t, 1.0, candidate(t, d, "b").Load.Requests, name)
		require.Zero(t, candidate(t, d, "b").Load.KV, name)
	}
}

// A receipt of a gateway alone can be decided again as if there were others.
func TestReplayWithOtherGateways(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a", "b")
	reserveN(t, p, only("a", router.Request{PromptTokens: 100}), 4)
	d, err := router.Replay(&router.Receipt{Decision: scored(t, p, router.Request{})}, router.Config{Replicas: 2})
	require.NoError(t, err)
	require.InDelta(t, 4+2+1, candidate(t, d, "a").Load.Requests, 1e-9)
	require.InDelta(t, 1, candidate(t, d, "b").Load.Requests, 1e-9)
}

// The mean is taken once in a millisecond, by the first that is to be granted: a score leaves no trace in it.
func TestAScoreLeavesNoMean(t *testing.T) {
	for _, scores := range []bool{false, true} {
		c := newClock()
		p := newPool(t, c, router.Config{Replicas: 4}, "a", "b")
		l := mustReserve(t, p, router.Request{PromptTokens: 5000})
		c.advance(10 * time.Millisecond)
		prefill := func() float64 { return candidate(t, scored(t, p, router.Request{}), "a").OwnMean.Prefill }
		if scores {
			require.Equal(t, 2500.0, prefill())
		}
		l.Done(router.Usage{})
		mustReserve(t, p, router.Request{PromptTokens: 1000})
		require.Zero(t, prefill(), "as at the first grant of the millisecond")
	}
}

// A clock that has been set back does not keep an old mean for as long.
func TestMeansOfAClockThatWasSetBack(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Replicas: 4}, "a", "b")
	c.advance(time.Hour)
	mustReserve(t, p, router.Request{PromptTokens: 1000})
	c.advance(-time.Hour)
	mustReserve(t, p, router.Request{PromptTokens: 1000})
	c.advance(time.Second)
	require.Equal(t, 1000.0, candidate(t, scored(t, p, router.Request{}), "a").OwnMean.Prefill)
}

// Long leases keep no endpoints alive that have gone since.
func TestFirstTokensOfCachedPromptsAreSeenAtOnce(t *testing.T) {
	p, c, req := warm(t, router.Config{Bounds: router.Bounds{MaxWaiting: 1}})
	var open []*router.Lease
	for range 3 {
		open = append(open, mustReserve(t, p, only("a", req)))
	}
	c.advance(time.Millisecond)
	require.Equal(t, router.WithheldWaiting, candidate(t, scored(t, p, req), "a").Withheld)
	for _, l := range open {
		l.FirstToken()
	}
	require.Equal(t, router.NoReason, candidate(t, scored(t, p, req), "a").Withheld, "in the same millisecond")
}

// What a pool has once looked at does not show in what it says of an endpoint whose readings are not believed.
func TestSuspectsShowNoFiguresOfBefore(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{FrozenAfter: 3}, "a", "b")
	for range 6 {
		for _, id := range []string{"a", "b"} {
			require.NoError(t, p.Observe(id, telemetry.Snapshot{
				ObservedAt: c.now(), Running: telemetry.V(1), Waiting: telemetry.V(0), WaitingTokens: telemetry.V(5000), KVShare: telemetry.V(0.1),
			}))
		}
		scored(t, p, router.Request{})
		c.advance(100 * time.Millisecond)
	}
	a := candidate(t, scored(t, p, router.Request{}), "a")
	require.Equal(t, telemetry.SuspectFrozen, a.Suspect)
	require.Equal(t, router.Figure{}, a.Pending)
}
