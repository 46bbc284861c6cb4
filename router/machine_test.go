package router_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// cheapest is a policy of a host, by value.
type cheapest struct{}

func (cheapest) Name() string { return "cheapest" }

func (cheapest) Choose(v *router.View) int {
	best := -1
	for i := range v.Len() {
		if v.Choosable(i) && (best < 0 || v.At(i).Total < v.At(best).Total) {
			best = i
		}
	}
	return best
}

// machine drives two pools and their twin through the same calls. The first pool is scored between all calls, recorded, and
// has a shadow; the second has none of that and is given its endpoints in another order. Both must choose alike.
type machine struct {
	clock *clock
	cfg   router.Config
	a, b  *router.Pool
	twin  *twin

	leases   []held
	last     *router.Receipt // of the observer
	ended    *router.Receipt
	granted  map[string]int // by endpoint id and incarnation
	rejected int
	scrapes  int
	snaps    int
	dropped  int
	sealed   map[*twinAccount]bool // removed, draining or asleep: gets nothing
}

type held struct {
	a, b *router.Lease
	twin *twinLease
}

func (m *machine) Decided(r *router.Receipt) { m.last = r }
func (m *machine) Ended(r *router.Receipt)   { m.ended = r }

func newMachine(t *rapid.T) *machine {
	m := &machine{clock: newClock(), granted: map[string]int{}, sealed: map[*twinAccount]bool{}}
	cap := rapid.SampledFrom([]int{0, 0, 0, 1, 2, 3, 6})
	m.cfg = router.Config{
		Seed:          rapid.Uint64().Draw(t, "seed"),
		Now:           m.clock.now,
		Replicas:      rapid.IntRange(0, 3).Draw(t, "replicas"),
		VisibilityLag: rapid.SampledFrom([]time.Duration{0, router.None, 200 * time.Millisecond}).Draw(t, "lag"),
		TieWindow:     rapid.SampledFrom([]time.Duration{0, router.None, time.Second}).Draw(t, "tie"),
		UnobservedMax: rapid.IntRange(0, 2).Draw(t, "unobserved-max"),
		FrozenAfter:   1 << 20,
		FailClosed:    rapid.IntRange(0, 7).Draw(t, "fail-closed") == 0,
		Circuit:       router.Circuit{Failures: rapid.IntRange(1, 4).Draw(t, "failures"), Window: rapid.IntRange(2, 8).Draw(t, "window")},
		Caps: admission.Caps{
			Waiting: cap.Draw(t, "cap-waiting"), Endpoint: cap.Draw(t, "cap-endpoint"),
			Aggregate: 3 * cap.Draw(t, "cap-aggregate"), Tenant: cap.Draw(t, "cap-tenant"),
		},
	}
	name := rapid.SampledFrom(append(router.PolicyNames(), "cheapest", "pressure")).Draw(t, "policy")
	if m.cfg.Policy = router.Policy(cheapest{}); name != "cheapest" {
		var err error
		m.cfg.Policy, err = router.PolicyByName(name)
		require.NoError(t, err)
	}
	b := m.cfg
	m.cfg.Shadow, m.cfg.Receipts.Observer = router.Random(), m
	var err error
	m.a, err = router.New(m.cfg)
	require.NoError(t, err)
	m.b, err = router.New(b)
	require.NoError(t, err)
	m.twin = newTwin(m.a.Config(), m.clock.now)
	m.set(t)
	return m
}

func (m *machine) endpoint(t *rapid.T, i int) router.Endpoint {
	e := router.Endpoint{
		ID: fmt.Sprintf("e%d", i), Incarnation: rapid.SampledFrom([]string{"", "", "", "2"}).Draw(t, "incarnation"),
		Address: rapid.SampledFrom([]string{"here", "there"}).Draw(t, "address"),
	}
	switch i {
	case 1:
		e.Profile, _ = score.ProfileByName("h100-70b-tp4")
	case 2:
		e.Models = []string{"m", "n"}
	case 3:
		e.Models = []string{"x"}
	case 4:
		e.Role = router.RoleDecode
	case 5:
		e.Profile.KVCapacity = 4096
	}
	return e
}

