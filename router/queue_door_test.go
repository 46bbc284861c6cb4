package router_test

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

// What comes free after a newcomer has looked, and was offered to those who waited before it joined, is offered to it, too.
func TestQueueRoomBetweenLookAndJoin(t *testing.T) {
	c := newClock()
	var p *router.Pool
	var held *router.Lease
	p = newPool(t, c, router.Config{Caps: admission.Caps{Aggregate: 1}, Queue: router.Queue{Max: 4, Weight: func(string) float64 {
		held.Done(router.Usage{})
		p.Tick()
		return 1
	}}}, "a")
	held = mustReserve(t, p, router.Request{})
	granted(t, enqueue(t, p, router.Request{})).Cancel()
	empty(t, p)
}

// A deadline that cannot be met is refused at once, whether others wait already or not, and nobody is told to come back for it.
func TestQueueHopelessDeadline(t *testing.T) {
	for _, others := range []int{0, 1} {
		c := newClock()
		p := newPool(t, c, router.Config{Caps: admission.Caps{Endpoint: 100}, Queue: router.Queue{Max: 4}})
		require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a", Profile: flat}}))
		busy(t, p, c, "a", 60, 40) // some 40 s of prefill
		for range others {
			require.False(t, done(enqueue(t, p, router.Request{})))
		}
		for _, deadline := range []time.Time{c.now().Add(10 * time.Second), c.now(), c.ago(time.Hour), time.Unix(0, 0), time.Time{}.Add(1)} {
			reject := rejected(t, p, router.Request{PromptTokens: 100, Deadline: deadline}, router.ErrDeadline)
			require.Zero(t, reject.RetryAfter)
		}
		require.False(t, done(enqueue(t, p, router.Request{PromptTokens: 100, Deadline: c.now().Add(time.Minute)})))
	}
}

// RetryAfter means the same after a wait: none where a deadline passes, or where the tenant's own requests must end first.
func TestQueueRetryAfterAWait(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Caps: admission.Caps{Aggregate: 2, Tenant: 1}, Queue: router.Queue{Max: 4, Timeout: 10 * time.Second}}, "a")
	for range 2 { // measured: one a second
		rejected(t, p, router.Request{Deadline: c.now()}, router.ErrDeadline)
		for range 3 {
			mustReserve(t, p, router.Request{}).Done(router.Usage{})
			c.advance(time.Second)
		}
		one, two := mustReserve(t, p, router.Request{Tenant: "x"}), mustReserve(t, p, router.Request{})
		rejected(t, p, router.Request{Class: router.ClassSheddable}, router.ErrSaturated)
		one.Done(router.Usage{})
		two.Done(router.Usage{})
	}
	mustReserve(t, p, router.Request{Tenant: "x"})
	mustReserve(t, p, router.Request{})
	late := enqueue(t, p, router.Request{Deadline: c.now().Add(8 * time.Second)})
	capped := enqueue(t, p, router.Request{Tenant: "x"})
	plain := enqueue(t, p, router.Request{})
	c.advance(10 * time.Second)
	p.Tick()
	require.Zero(t, refused(t, late, router.ErrDeadline).RetryAfter)
	require.Zero(t, refused(t, capped, router.ErrQueueTimeout).RetryAfter)
	require.Positive(t, refused(t, plain, router.ErrQueueTimeout).RetryAfter)
}

// A queue that nobody can wait in, and a memory of nothing, are faults and not the defaults in disguise.
func TestQueueHasNoNone(t *testing.T) {
	for field, cfg := range map[string]router.Config{
		"Timeout = -1ns":   {Queue: router.Queue{Max: 4, Timeout: router.None}},
		"AgeAfter = -1ns":  {Queue: router.Queue{Max: 4, AgeAfter: router.None}},
		"AgedEvery = -1":   {Queue: router.Queue{Max: 4, AgedEvery: router.None}},
		"MaxTokens = -1":   {Queue: router.Queue{Max: 4, MaxTokens: router.None}},
		"Memory = -1ns":    {Shares: router.Shares{Interactive: 0.1, Memory: router.None}},
		"Reserve[1] = NaN": {Shares: router.Shares{Interactive: nan}},
	} {
		_, err := router.New(cfg)
		require.ErrorContains(t, err, field)
	}
}

