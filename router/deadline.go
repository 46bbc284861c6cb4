package router

import (
	"math"
	"time"
)

// setDeadline notes how much time a request has left. One that is late already is rejected whatever the candidates are like.
func (v *View) setDeadline(t time.Time) {
	v.remaining = math.Inf(1)
	if !v.req.Deadline.IsZero() && !v.req.late(t) {
		v.remaining = ms(v.req.Deadline.Sub(t))
	}
}

// completion is when the request is predicted to be complete on candidate i, in ms from now: the time that its work and the
// work before it take, without the terms that are prices, and without a silence: whoever is refused should be late for certain.
func (v *View) completion(i int) float64 {
	c := &v.cands[i]
	t := &v.late
	load := c.load
	load.Silence = 0
	v.quotes[c.kind].Terms(&load, c.fresh(), v.matchOf(c, c.withheld.bound()), t)
	if v.size.guessed {
		t.Decode = 0 // a guess of ours is not held against the request
	}
	return t.Queue + t.Prefill + t.Decode + t.Adapter
}

// misses says whether the candidate would miss the deadline.
func (v *View) misses(i int) bool {
	return !math.IsInf(v.remaining, 1) && v.completion(i) > v.remaining
}

// dropLate takes out the candidates on which the request is predicted to miss its deadline.
func (v *View) dropLate() {
	v.dropped = false
	for i, g := range v.grade {
		c := &v.cands[i]
		if c.limit == MissesDeadline {
			c.limit = NoReason // of an earlier look
		}
		if g == gradeOut || !v.misses(i) {
			continue
		}
		v.drop(i, MissesDeadline)
		v.dropped = true
	}
}

// hopeless says that nobody could complete the request before its deadline, not even with room for it.
func (v *View) hopeless() bool {
	if math.IsInf(v.remaining, 1) {
		return false
	}
	for i, f := range v.flags {
		if f&isEligible != 0 && v.cands[i].limit != MissesDeadline && (f&isCosted == 0 || v.completion(i) <= v.remaining) {
			return false
		}
	}
	return true
}

// soonest is the shortest time that the request itself takes anywhere, ms, whatever there is to do before it; 0 where that is
// not known.
func (v *View) soonest() float64 {
	least := math.Inf(1)
	for i, f := range v.flags {
		switch {
		case f&isEligible == 0:
		case f&isCosted == 0:
			return 0
		default:
			v.completion(i)
			least = min(least, v.late.Prefill+v.late.Decode+v.late.Adapter)
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}
