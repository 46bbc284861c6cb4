package router

import (
	"context"
	"fmt"
	"math"
	"time"
)

// maxTries is how often a decision may be overtaken before it is made under the lock.
const maxTries = 4

// Reserve chooses an endpoint and records req's cost against it in one atomic step: nobody chooses on a view that misses
// a lease already granted. With Config.Queue it waits for room, no longer than ctx, the queue's Timeout and the request's Deadline;
// else it does not wait. The error is a [*RejectError], or says which field of the request is out of range, or is ctx's own when
// ctx is done.
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
	l, t, err := p.enter(&req, true)
	if t != nil {
		return t.wait(ctx)
	}
	return l, err
}

// attempt is a request that was tried to be placed. Exactly one of lease, reason and err is set.
type attempt struct {
	view   *View // to be closed
	at     time.Time
	full   bool
	lease  *Lease
	reason error // a sentinel: why it was not placed
	late   bool
	waited time.Duration // in the queue
	err    error         // a fault
}

// serve places a request, or says why not.
func (p *Pool) serve(req *Request, at time.Time, now int64, full bool) (*Lease, error) {
	a := p.attempt(req, at, now, full)
	return p.tellAttempt(&a)
}

// attempt tries to place a request. What it returns must be concluded, or its view closed.
func (p *Pool) attempt(req *Request, at time.Time, now int64, full bool) (a attempt) {
	v := p.open(req, at, now, true)
	a = attempt{view: v, at: at, full: full}
	if a.late = req.late(at); a.late {
		a.reason = ErrDeadline
		return a
	}
	l := &Lease{pool: p, began: now}
	for v.at, v.fault = p.choose(v); ; v.at, v.fault = p.choose(v) {
		if v.at < 0 {
			a.reason = v.rejection()
			return a
		}
		granted, err := p.grant(v, l, at)
		if err != nil {
			a.err = err
			return a
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
	a.lease = l
	return a
}

// conclude turns an attempt into what its caller gets, and makes the receipt that the observer is to be told, if any.
func (p *Pool) conclude(a *attempt) (l *Lease, told *Receipt, err error) {
	v := a.view
	defer p.close(v)
	switch {
	case a.err != nil:
		return nil, nil, a.err
	case a.lease == nil:
		r := p.reject(v, a.late, a.at, a.full)
		r.Decision.Waited = a.waited
		if a.full {
			told = p.viewed(v, r.Decision)
			told.Rejected = r.Code()
		}
		return nil, told, r
	}
	a.lease.verdict.waited = a.waited
	if a.full {
		told = p.decided(v, a.lease)
		a.lease.receipt = told
	}
	return a.lease, told, nil
}

// tellAttempt concludes an attempt and tells the observer.
func (p *Pool) tellAttempt(a *attempt) (*Lease, error) {
	l, told, err := p.conclude(a)
	if told != nil {
		p.tell(func(o Observer) { o.Decided(told) })
	}
	return l, err
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
	v.outdated = true // where one of these has been used up meanwhile, everything is looked at again
	if !p.countTenant(v, l) {
		return false, nil
	}
	if !p.shares.take(v, l) {
		p.uncountTenant(l)
		return false, nil
	}
	if v.seeding && !p.gate.hold(v) {
		p.uncountTenant(l)
		p.shares.give(l, v.now)
		return false, nil
	}
	v.outdated = false
	c, e := &v.cands[v.at], v.set.list[v.at].live
	n, before := p.grants.Load(), e.grantNo.Load()
	e.grantNo.Store(n + 1) // before the account changes, whose version tells readers to look again
	err := e.account.Reserve(&l.account, t, v.costOf(c))
	if v.seeding {
		p.gate.settle(v, err == nil)
	}
	if err != nil {
		e.grantNo.Store(before)
		p.uncountTenant(l)
		p.shares.give(l, v.now)
		return false, fmt.Errorf("router: endpoint %q: %w", e.id, err)
	}
	l.endpoint, l.conf = e, e.conf.Load()
	if l.half.Store(c.half); c.half {
		e.probing.Add(1)
		e.probed.Store(v.now)
	}
	l.due = c.due
	e.chosen.Add(1)
	l.nth = e.waiting.begin(v.now, l.account.Cost().Prefill, v.adapterLoad(c))
	e.starting.Add(1)
	p.log[n%grantLog] = int32(v.at)
	if v.size.prompt > 0 && p.prompts.learn(float64(l.account.Cost().Prefill)) {
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
		p.look(v, true)
		return
	}
	ordinary := v.ordinary
	for _, i := range v.changed {
		v.read(int(i))
		ordinary = ordinary && v.flags[i] == isEligible|isUsable|isObserved|isCosted
	}
	v.tenant = p.openOf(v.payer)
	v.number, v.draws, v.stream = v.grants+1, 0, 0
	if ordinary { // nothing that finalize would look for has changed but the costs
		v.bound()
		return
	}
	v.finalize()
}

func (p *Pool) reject(v *View, late bool, t time.Time, full bool) *RejectError {
	v.at, v.fault = -1, false
	d := v.verdict(full)
	err := p.rejected(v, late, p.decision(&d, "", "", t))
	p.counters.rejected[rejection(err.Reason)].Add(1)
	if err.Reason == ErrSaturated {
		p.drain.measure(v.now, v.set)
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
