package router_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// The first to wait is served when time alone makes room for it, like any other.
func TestQueueFirstWaiterMindsTheTime(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Queue: router.Queue{Max: 4}, Caps: admission.Caps{Endpoint: 1}}, "a")
	busy(t, p, c, "a", 1, 0)
	w := enqueue(t, p, router.Request{})
	require.False(t, done(w))
	next := p.Tick()
	require.False(t, next.IsZero())
	require.LessOrEqual(t, next.Sub(c.now()), 11*time.Second, "the veto lapses at 10 s, the queue's timeout is 30 s")
	c.advance(10*time.Second + 2*time.Millisecond)
	p.Tick()
	require.True(t, done(w))
}

// A prompt that does not fit on the free endpoint does not hide a shorter one that does.
func TestQueueLongPromptDoesNotHideAShortOne(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Queue: router.Queue{Max: 4}, Caps: admission.Caps{Endpoint: 1}})
	require.NoError(t, p.SetEndpoints([]router.Endpoint{
		{ID: "big", Profile: score.Profile{KVCapacity: 100_000}}, {ID: "small", Profile: score.Profile{KVCapacity: 3000}},
	}))
	idle(t, p, c, "big", "small")
	one := mustReserve(t, p, router.Request{PromptTokens: 50_000})
	two := mustReserve(t, p, router.Request{PromptTokens: 2100})
	require.Equal(t, "small", two.Endpoint().ID)
	long := enqueue(t, p, router.Request{PromptTokens: 3500})
	short := enqueue(t, p, router.Request{PromptTokens: 2100})
	require.False(t, done(long) || done(short))
	two.Done(router.Usage{})
	require.True(t, done(short), "a head that fits nowhere blocks one that fits")
	one.Done(router.Usage{})
}

// Nor does it when the endpoint that tells them apart came later than both.
func TestQueueLongPromptDoesNotHideAShortOneLater(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Queue: router.Queue{Max: 4}, Caps: admission.Caps{Endpoint: 1}})
	require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "big", Profile: score.Profile{KVCapacity: 100_000}}}))
	idle(t, p, c, "big")
	mustReserve(t, p, router.Request{PromptTokens: 50_000})
	long := enqueue(t, p, router.Request{PromptTokens: 3500})
	short := enqueue(t, p, router.Request{PromptTokens: 2100})
	require.NoError(t, p.Add(router.Endpoint{ID: "small", Profile: score.Profile{KVCapacity: 3000}}))
	require.False(t, done(long))
	require.True(t, done(short))
}

// Waiters who have left are no demand for a share any more.
func TestQueueSharesForgetWaitersWhoHaveLeft(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{
		Queue: router.Queue{Max: 8}, Caps: admission.Caps{Aggregate: 4}, Shares: router.Shares{Interactive: 0.5, Memory: time.Second},
	}, "a")
	var open []*router.Lease
	for range 4 {
		open = append(open, mustReserve(t, p, router.Request{Class: router.ClassInteractive}))
	}
	x, y := enqueue(t, p, router.Request{Class: router.ClassInteractive}), enqueue(t, p, router.Request{Class: router.ClassInteractive})
	x.Cancel()
	y.Cancel()
	for _, l := range open {
		l.Done(router.Usage{})
	}
	c.advance(time.Hour)
	for i := range 4 {
		_, err := p.Score(router.Request{Class: router.ClassBatch})
		require.NoError(t, err, "nobody of the class has been seen for an hour, and batch request %d is refused for it", i)
		mustReserve(t, p, router.Request{Class: router.ClassBatch})
	}
}

// What is kept for a class decays by time alone, and who waits for it is served then.
func TestQueueSharesDecayByTimeAlone(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{
		Queue: router.Queue{Max: 8, Timeout: time.Hour}, Caps: admission.Caps{Aggregate: 4}, Shares: router.Shares{Interactive: 0.5, Memory: 10 * time.Second},
	}, "a")
	var open []*router.Lease
	for range 4 {
		open = append(open, mustReserve(t, p, router.Request{Class: router.ClassInteractive}))
	}
	for _, l := range open {
		l.Done(router.Usage{})
	}
	mustReserve(t, p, router.Request{Class: router.ClassBatch})
	mustReserve(t, p, router.Request{Class: router.ClassBatch})
	w := enqueue(t, p, router.Request{Class: router.ClassBatch})
	require.False(t, done(w))
	for range 100 {
		c.advance(time.Second)
		p.Tick()
	}
	_, err := p.Score(router.Request{Class: router.ClassBatch})
	require.NoError(t, err, "there is room")
	require.True(t, done(w), "who waits fits, and time has been told of")
}

