package router_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

// bubble runs a test in a bubble of its own time, with a pool on the real clock: one place on a, and a queue.
func bubble(t *testing.T, change func(*router.Config), test func(t *testing.T, p *router.Pool)) {
	synctest.Test(t, func(t *testing.T) {
		cfg := router.Config{Caps: admission.Caps{Endpoint: 1}, Queue: router.Queue{Max: 8}}
		if change != nil {
			change(&cfg)
		}
		p, err := router.New(cfg)
		require.NoError(t, err)
		require.NoError(t, p.SetEndpoints(plain("a")))
		test(t, p)
	})
}

// answer is how a Reserve has ended, and when.
type answer struct {
	lease *router.Lease
	err   error
	after time.Duration
}

// reserving calls Reserve in a goroutine and returns when it waits or is over.
func reserving(ctx context.Context, p *router.Pool, req router.Request) <-chan answer {
	out := make(chan answer, 1)
	start := time.Now()
	go func() {
		l, err := p.Reserve(ctx, req)
		out <- answer{l, err, time.Since(start)}
	}()
	synctest.Wait()
	return out
}

func TestReserveTimesOutExactly(t *testing.T) {
	bubble(t, nil, func(t *testing.T, p *router.Pool) {
		l := mustReserve(t, p, router.Request{})
		first := reserving(context.Background(), p, router.Request{})
		time.Sleep(10 * time.Second)
		second := reserving(context.Background(), p, router.Request{})
		require.Equal(t, 2, p.Stats().Queue.Waiting)
		for _, got := range []answer{<-first, <-second} { // the keeper of the time leaves, and the next one keeps it
			require.ErrorIs(t, got.err, router.ErrQueueTimeout)
			require.Equal(t, 30*time.Second, got.after)
			var reject *router.RejectError
			require.ErrorAs(t, got.err, &reject)
			require.Equal(t, 30*time.Second, reject.Decision.Waited)
			require.Equal(t, "queue-timeout", reject.Code())
		}
		l.Done(router.Usage{})
		empty(t, p)
		require.EqualValues(t, 2, p.Stats().Queue.TimedOut)
		require.EqualValues(t, 2, p.Stats().RejectedBy["queue-timeout"])
	})
}

func TestReserveEndsWithItsContext(t *testing.T) {
	bubble(t, nil, func(t *testing.T, p *router.Pool) {
		l := mustReserve(t, p, router.Request{})
		cause := errors.New("gone")
		ctx, cancel := context.WithCancelCause(context.Background())
		one := reserving(ctx, p, router.Request{})
		until, stop := context.WithTimeout(context.Background(), 3*time.Second)
		defer stop()
		two := reserving(until, p, router.Request{})
		three := reserving(context.Background(), p, router.Request{})
		time.Sleep(time.Second)
		cancel(cause)
		got := <-one
		require.Equal(t, context.Canceled, got.err, "the context's own error")
		require.Equal(t, time.Second, got.after)
		got = <-two
		require.Equal(t, context.DeadlineExceeded, got.err)
		require.Equal(t, 3*time.Second, got.after)
		require.EqualValues(t, 2, p.Stats().Queue.Cancelled)
		require.Zero(t, p.Stats().Rejected, "who gives up is not rejected")
		l.Done(router.Usage{})
		got = <-three
		require.NoError(t, got.err)
		require.Equal(t, 3*time.Second, got.lease.Decision().Waited)
		got.lease.Cancel()
		empty(t, p)
	})
}

// A lease that is granted at the moment at which its caller goes is passed on.
func TestReserveGivesALeaseBackThatNobodyFetches(t *testing.T) {
	for range 50 {
		bubble(t, nil, func(t *testing.T, p *router.Pool) {
			l := mustReserve(t, p, router.Request{})
			ctx, cancel := context.WithCancel(context.Background())
			one := reserving(ctx, p, router.Request{})
			two := reserving(context.Background(), p, router.Request{})
			cancel()
			l.Done(router.Usage{})
			got := <-one
			require.Equal(t, context.Canceled, got.err)
			require.Nil(t, got.lease)
			got = <-two
			require.NoError(t, got.err)
			require.Zero(t, got.after)
			got.lease.Cancel()
			empty(t, p)
		})
	}
}

