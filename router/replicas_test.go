package router_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
)

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
			other := map[string]string{"a": "b", "b": "a"}[id]
			reserveN(t, p, router.Request{PromptTokens: 100, ExpectedOutputTokens: 10, Exclude: []string{other}, ExcludeHard: true}, n)
		}
		c.advance(time.Second)
		d := scored(t, p, router.Request{})
		for i, id := range []string{"a", "b"} {
			load := candidate(t, d, id).Load
			require.InDelta(t, want[i], load.Requests, 1e-9, "%d gateways, %s", replicas, id)
			require.InDelta(t, 100*want[i], load.PendingPrefill, 1e-9)
		}
		if replicas == 1 {
			require.Nil(t, d.OwnMean)
			continue
		}
		require.Equal(t, router.OwnMean{Requests: 4, Prefill: 400, KV: 440, Context: 400}, *d.OwnMean)
		d.OwnMean.Requests = 99
		require.Equal(t, 4.0, scored(t, p, router.Request{}).OwnMean.Requests, "a copy")
	}
}

// A receipt of a gateway alone can be decided again as if there were others.
func TestReplayWithOtherGateways(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a", "b")
	reserveN(t, p, router.Request{PromptTokens: 100, Exclude: []string{"b"}, ExcludeHard: true}, 4)
	d, err := router.Replay(&router.Receipt{Decision: scored(t, p, router.Request{})}, router.Config{Replicas: 2})
	require.NoError(t, err)
	require.InDelta(t, 4+2+1, candidate(t, d, "a").Load.Requests, 1e-9)
	require.InDelta(t, 1, candidate(t, d, "b").Load.Requests, 1e-9)
}