func (m *machine) set(t *rapid.T) {
	var list []router.Endpoint
	for i := range 6 {
		if rapid.IntRange(0, 4).Draw(t, "in") > 0 {
			list = append(list, m.endpoint(t, i))
		}
	}
	require.NoError(t, m.a.SetEndpoints(list))
	m.twin.set(list)
	require.NoError(t, m.b.SetEndpoints(rapid.Permutation(list).Draw(t, "order")))
}

// member draws an endpoint of the pool, now and then one that is not there.
func (m *machine) member(t *rapid.T) (string, bool) {
	id := rapid.SampledFrom(append(m.twin.ids(), "nobody")).Draw(t, "id")
	return id, m.twin.members[id] != nil
}

// both calls both pools and wants an error exactly where the endpoint is unknown.
func (m *machine) both(t *rapid.T, known bool, call func(p *router.Pool) error) {
	for _, p := range []*router.Pool{m.a, m.b} {
		err := call(p)
		require.Equal(t, known, err == nil, "%v", err)
		if err != nil {
			require.Contains(t, err.Error(), `router: endpoint "nobody"`)
		}
	}
}

func (m *machine) readiness(t *rapid.T) {
	id, known := m.member(t)
	what := rapid.SampledFrom([]router.Reason{router.NoReason, router.NoReason, router.Draining, router.Asleep}).Draw(t, "state")
	m.both(t, known, func(p *router.Pool) error {
		switch what {
		case router.Draining:
			return p.Drain(id)
		case router.Asleep:
			return p.Sleep(id)
		}
		return p.Ready(id)
	})
	if known {
		m.twin.members[id].state = what
	}
}

func (m *machine) observe(t *rapid.T) {
	id, known := m.member(t)
	lag := rapid.SampledFrom([]time.Duration{0, 0, 0, time.Millisecond, 100 * time.Millisecond, 3 * time.Second, 20 * time.Second, -time.Second}).Draw(t, "lag")
	s := telemetry.Snapshot{ObservedAt: m.clock.ago(lag)}
	s.Interval = rapid.SampledFrom([]time.Duration{0, 0, -time.Second, 100 * time.Millisecond, 4 * time.Second, time.Minute}).Draw(t, "interval")
	complete := rapid.IntRange(0, 2).Draw(t, "complete") > 0
	figure := func(name string, high int) telemetry.Reading {
		v := float64(rapid.IntRange(0, high).Draw(t, name))
		if complete {
			return telemetry.V(v)
		}
		switch rapid.IntRange(0, 15).Draw(t, name+"-how") {
		case 0:
			return telemetry.V(rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), -1}).Draw(t, name+"-bad"))
		case 1:
			return telemetry.Reading{}
		}
		return telemetry.V(v)
	}
	s.Running, s.Waiting = figure("running", 5), figure("waiting", 3)
	if s.Waiting.Known() && known && m.twin.members[id].conf.ID != "e1" {
		s.WaitingTokens = telemetry.V(float64(rapid.IntRange(0, 3000).Draw(t, "tokens")))
	}
	if !s.WaitingTokens.Known() && id != "e1" {
		s.Waiting = telemetry.Reading{}
	}
	how := rapid.IntRange(0, 5).Draw(t, "kv-how")
	if complete {
		how = 5
	}
	switch how {
	case 0:
	case 1:
		s.KVShare = telemetry.V(1.5)
	default:
		s.KVShare = telemetry.V(rapid.Float64Range(0, 1).Draw(t, "kv"))
	}
	switch rapid.IntRange(0, 20).Draw(t, "health") {
	case 0:
		s.Health = telemetry.HealthError
	case 1, 2, 3:
		s.Health = telemetry.HealthOK
	}
	switch rapid.IntRange(0, 20).Draw(t, "asleep") {
	case 0:
		s.Asleep = telemetry.TriYes
	case 1, 2, 3:
		s.Asleep = telemetry.TriNo
	}
	if known {
		e := m.twin.members[id]
		if s.Epoch = "1"; e.epochs {
			s.Epoch = e.epoch
		}
		if rapid.IntRange(0, 12).Draw(t, "restarted") == 0 {
			s.Epoch += "1"
		}
	}
	m.both(t, known, func(p *router.Pool) error { return p.Observe(id, s) })
	if known {
		m.snaps++
		if m.twin.observe(id, s) {
			m.dropped++
		}
	}
}