func TestReserveMissesItsDeadlineWhileItWaits(t *testing.T) {
	bubble(t, nil, func(t *testing.T, p *router.Pool) {
		l := mustReserve(t, p, router.Request{})
		other := reserving(context.Background(), p, router.Request{})
		start := time.Now()
		got := <-reserving(context.Background(), p, router.Request{MaxOutputTokens: 1, Deadline: start.Add(2 * time.Second)})
		require.ErrorIs(t, got.err, router.ErrDeadline)
		require.LessOrEqual(t, got.after, 2*time.Second+time.Nanosecond)
		require.Greater(t, got.after, time.Second)
		require.EqualValues(t, 1, p.Stats().Queue.Missed)
		l.Cancel()
		(<-other).lease.Cancel()
		empty(t, p)
	})
}

func TestReserveIsWokenByACircuitThatHasRested(t *testing.T) {
	bubble(t, func(cfg *router.Config) {
		cfg.Circuit = router.Circuit{Failures: 1, OpenFor: 7 * time.Second}
		cfg.Queue.WaitForEndpoints = true
	}, func(t *testing.T, p *router.Pool) {
		mustReserve(t, p, router.Request{}).Fail(nil)
		got := <-reserving(context.Background(), p, router.Request{})
		require.NoError(t, got.err)
		require.GreaterOrEqual(t, got.after, 7*time.Second)
		require.Less(t, got.after, 7*time.Second+2*time.Millisecond)
		require.True(t, got.lease.Decision().Probe)

		// While the probe is out nobody else is let through, and its failure doubles the rest.
		next := reserving(context.Background(), p, router.Request{})
		got.lease.Fail(nil)
		two := <-next
		require.NoError(t, two.err)
		require.GreaterOrEqual(t, two.after, 14*time.Second)
		require.Less(t, two.after, 14*time.Second+2*time.Millisecond)
		two.lease.Done(router.Usage{})
		empty(t, p)
	})
}

func TestReserveIsWokenByAReadingThatLapses(t *testing.T) {
	for name, caps := range map[string]admission.Caps{"endpoint": {Endpoint: 2}, "waiting": {Waiting: 3}, "aggregate": {Aggregate: 4}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(cfg *router.Config) { cfg.Caps = caps }, func(t *testing.T, p *router.Pool) {
				require.NoError(t, p.Observe("a", telemetry.Snapshot{Running: telemetry.V(4), Waiting: telemetry.V(4), KVShare: telemetry.V(0.5)}))
				a := reserving(context.Background(), p, router.Request{})
				b := reserving(context.Background(), p, router.Request{Tenant: "another"})
				for _, got := range []answer{<-a, <-b} {
					require.NoError(t, got.err)
					require.Greater(t, got.after, 10*time.Second)
					require.Less(t, got.after, 10*time.Second+3*time.Millisecond)
					got.lease.Cancel()
				}
				empty(t, p)
			})
		})
	}
}

func TestTheNextOneKeepsTheTime(t *testing.T) {
	bubble(t, nil, func(t *testing.T, p *router.Pool) {
		require.NoError(t, p.Observe("a", telemetry.Snapshot{Running: telemetry.V(1), Waiting: telemetry.V(0)}))
		ctx, cancel := context.WithCancel(context.Background())
		first := reserving(ctx, p, router.Request{})
		second := reserving(context.Background(), p, router.Request{})
		time.Sleep(time.Second)
		cancel()
		require.Error(t, (<-first).err)
		got := <-second
		require.NoError(t, got.err)
		require.Less(t, got.after, 10*time.Second+3*time.Millisecond)
		got.lease.Cancel()
		empty(t, p)
	})
}

