package router

import "slices"

// pace learns how often an endpoint reports: the median of the last three gaps between its reports, or as long as there are fewer the
// longest of them and of what the host says. Guarded by live.reporting.
type pace struct {
	seen bool
	last int64 // time of the newest report, ns
	gaps [3]int64
	n    int   // gaps so far
	told int64 // what the host says the gap will be, ns; 0 = nothing
}

// report takes the time of a report; one that is not newer than those before says nothing, and is reported as such.
func (p *pace) report(at int64) bool {
	switch {
	case !p.seen:
	case at <= p.last:
		return false
	default:
		p.gaps[p.n%len(p.gaps)] = at - p.last
		p.n++
	}
	p.seen, p.last = true, at
	return true
}

// gap is the time between reports, ns; 0 = not known yet.
func (p *pace) gap() int64 {
	g := p.gaps
	known := g[:min(p.n, len(g))]
	if len(known) == 0 {
		return p.told
	}
	slices.Sort(known)
	if len(known) < len(g) {
		return max(known[len(known)-1], p.told)
	}
	return known[len(known)/2]
}

// maxPace bounds what is learned, ns: an endpoint that reports less often than once in half a minute is not known by it.
const maxPace = 30e9

// limits are the ages up to which the load of an endpoint is fresh and from which it is stale. One that reports regularly, but not
// often enough, would be neither for most of the time: readings are fresh for two and a half of its gaps at least, which forgives a
// report that got lost, and stale after five.
func (p *pace) limits(cfg *Freshness) (freshFor, staleAfter int64) {
	gap := min(p.gap(), maxPace)
	return max(int64(cfg.FreshFor), 2*gap+gap/2), max(int64(cfg.StaleAfter), 5*gap)
}
