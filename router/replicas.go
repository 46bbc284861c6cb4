package router

import "github.com/isobar-go/isobar/reserve"

// Of what other gateways have at an endpoint, nothing is known but what it reports. Where that is old or missing, each of them is taken
// to have one part in R of what this one has where this one has it, R being the number of gateways, and the rest spread evenly over the
// endpoints of the same kind, which have one profile and serve the same: gateways before the same engines do alike where the same
// prefixes draw them, and differ by the lot of what each is asked.
//
//	fleet load of an endpoint = own + (R-1) (own/R + (1-1/R) mean of own over the endpoints of its kind)
//
// Over all of them it adds up to R times own.

// LedgerMean is the mean, over the pool's endpoints of one kind, of what its own ledger holds at each. A plain value.
type LedgerMean struct {
	// Requests are open leases.
	Requests float64 `json:"requests"`
	// Prefill is prompt tokens still to be computed, KV is the memory that the leases will have taken at their ends, tokens, and Context
	// the part of it that is not output.
	Prefill float64 `json:"prefill"`
	KV      float64 `json:"kv"`
	Context float64 `json:"context"`
}

func (m *LedgerMean) add(l *reserve.Load) {
	m.Requests += float64(l.Requests)
	m.Prefill += float64(l.Prefill)
	m.KV += float64(l.KV)
	m.Context += contextOf(l)
}

func (m *LedgerMean) divide(n int) {
	by := float64(n)
	m.Requests, m.Prefill, m.KV, m.Context = m.Requests/by, m.Prefill/by, m.KV/by, m.Context/by
}

// ledgerMeans are the means over the endpoints of each kind: those with one profile that serve the same.
type ledgerMeans []LedgerMean

// tickMeans are those at one time. Immutable.
type tickMeans struct {
	now   int64
	set   *endpointSet
	means ledgerMeans
}

// meansAge is for how long means may be used where the clock has gone back since, ns.
const meansAge = 10 * int64(tick)

// ledgerMeans are computed once in a tick, as long as the endpoints are the same; nil for a gateway that is alone, which needs none. Only
// with publish do later decisions find them, since a score must leave no trace.
func (p *Pool) ledgerMeans(v *View, publish bool) *tickMeans {
	if p.cfg.Replicas <= 1 || len(v.set.list) == 0 {
		return nil
	}
	for {
		old := p.means.Load()
		if old != nil && old.set == v.set && old.now >= v.now && old.now-v.now < meansAge {
			return old
		}
		m := &tickMeans{now: v.now, set: v.set, means: make(ledgerMeans, len(v.set.kinds))}
		n := make([]int, len(v.set.kinds))
		for i := range v.set.list {
			at := &v.set.list[i]
			l := at.account.Sums().Live
			m.means[at.kind].add(&l)
			n[at.kind]++
		}
		for i := range m.means {
			m.means[i].divide(n[i])
		}
		if !publish || p.means.CompareAndSwap(old, m) {
			return m
		}
	}
}

// recordedMeans are those of a recorded decision, by candidate: as recorded, or where its pool was alone that of all candidates.
func recordedMeans(r *Receipt, replicas int) *tickMeans {
	if replicas <= 1 {
		return nil
	}
	m := &tickMeans{means: make(ledgerMeans, len(r.Candidates))}
	var all LedgerMean
	for i := range r.Candidates {
		all.add(&r.Candidates[i].Own)
	}
	all.divide(len(r.Candidates))
	for i := range r.Candidates {
		if m.means[i] = all; r.Candidates[i].OwnMean != nil {
			m.means[i] = *r.Candidates[i].OwnMean
		}
	}
	return m
}

// meanOf is a copy for a receipt; nil for none.
func (v *View) meanOf(c *cand) *LedgerMean {
	if v.ledger == nil {
		return nil
	}
	mean := v.ledger.means[c.kind]
	return &mean
}

// setReplicas sets the number of gateways.
func (v *View) setReplicas(n int) {
	r := float64(max(n, 1))
	v.replicas, v.alike, v.spread = r, (r-1)/r, (r-1)*(r-1)/r
}

// fleet is what all gateways are taken to have of a figure where this one has its own, and that mean.
func (v *View) fleet(own, mean float64) float64 {
	return own + (float64(v.alike*own) + float64(v.spread*mean))
}

// fleetLoad is what all gateways are taken to have at an endpoint.
type fleetLoad struct{ requests, prefill, kv, context float64 }

func (v *View) fleetLoad(kind int, own *reserve.Load) fleetLoad {
	if v.ledger == nil {
		return fleetLoad{float64(own.Requests), float64(own.Prefill), float64(own.KV), contextOf(own)}
	}
	m := &v.ledger.means[kind]
	return fleetLoad{
		requests: v.fleet(float64(own.Requests), m.Requests), prefill: v.fleet(float64(own.Prefill), m.Prefill),
		kv: v.fleet(float64(own.KV), m.KV), context: v.fleet(contextOf(own), m.Context),
	}
}

// fleetContext is the context in it.
func (v *View) fleetContext(kind int, own *reserve.Load) float64 {
	if v.ledger == nil {
		return contextOf(own)
	}
	return v.fleet(contextOf(own), v.ledger.means[kind].Context)
}
