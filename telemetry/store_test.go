package telemetry_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/telemetry"
)

type (
	snap   = telemetry.Snapshot
	rank   = telemetry.Rank
	result = telemetry.Result
)

var v = telemetry.V

func newStore() *telemetry.Store { return telemetry.NewStore(telemetry.StoreConfig{}) }

// wantKnown asserts a figure's value and time.
func wantKnown(t *testing.T, r telemetry.Reading, value, seconds float64) {
	t.Helper()
	got, known := r.Value()
	assert.True(t, known, "the figure is known")
	assert.Equal(t, value, got)
	assert.True(t, r.ObservedAt().Equal(at(seconds)), "observed at %v, want %v", r.ObservedAt(), at(seconds))
}

func TestNewStoreKnowsNothing(t *testing.T) {
	s := newStore()
	require.NotNil(t, s.State())
	assert.Equal(t, telemetry.State{}, *s.State())
	assert.Equal(t, telemetry.Counters{}, s.Counters())
}

func TestEachFigureHasItsPlace(t *testing.T) {
	s := newStore()
	res := s.Observe(at(1), snap{Source: "poll", Running: v(1), Waiting: v(2), WaitingTokens: v(3), DecodeTokens: v(4),
		KVUsed: v(5), KVCapacity: v(60), KVShare: v(0.7), GenerationRate: v(8), PrefixHitRate: v(0.9),
		MaxRunning: v(10)}, 0)
	assert.Equal(t, result{}, res)
	st := s.State()
	for i, tc := range []struct {
		r    telemetry.Reading
		want float64
	}{{st.Running, 1}, {st.Waiting, 2}, {st.WaitingTokens, 3}, {st.DecodeTokens, 4}, {st.KVUsed, 5},
		{st.KVCapacity, 60}, {st.KVShare, 0.7}, {st.GenerationRate, 8}, {st.PrefixHitRate, 0.9},
		{st.MaxRunning, 10}} {
		got, known := tc.r.Value()
		assert.True(t, known, "figure %d", i)
		assert.Equal(t, tc.want, got, "figure %d", i)
		assert.Equal(t, at(1), tc.r.ObservedAt(), "figure %d", i)
	}
	assert.Equal(t, "poll", st.Source)
	assert.True(t, st.SeenAny)
	assert.Equal(t, at(1), st.NewestAt)
}

func TestNewestWinsPerFigure(t *testing.T) {
	s := newStore()
	s.Observe(at(5), snap{ObservedAt: at(5), Running: v(40), Source: "poll"}, 0)
	before := s.State()
	res := s.Observe(at(6), snap{ObservedAt: at(4), Running: v(0), Waiting: v(3), Source: "late"}, 0)
	assert.Equal(t, result{DroppedReadings: 1}, res)
	wantKnown(t, s.State().Running, 40, 5)
	wantKnown(t, s.State().Waiting, 3, 4)
	assert.Equal(t, "poll", s.State().Source)
	assert.Equal(t, at(5), s.State().NewestAt)

	res = s.Observe(at(6), snap{ObservedAt: at(3), Running: v(0), Waiting: v(0)}, 0)
	assert.Equal(t, result{Dropped: telemetry.ReasonOlder, DroppedReadings: 2}, res)
	assert.Equal(t, uint64(3), s.Counters().DroppedReadings)
	assert.Equal(t, map[telemetry.Reason]uint64{telemetry.ReasonOlder: 1}, s.Counters().Dropped)
	assert.False(t, before.Waiting.Known(), "a state that was handed out does not change")
}