var promptLibrary = [][]int{
	nil, nil, {1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 3, 4}, {1, 2, 9, 9, 9}, {20, 21, 22}, {20, 21, 22, 23, 24, 25}, {30}, {1},
}

func (m *machine) request(t *rapid.T) *twinRequest {
	r := &twinRequest{blocks: rapid.SampledFrom(promptLibrary).Draw(t, "prompt")}
	if len(r.blocks) > 0 {
		r.Prefix = prompt(t, r.blocks...)
	}
	r.ID = "request"
	r.Model = rapid.SampledFrom([]string{"", "m", "m", "x", "nowhere"}[:rapid.IntRange(2, 5).Draw(t, "models")]).Draw(t, "model")
	r.Role = rapid.SampledFrom([]router.Role{"", "", router.RoleBoth, router.RoleDecode, router.RolePrefill}).Draw(t, "role")
	r.PromptTokens = rapid.SampledFrom([]int64{0, 0, 10, 2000, 4095, 4096, 1 << 30}).Draw(t, "tokens")
	r.MaxOutputTokens = rapid.SampledFrom([]int64{0, 50, 1000}).Draw(t, "max-output")
	r.ExpectedOutputTokens = rapid.SampledFrom([]int64{0, 20, 2000}).Draw(t, "output")
	r.Tenant = rapid.SampledFrom([]string{"", "alpha", "beta"}).Draw(t, "tenant")
	r.Class = router.Class(rapid.IntRange(0, 4).Draw(t, "class"))
	if rapid.Bool().Draw(t, "plain") { // the ordinary request, for which a pool may keep what it has computed
		return r
	}
	r.Session = rapid.SampledFrom([]string{"", "one", "two", "three"}).Draw(t, "session")
	if rapid.IntRange(0, 3).Draw(t, "adapter") == 0 {
		r.Adapter = router.Adapter{ID: "lora", Digest: rapid.SampledFrom([]string{"1", "2"}).Draw(t, "digest")}
	}
	switch rapid.IntRange(0, 9).Draw(t, "deadline") {
	case 0:
		r.Deadline = m.clock.now()
	case 1:
		r.Deadline = m.clock.now().Add(1e6 * time.Hour)
	}
	for i := range 6 {
		if rapid.IntRange(0, 6).Draw(t, "exclude") == 0 {
			r.Exclude = append(r.Exclude, fmt.Sprintf("e%d", i))
		}
	}
	r.ExcludeHard = rapid.Bool().Draw(t, "hard")
	return r
}

func (m *machine) reserve(t *rapid.T) {
	r := m.request(t)
	views, degraded, reason := m.twin.view(r)
	foreseen, scoreErr := m.a.Score(r.Request)
	m.checkScore(t, foreseen, views, degraded)
	if rapid.IntRange(0, 9).Draw(t, "cancelled") == 0 {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		l, err := m.a.Reserve(ctx, r.Request)
		require.Nil(t, l)
		require.ErrorIs(t, err, context.Canceled)
	}
	m.last = nil
	a, errA := m.a.Reserve(context.Background(), r.Request)
	b, errB := m.b.Reserve(context.Background(), r.Request)
	require.NotNil(t, m.last, "no receipt")
	m.checkReplay(t)
	if reason != nil {
		m.rejected++
		require.ErrorIs(t, errA, reason)
		require.ErrorIs(t, errB, reason)
		if reason != router.ErrDeadline {
			require.ErrorIs(t, scoreErr, reason)
		}
		var reject *router.RejectError
		require.ErrorAs(t, errA, &reject)
		require.Equal(t, reject.Code(), m.last.Rejected)
		require.Zero(t, reject.RetryAfter%time.Second)
		require.Empty(t, reject.Decision.Endpoint)
		return
	}
	require.NoError(t, errA)
	require.NoError(t, errB)
	require.NoError(t, scoreErr)
	m.checkChoice(t, r, a, b, foreseen, views)
	i := slices.IndexFunc(views, func(v twinView) bool { return v.id == a.Endpoint().ID })
	l := m.twin.grant(a.Endpoint().ID, r, views[i])
	m.leases = append(m.leases, held{a, b, l})
	m.granted[a.Endpoint().ID+"/"+a.Endpoint().Incarnation]++
	m.checkCaps(t, r, l)
}

