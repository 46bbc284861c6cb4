package router

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/isobar-go/isobar/reserve"
	"github.com/isobar-go/isobar/telemetry"
)

// maxTries is how often a decision may be overtaken before it is made under the lock.
const maxTries = 4

// Reserve chooses an endpoint and records req's cost against it in one atomic step: nobody chooses on a view that misses
// a lease already granted. It does not wait. The error is a [*RejectError], or says which field of the request is out of
// range, or is ctx's own when ctx is done already.
//
// The view is read and the choice made without a lock. The lease is then granted under one, provided that none was granted
// meanwhile; else the endpoints concerned are looked at again and the choice is made anew.
func (p *Pool) Reserve(ctx context.Context, req Request) (*Lease, error) {
	if ctx != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err := req.Validate(); err != nil {
		return nil, err
	}
	t, now := p.now()
	full := p.sample()
	v := p.open(&req, now)
	defer p.close(v)
	if req.late(t) {
		return nil, p.reject(v, true, t, full)
	}
	l := &Lease{pool: p, began: now}
	for v.at, v.fault = p.choose(v); ; v.at, v.fault = p.choose(v) {
		if v.at < 0 {
			return nil, p.reject(v, false, t, full)
		}
		granted, err := p.grant(v, l, t)
		if err != nil {
			return nil, err
		}
		if granted {
			break
		}
		p.refresh(v)
	}
	p.teach(v, l.endpoint)
	l.verdict = v.verdict(full)
	if p.cfg.Shadow != nil {
		l.verdict.shadow = p.shadow(v)
	}
	if full {
		l.receipt = p.decided(v, l)
	}
	return l, nil
}

// grant makes the lease if the view still holds. Otherwise it notes what has changed and reports false: the view must be brought
// up to date and the policy asked again, which needs no lock. Only after maxTries vain attempts that is done under it.
func (p *Pool) grant(v *View, l *Lease, t time.Time) (bool, error) {
	p.decide.Lock()
	defer p.decide.Unlock()
	// The endpoints may have changed, the circuit of the chosen one opened, or other leases been granted.
	v.outdated = p.version.Load() != v.version || v.set.list[v.at].circuit.until.Load() != 0 && !v.cands[v.at].half
	if g := p.grants.Load(); v.outdated || g != v.grants {
		p.counters.retried.Add(1)
		p.overtaken(v, g)
		if v.tries++; v.tries < maxTries {
			return false, nil
		}
		p.refresh(v)
		if v.at, v.fault = p.choose(v); v.at < 0 {
			return false, nil
		}
	}
	if !p.countTenant(v.req.Tenant, l) {
		v.tenants = p.cfg.Caps.Tenant
		v.finalize() // nobody can be chosen now
		return false, nil
	}
	c, e := &v.cands[v.at], v.set.list[v.at].live
	cost := reserve.Cost{Prefill: v.size.prompt, Decode: v.size.output, KV: v.size.prompt + v.size.output}
	if c.freshness == telemetry.Fresh {
		cost.Prefill -= c.cached // cached there, whether or not it counted in the choice
	}
	n, before := p.grants.Load(), e.grantNo.Load()
	e.grantNo.Store(n + 1) // before the account changes, whose version tells readers to look again
	if err := e.account.Reserve(&l.account, t, cost); err != nil {
		e.grantNo.Store(before)
		p.uncountTenant(l)
		return false, fmt.Errorf("router: endpoint %q: %w", e.id, err)
	}
	l.endpoint, l.conf = e, e.conf.Load()
	if l.half.Store(c.half); c.half {
		e.probing.Add(1)
		e.probed.Store(v.now)
	}
	l.due = c.due
	e.chosen.Add(1)
	p.log[n%grantLog] = int32(v.at)
	if v.size.prompt > 0 && p.prompts.learn(float64(cost.Prefill)) {
		p.mean.Store(math.Float64bits(p.prompts.published))
	}
	p.grants.Store(n + 1)
	return true, nil
}

// overtaken notes which endpoints were granted leases since the view was read; p.decide is held.
func (p *Pool) overtaken(v *View, g uint64) {
	v.changed = v.changed[:0]
	if v.outdated = v.outdated || g-v.grants > grantLog; v.outdated {
		return
	}
	for n := v.grants; n < g; n++ {
		v.changed = append(v.changed, p.log[n%grantLog])
	}
	v.grants = g
}

// refresh brings an overtaken view up to date: what is read now contains the leases that it was overtaken by.
func (p *Pool) refresh(v *View) {
	if v.outdated {
		p.look(v)
		return
	}
	ordinary := v.ordinary
	for _, i := range v.changed {
		v.read(int(i))
		ordinary = ordinary && v.flags[i] == isEligible|isUsable|isObserved|isCosted
	}
	v.tenants = p.openOf(v.req.Tenant)
	v.number, v.draws, v.stream = v.grants+1, 0, 0
	if ordinary { // nothing that finalize would look for has changed but the costs
		v.bound()
		return
	}
	v.finalize()
}

func (p *Pool) reject(v *View, late bool, t time.Time, full bool) error {
	v.at, v.fault = -1, false
	d := v.verdict(full)
	err := p.rejected(v, late, p.decision(&d, "", "", t))
	p.counters.rejected[rejection(err.Reason)].Add(1)
	if err.Reason == ErrSaturated {
		p.drain.measure(v.now, v.set)
	}
	if full {
		r := p.receipt(v, err.Decision)
		r.Rejected = err.Code()
		p.tell(func(o Observer) { o.Decided(r) })
	}
	return err
}

// sample draws whether a request's receipt is made.
func (p *Pool) sample() bool {
	share := p.cfg.Receipts.Sample
	switch {
	case share <= 0:
		return false
	case share >= 1:
		return true
	}
	return float64(mix(p.cfg.Seed^mix(p.draws.Add(1)))>>11) < share*(1<<53)
}

// teach records what the grant means for the index and the adapters: about the chosen endpoint, and no other.
func (p *Pool) teach(v *View, e *live) {
	if v.req.Prefix.Blocks() > 0 {
		p.index.Record(e.holder, v.req.Prefix)
	}
	if v.adapter != 0 {
		e.adapters.note(v.adapter, v.now)
	}
	if v.degraded {
		p.counters.degraded.Add(1)
	}
}
