package router

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isobar-go/isobar/admission"
)

// never is a time that does not come, ns on the pool's scale.
const never = math.MaxInt64

// queue is what waits in front of a pool. Whatever can make room for a request (the end of a lease, a snapshot, a change of the
// endpoints) is an event: it is counted, and where somebody waits, everybody who may fit now is offered the room, in order, by the
// goroutine that caused it. So after an event nobody waits who fits, and a newcomer can be served at once without passing anybody
// by; and one who joins after an event has missed it, but has looked after it.
type queue struct {
	cfg  Queue
	caps admission.Caps

	events  atomic.Uint64 // what can have made room
	waiting atomic.Int64  // requests in state
	dated   atomic.Int64  // those of them with a deadline
	sooners atomic.Uint64 // what can only have made a deadline easier to meet

	mu     sync.Mutex // taken before decide
	state  *admission.Queue[*Ticket]
	seen   uint64            // events that everybody who waits has been offered the room of
	full   map[uint64]noRoom // by shape, kind or group of request
	wakeAt int64             // when time alone may make room, ns; never = not
	keeper *Ticket           // the waiting caller whose timer minds the time for all
	minded int64             // the time that it minds, ns
	out    []delivery        // not told yet

	counts queueCounts // written with mu held
}

// noRoom says that there is no room for some requests: since which event, and until when time alone may make some, ns.
type noRoom struct {
	known bool
	event uint64
	until int64
	holds float64 // the longest prompt for which that is so, tokens; longer ones may not fit at all; 0 = any
	least int64   // the smallest size for which that is so, tokens; 0 = any

	looked   bool // whether there is room or not, such requests may wait for it
	lookedAt uint64
}

// queueCounts can be read without the lock, so that a policy or an observer can ask for them at any time.
type queueCounts struct {
	queued, granted, cancelled, displaced, timedOut, missed, refused atomic.Uint64
	longest                                                          atomic.Int64 // ns
	tokens                                                           atomic.Int64
	classes                                                          [ranks]atomic.Int64 // waiting, by rank
	oldest                                                           atomic.Int64        // when the oldest joined, ns; never = none
}

// publish makes the state of the queue readable; q.mu is held.
func (q *queue) publish() {
	n := &q.counts
	n.tokens.Store(q.state.Tokens())
	for rank := range ranks {
		n.classes[rank].Store(int64(q.state.Class(rank, 0).Waiters))
	}
	oldest, waits := q.state.Since()
	if !waits {
		oldest = never
	}
	n.oldest.Store(oldest)
	q.waiting.Store(int64(q.state.Len()))
}

// maxShapes bounds the memory of what there is no room for.
const maxShapes = 4096

func newQueue(cfg *Config) (*queue, error) {
	if cfg.Queue.Max == 0 {
		return nil, nil
	}
	state, err := admission.NewQueue[*Ticket](cfg.Queue.admission())
	if err != nil {
		return nil, err
	}
	return &queue{
		cfg: cfg.Queue, caps: cfg.Caps, state: state, full: map[uint64]noRoom{}, wakeAt: never, seen: math.MaxUint64, minded: never,
	}, nil
}

// enter serves a request at once or lets it wait: it returns one of a lease, a ticket and an error.
func (p *Pool) enter(req *Request, stays bool) (*Lease, *Ticket, error) {
	at, now := p.now()
	full := p.sample()
	q := p.queue
	if q == nil {
		l, err := p.serve(req, at, now, full)
		return l, nil, err
	}
	if q.waiting.Load() == 0 {
		event, sooner := q.events.Load(), q.sooners.Load()
		a := p.attempt(req, at, now, full)
		if a.lease != nil || a.err != nil || !q.waits(&a) {
			l, err := p.tellAttempt(&a)
			return l, nil, err
		}
		t := q.ticket(p, req, now, full, stays)
		q.mu.Lock()
		q.remember(t, event, a.view)
		p.close(a.view)
		t.sooner = sooner
		if q.seen != event && q.seen == q.events.Load() { // others were offered what this one has not looked for
			q.events.Add(1)
		}
		p.join(t, now)
		p.unlock(now)
		return t.result()
	}
	t := q.ticket(p, req, now, full, stays)
	q.mu.Lock()
	p.enterBehind(t, at, now)
	p.unlock(now)
	return t.result()
}

