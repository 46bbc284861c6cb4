package router_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

// counted is a complete report of an engine now.
func counted(tb require.TestingT, p *router.Pool, c *clock, id string, running, waiting, kv float64) {
	require.NoError(tb, p.Observe(id, telemetry.Snapshot{
		ObservedAt: c.now(), Running: telemetry.V(running), Waiting: telemetry.V(waiting), KVShare: telemetry.V(kv),
	}))
}

// incident is the pool to get right: the warm owner runs 38 requests and 36 wait, its peer is idle.
func incident(tb testing.TB, c *clock, change func(*router.Config)) *router.Pool {
	tb.Helper()
	cfg := router.Config{
		Caps: admission.Caps{Endpoint: 38, Aggregate: 76}, FrozenAfter: router.None,
		Seeds: admission.SeedConfig{Max: 2, For: 5 * time.Second, Cooldown: 5 * time.Second},
	}
	if change != nil {
		change(&cfg)
	}
	p := newPool(tb, c, cfg, "owner", "peer")
	warm := mustReserve(tb, p, router.Request{Prefix: long(tb, 1, 64), Exclude: []string{"peer"}, ExcludeHard: true})
	warm.Done(router.Usage{})
	c.advance(time.Second)
	stuck(tb, p, c)
	c.advance(100 * time.Millisecond)
	return p
}

// stuck reports the two engines of the incident.
func stuck(tb testing.TB, p *router.Pool, c *clock) {
	tb.Helper()
	counted(tb, p, c, "owner", 38, 36, 0.06)
	counted(tb, p, c, "peer", 0, 0, 0.06)
}

// burst reserves n times and returns the leases and the last rejection.
func burst(tb testing.TB, p *router.Pool, n int, req router.Request) (leases []*router.Lease, last *router.RejectError) {
	tb.Helper()
	for range n {
		l, err := p.Reserve(context.Background(), req)
		if err == nil {
			leases = append(leases, l)
			continue
		}
		require.ErrorAs(tb, err, &last)
	}
	return leases, last
}

func TestSeedOfTheIncident(t *testing.T) {
	c, k := newClock(), &keeper{}
	p := incident(t, c, func(cfg *router.Config) { cfg.Receipts.Observer = k })
	req := router.Request{Prefix: long(t, 1, 64)}
	leases, last := burst(t, p, 5, req)
	require.Len(t, leases, 2, "one burst")
	for _, l := range leases {
		require.Equal(t, "peer", l.Endpoint().ID, "bound, though the owner is warm")
		require.True(t, l.Decision().Seed)
	}
	require.ErrorIs(t, last, router.ErrSaturated)
	require.Equal(t, router.CapAggregate, last.Because, "38 and 36 and two are 76")

	// The choice of each receipt can be made again.
	replayed := 0
	for _, r := range k.decided[1:] {
		d, err := router.Replay(r, p.Config())
		require.Equal(t, r.Endpoint, d.Endpoint)
		require.Equal(t, r.Seed, d.Seed)
		if r.Rejected == "" {
			require.NoError(t, err)
			require.Equal(t, r.Terms, d.Terms)
			require.True(t, r.Seed)
			replayed++
		} else {
			require.ErrorIs(t, err, router.ErrSaturated)
		}
	}
	require.Equal(t, 2, replayed)
}

func TestSeedsAreSpent(t *testing.T) {
	c := newClock()
	p := incident(t, c, func(cfg *router.Config) { cfg.Caps.Aggregate, cfg.Receipts.Observer = 100, &keeper{} })
	leases, last := burst(t, p, 5, router.Request{})
	require.Len(t, leases, 2)
	require.Equal(t, router.CapEndpoint, candidate(t, last.Decision, "owner").Excluded)
	require.Equal(t, router.SeedSpent, candidate(t, last.Decision, "peer").Excluded)
	require.Equal(t, router.ErrSaturated, last.Reason)
}

func TestSeedSecondBurstFollowsTheLease(t *testing.T) {
	c := newClock()
	p := incident(t, c, nil)
	first, _ := burst(t, p, 1, router.Request{})
	require.Len(t, first, 1)
	c.advance(time.Second)
	second, _ := burst(t, p, 9, router.Request{})
	require.Len(t, second, 1, "the rest of the lease, on the observation that it began with")
	c.advance(time.Second)
	stuck(t, p, c)
	c.advance(time.Second)
	stuck(t, p, c)
	third, _ := burst(t, p, 9, router.Request{})
	require.Empty(t, third, "new observations do not make a spent lease longer")
}

func TestSeedStaleSampleIsNotSpentTwice(t *testing.T) {
	c := newClock()
	p := incident(t, c, func(cfg *router.Config) {
		cfg.Seeds = admission.SeedConfig{Max: 2, For: time.Second, Cooldown: router.None, Observations: router.None}
		cfg.Freshness = router.Freshness{FreshFor: time.Hour, StaleAfter: time.Hour}
	})
	leases, _ := burst(t, p, 9, router.Request{})
	require.Len(t, leases, 2)
	for _, l := range leases {
		l.Done(router.Usage{})
	}
	for range 20 {
		c.advance(2 * time.Second)
		for group := range 3 {
			more, _ := burst(t, p, 2, router.Request{Prefix: long(t, group, 8)})
			require.Empty(t, more, "the same observation, whatever the group")
		}
	}
	stuck(t, p, c)
	c.advance(100 * time.Millisecond)
	leases, _ = burst(t, p, 9, router.Request{})
	require.Len(t, leases, 2, "a newer one")
}

