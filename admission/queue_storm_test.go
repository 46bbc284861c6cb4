package admission_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
)

// What a storm has needed is given back when its class is empty, and the queue goes on as before.
func TestQueueGivesBackWhatAStormHasNeeded(t *testing.T) {
	const n = 20_000
	q, err := admission.NewQueue[int](admission.QueueConfig{Max: n, Classes: 2})
	require.NoError(t, err)
	live := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := live()
	for round := range 3 {
		waiters := make([]*admission.Waiter[int], n)
		for i := range waiters {
			waiters[i] = &admission.Waiter[int]{Value: i}
			_, err := q.Push(waiters[i], admission.Ask{Rank: 1, Tenant: uint64(i), Group: uint64(i), Cost: 1, Latest: 1 << 40}, int64(round))
			require.NoError(t, err)
		}
		q.Begin(int64(round))
		for i := range n / 2 { // passed over: the pass has marks to take back
			w := q.Next()
			require.Equal(t, i, w.Value)
			q.SkipGroup(uint64(i))
		}
		for _, w := range waiters {
			require.True(t, q.Remove(w))
		}
		require.Nil(t, q.Next())
		clear(waiters)
		require.Less(t, live()-before, int64(1<<20))
	}
	require.Zero(t, q.Len())
	require.Zero(t, q.Tokens())
}
