package router

import (
	"time"

	"github.com/isobar-go/isobar/reserve"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// Figure is one load figure of a candidate: what the engine's readings say, reconciled with the pool's own leases. A
// Figure is a plain value.
type Figure struct {
	// Class is how far the readings behind it can be believed. Where it is Stale or Missing, Value means nothing.
	Class telemetry.Class `json:"class"`
	// Value is the reconciled figure: as reported, less what has ended since, plus what was sent and cannot have been seen.
	Value float64 `json:"value"`
	// Age of the readings.
	Age time.Duration `json:"age_ns"`
}

// Candidate is one endpoint as a decision saw it. A Candidate is a plain value.
type Candidate struct {
	// ID and Incarnation are the endpoint's identity.
	ID          string `json:"id"`
	Incarnation string `json:"incarnation,omitempty"`
	// Excluded is why it could not be chosen; NoReason for those that could.
	Excluded Reason `json:"excluded,omitempty"`
	// Withheld is why its cached tokens did not count.
	Withheld Reason `json:"withheld,omitempty"`
	// Avoided says that the caller would rather not have it, or that it refused a request just now: it is chosen only when
	// there is no other.
	Avoided bool `json:"avoided,omitempty"`
	// Barred says that its own predicted completion is worse than Bounds.GiveUp allows: the default policy does not take it,
	// whatever it would spare others.
	Barred bool `json:"barred,omitempty"`
	// Probe says that the request would be the one that finds out whether the endpoint works: since its circuit is half
	// open (HalfOpen), or it is suspect and has gone without traffic for long (ProbeDue).
	Probe    bool `json:"probe,omitempty"`
	HalfOpen bool `json:"half_open,omitempty"`
	ProbeDue bool `json:"probe_due,omitempty"`
	// Suspect is why its readings are not believed, though they are new.
	Suspect telemetry.SuspectReason `json:"suspect,omitempty"`
	// Observed says that it has reported at least once.
	Observed bool `json:"observed,omitempty"`
	// SeedSpent says that it has no seed left for the request's prefix group; only where seeds were asked for.
	SeedSpent bool `json:"seed_spent,omitempty"`
	// Limit is how many requests it may have by its adaptive limit; 0 = no limit.
	Limit int `json:"limit,omitempty"`
	// Freshness and Age are those of its load readings (running and waiting requests).
	Freshness telemetry.Class `json:"freshness"`
	Age       time.Duration   `json:"age_ns"`
	// FreshFor is up to which age they are fresh: Freshness, or longer where it reports seldom.
	FreshFor time.Duration `json:"fresh_for_ns,omitempty"`

	// Own is what the pool's ledger holds there, before the decision.
	Own reserve.Load `json:"own"`
	// OwnUnobserved is the number of those leases that no snapshot can contain yet.
	OwnUnobserved int64 `json:"own_unobserved"`
	// OwnMean is the mean of that over the endpoints of its kind, with one profile and serving the same, by which other gateways' part is
	// estimated; nil without others.
	OwnMean *LedgerMean `json:"own_mean,omitempty"`
	// OwnStarting is how many of the pool's leases there have not got their first token.
	OwnStarting int64 `json:"own_starting,omitempty"`
	// Requests that run or wait there.
	Requests Figure `json:"requests"`
	// Waiting requests there.
	Waiting Figure `json:"waiting"`
	// Pending prompt tokens that are not computed yet.
	Pending Figure `json:"pending"`
	// KV memory in use, tokens, or as a share of it where KVCapacity is 0.
	KV Figure `json:"kv"`
	// KVOccupied says that KV counts cached prefixes that can be evicted at once, too. It is then an upper bound: the cost is
	// computed as if it were missing, from those whose figure is without them, and not beyond it.
	KVOccupied bool `json:"kv_occupied,omitempty"`
	// KVBooked is how many of these tokens are counted as the ledger books them, request by request; negative where more were taken off
	// than added. The cost counts what requests share once, as engines do: by Decision.SharedPart.
	KVBooked float64 `json:"kv_booked,omitempty"`
	// KVCapacity is the size of the KV memory, tokens; 0 = unknown.
	KVCapacity float64 `json:"kv_capacity"`
	// Cached is the number of leading prompt tokens that the prefix index knows there, in whole blocks.
	Cached int64 `json:"cached"`
	// AdapterNeeded is the probability that the adapter must be loaded.
	AdapterNeeded float64 `json:"adapter_needed,omitempty"`
	// LastChosen is the number of the newest decision that chose it; 0 = never.
	LastChosen uint64 `json:"last_chosen"`
	// Profile are its capacities.
	Profile *score.Profile `json:"profile"`

	// Load is what the cost was computed from: the figures weighted by age, or their substitutes. Of an excluded
	// candidate, Silence alone.
	Load score.Load `json:"load"`
	// Terms are the costs, ms. Zero for an excluded candidate.
	Terms score.Terms `json:"terms"`
	// Native are the figures behind the terms, each in its own unit.
	Native score.Native `json:"native"`
	// Total is Terms.Total(), ms.
	Total float64 `json:"total"`
	// OwnCost is Terms.Own(), ms.
	OwnCost float64 `json:"own_cost"`
}

// grade is what the decision made of a candidate beyond its cost.
type grade uint8

const (
	gradeOut    grade = iota // excluded
	gradeBarred              // its own completion is worse than what the request may give up
	gradeIn
)

// loadFigures are the figures in the order of their indices.
func (c *Candidate) loadFigures() [figures]*Figure {
	return [figures]*Figure{&c.Requests, &c.Waiting, &c.Pending, &c.KV}
}

// cand is what a view holds of one endpoint while it decides: the fields of a [Candidate] that the decision computes with, and
// nothing that can be looked up.
type cand struct {
	memo   memo
	load   score.Load
	cached int64
	cap    Reason // of its own caps
	limit  Reason // why an eligible candidate is out after all

	barrier   Reason // of eligibility
	withheld  Reason
	half      bool // circuit half open: the request would be its probe
	due       bool // suspect and due for a probe
	occupied  bool // the KV figure is an upper bound
	most      int  // requests by the adaptive limit; 0 = no limit
	spent     bool // its gate lets no seed of the request's group through
	freshness telemetry.Class
	class     [figures]telemetry.Class
	kind      int     // of the endpoint, or in a replay its own place
	adapter   float64 // probability of a load

	value      [figures]float64 // reconciled
	booked     float64          // tokens of value[figKV] that are counted as booked
	kv         float64          // value[figKV] by its age, for load.KV
	whole      float64          // likewise booked
	waiting    float64          // estimate by which queue-only ranks
	own        reserve.Load
	unobserved int64
	starting   int64
	lastChosen uint64
	age        int64     // of the load readings, ns
	freshFor   int64     // up to which age they are fresh, ns
	rep        *reported // nil in a replay
}

// memo says of what a candidate's figures were computed. A view is used again and again, so as long as nothing has changed
// there they need not be computed anew. It is a pure cache: equal keys, equal figures. The profile is not in the key, since
// a view forgets everything with a change of the endpoint set.
type memo struct {
	account uint64 // version of the endpoint's sums; odd = no memo
	changes uint64 // of the endpoint otherwise
	now     int64
	mean    float64 // length of a waiting prompt, where that was asked for
	ledger  *tickMeans
}

// The load figures of an endpoint.
const (
	figRequests = iota
	figWaiting
	figPending
	figKV
	figures
)

// excluded is why the candidate cannot be chosen.
func (c *cand) excluded() Reason {
	if c.barrier != NoReason {
		return c.barrier
	}
	return c.limit
}

// outstanding is what the ledger alone says is still to be done there, ms.
func (v *View) outstanding(i int) float64 {
	c := &v.cands[i]
	p := v.quotes[c.kind].Profile()
	return float64(float64(c.own.Prefill)*p.PrefillToken) + float64(float64(c.own.Decode)*p.Base)
}

// expectedWait is the time before the request's own prefill would begin, with the price of what is not known, ms.
func (v *View) expectedWait(i int) float64 {
	c := &v.cands[i]
	if c.freshness == telemetry.Fresh {
		return v.queue[i]
	}
	return v.queue[i] + v.model.UncertaintyMS(c.fresh())
}

// fresh is how far the cost model may believe the load. A probe is priced without doubt.
func (c *cand) fresh() score.Freshness {
	if c.due {
		return score.Freshness{Class: telemetry.Aging}
	}
	return score.Freshness{Class: c.freshness, Age: time.Duration(c.age), FreshFor: time.Duration(c.freshFor)}
}

// matchOf is what the cost model may count on.
func (v *View) matchOf(c *cand, withheld bool) score.Match {
	return score.Match{Cached: float64(c.cached), Withheld: withheld, AnyAge: v.young(c), AdapterNeeded: c.adapter}
}

// termsOf are the terms of candidate i.
func (v *View) termsOf(i int) score.Terms {
	var t score.Terms
	if c := &v.cands[i]; v.grade[i] != gradeOut {
		v.quotes[c.kind].Terms(&c.load, c.fresh(), v.matchOf(c, c.withheld.bound()), &t)
	}
	return t
}

// export makes a Candidate of candidate i. The profile is a copy, in the place that is given, since a receipt is the host's.
func (v *View) export(i int, profile *score.Profile) Candidate {
	c := &v.cands[i]
	*profile = *v.quotes[c.kind].Profile()
	out := Candidate{
		Excluded: c.excluded(), Withheld: c.withheld, Probe: c.half || c.due, HalfOpen: c.half, ProbeDue: c.due,
		Freshness: c.freshness, Age: time.Duration(c.age), FreshFor: time.Duration(c.freshFor),
		Avoided: v.flags[i]&isAvoided != 0, Observed: v.flags[i]&isObserved != 0,
		Own: c.own, OwnUnobserved: c.unobserved, OwnMean: v.meanOf(c),
		OwnStarting: c.starting, KVCapacity: c.load.KVCapacity, Cached: c.cached, AdapterNeeded: c.adapter,
		LastChosen: c.lastChosen, Profile: profile, KVOccupied: c.occupied, KVBooked: c.booked, Load: score.Load{Silence: c.load.Silence},
		SeedSpent: c.spent, Limit: c.most, Barred: v.grade[i] == gradeBarred,
	}
	var recorded [figures]*Figure
	if v.recorded != nil {
		recorded = v.recorded[i].loadFigures()
	}
	for f, to := range out.loadFigures() {
		to.Class, to.Value = c.class[f], c.value[f]
		if c.class[f] == telemetry.Missing {
			continue
		}
		if v.recorded != nil {
			to.Age = recorded[f].Age
		} else {
			to.Age = time.Duration(max(v.now-c.rep.at[f], 0))
		}
	}
	if v.recorded != nil {
		out.ID, out.Incarnation, out.Suspect = v.recorded[i].ID, v.recorded[i].Incarnation, v.recorded[i].Suspect
	} else {
		e := v.set.list[i].live
		out.ID, out.Incarnation, out.Suspect = e.id, e.incarnation, c.rep.suspect
	}
	if v.grade[i] != gradeOut {
		out.Load, out.Terms, out.Total, out.OwnCost = c.load, v.termsOf(i), v.total[i], v.own[i]
		out.Native = v.quotes[c.kind].Native(&c.load, c.fresh(), v.matchOf(c, c.withheld.bound()))
	}
	return out
}

// restore is the inverse of export for a replay.
func (v *View) restore(i int) {
	r, c := &v.recorded[i], &v.cands[i]
	v.quotes = append(v.quotes, v.model.Quote(r.Profile, &v.sized))
	*c = cand{
		kind: i, own: r.Own, unobserved: r.OwnUnobserved, starting: r.OwnStarting, lastChosen: r.LastChosen,
		load: score.Load{KVCapacity: r.KVCapacity, Silence: r.Load.Silence}, booked: r.KVBooked,
		cached: r.Cached, adapter: r.AdapterNeeded, half: r.HalfOpen,
		freshness: min(r.Freshness, telemetry.Fresh), age: int64(r.Age), freshFor: int64(r.FreshFor),
		due: r.ProbeDue, occupied: r.KVOccupied, spent: r.SeedSpent, most: r.Limit,
	}
	if r.Excluded < Probing {
		c.barrier = r.Excluded
	}
	var age [figures]int64
	for f, from := range r.loadFigures() {
		c.class[f], c.value[f], age[f] = min(from.Class, telemetry.Fresh), from.Value, int64(from.Age)
	}
	v.settle(i, c, &age, r.Suspect != "", r.Observed, r.Avoided)
}
