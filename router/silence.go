package router

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/isobar-go/isobar/reserve"
	"github.com/isobar-go/isobar/score"
)

// An engine that hangs goes on looking as it did: its reports do not change, or still come from a process beside it, and what was sent
// there is waited for. What tells is that a request which should have got its first token long ago has not, while nothing else comes
// from there either. Nobody knows how long that will last, but what has been silent for long will be for long: a silence is expected to
// go on for as long as it has lasted beyond what its prompts explain and what is usual, and is priced as that wait, in Queue and by the
// weight of Wait.
//
// When the newest request that was sent there has its first token, those before it that have none say nothing: they may be forgotten.
// A minute after the newest was sent the next one may find out. When the last that waits ends without a first token, the silence is
// remembered for as long as it lasted, a minute at most, and goes on with the next request, so that those who find out that an engine
// still hangs follow each other at twice the distance each time.

const (
	silenceSlack = 100.0 // ms of silence that mean nothing
	silenceDecay = 0.02  // fraction of the usual silence that each first token takes off
	silenceLimit = 60e9  // ns; for so long at most a silence counts, is usual, or remembered
	surelyWarm   = 0.01  // probability of an adapter's load below which none is waited for
)

// usualSilence learns how long endpoints are silent while requests wait there and yet come back, ms. It rises fast and falls slowly, so
// that where long silences are ordinary, as behind long prompts of others, they soon mean nothing. One that ends after minutes is no
// measure: it rises at most to double and a second with each. But an answer that came without a first token is, in full: its host does
// not tell of them. Nothing is usual beyond silenceLimit.
type usualSilence struct{ bits atomic.Uint64 }

// sign is what ends a silence.
type sign uint8

const (
	signOther sign = iota // a further token, or memory that is taken
	signFirst             // the first token of a request
	signWhole             // an answer whose first token nobody told of
)

// learn takes a silence that has ended, ms.
func (s *usualSilence) learn(ms float64, by sign) {
	for {
		old := s.bits.Load()
		usual := math.Float64frombits(old)
		switch {
		case ms > usual && by == signWhole:
			usual = min(ms, silenceLimit/1e6)
		case ms > usual:
			usual = min(ms, float64(2*usual)+1000, silenceLimit/1e6)
		case by == signFirst && usual > 1:
			usual -= float64(usual * silenceDecay)
		default:
			return
		}
		if s.bits.CompareAndSwap(old, math.Float64bits(usual)) {
			return
		}
	}
}

// value is the silence that is usual, ms.
func (s *usualSilence) value() float64 { return math.Float64frombits(s.bits.Load()) }

// The states of a waiting, which decisions read without its lock.
const (
	nobodyWaits int32 = iota
	waits             // the newest request waits, or it has ended and others wait
	waitsAgain        // likewise, and those before it have waited in vain
	remembers         // nobody waits, but the last has waited in vain
)

// waiting is what is known of an endpoint's silence. Times are ns on the pool's scale.
type waiting struct {
	state *atomic.Int32 // read without mu, by every decision, and so kept beside what else they read
	since atomic.Int64  // the last sign of life, or what else begins the time that counts; likewise

	mu     sync.Mutex
	newest uint64 // number of the newest request that was sent there; 0 = none yet
	sent   int64  // when it was
	ended  int64  // when it ended without a first token; of use where the state is remembers
	work   int64  // uncached prompt tokens of those sent in this silence, given up or not
	vain   int64  // silence beyond what explained it in which others have waited before; likewise, and where it is waitsAgain
}

// begin notes that a request was sent, with so many uncached prompt tokens, and returns its number. Where nobody waits it begins a silence:
// an adapter that may have to be loaded, in so many ms, explains one, which counts from then on.
func (w *waiting) begin(now, work int64, adapterLoadMS float64) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.newest++
	w.sent = now
	state := w.state.Load()
	if state == nobodyWaits || state == remembers {
		w.since.Store(now + int64(min(max(adapterLoadMS, 0)*1e6, silenceLimit)))
		w.work = 0
	}
	w.work += min(work, math.MaxInt64-w.work)
	switch state {
	case nobodyWaits:
		w.vain = 0
		w.state.Store(waits)
	case remembers:
		w.vain = min(w.vain+min(w.vain, max(now-w.ended, 0)), silenceLimit)
		w.state.Store(waitsAgain)
	}
	return w.newest
}