func TestSeedCooldown(t *testing.T) {
	c := newClock()
	p := incident(t, c, nil)
	begin := c.now()
	var granted []time.Duration
	for c.now().Sub(begin) < 21*time.Second {
		leases, _ := burst(t, p, 3, router.Request{})
		for _, l := range leases {
			granted = append(granted, c.now().Sub(begin))
			l.Done(router.Usage{})
		}
		c.advance(100 * time.Millisecond)
		stuck(t, p, c)
		c.advance(100 * time.Millisecond)
	}
	require.NotEmpty(t, granted)
	for i := 2; i < len(granted); i++ {
		require.GreaterOrEqual(t, granted[i]-granted[i-2], 5*time.Second, "two at most in the time of a rest: %v", granted)
	}
	require.GreaterOrEqual(t, len(granted), 6, "after the rest there are more: %v", granted)
}

func TestSeedNeedsEverybodysTelemetry(t *testing.T) {
	for name, lose := range map[string]func(p *router.Pool, c *clock){
		"missing": func(p *router.Pool, c *clock) { require.NoError(t, p.Add(router.Endpoint{ID: "silent"})) },
		"aging": func(p *router.Pool, c *clock) {
			c.advance(3 * time.Second)
			counted(t, p, c, "peer", 0, 0, 0.06)
			c.advance(time.Millisecond)
		},
		"incomplete": func(p *router.Pool, c *clock) {
			require.NoError(t, p.Add(router.Endpoint{ID: "silent"}))
			require.NoError(t, p.Observe("silent", telemetry.Snapshot{ObservedAt: c.now(), Running: telemetry.V(1), Waiting: telemetry.V(0)}))
		},
		"future": func(p *router.Pool, c *clock) {
			require.NoError(t, p.Add(router.Endpoint{ID: "silent"}))
			require.NoError(t, p.Observe("silent", telemetry.Snapshot{ObservedAt: c.now().Add(time.Hour), Running: telemetry.V(1), Waiting: telemetry.V(0)}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			p := incident(t, c, func(cfg *router.Config) { cfg.Receipts.Observer = &keeper{} })
			lose(p, c)
			reject := rejected(t, p, router.Request{}, router.ErrTelemetryIncomplete)
			require.Equal(t, router.SeedTelemetry, candidate(t, reject.Decision, "peer").Excluded)
			if name != "aging" { // an endpoint that takes no part does not count
				require.NoError(t, p.Drain("silent"))
				require.Equal(t, "peer", mustReserve(t, p, router.Request{}).Endpoint().ID)
			}
		})
	}
}

func TestSeedSaturated(t *testing.T) {
	c := newClock()
	p := incident(t, c, func(cfg *router.Config) { cfg.Caps = admission.Caps{Aggregate: 80} })
	counted(t, p, c, "peer", 1, 1, 0.06)
	reject := rejected(t, p, router.Request{}, router.ErrSaturated)
	require.Equal(t, router.SeedOnly, reject.Because)
	c.advance(time.Second)
	counted(t, p, c, "owner", 41, 39, 0.06)
	counted(t, p, c, "peer", 0, 0, 0.06)
	reject = rejected(t, p, router.Request{}, router.ErrSaturated)
	require.Equal(t, router.CapAggregate, reject.Because, "the aggregate is told first")
	c.advance(time.Second)
	counted(t, p, c, "owner", 38, 0, 0.06)
	l := mustReserve(t, p, router.Request{})
	require.False(t, l.Decision().Seed, "nothing waits: admission is ordinary")
}

// Fifty callers at once, on engines of which two are idle: never more than the seeds of each, and never past the aggregate.
func TestSeedUnderFiftyGoroutines(t *testing.T) {
	for _, queue := range []int{0, 50} {
		for aggregate := range 6 {
			c := newClock()
			p := newPool(t, c, router.Config{
				Caps: admission.Caps{Aggregate: 10 + aggregate}, Seeds: admission.SeedConfig{Max: 2}, Queue: router.Queue{Max: queue},
			}, "busy", "idle-1", "idle-2")
			counted(t, p, c, "busy", 5, 5, 0.5)
			counted(t, p, c, "idle-1", 0, 0, 0)
			counted(t, p, c, "idle-2", 0, 0, 0)
			c.advance(time.Second)
			var mu sync.Mutex
			on := map[string]int{}
			var wg sync.WaitGroup
			for i := range 50 {
				wg.Go(func() {
					ticket, err := p.Enqueue(router.Request{Prefix: long(t, i%2, 8)})
					if err != nil {
						if !errors.Is(err, router.ErrSaturated) {
							t.Error(err)
						}
						return
					}
					if l, _ := ticket.Lease(); l != nil {
						if !l.Decision().Seed {
							t.Error("not a seed")
						}
						mu.Lock()
						on[l.Endpoint().ID]++
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			require.Zero(t, on["busy"])
			require.LessOrEqual(t, on["idle-1"], 2)
			require.LessOrEqual(t, on["idle-2"], 2)
			require.Equal(t, min(4, aggregate), on["idle-1"]+on["idle-2"], "aggregate %d", 10+aggregate)
			if queue > 0 {
				require.Equal(t, 50-min(4, aggregate), p.Stats().Queue.Waiting)
			}
		}
	}
}

// A policy that ignores what may be chosen cannot place a seed elsewhere.
func TestSeedUnbound(t *testing.T) {
	c, k := newClock(), &keeper{}
	p := incident(t, c, func(cfg *router.Config) {
		cfg.Policy = hosted(func(v *router.View) int { return 0 }) // the owner
		cfg.Receipts.Observer = k
	})
	reject := rejected(t, p, router.Request{}, router.ErrSaturated)
	require.Equal(t, router.SeedUnbound, reject.Because)
	s := p.Stats()
	require.EqualValues(t, 1, s.PolicyFaults)
	require.Zero(t, s.OpenLeases)
	c.advance(time.Second)
	counted(t, p, c, "owner", 1, 0, 0.06)
	require.Equal(t, "owner", mustReserve(t, p, router.Request{}).Endpoint().ID, "without seeds it is as free as ever")
}

// Waiters become seeds in their order, as leases and rests allow.
func TestSeedsOfAQueue(t *testing.T) {
	c := newClock()
	p := incident(t, c, func(cfg *router.Config) { cfg.Queue = router.Queue{Max: 16, Timeout: time.Hour, AgeAfter: time.Hour} })
	var tickets []*router.Ticket
	for i := range 8 {
		class := router.ClassBatch
		if i%2 == 1 {
			class = router.ClassInteractive
		}
		tickets = append(tickets, enqueue(t, p, router.Request{ID: fmt.Sprint(i), Class: class}))
	}
	order := []int{0, 1, 3, 5, 7, 2, 4, 6} // the first two are served on arrival, then the more important ones
	served := func() (n int) {
		for i, at := range order {
			if done(tickets[at]) {
				require.Equal(t, n, i, "out of order")
				n++
			}
		}
		return n
	}
	require.Equal(t, 2, served())
	for _, ticket := range tickets[:2] {
		granted(t, ticket).Done(router.Usage{})
	}
	begin := c.now()
	var times []time.Duration
	for was := 2; was < 8; {
		c.advance(500 * time.Millisecond)
		stuck(t, p, c)
		p.Tick()
		for n := served(); was < n; was++ {
			l := granted(t, tickets[order[was]])
			require.True(t, l.Decision().Seed)
			require.Equal(t, "peer", l.Endpoint().ID)
			l.Done(router.Usage{})
			times = append(times, c.now().Sub(begin))
		}
		require.Less(t, c.now().Sub(begin), 2*time.Minute, "they wait for ever")
	}
	for i := 2; i < len(times); i++ {
		require.GreaterOrEqual(t, times[i]-times[i-2], 5*time.Second, "%v", times)
	}
	// The owner recovers: nothing is bound any more.
	last := enqueue(t, p, router.Request{})
	require.False(t, done(last))
	counted(t, p, c, "owner", 10, 36, 0.06)
	c.advance(time.Millisecond)
	counted(t, p, c, "owner", 10, 0, 0.06)
	require.False(t, granted(t, last).Decision().Seed)
}

// A removed endpoint takes its seed leases along.
func TestSeedsAreForgottenWithTheEndpoint(t *testing.T) {
	c := newClock()
	p := incident(t, c, nil)
	leases, _ := burst(t, p, 9, router.Request{})
	require.Len(t, leases, 2)
	require.NoError(t, p.Add(router.Endpoint{ID: "peer", Incarnation: "2"}))
	counted(t, p, c, "peer", 0, 0, 0.06)
	c.advance(100 * time.Millisecond)
	leases, _ = burst(t, p, 9, router.Request{})
	require.Len(t, leases, 2)
}

// A lease ends with the newest of so many observations, and its rest begins then.
func TestSeedLeaseEndsByObservations(t *testing.T) {
	c := newClock()
	p := incident(t, c, func(cfg *router.Config) {
		cfg.Caps.Aggregate = 100
		cfg.Seeds = admission.SeedConfig{Max: 1, For: time.Hour, Observations: 3, Cooldown: 5 * time.Second}
	})
	leases, _ := burst(t, p, 3, router.Request{})
	require.Len(t, leases, 1)
	endAll(leases)
	for range 3 {
		c.advance(time.Second)
		stuck(t, p, c)
	}
	c.advance(4 * time.Second)
	stuck(t, p, c)
	leases, _ = burst(t, p, 3, router.Request{})
	require.Empty(t, leases, "it rests")
	c.advance(time.Second)
	stuck(t, p, c)
	c.advance(100 * time.Millisecond)
	leases, _ = burst(t, p, 3, router.Request{})
	require.Len(t, leases, 1)
}
