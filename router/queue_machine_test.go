package router_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

// enqueue is Enqueue of a request that must not be rejected at once.
func enqueue(tb require.TestingT, p *router.Pool, req router.Request) *router.Ticket {
	ticket, err := p.Enqueue(req)
	require.NoError(tb, err)
	require.NotNil(tb, ticket)
	return ticket
}

func done(ticket *router.Ticket) bool {
	select {
	case <-ticket.Done():
		return true
	default:
		return false
	}
}

// granted requires a ticket that has its lease.
func granted(tb require.TestingT, ticket *router.Ticket) *router.Lease {
	require.True(tb, done(ticket), "it waits")
	l, err := ticket.Lease()
	require.NoError(tb, err)
	require.True(tb, l.Live())
	return l
}

// refused requires a ticket that has been rejected for that reason.
func refused(tb require.TestingT, ticket *router.Ticket, reason error) *router.RejectError {
	require.True(tb, done(ticket), "it waits")
	l, err := ticket.Lease()
	require.Nil(tb, l)
	require.ErrorIs(tb, err, reason)
	var reject *router.RejectError
	require.ErrorAs(tb, err, &reject)
	return reject
}

// empty requires that nothing is left of anything: no lease, no waiter, no count of a tenant or a share that would keep a place. It takes
// every place that the caps of the pool allow once more.
func empty(tb require.TestingT, p *router.Pool) {
	s := p.Stats()
	require.Zero(tb, s.OpenLeases)
	require.Zero(tb, s.OldestLease)
	for _, e := range s.Endpoints {
		require.Zero(tb, e.Own.Live, e.ID)
		require.Zero(tb, e.Own.Unobserved, e.ID)
	}
	if q := s.Queue; q != nil {
		require.Zero(tb, q.Waiting)
		require.Zero(tb, q.Tokens)
		require.Empty(tb, q.ByClass)
		require.Zero(tb, q.Oldest)
		require.Equal(tb, q.Queued, q.Granted+q.Cancelled+q.Displaced+q.TimedOut+q.Missed+q.Refused)
	}
}

var classRank = map[router.Class]int{
	router.ClassSystem: 0, router.ClassInteractive: 1, router.ClassStandard: 2, router.ClassBatch: 3, router.ClassSheddable: 4,
}

// machineEndpoints are those of the machine's that take part here: one plain, one faster, and two with models of their own.
var machineEndpoints = []int{0, 1, 2, 3}

// queueMachine drives a pool with a queue, and a model of it that is a list behind one lock: what fits is asked of the twin of the
// pool, and who is served first is found by looking at everybody.
type queueMachine struct {
	gen    *machine // draws endpoints and requests
	clock  *clock
	cfg    router.Config
	pool   *router.Pool
	twin   *twin
	wait   []*waiting // in the order of arrival
	leases []*queueLease
	tokens map[string]int64 // open, by tenant
	counts router.QueueStats
}

type waiting struct {
	req    *twinRequest
	ticket *router.Ticket
	since  time.Time
}

type queueLease struct {
	lease  *router.Lease
	twin   *twinLease
	tokens int64
}

func newQueueMachine(t *rapid.T) *queueMachine {
	m := &queueMachine{clock: newClock(), tokens: map[string]int64{}}
	few := rapid.SampledFrom([]int{0, 0, 1, 2, 3})
	m.cfg = router.Config{
		Seed: rapid.Uint64().Draw(t, "seed"), Now: m.clock.now, UnobservedMax: 1 << 20, FrozenAfter: 1 << 20,
		VisibilityLag: rapid.SampledFrom([]time.Duration{0, router.None, 200 * time.Millisecond}).Draw(t, "lag"),
		Circuit:       router.Circuit{Failures: 2},
		Caps: admission.Caps{
			Waiting: few.Draw(t, "cap-waiting"), Endpoint: few.Draw(t, "cap-endpoint"), Aggregate: 2 * few.Draw(t, "cap-aggregate"),
			Tenant: few.Draw(t, "cap-tenant"), TenantTokens: rapid.SampledFrom([]int64{0, 0, 500, 5500}).Draw(t, "cap-tokens"),
		},
		Queue: router.Queue{
			Max: rapid.IntRange(1, 8).Draw(t, "max"), MaxTokens: rapid.SampledFrom([]int64{0, 0, 4000}).Draw(t, "max-tokens"),
			Timeout: 15 * time.Second, AgeAfter: time.Hour, WaitForEndpoints: rapid.Bool().Draw(t, "wait-for-endpoints"),
		},
	}
	if m.cfg.Caps.Endpoint+m.cfg.Caps.Aggregate == 0 {
		m.cfg.Caps.Endpoint = 1
	}
	var err error
	m.pool, err = router.New(m.cfg)
	require.NoError(t, err)
	m.twin = newTwin(m.pool.Config(), m.clock.now)
	m.gen = &machine{clock: m.clock, twin: m.twin}
	m.set(t)
	return m
}

