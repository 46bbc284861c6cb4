package router

import (
	"math"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// reported is what the newest readings of an endpoint mean for a decision, computed when they arrive so that a decision
// only reads it. Immutable once published. Times are ns on the pool's scale.
type reported struct {
	// What every decision reads, together.
	at             [figures]int64
	value          [figures]float64
	known          [figures]bool
	pendingIsCount bool // the pending figure is a number of waiting requests, not of tokens
	kvIsShare      bool // the KV figure is a share, not a number of tokens
	kvOccupied     bool // the KV figure counts what can be evicted, too
	uniform        bool // all known figures were observed at the same time
	plain          bool // uniform, every figure known, and nothing else to say: see View.readPlain
	asleep         bool
	unhealthy      bool
	suspected      bool
	seen           bool
	kvBehind       bool    // the KV figure is older than the counts, by which the ledger tells what has been seen
	counted        bool    // countsAt is known
	countsAt       int64   // the time since which the figures of requests can have held; without any, that of KV
	kvCapacity     float64 // tokens, 0 = unknown
	freshFor       int64   // up to which age the figures are fresh, ns
	staleAfter     int64   // from which they are stale

	suspect               telemetry.SuspectReason
	suspectSince          int64
	unhealthyAt, asleepAt int64
	adapters              []residency
	adaptersAt            int64
	adaptersOK            bool
}

type timed struct {
	value float64
	at    int64
	known bool
}

// loadFigure is the figure by whose age the endpoint's load is judged.
func (r *reported) loadFigure() int {
	if r.known[figRequests] {
		return figRequests
	}
	return figPending
}

// capacityOr is the size of the KV memory that it tells, or else that of the profile, tokens; 0 = unknown.
func (r *reported) capacityOr(p *score.Profile) float64 {
	if r.kvCapacity == 0 {
		return float64(p.KVCapacity)
	}
	return r.kvCapacity
}

// kvTokens is the KV figure in tokens of that capacity.
func (r *reported) kvTokens(capacity float64) float64 {
	if r.kvIsShare {
		return float64(r.value[figKV] * capacity)
	}
	return r.value[figKV]
}

func (r *reported) set(f int, t timed) { r.at[f], r.value[f], r.known[f] = t.at, t.value, t.known }

type residency struct {
	key   uint64
	state telemetry.AdapterState
	at    int64 // when that was last known to be so
}

// adapterKey identifies an adapter by both its parts, framed, so that no two pairs run together.
func adapterKey(id, digest string) uint64 {
	var d xxhash.Digest
	d.Reset()
	var frame [8]byte
	n := uint64(len(id))
	for i := range frame {
		frame[i] = byte(n >> (8 * i))
	}
	d.Write(frame[:])
	d.WriteString(id)
	d.WriteString(digest)
	return d.Sum64()
}

// digestState makes of a state what decisions read. A count that is older than another by more than staleAfter is not in use:
// whenever the other counts, it does not, and it must not date the rest.
func digestState(s *telemetry.State, since func(time.Time) int64, staleAfter time.Duration) *reported {
	take := func(r telemetry.Reading) timed {
		v, ok := r.Value()
		if !ok {
			return timed{}
		}
		return timed{value: v, at: since(r.ObservedAt()), known: true}
	}
	running, waiting, tokens := take(s.Running), take(s.Waiting), take(s.WaitingTokens)
	newest := int64(math.MinInt64)
	for _, t := range []*timed{&running, &waiting, &tokens} {
		if t.known {
			newest = max(newest, t.at)
		}
	}
	for _, t := range []*timed{&running, &waiting, &tokens} {
		t.known = t.known && newest-t.at <= int64(staleAfter)
	}
	r := &reported{seen: s.SeenAny, suspect: s.Suspect, suspected: s.Suspect != ""}
	r.set(figWaiting, waiting)
	switch {
	case running.known && waiting.known:
		r.set(figRequests, timed{value: running.value + waiting.value, at: min(running.at, waiting.at), known: true})
	case running.known:
		r.set(figRequests, running)
	case waiting.known:
		r.set(figRequests, waiting)
	}
	// A newer count retires an older token figure.
	switch {
	case tokens.known && (!waiting.known || tokens.at >= waiting.at):
		r.set(figPending, tokens)
	case waiting.known:
		r.set(figPending, waiting)
		r.pendingIsCount = true
	}
	for _, f := range []int{figRequests, figPending} {
		if r.known[f] && (!r.counted || r.at[f] < r.countsAt) {
			r.counted, r.countsAt = true, r.at[f]
		}
	}
	if c, ok := s.KVCapacity.Value(); ok {
		r.kvCapacity = c
	}
	used, share := take(s.KVUsed), take(s.KVShare)
	if used.known && (!share.known || used.at >= share.at) {
		r.set(figKV, used)
	} else if share.known {
		r.set(figKV, share)
		r.kvIsShare = true
	}
	if !r.counted && r.known[figKV] {
		r.counted, r.countsAt = true, r.at[figKV]
	}
	r.kvOccupied = s.KVOccupied
	r.kvBehind = r.known[figKV] && r.counted && r.at[figKV] < r.countsAt
	r.uniform = true
	first := -1
	for f, known := range r.known {
		if known && first < 0 {
			first = f
		}
		r.uniform = r.uniform && (!known || r.at[f] == r.at[first])
	}
	if s.Suspect != "" {
		r.suspectSince = since(s.SuspectSince)
	}
	r.unhealthy = s.Health == telemetry.HealthError || s.Health == telemetry.HealthOOM
	r.asleep = s.Asleep == telemetry.TriYes
	r.unhealthyAt, r.asleepAt = since(s.HealthAt), since(s.AsleepAt)
	r.plain = r.uniform && r.known == [figures]bool{true, true, true, true} && r.seen &&
		!r.suspected && !r.unhealthy && !r.asleep && !r.kvOccupied
	if s.Adapters.Known || len(s.Adapters.Adapters) > 0 {
		r.adaptersOK = true
		r.adaptersAt = since(s.AdaptersAt)
		for _, a := range s.Adapters.Adapters {
			r.adapters = append(r.adapters, residency{
				key: adapterKey(a.ID, a.Digest), state: a.State, at: min(since(a.VerifiedAt), r.adaptersAt),
			})
		}
	}
	return r
}
