package reserve_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/reserve"
)

func newLedger(t testing.TB, cfg reserve.Config) *reserve.Ledger {
	t.Helper()
	l, err := reserve.NewLedger(cfg)
	require.NoError(t, err)
	return l
}

func mustReserve(t testing.TB, a *reserve.Account, at int64, c reserve.Cost) *reserve.Lease {
	t.Helper()
	l := new(reserve.Lease)
	require.NoError(t, a.Reserve(l, ms(at), c))
	return l
}

func TestConfig(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  reserve.Config
		errs []string
	}{
		{"zero", reserve.Config{}, nil},
		{"set", reserve.Config{VisibilityLag: time.Second, Horizon: time.Minute, MaxEnded: 1}, nil},
		{"lag", reserve.Config{VisibilityLag: -time.Second}, []string{"reserve: VisibilityLag is -1s"}},
		{"horizon", reserve.Config{Horizon: -1}, []string{"reserve: Horizon is -1ns"}},
		{"ended", reserve.Config{MaxEnded: -7}, []string{"reserve: MaxEnded is -7"}},
		{"all", reserve.Config{VisibilityLag: -1, Horizon: -1, MaxEnded: -1}, []string{"VisibilityLag", "Horizon", "MaxEnded"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, err := reserve.NewLedger(tc.cfg)
			if tc.errs == nil {
				require.NoError(t, err)
				return
			}
			require.Nil(t, l)
			for _, e := range tc.errs {
				require.ErrorContains(t, err, e)
			}
		})
	}
	require.Equal(t, reserve.Config{Horizon: time.Minute, MaxEnded: 65536}, newLedger(t, reserve.Config{}).Config())
}

func TestReserveRefusesBadInput(t *testing.T) {
	a := newLedger(t, reserve.Config{}).Account("a", "1")
	for _, tc := range []struct {
		at  time.Time
		c   reserve.Cost
		err string
	}{
		{ms(0), reserve.Cost{Prefill: -1}, "reserve: Cost.Prefill is -1, must not be negative"},
		{ms(0), reserve.Cost{Decode: -2}, "reserve: Cost.Decode is -2, must not be negative"},
		{ms(0), reserve.Cost{KV: math.MinInt64}, "reserve: Cost.KV is -9223372036854775808, must not be negative"},
		{ms(0), reserve.Cost{KV: reserve.MaxTokens + 1}, "reserve: Cost.KV is 1099511627777, must not exceed 1099511627776"},
		{time.Time{}, reserve.Cost{}, "reserve: at is the zero time"},
	} {
		var l reserve.Lease
		require.EqualError(t, a.Reserve(&l, tc.at, tc.c), tc.err)
		require.False(t, l.Live())
		require.Zero(t, a.Sums())
		require.NoError(t, a.Reserve(&l, ms(0), reserve.Cost{}), "a refused lease is still free")
		require.True(t, l.Release(ms(0)))
	}
}

func TestLifeOfALease(t *testing.T) {
	a := newLedger(t, reserve.Config{}).Account("a", "1")
	c := reserve.Cost{Prefill: 100, Decode: 50, KV: 150}
	l := mustReserve(t, a, 10, c)
	require.Equal(t, reserve.Load{Requests: 1, Prefill: 100, Decode: 50, KV: 150}, a.Sums().Live)
	require.Equal(t, c, l.Cost())
	require.Equal(t, ms(10), l.DispatchedAt())
	require.True(t, l.Live())

	require.False(t, l.Progress(ms(11), 0), "nothing generated yet")
	require.False(t, l.Progress(ms(11), -5))
	require.Equal(t, c, l.Remaining())
	require.True(t, l.FirstToken(ms(12)))
	require.False(t, l.FirstToken(ms(13)))
	require.Equal(t, reserve.Cost{Decode: 50, KV: 150}, l.Remaining())
	require.True(t, l.Progress(ms(14), 20))
	require.False(t, l.Progress(ms(15), 20))
	require.False(t, l.Progress(ms(15), 19))
	require.Equal(t, reserve.Cost{Decode: 30, KV: 150}, l.Remaining())
	require.True(t, l.Progress(ms(16), 1000))
	require.False(t, l.Progress(ms(17), 2000), "nothing left to shrink")
	require.Equal(t, reserve.Cost{KV: 150}, l.Remaining(), "KV stays as reserved")
	require.Equal(t, reserve.Load{Requests: 1, KV: 150}, a.Sums().Live)

	require.True(t, l.Release(ms(20)))
	for range 2 {
		require.False(t, l.Release(ms(21)))
		require.False(t, l.FirstToken(ms(21)))
		require.False(t, l.Progress(ms(21), 5000))
	}
	require.Zero(t, a.Sums())
	require.Zero(t, l.Remaining())
	require.Equal(t, c, l.Cost())
	require.False(t, l.Live())
}

