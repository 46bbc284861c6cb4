package router

import "github.com/isobar-go/isobar/reserve"

// Of what other gateways have at an endpoint, nothing is known but what it reports. Where that is old or missing, they are taken to have
// one part in R of it where this one has its own, R being the number of gateways, and the rest spread evenly over the endpoints:
// gateways before the same engines do alike where the same prefixes draw them, and differ by the lot of what each is asked.
//
//	total = own + (R-1) (own/R + (1-1/R) mean of own)

// OwnMean is the mean of what the pool's ledger holds at each of its endpoints. A plain value.
type OwnMean struct {
	// Requests are open leases.
	Requests float64 `json:"requests"`
	// Prefill is prompt tokens still to be computed, KV is the memory that the leases will have taken at their ends, tokens, and Context
	// the part of it that is not output.
	Prefill float64 `json:"prefill"`
	KV      float64 `json:"kv"`
	Context float64 `json:"context"`
}

// ownMeans are the means at one time. Immutable.
type ownMeans struct {
	now int64
	set *endpointSet
	OwnMean
}

// ownMeans are computed once in a tick, as long as the endpoints are the same; nil for a gateway that is alone, which needs none.
func (p *Pool) ownMeans(v *View) *ownMeans {
	if p.cfg.Replicas <= 1 || len(v.set.list) == 0 {
		return nil
	}
	for {
		old := p.means.Load()
		if old != nil && old.now >= v.now && old.set == v.set {
			return old
		}
		m := &ownMeans{now: v.now, set: v.set}
		for i := range v.set.list {
			l := v.set.list[i].account.Sums().Live
			m.add(&l)
		}
		m.divide(len(v.set.list))
		if p.means.CompareAndSwap(old, m) {
			return m
		}
	}
}

// replicate is what all gateways are taken to have where this one has its own and that mean.
func (v *View) replicate(own, mean float64) float64 {
	return own + (float64(v.alike*own) + float64(v.spread*mean))
}

// everyone is what all gateways are taken to have at an endpoint.
func (v *View) everyone(own *reserve.Load) OwnMean {
	var m OwnMean
	if v.means != nil {
		m = v.means.OwnMean
	}
	return OwnMean{
		Requests: v.replicate(float64(own.Requests), m.Requests), Prefill: v.replicate(float64(own.Prefill), m.Prefill),
		KV: v.replicate(float64(own.KV), m.KV), Context: v.replicate(contextOf(own), m.Context),
	}
}

// setReplicas sets the number of gateways.
func (v *View) setReplicas(n int) {
	r := float64(max(n, 1))
	v.replicas, v.alike, v.spread = r, (r-1)/r, (r-1)*(r-1)/r
}

// value is a copy of the means for a record; nil for none.
func (m *ownMeans) value() *OwnMean {
	if m == nil {
		return nil
	}
	mean := m.OwnMean
	return &mean
}

// meansOf are the means of a recorded decision: as recorded, or where its pool was alone those of its candidates.
func meansOf(r *Receipt, replicas int) *ownMeans {
	switch {
	case replicas <= 1:
		return nil
	case r.OwnMean != nil:
		return &ownMeans{OwnMean: *r.OwnMean}
	}
	m := &ownMeans{}
	for i := range r.Candidates {
		m.add(&r.Candidates[i].Own)
	}
	m.divide(len(r.Candidates))
	return m
}

func (m *OwnMean) add(l *reserve.Load) {
	m.Requests += float64(l.Requests)
	m.Prefill += float64(l.Prefill)
	m.KV += float64(l.KV)
	m.Context += contextOf(l)
}

func (m *OwnMean) divide(n int) {
	by := float64(n)
	m.Requests, m.Prefill, m.KV, m.Context = m.Requests/by, m.Prefill/by, m.KV/by, m.Context/by
}
