package router_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

// iterations scales a stress test down where there is little time.
func iterations(n int) int {
	if raceDetector || testing.Short() {
		return n / 4
	}
	return n
}

// eventually yields until the condition holds.
func eventually(tb testing.TB, holds func() bool) {
	tb.Helper()
	for give := time.Now().Add(20 * time.Second); !holds(); runtime.Gosched() {
		if time.Now().After(give) {
			tb.Fatal("somebody waits for ever")
		}
	}
}

// all waits for the goroutines of a test.
func all(tb testing.TB, wg *sync.WaitGroup) {
	tb.Helper()
	back := make(chan struct{})
	go func() {
		wg.Wait()
		close(back)
	}()
	select {
	case <-back:
	case <-time.After(60 * time.Second):
		tb.Fatal("somebody waits for ever")
	}
}

// A hundred callers and one place: one has it, the others wait, and each of them gets it in the end.
func TestQueueOneFreeSlot(t *testing.T) {
	const callers = 100
	for name, caps := range map[string]admission.Caps{"endpoint": {Endpoint: 1}, "aggregate": {Aggregate: 1}, "tenant": {Tenant: 1}, "tokens": {TenantTokens: 100}} {
		t.Run(name, func(t *testing.T) {
			p, err := router.New(router.Config{Caps: caps, Queue: router.Queue{Max: callers}})
			require.NoError(t, err)
			require.NoError(t, p.SetEndpoints(plain("a")))
			var inside, served atomic.Int64
			proceed := make(chan struct{})
			start := make(chan struct{})
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					<-start
					l, err := p.Reserve(context.Background(), router.Request{Tenant: "t", PromptTokens: 40, MaxOutputTokens: 40})
					if err != nil {
						t.Error(err)
						return
					}
					if inside.Add(1) != 1 {
						t.Error("two in one place")
					}
					<-proceed
					served.Add(1)
					inside.Add(-1)
					l.Done(router.Usage{})
				})
			}
			close(start)
			eventually(t, func() bool { return p.Stats().Queue.Waiting == callers-1 })
			require.EqualValues(t, 1, p.Stats().Decisions)
			close(proceed)
			all(t, &wg)
			require.EqualValues(t, callers, served.Load())
			empty(t, p)
			require.EqualValues(t, callers-1, p.Stats().Queue.Granted)
		})
	}
}

// Releases beside newcomers, beside those who give up at the very moment at which they are served: no grant is lost, nobody is
// forgotten, and nothing is left over.
func TestQueueCancelAtGrantTime(t *testing.T) {
	for name, caps := range map[string]admission.Caps{"one": {Endpoint: 1}, "two": {Aggregate: 2, Tenant: 1}} {
		t.Run(name, func(t *testing.T) {
			p, err := router.New(router.Config{Caps: caps, Queue: router.Queue{Max: 16}})
			require.NoError(t, err)
			require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a", Profile: flat}, {ID: "b", Profile: flat, Models: []string{"m"}}}[:1+caps.Tenant]))
			var left, served, cancelled atomic.Int64
			left.Store(int64(iterations(100_000)))
			var wg sync.WaitGroup
			for w := range 4 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(w), 7))
					for left.Add(-1) >= 0 {
						req := router.Request{PromptTokens: 1, Tenant: []string{"", "x", "y"}[r.IntN(3)], Class: router.Class(r.IntN(4))}
						if r.IntN(4) == 0 {
							req.Model = "m"
						}
						ticket, err := p.Enqueue(req)
						if err != nil {
							t.Error(err)
							return
						}
						switch r.IntN(3) {
						case 0:
							for range r.IntN(30) {
								runtime.Gosched()
							}
							ticket.Cancel()
							<-ticket.Done()
							cancelled.Add(1)
						default:
							<-ticket.Done()
							l, err := ticket.Lease()
							if err != nil {
								t.Error(err)
								return
							}
							l.Cancel()
							served.Add(1)
						}
					}
				})
			}
			all(t, &wg)
			require.EqualValues(t, iterations(100_000), served.Load()+cancelled.Load())
			empty(t, p)
		})
	}
}

// stepClock calls a hook at the k-th look at it.
type stepClock struct {
	clock
	looks, at atomic.Int64
	hook      func()
}

func (c *stepClock) now() time.Time {
	if n := c.looks.Add(1); n == c.at.Load() {
		c.hook()
	}
	return c.clock.now()
}

