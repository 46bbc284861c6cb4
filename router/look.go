package router

import (
	"math"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/reserve"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// classify is the rule by which a reading's age is judged: one that is in the future is not fresh. A reading that arrived after
// the decision had read its clock is not in the future, which a second look at the clock tells.
func (v *View) classify(at int64) telemetry.Class {
	return v.classOf(at, int64(v.cfg.Freshness.FreshFor), int64(v.cfg.Freshness.StaleAfter))
}

// classOf is classify by limits of an endpoint's own, ns.
func (v *View) classOf(at, freshFor, staleAfter int64) telemetry.Class {
	switch age := v.now - at; {
	case age <= -int64(tick) && (v.clock == nil || v.clock() < at):
		return telemetry.Stale
	case age <= freshFor:
		return telemetry.Fresh
	case age <= staleAfter:
		return telemetry.Aging
	}
	return telemetry.Stale
}

// read fills in what is known of endpoint i: everything that does not depend on the others.
//
// What it computes must not depend on the processor, or a receipt could not be replayed elsewhere: products are rounded by a
// conversion before they are added, which keeps compilers from fusing the two.
func (v *View) read(i int) {
	m := &v.set.list[i]
	e, c := m.live, &v.cands[i]
	key := memo{e.account.Version(), e.changes.Load(), v.now, c.memo.mean, v.ledger} // before what they tell the versions of
	if v.plain && c.memo == key && (key.mean == 0 || key.mean == v.mean) && v.recall(i, m, c) {
		return
	}
	sums := e.account.Sums()
	rep := e.reported.Load()
	torn := key.changes&1 != 0 || e.changes.Load() != key.changes
	if torn {
		// The figures may be newer than the ledger's view of them. What has ended may not be in them any more, so that only
		// what was sent is taken into account: too much for an instant, never too little.
		sums.Departed = reserve.Load{}
	}
	if v.plain && rep.plain && v.readPlain(i, m, c, rep, &sums) {
		if key.mean = 0; rep.pendingIsCount {
			key.mean = v.mean
		}
		if c.memo = key; torn || key.account&1 != 0 {
			c.memo = memo{}
		}
		return
	}
	c.memo = memo{}
	c.kind, c.rep = m.kind, rep
	c.own, c.unobserved, c.lastChosen = sums.Live, sums.Unobserved.Requests, e.grantNo.Load()
	c.starting = m.account.Starting()
	c.class, c.value, c.booked = [figures]telemetry.Class{}, [figures]float64{}, 0
	c.barrier, c.cap, c.limit, c.withheld, c.half, c.due = NoReason, NoReason, NoReason, NoReason, false, false
	c.occupied, c.most = rep.kvOccupied, e.limitOf()
	c.load.KVCapacity = rep.capacityOr(&v.set.kinds[m.kind].profile)

	var age [figures]int64
	if !rep.suspected {
		v.reconcile(c, rep, &sums, &age)
	} else {
		since := max(rep.suspectSince, e.probeAt.Load())
		c.due = sums.Live.Requests == 0 && v.now-since >= int64(v.cfg.ProbeAfter)
	}
	load := rep.loadFigure()
	c.freshness, c.age, c.freshFor = c.class[load], age[load], rep.freshFor

	var avoided bool
	c.barrier, avoided = v.eligibility(c, m, rep)
	c.cached = v.cachedAt(m)
	c.adapter = 0
	if v.adapter != 0 {
		c.adapter = v.adapterNeeded(e, rep)
	}
	c.load.Silence = v.silence(m, c)
	v.settle(i, c, &age, rep.suspected, rep.seen, avoided)
}

// cachedAt is the number of the prompt's leading tokens that the index knows on a member.
func (v *View) cachedAt(m *member) int64 {
	if m.slot >= len(v.match) {
		return 0
	}
	cached := v.match[m.slot]
	if cached == 0 {
		return 0
	}
	if b := int64(v.set.kinds[m.kind].profile.BlockSize); b != int64(v.req.Prefix.BlockTokens()) && b > 0 {
		cached -= cached % b // the engine can reuse only whole blocks of its own size
	}
	return min(cached, v.size.prompt)
}

// readPlain is read for the ordinary case, in one go: every figure is known, of one age and usable, the endpoint is ready, its
// circuit closed, and the request asks for nothing particular. It computes what reconcile, eligibility and settle would, to the last
// bit, or reports false and has done nothing.
func (v *View) readPlain(i int, m *member, c *cand, rep *reported, sums *reserve.Sums) bool {
	class := v.classOf(rep.at[0], rep.freshFor, rep.staleAfter)
	capacity := rep.capacityOr(&v.set.kinds[m.kind].profile)
	if class < telemetry.Aging || capacity == 0 || !v.plainly(m, capacity) {
		return false
	}
	age := v.now - rep.at[0]
	if age < 0 {
		age = 0
	}
	weight := v.decay.weight(age)
	replicas := v.replicas

	ownRequests := float64(sums.Live.Requests)
	unseen := float64(replicas * float64(sums.Unobserved.Requests))
	requests := rep.value[figRequests] - float64(sums.Departed.Requests) + unseen
	if requests < ownRequests {
		requests = ownRequests
	}
	waiting := rep.value[figWaiting] + unseen
	tokens := rep.value[figPending]
	if rep.pendingIsCount {
		tokens = float64(tokens * v.mean)
	}
	ownPending := float64(sums.Live.Prefill)
	pending := tokens + (float64(replicas*float64(sums.Unobserved.Prefill)) - float64(sums.Departed.Prefill))
	if pending < ownPending {
		pending = ownPending
	}
	kv := rep.kvTokens(capacity) + (float64(replicas*float64(sums.Unobserved.KV)) - float64(sums.Departed.KV))
	c.booked = v.bookedOf(sums)
	if own := float64(sums.Live.Prefill + sums.Live.Decode); kv < own {
		kv, c.booked = own, 0
	}

	c.kind, c.rep = m.kind, rep
	c.own, c.unobserved, c.lastChosen = sums.Live, sums.Unobserved.Requests, m.grantNo.Load()
	c.value[figRequests], c.value[figWaiting], c.value[figPending], c.value[figKV] = requests, waiting, pending, kv
	c.class = [figures]telemetry.Class{class, class, class, class}
	c.freshness, c.age, c.freshFor = class, age, rep.freshFor
	c.barrier, c.half, c.due, c.occupied = NoReason, false, false, false
	c.waiting, c.adapter = waiting, 0
	all := v.fleetLoad(m.kind, &sums.Live)
	c.load.Requests = all.requests + float64(weight*(requests-all.requests))
	c.load.PendingPrefill = drained(all.prefill+float64(weight*(pending-all.prefill)), pending, age, v.quotes[m.kind].Profile())
	c.kv = all.kv + float64(weight*(kv-all.kv))
	c.whole = all.context + float64(weight*(c.booked-all.context))
	c.load.KVCapacity, c.load.KVShare = capacity, 0
	if c.cap = NoReason; v.capped {
		c.most = m.limitOf()
		c.cap = v.capOf(c, requests, waiting)
	}
	v.load[i] = requests
	v.pricePlain(i, m, c)
	return true
}

// unshared takes off memory what the engine holds once for several requests, of as much of it as is counted as the ledger books it.
func (v *View) unshared(kv, booked float64) float64 {
	return max(kv-float64(v.sharing*booked), 0)
}

// contextOf is what requests read with each token, or will when their prompt is computed, tokens.
func contextOf(l *reserve.Load) float64 { return float64(l.KV - l.Decode) }

// bookedOf is how much of that the ledger adds to a report, less what it takes off.
func (v *View) bookedOf(sums *reserve.Sums) float64 {
	return float64(v.replicas*contextOf(&sums.Unobserved)) - contextOf(&sums.Departed)
}

// plainly says that nothing keeps the endpoint from serving the request, and nothing is particular about it.
func (v *View) plainly(m *member, capacity float64) bool {
	return v.kinds[m.kind] == NoReason && m.readied.Load() == stateReady && m.circuit.until.Load() == 0 &&
		v.now >= m.refused.until.Load() && v.sized.Prompt+1 <= capacity
}

// recall is readPlain where the figures are those that the view computed for an earlier request.
func (v *View) recall(i int, m *member, c *cand) bool {
	if !v.plainly(m, c.load.KVCapacity) {
		return false
	}
	v.pricePlain(i, m, c)
	return true
}

// pricePlain is what remains to be done for each request.
func (v *View) pricePlain(i int, m *member, c *cand) {
	c.limit, c.withheld, c.starting = NoReason, NoReason, m.account.Starting()
	c.cached = v.cachedAt(m)
	c.load.KV, c.load.Silence = v.unshared(c.kv, c.whole), v.silence(m, c)
	f := isEligible | isUsable | isObserved
	if c.cached > 0 {
		f |= isWarm
	}
	if c.cap != NoReason {
		f |= isCapped
	}
	v.flags[i] = f
	v.price(i, false)
}

// capOf is the cap of its own that a candidate with that load is at.
func (v *View) capOf(c *cand, requests, waiting float64) Reason {
	switch v.cfg.Caps.CheckEndpoint(requests, waiting) {
	case admission.OverWaiting:
		return CapWaiting
	case admission.OverEndpoint:
		return CapEndpoint
	}
	if c.most > 0 && requests >= float64(c.most) {
		return CapAdaptive
	}
	return NoReason
}

// reconcile computes the figures: as reported, less what has ended since, plus what was sent and cannot have been seen.
// Where a count of waiting requests is all that is known of the queue, each is taken to have the mean prompt.
func (v *View) reconcile(c *cand, rep *reported, sums *reserve.Sums, age *[figures]int64) {
	for f, known := range rep.known {
		if known {
			c.class[f], age[f] = v.classOf(rep.at[f], rep.freshFor, rep.staleAfter), max(v.now-rep.at[f], 0)
		}
	}
	replicas := v.replicas
	unseen := float64(replicas * float64(sums.Unobserved.Requests))
	c.value[figRequests] = max(float64(sums.Live.Requests), rep.value[figRequests]-float64(sums.Departed.Requests)+unseen)
	c.value[figWaiting] = rep.value[figWaiting] + unseen
	tokens := rep.value[figPending]
	if rep.pendingIsCount {
		tokens = float64(tokens * v.mean)
	}
	tokens += float64(replicas*float64(sums.Unobserved.Prefill)) - float64(sums.Departed.Prefill)
	c.value[figPending] = max(float64(sums.Live.Prefill), tokens)
	kv := rep.value[figKV]
	if c.load.KVCapacity == 0 && !rep.kvIsShare {
		c.class[figKV] = telemetry.Missing // a number of tokens says nothing without the size
	}
	if c.load.KVCapacity > 0 {
		kv = rep.kvTokens(c.load.KVCapacity)
		// What is still to be computed will need its memory, whatever a lagging gauge says.
		kv += float64(replicas*float64(sums.Unobserved.KV)) - float64(sums.Departed.KV)
		c.booked = v.bookedOf(sums)
		if own := float64(sums.Live.Prefill + sums.Live.Decode); kv < own {
			kv, c.booked = own, 0
		}
		if rep.kvBehind { // it may lack leases that the counts contain: all of them are added
			if all := rep.kvTokens(c.load.KVCapacity) + float64(replicas*float64(sums.Live.KV)); all > kv {
				kv, c.booked = all, float64(replicas*contextOf(&sums.Live))
			}
		}
	}
	c.value[figKV] = kv
}

// eligibility is the first step of a decision: can the endpoint serve the request, and would the caller rather not have it?
func (v *View) eligibility(c *cand, m *member, rep *reported) (barrier Reason, avoided bool) {
	e := m.live
	switch e.readied.Load() {
	case stateDraining:
		return Draining, false
	case stateAsleep:
		return Asleep, false
	}
	if rep.asleep && v.classify(rep.asleepAt) >= telemetry.Aging {
		return Asleep, false
	}
	if rep.unhealthy && v.classify(rep.unhealthyAt) >= telemetry.Aging {
		return Unhealthy, false
	}
	if r := v.kinds[m.kind]; r != NoReason {
		return r, false
	}
	if c.load.KVCapacity > 0 && v.sized.Prompt+1 > c.load.KVCapacity {
		return TooLong, false
	}
	if until := e.circuit.until.Load(); until != 0 {
		if v.now < until || e.probing.Load() > 0 && v.now-e.probed.Load() < int64(v.cfg.Circuit.MaxOpenFor) {
			return CircuitOpen, false
		}
		c.half = true // one at a time; a probe that is forgotten, or shows no sign of life for long, does not bar the next
	}
	avoided = v.now < e.refused.until.Load()
	for _, id := range v.req.Exclude {
		if id == e.id {
			if v.req.ExcludeHard {
				return Excluded, false
			}
			avoided = true
		}
	}
	return NoReason, avoided
}

// settle derives what follows from the figures of one candidate alone: its flags, its caps, its loads weighted by age, and
// where no figure is missing its terms.
func (v *View) settle(i int, c *cand, age *[figures]int64, suspect, observed, avoided bool) {
	f := flag(0)
	replicas := v.replicas
	requests, waiting := float64(replicas*float64(c.own.Requests)), -1.0
	if c.class[figRequests] >= telemetry.Aging {
		requests = c.value[figRequests]
	}
	v.load[i] = requests
	if suspect {
		f |= isSuspect
	}
	if observed {
		f |= isObserved
	}
	if avoided {
		f |= isAvoided
	}
	if c.cached > 0 {
		f |= isWarm
	}
	if c.barrier != NoReason {
		v.flags[i] = f
		return
	}
	f |= isEligible
	if c.freshness >= telemetry.Aging {
		f |= isUsable
	}
	switch c.class[figWaiting] {
	case telemetry.Fresh, telemetry.Aging:
		waiting = c.value[figWaiting]
	case telemetry.Stale:
		waiting = float64(replicas * float64(c.unobserved)) // the ledger's part of the queue
	}
	if c.cap = v.capOf(c, requests, waiting); c.cap != NoReason {
		f |= isCapped
	}

	weight, of := 1.0, int64(-1)
	blend := func(fig int, own float64) float64 {
		if age[fig] != of {
			of = age[fig]
			weight = v.decay.weight(of)
		}
		return own + float64(weight*(c.value[fig]-own))
	}
	all := v.fleetLoad(c.kind, &c.own)
	c.load.KV, c.load.KVShare = 0, 0
	if c.class[figRequests] >= telemetry.Aging {
		c.load.Requests = blend(figRequests, all.requests)
	} else {
		f |= isUnsure
	}
	if c.class[figPending] >= telemetry.Aging {
		estimate := blend(figPending, all.prefill)
		c.load.PendingPrefill = drained(estimate, c.value[figPending], age[figPending], v.quotes[c.kind].Profile())
	} else {
		f |= isUnsure
	}
	switch {
	case c.class[figKV] < telemetry.Aging || c.occupied:
		f |= isUnsure
	case c.load.KVCapacity > 0:
		kv := blend(figKV, all.kv)
		c.load.KV = v.unshared(kv, all.context+float64(weight*(c.booked-all.context)))
	default:
		c.load.KVShare = blend(figKV, 0)
	}
	if c.class[figWaiting] >= telemetry.Aging {
		c.waiting = c.value[figWaiting]
	} else {
		f |= isUnsure
	}
	v.flags[i] = f
	if f&isUnsure == 0 {
		v.price(i, false)
	}
}

// drained keeps the estimate of the pending prefill from falling faster than the engine can compute: a queue of a hundred seconds, five
// seconds ago, is one of ninety-five at least, however little weight a reading of that age has.
func drained(estimate, reported float64, age int64, p *score.Profile) float64 {
	if p.PrefillToken <= 0 {
		return estimate
	}
	if floor := reported - float64(age)/1e6/p.PrefillToken; floor > estimate {
		return floor
	}
	return estimate
}

// decay is the weight exp(-age/tau) of a reading beside the pool's own ledger, as a table with straight lines between its
// points; the error is below 1e-5. Immutable.
type decay struct {
	scale float64 // steps per ns; 0 = no decay
	table [decaySteps + 2]float64
}

const (
	decaySteps = 2048
	decayReach = 16 // in units of tau; beyond, the weight is 0
)

func newDecay(tau float64) *decay {
	d := &decay{}
	if tau <= 0 {
		return d
	}
	d.scale = decaySteps / (decayReach * tau)
	for i := range decaySteps {
		d.table[i] = math.Exp(-float64(i) * decayReach / decaySteps)
	}
	return d
}

func (d *decay) weight(age int64) float64 {
	if d.scale == 0 {
		return 1
	}
	x := float64(float64(max(age, 0)) * d.scale)
	if !(x < decaySteps) {
		return 0
	}
	i := int(x)
	a := d.table[i]
	return a + float64((d.table[i+1]-a)*(x-float64(i)))
}