func (m *queueMachine) set(t *rapid.T) {
	var list []router.Endpoint
	for _, i := range machineEndpoints {
		if rapid.IntRange(0, 4).Draw(t, "in") > 0 {
			list = append(list, m.gen.endpoint(t, i))
		}
	}
	require.NoError(t, m.pool.SetEndpoints(list))
	m.twin.set(list)
	m.settle(t)
}

func (m *queueMachine) request(t *rapid.T) *twinRequest {
	r := &twinRequest{}
	r.Model = rapid.SampledFrom([]string{"", "m", "m", "x"}).Draw(t, "model")
	r.PromptTokens = rapid.SampledFrom([]int64{0, 10, 300, 2000, 4095, 5000}).Draw(t, "prompt")
	r.MaxOutputTokens = rapid.SampledFrom([]int64{1, 50, 400}).Draw(t, "output")
	r.Tenant = rapid.SampledFrom([]string{"", "alpha", "beta"}).Draw(t, "tenant")
	r.Class = router.Class(rapid.IntRange(0, 4).Draw(t, "class"))
	if rapid.IntRange(0, 4).Draw(t, "deadline") == 0 {
		r.Deadline = m.clock.now().Add(rapid.SampledFrom([]time.Duration{time.Second, 5 * time.Second, time.Hour}).Draw(t, "left"))
	}
	if rapid.IntRange(0, 5).Draw(t, "exclude") == 0 {
		r.Exclude, r.ExcludeHard = []string{"e0", "e1"}[:rapid.IntRange(1, 2).Draw(t, "excluded")], rapid.Bool().Draw(t, "hard")
	}
	return r
}

func (m *queueMachine) cost(r *twinRequest) int64 { return r.prompt() + m.twin.output(r) }

// fits says whether the pool as it is could serve the request, and the reason why not. What is predicted of a deadline is the
// pool's own word, which other tests see to.
func (m *queueMachine) fits(r *twinRequest) error {
	if !r.Deadline.IsZero() {
		_, err := m.pool.Score(r.Request)
		return errors.Unwrap(err)
	}
	_, _, reason := m.twin.view(r)
	if limit := m.cfg.Caps.TenantTokens; reason == nil && limit > 0 && r.Tenant != "" && m.tokens[r.Tenant]+m.cost(r) > limit {
		reason = router.ErrSaturated
	}
	return reason
}

// never says that waiting cannot help.
func (m *queueMachine) never(r *twinRequest, reason error) bool {
	switch {
	case r.Class == router.ClassSheddable:
		return true
	case m.cfg.Caps.TenantTokens > 0 && r.Tenant != "" && m.cost(r) > m.cfg.Caps.TenantTokens:
		return true
	case errors.Is(reason, router.ErrNoEndpoints):
		return !m.cfg.Queue.WaitForEndpoints
	}
	return !errors.Is(reason, router.ErrSaturated)
}

// take notes a lease.
func (m *queueMachine) take(t *rapid.T, r *twinRequest, l *router.Lease) {
	views, _, _ := m.twin.view(r)
	i := slices.IndexFunc(views, func(v twinView) bool { return v.id == l.Endpoint().ID })
	require.GreaterOrEqual(t, i, 0)
	require.Equal(t, router.NoReason, views[i].excluded, views[i].id)
	require.True(t, views[i].choosable || !r.Deadline.IsZero(), "%s is avoided", views[i].id) // the other may miss the deadline
	m.leases = append(m.leases, &queueLease{l, m.twin.grant(l.Endpoint().ID, r, views[i]), m.cost(r)})
	if r.Tenant != "" {
		m.tokens[r.Tenant] += m.cost(r)
		if limit := m.cfg.Caps.TenantTokens; limit > 0 {
			require.LessOrEqual(t, m.tokens[r.Tenant], limit)
		}
		if limit := m.cfg.Caps.Tenant; limit > 0 {
			require.LessOrEqual(t, m.twin.openOf(r.Tenant), limit)
		}
	}
}

