package engine

import (
	"slices"

	"github.com/isobar-go/isobar/telemetry"
)

// Signal names one thing that an engine can tell. It is a plain value.
type Signal string

// The signals, named like the readings and defects of package telemetry. SignalKV is the share of the KV cache, reported
// or computed from used and capacity; SignalAdapters is residency, SignalAdapterActivity the adapters of current
// requests, SignalAdapterSlots how many fit.
const (
	SignalRunning         Signal = "running"
	SignalWaiting         Signal = "waiting"
	SignalWaitingTokens   Signal = "waiting-tokens"
	SignalKV              Signal = "kv"
	SignalKVUsed          Signal = "kv-used"
	SignalKVCapacity      Signal = "kv-capacity"
	SignalGenerationRate  Signal = "gen-rate"
	SignalPrefixHitRate   Signal = "prefix-hit-rate"
	SignalMaxRunning      Signal = "max-running"
	SignalAdapters        Signal = "adapters"
	SignalAdapterActivity Signal = "adapter-activity"
	SignalAdapterSlots    Signal = "adapter-slots"
	SignalAsleep          Signal = "asleep"
	SignalEpoch           Signal = "epoch"
)

// allSignals is never changed.
var allSignals = [...]Signal{
	SignalRunning, SignalWaiting, SignalWaitingTokens, SignalKV, SignalKVUsed, SignalKVCapacity, SignalGenerationRate,
	SignalPrefixHitRate, SignalMaxRunning, SignalAdapters, SignalAdapterActivity, SignalAdapterSlots, SignalAsleep, SignalEpoch,
}

// AllSignals returns every signal in the order in which Signals lists them. The slice belongs to the caller.
func AllSignals() []Signal { return pick(func(Signal) bool { return true }) }

// Signals returns what an engine of the kind can tell, in the order of AllSignals: some version of it, in some
// configuration. What one engine does tell is known from its reports only. It is nil for an unknown kind. The slice
// belongs to the caller.
func Signals(kind Kind) []Signal {
	d := kind.dialect()
	if d == nil {
		return nil
	}
	if d.loads != nil {
		return slices.Clone(d.gives)
	}
	return pick(func(s Signal) bool { return d.can(s) })
}

// can reports whether the table has what the signal needs.
func (d *dialect) can(s Signal) bool {
	has := func(p part) bool {
		return slices.ContainsFunc(d.signals, func(sig signal) bool { return sig.part == p })
	}
	size := has(partBlockSize) && has(partKVBlocks) || has(partCacheConfig) || has(partKVCapacity)
	used := has(partBlockSize) && has(partKVUsedBlocks) || has(partKVUsed)
	switch s {
	case SignalRunning:
		return has(partRunning)
	case SignalWaiting:
		return has(partWaiting)
	case SignalWaitingTokens:
		return has(partWaitingTokens)
	case SignalKV:
		return has(partKVShare) || used && size
	case SignalKVUsed:
		return used
	case SignalKVCapacity:
		return size
	case SignalGenerationRate:
		return has(partGenerationRate)
	case SignalPrefixHitRate:
		return has(partHitRate) || has(partPrefixHits) && has(partPrefixQueries)
	case SignalMaxRunning:
		return has(partMaxRunning)
	case SignalAdapters:
		return has(partAdapterLoaded)
	case SignalAdapterActivity:
		return has(partAdapterRequest)
	case SignalAdapterSlots:
		return has(partAdapterSlots)
	case SignalAsleep:
		return has(partSleepState)
	case SignalEpoch:
		return d.startTime
	}
	return false
}

// Told returns what a snapshot tells, in the order of AllSignals. An invalid figure counts as told: that it is invalid is
// for the store to say. An epoch made by [Lives] counts too. The slice belongs to the caller.
func Told(s telemetry.Snapshot) []Signal {
	told := signalsOf(&s)
	return pick(func(sig Signal) bool { return told[sig] })
}

// Signals returns what the report tells, in the order of AllSignals: what its snapshot tells, and the rest of it. The
// slice belongs to the caller.
func (rep *Report) Signals() []Signal {
	told := signalsOf(&rep.Snapshot)
	told[SignalAdapterActivity] = rep.Activity.Known
	told[SignalAdapterSlots] = rep.AdapterSlots > 0
	return pick(func(sig Signal) bool { return told[sig] })
}

func signalsOf(s *telemetry.Snapshot) map[Signal]bool {
	told := map[Signal]bool{
		SignalAdapters: s.Adapters.Known || len(s.Adapters.Adapters) > 0,
		SignalAsleep:   s.Asleep != telemetry.TriUnknown,
		SignalEpoch:    s.Epoch != "",
	}
	mark := func(sig Signal, known bool) { told[sig] = told[sig] || known }
	ranks := append([]telemetry.Rank{{
		Running: s.Running, Waiting: s.Waiting, WaitingTokens: s.WaitingTokens, KVShare: s.KVShare, KVUsed: s.KVUsed,
		KVCapacity: s.KVCapacity, GenerationRate: s.GenerationRate, PrefixHitRate: s.PrefixHitRate, MaxRunning: s.MaxRunning,
	}}, s.Ranks...)
	for i := range ranks {
		r := &ranks[i]
		mark(SignalRunning, r.Running.Known())
		mark(SignalWaiting, r.Waiting.Known())
		mark(SignalWaitingTokens, r.WaitingTokens.Known())
		mark(SignalKV, r.KVShare.Known() || r.KVUsed.Known() && r.KVCapacity.Known())
		mark(SignalKVUsed, r.KVUsed.Known())
		mark(SignalKVCapacity, r.KVCapacity.Known())
		mark(SignalGenerationRate, r.GenerationRate.Known())
		mark(SignalPrefixHitRate, r.PrefixHitRate.Known())
		mark(SignalMaxRunning, r.MaxRunning.Known())
	}
	return told
}

func pick(has func(Signal) bool) []Signal {
	var out []Signal
	for _, s := range allSignals {
		if has(s) {
			out = append(out, s)
		}
	}
	return out
}
