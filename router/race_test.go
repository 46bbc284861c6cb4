package router_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

func TestOneFreeSlot(t *testing.T) {
	for name, caps := range map[string]admission.Caps{"endpoint": {Endpoint: 1}, "aggregate": {Aggregate: 1}, "tenant": {Tenant: 1}} {
		t.Run(name, func(t *testing.T) {
			ids := []string{"a", "b", "c"}
			if name == "endpoint" {
				ids = ids[:1]
			}
			c := newClock()
			p := newPool(t, c, router.Config{Caps: caps}, ids...)
			idle(t, p, c, ids...)
			for range 20 {
				start := make(chan struct{})
				won := make(chan *router.Lease, 100)
				var wg sync.WaitGroup
				for range 100 {
					wg.Go(func() {
						<-start
						l, err := p.Reserve(context.Background(), router.Request{Tenant: "t"})
						if err == nil {
							won <- l
						} else if !errors.Is(err, router.ErrSaturated) {
							t.Error(err)
						}
					})
				}
				close(start)
				wg.Wait()
				close(won)
				require.Len(t, won, 1)
				(<-won).Done(router.Usage{})
			}
			require.EqualValues(t, 20*99, p.Stats().Rejected)
		})
	}
}

// N equal requests over N idle endpoints: whoever chose on a view without the others would choose an endpoint twice.
func TestBurstTakesEachOnce(t *testing.T) {
	const n = 24
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf("e%02d", i))
	}
	for _, policy := range []router.Policy{router.Pressure(), router.LeastLoad(), router.LeastRequests(), router.RoundRobin(), router.QueueOnly()} {
		t.Run(policy.Name(), func(t *testing.T) {
			for seed := range uint64(10) {
				c := newClock()
				p := newPool(t, c, router.Config{Policy: policy, Seed: seed, TieWindow: router.None}, ids...)
				idle(t, p, c, ids...)
				start := make(chan struct{})
				var wg sync.WaitGroup
				for range n {
					wg.Go(func() {
						<-start
						if _, err := p.Reserve(context.Background(), router.Request{PromptTokens: 1000}); err != nil {
							t.Error(err)
						}
					})
				}
				close(start)
				wg.Wait()
				for _, e := range p.Stats().Endpoints {
					require.EqualValues(t, 1, e.Own.Live.Requests, "%s, seed %d", e.ID, seed)
				}
			}
		})
	}
}

// stress does operations at random from many goroutines and counts for itself.
type stress struct {
	pool  *router.Pool
	ids   []string
	asked []prefix.Sequence
	caps  admission.Caps
	open  sync.Map // identity -> *atomic.Int64
	all   atomic.Int64
	inc   atomic.Int64
	admin sync.Mutex               // one change of the endpoints at a time, so that a drained one stays so while that is checked
	out   map[string]*atomic.Int64 // odd while an endpoint is certainly drained
}

func (s *stress) opened(identity string) *atomic.Int64 {
	n, _ := s.open.LoadOrStore(identity, new(atomic.Int64))
	return n.(*atomic.Int64)
}

func identity(e router.Endpoint) string { return e.ID + "/" + e.Incarnation }

func (s *stress) take(t *testing.T, r *rand.Rand) *router.Lease {
	var out [6]int64
	for i, id := range s.ids {
		out[i] = s.out[id].Load()
	}
	l, err := s.pool.Reserve(context.Background(), router.Request{
		PromptTokens: r.Int64N(3000), ExpectedOutputTokens: r.Int64N(300), Tenant: []string{"", "x", "y"}[r.IntN(3)],
		Prefix: s.asked[r.IntN(len(s.asked))],
	})
	if err != nil {
		if !errors.Is(err, router.ErrSaturated) && !errors.Is(err, router.ErrNoEndpoints) {
			t.Error(err)
		}
		return nil
	}
	if i := slices.Index(s.ids, l.Endpoint().ID); i >= 0 && out[i]%2 == 1 && s.out[s.ids[i]].Load() == out[i] {
		t.Errorf("a lease on %s after Drain had returned", s.ids[i])
	}
	// Counted after the grant and given back before the end, so the count is never above the pool's.
	if n := s.opened(identity(l.Endpoint())).Add(1); n > int64(s.caps.Endpoint) {
		t.Errorf("%d open on %s", n, identity(l.Endpoint()))
	}
	s.all.Add(1)
	return l
}

func (s *stress) end(l *router.Lease, r *rand.Rand) {
	s.opened(identity(l.Endpoint())).Add(-1)
	s.all.Add(-1)
	var twice sync.WaitGroup
	finish := func(k int) {
		switch k {
		case 0:
			l.Fail(errors.New("x"))
		case 1:
			l.Cancel()
		default:
			l.Done(router.Usage{})
		}
	}
	k := r.IntN(20)
	if k == 19 { // from two sides at once
		twice.Go(func() { finish(1) })
	}
	finish(k)
	twice.Wait()
	finish(k + 1)
}