func TestEquallyOldChangesOnlyTheUnknown(t *testing.T) {
	s := newStore()
	s.Observe(at(5), snap{Running: v(4), Waiting: v(math.NaN())}, 0)
	res := s.Observe(at(5), snap{Running: v(9), Waiting: v(2), KVShare: v(0.5)}, 0)
	assert.Equal(t, result{DroppedReadings: 1}, res)
	wantKnown(t, s.State().Running, 4, 5)
	wantKnown(t, s.State().Waiting, 2, 5)
	wantKnown(t, s.State().KVShare, 0.5, 5)
	res = s.Observe(at(5), snap{Running: v(math.NaN())}, 0)
	assert.Equal(t, result{Dropped: telemetry.ReasonOlder, DroppedReadings: 1}, res)
	wantKnown(t, s.State().Running, 4, 5)
}

func TestReadingsWithTimesOfTheirOwn(t *testing.T) {
	s := newStore()
	res := s.Observe(at(5), snap{ObservedAt: at(4), Running: telemetry.At(1, at(2)), Waiting: v(2),
		KVShare: telemetry.At(0.5, at(9))}, 0)
	assert.Equal(t, result{DroppedReadings: 1}, res, "one reading is from the future")
	wantKnown(t, s.State().Running, 1, 2)
	wantKnown(t, s.State().Waiting, 2, 4)
	assert.False(t, s.State().KVShare.Known())
	s.Observe(at(5), snap{KVCapacity: v(100), MaxRunning: v(8)}, 0)
	assert.Equal(t, at(4), s.State().NewestAt)

	res = s.Observe(at(5), snap{ObservedAt: at(5), Running: telemetry.At(3, at(6))}, 0)
	assert.Equal(t, result{Dropped: telemetry.ReasonFuture, DroppedReadings: 1}, res)
}

func TestFutureSnapshotIsDropped(t *testing.T) {
	s := newStore()
	res := s.Observe(at(5), snap{ObservedAt: at(5.001), Running: v(1), Health: telemetry.HealthOK, Epoch: "e"}, 0)
	assert.Equal(t, result{Dropped: telemetry.ReasonFuture, DroppedReadings: 1}, res)
	assert.Equal(t, telemetry.State{}, *s.State())
}

func TestEmptySnapshotRefreshesNothing(t *testing.T) {
	s := newStore()
	s.Observe(at(1), snap{Running: v(1)}, 0)
	before := *s.State()
	assert.Equal(t, result{Dropped: telemetry.ReasonEmpty}, s.Observe(at(2), snap{Source: "x"}, 0))
	assert.Equal(t, before, *s.State())
}

func TestClockBackwards(t *testing.T) {
	s := newStore()
	s.Observe(at(100), snap{Running: v(40), Health: telemetry.HealthOOM, Epoch: "a"}, 0)
	assert.Equal(t, telemetry.Stale, telemetry.Limits{}.Of(s.State().Running, at(10)))

	res := s.Observe(at(10), snap{ObservedAt: at(9), Running: v(2), Health: telemetry.HealthOK, Epoch: "a",
		Source: "after"}, 0)
	assert.Equal(t, result{}, res)
	assert.Equal(t, "after", s.State().Source)
	wantKnown(t, s.State().Running, 2, 9)
	assert.Equal(t, telemetry.HealthOK, s.State().Health)
	assert.Equal(t, at(9), s.State().NewestAt)

	res = s.Observe(at(11), snap{ObservedAt: at(8), Running: v(3)}, 0)
	assert.Equal(t, telemetry.ReasonOlder, res.Dropped, "the order of observation counts again")

	s.Observe(at(100), snap{Running: v(40), Epoch: "a"}, 0)
	res = s.Observe(at(20), snap{Running: v(1), Epoch: "b"}, 0)
	assert.True(t, res.EpochChanged, "the epoch held is from before the clock went backwards")
	wantKnown(t, s.State().Running, 1, 20)
}

