package router

import (
	"math"
	"sync/atomic"
)

// An engine that hangs goes on looking as it did: its reports do not change, or still come from a process beside it, and what was sent
// there is waited for. What tells is that requests which should have got their first token long ago have not, while nothing else
// comes from there either. Nobody knows how long that will last, but what has been silent for long will be for long: a silence is
// expected to go on for as long as it has lasted beyond what is usual, and is priced as that wait. Those who give up have seen no sign
// of life: after the last of them the silence is remembered for as long as it lasted, a minute at most, and then goes on with the next
// request, so that those who find out that an engine still hangs follow each other at twice the distance each time.

const (
	silenceSlack  = 100.0 // ms of silence that mean nothing
	silenceDecay  = 0.02  // how much of what is usual each first token takes off
	silenceMemory = 60e9  // for how long it is remembered at most after the last has given up, ns
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

// await notes that a request was sent: the first of those that wait begins a silence, or goes on with that in which the last have given
// up. An adapter that may have to be loaded, in so many ms, explains one.
func (l *live) await(now int64, load float64) {
	if l.starting.Add(1) == 1 {
		lived, gaveUp := l.lived.Load(), l.gaveUp.Load()
		so := max(gaveUp-lived, 0)
		advance(&l.lived, now-so-min(so, max(now-gaveUp, 0)))
	}
	if load > 0 {
		advance(&l.lived, now+int64(min(load, 1e9)*1e6))
	}
}

// giveUp notes that a request has ended without a first token.
func (l *live) giveUp(now int64) {
	if l.starting.Add(-1) == 0 {
		advance(&l.gaveUp, now)
	}
}

// renew notes that the engine has been started anew: of the silence of the process before nothing is learned.
func (l *live) renew(at int64) {
	advance(&l.lived, at)
	advance(&l.lived, l.gaveUp.Load())
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

// silent is for how long the endpoint has given no sign of life while requests of the pool wait there for their first token, or what is
// remembered of that, ns.
func (l *live) silent(now int64) int64 {
	lived := l.lived.Load()
	if l.starting.Load() > 0 {
		return max(now-lived, 0)
	}
	gaveUp := l.gaveUp.Load()
	return max(min(gaveUp-lived, silenceMemory)-max(now-gaveUp, 0), 0)
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