func (s *stress) churn(t *testing.T, r *rand.Rand) {
	s.admin.Lock()
	defer s.admin.Unlock()
	id := s.ids[r.IntN(len(s.ids))]
	var err error
	switch r.IntN(5) {
	case 0, 1:
		if err = s.pool.Drain(id); err == nil {
			s.out[id].Add(1)
			for range 20 {
				_, _ = s.pool.Score(router.Request{})
			}
			s.out[id].Add(1)
			err = s.pool.Ready(id)
		}
	case 2:
		if err = s.pool.Remove(id); err == nil {
			err = s.pool.Add(router.Endpoint{ID: id, Incarnation: fmt.Sprint(s.inc.Add(1)), Profile: flat})
		}
	case 3:
		err = s.pool.Add(router.Endpoint{ID: id, Incarnation: fmt.Sprint(s.inc.Add(1)), Profile: flat})
	default:
		var list []router.Endpoint
		for _, e := range s.pool.Endpoints() {
			if r.IntN(6) > 0 {
				list = append(list, e)
			}
		}
		list = append(list, router.Endpoint{ID: "extra", Incarnation: fmt.Sprint(s.inc.Add(1))})
		kept := s.pool.Endpoints()
		if err = s.pool.SetEndpoints(list); err == nil {
			err = s.pool.SetEndpoints(kept)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

func TestStress(t *testing.T) {
	operations := 100_000
	s := &stress{ids: []string{"a", "b", "c", "d", "e", "f"}, caps: admission.Caps{Endpoint: 5, Aggregate: 20, Tenant: 9}}
	for i := range 6 {
		s.asked = append(s.asked, long(t, i%3, 4+i), prefix.Sequence{})
	}
	var receipts atomic.Int64
	p, err := router.New(router.Config{
		Caps: s.caps, Shadow: router.Random(), VisibilityLag: time.Millisecond,
		Circuit:  router.Circuit{Failures: 3, OpenFor: time.Millisecond},
		Receipts: router.Receipts{Observer: counting{&receipts}, Sample: 0.2},
	})
	require.NoError(t, err)
	s.pool, s.out = p, map[string]*atomic.Int64{}
	for _, id := range s.ids {
		s.out[id] = &atomic.Int64{}
	}
	var list []router.Endpoint
	for _, id := range s.ids {
		list = append(list, router.Endpoint{ID: id, Profile: flat})
	}
	require.NoError(t, p.SetEndpoints(list))
	const workers = 8
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(operations))
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			var held []*router.Lease
			for left.Add(-1) > 0 {
				switch k := r.IntN(100); {
				case k < 45:
					if l := s.take(t, r); l != nil {
						held = append(held, l)
					}
				case k < 80 && len(held) > 0:
					i := r.IntN(len(held))
					s.end(held[i], r)
					held[i] = held[len(held)-1]
					held = held[:len(held)-1]
				case k < 88 && len(held) > 0:
					l := held[r.IntN(len(held))]
					l.Started()
					l.FirstToken()
					l.Progress(r.IntN(400))
				case k < 95:
					_ = p.Observe(s.ids[r.IntN(len(s.ids))], telemetry.Snapshot{
						ObservedAt: time.Now(), Running: telemetry.V(float64(r.IntN(3))), Waiting: telemetry.V(0), KVShare: telemetry.V(r.Float64()),
						Epoch: fmt.Sprint(left.Load() / 20_000),
					})
				case k < 98:
					if st := p.Stats(); st.OldestLease > time.Hour {
						t.Error(st.OldestLease)
					}
				case k < 99:
					p.ClearAllPrefixes()
				default:
					s.churn(t, r)
				}
			}
			for _, l := range held {
				s.end(l, r)
			}
		})
	}
	wg.Wait()
	require.Zero(t, s.all.Load())
	st := p.Stats()
	require.Zero(t, st.OpenLeases)
	require.Zero(t, st.OldestLease)
	require.Equal(t, st.Decisions, st.Completed+st.Failed+st.Cancelled)
	require.Zero(t, st.PolicyFaults+st.ObserverFaults+st.ShadowFaults)
	require.Positive(t, receipts.Load())
	for _, e := range st.Endpoints {
		require.Zero(t, e.Own.Live, e.ID)
		require.Zero(t, e.Own.Unobserved, e.ID)
	}
	for _, id := range s.ids { // nothing is stuck: neither a tenant's count nor a probe nor a place
		require.NoError(t, p.Ready(id))
	}
	require.NoError(t, p.SetEndpoints(plain("fresh")))
	for range 5 {
		mustReserve(t, p, router.Request{Tenant: "x"})
	}
}

type counting struct{ n *atomic.Int64 }

func (c counting) Decided(*router.Receipt) { c.n.Add(1) }
func (c counting) Ended(*router.Receipt)   { c.n.Add(1) }

