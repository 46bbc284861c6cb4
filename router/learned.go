package router

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/isobar-go/isobar/telemetry"
)

// meanMemory is about how many requests a mean remembers: few, since it stands for those that wait at the moment, and a wave of
// cold prompts is over soon.
const meanMemory = 32

// promptMean learns the mean of the uncached prompt lengths of the pool's own traffic.
type promptMean struct {
	exact, published float64
}

// learn takes one more length and reports whether the mean has moved far enough, by 5 %, to be published anew: what
// decisions have computed from it stays valid in between.
func (m *promptMean) learn(tokens float64) bool {
	m.exact += (tokens - m.exact) / meanMemory
	if math.Abs(m.exact-m.published) <= m.published/20 {
		return false
	}
	m.published = m.exact
	return true
}

// Residency of an adapter where the engine reports none is remembered for that long, as a decaying probability.
const (
	adapterUnknown = 0.5            // probability of a load where nothing is known
	adapterMemoryS = 300.0          // time constant of forgetting, seconds
	adapterMemoryN = 64             // remembered adapters by endpoint
	adapterLoading = adapterUnknown // being loaded, or held in host memory: about half a load is left
)

// adapterNeeded is the probability that the request's adapter must be loaded there.
func (v *View) adapterNeeded(e *live, rep *reported) float64 {
	used, ok := e.adapters.last(v.adapter)
	seen := !ok || used < rep.adaptersAt-int64(v.cfg.VisibilityLag) // a list from before the last use cannot contain it
	if seen && rep.adaptersOK && !rep.suspected && v.classify(rep.adaptersAt) == telemetry.Fresh {
		maybe := false
		for _, a := range rep.adapters {
			if a.key != v.adapter {
				maybe = maybe || a.key == v.anyDigest && a.state == telemetry.AdapterReady
				continue
			}
			if v.classify(a.at) != telemetry.Fresh {
				return adapterUnknown
			}
			switch a.state {
			case telemetry.AdapterReady:
				return 0
			case telemetry.AdapterLoading, telemetry.AdapterCached, telemetry.AdapterUnknown:
				return adapterLoading
			}
			return 1
		}
		if maybe { // of that name, in a version that the engine does not tell
			return adapterUnknown
		}
		return 1
	}
	if ok {
		age := max(float64(v.now-used)/1e9, 0)
		return adapterUnknown * (1 - math.Exp(-age/adapterMemoryS))
	}
	return adapterUnknown
}

// adapterMemory remembers when the pool last used which adapter on an endpoint. Reads take no lock.
type adapterMemory struct {
	mu   sync.Mutex
	used atomic.Pointer[[]adapterUse] // newest first, immutable
}

type adapterUse struct {
	key uint64
	at  int64
}

func (m *adapterMemory) last(key uint64) (int64, bool) {
	if list := m.used.Load(); list != nil {
		for _, u := range *list {
			if u.key == key {
				return u.at, true
			}
		}
	}
	return 0, false
}

func (m *adapterMemory) note(key uint64, at int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var old []adapterUse
	if list := m.used.Load(); list != nil {
		old = *list
	}
	if len(old) > 0 && old[0].key == key && at-old[0].at < int64(tick) { // as good as now
		return
	}
	next := make([]adapterUse, 1, min(len(old)+1, adapterMemoryN))
	next[0] = adapterUse{key, at}
	for _, u := range old {
		if u.key != key && len(next) < cap(next) {
			next = append(next, u)
		}
	}
	m.used.Store(&next)
}

func (m *adapterMemory) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used.Store(nil)
}

// overlap learns how much of the memory that the ledger books engines hold once for several requests: by what their reports lack.
type overlap struct {
	mu            sync.Mutex
	lacking, held float64       // means over reports, tokens
	part          atomic.Uint64 // of what is held, 0 to 1, bits of a float64
}

// overlapMemory is about how many reports the means remember.
const overlapMemory = 64

func (o *overlap) learn(lacking, held float64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lacking += (lacking - o.lacking) / overlapMemory
	o.held += (held - o.held) / overlapMemory
	if o.held > 0 {
		o.part.Store(math.Float64bits(min(max(o.lacking/o.held, 0), 1)))
	}
}

// value is the part that is shared; 0 = nothing learned yet.
func (o *overlap) value() float64 { return math.Float64frombits(o.part.Load()) }

// longest is the length of an output from which more is taken for a mistake, tokens.
const longest = 1 << 17

// atomicMean learns a mean that many write at once. The first figure is the mean of itself.
type atomicMean struct{ bits atomic.Uint64 }

func (m *atomicMean) learn(tokens float64) {
	for {
		old := m.bits.Load()
		mean := math.Float64frombits(old)
		if old == 0 {
			mean = tokens
		}
		mean += (tokens - mean) / meanMemory
		if m.bits.CompareAndSwap(old, math.Float64bits(mean)) {
			return
		}
	}
}

// value is the mean; 0 = nothing learned yet.
func (m *atomicMean) value() float64 { return math.Float64frombits(m.bits.Load()) }