// A weight that is no number counts as the least there is.
func TestQueueWeightIsNoNumber(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Caps: admission.Caps{Aggregate: 1}, Queue: router.Queue{Max: 8, Weight: func(tenant string) float64 {
		return map[string]float64{"nan": nan, "minus": -5}[tenant]
	}}}, "a")
	mustReserve(t, p, router.Request{})
	for _, tenant := range []string{"nan", "minus", "zero"} {
		enqueue(t, p, router.Request{Tenant: tenant}).Cancel()
	}
	require.EqualValues(t, 3, p.Stats().Queue.Cancelled)
}

// A ticket that was given up says so as a cancelled context would, and a lease that nobody asked for is given back.
func TestQueueTicketGivenUp(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Caps: admission.Caps{Aggregate: 1}, Queue: router.Queue{Max: 4}}, "a")
	first, second := enqueue(t, p, router.Request{}), enqueue(t, p, router.Request{})
	second.Cancel()
	l, err := second.Lease()
	require.Nil(t, l)
	require.ErrorIs(t, err, context.Canceled)
	third := enqueue(t, p, router.Request{})
	first.Cancel()
	first.Cancel()
	granted(t, third).Done(router.Usage{})
	third.Cancel()
	require.EqualValues(t, 1, p.Stats().Completed)
	empty(t, p)
}

// Where the host's timer panics, the caller who waited leaves nothing behind.
func TestQueueTimerPanics(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Caps: admission.Caps{Aggregate: 1}, Queue: router.Queue{Max: 4, Timer: func(time.Duration) *time.Timer {
		panic("host")
	}}}, "a")
	held := mustReserve(t, p, router.Request{})
	require.Panics(t, func() { _, _ = p.Reserve(context.Background(), router.Request{}) })
	held.Done(router.Usage{})
	empty(t, p)
}

// A clock that is set back makes nobody wait for less than nothing.
func TestQueueClockSetBack(t *testing.T) {
	c, k := newClock(), &keeper{}
	p := newPool(t, c, router.Config{Caps: admission.Caps{Aggregate: 1}, Queue: router.Queue{Max: 4}, Receipts: router.Receipts{Observer: k}}, "a")
	c.advance(time.Hour)
	held := mustReserve(t, p, router.Request{})
	served := enqueue(t, p, router.Request{})
	timed := enqueue(t, p, router.Request{})
	c.advance(-30 * time.Minute)
	held.Done(router.Usage{})
	require.Zero(t, granted(t, served).Decision().Waited)
	timed.Cancel()
	require.False(t, p.Tick().After(c.now().Add(24*time.Hour)))
	for _, r := range k.decided {
		require.GreaterOrEqual(t, r.Waited, time.Duration(0))
	}
}

// The reading of an endpoint that is out of the choice lapses, too, and makes room in the whole pool.
func TestQueueReadingOfAFailedEndpointLapses(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{
		Caps: admission.Caps{Aggregate: 10}, Queue: router.Queue{Max: 4}, Circuit: router.Circuit{OpenFor: time.Hour, MaxOpenFor: time.Hour},
	}, "a", "b")
	for range 5 {
		mustReserve(t, p, router.Request{Exclude: []string{"b"}}).Fail(nil)
	}
	busy(t, p, c, "a", 10, 0)
	w := enqueue(t, p, router.Request{})
	require.False(t, done(w))
	next := p.Tick()
	require.Less(t, next.Sub(c.now()), 11*time.Second)
	c.advance(next.Sub(c.now()))
	p.Tick()
	require.Equal(t, "b", granted(t, w).Endpoint().ID)
}

// Stats may be asked for in a policy at any time, also while a lease is being granted under the lock and the endpoints are being changed.
func TestPolicyMayAskForStatsUnderTheLock(t *testing.T) {
	c := newClock()
	var p *router.Pool
	asked, inside := 0, false
	changed := make(chan error, 1)
	p = newPool(t, c, router.Config{Policy: hosted(func(v *router.View) int {
		if inside {
			return firstChoosable(v)
		}
		if asked++; asked <= 4 { // overtakes itself, until it is asked under the lock
			inside = true
			mustReserve(t, p, router.Request{})
			inside = false
		} else if asked == 5 {
			begun := make(chan struct{})
			go func() {
				close(begun)
				changed <- p.Drain("b")
			}()
			<-begun
			for range 1000 { // so that it comes as far as it can
				runtime.Gosched()
			}
			p.Stats()
		}
		return firstChoosable(v)
	})}, "a", "b")
	over := make(chan struct{})
	go func() {
		mustReserve(t, p, router.Request{})
		close(over)
	}()
	select {
	case <-over:
		require.NoError(t, <-changed)
		require.Equal(t, 5, asked)
	case <-time.After(5 * time.Second):
		t.Fatal("hangs")
	}
}

