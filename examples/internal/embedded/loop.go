package embedded

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/isobar-go/isobar/internal/sim"
)

// stream is one request on its way through the engine. The loop writes, its handler reads. The words of an answer
// follow from its seed, so a count is all that passes between them, and a slow client never holds up the engine.
type stream struct {
	id        uint64
	cut       bool // the answer ends at a limit
	job       job
	arrived   time.Time
	cached    atomic.Int64 // prompt tokens found in the cache, set before the first token
	generated atomic.Int64
	notify    chan struct{} // capacity 1: something changed
}

func (s *stream) poke() {
	select {
	case s.notify <- struct{}{}:
	default:
	}
}

func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// submit hands a job to the engine, under an ID of its own.
func (e *Engine) submit(j job) (*stream, error) {
	s := &stream{cut: j.reason == "length", job: j, arrived: time.Now(), notify: make(chan struct{}, 1)}
	r := j.request
	e.mu.Lock()
	e.lastID++
	r.ID = e.lastID
	s.id = r.ID
	err := e.sim.Submit(r)
	if err == nil {
		e.streams[s.id] = s
		e.kv.know(&s.job)
	}
	e.mu.Unlock()
	if err != nil {
		return nil, err
	}
	e.poke()
	return s, nil
}

// abandon takes a request out of the engine, if it is still there.
func (e *Engine) abandon(s *stream) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sim.Cancel(s.id) {
		delete(e.streams, s.id)
		e.kv.forget(&s.job)
		e.figures.aborted++
	}
}

// maxLag is how far the loop may fall behind its schedule before it gives up catching up.
const maxLag = 250 * time.Millisecond

// run drives the engine until its context ends. Each pass is due one duration after the pass before was, not after it
// was delivered, so that late timers do not add up.
func (e *Engine) run() {
	defer close(e.loopDone)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var events []sim.Event
	due := time.Now()
	for e.ctx.Err() == nil {
		d, ok := e.begin()
		if !ok {
			select {
			case <-e.ctx.Done():
				return
			case <-e.wake:
			}
			due = time.Now()
			continue
		}
		due = due.Add(d)
		switch wait := time.Until(due); {
		case wait > 0:
			timer.Reset(wait)
			select {
			case <-e.ctx.Done():
				return
			case <-timer.C:
			}
		case wait < -maxLag:
			due = time.Now()
		}
		events = e.deliver(events[:0])
	}
}

// begin opens a pass and returns how long it lasts on this host's clock.
func (e *Engine) begin() (time.Duration, bool) {
	if e.frozen.Load() {
		return 0, false
	}
	e.mu.Lock()
	ms, ok := e.sim.Begin()
	e.kv.take(e.sim) // as a scheduler of an engine does, before the pass is computed
	e.mu.Unlock()
	ms *= math.Float64frombits(e.slowdown.Load()) / e.cfg.TimeScale
	// A day is for ever here, and keeps a wild factor inside a Duration.
	return time.Duration(min(ms, 86_400_000) * float64(time.Millisecond)), ok
}

// deliver closes the pass and tells the streams. It returns its argument for reuse.
func (e *Engine) deliver(events []sim.Event) []sim.Event {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	events = e.sim.End(events)
	for _, ev := range events {
		s := e.streams[ev.ID]
		if s == nil {
			continue // cancelled inside the pass
		}
		switch ev.Kind {
		case sim.Admitted:
			if s.generated.Load() == 0 {
				s.cached.Store(ev.Tokens)
			}
		case sim.FirstToken:
			e.figures.firstToken.observe(now.Sub(s.arrived).Seconds())
			s.generated.Store(ev.Tokens)
			s.poke()
		case sim.Token:
			s.generated.Store(ev.Tokens)
			s.poke()
		case sim.Finished:
			e.figures.endToEnd.observe(now.Sub(s.arrived).Seconds())
			if s.cut {
				e.figures.cut++
			} else {
				e.figures.stopped++
			}
			delete(e.streams, ev.ID)
			e.kv.forget(&s.job)
		}
	}
	return events
}