// onEnded is an observer that does something once, at the end of a lease.
type onEnded struct{ do func() }

func (o *onEnded) Decided(*router.Receipt) {}
func (o *onEnded) Ended(*router.Receipt) {
	if o.do != nil {
		do := o.do
		o.do = nil
		do()
	}
}

// The observer that is told of the end of a lease cannot get its place before those who wait.
func TestQueueNoBargingFromEnded(t *testing.T) {
	c, o := newClock(), &onEnded{}
	p := newPool(t, c, router.Config{Queue: router.Queue{Max: 8}, Caps: admission.Caps{Endpoint: 1}, Receipts: router.Receipts{Observer: o}}, "a")
	l := mustReserve(t, p, router.Request{})
	w := enqueue(t, p, router.Request{PromptTokens: 100})
	var n *router.Ticket
	o.do = func() { n = enqueue(t, p, router.Request{Model: "another"}) }
	l.Done(router.Usage{})
	require.True(t, done(w), "the first to come waits on")
	require.False(t, done(n), "and the newcomer was served")
}

// What time alone has freed is offered to those who wait before a newcomer, also where nobody has ticked.
func TestQueueNoBargingByTime(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Queue: router.Queue{Max: 8}, Caps: admission.Caps{Endpoint: 1}}, "a")
	busy(t, p, c, "a", 1, 0)
	w := enqueue(t, p, router.Request{PromptTokens: 100})
	enqueue(t, p, router.Request{PromptTokens: 100}) // minds the time
	c.advance(11 * time.Second)
	n := enqueue(t, p, router.Request{PromptTokens: 1})
	require.False(t, done(n))
	require.True(t, done(w))
}

// The caller who minds the time is told that there is something earlier to mind: of another caller,
func TestQueueKeeperIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := router.New(router.Config{Queue: router.Queue{Max: 8}, Caps: admission.Caps{Endpoint: 1}})
		require.NoError(t, err)
		require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a", Models: []string{"m"}}, {ID: "b", Models: []string{"n"}}}))
		_ = mustReserve(t, p, router.Request{Model: "m"}) // never ends, and no reading of a lapses
		got := make(chan time.Duration, 2)
		start := time.Now()
		for _, model := range []string{"m", "n"} {
			if model == "n" {
				require.NoError(t, p.Observe("b", telemetry.Snapshot{Running: telemetry.V(1), Waiting: telemetry.V(0)}))
			}
			go func() {
				l, err := p.Reserve(context.Background(), router.Request{Model: model})
				if err == nil {
					l.Cancel()
				}
				if model == "n" {
					got <- time.Since(start)
				}
			}()
			synctest.Wait()
		}
		require.Less(t, <-got, 11*time.Second)
		time.Sleep(time.Minute)
	})
}

// and of a ticket whose deadline is earlier.
func TestQueueKeeperMindsTickets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := router.New(router.Config{Queue: router.Queue{Max: 8}, Caps: admission.Caps{Endpoint: 1}})
		require.NoError(t, err)
		require.NoError(t, p.SetEndpoints(plain("a")))
		l := mustReserve(t, p, router.Request{})
		go func() { _, _ = p.Reserve(context.Background(), router.Request{}) }()
		synctest.Wait()
		start := time.Now()
		w := enqueue(t, p, router.Request{Deadline: time.Now().Add(10 * time.Second)})
		<-w.Done()
		require.LessOrEqual(t, time.Since(start), 10*time.Second+time.Millisecond)
		l.Cancel()
		time.Sleep(time.Minute)
	})
}