// Once Drain or Remove has returned, no lease that is granted is on the endpoint: every Reserve that begins after that, from any
// goroutine, and every one that was under way.
func TestNoLeaseAfterDrainReturned(t *testing.T) {
	for name, out := range map[string]func(p *router.Pool, id string) error{
		"drain": (*router.Pool).Drain, "sleep": (*router.Pool).Sleep, "remove": (*router.Pool).Remove,
	} {
		t.Run(name, func(t *testing.T) {
			for range 100 {
				c := newClock()
				p := newPool(t, c, router.Config{Policy: router.RoundRobin()}, "a", "b")
				idle(t, p, c, "a", "b")
				var gone atomic.Bool
				stop := make(chan struct{})
				var wg sync.WaitGroup
				for range 3 {
					wg.Go(func() {
						for {
							select {
							case <-stop:
								return
							default:
							}
							before := gone.Load()
							l, err := p.Reserve(context.Background(), router.Request{})
							if err != nil {
								t.Error(err)
								return
							}
							if before && l.Endpoint().ID == "a" {
								t.Error("a lease on a after it had gone")
							}
							l.Cancel()
						}
					})
				}
				if err := out(p, "a"); err != nil {
					t.Error(err)
				}
				gone.Store(true)
				chosen := p.Stats().Decisions
				for p.Stats().Decisions < chosen+10 { // let them go on for a while
					l := mustReserve(t, p, router.Request{})
					l.Cancel()
				}
				close(stop)
				wg.Wait()
			}
		})
	}
}

// A Reserve that had looked before an endpoint was taken out, and grants after that, does not place its lease there. The policy
// holds the first look until the change has returned.
func TestReserveUnderWayWhenAnEndpointGoes(t *testing.T) {
	for name, out := range map[string]func(p *router.Pool) error{
		"drain": func(p *router.Pool) error { return p.Drain("a") }, "sleep": func(p *router.Pool) error { return p.Sleep("a") },
		"remove":      func(p *router.Pool) error { return p.Remove("a") },
		"set":         func(p *router.Pool) error { return p.SetEndpoints(plain("b", "c")) },
		"incarnation": func(p *router.Pool) error { return p.Add(router.Endpoint{ID: "a", Incarnation: "2"}) },
	} {
		t.Run(name, func(t *testing.T) {
			looked, proceed := make(chan struct{}), make(chan struct{})
			first := true
			c := newClock()
			p := newPool(t, c, router.Config{Policy: hosted(func(v *router.View) int {
				if first {
					first = false
					close(looked)
					<-proceed
				}
				return firstChoosable(v)
			})}, "a", "b")
			idle(t, p, c, "a", "b")
			got := make(chan *router.Lease)
			go func() {
				l, err := p.Reserve(context.Background(), router.Request{})
				if err != nil {
					t.Error(err)
				}
				got <- l
			}()
			<-looked
			err := out(p)
			close(proceed)
			l := <-got
			require.NoError(t, err)
			if name == "incarnation" {
				require.Equal(t, "a/2", identity(l.Endpoint()))
			} else {
				require.Equal(t, "b", l.Endpoint().ID)
			}
			require.EqualValues(t, 1, p.Stats().Retried)
		})
	}
}

func firstChoosable(v *router.View) int {
	for i := range v.Len() {
		if v.Choosable(i) {
			return i
		}
	}
	return -1
}

func TestStatsUnderLoad(t *testing.T) {
	p, err := router.New(router.Config{})
	require.NoError(t, err)
	require.NoError(t, p.SetEndpoints(plain("a")))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					l, err := p.Reserve(context.Background(), router.Request{})
					if err != nil {
						t.Error(err)
						return
					}
					l.Done(router.Usage{})
				}
			}
		})
	}
	negative, early := 0, 0
	for range 20_000 {
		s := p.Stats()
		if s.OpenLeases < 0 {
			negative++
		}
		if s.OldestLease < 0 {
			early++
		}
	}
	close(stop)
	wg.Wait()
	require.Zero(t, negative, "open leases below zero")
	require.Zero(t, early, "oldest lease from the future")
}

// The same calls from one goroutine give the same choices, terms and receipts, whatever pools have run beside.
func TestDeterministic(t *testing.T) {
	for _, name := range router.PolicyNames() {
		policy, err := router.PolicyByName(name)
		require.NoError(t, err)
		var texts [3]string
		var wg sync.WaitGroup
		for i := range texts {
			wg.Go(func() {
				k := &keeper{}
				walk(t, router.Config{Policy: policy, Seed: 9, Receipts: router.Receipts{Observer: k}}, 150)
				var b strings.Builder
				for _, r := range k.ended {
					fmt.Fprintf(&b, "%s %v %v %v\n", r.Endpoint, r.Terms, r.Number, *r.Outcome)
				}
				texts[i] = b.String()
			})
		}
		wg.Wait()
		require.NotEmpty(t, texts[0])
		require.Equal(t, texts[0], texts[1], name)
		require.Equal(t, texts[0], texts[2], name)
	}
	profile, err := score.ProfileByName("h100-8b")
	require.NoError(t, err)
	seeds := map[string]bool{}
	for seed := range uint64(5) {
		c := newClock()
		p := newPool(t, c, router.Config{Seed: seed})
		for _, id := range []string{"a", "b", "c", "d"} {
			require.NoError(t, p.Add(router.Endpoint{ID: id, Profile: profile}))
		}
		seeds[strings.Join(choices(t, p, 30, func(int) router.Request { return router.Request{} }), "")] = true
	}
	require.Len(t, seeds, 5, "another seed, another sequence")
}
