package router

import (
	"math"
	"sync/atomic"
)

// An engine that hangs goes on looking as it did: its reports do not change, or still come from a process beside it, and what was sent
// there is waited for. What tells is that requests which should have got their first token long ago have not, while nothing else
// comes from there either. Nobody knows how long that will last, but what has been silent for long will be for long: a silence is
// expected to go on for as long as it has lasted beyond what is usual, and is priced as that wait.

const (
	silenceSlack = 100.0 // ms of silence that mean nothing
	silenceDecay = 0.02  // how much of what is usual each first token takes off
)

// silences learns how long endpoints are silent while requests wait there and yet come back: it rises at once and falls slowly, so
// that where long silences are ordinary, as behind long prompts of others or where a host tells of no first tokens, they mean nothing.
type silences struct{ bits atomic.Uint64 }

// learn takes a silence that has ended, ms, by a first token or by something else.
func (s *silences) learn(ms float64, first bool) {
	for {
		old := s.bits.Load()
		usual := math.Float64frombits(old)
		switch {
		case ms > usual:
			usual = ms
		case first && usual > 1:
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
func (s *silences) value() float64 { return math.Float64frombits(s.bits.Load()) }

// await notes that a request was sent: the first of those that wait begins a silence, and an adapter that may have to be loaded, in so
// many ms, explains one.
func (l *live) await(now int64, load float64) {
	if l.starting.Add(1) == 1 {
		advance(&l.lived, now)
	}
	if load > 0 {
		advance(&l.lived, now+int64(min(load, 1e9)*1e6))
	}
}

// lives notes a sign of life at that time. first says that it is the first token of a request, whose wait is over by it.
func (l *live) lives(usual *silences, at int64, first bool) {
	silent := at - l.lived.Load()
	if silent < int64(tick) {
		silent = 0 // in the same millisecond nothing is to be learned, and nobody's cache line to be taken
	}
	if first || silent > 0 && l.starting.Load() > 0 {
		usual.learn(float64(silent)/1e6, first)
	}
	if silent > 0 {
		advance(&l.lived, at)
	}
}

// advance sets a time that may only grow.
func advance(t *atomic.Int64, to int64) {
	for old := t.Load(); to > old; old = t.Load() {
		if t.CompareAndSwap(old, to) {
			return
		}
	}
}

// silent is for how long the endpoint has given no sign of life while requests of the pool wait there for their first token, ns.
func (l *live) silent(now int64) int64 {
	if l.starting.Load() <= 0 {
		return 0
	}
	return max(now-l.lived.Load(), 0)
}

// loadOf is the time that the request's adapter may take to load there, ms, unless that is all but certain not to happen.
func (v *View) loadOf(c *cand) float64 {
	if c.adapter < 0.01 {
		return 0
	}
	return v.quotes[c.kind].Profile().AdapterLoad
}

// silence is how much of that neither the prompts that wait there explain, taken as one, nor what is usual, ms.
func (v *View) silence(m *member, c *cand) float64 {
	over := float64(m.silent(v.now))/1e6 - silenceSlack
	if over <= 0 {
		return 0
	}
	pending := max(float64(c.own.Prefill), c.value[figPending])
	return max(over-max(v.silences, v.quotes[c.kind].Profile().PrefillMS(pending, 0)), 0)
}
