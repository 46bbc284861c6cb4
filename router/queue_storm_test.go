package router_test

import (
	"context"
	"errors"
	"fmt"
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

// allocations is how many a function makes.
func allocations(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs
}

// Who joins a long queue, leaves it or ends a lease does not look at the endpoints once for each who waits there. Each look allocates.
func TestQueueLooksOnceForThoseWhoAreAlike(t *testing.T) {
	const n = 1000
	for name, kind := range map[string]struct {
		cfg  router.Config
		req  func(i int) router.Request
		prep func(p *router.Pool, c *clock)
	}{
		"the share of their class": {
			cfg: router.Config{Caps: admission.Caps{Aggregate: 64}, Shares: router.Shares{Interactive: 0.5}},
			req: func(i int) router.Request {
				return router.Request{Class: router.ClassBatch, Tenant: fmt.Sprint(i), PromptTokens: int64(i)}
			},
			prep: func(p *router.Pool, c *clock) {
				var chat []*router.Lease
				for range 32 {
					chat = append(chat, mustReserve(t, p, router.Request{Class: router.ClassInteractive}))
				}
				endAll(chat)
			},
		},
		"the tokens of their tenant": {
			cfg: router.Config{Caps: admission.Caps{Aggregate: 64, TenantTokens: 2000}},
			req: func(i int) router.Request { return router.Request{Tenant: "big", PromptTokens: 1500 + int64(i)%7} },
		},
		"seeds that only idle engines get": {
			cfg: router.Config{Caps: admission.Caps{Aggregate: 64}, Seeds: admission.SeedConfig{Max: 1}},
			req: func(i int) router.Request { return router.Request{Prefix: prompt(t, i, i+1)} },
			prep: func(p *router.Pool, c *clock) {
				busy(t, p, c, "a", 3, 9)
				busy(t, p, c, "b", 3, 9)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			kind.cfg.Queue = router.Queue{Max: 2 * n, Timeout: time.Hour}
			p := newPool(t, c, kind.cfg, "a", "b")
			idle(t, p, c, "a", "b")
			if kind.prep != nil {
				kind.prep(p, c)
			}
			if kind.cfg.Seeds.Max == 0 {
				for { // until there is no room
					w := enqueue(t, p, router.Request{Tenant: "big", PromptTokens: 1400, Class: kind.req(0).Class})
					if !done(w) {
						w.Cancel()
						break
					}
				}
			}
			var requests []router.Request
			for i := range n {
				requests = append(requests, kind.req(i))
			}
			var tickets []*router.Ticket
			require.Less(t, allocations(func() {
				for i := range n {
					w, err := p.Enqueue(requests[i])
					if err != nil {
						t.Fatal(err)
					}
					tickets = append(tickets, w)
				}
			}), uint64(40*n))
			require.Positive(t, p.Stats().Queue.Waiting)
			require.Less(t, allocations(func() {
				for range 40 {
					_ = p.Ready("a") // like any change of the endpoints, it makes everybody be offered room
				}
			}), uint64(40*n/2))
			require.Less(t, allocations(func() {
				for _, w := range tickets {
					w.Cancel()
				}
			}), uint64(40*n))
			require.Zero(t, p.Stats().Queue.Waiting)
		})
	}
}

// liveHeap is what is reachable, bytes.
func liveHeap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Fifty thousand who wait and all give up leave nothing behind, though each was of a tenant and a model of its own.
func TestQueueMemoryAfterAStorm(t *testing.T) {
	const n = 50_000
	c := newClock()
	p := newPool(t, c, router.Config{Caps: admission.Caps{Aggregate: 1}, Queue: router.Queue{Max: n}})
	require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a", Models: []string{"m"}}}))
	held := mustReserve(t, p, router.Request{})
	before := liveHeap()
	tickets := make([]*router.Ticket, 0, n)
	for i := range n {
		tickets = append(tickets, enqueue(t, p, router.Request{Model: "m", Tenant: fmt.Sprint(i), Class: router.Class(i % 4)}))
	}
	full := liveHeap()
	for _, i := range rand.New(rand.NewPCG(1, 1)).Perm(n) {
		tickets[i].Cancel()
	}
	clear(tickets)
	left := liveHeap()
	t.Logf("%d bytes for each who waits; %.1f MB left of %.0f MB", (full-before)/n, float64(left-before)/1e6, float64(full-before)/1e6)
	require.Less(t, left-before, int64(4<<20))
	held.Cancel()
	empty(t, p)
	runtime.KeepAlive(tickets)
}

// jumping is a clock that runs, and is set forward and back.
type jumping struct{ offset atomic.Int64 }

func (j *jumping) now() time.Time { return time.Now().Add(time.Duration(j.offset.Load())) }

// Fifty callers at a pool with everything on, a policy that misbehaves, a clock that jumps, and endpoints that leave for good and come
// back as others: no cap of the pool's own requests is passed, and at the end nothing is held by anybody.
func TestQueueFiftyCallers(t *testing.T) {
	for _, failClosed := range []bool{false, true} {
		const aggregate, perTenant = 10, 4
		j := &jumping{}
		var calls atomic.Uint64
		p, err := router.New(router.Config{
			Now: j.now, Replicas: 2, FailClosed: failClosed,
			Caps:   admission.Caps{Waiting: 6, Endpoint: 6, Aggregate: aggregate, Tenant: perTenant, TenantTokens: 20_000},
			Queue:  router.Queue{Max: 40, Timeout: 20 * time.Millisecond, AgeAfter: 5 * time.Millisecond, AgedEvery: 3, WaitForEndpoints: true},
			Shares: router.Shares{Interactive: 0.3, Standard: 0.1, Memory: 20 * time.Millisecond},
			Seeds:  admission.SeedConfig{Max: 2, For: time.Millisecond, Cooldown: time.Millisecond, Allowance: 1},
			Limit:  router.Limit{Adaptive: true, Learn: admission.LimitConfig{Min: 2, Max: 6, Block: 2}}, VisibilityLag: time.Millisecond,
			Receipts: router.Receipts{Observer: &keeper{}, Sample: 0.1},
			Policy: hosted(func(v *router.View) int {
				switch calls.Add(1) % 16 {
				case 0:
					panic("host")
				case 1:
					return v.Len() + 7
				case 2:
					return -3
				}
				return v.LeastOutstanding()
			}),
		})
		require.NoError(t, err)
		ids := []string{"a", "b", "c"}
		require.NoError(t, p.SetEndpoints(plain(ids...)))
		var left, open, served atomic.Int64
		var tenants [3]atomic.Int64
		left.Store(int64(iterations(6_000)))
		var wg sync.WaitGroup
		for w := range 50 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(w), 5))
				for left.Add(-1) >= 0 {
					switch k := r.IntN(30); {
					case k == 0:
						id := ids[r.IntN(len(ids))]
						_ = p.Remove(id)
						_ = p.Add(router.Endpoint{ID: id, Incarnation: fmt.Sprint(r.IntN(3))})
					case k == 1:
						j.offset.Store(r.Int64N(int64(40*time.Millisecond)) - int64(20*time.Millisecond))
						p.Tick()
					case k < 8:
						_ = p.Observe(ids[r.IntN(len(ids))], telemetry.Snapshot{
							Running: telemetry.V(float64(r.IntN(3))), Waiting: telemetry.V(float64(r.IntN(8) / 7)), KVShare: telemetry.V(0.2),
						})
					case k == 8:
						_, _ = p.Score(router.Request{PromptTokens: 100, Deadline: j.now().Add(time.Second)})
						p.Stats()
					}
					tenant := r.IntN(3)
					req := router.Request{
						PromptTokens: r.Int64N(3000), MaxOutputTokens: 1 + r.Int64N(100), Tenant: []string{"x", "y", "z"}[tenant], Class: router.Class(r.IntN(5)),
					}
					if r.IntN(4) == 0 {
						req.Deadline = j.now().Add(time.Duration(r.Int64N(int64(time.Second))))
					}
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+r.IntN(30))*time.Millisecond)
					l, err := p.Reserve(ctx, req)
					cancel()
					if err != nil {
						var reject *router.RejectError
						if !errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &reject) {
							t.Error(err)
						}
						continue
					}
					served.Add(1)
					if n := tenants[tenant].Add(1); n > perTenant {
						t.Errorf("%d requests of one tenant", n)
					}
					if n := open.Add(1); n > aggregate+2*6 { // what runs on an endpoint that was removed does not count for the pool any more
						t.Errorf("%d requests", n)
					}
					for range r.IntN(4) {
						runtime.Gosched()
					}
					l.Progress(r.IntN(20))
					tenants[tenant].Add(-1)
					open.Add(-1)
					if r.IntN(10) == 0 {
						l.Fail(errors.New("x"))
					} else {
						l.Done(router.Usage{OutputTokens: 20})
					}
				}
			})
		}
		all(t, &wg)
		empty(t, p)
		s := p.Stats()
		t.Logf("%d served, rejected %v, queue %+v", served.Load(), s.RejectedBy, *s.Queue)
		require.Positive(t, served.Load())
		require.Positive(t, s.PolicyFaults)
	}
}

// What is remembered of there being no room is bounded, and forgetting it harms nobody.
func TestQueueOfManyShapes(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Caps: admission.Caps{Aggregate: 1}, Queue: router.Queue{Max: 8}}, "a")
	held := mustReserve(t, p, router.Request{})
	first := enqueue(t, p, router.Request{Model: "first"})
	for i := range 5000 {
		w := enqueue(t, p, router.Request{Model: fmt.Sprint(i)})
		require.False(t, done(w))
		w.Cancel()
	}
	held.Cancel()
	granted(t, first).Cancel()
	empty(t, p)
}