func TestProgressImpliesFirstToken(t *testing.T) {
	a := newLedger(t, reserve.Config{}).Account("a", "1")
	l := mustReserve(t, a, 0, reserve.Cost{Prefill: 7})
	require.True(t, l.Progress(ms(1), 3), "first sign of output, though no decode was reserved")
	require.Zero(t, l.Remaining())
	require.False(t, l.FirstToken(ms(2)))
	bare := mustReserve(t, a, 0, reserve.Cost{})
	require.True(t, bare.Progress(ms(1), 1))
	require.False(t, bare.Progress(ms(1), 2))
}

func TestZeroLease(t *testing.T) {
	var l reserve.Lease
	require.False(t, l.FirstToken(ms(0)))
	require.False(t, l.Progress(ms(0), 1))
	require.False(t, l.Release(ms(0)))
	require.False(t, l.Live())
	require.Zero(t, l.Remaining())
	require.Zero(t, l.Cost())
	require.True(t, l.DispatchedAt().IsZero())
}

func TestAnEndedLeaseMayBeReservedAgain(t *testing.T) {
	ledger := newLedger(t, reserve.Config{})
	a, b := ledger.Account("a", ""), ledger.Account("b", "")
	l := mustReserve(t, a, 0, reserve.Cost{KV: 1})
	require.ErrorIs(t, b.Reserve(l, ms(1), reserve.Cost{KV: 2}), reserve.ErrInUse)
	require.Zero(t, b.Sums())
	l.FirstToken(ms(1))
	l.Release(ms(1))
	require.NoError(t, b.Reserve(l, ms(2), reserve.Cost{KV: 2}))
	require.True(t, l.FirstToken(ms(3)), "nothing is left of the former use")
	require.Equal(t, int64(2), b.Sums().Live.KV)
	require.Zero(t, a.Sums())
}

// One lease of 100 prefill, 50 decode and 150 KV tokens dispatched at 10, first token at 20, 30 tokens by 25, end at
// 40; then one observation.
func TestWhatAnObservationMayContain(t *testing.T) {
	for _, tc := range []struct {
		at       int64
		lag      int64
		departed reserve.Load
	}{
		{at: 5, departed: reserve.Load{}},
		{at: 10, departed: reserve.Load{}},
		{at: 11, departed: reserve.Load{Requests: 1, Prefill: 100, Decode: 50, KV: 150}},
		{at: 20, departed: reserve.Load{Requests: 1, Prefill: 100, Decode: 50, KV: 150}},
		{at: 21, departed: reserve.Load{Requests: 1, Decode: 50, KV: 150}},
		{at: 26, departed: reserve.Load{Requests: 1, Decode: 20, KV: 150}},
		{at: 40, departed: reserve.Load{Requests: 1, Decode: 20, KV: 150}},
		{at: 41, departed: reserve.Load{}},
		{at: 15, lag: 5, departed: reserve.Load{}},
		{at: 16, lag: 5, departed: reserve.Load{Requests: 1, Prefill: 100, Decode: 50, KV: 150}},
		{at: 30, lag: 20, departed: reserve.Load{}},
		{at: 31, lag: 20, departed: reserve.Load{Requests: 1, Decode: 20, KV: 150}},
	} {
		a := newLedger(t, reserve.Config{VisibilityLag: time.Duration(tc.lag) * time.Millisecond}).Account("a", "")
		l := mustReserve(t, a, 10, reserve.Cost{Prefill: 100, Decode: 50, KV: 150})
		l.FirstToken(ms(20))
		l.Progress(ms(25), 30)
		l.Release(ms(40))
		require.Zero(t, a.Sums(), "nothing observed")
		require.True(t, a.Observe(ms(tc.at)))
		require.Equal(t, reserve.Sums{Departed: tc.departed}, a.Sums(), "observed at %d, lag %d", tc.at, tc.lag)
	}
}

func TestObserveTakesOnlyNewer(t *testing.T) {
	a := newLedger(t, reserve.Config{}).Account("a", "")
	_, ok := a.ObservedAt()
	require.False(t, ok)
	require.False(t, a.Observe(time.Time{}))
	require.True(t, a.Observe(ms(5)))
	require.False(t, a.Observe(ms(5)))
	require.False(t, a.Observe(ms(4)))
	at, ok := a.ObservedAt()
	require.True(t, ok)
	require.Equal(t, ms(5), at)
}

func TestRestart(t *testing.T) {
	a := newLedger(t, reserve.Config{}).Account("a", "")
	c := reserve.Cost{Prefill: 1, Decode: 10, KV: 100}
	one := reserve.Load{Requests: 1, Prefill: 1, Decode: 10, KV: 100}
	before, after := mustReserve(t, a, 0, c), mustReserve(t, a, 10, c)
	gone := mustReserve(t, a, 0, c)
	a.Observe(ms(5))
	gone.Release(ms(6))
	require.Equal(t, one, a.Sums().Departed)
	a.Restart(ms(8))
	a.Restart(ms(3))
	a.Restart(time.Time{})
	require.Zero(t, a.Sums().Departed, "the old engine's load is gone with it")
	require.Equal(t, plus(one, one), a.Sums().Live, "leases outlive a restart")
	a.Observe(ms(20))
	before.Release(ms(21))
	require.Zero(t, a.Sums().Departed)
	after.Release(ms(21))
	require.Equal(t, one, a.Sums().Departed)
	a.Restart(ms(10))
	require.Equal(t, one, a.Sums().Departed, "dispatched at the restart, not before it")
	a.Restart(ms(11))
	require.Zero(t, a.Sums().Departed)
	require.NoError(t, a.Check())
}

