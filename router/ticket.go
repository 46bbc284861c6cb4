package router

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/isobar-go/isobar/admission"
)

// Ticket is a request that waits for room, or has waited. It ends when Done is closed: with a lease, which the host must end whether
// it has asked for it or not, or with the error that Reserve would have returned. Its methods may be called from any goroutine at
// any time.
type Ticket struct {
	pool   *Pool
	place  admission.Waiter[*Ticket] // guarded by the queue's mutex
	req    Request
	size   sizes
	kind   uint64  // the same for those that fit in the same places, see kindOf
	shape  uint64  // the kind with its prefix, where that matters
	group  uint64  // the shape with tenant and class, where they matter
	sooner uint64  // queue.sooners before it was looked at
	parts  float64 // weight of its tenant
	since  int64   // ns
	full   bool    // its receipt is made
	stays  bool    // a goroutine of its own waits and minds the time; guarded by the queue's mutex

	done   chan struct{} // closed at the end
	wake   chan struct{} // of one place: the time to mind has changed
	ended  bool          // guarded by the queue's mutex
	joined bool          // likewise: it has been in the queue

	lease *Lease // after done
	err   error
}

// Done is closed when the ticket has a result.
func (t *Ticket) Done() <-chan struct{} { return t.done }

// Lease is the result: the lease, or why there is none; of a cancelled ticket an error that is context.Canceled. Before Done is closed
// both are nil. The lease must be ended like any other.
func (t *Ticket) Lease() (*Lease, error) {
	select {
	case <-t.done:
		return t.lease, t.err
	default:
		return nil, nil
	}
}

// Cancel gives the request up: it takes the ticket out of the queue, or cancels the lease that it has been granted, as [Lease.Cancel]
// does, so that the next in the queue gets the room. It does nothing once that lease has ended, so deferring it is safe where the
// stream ends in the same function.
func (t *Ticket) Cancel() {
	if !t.quit() && t.lease != nil {
		t.lease.Cancel()
	}
}

// quit takes the ticket out of the queue, and reports whether it was there.
func (t *Ticket) quit() bool {
	p := t.pool
	q := p.queue
	if q == nil {
		return false
	}
	_, now := p.now()
	q.mu.Lock()
	defer p.unlock(now)
	if t.ended || !q.state.Remove(&t.place) {
		return false
	}
	q.counts.cancelled.Add(1)
	p.leave(t, nil, errCancelled(), nil)
	return true
}

// Enqueue is Reserve for a host that does not want to wait itself: the ticket is done already, or waits in the queue. Tickets become
// done inside the calls that make room: the end of a lease, a snapshot, a change of the endpoints, and [Pool.Tick], with which the host
// lets time do its part. An event loop calls Tick after each round in which it has called the pool, and again at the time that Tick
// names; where some goroutine waits in Reserve, that one sees to it. The error is that of a request that is refused at once, as by a
// pool without a queue.
func (p *Pool) Enqueue(req Request) (*Ticket, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	l, t, err := p.enter(&req, false)
	if err != nil {
		return nil, err
	}
	if l != nil {
		t = &Ticket{pool: p, done: make(chan struct{}), ended: true, lease: l}
		close(t.done)
	}
	return t, nil
}

// result is what enter returns for a ticket that has been through the queue's lock: one that has ended there need not wait.
func (t *Ticket) result() (*Lease, *Ticket, error) {
	select {
	case <-t.done:
		if t.lease != nil || t.err != nil {
			return t.lease, nil, t.err
		}
	default:
	}
	return nil, t, nil
}

func (q *queue) ticket(p *Pool, req *Request, now int64, full, stays bool) *Ticket {
	t := &Ticket{
		pool: p, req: *req, parts: q.weight(req.Tenant), size: req.sizes(p.cfg.DefaultOutputTokens), since: now, full: full, stays: stays,
		done: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	t.place.Value = t
	t.kind = kindOf(&t.req)
	t.shape = t.kind
	if p.gate != nil && req.Prefix.Blocks() > 0 {
		t.shape = mix(t.kind ^ mix(req.Prefix.Head(min(2, req.Prefix.Blocks())).Fingerprint()|1))
	}
	// With what the checks beside the endpoints look at: who is kept by his tenant's cap or his class's share is passed over with all
	// like him.
	t.group = mix(t.shape ^ mix(p.payer(&t.req)^mix(uint64(t.req.Class)+1)))
	return t
}

// kindOf is the same for requests of which one fits on no endpoint if another does not, unless it is their length that matters, or
// the seeds of their prefixes.
func kindOf(req *Request) uint64 {
	var d xxhash.Digest
	d.Reset()
	var b [8]byte
	num := func(n uint64) {
		binary.LittleEndian.PutUint64(b[:], n)
		_, _ = d.Write(b[:])
	}
	text := func(s string) {
		num(uint64(len(s)))
		_, _ = d.WriteString(s)
	}
	text(req.Model)
	text(string(req.Role.orBoth()))
	if req.ExcludeHard {
		num(uint64(len(req.Exclude)))
		for _, id := range req.Exclude {
			text(id)
		}
	}
	return d.Sum64()
}

// weight is the tenant's weight within the bounds of the queue.
func (q *queue) weight(tenant string) float64 {
	if q.cfg.Weight == nil {
		return 1
	}
	w := q.cfg.Weight(tenant)
	if !(w > 1e-6) {
		return 1e-6
	}
	return min(w, 1e6)
}

// latest is the last moment at which the request can start and meet its deadline, if nothing is before it, 0 = it has none; or it is
// hopeless: it could not be met anywhere even with room.
func (p *Pool) latest(t *Ticket) (latest int64, hopeless bool) {
	if t.req.Deadline.IsZero() {
		return 0, false
	}
	at, now := p.now()
	if t.req.late(at) {
		return 0, true
	}
	v := p.open(&t.req, at, now, true)
	defer p.close(v)
	if v.choosable == 0 && v.rejection() == ErrDeadline {
		return 0, true
	}
	// No more than half of the scale, so that nothing overflows.
	latest = p.since(t.req.Deadline) - int64(min(v.soonest()*1e6, never/2))
	if latest == 0 {
		latest = -1
	}
	return latest, false
}

// poke tells the goroutine that waits with the ticket to look at the time again.
func (t *Ticket) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}
