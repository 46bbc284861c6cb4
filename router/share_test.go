package router_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
)

// takeAll reserves until there is no room and returns what it got.
func takeAll(tb testing.TB, p *router.Pool, req router.Request) (leases []*router.Lease) {
	tb.Helper()
	leases, reject := burst(tb, p, 100, req)
	require.NotNil(tb, reject)
	require.ErrorIs(tb, reject, router.ErrSaturated)
	return leases
}

func endAll(leases []*router.Lease) {
	for _, l := range leases {
		l.Done(router.Usage{})
	}
}

func TestSharesKeepWhatIsNeededAMomentLater(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Caps: admission.Caps{Aggregate: 10}, Shares: router.Shares{Interactive: 0.4}, Receipts: router.Receipts{Observer: &keeper{}}}, "a", "b")
	require.Len(t, takeAll(t, p, router.Request{Class: router.ClassBatch}), 10, "nobody else is there: all is theirs")
	p = newPool(t, c, router.Config{Caps: admission.Caps{Aggregate: 10}, Shares: router.Shares{Interactive: 0.4}}, "a", "b")
	var chat []*router.Lease
	for range 4 {
		chat = append(chat, mustReserve(t, p, router.Request{Class: router.ClassInteractive}))
	}
	endAll(chat)
	c.advance(time.Second)
	jobs := takeAll(t, p, router.Request{Class: router.ClassBatch})
	require.Len(t, jobs, 6)
	require.Equal(t, router.CapShare, rejected(t, p, router.Request{Class: router.ClassBatch}, router.ErrSaturated).Because)
	require.Equal(t, router.CapShare, rejected(t, p, router.Request{}, router.ErrSaturated).Because, "standard, too, is below")
	for range 4 {
		mustReserve(t, p, router.Request{Class: router.ClassInteractive})
	}
	require.Equal(t, router.CapAggregate, rejected(t, p, router.Request{Class: router.ClassInteractive}, router.ErrSaturated).Because)
}

func TestSharesAreGivenUpWhenNobodyComes(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Caps: admission.Caps{Endpoint: 5}, Shares: router.Shares{Interactive: 0.4, Memory: 10 * time.Second}}, "a", "b")
	var chat []*router.Lease
	for range 4 {
		chat = append(chat, mustReserve(t, p, router.Request{Class: router.ClassInteractive}))
	}
	endAll(chat)
	jobs := takeAll(t, p, router.Request{Class: router.ClassBatch})
	require.Len(t, jobs, 6)
	c.advance(time.Minute)
	require.Len(t, takeAll(t, p, router.Request{Class: router.ClassBatch}), 4)
}

// Shares of memory are counted in tokens, and a gateway of several keeps its part.
func TestSharesOfTokens(t *testing.T) {
	for replicas, want := range map[int]int{1: 6, 2: 2} {
		c := newClock()
		p := newPool(t, c, router.Config{Replicas: replicas, Caps: admission.Caps{}, Shares: router.Shares{Interactive: 0.4}})
		require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a", Profile: score.Profile{KVCapacity: 6000}}, {ID: "b", Profile: score.Profile{KVCapacity: 4000}}}))
		size := router.Request{PromptTokens: 900, MaxOutputTokens: 100, Class: router.ClassInteractive}
		var chat []*router.Lease
		for range 4 {
			chat = append(chat, mustReserve(t, p, size))
		}
		size.Class = router.ClassBatch
		endAll(chat)
		require.Len(t, takeAll(t, p, size), want+replicas-1) // 5000 less 2000, and 10,000 less 4000
	}
}

// loop is a closed loop of a pool and what arrives at it, on a virtual clock.
type loop struct {
	tb      testing.TB
	clock   *clock
	pool    *router.Pool
	waiting []*job
	running []*job
	served  map[string]*loopClass
}

type job struct {
	name   string
	ticket *router.Ticket
	takes  time.Duration
	since  time.Time
	end    time.Time
	tokens int64
}

type loopClass struct {
	offered, served, refused int
	tokens                   int64
	longest                  time.Duration
}

func newLoop(tb testing.TB, c *clock, p *router.Pool) *loop {
	return &loop{tb: tb, clock: c, pool: p, served: map[string]*loopClass{}}
}

func (l *loop) class(name string) *loopClass {
	if l.served[name] == nil {
		l.served[name] = &loopClass{}
	}
	return l.served[name]
}

// arrive offers a request that takes a time once it is served.
func (l *loop) arrive(name string, req router.Request, takes time.Duration) {
	l.class(name).offered++
	ticket, err := l.pool.Enqueue(req)
	if err != nil {
		l.class(name).refused++
		return
	}
	l.waiting = append(l.waiting, &job{name: name, ticket: ticket, takes: takes, since: l.clock.now(), tokens: req.PromptTokens + req.MaxOutputTokens})
}

