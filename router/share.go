package router

import (
	"sync"

	"github.com/isobar-go/isobar/admission"
)

// shares are the pool's parts of the capacity by class. Any number of goroutines may use them.
type shares struct {
	mu     sync.Mutex // taken inside decide or alone
	shares *admission.Shares
}

// newShares is nil where nothing is kept for anybody.
func newShares(cfg *Config) (*shares, error) {
	if !cfg.Shares.on() {
		return nil, nil
	}
	s, err := admission.NewShares(cfg.Shares.admission())
	if err != nil {
		return nil, err
	}
	return &shares{shares: s}, nil
}

// shareCost is what a request takes of a share, tokens.
func (s sizes) shareCost() int64 { return max(s.tokens(), 1) }

// capacity is what the pool can hold at once, of which this gateway has its part.
func (v *View) capacity() admission.Amount {
	caps := &v.cfg.Caps
	out := admission.Amount{Requests: caps.Aggregate}
	endpoints, tokens := 0, 0.0
	known := true
	for i := range v.cands {
		c := &v.cands[i]
		switch c.barrier {
		case Draining, Asleep, CircuitOpen, Unhealthy:
			continue
		}
		endpoints++
		known = known && c.load.KVCapacity > 0
		tokens += c.load.KVCapacity
	}
	if out.Requests == 0 {
		out.Requests = caps.Endpoint * endpoints
	}
	if known {
		out.Tokens = int64(tokens / v.replicas)
	}
	if out.Requests > 0 {
		out.Requests = max(out.Requests/max(int(v.replicas), 1), 1)
	}
	return out
}

// overShare says that what is left is reserved for more important classes.
func (v *View) overShare() bool {
	if v.shares == nil {
		return v.recorded != nil && v.blocked && v.cfg.Shares.on()
	}
	v.blocked = !v.admits(v.size.shareCost())
	return v.blocked
}

// admits says whether a request of the class and that cost keeps what is reserved for others. There must be shares.
func (v *View) admits(cost int64) bool {
	capacity := v.capacity()
	v.shares.mu.Lock()
	defer v.shares.mu.Unlock()
	return v.shares.shares.Admits(v.req.Class.rank(), cost, capacity, v.now)
}

// take counts a lease for its class, unless what is left is reserved by now; p.decide is held.
func (s *shares) take(v *View, l *Lease) bool {
	if s == nil {
		return true
	}
	capacity := v.capacity()
	s.mu.Lock()
	defer s.mu.Unlock()
	rank, cost := v.req.Class.rank(), v.size.shareCost()
	if v.blocked = !s.shares.Admits(rank, cost, capacity, v.now); v.blocked {
		return false
	}
	if s.shares.Take(rank, cost, v.now) != nil {
		return false // more than can be counted
	}
	l.class, l.share = uint8(rank), cost
	return true
}

// give gives back what a lease took.
func (s *shares) give(l *Lease, now int64) {
	if s == nil || l.share == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.shares.Give(int(l.class), l.share, now) // cannot fail: it was taken
	l.share = 0
}

// waiting tells how much of a class waits.
func (s *shares) waiting(rank int, amount admission.Amount, now int64) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.shares.SetWaiting(rank, amount, now) // cannot fail: the queue counts from zero
}
