package baseline

import (
	"errors"
	"math"
	"time"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
)

// seer predicts what a request would meet at each engine, from the true states.
type seer struct {
	f        *fleet
	start    time.Time // of the run
	with     forecast
	without  forecast
	outlooks []outlook // by engine
}

// outlook is what a request would meet at an engine, ms; +Inf where it is down or the request never fits.
type outlook struct {
	own    float64 // its completion
	added  float64 // what it adds to the sum of all completions, its own included
	start  float64 // of its first pass
	first  float64 // token
	cached int64   // tokens
}

var errBlind = errors.New("baseline: Env.Truth is nil, and an oracle needs it")

func newSeer(f *fleet) (*seer, error) {
	if f.env.Truth == nil {
		return nil, errBlind
	}
	return &seer{f: f, start: f.env.Now(), outlooks: make([]outlook, len(f.engines))}, nil
}

// look fills in the outlooks of the candidates; others says whether what they add is wanted too.
func (s *seer) look(r *world.Request, among []int, others bool) {
	q := sim.Request{ID: newcomerID, Blocks: r.Blocks, PromptTokens: r.PromptTokens, OutputTokens: s.f.expectedOutput(r)}
	now := s.f.env.Now().Sub(s.start)
	for i := range s.outlooks {
		s.outlooks[i] = outlook{own: math.Inf(1), added: math.Inf(1)}
	}
	for _, i := range among {
		t := s.f.env.Truth(i)
		if !s.with.load(t, now) || !s.with.fits(q.PromptTokens, 1) {
			continue
		}
		n := q
		if !s.with.fits(n.PromptTokens, n.OutputTokens) {
			n.OutputTokens = s.with.profile.Blocks()*s.with.profile.BlockSize - n.PromptTokens + 1
		}
		if others {
			s.without.copy(&s.with)
			s.without.until(true)
		}
		newcomer := t.Engine.AsWaiting(n)
		s.with.waiting = append(s.with.waiting, newcomer)
		s.with.until(others)
		o := &s.outlooks[i]
		*o = outlook{own: s.with.end, added: math.Inf(1), start: s.with.start, first: s.with.first, cached: newcomer.Computed}
		if others {
			o.added = s.with.done - s.without.done
		}
	}
}

// copy makes f a copy of o.
func (f *forecast) copy(o *forecast) {
	running, waiting, chunks, left := f.running, f.waiting, f.chunks, f.left
	*f = *o
	f.running = append(running[:0], o.running...)
	f.waiting = append(waiting[:0], o.waiting...)
	f.chunks = append(chunks[:0], o.chunks...)
	f.left = append(left[:0], o.left...)
}

// oracleMaker, "oracle" and "oracle-others": the least predicted completion of the request, or with others the least addition to the sum
// of all completions, by the true state of every engine; see the package's comment.
func oracleMaker(others bool) world.Maker {
	return func(e world.Env) (world.Chooser, error) {
		f, err := newFleet(e)
		if err != nil {
			return nil, err
		}
		s, err := newSeer(f)
		if err != nil {
			return nil, err
		}
		return &chooser{fleet: f, pick: func(r *world.Request, among []int) int {
			s.look(r, among, others)
			at := f.least(among, func(i int) rank {
				if others {
					return rank{s.outlooks[i].added, s.outlooks[i].own}
				}
				return rank{s.outlooks[i].own}
			})
			o := s.outlooks[at]
			f.hits[at] = o.cached
			if !math.IsInf(o.own, 1) {
				f.terms = score.Terms{Queue: o.start, Prefill: o.first - o.start, Decode: o.own - o.first}
			}
			return at
		}}, nil
	}
}

// Regret is what a choice was worse than the best one, by the true state of the engines at that moment, ms; +Inf where what was
// chosen was down and something else was not. A Regret is a plain value.
type Regret struct {
	// Gateway and Number are those of the request, Attempt its try.
	Gateway, Number, Attempt int
	// Own is in the request's own predicted completion: that where it went, Chosen, less the least.
	Own, Chosen float64
	// All is in what the request adds to the sum of all completions: that where it went, Added, less the least.
	All, Added float64
}

// Watch makes choosers whose choices are those of m, and tells see, by the goroutine of the run, the regret of each. It changes nothing
// else, and takes longer than the oracles do. see must not be shared by runs that go on at the same time unless it is made for that.
func Watch(m world.Maker, see func(Regret)) world.Maker {
	return func(e world.Env) (world.Chooser, error) {
		inner, err := m(e)
		if err != nil {
			return nil, err
		}
		f, err := newFleet(e)
		if err != nil {
			return nil, err
		}
		s, err := newSeer(f)
		if err != nil {
			return nil, err
		}
		return &watcher{Chooser: inner, s: s, see: see}, nil
	}
}

// watcher passes everything on to a chooser, and follows what its seer has to know.
type watcher struct {
	world.Chooser
	s   *seer
	see func(Regret)
}

// Choose lets the chooser choose, and judges it by what was true before.
func (w *watcher) Choose(r *world.Request) (world.Choice, error) {
	among, none := w.s.f.candidates(r)
	if none == nil {
		w.s.look(r, among, true)
	}
	c, err := w.Chooser.Choose(r)
	if err != nil || none != nil || c.Engine < 0 || c.Engine >= len(w.s.outlooks) {
		return c, err
	}
	w.s.f.send(r, c.Engine)
	own, all := math.Inf(1), math.Inf(1)
	for _, i := range among {
		own, all = min(own, w.s.outlooks[i].own), min(all, w.s.outlooks[i].added)
	}
	if !math.IsInf(own, 1) {
		o := w.s.outlooks[c.Engine]
		w.see(Regret{
			Gateway: w.s.f.env.Gateway, Number: r.Number, Attempt: r.Attempt, Own: o.own - own, Chosen: o.own, All: o.added - all, Added: o.added,
		})
	}
	return c, nil
}

// End tells both.
func (w *watcher) End(slot int, cause world.Cause, u router.Usage) {
	w.s.f.End(slot, cause, u)
	w.Chooser.End(slot, cause, u)
}

// Change tells both.
func (w *watcher) Change(i int, c world.Change) {
	w.s.f.Change(i, c)
	w.Chooser.Change(i, c)
}

// Close asks the chooser, where it can say.
func (w *watcher) Close() error { return closeOf(w.Chooser) }

func closeOf(c world.Chooser) error {
	if c, can := c.(interface{ Close() error }); can {
		return c.Close()
	}
	return nil
}