func TestWaitForEndpoints(t *testing.T) {
	bubble(t, nil, func(t *testing.T, p *router.Pool) {
		require.NoError(t, p.SetEndpoints(nil))
		got := <-reserving(context.Background(), p, router.Request{})
		require.ErrorIs(t, got.err, router.ErrNoEndpoints)
		require.Zero(t, got.after)
	})
	bubble(t, func(cfg *router.Config) { cfg.Queue.WaitForEndpoints = true }, func(t *testing.T, p *router.Pool) {
		require.NoError(t, p.SetEndpoints(nil))
		one := reserving(context.Background(), p, router.Request{Model: "m"})
		other := reserving(context.Background(), p, router.Request{Model: "nobody's"})
		time.Sleep(5 * time.Second)
		require.NoError(t, p.Add(router.Endpoint{ID: "m", Models: []string{"m"}}))
		got := <-one
		require.NoError(t, got.err)
		require.Equal(t, 5*time.Second, got.after)
		got = <-other
		require.ErrorIs(t, got.err, router.ErrQueueTimeout)
		require.Equal(t, 30*time.Second, got.after)
		require.NoError(t, p.Add(router.Endpoint{ID: "small", Models: []string{"m"}}))
	})
}

// The endpoints go while a request waits: the reason is the one that a newcomer is told.
func TestTheEndpointsGoWhileOneWaits(t *testing.T) {
	bubble(t, nil, func(t *testing.T, p *router.Pool) {
		mustReserve(t, p, router.Request{})
		wait := reserving(context.Background(), p, router.Request{})
		time.Sleep(time.Second)
		require.NoError(t, p.Drain("a"))
		got := <-wait
		require.ErrorIs(t, got.err, router.ErrNoEndpoints)
		require.Equal(t, time.Second, got.after)
		rejected(t, p, router.Request{}, router.ErrNoEndpoints)
		require.EqualValues(t, 1, p.Stats().Queue.Refused)
	})
}

func TestAFullQueue(t *testing.T) {
	k := &keeper{}
	bubble(t, func(cfg *router.Config) {
		cfg.Queue = router.Queue{Max: 2, MaxTokens: 1000}
		cfg.Receipts.Observer = k
	}, func(t *testing.T, p *router.Pool) {
		size := func(n int64, class router.Class) router.Request {
			return router.Request{PromptTokens: n, MaxOutputTokens: 1, Class: class}
		}
		held := mustReserve(t, p, size(1, router.ClassStandard))
		got := <-reserving(context.Background(), p, size(1000, router.ClassStandard)) // larger than the queue by itself
		require.ErrorIs(t, got.err, router.ErrQueueFull)
		first := reserving(context.Background(), p, size(100, router.ClassBatch))
		second := reserving(context.Background(), p, size(100, router.ClassBatch))
		got = <-reserving(context.Background(), p, size(100, router.ClassBatch))
		require.ErrorIs(t, got.err, router.ErrQueueFull, "before it was in the queue")
		before := got.err.(*router.RejectError)
		time.Sleep(time.Second)
		urgent := reserving(context.Background(), p, size(100, router.ClassInteractive))
		got = <-second
		require.ErrorIs(t, got.err, router.ErrQueueFull, "after it was in the queue")
		after := got.err.(*router.RejectError)
		require.Equal(t, before.Error(), after.Error())
		require.Equal(t, before.Code(), after.Code())
		require.Equal(t, time.Second, after.Decision.Waited)
		wide := reserving(context.Background(), p, size(898, router.ClassSystem)) // the place of one, and all the tokens that are left
		require.ErrorIs(t, (<-first).err, router.ErrQueueFull)
		got = <-reserving(context.Background(), p, size(1, router.ClassSheddable))
		require.ErrorIs(t, got.err, router.ErrSaturated, "what is sheddable never waits")
		q := p.Stats().Queue
		require.Equal(t, 2, q.Waiting)
		require.EqualValues(t, 1000, q.Tokens)
		require.Equal(t, map[string]int{"system": 1, "interactive": 1}, q.ByClass)
		require.EqualValues(t, 2, q.Displaced)
		held.Cancel()
		(<-wide).lease.Cancel()
		(<-urgent).lease.Cancel()
		empty(t, p)
	})
	codes := map[string]int{}
	for _, r := range k.decided {
		codes[r.Rejected]++
	}
	require.Equal(t, map[string]int{"": 3, "queue-full": 4, "saturated": 1}, codes)
}