// A seed that is used up between the look and the grant, in a pool that has become smaller, is a refusal like others.
func TestQueueGateShutsWhileGranting(t *testing.T) {
	c := newClock()
	var hook func()
	p := newPool(t, c, router.Config{
		Seeds: admission.SeedConfig{Max: 2, Observations: 1}, VisibilityLag: router.None,
		Policy: hosted(func(v *router.View) int {
			if hook != nil {
				h := hook
				hook = nil
				h()
			}
			for i := v.Len() - 1; i >= 0; i-- {
				if v.Choosable(i) {
					return i
				}
			}
			return -1
		}),
	}, "a", "b", "c", "d", "e", "f")
	idle(t, p, c, "a", "b", "c", "d", "e", "f")
	for range 2 { // of both views that are used by turns
		hook = func() { mustReserve(t, p, router.Request{}) } // overtakes: place 5 is noted
		mustReserve(t, p, router.Request{})
	}
	require.NoError(t, p.SetEndpoints(plain("a", "b")))
	c.advance(time.Second)
	busy(t, p, c, "a", 4, 9)
	idle(t, p, c, "b")
	c.advance(time.Millisecond)
	require.True(t, mustReserve(t, p, router.Request{}).Decision().Seed)
	c.advance(time.Millisecond)
	hook = func() { idle(t, p, c, "b") } // ends the seed's lease while another is about to be granted
	require.NotPanics(t, func() { _, _ = p.Reserve(context.Background(), router.Request{}) })
}

// The function for weights may look at the pool,
func TestQueueWeightMayLookAtThePool(t *testing.T) {
	c := newClock()
	var p *router.Pool
	p = newPool(t, c, router.Config{Queue: router.Queue{Max: 8, Weight: func(string) float64 {
		if p != nil {
			p.Stats()
		}
		return 1
	}}, Caps: admission.Caps{Endpoint: 1}}, "a")
	mustReserve(t, p, router.Request{})
	done := make(chan struct{})
	go func() {
		_, _ = p.Enqueue(router.Request{})
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Second):
		t.Fatal("hangs")
	}
}

// and where it panics the pool goes on.
func TestQueueWeightPanics(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Queue: router.Queue{Max: 8, Weight: func(string) float64 { panic("host") }}, Caps: admission.Caps{Endpoint: 1}}, "a")
	mustReserve(t, p, router.Request{})
	func() {
		defer func() { _ = recover() }()
		_, _ = p.Enqueue(router.Request{})
	}()
	done := make(chan struct{})
	go func() { p.Stats(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Second):
		t.Fatal("the pool is locked for ever")
	}
}

// So may a policy, while it places one who waits.
func TestQueuePolicyMayLookAtThePool(t *testing.T) {
	c := newClock()
	var p *router.Pool
	p = newPool(t, c, router.Config{Queue: router.Queue{Max: 8}, Caps: admission.Caps{Endpoint: 1}, Policy: hosted(func(v *router.View) int {
		p.Stats()
		return firstChoosable(v)
	})}, "a")
	l := mustReserve(t, p, router.Request{})
	enqueue(t, p, router.Request{})
	done := make(chan struct{})
	go func() { l.Cancel(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Second):
		t.Fatal("hangs")
	}
}

// The receipt of a request that was refused at the door is replayed with its own reason.
func TestQueueReplayOfQueueFull(t *testing.T) {
	c, k := newClock(), &keeper{}
	p := newPool(t, c, router.Config{Queue: router.Queue{Max: 1}, Caps: admission.Caps{Endpoint: 1}, Receipts: router.Receipts{Observer: k}}, "a")
	mustReserve(t, p, router.Request{})
	enqueue(t, p, router.Request{})
	_, err := p.Enqueue(router.Request{})
	require.ErrorIs(t, err, router.ErrQueueFull)
	last := k.decided[len(k.decided)-1]
	require.Equal(t, "queue-full", last.Rejected)
	_, err = router.Replay(last, p.Config())
	require.NotErrorIs(t, err, router.ErrNoEndpoints)
	require.ErrorIs(t, err, router.ErrQueueFull)
}

// OverShare in a receipt is of that request, not of one before it.
func TestQueueOverShareIsOfItsOwnRequest(t *testing.T) {
	c, k := newClock(), &keeper{}
	p := newPool(t, c, router.Config{
		Caps: admission.Caps{Aggregate: 2}, Shares: router.Shares{Interactive: 0.5}, Receipts: router.Receipts{Observer: k},
	}, "a")
	i := mustReserve(t, p, router.Request{Class: router.ClassInteractive})
	i.Cancel()
	mustReserve(t, p, router.Request{Class: router.ClassBatch})
	rejected(t, p, router.Request{Class: router.ClassBatch}, router.ErrSaturated) // by its share
	busy(t, p, c, "a", 9, 0)
	rejected(t, p, router.Request{Class: router.ClassSystem}, router.ErrSaturated)
	last := k.decided[len(k.decided)-1]
	require.Equal(t, router.CapAggregate, last.Candidates[0].Excluded)
	require.False(t, last.OverShare)
}

