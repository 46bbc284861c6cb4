package router

import (
	"math"

	"github.com/isobar-go/isobar/telemetry"
)

// What the pool itself has at an endpoint, its ledger knows without any report. An unknown figure is what is to be expected by the
// ledger and, on top, as much as the reports of the others have beyond that: what comes from elsewhere, the mean over those who tell.
// So an endpoint that has ceased to report beside peers who show nothing but the pool's own requests is known all but for its
// uncertainty, and goes on getting nearly its share; beside peers who have much more than the pool sent it is taken to have that, too.

// surplus is that mean: figures of reports, less what the ledger leads to expect. Negative where they have less.
type surplus struct {
	requests, waiting, pending float64
	// kv is a share of the memory, of those whose size is known, if hasKV; share is the whole figure, of all of them.
	kv, share float64
	hasKV     bool
}

// average is a mean in the making.
type average struct{ sum, n float64 }

func (a *average) add(v float64) { a.sum, a.n = a.sum+v, a.n+1 }

func (a *average) mean() float64 {
	if a.n == 0 {
		return 0
	}
	return a.sum / a.n
}

// meanSurplus is that of the fresh figures, weighted by age like those they are compared with, or where none is fresh of the aging ones.
func (v *View) meanSurplus() surplus {
	var by [telemetry.Fresh + 1]struct{ requests, waiting, pending, kv, share average }
	for i := range v.cands {
		if v.flags[i]&isEligible == 0 {
			continue
		}
		c := &v.cands[i]
		all := v.fleetLoad(c.kind, &c.own)
		by[c.class[figRequests]].requests.add(c.load.Requests - all.requests)
		by[c.class[figWaiting]].waiting.add(c.waiting - float64(v.replicas*float64(c.unobserved)))
		by[c.class[figPending]].pending.add(c.load.PendingPrefill - all.prefill)
		of := &by[c.class[figKV]]
		switch size := c.load.KVCapacity; {
		case c.occupied: // not the same as the others
		case size > 0:
			of.share.add(c.load.KV / size)
			of.kv.add((c.load.KV - v.unshared(all.kv, all.context)) / size)
		default:
			of.share.add(c.load.KVShare)
		}
	}
	fresh, aging := &by[telemetry.Fresh], &by[telemetry.Aging]
	mean := func(fresh, aging *average) float64 {
		if fresh.n > 0 {
			return fresh.mean()
		}
		return aging.mean()
	}
	return surplus{
		requests: mean(&fresh.requests, &aging.requests), waiting: mean(&fresh.waiting, &aging.waiting),
		pending: mean(&fresh.pending, &aging.pending), kv: mean(&fresh.kv, &aging.kv), share: mean(&fresh.share, &aging.share),
		hasKV: fresh.kv.n > 0 || fresh.share.n == 0 && aging.kv.n > 0,
	}
}

// substitute fills in the loads that no usable reading tells: what the ledger leads to expect and the mean surplus of the others, and
// not less than the pool's own. A suspect endpoint that is due for a probe is priced as if free, so that one request finds out.
func (v *View) substitute(c *cand, mean *surplus) {
	if c.due {
		mean = &surplus{}
	}
	all := v.fleetLoad(c.kind, &c.own)
	if c.class[figRequests] < telemetry.Aging {
		c.load.Requests = max(all.requests+mean.requests, float64(c.own.Requests))
	}
	if c.class[figWaiting] < telemetry.Aging {
		c.waiting = max(float64(v.replicas*float64(c.unobserved))+mean.waiting, float64(c.unobserved))
	}
	if c.class[figPending] < telemetry.Aging {
		c.load.PendingPrefill = max(all.prefill+mean.pending, float64(c.own.Prefill))
	}
	most := math.Inf(1)
	switch {
	case c.class[figKV] < telemetry.Aging:
	case c.occupied:
		most = c.value[figKV]
	default:
		return
	}
	if c.load.KVCapacity <= 0 {
		c.load.KVShare = min(mean.share, most)
		return
	}
	kv := v.unshared(all.kv, all.context)
	if mean.hasKV {
		kv += float64(mean.kv * c.load.KVCapacity)
	} else {
		kv = max(kv, float64(mean.share*c.load.KVCapacity))
	}
	c.load.KV = min(max(kv, v.unshared(float64(c.own.KV), contextOf(&c.own))), most)
}
