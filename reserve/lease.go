package reserve

import (
	"sync/atomic"
	"time"
)

const (
	leaseFree = iota
	leaseLive
)

// Lease is the right of one request to its cost, from [Account.Reserve] to [Lease.Release]. The zero value is not
// live. A Lease must not be copied. Once reserved, all methods may be called from any goroutine, in any order and any
// number of times; calls on a lease that is not live do nothing.
type Lease struct {
	state atomic.Uint32

	// Written by Reserve only.
	account *Account
	cost    Cost
	at      time.Time

	rec *record // guarded by account.mu; nil when ended
}

// lock returns the account, locked, and the lease's record, or nil when the lease is not live.
func (l *Lease) lock() (*Account, *record) {
	if l.state.Load() != leaseLive {
		return nil, nil
	}
	a := l.account
	a.mu.Lock()
	if l.rec == nil {
		a.mu.Unlock()
		return nil, nil
	}
	return a, l.rec
}

// FirstToken tells that the first output token came at the time at: the prefill share ends. It returns true for the
// first call on a live lease that no effective [Lease.Progress] preceded.
func (l *Lease) FirstToken(at time.Time) bool {
	a, r := l.lock()
	if a == nil {
		return false
	}
	first := a.startLocked(r)
	if p := r.left.Prefill; first && p > 0 {
		a.takeLocked(r, at, &Load{Prefill: p}, &a.moves)
		a.publishLocked()
	}
	a.mu.Unlock()
	return first
}

// Progress tells that generated output tokens, counted from the start of the request, had come at the time at. The
// decode share becomes what is left of the estimate, never below zero, and the first token counts as come. It returns
// true when it changed what the lease holds or was the first sign of output. A count of zero or below, or not above
// an earlier one, is ignored.
func (l *Lease) Progress(at time.Time, generated int64) bool {
	if generated <= 0 {
		return false
	}
	a, r := l.lock()
	if a == nil {
		return false
	}
	defer a.mu.Unlock()
	var amount Load
	if left := max(0, r.cost.Decode-generated); left < r.left.Decode {
		amount.Decode = r.left.Decode - left
	}
	if r.started && amount.Decode == 0 {
		return false
	}
	amount.Prefill = r.left.Prefill
	a.startLocked(r)
	if amount != (Load{}) {
		a.takeLocked(r, at, &amount, &a.moves)
		a.publishLocked()
	}
	return true
}

// Release ends the lease at the time at and gives back all it still holds. It returns true for exactly one call.
func (l *Lease) Release(at time.Time) bool {
	a, r := l.lock()
	if a == nil {
		return false
	}
	held := r.held()
	a.takeLocked(r, at, &held, &a.ends)
	r.isLive = false
	a.startLocked(r)
	a.live.remove(&r.live)
	a.settleLocked(r)
	a.publishLocked()
	l.rec = nil
	over := a.closed && a.live.n == 0
	l.state.Store(leaseFree)
	a.mu.Unlock()
	if over {
		a.ledger.forget(a)
	}
	return true
}

// Live tells whether the lease has been reserved and not released.
func (l *Lease) Live() bool { return l.state.Load() == leaseLive }

// Remaining returns what the lease still holds: zero when it is not live.
func (l *Lease) Remaining() Cost {
	a, r := l.lock()
	if a == nil {
		return Cost{}
	}
	defer a.mu.Unlock()
	return r.left
}

// Cost returns the cost as reserved, also after the end; zero for a lease never reserved.
func (l *Lease) Cost() Cost { return l.cost }

// DispatchedAt returns the time given to [Account.Reserve], also after the end; zero for a lease never reserved.
func (l *Lease) DispatchedAt() time.Time { return l.at }