func (m *queueMachine) enqueue(t *rapid.T) {
	r := m.request(t)
	reason := m.fits(r)
	full := len(m.wait) >= m.cfg.Queue.Max || m.cfg.Queue.MaxTokens > 0 && m.queued()+max(m.cost(r), 1) > m.cfg.Queue.MaxTokens
	ticket, err := m.pool.Enqueue(r.Request)
	switch {
	case reason == nil: // nobody who waits fits, so that it passes nobody by
		require.NoError(t, err)
		l := granted(t, ticket)
		require.Zero(t, l.Decision().Waited)
		m.take(t, r, l)
	case m.never(r, reason):
		require.ErrorIs(t, err, reason)
		require.Nil(t, ticket)
	case err != nil:
		require.True(t, full && errors.Is(err, router.ErrQueueFull) || !r.Deadline.IsZero() && errors.Is(err, router.ErrDeadline), "%v", err)
		require.Nil(t, ticket)
	default:
		m.counts.Queued++
		require.False(t, done(ticket), "it was served though it does not fit: %v", reason)
		m.wait = append(m.wait, &waiting{r, ticket, m.clock.now()})
		m.displaced(t, r, full)
	}
	m.settle(t)
}

func (m *queueMachine) queued() (tokens int64) {
	for _, w := range m.wait {
		tokens += max(m.cost(w.req), 1)
	}
	return tokens
}

// displaced takes out those who had to make room for a newcomer.
func (m *queueMachine) displaced(t *rapid.T, by *twinRequest, full bool) {
	m.wait = slices.DeleteFunc(m.wait, func(w *waiting) bool {
		if _, err := w.ticket.Lease(); !errors.Is(err, router.ErrQueueFull) {
			return false
		}
		require.True(t, full, "displaced though there was room")
		refused(t, w.ticket, router.ErrQueueFull)
		require.GreaterOrEqual(t, classRank[w.req.Class], classRank[by.Class])
		m.counts.Displaced++
		return true
	})
}

// settle takes up what has become of those who wait by the last event: everybody who has been served was first in turn then, and nobody
// who fits waits.
func (m *queueMachine) settle(t *rapid.T) {
	var served []*waiting
	rest := m.wait[:0:0]
	for _, w := range m.wait {
		if !done(w.ticket) {
			rest = append(rest, w)
			continue
		}
		l, err := w.ticket.Lease()
		var reject *router.RejectError
		waited := m.clock.now().Sub(w.since)
		switch {
		case err == nil:
			require.Less(t, waited, m.cfg.Queue.Timeout)
			require.Equal(t, waited, l.Decision().Waited)
			m.counts.Granted++
			served = append(served, w)
			continue
		case errors.Is(err, router.ErrQueueTimeout):
			require.GreaterOrEqual(t, waited, m.cfg.Queue.Timeout)
			m.counts.TimedOut++
		case errors.Is(err, router.ErrDeadline):
			require.False(t, w.req.Deadline.IsZero())
			m.counts.Missed++ // or Refused: counted together
		default:
			require.True(t, m.never(w.req, err), "%v", err)
			require.ErrorIs(t, err, m.fits(w.req), "the reason")
			m.counts.Refused++
		}
		require.ErrorAs(t, err, &reject)
		require.Nil(t, l)
	}
	slices.SortFunc(served, func(a, b *waiting) int {
		return int(number(a.ticket)) - int(number(b.ticket))
	})
	for i, w := range served {
		for _, other := range append(slices.Clone(served[i+1:]), rest...) {
			before := classRank[other.req.Class] < classRank[w.req.Class] ||
				other.req.Class == w.req.Class && other.req.Tenant == w.req.Tenant && slices.Index(m.wait, other) < slices.Index(m.wait, w)
			if before && other.req.Deadline.IsZero() { // of a deadline the pool's own word is of now
				require.Error(t, m.fits(other.req), "%+v was passed by by %+v", other.req.Request, w.req.Request)
			}
		}
		l, _ := w.ticket.Lease()
		m.take(t, w.req, l)
	}
	m.wait = rest
	for _, w := range m.wait {
		reason := m.fits(w.req)
		require.Error(t, reason, "a lost grant: %+v waits and fits", w.req.Request)
		if w.req.Deadline.IsZero() {
			require.False(t, m.never(w.req, reason), "it waits in vain: %v", reason)
			_, err := m.pool.Score(w.req.Request)
			require.ErrorIs(t, err, reason, "twin and pool differ")
		}
	}
}

