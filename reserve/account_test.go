package reserve

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnderflow(t *testing.T) {
	l := Load{Requests: 1, KV: 5}
	if invariantsOn {
		require.Panics(t, func() { l.sub(&Load{KV: 6}) })
		return
	}
	l.sub(&Load{Requests: 1, Prefill: 1, Decode: 1, KV: 6})
	require.Zero(t, l)
}

func TestMinusSaturates(t *testing.T) {
	require.Equal(t, int64(3), minus(5, 2))
	require.Equal(t, int64(math.MinInt64), minus(math.MinInt64+1, 2))
	require.Equal(t, int64(math.MinInt64), minus(never, math.MaxInt64))
	require.Equal(t, int64(0), minus(math.MaxInt64, math.MaxInt64))
}

// Calls that have seen the lease live and wait for the account must find it ended.
func TestReleasesWaitingForTheLock(t *testing.T) {
	ledger, err := NewLedger(Config{})
	require.NoError(t, err)
	a := ledger.Account("a", "")
	for range 200 {
		var l Lease
		var won atomic.Int32
		var started, ended sync.WaitGroup
		require.NoError(t, a.Reserve(&l, benchTime(1), benchCost))
		a.mu.Lock()
		for range 3 {
			started.Add(1)
			ended.Go(func() {
				started.Done()
				if l.Release(benchTime(2)) {
					won.Add(1)
				}
				l.FirstToken(benchTime(3))
			})
		}
		started.Wait()
		for range 20 {
			runtime.Gosched()
		}
		a.mu.Unlock()
		ended.Wait()
		require.Equal(t, int32(1), won.Load())
		require.Zero(t, a.Sums().Live)
	}
	require.NoError(t, a.Check())
}

// While a write is under way readers go to the mutex, and what they get is what the writer has recorded.
func TestReaderFallsBackToTheMutex(t *testing.T) {
	ledger, err := NewLedger(Config{})
	require.NoError(t, err)
	a := ledger.Account("a", "")
	var l Lease
	require.NoError(t, a.Reserve(&l, benchTime(1), benchCost))
	want := a.Sums()
	a.pub.seq.Add(1)
	a.pub.sums[unobserved].tokens.Store(77)
	require.Equal(t, want, a.Sums())
}
