package telemetry

import "time"

// State is everything a Store holds at one moment. It is immutable, its slices too: any number of goroutines may read
// it, and it must not be changed. The figures have the meanings and units they have in Snapshot; those that are known
// are valid, each with the time at which it may have held.
type State struct {
	// The counts and their tokens.
	Running, Waiting, WaitingTokens, DecodeTokens Reading
	// KVUsed is never above a known KVCapacity.
	KVUsed, KVCapacity Reading
	// KVShare is the newer of the reported share and KVUsed by KVCapacity, 0 to 1; the reported one if both are as new.
	KVShare Reading
	// KVOccupied says that the newest KVUsed or KVShare counts cached prefixes too, see Snapshot.
	KVOccupied                                bool
	GenerationRate, PrefixHitRate, MaxRunning Reading

	// Adapters is the newest list, and AdaptersAt its time.
	Adapters   AdapterReport
	AdaptersAt time.Time
	// Health is the newest word of the engine about itself, and HealthAt its time.
	Health   Health
	HealthAt time.Time
	// Asleep is the newest answer, and AsleepAt its time.
	Asleep   Tri
	AsleepAt time.Time
	// Epoch is the newest known epoch, "" if none was reported.
	Epoch string
	// Ranks are the ranks of the newest snapshot that had any, by ID, each figure with its own time.
	Ranks []Rank

	// Suspect says why the figures are not to be believed, and SuspectSince since when (the now of that Observe). They
	// are left in place; a reader treats them as missing and sends one request at a time to find out.
	Suspect      SuspectReason
	SuspectSince time.Time

	// NewestAt is the time of the newest known load figure (all but KVCapacity and MaxRunning). To decide what one
	// figure can have seen, use its own time: a newer report of another figure has seen nothing for this one.
	NewestAt time.Time
	// Source is the source of the snapshot that brought the newest load figure.
	Source string
	// SeenAny is true once a valid load figure has been taken since the start, the last restart or the last Clear.
	SeenAny bool
}

// SuspectReason says why the figures of an engine that reports punctually are not to be believed. "" means that they
// are.
type SuspectReason string

const (
	// SuspectFrozen is a busy engine whose load figures do not move although nothing of ours runs on it.
	SuspectFrozen SuspectReason = "frozen"
	// SuspectWedged is an engine on which requests wait and none runs.
	SuspectWedged SuspectReason = "wedged"
)

// buildLocked makes the immutable state of what the store holds.
func (s *Store) buildLocked() *State {
	st := &State{
		Running: s.cells[figRunning].Reading, Waiting: s.cells[figWaiting].Reading,
		WaitingTokens: s.cells[figWaitingTokens].Reading, DecodeTokens: s.cells[figDecodeTokens].Reading,
		KVShare: s.shareLocked(), KVUsed: s.cells[figKVUsed].Reading, KVCapacity: s.cells[figKVCapacity].Reading,
		GenerationRate: s.cells[figGenerationRate].Reading, PrefixHitRate: s.cells[figPrefixHitRate].Reading,
		MaxRunning: s.cells[figMaxRunning].Reading, KVOccupied: s.kvOccupied.v,

		Adapters: s.adapters.v, AdaptersAt: s.adapters.at,
		Health: s.health.v, HealthAt: s.health.at,
		Asleep: s.asleep.v, AsleepAt: s.asleep.at,
		Epoch: s.epoch.v,
		Ranks: s.ranks.v,

		Suspect: s.suspicion.reason(), SuspectSince: s.suspicion.since,
		Source:  s.source,
		SeenAny: s.seenAny,
	}
	if s.overfullLocked() {
		st.KVUsed.value = st.KVCapacity.value
	}
	st.NewestAt, _ = s.newestLocked()
	return st
}

// overfullLocked reports whether more KV is in use than there is.
func (s *Store) overfullLocked() bool {
	used, capacity := s.cells[figKVUsed], s.cells[figKVCapacity]
	return used.known && capacity.known && used.value > capacity.value
}

// shareLocked returns the newer word on the KV share: the reported one or the computed one. A capacity does not age, so
// the computed one has the time of KVUsed.
func (s *Store) shareLocked() Reading {
	share, used, capacity := s.cells[figKVShare], s.cells[figKVUsed], s.cells[figKVCapacity]
	if !used.known || !capacity.known {
		return share.Reading
	}
	if share.seen && (share.at.After(used.at) || share.known && share.at.Equal(used.at)) {
		return share.Reading
	}
	v, _ := shareOf(used.value, capacity.value)
	return Reading{value: v, at: used.at, known: true}
}

// newestLocked returns the time of the newest known load figure, and false if none is known.
func (s *Store) newestLocked() (newest time.Time, ok bool) {
	for f := range numFigures {
		if c := s.cells[f]; c.known && !f.isLimit() && (!ok || c.at.After(newest)) {
			newest, ok = c.at, true
		}
	}
	return newest, ok
}
