package reserve_test

import (
	"cmp"
	"slices"
	"time"

	"github.com/isobar-go/isobar/reserve"
)

// The naive twin: it keeps every lease and every event for ever and recomputes each sum from the definition. Its times
// are milliseconds after epoch.

var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func ms(n int64) time.Time { return epoch.Add(time.Duration(n) * time.Millisecond) }

type modelEvent struct {
	lease     *modelLease
	at        int64
	end       bool
	amount    reserve.Load
	forgotten bool
}

type modelLease struct {
	account    *modelAccount
	dispatched int64
	cost, left reserve.Cost
	live       bool
	started    bool
	answered   bool // a snapshot came with its answer
}

type modelAccount struct {
	id, incarnation string
	lag, horizon    int64
	maxEnded        int

	closed    bool
	leases    []*modelLease
	events    []*modelEvent
	observed  *int64
	restarted *int64
	forgotten int64
}

func load(requests int64, c reserve.Cost) reserve.Load {
	return reserve.Load{Requests: requests, Prefill: c.Prefill, Decode: c.Decode, KV: c.KV}
}

func plus(a, b reserve.Load) reserve.Load {
	return reserve.Load{
		Requests: a.Requests + b.Requests, Prefill: a.Prefill + b.Prefill, Decode: a.Decode + b.Decode, KV: a.KV + b.KV,
	}
}

func minus(a, b reserve.Load) reserve.Load {
	return reserve.Load{
		Requests: a.Requests - b.Requests, Prefill: a.Prefill - b.Prefill, Decode: a.Decode - b.Decode, KV: a.KV - b.KV,
	}
}

func (a *modelAccount) sums() (s reserve.Sums) {
	for _, l := range a.leases {
		if !l.live {
			continue
		}
		s.Live = plus(s.Live, load(1, l.left))
		if !l.contained() {
			s.Unobserved = plus(s.Unobserved, load(1, l.left))
		}
	}
	for _, e := range a.events {
		if a.observed != nil && a.useful(e) && e.lease.contained() {
			s.Departed = plus(s.Departed, e.amount)
		}
	}
	return s
}

func (a *modelAccount) starting() (n int64) {
	for _, l := range a.leases {
		if l.live && !l.started {
			n++
		}
	}
	return n
}

// contained tells whether the newest snapshot can contain the lease.
func (l *modelLease) contained() bool {
	a := l.account
	return l.answered || a.observed != nil && l.dispatched < *a.observed-a.lag
}

// useful tells whether e is or can become part of Departed.
func (a *modelAccount) useful(e *modelEvent) bool {
	return !e.forgotten &&
		(a.observed == nil || e.at >= *a.observed) &&
		(a.restarted == nil || e.lease.dispatched >= *a.restarted)
}

func (l *modelLease) take(at int64, end bool, amount reserve.Load) {
	l.left.Prefill -= amount.Prefill
	l.left.Decode -= amount.Decode
	l.left.KV -= amount.KV
	if amount == (reserve.Load{}) {
		return
	}
	a := l.account
	for _, e := range a.events {
		if e.at < at-a.horizon {
			e.forgotten = true
		}
	}
	a.events = append(a.events, &modelEvent{lease: l, at: at, end: end, amount: amount})
	var known []*modelEvent
	for _, e := range a.events {
		if e.end == end && a.useful(e) {
			known = append(known, e)
		}
	}
	slices.SortStableFunc(known, func(x, y *modelEvent) int { return cmp.Compare(x.at, y.at) })
	if len(known) > a.maxEnded {
		known[0].forgotten = true
		a.forgotten++
	}
}

func (l *modelLease) firstToken(at int64) bool {
	if !l.live || l.started {
		return false
	}
	l.started = true
	l.take(at, false, reserve.Load{Prefill: l.left.Prefill})
	return true
}

func (l *modelLease) progress(at, generated int64) bool {
	left := max(0, l.cost.Decode-generated)
	if !l.live || generated <= 0 || l.started && left >= l.left.Decode {
		return false
	}
	l.started = true
	l.take(at, false, reserve.Load{Prefill: l.left.Prefill, Decode: max(0, l.left.Decode-left)})
	return true
}

func (l *modelLease) release(at int64) bool {
	if !l.live {
		return false
	}
	l.live = false
	l.take(at, true, load(1, l.left))
	return true
}

func (a *modelAccount) observe(at int64, answered *modelLease) bool {
	if a.observed != nil && at <= *a.observed {
		return false
	}
	a.observed = &at
	if l := answered; l != nil && l.account == a && l.live && (a.restarted == nil || l.dispatched >= *a.restarted) {
		l.answered = true
	}
	return true
}

func (a *modelAccount) restart(at int64) {
	if a.restarted == nil || at > *a.restarted {
		a.restarted = &at
	}
}

func (a *modelAccount) busy() bool {
	return slices.ContainsFunc(a.leases, func(l *modelLease) bool { return l.live })
}
