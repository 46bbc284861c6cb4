package router_test

import (
	"math"
	"slices"
	"time"

	"github.com/isobar-go/isobar/reserve"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

// twin is a pool without any idea of speed: it keeps every lease with everything that was ever taken off it, every prompt that
// was ever routed, and computes each figure from its definition. It says who may be chosen and not who is.
type twin struct {
	cfg      router.Config // effective
	now      func() time.Time
	members  map[string]*twinEndpoint
	accounts []*twinAccount
	exact    float64 // mean prompt of about 32 requests
	mean     float64 // the one in use, which follows in steps of 5 %
	granted  int
	ended    [3]int // by cause
}

type twinAccount struct {
	id, incarnation string
	closed          bool
	leases          []*twinLease
	observed        time.Time
	restarted       time.Time
}

type twinLease struct {
	account            *twinAccount
	endpoint           *twinEndpoint
	at                 time.Time
	prefill, decode    int64 // still held
	kv, expected       int64
	generated          int64
	live, first, probe bool
	tenant             string
	taken              []twinTaken
}

type twinTaken struct {
	at   time.Time
	load reserve.Load
}

type twinReading struct {
	said, known bool
	value       float64
	at          time.Time
}

const (
	twinRunning = iota
	twinWaiting
	twinTokens
	twinKV
	twinFigures
)

type twinEndpoint struct {
	conf     router.Endpoint
	account  *twinAccount
	state    router.Reason // NoReason, Draining or Asleep
	readings [twinFigures]twinReading
	health   struct {
		bad bool
		at  time.Time
	}
	asleep struct {
		yes bool
		at  time.Time
	}
	epoch   string
	epochAt time.Time
	epochs  bool
	prompts [][]int

	open     bool
	until    time.Time
	openedAt time.Time
	openFor  time.Duration
	outcomes []bool // failed
	probes   int
	probed   time.Time     // when the last of them was granted
	seen     []time.Time   // times of its reports
	interval time.Duration // after which it says to report again
	failedAt time.Time     // newest failure that counts
	heard    time.Time     // time of the newest report
	cleared  time.Time     // when its prompts were forgotten, other than by a restart
}

func newTwin(cfg router.Config, now func() time.Time) *twin {
	cfg.VisibilityLag = max(cfg.VisibilityLag, 0)
	mean := float64(cfg.MeanPromptTokens)
	return &twin{cfg: cfg, now: now, members: map[string]*twinEndpoint{}, exact: mean, mean: mean}
}

func (w *twin) ids() []string {
	var ids []string
	for id := range w.members {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (w *twin) add(e router.Endpoint) {
	if old := w.members[e.ID]; old != nil {
		if old.conf.Incarnation == e.Incarnation {
			old.conf = e
			return
		}
		w.remove(e.ID)
	}
	n := &twinEndpoint{conf: e}
	for _, a := range w.accounts {
		if a.id == e.ID && a.incarnation == e.Incarnation && slices.ContainsFunc(a.leases, func(l *twinLease) bool { return l.live }) {
			a.closed, n.account = false, a
		}
	}
	if n.account == nil {
		n.account = &twinAccount{id: e.ID, incarnation: e.Incarnation}
		w.accounts = append(w.accounts, n.account)
	}
	w.members[e.ID] = n
}

func (w *twin) remove(id string) {
	w.members[id].account.closed = true
	delete(w.members, id)
}

func (w *twin) set(list []router.Endpoint) {
	for _, id := range w.ids() {
		if !slices.ContainsFunc(list, func(e router.Endpoint) bool { return e.ID == id }) {
			w.remove(id)
		}
	}
	for _, e := range list {
		w.add(e)
	}
}

// observe merges a snapshot: per figure the newest word wins.
func (w *twin) observe(id string, s telemetry.Snapshot) (dropped bool) {
	e, now := w.members[id], w.now()
	at := s.ObservedAt
	if at.After(now) {
		return true
	}
	took := false
	if s.Epoch != "" {
		newer := !e.epochs || at.After(e.epochAt)
		if e.epochs && e.epoch != s.Epoch {
			if !newer {
				return true
			}
			for f := range e.readings {
				if !e.readings[f].at.After(at) {
					e.readings[f] = twinReading{}
				}
			}
			if !e.health.at.After(at) {
				e.health.bad, e.health.at = false, time.Time{}
			}
			if !e.asleep.at.After(at) {
				e.asleep.yes, e.asleep.at = false, time.Time{}
			}
			if took = true; e.cleared.IsZero() || !e.cleared.After(e.heard) {
				e.prompts = nil
			}
			e.outcomes, e.openFor, e.until = nil, 0, now
			if at.After(e.openedAt) {
				e.openedAt = at
			}
			if at.After(e.account.restarted) {
				e.account.restarted = at
			}
		}
		if newer {
			e.epochs, e.epoch, e.epochAt = true, s.Epoch, at
			took = took || !s.Running.Known() && !s.Waiting.Known() && !s.WaitingTokens.Known() && !s.KVShare.Known()
		}
	}
	for f, r := range [twinFigures]telemetry.Reading{s.Running, s.Waiting, s.WaitingTokens, s.KVShare} {
		v, ok := r.Value()
		held := e.readings[f]
		valid := v >= 0 && !math.IsInf(v, 0)
		if !ok || held.said && !at.After(held.at) && (held.known || !valid || !at.Equal(held.at)) {
			continue
		}
		took = true
		if f == twinKV {
			v = min(v, 1)
		}
		if !valid {
			v = 0
		}
		e.readings[f] = twinReading{said: true, known: valid, value: v, at: at}
	}
	if s.Health != telemetry.HealthUnknown && at.After(e.health.at) {
		e.health.bad, e.health.at, took = s.Health != telemetry.HealthOK, at, true
	}
	if s.Asleep != telemetry.TriUnknown && at.After(e.asleep.at) {
		e.asleep.yes, e.asleep.at, took = s.Asleep == telemetry.TriYes, at, true
	}
	if !took {
		return true
	}
	_, _, _, since := w.inUse(e)
	if since.After(e.account.observed) {
		e.account.observed = since
	}
	if n := len(e.seen); !since.IsZero() && (n == 0 || since.After(e.seen[n-1])) { // also of one that was away, with its account
		e.seen = append(e.seen, since)
		if s.Interval > 0 {
			e.interval = s.Interval
		}
	}
	if at.After(e.heard) && s.Epoch != "" {
		e.heard = at
	}
	return false
}

// sums are the three sums of an account by their definition.
func (w *twin) sums(a *twinAccount) reserve.Sums {
	var s reserve.Sums
	add := func(to *reserve.Load, l reserve.Load) {
		to.Requests += l.Requests
		to.Prefill += l.Prefill
		to.Decode += l.Decode
		to.KV += l.KV
	}
	edge := a.observed.Add(-w.cfg.VisibilityLag)
	for _, l := range a.leases {
		if l.live {
			held := reserve.Load{Requests: 1, Prefill: l.prefill, Decode: l.decode, KV: l.kv}
			add(&s.Live, held)
			if a.observed.IsZero() || !l.at.Before(edge) {
				add(&s.Unobserved, held)
			}
		}
		if a.observed.IsZero() || !l.at.Before(edge) || l.at.Before(a.restarted) {
			continue
		}
		for _, t := range l.taken {
			if !t.at.Before(a.observed) {
				add(&s.Departed, t.load)
			}
		}
	}
	return s
}

func (w *twin) openOf(tenant string) int {
	n := 0
	for _, a := range w.accounts {
		for _, l := range a.leases {
			if l.live && l.tenant == tenant && tenant != "" {
				n++
			}
		}
	}
	return n
}

func (w *twin) class(e *twinEndpoint, r twinReading) telemetry.Class {
	if !r.known {
		return telemetry.Missing
	}
	limits, gap := w.cfgLimits(), e.interval
	if n := len(e.seen); n >= 2 { // the median of the last three gaps, or with fewer the greatest, of what the host says too
		var gaps []time.Duration
		for i := n - 1; i >= max(1, n-3); i-- {
			gaps = append(gaps, e.seen[i].Sub(e.seen[i-1]))
		}
		slices.Sort(gaps)
		if len(gaps) == 3 {
			gap = gaps[1]
		} else {
			gap = max(gap, gaps[len(gaps)-1])
		}
	}
	gap = min(gap, 30*time.Second)
	limits.FreshFor, limits.StaleAfter = max(limits.FreshFor, 2*gap+gap/2), max(limits.StaleAfter, 5*gap)
	return limits.Classify(w.now().Sub(r.at))
}

func (w *twin) cfgLimits() telemetry.Limits {
	return telemetry.Limits{FreshFor: w.cfg.Freshness.FreshFor, StaleAfter: w.cfg.Freshness.StaleAfter}
}

// twinView is what the twin knows of one endpoint for one request.
type twinView struct {
	id                             string
	sums                           reserve.Sums
	requests, waiting, pending, kv twinFigure
	freshness                      telemetry.Class
	observed, avoided, half        bool
	starting                       int
	barrier, excluded              router.Reason
	cached                         int64
	choosable                      bool
}

type twinFigure struct {
	class telemetry.Class
	value float64
}

func (f twinFigure) usable() bool { return f.class >= telemetry.Aging }

// twinRequest is a request with the blocks of its prompt in clear.
type twinRequest struct {
	router.Request
	blocks []int
}

func (r *twinRequest) prompt() int64 {
	if r.PromptTokens > 0 {
		return r.PromptTokens
	}
	return int64(16 * len(r.blocks))
}

func (w *twin) output(r *twinRequest) int64 {
	n := r.ExpectedOutputTokens
	if n == 0 {
		n = r.MaxOutputTokens
	}
	if n == 0 {
		n = w.cfg.DefaultOutputTokens
	}
	if r.MaxOutputTokens > 0 {
		n = min(n, r.MaxOutputTokens)
	}
	return n
}

// view says who can serve the request, and what every figure is, by definition.
func (w *twin) view(r *twinRequest) (views []twinView, degraded bool, reason error) {
	total, usable, reported, eligible := 0.0, false, false, 0
	for _, id := range w.ids() {
		v := w.look(w.members[id], r)
		if v.requests.usable() {
			total += v.requests.value
		} else {
			total += float64(w.cfg.Replicas) * float64(v.sums.Live.Requests)
		}
		if v.barrier == router.NoReason {
			eligible++
			usable = usable || v.freshness >= telemetry.Aging
			reported = reported || v.observed && v.freshness >= telemetry.Aging
		}
		views = append(views, v)
	}
	pool := router.NoReason
	switch caps := w.cfg.Caps; {
	case caps.Aggregate > 0 && total >= float64(caps.Aggregate):
		pool = router.CapAggregate
	case caps.Tenant > 0 && r.Tenant != "" && w.openOf(r.Tenant) >= caps.Tenant:
		pool = router.CapTenant
	}
	free, preferred := 0, 0
	for i := range views {
		v := &views[i]
		if v.excluded = v.barrier; v.excluded == router.NoReason {
			v.excluded = w.limit(v, !usable, reported, pool)
		}
		if v.excluded == router.NoReason {
			free++
			if !v.avoided {
				preferred++
			}
		}
	}
	for i := range views {
		v := &views[i]
		v.choosable = v.excluded == router.NoReason && (!v.avoided || preferred == 0)
	}
	switch {
	case !r.Deadline.IsZero() && !w.now().Before(r.Deadline):
		reason = router.ErrDeadline
	case free > 0:
	case eligible > 0 && w.cfg.FailClosed && !usable:
		reason = router.ErrTelemetryIncomplete
	case eligible > 0:
		reason = router.ErrSaturated
	default:
		reason = router.ErrNoEndpoints
		mayServe := func(v twinView) bool {
			return v.barrier != router.ModelNotServed && v.barrier != router.RoleNotServed && v.barrier != router.Excluded
		}
		small := func(v twinView) bool {
			capacity := w.members[v.id].conf.Profile.KVCapacity
			return capacity > 0 && r.prompt()+1 > capacity
		}
		long := func(v twinView) bool { return mayServe(v) && small(v) }
		other := func(v twinView) bool { return mayServe(v) && !small(v) }
		if slices.ContainsFunc(views, long) && !slices.ContainsFunc(views, other) {
			reason = router.ErrTooLong
		}
	}
	return views, eligible > 0 && !usable, reason
}

func (w *twin) limit(v *twinView, degraded, reported bool, pool router.Reason) router.Reason {
	caps := w.cfg.Caps
	requests := float64(w.cfg.Replicas) * float64(v.sums.Live.Requests)
	if v.requests.usable() {
		requests = v.requests.value
	}
	waiting := -1.0
	if v.waiting.usable() {
		waiting = v.waiting.value
	} else if v.waiting.class == telemetry.Stale {
		waiting = float64(w.cfg.Replicas) * float64(v.sums.Unobserved.Requests)
	}
	switch {
	case w.cfg.FailClosed && degraded:
		return router.TelemetryMissing
	case !v.observed && reported && v.starting >= w.cfg.UnobservedMax:
		return router.UnobservedLimit
	case pool != router.NoReason:
		return pool
	case caps.Waiting > 0 && waiting >= float64(caps.Waiting):
		return router.CapWaiting
	case caps.Endpoint > 0 && requests >= float64(caps.Endpoint):
		return router.CapEndpoint
	}
	return router.NoReason
}

func (w *twin) look(e *twinEndpoint, r *twinRequest) twinView {
	v := twinView{id: e.conf.ID, sums: w.sums(e.account), barrier: router.NoReason}
	w.figures(e, &v)
	for _, r := range e.readings {
		v.observed = v.observed || r.known
	}
	for _, p := range e.prompts {
		n := 0
		for n < len(p) && n < len(r.blocks) && p[n] == r.blocks[n] {
			n++
		}
		v.cached = max(v.cached, min(int64(16*n), r.prompt()))
	}
	for _, l := range e.account.leases {
		if l.live && !l.first {
			v.starting++
		}
	}
	v.barrier, v.avoided, v.half = w.barrier(e, r)
	return v
}

// inUse are the counts that are not far older than the newest of them, without a token figure that a newer count retires, and the
// time since which all of them can have held; without any, that of the KV figure.
func (w *twin) inUse(e *twinEndpoint) (running, waiting, tokens twinReading, since time.Time) {
	used := []twinReading{e.readings[twinRunning], e.readings[twinWaiting], e.readings[twinTokens]}
	newest := time.Time{}
	for _, r := range used {
		if r.known && r.at.After(newest) {
			newest = r.at
		}
	}
	for i, r := range used {
		if !r.known || newest.Sub(r.at) > w.cfg.Freshness.StaleAfter {
			used[i] = twinReading{}
		}
	}
	if used[1].known && used[2].at.Before(used[1].at) {
		used[2] = twinReading{}
	}
	for _, r := range used {
		if r.known && (since.IsZero() || r.at.Before(since)) {
			since = r.at
		}
	}
	if kv := e.readings[twinKV]; since.IsZero() && kv.known {
		since = kv.at
	}
	return used[0], used[1], used[2], since
}

func (w *twin) figures(e *twinEndpoint, v *twinView) {
	running, waiting, tokens, since := w.inUse(e)
	kv := e.readings[twinKV]
	replicas := float64(w.cfg.Replicas)
	live, unobserved, departed := v.sums.Live, v.sums.Unobserved, v.sums.Departed

	both := running
	if both.value += waiting.value; running.known && waiting.known {
		both.at = running.at
		if waiting.at.Before(both.at) {
			both.at = waiting.at
		}
	} else if waiting.known {
		both = waiting
	}
	v.requests = twinFigure{w.class(e, both), max(float64(live.Requests), both.value-float64(departed.Requests)+replicas*float64(unobserved.Requests))}
	v.waiting = twinFigure{w.class(e, waiting), waiting.value + replicas*float64(unobserved.Requests)}

	pending := tokens
	if !tokens.known || waiting.known && waiting.at.After(tokens.at) {
		pending = waiting
		pending.value *= w.mean
	}
	v.pending = twinFigure{w.class(e, pending), max(float64(live.Prefill), pending.value-float64(departed.Prefill)+replicas*float64(unobserved.Prefill))}

	v.kv = twinFigure{w.class(e, kv), kv.value}
	if capacity := float64(e.conf.Profile.KVCapacity); capacity > 0 {
		v.kv.value = max(float64(live.Prefill+live.Decode), kv.value*capacity-float64(departed.KV)+replicas*float64(unobserved.KV))
		if kv.known && kv.at.Before(since) {
			v.kv.value = max(v.kv.value, kv.value*capacity+replicas*float64(live.KV))
		}
	}
	if v.freshness = v.requests.class; !running.known && !waiting.known {
		v.freshness = v.pending.class
	}
}

func (w *twin) barrier(e *twinEndpoint, r *twinRequest) (why router.Reason, avoided, half bool) {
	aged := func(at time.Time) bool { return w.cfgLimits().Classify(w.now().Sub(at)) >= telemetry.Aging }
	both := func(x router.Role) bool { return x == "" || x == router.RoleBoth }
	listed := slices.Contains(r.Exclude, e.conf.ID)
	capacity := e.conf.Profile.KVCapacity
	switch {
	case e.state != router.NoReason:
		return e.state, false, false
	case e.asleep.yes && aged(e.asleep.at):
		return router.Asleep, false, false
	case e.health.bad && aged(e.health.at):
		return router.Unhealthy, false, false
	case r.Model != "" && len(e.conf.Models) > 0 && !slices.Contains(e.conf.Models, r.Model):
		return router.ModelNotServed, false, false
	case !both(e.conf.Role) && e.conf.Role != r.Role:
		return router.RoleNotServed, false, false
	case capacity > 0 && r.prompt()+1 > capacity:
		return router.TooLong, false, false
	case e.open && (w.now().Before(e.until) || e.probes > 0 && w.now().Sub(e.probed) < w.cfg.Circuit.MaxOpenFor):
		return router.CircuitOpen, false, false
	case listed && r.ExcludeHard:
		return router.Excluded, false, e.open
	}
	return router.NoReason, listed, e.open
}

// grant books a lease on an endpoint.
func (w *twin) grant(id string, r *twinRequest, v twinView) *twinLease {
	e := w.members[id]
	l := &twinLease{
		account: e.account, endpoint: e, at: w.now(), live: true, tenant: r.Tenant, probe: v.half,
		prefill: r.prompt() - v.cached, decode: w.output(r), expected: w.output(r), kv: r.prompt() + w.output(r),
	}
	if r.prompt() > 0 { // a prompt of unknown length teaches nothing
		w.exact += (float64(l.prefill) - w.exact) / 32
	}
	if math.Abs(w.exact-w.mean) > w.mean/20 {
		w.mean = w.exact
	}
	if l.probe {
		e.probes++
		e.probed = w.now()
	}
	e.account.leases = append(e.account.leases, l)
	if len(r.blocks) > 0 {
		e.prompts = append(e.prompts, r.blocks)
	}
	w.granted++
	return l
}

func (w *twin) firstToken(l *twinLease) {
	if l.live && !l.first {
		l.first = true
		l.taken = append(l.taken, twinTaken{w.now(), reserve.Load{Prefill: l.prefill}})
		l.prefill = 0
		w.alive(l)
	}
}

// alive ends the probe of a circuit: a token has shown that the endpoint works.
func (w *twin) alive(l *twinLease) {
	if l.probe {
		l.endpoint.outcome(w, l, false)
		l.endpoint.probes--
		l.probe = false
	}
}

func (w *twin) progress(l *twinLease, tokens int64) {
	if !l.live || tokens <= l.generated {
		return
	}
	w.firstToken(l)
	left := max(l.expected-tokens, 0)
	l.taken = append(l.taken, twinTaken{w.now(), reserve.Load{Decode: l.decode - left}})
	l.decode, l.generated = left, tokens
}

func (w *twin) end(l *twinLease, cause router.Cause) {
	if !l.live {
		return
	}
	l.live = false
	l.taken = append(l.taken, twinTaken{w.now(), reserve.Load{Requests: 1, Prefill: l.prefill, Decode: l.decode, KV: l.kv}})
	w.ended[cause]++
	e := l.endpoint
	if cause != router.Cancelled {
		e.outcome(w, l, cause == router.Failed)
	}
	if l.probe {
		e.probes--
	}
}

// outcome feeds the circuit breaker.
func (e *twinEndpoint) outcome(w *twin, l *twinLease, failed bool) {
	if l.at.Before(e.openedAt) {
		return
	}
	trip := func(d time.Duration) {
		e.open, e.openFor, e.openedAt, e.until = true, d, w.now(), w.now().Add(d)
		e.prompts, e.cleared = nil, w.now()
	}
	if e.open {
		switch {
		case !l.probe:
		case failed:
			trip(max(min(2*e.openFor, w.cfg.Circuit.MaxOpenFor), w.cfg.Circuit.OpenFor))
		default:
			e.open, e.outcomes = false, nil
		}
		return
	}
	if n := len(e.outcomes); failed {
		if n > 0 && e.outcomes[n-1] && l.at.Before(e.failedAt) && w.now().Sub(e.failedAt) < 100*time.Millisecond {
			return // with the one before
		}
		e.failedAt = w.now()
	}
	e.outcomes = append(e.outcomes, failed)
	if !failed {
		return
	}
	newest := func(n int) (all bool, failures int) {
		if len(e.outcomes) < n {
			return false, 0
		}
		for _, f := range e.outcomes[len(e.outcomes)-n:] {
			if f {
				failures++
			}
		}
		return true, failures
	}
	row, inRow := newest(w.cfg.Circuit.Failures)
	full, half := newest(w.cfg.Circuit.Window)
	if row && inRow == w.cfg.Circuit.Failures || full && 2*half >= w.cfg.Circuit.Window {
		trip(w.cfg.Circuit.OpenFor)
	}
}