// alive notes a sign of life at that time, by the first token of the request of that number, beside so many others that have none yet, or
// with 0 by something else. It returns how long the silence lasted that it has ended, ns; 0 if nobody has waited.
func (w *waiting) alive(at int64, number uint64, others int64) (lasted int64) {
	if number == 0 && at-w.since.Load() < int64(tick) && w.state.Load() <= waits {
		return 0 // nothing to be learned, and nobody's cache line to be taken
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	state := w.state.Load()
	if lasted = at - w.since.Load(); lasted >= 0 {
		w.since.Store(at)
		w.work = 0
		switch state {
		case waitsAgain:
			w.state.Store(waits)
		case remembers:
			w.state.Store(nobodyWaits)
		}
	}
	if number != 0 && (number == w.newest || others <= 0) {
		w.state.Store(nobodyWaits)
	}
	if number == 0 && state != waits && state != waitsAgain {
		return 0
	}
	return max(lasted, 0)
}

// end notes that the last request without a first token has ended, beside what the pool has there until then; nil if the silence is short.
func (w *waiting) end(now int64, usual float64, own *reserve.Load, p *score.Profile) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if state := w.state.Load(); state != waits && state != waitsAgain {
		return // somebody else was sent later and has got it
	}
	vain := 0.0
	if own != nil {
		vain = w.beyondLocked(now, usual, own, p)
	}
	w.vain, w.ended = int64(vain*1e6), now
	if w.vain > 0 {
		w.state.Store(remembers)
	} else {
		w.state.Store(nobodyWaits)
	}
}

// restart notes that the engine has been started anew: its predecessor's silence is over, and teaches nothing.
func (w *waiting) restart(at int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at >= w.since.Load() {
		w.since.Store(at)
		w.work = 0
	}
	switch w.state.Load() {
	case waitsAgain:
		w.state.Store(waits)
	case remembers:
		w.state.Store(nobodyWaits)
	}
}

// beyond is how much of the silence neither the prompts of the pool that wait there, or were sent since it began, explain, taken as one,
// nor what is usual, ms; or what is remembered of that. At most two minutes.
func (w *waiting) beyond(now int64, usual float64, own *reserve.Load, p *score.Profile) float64 {
	if w.short(now) {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.beyondLocked(now, usual, own, p)
}

// short says that there is no silence, or none that could mean something.
func (w *waiting) short(now int64) bool {
	state := w.state.Load()
	return state == nobodyWaits || state == waits && now-w.since.Load() <= silenceSlack*1e6
}

func (w *waiting) beyondLocked(now int64, usual float64, own *reserve.Load, p *score.Profile) float64 {
	vain := 0.0
	switch w.state.Load() {
	case nobodyWaits:
		return 0
	case remembers:
		if now < w.ended { // a clock that was set back: not as long as that
			return 0
		}
		return float64(max(w.vain-(now-w.ended), 0)) / 1e6
	case waitsAgain:
		vain = float64(w.vain) / 1e6
	}
	if now-w.sent > silenceLimit {
		return 0
	}
	lasted := min(float64(now-w.since.Load()), silenceLimit) / 1e6
	return vain + max(lasted-silenceSlack-max(usual, p.PrefillMS(float64(max(own.Prefill, w.work)), 0)), 0)
}

// heard notes a sign of life of an endpoint, by the lease of that number or 0 for none, and what it teaches.
func (p *Pool) heard(l *live, at int64, number uint64, by sign) {
	others := l.starting.Load()
	if by == signWhole {
		others-- // it is counted until it has ended
	}
	if lasted := l.waiting.alive(at, number, others); lasted > 0 || by == signFirst {
		p.usual.learn(float64(lasted)/1e6, by)
	}
}

// unheard notes that a lease has ended without a first token.
func (p *Pool) unheard(l *Lease, now int64) {
	e := l.endpoint
	switch {
	case e.starting.Add(-1) > 0, e.waiting.state.Load() == nobodyWaits:
	case e.waiting.short(now):
		e.waiting.end(now, 0, nil, nil)
	default:
		own := e.account.Sums().Live
		e.waiting.end(now, p.usual.value(), &own, &l.conf.Profile)
	}
}

// adapterLoad is the time that the request's adapter may take to load there, ms, unless that is all but certain not to happen.
func (v *View) adapterLoad(c *cand) float64 {
	if c.adapter < surelyWarm {
		return 0
	}
	return v.quotes[c.kind].Profile().AdapterLoad
}

// silence is that of a candidate. One that is due to be tried, as its circuit or its figures want it, is not kept from it.
func (v *View) silence(m *member, c *cand) float64 {
	if m.silent.Load() == nobodyWaits {
		return 0
	}
	return v.longSilence(m, c)
}

func (v *View) longSilence(m *member, c *cand) float64 {
	if c.half || c.due {
		return 0
	}
	return m.waiting.beyond(v.now, v.usual, &c.own, v.quotes[c.kind].Profile())
}
