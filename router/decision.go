package router

import (
	"math"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// Decision is a choice and why it was made. A Decision is a plain value; its Candidates must not be written to.
type Decision struct {
	// Number counts the pool's granted decisions from 1. For a Score or a rejection it is the number that the next grant
	// will have.
	Number uint64 `json:"number"`
	// At is when it was made.
	At time.Time `json:"at"`
	// Policy is the name of the policy that chose.
	Policy string `json:"policy"`
	// Endpoint and Incarnation are the choice; empty for a rejection.
	Endpoint    string `json:"endpoint,omitempty"`
	Incarnation string `json:"incarnation,omitempty"`
	// Degraded says that no candidate had usable telemetry.
	Degraded bool `json:"degraded,omitempty"`
	// Probe says that the request finds out whether the endpoint works.
	Probe bool `json:"probe,omitempty"`
	// Waited is how long the request was in the queue.
	Waited time.Duration `json:"waited_ns,omitempty"`
	// Seed says that nothing but seeds was admitted, and that the request is bound to its endpoint as one.
	Seed bool `json:"seed,omitempty"`
	// PolicyFault says that the policy failed to choose, and the fallback rule did.
	PolicyFault bool `json:"policy_fault,omitempty"`
	// AffinityLifted says that affinity counted although every candidate was outside its pressure bounds.
	AffinityLifted bool `json:"affinity_lifted,omitempty"`
	// Freshness, Age, Cached, Withheld and Terms are those of the choice.
	Freshness telemetry.Class `json:"freshness"`
	Age       time.Duration   `json:"age_ns"`
	Cached    int64           `json:"cached"`
	Withheld  Reason          `json:"withheld,omitempty"`
	Terms     score.Terms     `json:"terms"`
	// RunnerUp is the best of the others by total cost, and RunnerUpTotal its cost, ms; empty when there was none.
	RunnerUp      string  `json:"runner_up,omitempty"`
	RunnerUpTotal float64 `json:"runner_up_total,omitempty"`
	// TieWindow in force, ms.
	TieWindow float64 `json:"tie_window_ms"`
	// SharedPart is the part, 0 to 1, of the requests' context that engines hold once for several of them, as far as reports tell: what
	// they have less than the ledger.
	SharedPart float64 `json:"shared_part,omitempty"`
	// MeanOutput is the mean output of the newest that have ended, tokens: after so many a slot of a full engine becomes free.
	MeanOutput float64 `json:"mean_output,omitempty"`
	// Considered and Excluded are the numbers of candidates that could and could not be chosen.
	Considered int `json:"considered"`
	Excluded   int `json:"excluded"`
	// Shadow is the record of the shadow policy; its zero value means that there was none.
	Shadow Shadow `json:"shadow,omitzero"`
	// Candidates is every endpoint as the decision saw it: best first from Score, else in the order of their ids, and only
	// where the request was sampled.
	Candidates []Candidate `json:"candidates,omitempty"`
}

// Shadow is what the shadow policy would have done. A Shadow is a plain value.
type Shadow struct {
	// Policy is its name.
	Policy string `json:"policy"`
	// Endpoint is what it proposes; empty when it failed, or was skipped since it had taken too long before.
	Endpoint string `json:"endpoint,omitempty"`
	// DeltaMS is the total cost of its proposal less that of the real choice, ms: negative when it is predicted better.
	DeltaMS float64 `json:"delta_ms"`
	// Failed and Skipped say why there is no proposal.
	Failed  bool `json:"failed,omitempty"`
	Skipped bool `json:"skipped,omitempty"`
}

// tick is the resolution at which decisions read the clock: the ages of readings are in whole ticks, so that figures can be
// kept from one decision to the next.
const tick = time.Millisecond

// open prepares a view of all endpoints for a request.
func (p *Pool) open(req *Request, at time.Time, now int64, publish bool) *View {
	v := p.views.Get().(*View)
	v.request, v.now, v.tries = *req, now-now%int64(tick), 0
	v.req = &v.request
	v.size = req.sizes(p.cfg.DefaultOutputTokens)
	v.adapter = 0
	if req.Adapter.ID != "" {
		v.adapter, v.anyDigest = adapterKey(req.Adapter.ID, req.Adapter.Digest), adapterKey(req.Adapter.ID, "")
	}
	v.sized = score.Request{Prompt: float64(v.size.prompt), Output: float64(v.size.output), Adapter: v.adapter != 0}
	v.plain = len(req.Exclude) == 0 && v.adapter == 0
	v.setReplicas(p.cfg.Replicas)
	v.capped = p.cfg.Caps.Waiting > 0 || p.cfg.Caps.Endpoint > 0 || p.cfg.Limit.Adaptive
	v.setDeadline(at)
	v.payer = p.payer(req)
	v.session, v.lead = 0, 0
	if req.Session != "" {
		v.session = xxhash.Sum64String(req.Session) | 1
	}
	if req.Prefix.Blocks() > 0 {
		v.lead = req.Prefix.Head(min(2, req.Prefix.Blocks())).Fingerprint() | 1
	}
	p.look(v, publish)
	return v
}

// look reads every endpoint anew. The order matters: whatever is granted after the counters were read shows in them when the
// lease is to be granted.
func (p *Pool) look(v *View, publish bool) {
	v.outdated, v.changed, v.blocked, v.dropped, v.youngest = false, v.changed[:0], false, false, telemetry.Fresh
	version := p.version.Load()
	v.grants = p.grants.Load()
	v.number, v.draws, v.stream = v.grants+1, 0, 0
	if set := p.set.Load(); set != v.set {
		v.set = set
		clear(v.cands[:cap(v.cands)]) // whatever was kept was of another set
	}
	v.tenant = p.openOf(v.payer)
	if v.req.Prefix.Blocks() > 0 {
		v.match = p.index.Match(v.req.Prefix, v.match) // after the set: every member of it has its slot
	} else {
		v.match = v.match[:0]
	}
	v.mean, v.sharing, v.outputs = math.Float64frombits(p.mean.Load()), p.sharing.value(), p.outputs.value()
	v.usual, v.ledger = p.usual.value(), p.ledgerMeans(v, publish)
	v.kinds, v.quotes = v.kinds[:0], v.quotes[:0]
	for i := range v.set.kinds {
		k := &v.set.kinds[i]
		v.kinds = append(v.kinds, k.barrier(v.req))
		v.quotes = append(v.quotes, p.model.Quote(&k.profile, &v.sized))
	}
	v.grow(len(v.set.list))
	for i := range v.cands {
		v.read(i)
	}
	v.version = version
	v.finalize()
}

func (p *Pool) close(v *View) {
	v.request = Request{}
	p.views.Put(v)
}

// rejected is the error of a request that is not placed: late, or since nobody can be chosen.
func (p *Pool) rejected(v *View, late bool, d Decision) *RejectError {
	if late {
		return &RejectError{Reason: ErrDeadline, Decision: d}
	}
	reason := v.rejection()
	return &RejectError{Reason: reason, Because: v.because(), RetryAfter: p.retryAfter(v, reason), Decision: d}
}

// because is the one reason for which every endpoint is left out.
func (v *View) because() Reason {
	if v.unbound {
		return SeedUnbound
	}
	if len(v.cands) == 0 {
		return NoReason
	}
	reason := v.cands[0].excluded()
	for i := range v.cands {
		if v.cands[i].excluded() != reason {
			return NoReason
		}
	}
	return reason
}

// choose asks the policy and counts its faults. at is -1 when there is nobody to choose.
func (p *Pool) choose(v *View) (at int, fault bool) {
	if at, fault = v.choose(p.cfg.Policy); fault {
		p.counters.policyFaults.Add(1)
	}
	return at, fault
}

func (v *View) choose(policy Policy) (at int, fault bool) {
	if v.choosable == 0 {
		return -1, false
	}
	if at, ok := ask(policy, v); ok {
		return at, false
	}
	if v.seeding { // bound to an idle endpoint, or not admitted
		v.unbound = true
		return -1, true
	}
	return v.LeastOutstanding(), true
}

// ask calls a policy and survives it.
func ask(policy Policy, v *View) (at int, ok bool) {
	if b, builtin := policy.(*builtin); builtin {
		at = b.choose(v)
		return at, at >= 0
	}
	defer func() {
		if recover() != nil {
			at, ok = -1, false
		}
	}()
	at = policy.Choose(v)
	return at, at >= 0 && at < len(v.cands) && v.Choosable(at)
}

// rejection says why nobody can be chosen.
func (v *View) rejection() error {
	if v.eligible > 0 {
		if v.cfg.FailClosed && v.degraded {
			return ErrTelemetryIncomplete
		}
		if v.hopeless() {
			return ErrDeadline
		}
		for i := range v.cands {
			if v.cands[i].limit == SeedTelemetry {
				return ErrTelemetryIncomplete
			}
		}
		return ErrSaturated
	}
	tooLong, others := false, false
	for i := range v.cands {
		c := &v.cands[i]
		switch c.excluded() {
		case ModelNotServed, RoleNotServed, Excluded:
		default: // whatever else it is left out for may pass, its size does not
			small := c.load.KVCapacity > 0 && v.sized.Prompt+1 > c.load.KVCapacity
			tooLong, others = tooLong || small, others || !small
		}
	}
	if tooLong && !others {
		return ErrTooLong
	}
	return ErrNoEndpoints
}

// verdict is what a lease keeps of a decision: the parts of a [Decision] that cannot be looked up later.
type verdict struct {
	number               uint64
	terms                score.Terms
	age                  time.Duration
	cached               int64
	sharing, outputs     float64
	runnerUp             string
	runnerUpTotal        float64
	considered, excluded int32
	freshness            telemetry.Class
	withheld             Reason
	degraded             bool
	probe                bool
	seed                 bool
	waited               time.Duration
	fault                bool
	lifted               bool
	shadow               *Shadow
	candidates           []Candidate
}

// verdict writes down the view's choice; with full, all candidates too.
func (v *View) verdict(full bool) verdict {
	d := verdict{
		number: v.number, degraded: v.degraded, fault: v.fault, lifted: v.lifted, sharing: v.sharing, outputs: v.outputs,
		seed: v.seeding && v.at >= 0, considered: int32(v.choosable), excluded: int32(len(v.cands) - v.choosable),
	}
	if v.at >= 0 {
		c := &v.cands[v.at]
		d.freshness, d.age, d.cached, d.withheld = c.freshness, time.Duration(c.age), c.cached, c.withheld
		d.terms, d.probe = v.termsOf(v.at), c.half || c.due
		next := -1
		for i, g := range v.grade {
			if i != v.at && g != gradeOut && (next < 0 || v.total[i] < v.total[next]) {
				next = i
			}
		}
		if next >= 0 {
			d.runnerUp, _ = v.name(next)
			d.runnerUpTotal = v.total[next]
		}
	}
	if full {
		d.candidates = make([]Candidate, len(v.cands))
		profiles := make([]score.Profile, len(v.cands))
		for i := range v.cands {
			d.candidates[i] = v.export(i, &profiles[i])
		}
	}
	return d
}

// decision is the public form of a verdict.
func (p *Pool) decision(d *verdict, id, incarnation string, at time.Time) Decision {
	out := Decision{
		Number: d.number, At: at, Policy: p.cfg.Policy.Name(), Endpoint: id, Incarnation: incarnation, Degraded: d.degraded,
		Probe: d.probe, Seed: d.seed, Waited: d.waited, PolicyFault: d.fault, AffinityLifted: d.lifted,
		Freshness: d.freshness, Age: d.age, Cached: d.cached, Withheld: d.withheld, Terms: d.terms, RunnerUp: d.runnerUp,
		RunnerUpTotal: d.runnerUpTotal, TieWindow: ms(p.cfg.TieWindow),
		SharedPart: d.sharing, MeanOutput: d.outputs,
		Considered: int(d.considered), Excluded: int(d.excluded), Candidates: d.candidates,
	}
	if d.shadow != nil {
		out.Shadow = *d.shadow
	}
	return out
}

// decisionOf is the decision of a view that became no lease.
func (p *Pool) decisionOf(v *View, at time.Time) Decision {
	d := v.verdict(true)
	id, incarnation := "", ""
	if v.at >= 0 {
		id, incarnation = v.name(v.at)
	}
	return p.decision(&d, id, incarnation, at)
}

func (v *View) name(i int) (id, incarnation string) {
	if v.recorded != nil {
		return v.recorded[i].ID, v.recorded[i].Incarnation
	}
	e := v.set.list[i].live
	return e.id, e.incarnation
}

// Score ranks every endpoint for req and changes nothing: no lease, no prefix, no counter, no random number. The
// candidates of the decision come best first: the choice, then the others by total cost, then the excluded ones. Where nobody
// can be chosen, or the deadline has passed, it returns them all the same, with a [*RejectError].
func (p *Pool) Score(req Request) (Decision, error) {
	if err := req.Validate(); err != nil {
		return Decision{}, err
	}
	t, now := p.now()
	v := p.open(&req, t, now, false)
	defer p.close(v)
	v.at, v.fault = v.choose(p.cfg.Policy) // not counted: a Score leaves no trace
	d := p.decisionOf(v, t)
	d.rank(d.Candidates)
	if late := req.late(t); v.at < 0 || late {
		return d, p.rejected(v, late, d)
	}
	return d, nil
}