// One that is refused while it waits is told how long it has waited.
func TestQueueWaitedOfTheRefused(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Queue: router.Queue{Max: 8}, Caps: admission.Caps{Endpoint: 1}}, "a")
	mustReserve(t, p, router.Request{})
	w := enqueue(t, p, router.Request{})
	c.advance(3 * time.Second)
	require.NoError(t, p.Remove("a"))
	require.True(t, done(w))
	_, err := w.Lease()
	require.ErrorIs(t, err, router.ErrNoEndpoints)
	var r *router.RejectError
	require.True(t, errors.As(err, &r))
	require.Equal(t, 3*time.Second, r.Decision.Waited)
}

// The observer is told of a decision before the end of its lease.
func TestQueueDecidedComesBeforeEnded(t *testing.T) {
	c := newClock()
	o := &orderly{}
	p := newPool(t, c, router.Config{Queue: router.Queue{Max: 8}, Caps: admission.Caps{Endpoint: 1}, Receipts: router.Receipts{Observer: o}}, "a")
	for range iterations(600) {
		l, err := p.Reserve(context.Background(), router.Request{})
		require.NoError(t, err)
		back := make(chan struct{})
		go func() {
			defer close(back)
			m, err := p.Reserve(context.Background(), router.Request{})
			if err == nil {
				m.Done(router.Usage{})
			}
		}()
		for p.Stats().Queue.Waiting == 0 {
			select {
			case <-back:
			default:
			}
		}
		l.Done(router.Usage{})
		<-back
	}
	require.Zero(t, o.wrong)
}

// orderly is an observer that counts the ends it is told of before the decisions.
type orderly struct {
	keeper
	known map[uint64]bool
	wrong int
}

func (o *orderly) Decided(r *router.Receipt) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known == nil {
		o.known = map[uint64]bool{}
	}
	o.known[r.Number] = true
}

func (o *orderly) Ended(r *router.Receipt) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.known[r.Number] {
		o.wrong++
	}
}

// The end of a prefill shortens what is predicted: a waiter with a deadline that fits by that is served.
func TestQueueFirstTokenMakesRoomForADeadline(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Queue: router.Queue{Max: 8, Timeout: time.Hour}, Caps: admission.Caps{Endpoint: 2}})
	require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a", Profile: flat}, {ID: "b", Profile: flat}}))
	l := mustReserve(t, p, router.Request{PromptTokens: 100_000, MaxOutputTokens: 1})
	for range 2 {
		mustReserve(t, p, router.Request{PromptTokens: 1, MaxOutputTokens: 1, Exclude: []string{l.Endpoint().ID}, ExcludeHard: true})
	}
	w := enqueue(t, p, router.Request{PromptTokens: 1000, MaxOutputTokens: 1, Deadline: c.now().Add(10 * time.Second)})
	require.False(t, done(w))
	l.FirstToken()
	require.True(t, done(w))
}

// Who waits for requests of its own tenant is told, too, that no endpoint can serve it any more.
func TestQueueNoEndpointsBehindATenantsCap(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Queue: router.Queue{Max: 8}, Caps: admission.Caps{Tenant: 1}}, "a")
	l := mustReserve(t, p, router.Request{Tenant: "x"})
	w := enqueue(t, p, router.Request{Tenant: "x"})
	require.NoError(t, p.Remove("a"))
	require.True(t, done(w), "others are rejected with ErrNoEndpoints at once")
	l.Cancel()
}

// A request that is larger by itself than its tenant's token cap is rejected at once, whoever waits.
func TestQueueNeverFitsItsTenantsTokens(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Queue: router.Queue{Max: 8}, Caps: admission.Caps{Endpoint: 1, TenantTokens: 500}}, "a")
	mustReserve(t, p, router.Request{})
	_, err := p.Enqueue(router.Request{Tenant: "x", PromptTokens: 600, MaxOutputTokens: 1})
	require.ErrorIs(t, err, router.ErrSaturated, "nobody waits")
	enqueue(t, p, router.Request{})
	_, err = p.Enqueue(router.Request{Tenant: "x", PromptTokens: 600, MaxOutputTokens: 1})
	require.ErrorIs(t, err, router.ErrSaturated, "somebody waits")
}