// lease draws a lease that was granted at any time, ended ones too.
func (m *machine) lease(t *rapid.T) held {
	if len(m.leases) == 0 {
		t.Skip("no lease yet")
	}
	back := min(len(m.leases), 12)
	return m.leases[len(m.leases)-1-rapid.IntRange(0, back-1).Draw(t, "lease")]
}

func (m *machine) event(t *rapid.T) {
	l := m.lease(t)
	switch rapid.IntRange(0, 2).Draw(t, "event") {
	case 0:
		l.a.FirstToken()
		l.b.FirstToken()
		m.twin.firstToken(l.twin)
	case 1:
		n := rapid.IntRange(-1, 300).Draw(t, "tokens")
		l.a.Progress(n)
		l.b.Progress(n)
		if n > 0 {
			m.twin.progress(l.twin, int64(n))
		}
	default:
		l.a.Started()
		l.b.Started()
	}
}

func (m *machine) end(t *rapid.T) {
	l := m.lease(t)
	cause := rapid.SampledFrom([]router.Cause{router.Completed, router.Failed, router.Failed, router.Cancelled}).Draw(t, "cause")
	was := l.a.Live()
	require.Equal(t, l.twin.live, was)
	m.ended = nil
	for _, x := range []*router.Lease{l.a, l.b} {
		switch cause {
		case router.Completed:
			x.Done(router.Usage{OutputTokens: 7})
		case router.Failed:
			x.Fail(errors.New("alpha"))
		default:
			x.Cancel()
		}
		require.False(t, x.Live())
	}
	m.twin.end(l.twin, cause)
	require.Equal(t, was, m.ended != nil, "told of an end that was none, or not told")
}

func (m *machine) invariant(t *rapid.T) {
	for _, p := range []*router.Pool{m.a, m.b} {
		s := p.Stats()
		require.EqualValues(t, m.twin.granted, s.Decisions)
		require.EqualValues(t, m.rejected, s.Rejected)
		require.EqualValues(t, m.twin.ended[router.Completed], s.Completed)
		require.EqualValues(t, m.twin.ended[router.Failed], s.Failed)
		require.EqualValues(t, m.twin.ended[router.Cancelled], s.Cancelled)
		require.EqualValues(t, m.snaps, s.Snapshots)
		require.EqualValues(t, m.dropped, s.Dropped)
		require.EqualValues(t, m.scrapes, s.ScrapeErrors)
		require.Zero(t, s.PolicyFaults+s.ObserverFaults+s.ShadowFaults+s.Retried+s.ShadowSkipped)
		oldest, open := time.Duration(0), int64(0)
		for _, l := range m.leases {
			if l.twin.live {
				open++
				oldest = max(oldest, m.clock.now().Sub(l.twin.at))
			}
		}
		require.Equal(t, open, s.OpenLeases)
		require.Equal(t, oldest, s.OldestLease)
		require.Len(t, s.Endpoints, len(m.twin.members))
		require.Equal(t, len(m.twin.members), s.Prefix.Holders)
		for i, id := range m.twin.ids() {
			e := m.twin.members[id]
			want := m.twin.sums(e.account)
			got, err := p.Ledger(id)
			require.NoError(t, err)
			require.Equal(t, want.Live, got.Live, id)
			require.Equal(t, want.Unobserved, got.Unobserved, id)
			// What has ended is remembered as long as a reading counts.
			if m.clock.now().Sub(e.account.observed) < m.twin.cfg.Freshness.StaleAfter {
				require.Equal(t, want.Departed, got.Departed, id)
			}
			es := s.Endpoints[i]
			require.Equal(t, id, es.ID)
			require.Equal(t, e.conf.Incarnation, es.Incarnation)
			require.Equal(t, e.state, es.State)
			require.Equal(t, got, es.Own)
			circuit := "closed"
			if e.open && m.clock.now().Before(e.until) {
				circuit = "open"
			} else if e.open {
				circuit = "half-open"
			}
			require.Equal(t, circuit, es.Circuit, id)
		}
	}
}