func number(ticket *router.Ticket) uint64 {
	l, _ := ticket.Lease()
	return l.Decision().Number
}

func (m *queueMachine) cancel(t *rapid.T) {
	if len(m.wait) == 0 {
		t.Skip("nobody waits")
	}
	i := rapid.IntRange(0, len(m.wait)-1).Draw(t, "waiter")
	w := m.wait[i]
	m.wait = slices.Delete(slices.Clone(m.wait), i, i+1)
	w.ticket.Cancel()
	w.ticket.Cancel()
	require.True(t, done(w.ticket))
	l, err := w.ticket.Lease()
	require.Nil(t, l)
	require.Error(t, err)
	m.counts.Cancelled++
	m.settle(t)
}

func (m *queueMachine) end(t *rapid.T) {
	if len(m.leases) == 0 {
		t.Skip("no lease")
	}
	i := rapid.IntRange(0, len(m.leases)-1).Draw(t, "lease")
	l := m.leases[i]
	m.leases = slices.Delete(m.leases, i, i+1)
	cause := rapid.SampledFrom([]router.Cause{router.Completed, router.Completed, router.Failed, router.Cancelled}).Draw(t, "cause")
	if l.twin.tenant != "" {
		m.tokens[l.twin.tenant] -= l.tokens
	}
	m.twin.end(l.twin, cause)
	m.pool.Release(l.lease, router.Outcome{Cause: cause})
	m.settle(t)
}

func (m *queueMachine) event(t *rapid.T) {
	if len(m.leases) == 0 {
		t.Skip("no lease")
	}
	l := m.leases[rapid.IntRange(0, len(m.leases)-1).Draw(t, "lease")]
	l.lease.FirstToken()
	m.twin.firstToken(l.twin)
	m.settle(t)
}

func (m *queueMachine) observe(t *rapid.T) {
	ids := m.twin.ids()
	if len(ids) == 0 {
		t.Skip("no endpoint")
	}
	id := rapid.SampledFrom(ids).Draw(t, "id")
	s := telemetry.Snapshot{ObservedAt: m.clock.ago(rapid.SampledFrom([]time.Duration{0, 0, 0, 3 * time.Second, 20 * time.Second}).Draw(t, "lag"))}
	s.Running, s.KVShare = telemetry.V(float64(rapid.IntRange(0, 3).Draw(t, "running"))), telemetry.V(0.1)
	s.Waiting = telemetry.V(float64(rapid.IntRange(0, 2).Draw(t, "waiting")))
	if id != "e1" {
		s.WaitingTokens = telemetry.V(0)
	}
	if rapid.IntRange(0, 15).Draw(t, "asleep") == 0 {
		s.Asleep = telemetry.TriYes
	} else {
		s.Asleep = telemetry.TriNo
	}
	m.twin.observe(id, s)
	require.NoError(t, m.pool.Observe(id, s))
	m.settle(t)
}

func (m *queueMachine) readiness(t *rapid.T) {
	ids := m.twin.ids()
	if len(ids) == 0 {
		t.Skip("no endpoint")
	}
	id := rapid.SampledFrom(ids).Draw(t, "id")
	state := rapid.SampledFrom([]router.Reason{router.NoReason, router.NoReason, router.Draining, router.Asleep}).Draw(t, "state")
	m.twin.members[id].state = state
	call := map[router.Reason]func(string) error{router.NoReason: m.pool.Ready, router.Draining: m.pool.Drain, router.Asleep: m.pool.Sleep}
	require.NoError(t, call[state](id))
	m.settle(t)
}

