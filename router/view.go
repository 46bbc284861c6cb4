package router

import (
	"math"
	"time"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// View is one immutable picture of all endpoints, as a policy sees it for one request: the same for the policy that
// decides and for the one in its shadow. A View is valid during the call it is passed to and must not be kept; it may be
// read by one goroutine.
type View struct {
	// By endpoint, in the order of the ids: the order of a host's list has no meaning.
	cands []cand
	flags []flag
	grade []grade
	load  []float64 // requests there, for the aggregate cap
	queue []float64 // ms
	own   []float64 // own predicted completion, ms
	total []float64 // ms

	recorded []Candidate   // of a replay, else nil
	match    []int64       // leading cached tokens by slot of the prefix index
	kinds    []Reason      // by kind of endpoint: why it cannot serve the request
	quotes   []score.Quote // by kind of endpoint

	cfg   *Config
	clock func() int64 // nil in a replay
	model *score.Model
	decay *decay
	set   *endpointSet

	now     int64  // ns on the pool's scale
	version uint64 // of the endpoint set and its readiness
	grants  uint64 // leases granted when the first figure was read
	number  uint64 // of the decision
	stream  uint64 // which of the decision's random streams Draw uses
	draws   uint64

	req       *Request // = &request, but in a replay
	request   Request
	size      sizes
	sized     score.Request
	session   uint64
	lead      uint64         // hash of the first blocks of the prefix
	adapter   uint64         // key of the requested adapter, 0 = none
	anyDigest uint64         // key of an adapter of that name whose digest is not reported
	payer     uint64         // hash of the request's tenant where tenants are capped; 0 = nobody in particular
	tenant    admission.Open // of the request's tenant
	gate      *gate          // nil where seeding is off, and in a replay
	shares    *shares        // nil where nothing is kept for anybody, and in a replay
	seeding   bool           // nothing is admitted but seeds
	unbound   bool           // the policy did not choose an endpoint that could take the seed
	blocked   bool           // what is left is reserved for more important classes
	late      score.Terms    // scratch of completion
	dropped   bool           // somebody had room and would have completed it too late
	remaining float64        // ms to the request's deadline; +Inf = it has none
	capped    bool           // endpoints have caps
	plain     bool           // no exclusions and no adapter: most endpoints can be read in one go
	replicas  float64
	alike     float64         // of what another gateway has at an endpoint, what is like what this one has, for all others
	spread    float64         // likewise what is spread evenly
	ledger    *tickMeans      // nil = no other gateway
	usual     float64         // silence, ms
	sharing   float64         // part of the requests' memory that is shared
	outputs   float64         // output of a request, mean
	youngest  telemetry.Class // of readings with which affinity counts
	mean      float64         // prompt length where only a count of waiting requests is known, tokens

	at    int  // the choice, -1 = nobody
	fault bool // the policy failed to make it
	tries int  // how often it was overtaken

	outdated bool    // everything must be looked at again
	changed  []int32 // places of the endpoints that must

	// Derived by finalize.
	eligible  int // could serve, capped or not
	choosable int // can be chosen
	avoided   int // choosable, but the caller would rather not
	requests  float64
	degraded  bool
	any, all  flag // of the candidates' flags, joined by or and by and
	ordinary  bool // all can be chosen, none is warm, and no cap is on the whole pool: a change of one concerns no other
	lifted    bool // affinity counts although every candidate is outside its bounds
	poolCap   Reason
}

// flag holds the yes-and-no facts of a candidate that the decision asks for in loops.
type flag uint16

const (
	isEligible flag = 1 << iota
	isUsable        // its load readings take part
	isSuspect
	isObserved // has reported at least once
	isAvoided
	isWarm   // has cached tokens
	isCosted // its terms are those of its figures
	isUnsure // a figure of it is substituted by what the others tell
	isCapped // by its own caps
	isIdle   // could take a seed
)

// Len is the number of endpoints, excluded ones included.
func (v *View) Len() int { return len(v.cands) }

// At returns candidate i, 0 <= i < Len, in the order of the endpoints' ids.
func (v *View) At(i int) Candidate { return v.export(i, new(score.Profile)) }

// Choosable says whether candidate i may be chosen.
func (v *View) Choosable(i int) bool {
	return v.grade[i] != gradeOut && (v.avoided == 0 || v.flags[i]&isAvoided == 0 || v.avoided == v.choosable)
}

// PromptTokens is the length of the prompt, tokens.
func (v *View) PromptTokens() int64 { return v.size.prompt }

// OutputTokens is the expected length of the output, tokens.
func (v *View) OutputTokens() int64 { return v.size.output }

// Class is the priority class of the request.
func (v *View) Class() Class { return v.req.Class }

// SessionHash identifies the request's session, or where it has none the head of its prompt; 0 = neither is known.
func (v *View) SessionHash() uint64 {
	if v.session != 0 {
		return v.session
	}
	return v.lead
}

// PrefixHash identifies the first two blocks of the request's prompt in their scope; 0 = unknown.
func (v *View) PrefixHash() uint64 { return v.lead }

// TieWindow is how much worse than the best a candidate may be and still be drawn, ms.
func (v *View) TieWindow() float64 { return ms(v.cfg.TieWindow) }

// Degraded says that no candidate has usable telemetry.
func (v *View) Degraded() bool { return v.degraded }

// Draw returns the next number of this decision's own random stream, uniform in [0, n); 0 for n < 2. The stream depends
// on the seed and the number of the decision alone.
func (v *View) Draw(n int) int {
	if n < 2 {
		return 0
	}
	v.draws++
	x := mix(v.cfg.Seed ^ mix(v.number^mix(v.draws^v.stream<<32)))
	return int((x >> 33) % uint64(n))
}

// mix is the finaliser of the splitmix64 generator (Steele, Lea, Flood 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// grow makes room for n candidates.
func (v *View) grow(n int) {
	if cap(v.cands) < n {
		v.cands, v.flags, v.grade = make([]cand, n), make([]flag, n), make([]grade, n)
		v.load, v.queue, v.own, v.total = make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
	}
	v.cands, v.flags, v.grade = v.cands[:n], v.flags[:n], v.grade[:n]
	v.load, v.queue, v.own, v.total = v.load[:n], v.queue[:n], v.own[:n], v.total[:n]
}

// finalize derives everything that depends on more than one endpoint: who is left, what unknown figures count as, the
// costs, and the bounds on affinity.
func (v *View) finalize() {
	v.count()
	v.cost()
	v.bound()
}

// count finds out who can be chosen.
func (v *View) count() {
	v.eligible, v.choosable, v.avoided, v.requests = 0, 0, 0, 0
	any, all := flag(0), ^flag(0)
	for _, f := range v.flags {
		any, all = any|f, all&f
	}
	capped := v.cfg.Caps.Aggregate > 0
	if capped {
		for _, requests := range v.load {
			v.requests += requests
		}
	}
	v.any, v.all = any, all
	v.degraded = any&(isEligible|isUsable) == isEligible // what is not eligible has no flag that says it is usable
	v.poolCap = NoReason
	if v.cfg.Caps.CheckPool(v.requests) != admission.Admitted {
		v.poolCap = CapAggregate
	} else if v.payer != 0 {
		switch v.cfg.Caps.CheckTenant(v.tenant, v.size.tokens()) {
		case admission.OverTenant:
			v.poolCap = CapTenant
		case admission.OverTenantTokens:
			v.poolCap = CapTenantTokens
		}
	}
	if v.poolCap == NoReason && v.overShare() {
		v.poolCap = CapShare
	}
	const ordinary = isEligible | isUsable | isObserved
	v.ordinary, v.seeding, v.unbound = false, false, false
	seeds := v.cfg.Seeds.Max > 0
	if !seeds && all&ordinary == ordinary && any&(isSuspect|isAvoided|isCapped) == 0 && v.poolCap == NoReason {
		v.eligible, v.choosable = len(v.flags), len(v.flags)
		v.ordinary = !capped && v.payer == 0 && v.shares == nil && math.IsInf(v.remaining, 1) && any&(isWarm|isUnsure) == 0 && all&isCosted != 0
		for i := range v.grade {
			v.grade[i] = gradeIn
		}
		return
	}
	v.countEach()
	if seeds {
		v.seed()
	}
}

// countEach is count where candidates differ.
func (v *View) countEach() {
	trusted, observed := false, false
	for _, f := range v.flags {
		trusted = trusted || f&(isEligible|isSuspect) == isEligible
		observed = observed || f&(isObserved|isUsable) == isObserved|isUsable
	}
	for i, f := range v.flags {
		v.grade[i] = gradeOut
		if f&isEligible == 0 {
			continue
		}
		v.eligible++
		c := &v.cands[i]
		if c.limit = v.limit(c, f, trusted, observed); c.limit != NoReason {
			continue
		}
		v.grade[i] = gradeIn
		v.choosable++
		if f&isAvoided != 0 {
			v.avoided++
		}
	}
}

// limit says whether an eligible candidate has room, where that depends on the others.
func (v *View) limit(c *cand, f flag, trusted, observed bool) Reason {
	switch {
	case v.cfg.FailClosed && v.degraded:
		return TelemetryMissing
	case f&isSuspect != 0 && trusted && c.own.Requests > 0:
		return Probing
	case f&isObserved == 0 && observed && c.starting >= int64(v.cfg.UnobservedMax):
		return UnobservedLimit
	case v.poolCap != NoReason:
		return v.poolCap
	}
	return c.cap
}

// drop takes out a candidate that could be chosen, for a reason that shows only beside its cost.
func (v *View) drop(i int, reason Reason) {
	v.grade[i], v.cands[i].limit = gradeOut, reason
	v.choosable--
	if v.flags[i]&isAvoided != 0 {
		v.avoided--
	}
}

// cost computes the terms of every candidate that can be chosen and has none yet. What depends on the mean of the others is
// always computed anew.
func (v *View) cost() {
	if v.all&isCosted != 0 && v.any&isUnsure == 0 {
		return
	}
	var mean surplus
	known := false
	for i, f := range v.flags {
		if v.grade[i] == gradeOut || f&(isCosted|isUnsure) == isCosted {
			continue
		}
		c := &v.cands[i]
		if f&isUnsure != 0 {
			if !known {
				mean, known = v.meanSurplus(), true
			}
			v.substitute(c, &mean)
		}
		v.price(i, false)
	}
}

func (v *View) price(i int, withheld bool) {
	c := &v.cands[i]
	cached, uncertainty := 0.0, 0.0
	if c.freshness != telemetry.Fresh {
		uncertainty = v.model.UncertaintyMS(c.fresh())
	}
	if !withheld && v.young(c) {
		cached = float64(c.cached)
	}
	c.load.Shared, c.load.Output = float64(v.sharing*v.fleetContext(c.kind, &c.own)), v.outputs
	v.queue[i], v.own[i], v.total[i] = v.quotes[c.kind].Totals(&c.load, cached, c.adapter, uncertainty)
	v.flags[i] |= isCosted
}

// bound applies the pressure bounds on affinity, and the bound on what a request may give up for others.
func (v *View) bound() {
	v.lifted = false
	if v.any&isWarm != 0 {
		for i := range v.cands {
			v.cands[i].withheld = NoReason // of an earlier look
		}
		v.forgive()
	}
	if !math.IsInf(v.remaining, 1) {
		v.dropLate()
	}
	if v.any&isWarm != 0 {
		v.withhold()
	}
	best := math.Inf(1)
	for i, own := range v.own {
		if own < best && v.Choosable(i) {
			best = own
		}
	}
	limit := float64(best*(1+v.cfg.Bounds.GiveUp.Ratio)) + ms(v.cfg.Bounds.GiveUp.Extra)
	for i, own := range v.own {
		switch {
		case v.grade[i] == gradeOut:
		case own > limit:
			v.grade[i] = gradeBarred
		default:
			v.grade[i] = gradeIn
		}
	}
}

// withhold takes the affinity from warm candidates that are outside their bounds, unless all candidates are.
func (v *View) withhold() {
	least := math.Inf(1) // the shortest queue
	for i, queue := range v.queue {
		if v.Choosable(i) {
			least = min(least, queue)
		}
	}
	inside, withheld := false, false
	for i, g := range v.grade {
		if g == gradeOut || inside && v.flags[i]&isWarm == 0 {
			continue
		}
		c := &v.cands[i]
		reason := v.outside(c, v.queue[i], least)
		inside = inside || reason == NoReason && v.Choosable(i)
		c.withheld = NoReason
		if v.flags[i]&isWarm != 0 {
			if !v.young(c) {
				reason = WithheldNotFresh
			}
			c.withheld = reason
			withheld = withheld || reason.bound()
		}
	}
	v.lifted = !inside
	if !withheld {
		return
	}
	for i, g := range v.grade {
		c := &v.cands[i]
		switch {
		case g == gradeOut || !c.withheld.bound():
		case v.lifted:
			c.withheld = NoReason
		default:
			v.price(i, true)
			v.flags[i] &^= isCosted // the next look may find it inside its bounds
		}
	}
}

// young says whether the candidate's readings are new enough for its affinity to count.
func (v *View) young(c *cand) bool { return c.freshness >= v.youngest }

// forgive lets affinity count for those whose readings are the freshest of all who can serve the request: where nobody is known
// better, diverting would only make misses. Stale and missing are one: neither says anything.
func (v *View) forgive() {
	youngest := telemetry.Missing
	for i := range v.cands {
		if c := v.cands[i].freshness; c > youngest && c >= telemetry.Aging && v.Choosable(i) && !v.misses(i) {
			youngest = c
		}
	}
	if youngest == v.youngest {
		return
	}
	v.youngest = youngest
	for i, f := range v.flags {
		if f&isWarm != 0 && v.cands[i].freshness != telemetry.Fresh && (f&isCosted != 0 || v.grade[i] != gradeOut) {
			v.price(i, false)
		}
	}
}

// outside names the first pressure bound that the candidate breaks. Those on waiting requests and memory read the figures as
// reported, those on time read the queue as it is priced.
func (v *View) outside(c *cand, queue, bestQueue float64) Reason {
	b := &v.cfg.Bounds
	// Of what was sent and not seen, those that have their first token wait no more.
	started := float64(max(c.unobserved-c.starting, 0))
	if c.class[figWaiting] >= telemetry.Aging && c.value[figWaiting]-float64(v.replicas*started) > float64(b.MaxWaiting) {
		return WithheldWaiting
	}
	if c.class[figKV] >= telemetry.Aging && !c.occupied && c.kvReported(v) > b.MaxKV {
		return WithheldKV
	}
	if queue > ms(b.MaxQueueDelay) {
		return WithheldQueueDelay
	}
	if queue-bestQueue > ms(b.MaxLead) {
		return WithheldLead
	}
	return NoReason
}

// kvReported is the projected share of KV memory by the reported figure, the request included.
func (c *cand) kvReported(v *View) float64 {
	if c.load.KVCapacity > 0 {
		return (v.unshared(c.value[figKV], c.booked) + v.sized.Prompt + v.sized.Output) / c.load.KVCapacity
	}
	return c.value[figKV]
}
