package telemetry

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultFrozenAfter is the default of StoreConfig.FrozenAfter.
const DefaultFrozenAfter = 10

// StoreConfig is the configuration of a Store. The zero value works. It is plain data.
type StoreConfig struct {
	// Limits are the ages at which readings change their class. The store itself uses StaleAfter only: Running and
	// Waiting must not be further apart for an engine to count as wedged.
	Limits Limits
	// FrozenAfter is the number of consecutive observations that make an engine suspect. 0 means DefaultFrozenAfter, a
	// negative number that no engine ever becomes suspect.
	FrozenAfter int
}

// Validate returns an error that joins all faults of the configuration.
func (c StoreConfig) Validate() error {
	return c.Limits.Validate()
}

// Store merges what several sources report about one incarnation of an endpoint. Every method may be called
// concurrently; State never waits.
type Store struct {
	state atomic.Pointer[State]

	// Constant after NewStore.
	limits Limits

	// mu guards everything below.
	mu       sync.Mutex
	cells    [numFigures]cell
	adapters item[AdapterReport]
	health   item[Health]
	asleep   item[Tri]
	ranks    item[[]Rank]
	epoch    item[string]
	// floor is the time of the report that told of the last restart. A report without an epoch that is older than it may
	// describe the process that is gone.
	floor   stamp
	zero    stamp // the report of zeros that was not believed
	source  string
	seenAny bool
	// kvOccupied is what the newest KV figure means: Snapshot.KVOccupied of its report.
	kvOccupied item[bool]
	suspicion  suspicion
	counters   Counters
}

// stamp is the time of the newest word on something. seen tells "no word yet" from any time, so that a virtual clock
// may start anywhere.
type stamp struct {
	at   time.Time
	seen bool
}

// superseded reports whether a word of the time at replaces one of the time of p. A stamp after now is from before the
// clock went backwards: it cannot be compared and gives way.
func (p stamp) superseded(at, now time.Time) bool {
	return !p.seen || p.at.After(now) || at.After(p.at)
}

// cell is a figure of the engine. If it is seen and not known, the newest word on it was invalid.
type cell struct {
	Reading
	seen bool
}

// admits reports whether w replaces what is held: it does if it is newer, or as old and known where the held one is
// not.
func (c *cell) admits(w word, now time.Time) bool {
	return stamp{c.at, c.seen}.superseded(w.at, now) || !c.known && w.known && w.at.Equal(c.at)
}

// item is a part of a snapshot that is reported as a whole.
type item[T any] struct {
	stamp
	v T
}

func (i *item[T]) take(v T, at, now time.Time) bool {
	if !i.superseded(at, now) {
		return false
	}
	*i = item[T]{stamp{at, true}, v}
	return true
}

func (i *item[T]) forget(gone func(time.Time) bool) {
	if gone(i.at) {
		*i = item[T]{}
	}
}

// NewStore returns a store that has seen nothing. A field that Validate would reject counts as not set.
func NewStore(cfg StoreConfig) *Store {
	if cfg.FrozenAfter == 0 {
		cfg.FrozenAfter = DefaultFrozenAfter
	}
	s := &Store{limits: cfg.Limits.Effective(), suspicion: suspicion{after: cfg.FrozenAfter}}
	s.state.Store(&State{})
	return s
}

// State returns what is known now, never nil. It takes no lock.
func (s *Store) State() *State { return s.state.Load() }

// Reason says why nothing of a snapshot was taken. "" means that something was.
type Reason string

const (
	// ReasonOlder is a snapshot that says nothing newer than what is held, or one of an earlier epoch. The first epoch of
	// all is noted even so.
	ReasonOlder Reason = "older"
	// ReasonFuture is a snapshot from a time after now, which cannot be true.
	ReasonFuture Reason = "future"
	// ReasonEmpty is a snapshot that says nothing at all. It makes nothing fresher.
	ReasonEmpty Reason = "empty"
	// ReasonUnsampled is a first report of nothing but zeros from an engine that may never have measured anything.
	ReasonUnsampled Reason = "unsampled"
)

