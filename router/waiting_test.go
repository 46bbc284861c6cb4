package router

import (
	"math"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/reserve"
	"github.com/isobar-go/isobar/score"
)

// naiveWaiting is the same by what has happened, a millisecond at a time.
type naiveWaiting struct {
	newest     uint64
	waits      bool  // the newest does, or has ended while others do
	others     int64 // that wait
	sent       int64 // since it was, ms
	silence    int64 // that counts, ms
	vain, fade int64 // in which others have waited before; what is left of that to remember
	load       int64 // that the newest's adapter may still take
	work       int64 // sent since it began, tokens
}

func (w *naiveWaiting) pass(ms int64) {
	for range ms {
		w.sent++
		if w.fade > 0 {
			w.fade--
		}
		if w.load > 0 {
			w.load--
		} else {
			w.silence++
		}
	}
}

func (w *naiveWaiting) begin(work, load int64) {
	if !w.waits {
		w.work = 0
		w.vain = min(2*w.vain-w.fade, silenceLimit/1e6)
		w.silence, w.load, w.fade = 0, load, 0
	}
	w.newest++
	w.work += work
	w.sent, w.waits = 0, true
}

func (w *naiveWaiting) alive() {
	if w.load == 0 {
		w.silence, w.vain, w.fade, w.work = 0, 0, 0, 0
	}
}

func (w *naiveWaiting) end(now float64) {
	w.vain = int64(now)
	w.fade, w.waits = w.vain, false
}

func (w *naiveWaiting) beyond(usual, prompts int64) float64 {
	switch {
	case !w.waits:
		return float64(w.fade)
	case w.sent > silenceLimit/1e6:
		return 0
	}
	return float64(w.vain) + max(min(float64(w.silence), silenceLimit/1e6)-silenceSlack-float64(max(usual, prompts, w.work)), 0)
}

func TestWaitingIsTheNaiveOne(t *testing.T) {
	p := &score.Profile{PrefillToken: 1}
	rapid.Check(t, func(t *rapid.T) {
		w, naive, now := &waiting{state: new(atomic.Int32)}, &naiveWaiting{}, rapid.Int64Range(-1e6, 1e9).Draw(t, "start")*1e6
		w.since.Store(now)
		usual, own := rapid.Int64Range(0, 300).Draw(t, "usual"), &reserve.Load{Prefill: rapid.Int64Range(0, 300).Draw(t, "prompts")}
		t.Repeat(map[string]func(*rapid.T){
			"time": func(t *rapid.T) {
				ms := rapid.Int64Range(1, 70_000).Draw(t, "ms")
				naive.pass(ms)
				now += ms * 1e6
			},
			"sent": func(t *rapid.T) {
				load := rapid.SampledFrom([]int64{0, 0, 0, 1000}).Draw(t, "load")
				work := rapid.Int64Range(0, 200).Draw(t, "work")
				require.Equal(t, naive.newest+1, w.begin(now, work, float64(load)))
				naive.begin(work, load)
				naive.others++
			},
			"ended": func(t *rapid.T) {
				if naive.others > 0 {
					if naive.others--; naive.others == 0 {
						w.end(now, float64(usual), own, p)
						if naive.waits {
							naive.end(naive.beyond(usual, own.Prefill))
						}
					}
				}
			},
			"first token": func(t *rapid.T) {
				if naive.others > 0 {
					naive.others--
					want, number := naive.silence, naive.newest-uint64(rapid.IntRange(0, 1).Draw(t, "an earlier one"))
					if naive.load > 0 {
						want = 0
					}
					if number == 0 {
						number = naive.newest
					}
					require.Equal(t, want*1e6, w.alive(now, number, naive.others))
					naive.alive()
					if number == naive.newest || naive.others == 0 {
						naive.waits, naive.vain, naive.fade = false, 0, 0
					}
				}
			},
			"other sign": func(t *rapid.T) {
				want := naive.silence * 1e6
				if !naive.waits || naive.load > 0 {
					want = 0
				}
				require.Equal(t, want, w.alive(now, 0, naive.others))
				if naive.silence > 0 || naive.vain > 0 { // less than a millisecond is not looked at
					naive.alive()
				}
			},
			"restart": func(t *rapid.T) {
				w.restart(now)
				naive.alive()
				naive.vain, naive.fade = 0, 0
			},
			"": func(t *rapid.T) {
				require.InDelta(t, naive.beyond(usual, own.Prefill), w.beyond(now, float64(usual), own, p), 1e-6)
			},
		})
	})
}

// No clock makes a silence longer than its bounds.
func TestSilenceOfStrangeClocks(t *testing.T) {
	own, p := &reserve.Load{}, &score.Profile{}
	for _, then := range []int64{math.MinInt64, -1e18, 0, 1e18, math.MaxInt64} {
		for _, now := range []int64{math.MinInt64, -1e18, 0, 1e18, math.MaxInt64} {
			w := &waiting{state: new(atomic.Int32)}
			w.begin(then, math.MaxInt64, math.Inf(1))
			for range 3 {
				s := w.beyond(now, 0, own, p)
				require.True(t, s >= 0 && s <= 2*silenceLimit/1e6, "%d, %d: %v", then, now, s)
				w.end(now, 0, own, p)
				s = w.beyond(then, 0, own, p)
				require.True(t, s >= 0 && s <= 2*silenceLimit/1e6, "%d, %d: %v", then, now, s)
				w.alive(then, 0, 1)
				w.begin(now, 5, 0)
			}
		}
	}
}

// What is usual rises fast with silences that end, at most to double and a second with each, and falls slowly with first tokens.
func TestUsualSilence(t *testing.T) {
	s := &usualSilence{}
	learn := func(ms float64, by sign) float64 {
		s.learn(ms, by)
		return s.value()
	}
	require.Equal(t, 400.0, learn(400, signOther))
	require.Equal(t, 400.0, learn(300, signOther), "only first tokens take it off")
	require.Equal(t, 400.0, learn(300, signWhole))
	require.Equal(t, 392.0, learn(300, signFirst))
	require.Equal(t, 1784.0, learn(600_000, signFirst), "an engine that had hung for ten minutes is no measure")
	require.Equal(t, 30_000.0, learn(30_000, signWhole), "an answer of half a minute, of which nobody told the first token, is one")
	require.Equal(t, 60_000.0, learn(600_000, signWhole), "but nothing is longer than a minute")
	for range 1000 {
		learn(0, signFirst)
	}
	require.InDelta(t, 1, s.value(), 0.1, "it does not fall for ever")
}
