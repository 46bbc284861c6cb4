package reserve_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/reserve"
)

// Sums beyond what fits the published words are read under the mutex and are exact all the same.
func TestLargeSums(t *testing.T) {
	for _, c := range []reserve.Cost{
		{Prefill: 1<<31 - 1, Decode: 1<<31 - 1, KV: reserve.MaxTokens},
		{Prefill: 1 << 31},
		{Decode: 1 << 31},
		{Prefill: reserve.MaxTokens, Decode: reserve.MaxTokens, KV: reserve.MaxTokens},
	} {
		a := newLedger(t, reserve.Config{}).Account("a", "")
		var leases []*reserve.Lease
		var want reserve.Load
		for i := range 40 {
			leases = append(leases, mustReserve(t, a, int64(i), c))
			want = plus(want, load(1, c))
			require.Equal(t, reserve.Sums{Live: want, Unobserved: want}, a.Sums())
		}
		a.Observe(ms(100))
		require.Equal(t, reserve.Sums{Live: want}, a.Sums())
		for _, l := range leases {
			l.Release(ms(100))
		}
		require.Equal(t, reserve.Sums{Departed: want}, a.Sums())
		a.Observe(ms(101))
		require.Zero(t, a.Sums())
	}
}

func TestManyRequests(t *testing.T) {
	if testing.Short() || reserve.InvariantsOn {
		t.Skip("a million leases")
	}
	a := newLedger(t, reserve.Config{MaxEnded: 1}).Account("a", "")
	leases := make([]reserve.Lease, 1<<20+1)
	for i := range leases {
		if err := a.Reserve(&leases[i], ms(0), reserve.Cost{KV: 1}); err != nil {
			t.Fatal(err)
		}
	}
	require.Equal(t, reserve.Load{Requests: 1<<20 + 1, KV: 1<<20 + 1}, a.Sums().Live)
	require.Equal(t, a.Sums().Live, a.Sums().Unobserved)
}

// Every lease is the same and keeps its cost to the end, so every consistent reading is a multiple of it.
func TestSumsAreNeverTorn(t *testing.T) {
	c := reserve.Cost{Prefill: 3, Decode: 5, KV: 7}
	a := newLedger(t, reserve.Config{MaxEnded: 64}).Account("a", "")
	var clock atomic.Int64
	var readers, writer sync.WaitGroup
	var stop atomic.Bool
	writer.Go(func() {
		var ls [4]reserve.Lease
		for i := 0; !stop.Load(); i++ {
			l := &ls[i%len(ls)]
			l.Release(ms(clock.Add(1)))
			assert.NoError(t, a.Reserve(l, ms(clock.Add(1)), c))
			if i%4 == 0 {
				a.Observe(ms(clock.Add(1) - 10))
			}
		}
	})
	whole := func(l reserve.Load) bool {
		return l.Requests >= 0 && l.Prefill == 3*l.Requests && l.Decode == 5*l.Requests && l.KV == 7*l.Requests
	}
	reads := 10_000_000 // a reading is torn in some of a million if the sequence is ignored
	if testing.Short() || reserve.InvariantsOn {
		reads = 100_000
	}
	readers.Go(func() {
		for range reads {
			s := a.Sums()
			if !whole(s.Live) || !whole(s.Unobserved) || !whole(s.Departed) ||
				s.Unobserved.Requests > s.Live.Requests || s.Live.Requests > 4 || s.Departed.Requests > 64 {
				t.Errorf("torn: %+v", s)
				return
			}
		}
	})
	readers.Wait()
	stop.Store(true)
	writer.Wait()
	require.NoError(t, a.Check())
}