// step lets time go by, ends what has run for its time, and notes who was served.
func (l *loop) step(by time.Duration) {
	l.clock.advance(by)
	l.pool.Tick()
	for again := true; again; {
		again = false
		kept := l.running[:0]
		for _, j := range l.running {
			if l.clock.now().Before(j.end) {
				kept = append(kept, j)
				continue
			}
			lease, _ := j.ticket.Lease()
			lease.Done(router.Usage{})
		}
		l.running = kept
		still := l.waiting[:0]
		for _, j := range l.waiting {
			if !done(j.ticket) {
				still = append(still, j)
				continue
			}
			n := l.class(j.name)
			if lease, _ := j.ticket.Lease(); lease == nil {
				n.refused++
				continue
			}
			n.served++
			n.tokens += j.tokens
			n.longest = max(n.longest, l.clock.now().Sub(j.since))
			j.end = l.clock.now().Add(j.takes)
			l.running = append(l.running, j)
			again = true
		}
		l.waiting = still
	}
}

// close ends everything.
func (l *loop) close() {
	for _, j := range l.waiting {
		j.ticket.Cancel()
	}
	for _, j := range l.running {
		j.ticket.Cancel()
	}
	empty(l.tb, l.pool)
}

// An hour of short interactive requests beside long jobs that fill whatever they can get. Without shares the interactive ones wait for
// jobs to end; with them they do not.
func TestSharesOverAnHour(t *testing.T) {
	hour := func(shares router.Shares) (interactive, batch loopClass) {
		c := newClock()
		p := newPool(t, c, router.Config{
			Caps: admission.Caps{Endpoint: 8}, Queue: router.Queue{Max: 64, Timeout: 10 * time.Minute, AgeAfter: time.Hour}, Shares: shares,
		}, "a", "b")
		l := newLoop(t, c, p)
		r := rand.New(rand.NewPCG(1, 2))
		for c.now().Before(epochStart.Add(time.Hour)) {
			if r.IntN(4) == 0 {
				l.arrive("interactive", router.Request{Class: router.ClassInteractive, PromptTokens: 100, MaxOutputTokens: 10}, time.Duration(2+r.IntN(3))*time.Second)
			}
			if len(l.waiting) < 20 {
				l.arrive("batch", router.Request{Class: router.ClassBatch, PromptTokens: 5000, MaxOutputTokens: 1000}, time.Duration(60+r.IntN(120))*time.Second)
			}
			l.step(500 * time.Millisecond)
			if c.now().Sub(epochStart) == 5*time.Minute {
				l.class("interactive").longest = 0 // the first jobs came before anybody was seen who needs a share
			}
		}
		interactive, batch = *l.class("interactive"), *l.class("batch")
		l.close()
		return interactive, batch
	}
	without, batch := hour(router.Shares{})
	with, batchWith := hour(router.Shares{Interactive: 0.4, Memory: 10 * time.Minute})
	t.Logf("without shares: interactive %+v, batch %+v", without, batch)
	t.Logf("with shares:    interactive %+v, batch %+v", with, batchWith)
	require.Greater(t, without.longest, 10*time.Second)
	require.LessOrEqual(t, with.longest, 4*time.Second)
	require.LessOrEqual(t, with.offered-with.served, 2)
	require.Greater(t, batchWith.served, batch.served/2, "the jobs go on")
}

// An old batch job is served within AgedEvery grants from when it is aged, however many more important requests there are.
func TestAgingThroughThePool(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{
		Caps: admission.Caps{Endpoint: 2}, Queue: router.Queue{Max: 64, Timeout: time.Hour, AgeAfter: 10 * time.Second, AgedEvery: 8},
	}, "a")
	l := newLoop(t, c, p)
	flood := func() {
		for len(l.waiting) < 12 {
			l.arrive("interactive", router.Request{Class: router.ClassInteractive}, time.Second)
		}
	}
	flood()
	l.step(time.Second)
	for range 5 {
		l.arrive("batch", router.Request{Class: router.ClassBatch}, time.Second)
	}
	var at []time.Duration
	begin := c.now()
	for was := 0; was < 5; {
		require.Less(t, c.now().Sub(begin), time.Minute, "starved: %v", at)
		flood()
		l.step(time.Second)
		for ; was < l.class("batch").served; was++ {
			at = append(at, c.now().Sub(begin))
		}
	}
	t.Log(at)
	require.GreaterOrEqual(t, at[0], 10*time.Second)
	for k := range 5 { // two grants a second
		require.LessOrEqual(t, at[k], time.Duration(10+4*(k+1)+1)*time.Second)
	}
	l.close()
}

