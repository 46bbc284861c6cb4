package reserve

import "fmt"

// MaxTokens is the bound of one figure of a Cost.
const MaxTokens = maxTokens

// InvariantsOn tells that the build is a slow one.
const InvariantsOn = invariantsOn

// Check recomputes everything the account keeps from its lists and returns the first difference.
func (a *Account) Check() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var want [sumCount]Load
	refs := map[*record]int{}
	pending := map[*record]Load{}
	for _, log := range []*list[event]{&a.ends, &a.moves} {
		if log.n > a.ledger.cfg.MaxEnded {
			return fmt.Errorf("%d events remembered", log.n)
		}
		n := 0
		for e := log.head; e != nil; e = e.next {
			n++
			r := e.own.rec
			if e.key < a.observed || r.live.key < a.restarted {
				return fmt.Errorf("event at %d of a lease of %d remembered in vain", e.key, r.live.key)
			}
			refs[r]++
			if r.isFresh {
				p := pending[r]
				p.add(&e.own.amount)
				pending[r] = p
			} else {
				want[departed].add(&e.own.amount)
			}
		}
		if err := checkList(log, n); err != nil {
			return err
		}
	}
	n := 0
	for e := a.live.head; e != nil; e = e.next {
		n++
		r := e.own
		held := r.held()
		if !r.isLive || r.isFresh == (r.answered || e.key < a.visible) {
			return fmt.Errorf("lease of %d: live %v fresh %v, visible %d", e.key, r.isLive, r.isFresh, a.visible)
		}
		if r.isFresh {
			want[unobserved].add(&held)
		} else {
			want[contained].add(&held)
		}
		if r.refs != refs[r] {
			return fmt.Errorf("lease of %d: %d events, counted %d", e.key, refs[r], r.refs)
		}
	}
	if err := checkList(&a.live, n); err != nil {
		return err
	}
	n = 0
	for e := a.fresh.head; e != nil; e = e.next {
		n++
		r := e.own
		if !r.isFresh || !r.isLive && r.refs == 0 || r.pending != pending[r] || r.refs != refs[r] {
			return fmt.Errorf("fresh lease of %d: %+v", e.key, *r)
		}
	}
	if err := checkList(&a.fresh, n); err != nil {
		return err
	}
	if want != a.sums || a.dirty != 0 {
		return fmt.Errorf("sums %+v, lists give %+v, dirty %b", a.sums, want, a.dirty)
	}
	return nil
}

func checkList[T any](l *list[T], n int) error {
	if l.n != n {
		return fmt.Errorf("list of %d counts %d", n, l.n)
	}
	for e := l.head; e != nil; e = e.next {
		if e.next != nil && (e.next.key < e.key || e.next.prev != e) || e.next == nil && l.tail != e {
			return fmt.Errorf("list broken at %d", e.key)
		}
	}
	return nil
}

// Memory returns the records and events held, in use or free.
func (a *Account) Memory() (records, events int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	seen := map[*record]bool{}
	for e := a.live.head; e != nil; e = e.next {
		seen[e.own] = true
	}
	for e := a.fresh.head; e != nil; e = e.next {
		seen[e.own] = true
	}
	for _, log := range []*list[event]{&a.ends, &a.moves} {
		events += log.n
		for e := log.head; e != nil; e = e.next {
			seen[e.own.rec] = true
		}
	}
	records = len(seen)
	for r := a.freeRecords; r != nil; r = r.free {
		records++
	}
	for e := a.freeEvents; e != nil; e = e.free {
		events++
	}
	return records, events
}

// Accounts returns how many accounts the ledger knows.
func (l *Ledger) Accounts() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.accounts)
}