// The observer is told of everybody once, outside all locks: it may look at the pool, score, and even wait in Reserve.
func TestObserverOfAQueue(t *testing.T) {
	o := &waitingObserver{}
	bubble(t, func(cfg *router.Config) { cfg.Receipts.Observer = o; cfg.Queue.Timeout = 2 * time.Second }, func(t *testing.T, p *router.Pool) {
		o.pool = p
		l := mustReserve(t, p, router.Request{ID: "first"})
		served := reserving(context.Background(), p, router.Request{ID: "served"})
		time.Sleep(time.Second)
		l.Done(router.Usage{})
		got := <-served
		require.NoError(t, got.err)
		late := reserving(context.Background(), p, router.Request{ID: "late"})
		require.ErrorIs(t, (<-late).err, router.ErrQueueTimeout)
		synctest.Wait()
		time.Sleep(time.Minute) // those that the observer has asked for
		got.lease.Done(router.Usage{})
		time.Sleep(time.Minute)
		o.mu.Lock()
		defer o.mu.Unlock()
		require.Equal(t, map[string][]string{"first": {""}, "served": {""}, "late": {"queue-timeout"}}, o.told)
		require.Equal(t, map[string]time.Duration{"first": 0, "served": time.Second, "late": 2 * time.Second}, o.waited)
		require.Equal(t, map[string]int{"first": 1, "served": 1}, o.over)
		empty(t, p)
		require.Zero(t, p.Stats().ObserverFaults)
	})
}

type waitingObserver struct {
	pool   *router.Pool
	mu     sync.Mutex
	told   map[string][]string
	waited map[string]time.Duration
	over   map[string]int
}

func (o *waitingObserver) Decided(r *router.Receipt) {
	if r.RequestID == "" {
		return
	}
	o.mu.Lock()
	if o.told == nil {
		o.told, o.waited, o.over = map[string][]string{}, map[string]time.Duration{}, map[string]int{}
	}
	o.told[r.RequestID] = append(o.told[r.RequestID], r.Rejected)
	o.waited[r.RequestID] = r.Waited
	o.mu.Unlock()
	o.pool.Stats()
	_, _ = o.pool.Score(router.Request{})
	if ticket, err := o.pool.Enqueue(router.Request{}); err == nil {
		ticket.Cancel()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if l, err := o.pool.Reserve(ctx, router.Request{}); err == nil {
		l.Cancel()
	}
}

func (o *waitingObserver) Ended(r *router.Receipt) {
	o.pool.Stats()
	if r.RequestID != "" {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.over[r.RequestID]++
	}
}

// A host's timer stands in for time.NewTimer.
func TestQueueTimer(t *testing.T) {
	made := 0
	bubble(t, func(cfg *router.Config) {
		cfg.Queue.Timer = func(d time.Duration) *time.Timer {
			made++
			return time.NewTimer(d / 10)
		}
		start := time.Now()
		cfg.Now = func() time.Time { return start.Add(10 * time.Since(start)) } // ten times as fast
	}, func(t *testing.T, p *router.Pool) {
		mustReserve(t, p, router.Request{})
		got := <-reserving(context.Background(), p, router.Request{})
		require.ErrorIs(t, got.err, router.ErrQueueTimeout)
		require.Equal(t, 3*time.Second, got.after)
	})
	require.LessOrEqual(t, made, 4, "no polling")
}

// RetryAfter of those who cannot wait comes from the measured drain: two leases a second end.
func TestQueueRetryAfter(t *testing.T) {
	bubble(t, func(cfg *router.Config) { cfg.Queue.Max = 1 }, func(t *testing.T, p *router.Pool) {
		var last *router.RejectError
		held := mustReserve(t, p, router.Request{})
		for i := range 8 {
			ticket := enqueue(t, p, router.Request{})
			_, err := p.Enqueue(router.Request{})
			require.ErrorIs(t, err, router.ErrQueueFull)
			require.ErrorAs(t, err, &last)
			if i == 0 {
				require.Zero(t, last.RetryAfter, "unknown")
			}
			time.Sleep(4 * time.Second)
			held.Done(router.Usage{})
			held = granted(t, ticket)
		}
		require.Equal(t, 4*time.Second, last.RetryAfter)
		held.Cancel()
	})
}
