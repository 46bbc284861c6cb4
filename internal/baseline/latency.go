package baseline

import (
	"math"
	"slices"
)

// inFlight is the number of requests at the engine by its last report, with what was sent since.
func (e *engine) inFlight() float64 {
	return e.report.running + e.report.waiting + float64(e.sentRequests)
}

const (
	latencySamples = 32 // of an engine
	latencyNearest = 5  // of them make an estimate
)

// latencies are the last own times to the first token at an engine, each with how many requests were in flight when it was sent.
type latencies struct {
	samples [latencySamples]struct{ inFlight, ms float64 }
	n, next int
}

func (l *latencies) add(inFlight, ms float64) {
	l.samples[l.next].inFlight, l.samples[l.next].ms = inFlight, ms
	l.next = (l.next + 1) % latencySamples
	l.n = min(l.n+1, latencySamples)
}

// estimate is the median of those that found about as many in flight, ms; false = there is none at all.
func (l *latencies) estimate(inFlight float64) (ms float64, ok bool) {
	var nearest, far [latencyNearest]float64
	n := 0
	for _, s := range l.samples[:l.n] {
		d := math.Abs(s.inFlight - inFlight)
		at := n
		for at > 0 && far[at-1] > d {
			at--
		}
		if at == latencyNearest {
			continue
		}
		n = min(n+1, latencyNearest)
		copy(far[at+1:n], far[at:])
		copy(nearest[at+1:n], nearest[at:])
		far[at], nearest[at] = d, s.ms
	}
	if n == 0 {
		return 0, false
	}
	slices.Sort(nearest[:n])
	return nearest[n/2], true
}