// Something makes room between any two steps of a newcomer, in particular after its look and before it is in the queue: whoever comes to
// wait is served all the same.
func TestQueueNoLostWakeUp(t *testing.T) {
	for name, room := range map[string]func(p *router.Pool, l *router.Lease) error{
		"release": func(_ *router.Pool, l *router.Lease) error { l.Done(router.Usage{}); return nil },
		"ready":   func(p *router.Pool, _ *router.Lease) error { return p.Ready("b") },
		"add":     func(p *router.Pool, _ *router.Lease) error { return p.Add(router.Endpoint{ID: "c"}) },
		"observe": func(p *router.Pool, _ *router.Lease) error {
			return p.Observe("d", telemetry.Snapshot{Running: telemetry.V(0), Waiting: telemetry.V(0), KVShare: telemetry.V(0)})
		},
		"remove": func(p *router.Pool, l *router.Lease) error {
			return p.SetEndpoints([]router.Endpoint{{ID: "a", Incarnation: "2"}, {ID: "full", Models: []string{"n"}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			for others := range 3 {
				for step := int64(1); step <= 12; step++ {
					c := &stepClock{}
					c.clock.ns.Store(int64(time.Second))
					p, err := router.New(router.Config{Now: c.now, Caps: admission.Caps{Endpoint: 1}, Queue: router.Queue{Max: 8}})
					require.NoError(t, err)
					require.NoError(t, p.SetEndpoints(append(plain("a", "b", "d"), router.Endpoint{ID: "full", Models: []string{"n"}})))
					require.NoError(t, p.Drain("b"))
					busy(t, p, &c.clock, "d", 5, 0)
					busy(t, p, &c.clock, "full", 5, 0)
					c.clock.advance(time.Millisecond)
					l := mustReserve(t, p, router.Request{})
					require.Equal(t, "a", l.Endpoint().ID)
					for range others { // wait for what never comes
						enqueue(t, p, router.Request{Exclude: []string{"a", "b", "c", "d"}, ExcludeHard: true, Model: "n"})
					}
					back := make(chan struct{})
					called := false
					c.hook = func() {
						called = true
						go func() {
							if err := room(p, l); err != nil {
								t.Error(err)
							}
							close(back)
						}()
						for range 50 { // long enough for it to come to the queue's lock, if it does
							runtime.Gosched()
						}
					}
					c.at.Store(c.looks.Load() + step)
					w := enqueue(t, p, router.Request{Model: "m", Class: router.ClassSystem, Deadline: c.clock.now().Add(time.Hour)})
					c.at.Store(0)
					if !called {
						require.Greater(t, step, int64(1), "the newcomer never looked at the clock")
						w.Cancel()
						break
					}
					<-back
					granted(t, w).Done(router.Usage{})
				}
			}
		})
	}
}

// The same hunt without a plan: many enqueuers of one place, whose holder leaves as soon as the newcomer is about to join.
func TestQueueLostWakeUpHunt(t *testing.T) {
	p, err := router.New(router.Config{Caps: admission.Caps{Endpoint: 1}, Queue: router.Queue{Max: 8}})
	require.NoError(t, err)
	require.NoError(t, p.SetEndpoints(plain("a")))
	for range iterations(20_000) {
		l := mustReserve(t, p, router.Request{})
		var at atomic.Int32
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				at.Add(1)
				ticket, err := p.Enqueue(router.Request{})
				if err != nil {
					t.Error(err)
					return
				}
				<-ticket.Done()
				ticket.Cancel()
			})
		}
		for at.Load() == 0 {
			runtime.Gosched()
		}
		l.Cancel()
		wg.Wait()
	}
	empty(t, p)
}

// restless is an observer that looks at the pool, and asks it for more, whenever it is told something.
type restless struct {
	pool  atomic.Pointer[router.Pool]
	calls atomic.Int64
}

func (o *restless) Decided(*router.Receipt) { o.look() }
func (o *restless) Ended(*router.Receipt)   { o.look() }

func (o *restless) look() {
	p := o.pool.Load()
	if p == nil {
		return
	}
	p.Stats()
	_, _ = p.Score(router.Request{})
	if o.calls.Add(1)%4 == 0 { // not of every call that it makes itself
		if ticket, err := p.Enqueue(router.Request{ID: "observer", Class: router.ClassBatch}); err == nil {
			ticket.Cancel()
		}
	}
}

