package router

import (
	"sync/atomic"
	"time"
)

// shadow asks the second policy about the same view. It can neither change nor fail the real decision.
func (p *Pool) shadow(v *View) *Shadow {
	s := &Shadow{Policy: p.cfg.Shadow.Name()}
	if !p.shadowed.allows(v.now) {
		p.counters.shadowSkipped.Add(1)
		s.Skipped = true
		return s
	}
	v.draws, v.stream = 0, 1
	begin := p.cfg.Now()
	other, ok := ask(p.cfg.Shadow, v)
	p.shadowed.spent(v.now, p.cfg.Now().Sub(begin), p.cfg.ShadowBudget)
	if !ok {
		p.counters.shadowFaults.Add(1)
		s.Failed = true
		return s
	}
	s.Endpoint, _ = v.name(other)
	s.DeltaMS = v.total[other] - v.total[v.at]
	if other == v.at {
		p.counters.shadowSame.Add(1)
	} else {
		p.counters.shadowOther.Add(1)
	}
	return s
}

// shadowBudget keeps a slow shadow policy from slowing down decisions: after a call that took longer than the budget, it is
// not asked again until a hundred times the excess has passed.
type shadowBudget struct{ resume atomic.Int64 } // ns on the pool's scale

func (b *shadowBudget) allows(now int64) bool { return now >= b.resume.Load() }

func (b *shadowBudget) spent(now int64, took, budget time.Duration) {
	if took <= budget {
		return
	}
	next := now + 100*int64(took-budget)
	for old := b.resume.Load(); next > old; old = b.resume.Load() {
		if b.resume.CompareAndSwap(old, next) {
			return
		}
	}
}
