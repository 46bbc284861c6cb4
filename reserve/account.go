package reserve

import (
	"errors"
	"math"
	"sync"
	"time"
)

// ErrClosed is returned by [Account.Reserve] after [Ledger.Close], until the account is opened again.
var ErrClosed = errors.New("reserve: account is closed")

// ErrInUse is returned by [Account.Reserve] for a lease that is live already.
var ErrInUse = errors.New("reserve: lease is in use")

var errZeroTime = errors.New("reserve: at is the zero time")

// never is earlier than every observation and restart.
const never = math.MinInt64

// Account holds the leases of one incarnation of one endpoint. [Ledger.Account] opens it. All methods may be called
// from any goroutine at any time.
type Account struct {
	pub published // a cache line, which its readers do not share with the mutex

	// Immutable.
	ledger          *Ledger
	id, incarnation string

	mu sync.Mutex // guards everything below

	// Times are nanoseconds since base, the first time the account was told.
	base       time.Time
	observed   int64 // T; never before the first observation
	visible    int64 // T - VisibilityLag; never before the first observation
	restarted  int64 // never before the first restart
	observedAt time.Time

	sums  [sumCount]Load
	dirty uint8 // bit i: sums[i] is not published yet

	live  list[record] // live leases by dispatch time
	fresh list[record] // leases dispatched at or after visible that live or have an event in a log, by dispatch time

	// Events at or after observed, of leases dispatched at or after restarted, by time.
	ends  list[event]
	moves list[event] // first tokens and progress

	forgotten int64
	closed    bool

	freeRecords *record
	freeEvents  *event
}

// record is the ledger's own memory of a lease. It outlives the end of the lease while events of it are in a log.
type record struct {
	live, fresh node[record] // key: dispatch time
	cost        Cost         // as reserved
	left        Cost         // what is still held
	pending     Load         // while in the fresh list: the sum of its events in the logs
	refs        int          // its events in the logs
	isLive      bool
	isFresh     bool
	started     bool    // the first token has come
	answered    bool    // a snapshot that came with its answer has been observed
	free        *record // next in the free list
}

// event is an amount that a lease ceased to hold at some time.
type event struct {
	node[event] // key: time
	rec         *record
	amount      Load
	free        *event // next in the free list
}

// ID returns the id of the endpoint.
func (a *Account) ID() string { return a.id }

// Incarnation returns the incarnation of the endpoint.
func (a *Account) Incarnation() string { return a.incarnation }

// Forgotten returns how many events (ends, first tokens, progress reports) were dropped because more than
// [Config].MaxEnded had to be remembered. It never falls.
func (a *Account) Forgotten() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.forgotten
}

// ObservedAt returns the newest observation time, false before the first.
func (a *Account) ObservedAt() (time.Time, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.observedAt, !a.observedAt.IsZero()
}

// relLocked returns t in nanoseconds since base; the first call fixes base. Beyond 292 years from it the result saturates.
func (a *Account) relLocked(t time.Time) int64 {
	if a.base.IsZero() {
		a.base = t
	}
	return int64(t.Sub(a.base))
}

// Reserve records that a request of cost c was dispatched at the time at, and makes l its lease. It either succeeds
// or changes nothing: the error is [ErrClosed], [ErrInUse], or names a bad argument (a negative figure of c, one above
// 2^40, the zero time). l is the caller's storage and need not be on the heap: the ledger keeps no pointer to it. Hand l
// to other goroutines only after Reserve has returned. An ended lease may be reserved again by a caller who knows that
// nobody else holds it any more; a late call from a former holder would reach the new use.
func (a *Account) Reserve(l *Lease, at time.Time, c Cost) error {
	if !c.valid() {
		return c.validate()
	}
	if at.IsZero() {
		return errZeroTime
	}
	if !l.state.CompareAndSwap(leaseFree, leaseLive) {
		return ErrInUse
	}
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		l.state.Store(leaseFree)
		return ErrClosed
	}
	t := a.relLocked(at)
	r := a.newRecordLocked()
	r.cost, r.left = c, c
	r.isLive = true
	a.live.insert(&r.live, t)
	held := Load{1, c.Prefill, c.Decode, c.KV}
	if t < a.visible {
		a.addLocked(contained, &held)
	} else {
		r.isFresh = true
		a.fresh.insert(&r.fresh, t)
		a.addLocked(unobserved, &held)
	}
	a.pub.starting.Add(1)
	a.publishLocked()
	l.account, l.rec, l.cost, l.at = a, r, c, at
	a.mu.Unlock()
	return nil
}

// startLocked notes the first token of a live record, or its end without one. It returns false where the token has come before.
func (a *Account) startLocked(r *record) bool {
	if r.started {
		return false
	}
	r.started = true
	a.pub.starting.Add(-1)
	return true
}

// takeLocked takes amount off a live record by an event at the time at.
func (a *Account) takeLocked(r *record, at time.Time, amount *Load, log *list[event]) {
	r.left.Prefill -= amount.Prefill
	r.left.Decode -= amount.Decode
	r.left.KV -= amount.KV
	if r.isFresh {
		a.subLocked(unobserved, amount)
	} else {
		a.subLocked(contained, amount)
	}
	if at.IsZero() {
		return // older than everything
	}
	t := a.relLocked(at)
	a.expireLocked(t)
	if t >= a.observed && r.live.key >= a.restarted {
		a.logLocked(r, t, amount, log)
	}
}