func TestInvalidIsUnknownAndCounted(t *testing.T) {
	s := newStore()
	good := snap{Running: v(1), Waiting: v(1), WaitingTokens: v(1), DecodeTokens: v(1), KVShare: v(0.5), KVUsed: v(1),
		KVCapacity: v(10), GenerationRate: v(1), PrefixHitRate: v(0.5), MaxRunning: v(1)}
	s.Observe(at(1), good, 0)
	res := s.Observe(at(2), snap{Running: v(math.NaN()), Waiting: v(math.Inf(1)), WaitingTokens: v(math.Inf(-1)),
		DecodeTokens: v(-1), KVShare: v(math.NaN()), KVUsed: v(1.1e15), KVCapacity: v(0),
		GenerationRate: v(-0.1), PrefixHitRate: v(math.Inf(1)), MaxRunning: v(0),
		Ranks: nil, Health: 77, Asleep: 77, Adapters: telemetry.AdapterReport{Adapters: []telemetry.Adapter{{}}}}, 0)
	names := []string{"running", "waiting", "waiting-tokens", "decode-tokens", "kv", "kv-used", "kv-capacity",
		"gen-rate", "prefix-hit-rate", "max-running", "adapters", "health", "asleep"}
	assert.Equal(t, result{Defects: names}, res)
	st := s.State()
	for i, r := range []telemetry.Reading{st.Running, st.Waiting, st.WaitingTokens, st.DecodeTokens, st.KVShare,
		st.KVUsed, st.KVCapacity, st.GenerationRate, st.PrefixHitRate, st.MaxRunning} {
		assert.False(t, r.Known(), "figure %d", i)
		assert.Equal(t, at(2), r.ObservedAt(), "figure %d", i)
	}
	assert.True(t, st.SeenAny)
	for _, name := range names {
		assert.Equal(t, uint64(1), s.Counters().Defects[name], name)
	}
	good.ObservedAt = at(1.5)
	res = s.Observe(at(3), good, 0)
	assert.Equal(t, telemetry.ReasonOlder, res.Dropped, "an older valid value does not come back")
	good.ObservedAt = at(3)
	assert.Equal(t, result{}, s.Observe(at(3), good, 0))
	wantKnown(t, s.State().Running, 1, 3)
}

func TestTheGreatestCount(t *testing.T) {
	s := newStore()
	assert.Empty(t, s.Observe(at(1), snap{WaitingTokens: v(1e15)}, 0).Defects)
	wantKnown(t, s.State().WaitingTokens, 1e15, 1)
	assert.Equal(t, []string{"waiting-tokens"},
		s.Observe(at(2), snap{WaitingTokens: v(math.Nextafter(1e15, 2e15))}, 0).Defects)
}

func TestKVShare(t *testing.T) {
	for name, tc := range map[string]struct {
		in      []snap // observed at 1, 2, 3 ...
		share   float64
		seconds float64
		defects []string // of the last
	}{
		"reported":                     {[]snap{{KVShare: v(0.4), KVUsed: v(10), KVCapacity: v(100)}}, 0.4, 1, nil},
		"above one is full":            {[]snap{{KVShare: v(55)}}, 1, 1, []string{"kv"}},
		"computed":                     {[]snap{{KVUsed: v(10), KVCapacity: v(100)}}, 0.1, 1, nil},
		"computed, above one":          {[]snap{{KVUsed: v(300), KVCapacity: v(100)}}, 1, 1, []string{"kv"}},
		"capacity from before":         {[]snap{{KVCapacity: v(100)}, {KVUsed: v(10)}}, 0.1, 2, nil},
		"above a capacity from before": {[]snap{{KVCapacity: v(100)}, {KVUsed: v(101)}}, 1, 2, []string{"kv"}},
		"newer computed":               {[]snap{{KVShare: v(0.9)}, {KVUsed: v(10), KVCapacity: v(100)}}, 0.1, 2, nil},
		"newer reported":               {[]snap{{KVUsed: v(10), KVCapacity: v(100)}, {KVShare: v(0.9)}}, 0.9, 2, nil},
		"invalid beside computed": {[]snap{{KVShare: v(-1), KVUsed: v(10), KVCapacity: v(100)}}, 0.1, 1,
			[]string{"kv"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore()
			var res result
			for i, in := range tc.in {
				res = s.Observe(at(float64(i+1)), in, 0)
			}
			assert.Equal(t, tc.defects, res.Defects)
			wantKnown(t, s.State().KVShare, tc.share, tc.seconds)
			used, okUsed := s.State().KVUsed.Value()
			capacity, okCapacity := s.State().KVCapacity.Value()
			assert.True(t, !okUsed || !okCapacity || used <= capacity)
		})
	}
	s := newStore()
	s.Observe(at(1), snap{KVUsed: v(10), KVCapacity: v(100)}, 0)
	s.Observe(at(2), snap{KVShare: v(math.NaN())}, 0)
	assert.False(t, s.State().KVShare.Known(), "the newest word is that it is unknown")
}