// enterBehind serves a request while others wait, or lets it wait behind them; q.mu is held. Those who wait come first: whoever of them
// fits is served before the newcomer looks, so that it passes nobody by.
func (p *Pool) enterBehind(t *Ticket, at time.Time, now int64) {
	q := p.queue
	t.sooner = q.sooners.Load()
	p.offer(now)
	if full, _ := q.knownFull(t, q.seen, now); !full {
		q.events.Add(1) // there may be room that nobody has told of yet
		p.offer(now)
	}
	full, _ := q.knownFull(t, q.seen, now)
	if full && t.req.Class != ClassSheddable && !q.neverFits(p.payer(&t.req), t.size) {
		p.join(t, now)
		return
	}
	a := p.attempt(&t.req, at, now, t.full)
	if a.lease != nil || a.err != nil || !q.waits(&a) {
		p.finish(t, &a)
		return
	}
	q.remember(t, q.seen, a.view)
	p.close(a.view)
	p.join(t, now)
}

// neverFits says that a request alone is larger than what its tenant may have open.
func (q *queue) neverFits(payer uint64, size sizes) bool {
	return payer != 0 && q.caps.CheckTenant(admission.Open{}, size.tokens()) != admission.Admitted
}

// waits says whether the request of an attempt that came to nothing may wait for the reason to pass.
func (q *queue) waits(a *attempt) bool {
	if v := a.view; v.req.Class == ClassSheddable || q.neverFits(v.payer, v.size) {
		return false
	}
	switch a.reason {
	case ErrSaturated, ErrTelemetryIncomplete:
		return true
	case ErrNoEndpoints:
		return q.cfg.WaitForEndpoints
	}
	return false
}

// remember notes what has kept a request out since an event, and until when: those of its kind, of its shape, those of its group that
// are not smaller, or it alone.
func (q *queue) remember(t *Ticket, event uint64, v *View) {
	until := v.changes()
	q.wakeAt = min(q.wakeAt, until)
	if len(q.full)+3 > maxShapes {
		clear(q.full)
	}
	n := noRoom{known: true, event: event, until: until, holds: v.holds()}
	seen := q.full[t.shape]
	seen.looked, seen.lookedAt = true, event
	switch {
	case !v.particular():
		n.looked, n.lookedAt = true, event
		seen = n
		if !v.spent() {
			q.full[t.kind] = n
		}
	case v.bySize():
		n.least = v.leastRefused()
		q.full[t.group] = n
	}
	q.full[t.shape] = seen
}

// knownFull says that nothing has happened since there was found to be no room for requests like this one, and whether that holds for
// all of its group.
func (q *queue) knownFull(t *Ticket, event uint64, now int64) (full, all bool) {
	for i, key := range [...]uint64{t.shape, t.kind, t.group} {
		n, ok := q.full[key]
		switch {
		case !ok || !n.known || n.event != event || n.until <= now:
		case n.holds > 0 && float64(t.size.prompt)+1 > n.holds:
		case i == 2 && (t.size.tokens() < n.least || !t.req.Deadline.IsZero()): // a deadline is looked at each time
		default:
			q.wakeAt = min(q.wakeAt, n.until)
			return true, n.least == 0
		}
	}
	return false, false
}

// join puts a ticket into the queue, or fails it; q.mu is held.
func (p *Pool) join(t *Ticket, now int64) {
	q := p.queue
	latest, hopeless := p.latest(t)
	if hopeless {
		p.fail(t, ErrDeadline, now)
		return
	}
	ask := admission.Ask{
		Rank: t.req.Class.rank(), Tenant: tenantHash(t.req.Tenant), Group: t.group, Cost: t.size.shareCost(), Weight: t.parts, Latest: latest,
	}
	displaced, err := q.state.Push(&t.place, ask, now)
	if err != nil {
		reason := ErrQueueFull
		if errors.Is(err, admission.ErrLate) {
			reason = ErrDeadline
		}
		p.fail(t, reason, now)
		return
	}
	t.joined = true
	for _, w := range displaced {
		q.counts.displaced.Add(1)
		p.fail(w.Value, ErrQueueFull, now)
	}
	q.counts.queued.Add(1)
	if !t.req.Deadline.IsZero() {
		q.dated.Add(1)
		if q.sooners.Load() != t.sooner { // which nobody has offered it
			q.events.Add(1)
		}
	}
	if q.keeper == nil && t.stays {
		q.keeper, q.minded = t, never
	}
	q.waiting.Store(int64(q.state.Len())) // before the events are looked at: see happened
	if q.seen != q.events.Load() {        // one of them may have come before it could be seen to wait
		p.offer(now)
	}
}