// A hundred thousand leases on a few accounts that are observed, restarted, closed and opened all the time; each lease
// is ended by several goroutines at once.
func TestStress(t *testing.T) {
	total := 100_000
	if testing.Short() {
		total = 10_000
	}
	const workers = 8
	ledger := newLedger(t, reserve.Config{VisibilityLag: 3 * time.Millisecond, MaxEnded: 200})
	var accounts [3]*reserve.Account
	for i := range accounts {
		accounts[i] = ledger.Account("a", string(rune('0'+i)))
	}
	var clock, reserved, released atomic.Int64
	now := func() time.Time { return ms(clock.Add(1) / 8) }
	end := func(l *reserve.Lease) {
		if l.Release(now()) {
			released.Add(1)
		}
	}
	shared := make(chan *reserve.Lease, 64)
	var work, enders sync.WaitGroup
	for range 3 {
		enders.Go(func() {
			for l := range shared {
				end(l)
				l.FirstToken(now())
			}
		})
	}
	for w := range workers {
		work.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			var open []*reserve.Lease
			for range total / workers {
				l, a := new(reserve.Lease), accounts[rng.IntN(len(accounts))]
				c := reserve.Cost{Prefill: rng.Int64N(10), Decode: rng.Int64N(10), KV: rng.Int64N(10)}
				if a.Reserve(l, now(), c) != nil {
					continue // closed at this moment
				}
				reserved.Add(1)
				open = append(open, l)
				o := open[rng.IntN(len(open))]
				switch rng.IntN(8) {
				case 0:
					o.FirstToken(now())
				case 1:
					o.Progress(now(), rng.Int64N(12))
				case 2:
					a.Observe(now())
				case 3:
					end(o)
				case 4:
					if rng.IntN(50) == 0 {
						a.Restart(now())
						ledger.Oldest(2)
					}
				}
				if len(open) > 20 {
					i := rng.IntN(len(open))
					for range 1 + rng.IntN(3) {
						shared <- open[i]
					}
					end(open[i])
					open[i] = open[len(open)-1]
					open = open[:len(open)-1]
				}
			}
			for _, l := range open {
				shared <- l
				end(l)
			}
		})
	}
	done := make(chan struct{})
	var closer sync.WaitGroup
	closer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			// Account 2 alone: leases of it live most of the time, so the same account is found again.
			ledger.Close(accounts[2])
			if again := ledger.Account("a", "2"); again != accounts[2] {
				return // it was idle and has been forgotten; it stays closed
			}
		}
	})
	work.Wait()
	close(shared)
	enders.Wait()
	close(done)
	closer.Wait()

	require.Positive(t, reserved.Load())
	require.Equal(t, reserved.Load(), released.Load(), "each lease is released exactly once")
	require.Nil(t, ledger.Oldest(1))
	for _, a := range accounts {
		require.NoError(t, a.Check())
		require.Zero(t, a.Sums().Live)
		require.Zero(t, a.Sums().Unobserved)
		a.Observe(ms(clock.Load() + 1000))
		require.Zero(t, a.Sums())
		ledger.Close(a)
	}
}

func TestMemoryIsFlatWithoutObservations(t *testing.T) {
	a := newLedger(t, reserve.Config{MaxEnded: 500}).Account("a", "")
	var leases [10]reserve.Lease
	at := int64(0)
	run := func(n int) {
		for i := range n {
			l := &leases[i%len(leases)]
			at++
			l.Release(ms(at))
			if err := a.Reserve(l, ms(at), reserve.Cost{Prefill: 1, Decode: 10, KV: 1}); err != nil {
				t.Fatal(err)
			}
			l.FirstToken(ms(at))
			l.Progress(ms(at), 2)
		}
	}
	run(5000)
	records, events := a.Memory()
	require.LessOrEqual(t, records, 2*500+len(leases)+1)
	require.LessOrEqual(t, events, 2*(500+1))
	n := 1_000_000
	if testing.Short() || reserve.InvariantsOn {
		n = 50_000
	}
	run(n)
	r, e := a.Memory()
	require.Equal(t, []int{records, events}, []int{r, e})
	require.Zero(t, testing.AllocsPerRun(100, func() { run(10) }))
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	a := newLedger(t, reserve.Config{}).Account("a", "")
	at := int64(0)
	round := func() {
		for range 100 {
			var l reserve.Lease
			at++
			_ = a.Reserve(&l, ms(at), reserve.Cost{Prefill: 1, Decode: 10, KV: 1})
			l.FirstToken(ms(at))
			l.Progress(ms(at), 2)
			l.Release(ms(at))
		}
		a.Observe(ms(at))
		a.Sums()
	}
	round()
	require.Zero(t, testing.AllocsPerRun(10, round))
}
