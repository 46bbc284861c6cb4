package router

import (
	"time"

	"github.com/isobar-go/isobar/admission"
)

// offer offers whoever waits the room that there may be since the last time; q.mu is held. It goes on until nothing has happened
// meanwhile.
func (p *Pool) offer(now int64) {
	q := p.queue
	p.expire(now)
	if q.wakeAt <= now {
		q.events.Add(1)
	}
	for event := q.events.Load(); q.seen != event; event = q.events.Load() {
		q.seen = event
		q.wakeAt = never
		if q.state.Len() > 0 {
			p.pass(event)
		}
	}
}

// pass walks once through those who wait, in the order in which they should be served.
func (p *Pool) pass(event uint64) {
	q := p.queue
	at, now := p.now()
	q.state.Begin(now)
	for w := q.state.Next(); w != nil; w = q.state.Next() {
		t := w.Value
		if full, all := q.knownFull(t, event, now); full {
			if all {
				q.state.SkipGroup(t.group)
			}
			continue
		}
		if n := q.full[t.shape]; n.looked && n.lookedAt == event && p.payerFull(t) {
			q.state.SkipGroup(t.group)
			continue
		}
		a := p.attempt(&t.req, at, now, t.full)
		switch {
		case a.lease != nil:
			q.counts.granted.Add(1)
			if waited := now - t.since; waited > q.counts.longest.Load() {
				q.counts.longest.Store(waited)
			}
			q.state.Granted(w, now)
			p.finish(t, &a)
		case a.err == nil && q.waits(&a):
			q.remember(t, event, a.view)
			if !a.view.particular() {
				q.state.SkipGroup(t.group)
			}
			p.close(a.view)
		default: // waiting does not help any more
			q.state.Remove(w)
			q.counts.refused.Add(1)
			p.finish(t, &a)
		}
	}
}

// payerFull says that the tenant of a ticket has as many requests open as it may.
func (p *Pool) payerFull(t *Ticket) bool {
	if p.cfg.Caps.Tenant == 0 {
		return false
	}
	return p.openOf(p.payer(&t.req)).Requests >= p.cfg.Caps.Tenant
}

// expire fails those whose time is over; q.mu is held.
func (p *Pool) expire(now int64) {
	q := p.queue
	for w, cause := q.state.Expired(now); w != nil; w, cause = q.state.Expired(now) {
		reason := ErrQueueTimeout
		if cause == admission.PastLatest {
			reason = ErrDeadline
			q.counts.missed.Add(1)
		} else {
			q.counts.timedOut.Add(1)
		}
		p.fail(w.Value, reason, now)
	}
}

// finish gives a ticket that has left the queue the result of an attempt; q.mu is held.
func (p *Pool) finish(t *Ticket, a *attempt) {
	if t.joined {
		a.waited = max(p.cfg.Now().Sub(p.base.Add(time.Duration(t.since))), 0)
	}
	l, told, err := p.conclude(a)
	p.leave(t, l, err, told)
}

// fail refuses a ticket that has left the queue, or has not been let into it; q.mu is held.
func (p *Pool) fail(t *Ticket, reason error, now int64) {
	err, told := p.refuse(t, reason, now)
	p.leave(t, nil, err, told)
}

// leave ends a ticket that has left the queue; q.mu is held. Its holder learns of it when the lock is released, after the observer.
func (p *Pool) leave(t *Ticket, l *Lease, err error, told *Receipt) {
	q := p.queue
	t.lease, t.err, t.ended = l, err, true
	q.out = append(q.out, delivery{told, t})
	if !t.req.Deadline.IsZero() && t.joined {
		q.dated.Add(-1)
	}
	if q.keeper == t {
		q.keeper = nil
		for w := range q.state.All() {
			if w.Value.stays {
				q.keeper, q.minded = w.Value, never
				break
			}
		}
	}
}

// delivery is what is still to be told when the lock is released: the observer of a receipt, then the holder of a ticket.
type delivery struct {
	receipt *Receipt // nil = none
	ticket  *Ticket  // nil = none
}

// unlock releases the queue's lock, and then tells everybody concerned what has happened under it.
func (p *Pool) unlock(now int64) {
	q := p.queue
	p.shareWaiting(now)
	q.publish()
	if at := q.next(); q.keeper != nil && at < q.minded {
		q.minded = at
		q.keeper.poke()
	}
	out := q.out
	q.out = nil
	q.mu.Unlock()
	for _, d := range out {
		if d.receipt != nil {
			p.tell(func(o Observer) { o.Decided(d.receipt) })
		}
		if d.ticket != nil {
			close(d.ticket.done)
		}
	}
}

