package router_test

import (
	"context"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

// whileObserving calls ask again and again while a snapshot of the endpoint is taken by another goroutine.
func whileObserving(t *testing.T, p *router.Pool, s telemetry.Snapshot, ask func()) {
	t.Helper()
	var started, asking, done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		defer done.Store(true)
		started.Store(true)
		for !asking.Load() {
			runtime.Gosched()
		}
		if err := p.Observe("a", s); err != nil {
			t.Error(err)
		}
	})
	for !started.Load() {
		runtime.Gosched()
	}
	asking.Store(true)
	for !done.Load() {
		ask()
	}
	wg.Wait()
}

// rounds counts up for half a second at most: what is looked for needs the luck of the scheduler.
func rounds(yield func(int) bool) {
	for n, begin := 0, time.Now(); n < 2000 && time.Since(begin) < time.Second/2 && yield(n); n++ {
	}
}

func counts(running, waiting float64) telemetry.Snapshot {
	return telemetry.Snapshot{
		Running: telemetry.V(running), Waiting: telemetry.V(waiting), WaitingTokens: telemetry.V(0), KVShare: telemetry.V(0.1),
	}
}

// The engine is full before a snapshot and full after it, so that nothing may be admitted while it is taken either: neither by leaving
// out of the new figures what was in the old ones only, nor by forgetting what is in the new ones only.
func TestNoCapIsPassedWhileASnapshotIsTaken(t *testing.T) {
	for _, x := range []struct {
		name   string
		caps   admission.Caps
		before telemetry.Snapshot // five of ours and five of others run
		ended  bool               // ours end after that
		after  telemetry.Snapshot
	}{
		{"what has ended", admission.Caps{Endpoint: 5}, counts(10, 0), true, counts(6, 0)},
		{"what was sent", admission.Caps{Waiting: 5}, counts(0, 0), false, counts(0, 5)},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := newClock()
			p := newPool(t, c, router.Config{VisibilityLag: router.None, FrozenAfter: router.None, Caps: x.caps}, "a")
			admitted := func() bool {
				l, err := p.Reserve(context.Background(), router.Request{PromptTokens: 10})
				if err == nil {
					l.Cancel()
				}
				return err == nil
			}
			take := func(s telemetry.Snapshot) {
				c.advance(10 * time.Millisecond)
				require.NoError(t, p.Observe("a", s))
				c.advance(10 * time.Millisecond)
			}
			passed := 0
			for range rounds {
				var leases []*router.Lease
				reserve := func() {
					for range 5 {
						leases = append(leases, mustReserve(t, p, router.Request{PromptTokens: 10}))
					}
				}
				take(counts(0, 0))
				if x.ended {
					reserve()
				}
				take(x.before)
				if x.ended {
					for _, l := range leases {
						l.Done(router.Usage{})
					}
				} else {
					reserve()
				}
				c.advance(10 * time.Millisecond)
				require.False(t, admitted(), "before")
				whileObserving(t, p, x.after, func() {
					if admitted() {
						passed++
					}
				})
				require.False(t, admitted(), "after")
				for _, l := range leases {
					l.Cancel()
				}
			}
			require.Zero(t, passed)
		})
	}
}

// A decision that meets a snapshot half taken sees figures that are too high for a moment, and never too low.
func TestFiguresAreNeverTooLowWhileASnapshotIsTaken(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{VisibilityLag: router.None, FrozenAfter: router.None}, "a")
	low := 0.0
	for range rounds {
		var leases []*router.Lease
		for range 9 {
			leases = append(leases, mustReserve(t, p, router.Request{PromptTokens: 10}))
		}
		c.advance(10 * time.Millisecond)
		require.NoError(t, p.Observe("a", counts(10, 0))) // nine of ours and one of others
		for _, l := range leases {
			l.Done(router.Usage{})
		}
		c.advance(10 * time.Millisecond)
		whileObserving(t, p, counts(9, 0), func() { // nine of others
			d, err := p.Score(router.Request{PromptTokens: 10})
			if err != nil {
				t.Error(err)
			}
			low = min(low, d.Candidates[0].Requests.Value-1)
		})
		require.Equal(t, 9.0, scored(t, p, router.Request{}).Candidates[0].Requests.Value)
	}
	require.Zero(t, low)
}

// Sources that report at once: the newer figures stay, and nobody ever sees older ones after them. A long list of adapters, which is
// part of every state, makes a report take its time, so that reports overtake each other.
func TestAnOlderStateIsNeverSeenAfterANewerOne(t *testing.T) {
	const reports = 600
	c := newClock()
	p := newPool(t, c, router.Config{FrozenAfter: router.None}, "a")
	begin := c.now()
	c.advance(time.Second)
	first := counts(0, 0)
	first.ObservedAt, first.Adapters.Known = begin, true
	for i := range 2000 {
		first.Adapters.Adapters = append(first.Adapters.Adapters, telemetry.Adapter{ID: strconv.Itoa(i), Digest: "1"})
	}
	require.NoError(t, p.Observe("a", first))
	var next, reporters atomic.Int64
	var wg sync.WaitGroup
	reporters.Store(4)
	for range 4 {
		wg.Go(func() {
			defer reporters.Add(-1)
			for n := next.Add(1); n <= reports; n = next.Add(1) {
				s := counts(float64(n), 0)
				s.ObservedAt = begin.Add(time.Duration(n))
				if err := p.Observe("a", s); err != nil {
					t.Error(err)
				}
			}
		})
	}
	last, back := 0.0, 0
	for reporters.Load() > 0 {
		d, err := p.Score(router.Request{})
		require.NoError(t, err)
		now := d.Candidates[0].Requests.Value
		if now < last {
			back++
		}
		last = now
		runtime.Gosched()
	}
	wg.Wait()
	require.Zero(t, back, "steps back")
	require.Equal(t, float64(reports), candidate(t, scored(t, p, router.Request{}), "a").Requests.Value)
}