// Those who fit nowhere do not block those behind them that fit, of whatever classes and tenants they are.
func TestQueueHeadsDoNotBlock(t *testing.T) {
	for _, caps := range []admission.Caps{{Endpoint: 1}, {Endpoint: 1, Tenant: 9}} {
		c := newClock()
		p := newPool(t, c, router.Config{Queue: router.Queue{Max: 32}, Caps: caps})
		require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "m", Models: []string{"m"}}, {ID: "n", Models: []string{"n"}}}))
		mustReserve(t, p, router.Request{Model: "m"})
		l := mustReserve(t, p, router.Request{Model: "n"})
		var heads []*router.Ticket
		for _, class := range []router.Class{router.ClassSystem, router.ClassInteractive, router.ClassStandard, router.ClassBatch} {
			for _, tenant := range []string{"", "x", "y"} {
				heads = append(heads, enqueue(t, p, router.Request{Model: "m", Class: class, Tenant: tenant}))
			}
		}
		first := enqueue(t, p, router.Request{Model: "n", Class: router.ClassBatch, Tenant: "z"})
		second := enqueue(t, p, router.Request{Model: "n", Class: router.ClassBatch, Tenant: "z"})
		l.Done(router.Usage{})
		granted(t, first)
		require.False(t, done(second))
		first.Cancel()
		granted(t, second).Cancel()
		for _, ticket := range heads {
			require.False(t, done(ticket))
		}
	}
}

// Who is kept by its own tenant's cap, its tokens or its class's share does not stand for others whose requests are like its own.
func TestQueueParticularReasonsDoNotBlock(t *testing.T) {
	for name, cfg := range map[string]router.Config{
		"tenant": {Caps: admission.Caps{Endpoint: 2, Tenant: 1}},
		"tokens": {Caps: admission.Caps{Endpoint: 2, TenantTokens: 400}},
		"share":  {Caps: admission.Caps{Endpoint: 2}, Shares: router.Shares{Interactive: 0.5}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			cfg.Queue = router.Queue{Max: 8}
			p := newPool(t, c, cfg, "a")
			mustReserve(t, p, router.Request{Tenant: "x", Class: router.ClassBatch})
			l := mustReserve(t, p, router.Request{Tenant: "z", Class: router.ClassInteractive})
			class := router.ClassInteractive
			if name == "share" {
				class = router.ClassBatch
			}
			kept := enqueue(t, p, router.Request{Tenant: "x", Class: class})
			other := enqueue(t, p, router.Request{Tenant: "y", Class: router.ClassInteractive})
			l.Done(router.Usage{})
			granted(t, other).Cancel()
			require.False(t, done(kept))
		})
	}
}

// A prefill that ends between the look of a newcomer with a deadline and its push is not missed.
func TestQueueFirstTokenBetweenLookAndPush(t *testing.T) {
	c := newClock()
	var hook func()
	p := newPool(t, c, router.Config{Caps: admission.Caps{Endpoint: 2}, Queue: router.Queue{Max: 8, Timeout: time.Hour, Weight: func(string) float64 {
		if hook != nil {
			hook() // the weight is asked for between the look and the push
		}
		return 1
	}}})
	require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a", Profile: flat}, {ID: "b", Profile: flat}}))
	l := mustReserve(t, p, router.Request{PromptTokens: 100_000, MaxOutputTokens: 1})
	for range 2 {
		mustReserve(t, p, router.Request{PromptTokens: 1, MaxOutputTokens: 1, Exclude: []string{l.Endpoint().ID}, ExcludeHard: true})
	}
	enqueue(t, p, router.Request{Exclude: []string{l.Endpoint().ID}, ExcludeHard: true}).Cancel() // events have been seen to
	hook = l.FirstToken
	require.True(t, done(enqueue(t, p, router.Request{PromptTokens: 1000, MaxOutputTokens: 1, Deadline: c.now().Add(10 * time.Second)})))
}