func (m *machine) cached(t *rapid.T) {
	id, known := m.member(t)
	blocks := rapid.SampledFrom(promptLibrary[2:]).Draw(t, "prompt")
	for _, p := range []*router.Pool{m.a, m.b} {
		got, err := p.Cached(id, prompt(t, blocks...))
		require.Equal(t, known, err == nil)
		if known {
			want := m.twin.look(m.twin.members[id], &twinRequest{blocks: blocks}).cached
			require.Equal(t, want, got)
		}
	}
}

func (m *machine) clear(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "all") == 0 {
		m.a.ClearAllPrefixes()
		m.b.ClearAllPrefixes()
		for _, e := range m.twin.members {
			e.prompts = nil
		}
		return
	}
	id, known := m.member(t)
	m.both(t, known, func(p *router.Pool) error { return p.ClearPrefixes(id) })
	if known {
		m.twin.members[id].prompts = nil
	}
}

// bad calls must fail and change nothing; the invariant sees to the latter.
func (m *machine) bad(t *rapid.T) {
	require.Error(t, m.a.SetEndpoints([]router.Endpoint{{ID: "e0", Incarnation: "new"}, {ID: "e0"}}))
	require.Error(t, m.a.SetEndpoints([]router.Endpoint{{ID: "e9"}, {}}))
	require.Error(t, m.a.Add(router.Endpoint{ID: "e0", Incarnation: "new", Role: "none"}))
	_, err := m.a.Reserve(context.Background(), router.Request{PromptTokens: -1})
	require.Error(t, err)
	require.Error(t, m.a.ApplyKV("nobody", prefix.Event{Kind: prefix.Cleared}))
	_, err = m.a.Ledger("nobody")
	require.Error(t, err)
	m.a.Release(nil, router.Outcome{})
}

func TestMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		t.Repeat(map[string]func(*rapid.T){
			"": m.invariant,
			"advance": func(t *rapid.T) {
				m.clock.advance(rapid.SampledFrom([]time.Duration{
					time.Millisecond, 40 * time.Millisecond, 300 * time.Millisecond, 1900 * time.Millisecond, 5 * time.Second, 11 * time.Second,
				}).Draw(t, "by"))
			},
			"set": m.set,
			"add": func(t *rapid.T) {
				e := m.endpoint(t, rapid.IntRange(0, 5).Draw(t, "endpoint"))
				m.both(t, true, func(p *router.Pool) error { return p.Add(e) })
				m.twin.add(e)
			},
			"remove": func(t *rapid.T) {
				id, known := m.member(t)
				m.both(t, known, func(p *router.Pool) error { return p.Remove(id) })
				if known {
					m.twin.remove(id)
				}
			},
			"readiness": m.readiness,
			"observe":   m.observe, "observe again": m.observe, "observe more": m.observe,
			"scrape failed": func(t *rapid.T) {
				id, known := m.member(t)
				m.both(t, known, func(p *router.Pool) error { return p.ScrapeFailed(id, errors.New("no answer")) })
				if known {
					m.scrapes++
				}
			},
			"reserve": m.reserve, "reserve again": m.reserve, "reserve more": m.reserve, "reserve much": m.reserve,
			"event": m.event, "end": m.end, "end again": m.end, "cached": m.cached, "clear": m.clear, "bad": m.bad,
		})
	})
}
