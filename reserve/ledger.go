package reserve

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Ledger is the set of accounts of all endpoints. [NewLedger] makes one. All methods may be called from any goroutine
// at any time.
type Ledger struct {
	cfg Config // effective, immutable

	mu       sync.Mutex // taken before the mutex of an account, never after
	accounts map[accountKey]*Account
}

type accountKey struct{ id, incarnation string }

// NewLedger returns an empty ledger, or the error of [Config.Validate].
func NewLedger(cfg Config) (*Ledger, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Ledger{cfg: cfg.withDefaults(), accounts: make(map[accountKey]*Account)}, nil
}

// Config returns the effective settings, with the defaults filled in.
func (l *Ledger) Config() Config { return l.cfg }

// Account returns the account of one incarnation of an endpoint: the one that is open or, though closed, still has
// live leases, which opens it again with everything it knows; else a new one. Accounts that differ in either string
// share nothing. One Close closes it, however often it was asked for.
func (l *Ledger) Account(id, incarnation string) *Account {
	k := accountKey{id, incarnation}
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accounts[k]; a != nil {
		a.mu.Lock()
		a.closed = false
		a.mu.Unlock()
		return a
	}
	a := &Account{
		ledger: l, id: id, incarnation: incarnation,
		observed: never, visible: never, restarted: never,
	}
	l.accounts[k] = a
	return a
}

// Close tells that the endpoint of a was removed. Its leases stay valid and end as usual; new ones are refused with
// [ErrClosed]. The ledger forgets the account with its last lease; until then [Ledger.Account] finds it. Closing twice
// does nothing more.
func (l *Ledger) Close(a *Account) {
	if a.ledger != l {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	l.forgetLocked(a)
}

func (l *Ledger) forget(a *Account) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLocked(a)
}

// forgetLocked takes a out of the ledger if it is closed and has no live lease. It may be out already, and a later
// account of the same name in its place.
func (l *Ledger) forgetLocked(a *Account) {
	a.mu.Lock()
	over := a.closed && a.live.n == 0
	a.mu.Unlock()
	// With l.mu held a closed account is not opened again and takes no new lease.
	if k := (accountKey{a.id, a.incarnation}); over && l.accounts[k] == a {
		delete(l.accounts, k)
	}
}

// LeaseInfo describes one live lease. It is a plain value: copies are independent and may be used by any goroutine.
type LeaseInfo struct {
	// ID and Incarnation name the endpoint.
	ID, Incarnation string
	// DispatchedAt is the time given to Reserve.
	DispatchedAt time.Time
	// Cost is what was reserved, Remaining what is still held, in tokens.
	Cost, Remaining Cost
	// Closed tells that the endpoint was removed.
	Closed bool
}

// Oldest returns up to n live leases, those dispatched first at the front, over all accounts including the closed
// ones; nil for n <= 0 or none. Accounts are read one after the other, so leases that end meanwhile may be included.
func (l *Ledger) Oldest(n int) []LeaseInfo {
	if n <= 0 {
		return nil
	}
	l.mu.Lock()
	accounts := make([]*Account, 0, len(l.accounts))
	for _, a := range l.accounts {
		accounts = append(accounts, a)
	}
	l.mu.Unlock()
	var out []LeaseInfo
	for _, a := range accounts {
		out = a.appendOldest(out, n)
	}
	slices.SortStableFunc(out, func(x, y LeaseInfo) int {
		return cmp.Or(
			x.DispatchedAt.Compare(y.DispatchedAt), cmp.Compare(x.ID, y.ID), cmp.Compare(x.Incarnation, y.Incarnation))
	})
	return out[:min(n, len(out)):min(n, len(out))]
}

func (a *Account) appendOldest(out []LeaseInfo, n int) []LeaseInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	for e := a.live.head; e != nil && n > 0; e, n = e.next, n-1 {
		out = append(out, LeaseInfo{
			ID: a.id, Incarnation: a.incarnation, Closed: a.closed,
			DispatchedAt: a.base.Add(time.Duration(e.key)), Cost: e.own.cost, Remaining: e.own.left,
		})
	}
	return out
}