func (m *queueMachine) advance(t *rapid.T) {
	m.clock.advance(rapid.SampledFrom([]time.Duration{
		time.Millisecond, 100 * time.Millisecond, time.Second, 4 * time.Second, 5 * time.Second, 11 * time.Second,
	}).Draw(t, "by"))
	next := m.pool.Tick()
	m.settle(t)
	for _, w := range m.wait { // nobody is forgotten
		require.False(t, next.IsZero())
		require.False(t, next.After(w.since.Add(m.cfg.Queue.Timeout)))
	}
}

func (m *queueMachine) invariant(t *rapid.T) {
	s := m.pool.Stats()
	q := s.Queue
	require.Equal(t, len(m.wait), q.Waiting)
	require.Equal(t, m.queued(), q.Tokens)
	classes, oldest := map[string]int{}, time.Duration(0)
	for _, w := range m.wait {
		classes[w.req.Class.String()]++
		oldest = max(oldest, m.clock.now().Sub(w.since))
	}
	if len(classes) == 0 {
		classes = nil
	}
	require.Equal(t, classes, q.ByClass)
	require.Equal(t, oldest, q.Oldest)
	want := m.counts
	require.Equal(t,
		[]uint64{want.Queued, want.Granted, want.Cancelled, want.Displaced, want.TimedOut, want.Missed + want.Refused},
		[]uint64{q.Queued, q.Granted, q.Cancelled, q.Displaced, q.TimedOut, q.Missed + q.Refused})
	require.Equal(t, q.Queued, uint64(q.Waiting)+q.Granted+q.Cancelled+q.Displaced+q.TimedOut+q.Missed+q.Refused)
	require.EqualValues(t, len(m.leases), s.OpenLeases)
	require.LessOrEqual(t, len(m.wait), m.cfg.Queue.Max)
	if limit := m.cfg.Queue.MaxTokens; limit > 0 {
		require.LessOrEqual(t, q.Tokens, limit)
	}
	for _, e := range s.Endpoints {
		if limit := m.cfg.Caps.Endpoint; limit > 0 && e.Freshness < telemetry.Aging {
			require.LessOrEqual(t, e.Own.Live.Requests, int64(limit))
		}
	}
}

// finish ends everything: nothing is left over, and every place can be taken again.
func (m *queueMachine) finish(t *rapid.T) {
	for len(m.wait) > 0 || len(m.leases) > 0 {
		for _, l := range m.leases {
			if l.twin.tenant != "" {
				m.tokens[l.twin.tenant] -= l.tokens
			}
		}
		leases, wait := m.leases, m.wait
		m.leases, m.wait = nil, nil
		for i, w := range wait {
			if w.ticket.Cancel(); i == 0 {
				w.ticket.Cancel()
			}
		}
		for _, l := range leases {
			l.lease.Cancel()
		}
	}
	empty(t, m.pool)
	require.NoError(t, m.pool.SetEndpoints([]router.Endpoint{{ID: "fresh"}}))
	for range max(1, min(m.cfg.Caps.Endpoint, m.cfg.Caps.Aggregate)) {
		granted(t, enqueue(t, m.pool, router.Request{PromptTokens: 1, MaxOutputTokens: 1}))
	}
}

func TestQueueMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newQueueMachine(t)
		t.Repeat(map[string]func(*rapid.T){
			"": m.invariant, "enqueue": m.enqueue, "enqueue-2": m.enqueue, "enqueue-3": m.enqueue, "cancel": m.cancel, "end": m.end, "end-2": m.end,
			"first-token": m.event, "observe": m.observe, "readiness": m.readiness, "advance": m.advance, "set": m.set,
			"add": func(t *rapid.T) {
				e := m.gen.endpoint(t, rapid.SampledFrom(machineEndpoints).Draw(t, "endpoint"))
				m.twin.add(e)
				require.NoError(t, m.pool.Add(e))
				m.settle(t)
			},
			"remove": func(t *rapid.T) {
				ids := m.twin.ids()
				if len(ids) == 0 {
					t.Skip("no endpoint")
				}
				id := rapid.SampledFrom(ids).Draw(t, "id")
				m.twin.remove(id)
				require.NoError(t, m.pool.Remove(id))
				m.settle(t)
			},
		})
		m.finish(t)
	})
}
