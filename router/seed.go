package router

import (
	"sync"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/reserve"
	"github.com/isobar-go/isobar/telemetry"
)

// gate is the pool's gate of seeds. Any number of goroutines may use it.
type gate struct {
	lag int64 // ns until an engine's figures show a request

	mu   sync.Mutex // taken inside decide or alone
	gate *admission.Gate
}

// newGate is nil where seeding is off.
func newGate(cfg *Config) (*gate, error) {
	if cfg.Seeds.Max == 0 {
		return nil, nil
	}
	g, err := admission.NewGate(cfg.Seeds)
	if err != nil {
		return nil, err
	}
	return &gate{lag: int64(cfg.VisibilityLag), gate: g}, nil
}

// observed tells of the figures of an endpoint that can have held since at.
func (g *gate) observed(e *live, at int64) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gate.Observed(e.number, at-g.lag)
}

func (g *gate) forget(e *live) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gate.Forget(e.number)
}

// hold asks again whether the chosen endpoint may take a seed, and if so keeps the gate locked until settle; p.decide is held.
func (g *gate) hold(v *View) bool {
	g.mu.Lock()
	if g.ask(v, v.at, g.gate.Check) {
		return true
	}
	g.mu.Unlock()
	return false
}

// settle counts the seed that hold has allowed, unless it has come to nothing.
func (g *gate) settle(v *View, granted bool) {
	if granted {
		g.ask(v, v.at, g.gate.Take)
	}
	g.mu.Unlock()
}

// ask puts a question of the gate for candidate i, by the observation that the view has of it; g.mu is held.
func (g *gate) ask(v *View, i int, question func(endpoint, group uint64, observedAt, now int64) admission.SeedVerdict) bool {
	return question(v.set.list[i].number, v.lead, v.cands[i].rep.countsAt-g.lag, v.now) == admission.SeedOK
}

// seed applies the rule of seeds to those that could be chosen: while requests wait on engines, only an endpoint that is observed to be
// idle takes one, and only a few.
func (v *View) seed() {
	survey := v.cfg.Seeds.Survey()
	for i, f := range v.flags {
		c := &v.cands[i]
		c.spent = c.spent && v.recorded != nil // what was asked for another request
		if c.limit >= SeedOnly && c.limit <= SeedUnbound {
			c.limit = NoReason
		}
		if f&isEligible == 0 && c.barrier != Excluded && c.barrier != TooLong { // of another service, or of none
			continue
		}
		fresh, complete := true, true
		for _, fig := range [...]int{figRequests, figWaiting, figKV} {
			fresh = fresh && c.class[fig] == telemetry.Fresh
			complete = complete && c.class[fig] != telemetry.Missing
		}
		idle := survey.Add(admission.SeedFacts{
			Waiting: c.value[figWaiting] - float64(v.replicas*float64(c.unobserved)), Known: c.class[figWaiting] >= telemetry.Aging,
			Fresh: fresh, Complete: complete, BelowCap: c.cap == NoReason,
		})
		v.flags[i] &^= isIdle
		if idle && f&isEligible != 0 {
			v.flags[i] |= isIdle
		}
	}
	refuse := NoReason
	switch survey.Result(v.poolCap == CapAggregate) {
	case admission.SeedsOrdinary, admission.SeedsAggregate:
		return
	case admission.SeedsIncomplete:
		refuse = SeedTelemetry
	case admission.SeedsSaturated:
		refuse = SeedOnly
	case admission.SeedsOnly:
		v.seeding = true
		v.askGate()
	}
	for i, g := range v.grade {
		if g == gradeOut {
			continue
		}
		switch {
		case refuse != NoReason:
			v.drop(i, refuse)
		case v.flags[i]&isIdle == 0:
			v.drop(i, SeedOnly)
		case v.cands[i].spent:
			v.drop(i, SeedSpent)
		}
	}
}

// askGate asks the gate about every idle endpoint. A replay has its answers.
func (v *View) askGate() {
	if v.gate == nil {
		return
	}
	v.gate.mu.Lock()
	defer v.gate.mu.Unlock()
	for i, f := range v.flags {
		if c := &v.cands[i]; f&isIdle != 0 {
			c.spent = !v.gate.ask(v, i, v.gate.gate.Check)
		}
	}
}

// costOf is what a lease takes on the chosen endpoint.
func (v *View) costOf(c *cand) reserve.Cost {
	cost := reserve.Cost{Prefill: v.size.prompt, Decode: v.size.output, KV: v.size.tokens()}
	cost.Prefill -= c.cached // cached there, whether or not it counted in the choice
	return cost
}