// What the KV figures mean is said by the newest of them, whichever that is and whatever arrives late.
func TestKVOccupied(t *testing.T) {
	s := newStore()
	say := func(now float64, sn snap, want bool) {
		t.Helper()
		s.Observe(at(now), sn, 0)
		assert.Equal(t, want, s.State().KVOccupied)
	}
	say(2, snap{KVUsed: v(7), KVOccupied: true}, true)
	say(3, snap{ObservedAt: at(1), KVShare: v(0.5)}, true)
	say(3, snap{Running: v(1)}, true)
	say(4, snap{KVShare: v(math.NaN())}, true)
	say(5, snap{KVShare: v(0.5)}, false)
	say(6, snap{KVUsed: v(9), KVOccupied: true, Epoch: "a"}, true)
	say(7, snap{Running: v(1), Epoch: "b"}, false)
}

func TestEpochChangeClears(t *testing.T) {
	s := newStore()
	s.Observe(at(1), snap{Running: v(9), MaxRunning: v(8), Health: telemetry.HealthError, Asleep: telemetry.TriYes,
		Adapters: telemetry.AdapterReport{Known: true}, Ranks: []rank{{ID: 0, Waiting: v(2)}}, Source: "poll"}, 0)
	assert.False(t, s.Observe(at(2), snap{Epoch: "a"}, 0).EpochChanged, "the first epoch is no change")
	wantKnown(t, s.State().Running, 9, 1)
	assert.Equal(t, result{}, s.Observe(at(3), snap{Epoch: "a"}, 0))

	assert.Equal(t, result{EpochChanged: true}, s.Observe(at(4), snap{Epoch: "b"}, 0))
	assert.Equal(t, telemetry.State{Epoch: "b"}, *s.State())
	assert.Equal(t, uint64(1), s.Counters().EpochChanges)

	assert.Equal(t, result{Dropped: telemetry.ReasonOlder, DroppedReadings: 1},
		s.Observe(at(5), snap{ObservedAt: at(3.5), Epoch: "a", Running: v(7)}, 0), "an older epoch")
	assert.Equal(t, telemetry.ReasonOlder, s.Observe(at(5), snap{ObservedAt: at(4), Epoch: "a", Running: v(7)}, 0).Dropped,
		"as old as the new epoch")
	assert.Equal(t, result{Dropped: telemetry.ReasonOlder, DroppedReadings: 1},
		s.Observe(at(5), snap{ObservedAt: at(3.5), Running: v(7), Health: telemetry.HealthOOM}, 0),
		"without an epoch, and maybe of the process that is gone")
	assert.Equal(t, result{}, s.Observe(at(5), snap{ObservedAt: at(3.5), Epoch: "b", Waiting: v(7)}, 0),
		"the new process, seen earlier by another source")
	assert.Equal(t, result{}, s.Observe(at(6), snap{Running: v(1)}, 0))
	wantKnown(t, s.State().Running, 1, 6)
	assert.Equal(t, telemetry.HealthUnknown, s.State().Health)
}