func TestClosedAccounts(t *testing.T) {
	ledger := newLedger(t, reserve.Config{})
	a := ledger.Account("a", "1")
	require.Same(t, a, ledger.Account("a", "1"))
	l := mustReserve(t, a, 0, reserve.Cost{KV: 3})
	ledger.Close(a)
	ledger.Close(a)
	require.ErrorIs(t, a.Reserve(new(reserve.Lease), ms(1), reserve.Cost{}), reserve.ErrClosed)
	require.True(t, ledger.Oldest(1)[0].Closed)

	next := ledger.Account("a", "2")
	other := mustReserve(t, next, 1, reserve.Cost{KV: 5})
	require.Same(t, a, ledger.Account("a", "1"), "its lease lives: the same account, opened again")
	require.NoError(t, a.Reserve(new(reserve.Lease), ms(2), reserve.Cost{KV: 4}))
	require.Equal(t, int64(7), a.Sums().Live.KV)

	ledger.Close(next)
	require.Equal(t, 2, ledger.Accounts())
	require.True(t, other.Release(ms(3)))
	require.Equal(t, 1, ledger.Accounts(), "forgotten with the last lease")
	newer := ledger.Account("a", "2")
	require.NotSame(t, next, newer)
	mustReserve(t, newer, 4, reserve.Cost{KV: 6})
	ledger.Close(next)
	require.False(t, other.Release(ms(5)))
	require.Equal(t, int64(6), newer.Sums().Live.KV, "the old account and its lease touch nothing of the new one")
	require.Same(t, newer, ledger.Account("a", "2"))

	require.True(t, l.Release(ms(6)))
	require.Equal(t, int64(4), a.Sums().Live.KV)
	newLedger(t, reserve.Config{}).Close(a)
	require.NoError(t, a.Reserve(new(reserve.Lease), ms(7), reserve.Cost{}), "another ledger cannot close it")
}

func TestOldest(t *testing.T) {
	ledger := newLedger(t, reserve.Config{})
	require.Nil(t, ledger.Oldest(1))
	a, b := ledger.Account("a", "1"), ledger.Account("b", "1")
	mustReserve(t, a, 30, reserve.Cost{})
	l := mustReserve(t, b, 20, reserve.Cost{Prefill: 2, KV: 3})
	l.FirstToken(ms(25))
	mustReserve(t, b, 10, reserve.Cost{})
	mustReserve(t, a, 20, reserve.Cost{})
	require.Nil(t, ledger.Oldest(0))
	var got []string
	for _, i := range ledger.Oldest(10) {
		got = append(got, i.ID+" "+i.DispatchedAt.Sub(epoch).String())
	}
	require.Equal(t, []string{"b 10ms", "a 20ms", "b 20ms", "a 30ms"}, got)
	require.Equal(t, reserve.LeaseInfo{
		ID: "b", Incarnation: "1", DispatchedAt: ms(20), Cost: reserve.Cost{Prefill: 2, KV: 3}, Remaining: reserve.Cost{KV: 3},
	}, ledger.Oldest(3)[2])
}

func TestForgettingReadsTheLoadTooHigh(t *testing.T) {
	a := newLedger(t, reserve.Config{MaxEnded: 2, Horizon: 100 * time.Millisecond}).Account("a", "")
	var ls []*reserve.Lease
	for range 4 {
		ls = append(ls, mustReserve(t, a, 0, reserve.Cost{KV: 1}))
	}
	a.Observe(ms(1))
	for i, l := range ls[:3] {
		l.Release(ms(int64(10 + i)))
	}
	require.Equal(t, int64(2), a.Sums().Departed.Requests)
	require.Equal(t, int64(1), a.Forgotten())
	ls[3].Release(ms(112))
	require.Equal(t, int64(2), a.Sums().Departed.Requests, "the one at 11 is beyond the horizon, that at 12 is not")
	require.Equal(t, int64(1), a.Forgotten(), "only an overflow counts")
}

// Times outside the range that nanoseconds can span, or without a date, must not break the sums.
func TestExtremeTimes(t *testing.T) {
	far := []time.Time{
		time.Unix(math.MinInt32, 0), ms(0), time.Unix(1<<40, 0), time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC), time.Now(),
	}
	for _, first := range far {
		a := newLedger(t, reserve.Config{VisibilityLag: time.Hour, Horizon: math.MaxInt64}).Account("a", "")
		for _, x := range far {
			for _, y := range append(far, time.Time{}) {
				l := new(reserve.Lease)
				require.NoError(t, a.Reserve(l, first, reserve.Cost{Prefill: 1, Decode: 2, KV: 3}))
				a.Observe(x)
				l.FirstToken(y)
				l.Progress(x, 1)
				a.Restart(y)
				l.Release(y)
				assert.NoError(t, a.Check())
				assert.Zero(t, a.Sums().Live)
			}
		}
	}
}