// What the gate said of one request is not told of another.
func TestSeedSpentIsOfItsOwnRequest(t *testing.T) {
	c := newClock()
	p := incident(t, c, func(cfg *router.Config) { cfg.Seeds.Max = 1 })
	leases, _ := burst(t, p, 2, router.Request{})
	require.Len(t, leases, 1)
	d, err := p.Score(router.Request{})
	require.ErrorIs(t, err, router.ErrSaturated)
	require.True(t, candidate(t, d, "peer").SeedSpent)
	idle(t, p, c, "owner", "peer")
	require.False(t, candidate(t, scored(t, p, router.Request{}), "peer").SeedSpent, "nothing is asked of the gate")
}

// Every receipt of a pool with all that limits admission goes through JSON and is decided again in the same way.
func TestReplayOfAdmission(t *testing.T) {
	saw := map[string]int{}
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 1))
		c, k := newClock(), &keeper{}
		cfg := router.Config{
			Caps: admission.Caps{Waiting: 4, Endpoint: 5, Aggregate: 12, Tenant: 4, TenantTokens: 9000}, Replicas: 1 + int(seed)%2, Seed: seed,
			Queue: router.Queue{Max: 6, Timeout: 3 * time.Second}, Shares: router.Shares{Interactive: 0.3, Standard: 0.1},
			Seeds: admission.SeedConfig{Max: 1, Allowance: float64(seed % 3)}, FrozenAfter: router.None, FailClosed: seed == 5,
			Limit:    router.Limit{Adaptive: true, Learn: admission.LimitConfig{Min: 1, Max: 4}},
			Receipts: router.Receipts{Observer: k},
		}
		p := newPool(t, c, cfg, "a", "b", "c")
		cfg = p.Config()
		var tickets []*router.Ticket
		for range 400 {
			switch x := r.IntN(10); {
			case x < 5:
				req := router.Request{
					PromptTokens: r.Int64N(3000), MaxOutputTokens: r.Int64N(300), Tenant: []string{"", "x", "y"}[r.IntN(3)], Class: router.Class(r.IntN(5)),
					Prefix: prompt(t, r.IntN(3), 1, 2),
				}
				if r.IntN(4) == 0 {
					req.Deadline = c.now().Add(time.Duration(r.Int64N(int64(8 * time.Second))))
				}
				if w, err := p.Enqueue(req); err == nil {
					tickets = append(tickets, w)
				}
			case x < 7:
				if len(tickets) > 0 {
					i := r.IntN(len(tickets))
					tickets[i].Cancel()
					tickets = append(tickets[:i], tickets[i+1:]...)
				}
			case x < 9:
				id := []string{"a", "b", "c"}[r.IntN(3)]
				s := telemetry.Snapshot{ObservedAt: c.now(), Running: telemetry.V(float64(r.IntN(4))), KVShare: telemetry.V(r.Float64())}
				if r.IntN(5) > 0 {
					s.Waiting = telemetry.V(float64(r.IntN(6) / 3))
				}
				require.NoError(t, p.Observe(id, s))
			default:
				c.advance(time.Duration(r.Int64N(int64(2 * time.Second))))
				p.Tick()
			}
		}
		for _, receipt := range k.decided {
			text, err := json.Marshal(receipt)
			require.NoError(t, err)
			var back router.Receipt
			require.NoError(t, json.Unmarshal(text, &back))
			again, err := json.Marshal(&back)
			require.NoError(t, err)
			require.JSONEq(t, string(text), string(again))
			d, err := router.Replay(&back, cfg)
			if receipt.Rejected == "" {
				require.NoError(t, err, string(text))
				require.Equal(t, receipt.Endpoint, d.Endpoint, string(text))
				require.Equal(t, receipt.Seed, d.Seed)
				saw["granted"]++
				continue
			}
			var reject *router.RejectError
			require.ErrorAs(t, err, &reject, string(text))
			require.Equal(t, receipt.Rejected, reject.Code(), string(text))
			saw[receipt.Rejected]++
			if len(receipt.Candidates) == 0 {
				saw["by the queue"]++
			}
			for _, candidate := range receipt.Candidates {
				saw[candidate.Excluded.String()]++
			}
		}
	}
	t.Log(saw)
	for _, what := range []string{"granted", "saturated", "deadline", "queue-full", "queue-timeout", "by the queue", "cap-share", "cap-tenant", "cap-aggregate",
		"cap-adaptive", "seed-only", "seed-spent", "seed-telemetry", "misses-deadline"} {
		require.Positive(t, saw[what], what)
	}
}

var nan = math.NaN()