func TestEpochChangeKeepsWhatIsNewer(t *testing.T) {
	s := newStore()
	s.Observe(at(1), snap{Epoch: "a", Running: v(9), Waiting: v(9)}, 0)
	s.Observe(at(5), snap{Running: v(2), Health: telemetry.HealthOK, Source: "header"}, 0)
	res := s.Observe(at(6), snap{ObservedAt: at(4), Epoch: "b", Running: v(0), KVShare: v(0), Source: "poll"}, 0)
	assert.Equal(t, result{EpochChanged: true, DroppedReadings: 1}, res)
	st := s.State()
	wantKnown(t, st.Running, 2, 5)
	wantKnown(t, st.KVShare, 0, 4)
	assert.False(t, st.Waiting.Known())
	assert.Equal(t, telemetry.HealthOK, st.Health)
	assert.Equal(t, "header", st.Source)
}

func TestFirstZerosWithoutEvidence(t *testing.T) {
	zeros := func(seconds float64) snap {
		return snap{ObservedAt: at(seconds), Running: v(0), Waiting: v(0), KVCapacity: v(100),
			Evidence: telemetry.EvidenceNone, Ranks: []rank{{ID: 1, Running: v(0)}}}
	}
	s := newStore()
	assert.Equal(t, result{DroppedReadings: 2}, s.Observe(at(1), zeros(1), 0))
	assert.Equal(t, result{Dropped: telemetry.ReasonUnsampled, DroppedReadings: 3}, s.Observe(at(1), zeros(1), 0),
		"the same report again is no second one")
	st := s.State()
	wantKnown(t, st.KVCapacity, 100, 1)
	assert.False(t, st.SeenAny)
	assert.False(t, st.Running.Known())
	assert.Empty(t, st.Ranks)
	assert.Equal(t, telemetry.ReasonUnsampled, newStore().Observe(at(1),
		snap{Running: v(0), Evidence: telemetry.EvidenceNone}, 0).Dropped)

	assert.Equal(t, result{}, s.Observe(at(2), zeros(2), 0), "the second report counts")
	wantKnown(t, s.State().Running, 0, 2)
	assert.True(t, s.State().SeenAny)

	s.Observe(at(3), snap{Epoch: "a"}, 0)
	restart := zeros(4)
	restart.Epoch = "b"
	s.Observe(at(4), restart, 0)
	assert.False(t, s.State().Running.Known(), "the first report after a restart")

	for name, in := range map[string]snap{
		"vouched":    {Running: v(0)},
		"not zero":   {Running: v(0), Waiting: v(1), Evidence: telemetry.EvidenceNone},
		"in a share": {Running: v(0), KVShare: v(0.1), Evidence: telemetry.EvidenceNone},
	} {
		s := newStore()
		assert.Equal(t, result{}, s.Observe(at(1), in, 0), name)
		assert.True(t, s.State().Running.Known(), name)
	}
}

func TestItems(t *testing.T) {
	s := newStore()
	list := []telemetry.Adapter{
		{ID: "x", Digest: "d1", State: telemetry.AdapterReady, Rank: 16, MemoryBytes: 5, VerifiedAt: at(1)},
		{ID: "y", Rank: -1, MemoryBytes: -1, State: 99, VerifiedAt: at(90)},
		{},
	}
	res := s.Observe(at(2), snap{Adapters: telemetry.AdapterReport{Known: true, Adapters: list},
		Health: telemetry.HealthOK, Asleep: telemetry.TriNo}, 0)
	assert.Equal(t, result{Defects: []string{"adapters"}}, res)
	list[0].ID = "changed by the caller"
	st := s.State()
	assert.Equal(t, []telemetry.Adapter{
		{ID: "x", Digest: "d1", State: telemetry.AdapterReady, Rank: 16, MemoryBytes: 5, VerifiedAt: at(1)},
		{ID: "y", VerifiedAt: at(2)},
	}, st.Adapters.Adapters)
	assert.True(t, st.Adapters.Known)
	assert.Equal(t, []time.Time{at(2), at(2), at(2)}, []time.Time{st.AdaptersAt, st.HealthAt, st.AsleepAt})
	assert.False(t, st.SeenAny)
	assert.True(t, st.NewestAt.IsZero())

	res = s.Observe(at(3), snap{ObservedAt: at(1), Adapters: telemetry.AdapterReport{Known: true},
		Health: telemetry.HealthOOM, Asleep: telemetry.TriYes}, 0)
	assert.Equal(t, telemetry.ReasonOlder, res.Dropped)
	assert.Equal(t, telemetry.HealthOK, s.State().Health)

	s.Observe(at(4), snap{Adapters: telemetry.AdapterReport{Known: true}}, 0)
	assert.True(t, s.State().Adapters.Known)
	assert.Empty(t, s.State().Adapters.Adapters, "none is loaded")
	assert.Equal(t, telemetry.TriNo, s.State().Asleep)
}