func (a *Account) logLocked(r *record, t int64, amount *Load, log *list[event]) {
	e := a.newEventLocked()
	e.rec, e.amount = r, *amount
	log.insert(&e.node, t)
	r.refs++
	if r.isFresh {
		r.pending.add(amount)
	} else {
		a.addLocked(departed, amount)
	}
	if log.n > a.ledger.cfg.MaxEnded {
		a.forgotten++
		a.dropLocked(log.head.own, log)
	}
}

// expireLocked forgets the events that are older than the horizon at the time now.
func (a *Account) expireLocked(now int64) {
	oldest := minus(now, int64(a.ledger.cfg.Horizon))
	a.pruneLocked(&a.ends, oldest)
	a.pruneLocked(&a.moves, oldest)
}

// pruneLocked drops the events before the time t.
func (a *Account) pruneLocked(log *list[event], t int64) {
	for log.head != nil && log.head.key < t {
		a.dropLocked(log.head.own, log)
	}
}

func (a *Account) dropLocked(e *event, log *list[event]) {
	log.remove(&e.node)
	r := e.rec
	r.refs--
	if r.isFresh {
		r.pending.sub(&e.amount)
	} else {
		a.subLocked(departed, &e.amount)
	}
	a.settleLocked(r)
	e.rec = nil
	e.free, a.freeEvents = a.freeEvents, e
}

// settleLocked frees a record that nothing needs any more.
func (a *Account) settleLocked(r *record) {
	if r.isLive || r.refs > 0 {
		return
	}
	if r.isFresh {
		a.fresh.remove(&r.fresh)
		r.isFresh = false
	}
	r.free, a.freeRecords = a.freeRecords, r
}

// Observe tells that a snapshot of the endpoint has arrived whose figures can have held since at (the time its poll was
// sent). It returns false, without effect, for the zero time and for a time not after that of an earlier observation.
// Its cost is proportional to the leases and events it moves, not to the live leases.
func (a *Account) Observe(at time.Time) bool { return a.ObserveAnswer(at, nil) }

// ObserveAnswer is Observe for a snapshot that came with the endpoint's answer to the request of l: its figures contain that
// request, however short a time ago it was dispatched, unless it has ended. l may be nil, or of another account, which
// makes it Observe.
func (a *Account) ObserveAnswer(at time.Time, l *Lease) bool {
	if at.IsZero() {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.relLocked(at)
	if t <= a.observed {
		return false
	}
	a.observed, a.observedAt = t, at
	a.visible = minus(t, int64(a.ledger.cfg.VisibilityLag))
	a.pruneLocked(&a.ends, t)
	a.pruneLocked(&a.moves, t)
	for a.fresh.head != nil && a.fresh.head.key < a.visible {
		a.containLocked(a.fresh.head.own)
	}
	// While a lease is live in this account, only holders of a.mu write its account and rec.
	if l != nil && l.state.Load() == leaseLive && l.account == a && l.rec != nil && l.rec.isFresh && l.rec.live.key >= a.restarted {
		l.rec.answered = true
		a.containLocked(l.rec)
	}
	a.publishLocked()
	return true
}

// containLocked takes a record out of those that no snapshot can contain.
func (a *Account) containLocked(r *record) {
	a.fresh.remove(&r.fresh)
	r.isFresh = false
	if r.isLive {
		held := r.held()
		a.subLocked(unobserved, &held)
		a.addLocked(contained, &held)
	}
	a.addLocked(departed, &r.pending)
	r.pending = Load{}
}

// Restart tells that the engine was started anew at the time at: no later snapshot can contain the leases dispatched
// before. They stay live and are never departed. The zero time and a time before an earlier restart have no effect.
// Its cost is proportional to the remembered events.
func (a *Account) Restart(at time.Time) {
	if at.IsZero() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.relLocked(at)
	if t <= a.restarted {
		return
	}
	a.restarted = t
	for _, log := range [...]*list[event]{&a.ends, &a.moves} {
		for n := log.head; n != nil; {
			e := n.own
			n = n.next
			if e.rec.live.key < t {
				a.dropLocked(e, log)
			}
		}
	}
	a.publishLocked()
}

// held returns what a live record holds.
func (r *record) held() Load { return Load{1, r.left.Prefill, r.left.Decode, r.left.KV} }

func (a *Account) newRecordLocked() *record {
	r := a.freeRecords
	if r == nil {
		r = new(record)
		r.live.own, r.fresh.own = r, r
		return r
	}
	a.freeRecords = r.free
	r.free = nil
	r.started, r.answered = false, false
	return r
}

func (a *Account) newEventLocked() *event {
	e := a.freeEvents
	if e == nil {
		e = new(event)
		e.own = e
		return e
	}
	a.freeEvents = e.free
	e.free = nil
	return e
}

// minus returns t - d for d >= 0 without wrapping around.
func minus(t, d int64) int64 {
	if t < math.MinInt64+d {
		return math.MinInt64
	}
	return t - d
}