// Everything at once: callers who wait in Reserve and give up, tickets, deadlines, tenants, classes, shares, seeds, endpoints that come
// and go, and an observer that calls back.
func TestQueueStress(t *testing.T) {
	o := &restless{}
	ids := []string{"a", "b", "c"}
	p, err := router.New(router.Config{
		Caps:  admission.Caps{Endpoint: 2, Aggregate: 5, Tenant: 3, TenantTokens: 4000},
		Queue: router.Queue{Max: 12, MaxTokens: 20_000, Timeout: 5 * time.Millisecond, WaitForEndpoints: true, AgeAfter: time.Millisecond, Weight: func(s string) float64 { return float64(len(s)) }},
		Seeds: admission.SeedConfig{Max: 1, For: time.Millisecond, Cooldown: time.Millisecond}, Shares: router.Shares{Interactive: 0.4, Memory: time.Millisecond},
		Circuit: router.Circuit{Failures: 3, OpenFor: time.Millisecond}, VisibilityLag: time.Millisecond,
		Receipts: router.Receipts{Observer: o, Sample: 0.3}, Limit: router.Limit{Adaptive: true, Learn: admission.LimitConfig{Min: 1, Max: 3}},
	})
	require.NoError(t, err)
	require.NoError(t, p.SetEndpoints(plain(ids...)))
	o.pool.Store(p)
	var left atomic.Int64
	left.Store(int64(iterations(24_000)))
	var open [3]atomic.Int64
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 3))
			var held []*router.Lease
			end := func() {
				for _, l := range held {
					for i, id := range ids {
						if l.Endpoint().ID == id {
							open[i].Add(-1)
						}
					}
					switch r.IntN(8) {
					case 0:
						l.Fail(errors.New("x"))
					case 1:
						l.Refuse(nil)
					case 2:
						l.Cancel()
					default:
						l.Progress(r.IntN(50))
						l.Done(router.Usage{OutputTokens: 60})
					}
				}
				held = held[:0]
			}
			for left.Add(-1) >= 0 {
				req := router.Request{
					PromptTokens: r.Int64N(2000), MaxOutputTokens: 1 + r.Int64N(100), Tenant: []string{"", "x", "yy"}[r.IntN(3)], Class: router.Class(r.IntN(5)),
				}
				if r.IntN(4) == 0 {
					req.Deadline = time.Now().Add(time.Duration(r.Int64N(int64(time.Second))))
				}
				switch k := r.IntN(20); {
				case k < 10:
					ctx, cancel := context.WithCancel(context.Background())
					if r.IntN(2) == 0 {
						yields := r.IntN(20)
						go func() {
							for range yields {
								runtime.Gosched()
							}
							cancel()
						}()
					}
					l, err := p.Reserve(ctx, req)
					cancel()
					var reject *router.RejectError
					switch {
					case err == nil:
						held = append(held, l)
						for i, id := range ids {
							if l.Endpoint().ID == id && l.Endpoint().Incarnation == "" {
								if open[i].Add(1) > 2 {
									t.Errorf("more than the cap on %s", id)
								}
							}
						}
					case !errors.Is(err, context.Canceled) && !errors.As(err, &reject):
						t.Error(err)
					}
				case k < 14:
					if ticket, err := p.Enqueue(req); err == nil {
						for range r.IntN(10) {
							runtime.Gosched()
						}
						p.Tick()
						ticket.Cancel()
						<-ticket.Done()
					}
				case k < 17:
					_ = p.Observe(ids[r.IntN(3)], telemetry.Snapshot{
						ObservedAt: time.Now(), Running: telemetry.V(float64(r.IntN(2))), Waiting: telemetry.V(float64(r.IntN(9) / 8)), KVShare: telemetry.V(0.1),
					})
				case k < 18:
					id := ids[r.IntN(3)]
					_ = p.Drain(id)
					_ = p.Ready(id)
				default:
					p.Stats()
				}
				if len(held) > r.IntN(3) {
					end()
				}
			}
			end()
		})
	}
	all(t, &wg)
	require.Positive(t, o.calls.Load())
	o.pool.Store(nil)
	empty(t, p)
	require.Zero(t, p.Stats().ObserverFaults)
	require.Zero(t, p.Stats().PolicyFaults)
}