func TestScrapeErrorChangesNothing(t *testing.T) {
	s := newStore()
	s.Observe(at(1), snap{Running: v(3)}, 0)
	before := s.State()
	s.ScrapeError(at(2), errors.New("refused"))
	s.ScrapeError(at(3), nil)
	assert.Same(t, before, s.State())
	c := s.Counters()
	assert.Equal(t, uint64(2), c.ScrapeErrors)
	assert.Equal(t, "unknown error", c.LastScrapeError)
	assert.Equal(t, at(3), c.LastScrapeErrorAt)
}

func TestClear(t *testing.T) {
	s := newStore()
	s.Observe(at(2), snap{Running: v(3), KVShare: v(1), KVOccupied: true, Epoch: "a", Health: telemetry.HealthOK}, 0)
	s.Clear()
	assert.Equal(t, telemetry.State{}, *s.State())
	assert.Equal(t, uint64(1), s.Counters().Observations)
	assert.Equal(t, result{}, s.Observe(at(3), snap{ObservedAt: at(1), Running: v(4), Epoch: "b"}, 0))
	wantKnown(t, s.State().Running, 4, 1)
}

func TestCountersAreACopy(t *testing.T) {
	s := newStore()
	s.Observe(at(1), snap{Running: v(-1)}, 0)
	s.Observe(at(1), snap{}, 0)
	c := s.Counters()
	c.Defects["running"], c.Dropped[telemetry.ReasonEmpty] = 100, 100
	assert.Equal(t, uint64(1), s.Counters().Defects["running"])
	assert.Equal(t, uint64(1), s.Counters().Dropped[telemetry.ReasonEmpty])
}

func TestInvalidLimitsCountAsNotSet(t *testing.T) {
	s := telemetry.NewStore(telemetry.StoreConfig{Limits: telemetry.Limits{StaleAfter: -1}})
	for i := range telemetry.DefaultFrozenAfter {
		assert.Empty(t, s.State().Suspect)
		s.Observe(at(float64(i)), snap{Running: v(1)}, 0)
	}
	assert.Equal(t, telemetry.SuspectFrozen, s.State().Suspect)
}

func TestNegativeFrozenAfterNeverSuspects(t *testing.T) {
	s := telemetry.NewStore(telemetry.StoreConfig{FrozenAfter: -1})
	for i := range 5 * telemetry.DefaultFrozenAfter {
		s.Observe(at(float64(i)), snap{Running: v(0), Waiting: v(1)}, 0)
		assert.Empty(t, s.State().Suspect)
	}
}

func TestFirstEpochOfADroppedSnapshotIsNoted(t *testing.T) {
	s := newStore()
	s.Observe(at(2), snap{Running: v(1)}, 0)
	assert.Equal(t, telemetry.ReasonOlder, s.Observe(at(3), snap{ObservedAt: at(1), Running: v(2), Epoch: "a"}, 0).Dropped)
	assert.Equal(t, "a", s.State().Epoch)
	assert.True(t, s.Observe(at(4), snap{Epoch: "b"}, 0).EpochChanged)
}
