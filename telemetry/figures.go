package telemetry

import (
	"math"
	"time"
)

// figure numbers the ten readings, in the order in which defects are listed.
type figure int

const (
	figRunning figure = iota
	figWaiting
	figWaitingTokens
	figDecodeTokens
	figKVShare
	figKVUsed
	figKVCapacity
	figGenerationRate
	figPrefixHitRate
	figMaxRunning
	numFigures
)

// defects is a set of defect numbers: the figures, then the other parts of a snapshot.
type defects uint32

const (
	defRanks = int(numFigures) + iota
	defAdapters
	defHealth
	defAsleep
	numDefects
)

// defectNames are indexed by figure, then by the other defect numbers.
var defectNames = [numDefects]string{
	figRunning:        "running",
	figWaiting:        "waiting",
	figWaitingTokens:  "waiting-tokens",
	figDecodeTokens:   "decode-tokens",
	figKVShare:        "kv",
	figKVUsed:         "kv-used",
	figKVCapacity:     "kv-capacity",
	figGenerationRate: "gen-rate",
	figPrefixHitRate:  "prefix-hit-rate",
	figMaxRunning:     "max-running",
	defRanks:          "ranks",
	defAdapters:       "adapters",
	defHealth:         "health",
	defAsleep:         "asleep",
}

func (d *defects) add(n int)          { *d |= 1 << n }
func (d defects) has(n int) bool      { return d&(1<<n) != 0 }
func (d *defects) addFigure(f figure) { d.add(int(f)) }

func (d defects) names() []string {
	if d == 0 {
		return nil
	}
	var out []string
	for n := range numDefects {
		if d.has(n) {
			out = append(out, defectNames[n])
		}
	}
	return out
}

// maxFigure is the greatest believable count: far above any real one, and small enough that sums of many and their
// conversion to int64 are exact.
const maxFigure = 1e15

func (f figure) isShare() bool { return f == figKVShare || f == figPrefixHitRate }

// isLimit tells the figures that describe the engine rather than its load. They do not move with traffic.
func (f figure) isLimit() bool { return f == figKVCapacity || f == figMaxRunning }

type figures [numFigures]Reading

func (s *Snapshot) figures() figures {
	return figures{s.Running, s.Waiting, s.WaitingTokens, s.DecodeTokens, s.KVShare, s.KVUsed, s.KVCapacity,
		s.GenerationRate, s.PrefixHitRate, s.MaxRunning}
}

func (r *Rank) figures() figures {
	return figures{r.Running, r.Waiting, r.WaitingTokens, r.DecodeTokens, r.KVShare, r.KVUsed, r.KVCapacity,
		r.GenerationRate, r.PrefixHitRate, r.MaxRunning}
}

func (fs *figures) rank(id int) Rank {
	return Rank{ID: id,
		Running: fs[figRunning], Waiting: fs[figWaiting], WaitingTokens: fs[figWaitingTokens],
		DecodeTokens: fs[figDecodeTokens], KVShare: fs[figKVShare], KVUsed: fs[figKVUsed],
		KVCapacity: fs[figKVCapacity], GenerationRate: fs[figGenerationRate], PrefixHitRate: fs[figPrefixHitRate],
		MaxRunning: fs[figMaxRunning]}
}

// word is what one snapshot says about one figure. A word that is present and not known is an invalid report: the
// newest thing said about the figure is that it is unknown.
type word struct {
	Reading
	present bool
	bad     bool // the report, or a part of it, was invalid or clamped
}

type words [numFigures]word

// check turns a reported reading into a word with an absolute time.
func (f figure) check(r Reading, observedAt time.Time) word {
	if !r.known {
		return word{}
	}
	if r.at.IsZero() {
		r.at = observedAt
	}
	w := word{Reading: r, present: true}
	v := r.value
	switch {
	case math.IsNaN(v), math.IsInf(v, 0), v < 0, !f.isShare() && v > maxFigure, f.isLimit() && v == 0:
		w.value, w.known, w.bad = 0, false, true
	case f.isShare() && v > 1:
		w.value, w.bad = 1, true
	}
	return w
}

// checkAll checks a set of figures and counts those with a time after now, which cannot be true and are left out.
func checkAll(fs figures, observedAt, now time.Time) (ws words, future int) {
	for f := range numFigures {
		w := f.check(fs[f], observedAt)
		if w.present && w.at.After(now) {
			future++
			continue
		}
		ws[f] = w
	}
	return ws, future
}

// shareOf returns the occupied share of a KV cache, 0 to 1, and whether used had to be clamped to the capacity. The
// capacity is above zero.
func shareOf(used, capacity float64) (share float64, clamped bool) {
	if used > capacity {
		return 1, true
	}
	return used / capacity, false
}

// earlier returns the earlier of two times.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