// Result says what became of a snapshot. It belongs to the caller.
type Result struct {
	// Dropped says why nothing was taken, "" if something was.
	Dropped Reason
	// DroppedReadings is the number of readings that were not taken. A figure that is computed from ranks is one.
	DroppedReadings int
	// Defects names the invalid values among what was newer than what is held, in this order: running, waiting,
	// waiting-tokens, decode-tokens, kv, kv-used, kv-capacity, gen-rate, prefix-hit-rate, max-running, ranks, adapters,
	// health, asleep.
	Defects []string
	// EpochChanged means that the engine has restarted: whatever it cached is gone.
	EpochChanged bool
	// Suspect tells whether the engine is suspect after this snapshot.
	Suspect bool
}

// Observe takes whatever is new in snap. now is the host's clock; liveLeases is the number of the host's own requests on
// the engine, now or at any time since its last observation.
//
// The newest observation of each figure wins, whatever the order of arrival and whoever reports. An equally old one
// changes only a figure that is unknown. An invalid value makes its figure unknown, as the newest word on it. A held
// time that is after now shows that the clock went backwards: what is held then gives way to any honest report. To a
// store, a now that the host read too early looks the same, so read it right before the call; the price of a mistake is
// a slightly older figure until the next report.
//
// Observe never fails: what it did not take is in the Result and in the Counters.
func (s *Store) Observe(now time.Time, snap Snapshot, liveLeases int64) Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := observing{s: s, now: now, at: snap.ObservedAt}
	if o.at.IsZero() {
		o.at = now
	}
	o.run(&snap, liveLeases)
	o.res.Suspect = s.suspicion.reason() != ""
	s.countLocked(&o.res, o.defects)
	return o.res
}

// ScrapeError notes that a poll failed. That is a missing report: nothing becomes zero, nothing becomes older or newer
// than it is. A nil err counts too.
func (s *Store) ScrapeError(now time.Time, err error) {
	text := "unknown error"
	if err != nil {
		text = err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counters.ScrapeErrors++
	s.counters.LastScrapeError, s.counters.LastScrapeErrorAt = text, now
}

// Trust tells the store that the engine has shown itself alive in another way, for example by a token for a probe. It
// ends a suspicion, which must then be earned again from the start.
func (s *Store) Trust(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counters.Trusts++
	s.counters.LastTrustAt = now
	s.suspicion.clear()
	if s.State().Suspect != "" {
		s.state.Store(s.buildLocked())
	}
}

// Clear forgets everything that was reported. The counters stay.
func (s *Store) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(func(time.Time) bool { return true })
	s.epoch, s.floor = item[string]{}, stamp{}
	s.state.Store(s.buildLocked())
}

// forgetLocked drops every report whose time is gone, and what was concluded from them.
func (s *Store) forgetLocked(gone func(time.Time) bool) {
	s.seenAny = false
	for f := range numFigures {
		if gone(s.cells[f].at) {
			s.cells[f] = cell{}
		}
		if s.cells[f].known && !f.isLimit() {
			s.seenAny = true
		}
	}
	if !s.seenAny {
		s.source = ""
	}
	s.adapters.forget(gone)
	s.health.forget(gone)
	s.asleep.forget(gone)
	s.ranks.forget(gone)
	s.kvOccupied.forget(gone)
	s.zero = stamp{}
	s.suspicion.clear()
}

// copyAdapters returns a checked list of its own.
func copyAdapters(in AdapterReport, observedAt, now time.Time, d *defects) AdapterReport {
	out := AdapterReport{Known: true, Adapters: slices.Clone(in.Adapters)}
	out.Adapters = slices.DeleteFunc(out.Adapters, func(a Adapter) bool {
		if a.ID == "" {
			d.add(defAdapters)
		}
		return a.ID == ""
	})
	for i := range out.Adapters {
		a := &out.Adapters[i]
		if a.Rank < 0 || a.MemoryBytes < 0 || a.State > AdapterUnloaded {
			d.add(defAdapters)
			a.Rank, a.MemoryBytes = max(a.Rank, 0), max(a.MemoryBytes, 0)
			if a.State > AdapterUnloaded {
				a.State = AdapterUnknown
			}
		}
		if a.VerifiedAt.IsZero() || a.VerifiedAt.After(now) {
			a.VerifiedAt = observedAt
		}
	}
	return out
}