// changes is when what keeps the endpoints from serving may lapse by itself: a circuit lets a probe through, a reading that vetoes
// becomes too old.
func (v *View) changes() int64 {
	next := int64(never)
	after := func(at int64) {
		if at > v.now && at < never-int64(tick) {
			next = min(next, (at+int64(tick)-1)/int64(tick)*int64(tick)) // decisions read the clock in whole ticks
		}
	}
	stale := int64(v.cfg.Freshness.StaleAfter) + 1 // what is no load figure
	if v.poolCap == CapShare {
		after(v.now + int64(v.cfg.Shares.Memory)/32) // what is kept for a class decays
	}
	for i := range v.cands {
		c, e := &v.cands[i], v.set.list[i].live
		switch c.excluded() {
		case NoReason:
			continue
		case CircuitOpen:
			after(e.circuit.until.Load())
			after(e.probed.Load() + int64(v.cfg.Circuit.MaxOpenFor))
		case Asleep:
			after(c.rep.asleepAt + stale)
		case Unhealthy:
			after(c.rep.unhealthyAt + stale)
		case SeedSpent:
			after(v.now + int64(100*time.Millisecond)) // its lease or its rest may end
		}
		for f, known := range c.rep.known { // its own caps read them, and that of the whole pool
			if known {
				after(c.rep.at[f] + c.rep.staleAfter + 1)
			}
		}
	}
	return next
}

// particular says that it is the request itself which does not fit, where a smaller one, or one of another class or tenant, might.
func (v *View) particular() bool { return v.ofItsGroup() || v.dropped || v.tooLong() }

// ofItsGroup says that its tenant or its class has no room for it.
func (v *View) ofItsGroup() bool {
	return v.poolCap == CapTenant || v.poolCap == CapTenantTokens || v.poolCap == CapShare
}

// tooLong says that a shorter request fits on more endpoints.
func (v *View) tooLong() bool {
	for i := range v.cands {
		if v.cands[i].barrier == TooLong {
			return true
		}
	}
	return false
}

// bySize says that what keeps the request out keeps out all of its group that are not smaller.
func (v *View) bySize() bool { return v.ofItsGroup() && !v.dropped && !v.tooLong() }

// leastRefused is the smallest size of those that are kept out with the request, see bySize, tokens; 0 = all are.
func (v *View) leastRefused() int64 {
	if v.poolCap == CapTenant || v.poolCap == CapShare && !v.admits(1) {
		return 0
	}
	return v.size.tokens()
}

// spent says that what keeps the request out is of its own prefix: the seeds of its group, or what the policy makes of it.
func (v *View) spent() bool {
	for i := range v.cands {
		if v.cands[i].limit == SeedSpent {
			return true
		}
	}
	return v.unbound
}

// holds is the longest prompt that any endpoint can hold which could serve the request, tokens; 0 = that is not known.
func (v *View) holds() float64 {
	most := 0.0
	for i, f := range v.flags {
		if c := &v.cands[i]; f&isEligible != 0 {
			if c.load.KVCapacity == 0 {
				return 0
			}
			most = max(most, c.load.KVCapacity)
		}
	}
	return most
}

// happened tells the queue of something that can have made room.
func (p *Pool) happened() {
	q := p.queue
	if q == nil {
		return
	}
	q.events.Add(1)
	if q.waiting.Load() == 0 {
		return
	}
	_, now := p.now()
	q.mu.Lock()
	p.offer(now)
	p.unlock(now)
}

// sooner tells the queue that some endpoint has less to do than was believed, by which a deadline may be met.
func (p *Pool) sooner() {
	q := p.queue
	if q == nil {
		return
	}
	q.sooners.Add(1)
	if q.dated.Load() > 0 {
		p.happened()
	}
}

// Tick lets time do its part: requests that have waited too long are rejected, and those that fit since a reading has become too
// old or a circuit half open are served. It returns when it should be called next, on the scale of Config.Now, which any later call to
// the pool may bring forward; the zero time while nobody waits. Callers who wait in Reserve call it themselves; it is for hosts with
// tickets of their own. Without a queue it does nothing.
func (p *Pool) Tick() (next time.Time) {
	q := p.queue
	if q == nil {
		return time.Time{}
	}
	_, now := p.now()
	q.mu.Lock()
	p.offer(now)
	at := q.next()
	p.unlock(now)
	if at == never {
		return time.Time{}
	}
	return p.base.Add(time.Duration(at))
}

// next is when Tick has something to do; q.mu is held.
func (q *queue) next() int64 {
	expiry, waits := q.state.NextExpiry()
	if !waits {
		return never
	}
	return min(q.wakeAt, expiry)
}

// refuse is the error of a ticket that will not be served, with its receipt for the observer; q.mu is held.
func (p *Pool) refuse(t *Ticket, reason error, now int64) (*RejectError, *Receipt) {
	d := Decision{
		Number: p.grants.Load() + 1, At: p.base.Add(time.Duration(now)), Policy: p.cfg.Policy.Name(), TieWindow: ms(p.cfg.TieWindow),
		Waited: time.Duration(max(now-t.since, 0)),
	}
	p.drain.measure(now, p.set.Load())
	err := &RejectError{Reason: reason, Decision: d}
	if reason != ErrDeadline && !p.payerFull(t) { // as without a queue, see retryAfter
		err.RetryAfter = p.drain.wait()
	}
	p.counters.rejected[rejection(reason)].Add(1)
	if !t.full {
		return err, nil
	}
	r := p.receipt(&t.req, t.size, d)
	r.Rejected = err.Code()
	return err, r
}

// shareWaiting tells the shares what waits of each class; q.mu is held.
func (p *Pool) shareWaiting(now int64) {
	if p.shares == nil {
		return
	}
	for rank := range ranks {
		c := p.queue.state.Class(rank, now)
		p.shares.waiting(rank, admission.Amount{Requests: c.Waiters, Tokens: c.Tokens}, now)
	}
}