// Two tenants who both always want more share by tokens and weight, whatever the size of their requests; one who comes late is not
// made to catch up, and one who was idle has saved nothing.
func TestTenantsShareByTokens(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{
		Caps: admission.Caps{Endpoint: 4}, Queue: router.Queue{Max: 256, Timeout: time.Hour, Weight: func(tenant string) float64 {
			return map[string]float64{"heavy": 3, "light": 1, "late": 1}[tenant]
		}},
	}, "a")
	l := newLoop(t, c, p)
	sizes := map[string]int64{"heavy": 1000, "light": 100, "late": 400}
	want := func(names ...string) {
		waits := map[string]int{}
		for _, j := range l.waiting {
			waits[j.name]++
		}
		for _, name := range names {
			for ; waits[name] < 20; waits[name]++ {
				l.arrive(name, router.Request{Tenant: name, PromptTokens: sizes[name] - 1, MaxOutputTokens: 1}, time.Second)
			}
		}
	}
	phase := func(seconds int, names ...string) map[string]float64 {
		before := map[string]int64{}
		for _, name := range names {
			before[name] = l.class(name).tokens
		}
		for range seconds {
			want(names...)
			l.step(time.Second)
		}
		got := map[string]float64{}
		for _, name := range names {
			got[name] = float64(l.class(name).tokens - before[name])
		}
		return got
	}
	got := phase(400, "heavy", "light")
	t.Log(got)
	require.InDelta(t, 3, got["heavy"]/got["light"], 0.2)
	got = phase(400, "heavy", "light", "late")
	t.Log(got)
	require.InDelta(t, 3, got["heavy"]/got["light"], 0.2)
	require.InDelta(t, 1, got["late"]/got["light"], 0.2, "neither behind for an empty past nor ahead of the others")
	phase(400, "heavy")
	got = phase(400, "heavy", "light")
	t.Log(got)
	require.InDelta(t, 3, got["heavy"]/got["light"], 0.2, "an idle tenant has saved up nothing")
	l.close()
}

// The tokens of a tenant are given back however its request ended.
func TestTenantsAndSharesAreGivenBack(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{
		Caps: admission.Caps{Aggregate: 3, Tenant: 2, TenantTokens: 1000}, Shares: router.Shares{Interactive: 0.5},
		Circuit: router.Circuit{Failures: router.None, Window: router.None},
	}, "a")
	for i := range 40 {
		l := mustReserve(t, p, router.Request{Tenant: "x", PromptTokens: 500, MaxOutputTokens: 500, Class: router.Class(i % 5)})
		rejected(t, p, router.Request{Tenant: "x", PromptTokens: 1, MaxOutputTokens: 1}, router.ErrSaturated)
		switch i % 4 {
		case 0:
			l.Done(router.Usage{})
		case 1:
			l.Fail(nil)
		case 2:
			l.Refuse(nil)
		default:
			l.Cancel()
		}
		l.Cancel()
		if i%7 == 0 {
			require.NoError(t, p.Remove("a"))
			require.NoError(t, p.Add(router.Endpoint{ID: "a", Incarnation: "again"}))
		}
	}
	c.advance(time.Hour)
	require.Len(t, takeAll(t, p, router.Request{Class: router.ClassBatch}), 3)
}

// What is needed for others between the look and the grant is kept for them, too.
func TestSharesHoldInTheGrant(t *testing.T) {
	c := newClock()
	var p *router.Pool
	var hook func()
	p = newPool(t, c, router.Config{
		Caps: admission.Caps{Endpoint: 2}, Queue: router.Queue{Max: 8}, Shares: router.Shares{Interactive: 0.5},
		Policy: hosted(func(v *router.View) int {
			if h := hook; h != nil {
				hook = nil
				h()
			}
			return firstChoosable(v)
		}),
	})
	require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a"}, {ID: "b"}, {ID: "full", Models: []string{"n"}}}))
	idle(t, p, c, "a", "b")
	busy(t, p, c, "full", 2, 0)
	for range 3 {
		mustReserve(t, p, router.Request{Class: router.ClassBatch, Model: "m"})
	}
	require.NoError(t, p.Drain("b"))
	hook = func() {
		for range 3 {
			ticket := enqueue(t, p, router.Request{Class: router.ClassInteractive, Model: "n", Exclude: []string{"a", "b"}, ExcludeHard: true})
			require.False(t, done(ticket))
		}
	}
	require.NoError(t, p.Ready("b"))
	require.False(t, done(enqueue(t, p, router.Request{Class: router.ClassBatch, Model: "m"})))
	require.Nil(t, hook)
	require.True(t, done(enqueue(t, p, router.Request{Class: router.ClassInteractive, Model: "m"})), "there was a place, and it is theirs")
}
