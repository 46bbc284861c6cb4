package router

import (
	"sync"
	"time"
)

// retryAfter is when a rejected caller may hope for more: when the next place becomes free, by the measured drain, or when the
// first circuit lets a probe through. 0 = unknown.
func (p *Pool) retryAfter(v *View, err error) time.Duration {
	switch err {
	case ErrNoEndpoints:
		return v.firstProbe()
	case ErrSaturated:
		if v.poolCap == CapTenant || v.poolCap == CapTenantTokens {
			return 0 // what others end makes no room for this tenant
		}
		return p.drain.wait()
	}
	return 0
}

// wholeSeconds brings a wait into the range that a Retry-After header can usefully have.
func wholeSeconds(d time.Duration) time.Duration {
	return min(max((d+time.Second-1).Truncate(time.Second), time.Second), 30*time.Second)
}

// drain measures how fast places become free, from one rejection to another at least a second later, so that it costs
// nothing while nobody is rejected.
type drain struct {
	mu      sync.Mutex
	sampled bool
	at      int64   // ns
	ended   uint64  // leases
	rate    float64 // leases a second; 0 = unknown
}

// measure takes a sample where the last is a second old. Removed endpoints take their counts along, which makes the rate
// unknown until the next sample.
func (d *drain) measure(now int64, set *endpointSet) {
	d.mu.Lock()
	defer d.mu.Unlock()
	passed := now - d.at
	if d.sampled && passed < int64(time.Second) {
		return
	}
	var n ends
	for _, m := range set.list {
		n.add(m.live)
	}
	ended := n.sum()
	d.rate = 0
	if d.sampled && passed <= int64(time.Minute) && ended > d.ended { // a longer pause says nothing about the present
		d.rate = float64(ended-d.ended) / (float64(passed) / 1e9)
	}
	d.sampled, d.at, d.ended = true, now, ended
}

func (d *drain) wait() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rate == 0 {
		return 0
	}
	return wholeSeconds(time.Duration(min(1/d.rate, 30) * float64(time.Second)))
}

// firstProbe is when the first open circuit lets a probe through.
func (v *View) firstProbe() time.Duration {
	first := int64(0)
	for i := range v.cands {
		if v.cands[i].excluded() != CircuitOpen || v.recorded != nil {
			continue
		}
		if until := v.set.list[i].circuit.until.Load(); first == 0 || until < first {
			first = until
		}
	}
	if first == 0 {
		return 0
	}
	return wholeSeconds(time.Duration(first - v.now))
}
