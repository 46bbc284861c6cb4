package telemetry_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/isobar-go/isobar/telemetry"
)

// feed observes in n times, one second apart, and returns the time of the last.
func feed(s *telemetry.Store, from float64, n int, in snap, live int64) float64 {
	for i := range n {
		s.Observe(at(from+float64(i)), in, live)
	}
	return from + float64(n-1)
}

var busy = snap{Running: v(106), Waiting: v(15), KVShare: v(0.99)}

func TestFrozen(t *testing.T) {
	s := newStore()
	feed(s, 1, 9, busy, 0)
	assert.Empty(t, s.State().Suspect)
	res := s.Observe(at(10), busy, 0)
	assert.True(t, res.Suspect)
	assert.Equal(t, telemetry.SuspectFrozen, s.State().Suspect)
	assert.Equal(t, at(10), s.State().SuspectSince)
	wantKnown(t, s.State().Running, 106, 10)

	feed(s, 11, 3, busy, 1)
	assert.Equal(t, telemetry.SuspectFrozen, s.State().Suspect, "a lease proves nothing")
	assert.Equal(t, at(10), s.State().SuspectSince)

	assert.False(t, s.Observe(at(20), snap{Running: v(105)}, 1).Suspect, "a moved figure does")
	assert.Empty(t, s.State().Suspect)
	assert.True(t, s.State().SuspectSince.IsZero())
	feed(s, 21, 9, busy, 0)
	assert.Empty(t, s.State().Suspect)
	assert.True(t, s.Observe(at(30), busy, 0).Suspect)
}

func TestNotFrozen(t *testing.T) {
	moved := busy
	moved.KVShare = v(0.98)
	invalid := busy
	invalid.KVShare = v(-1)
	for name, tc := range map[string]struct {
		between func(s *telemetry.Store)
		resets  bool // else it does not count at all
	}{
		"a lease":        {func(s *telemetry.Store) { s.Observe(at(9.5), busy, 1) }, true},
		"a moved figure": {func(s *telemetry.Store) { s.Observe(at(9.5), moved, 5) }, true},
		"an invalid one": {func(s *telemetry.Store) { s.Observe(at(9.5), invalid, 5) }, true},
		"an epoch":       {func(s *telemetry.Store) { s.Observe(at(9.5), snap{Epoch: "b"}, 0) }, true},
		"a clear":        {func(s *telemetry.Store) { s.Clear() }, true},
		"evidence":       {func(s *telemetry.Store) { s.Trust(at(9.5)) }, true},
		"a dropped one":  {func(s *telemetry.Store) { s.Observe(at(9.5), snap{ObservedAt: at(1), Running: v(1)}, 5) }, false},
		"a capacity":     {func(s *telemetry.Store) { s.Observe(at(9.5), snap{KVCapacity: v(100)}, 5) }, false},
		"an empty one":   {func(s *telemetry.Store) { s.Observe(at(9.5), snap{}, 5) }, false},
		"a failed poll":  {func(s *telemetry.Store) { s.ScrapeError(at(9.5), nil) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore()
			s.Observe(at(0), snap{Epoch: "a"}, 0)
			feed(s, 1, 9, busy, 0)
			tc.between(s)
			assert.Empty(t, s.State().Suspect)
			s.Observe(at(10), busy, 0)
			assert.Equal(t, !tc.resets, s.State().Suspect == telemetry.SuspectFrozen)
			if tc.resets {
				feed(s, 11, 8, busy, 0)
				assert.Empty(t, s.State().Suspect)
				feed(s, 19, 1, busy, 0)
				assert.Equal(t, telemetry.SuspectFrozen, s.State().Suspect)
			}
		})
	}
	for name, in := range map[string]snap{
		"idle":          {Running: v(0), Waiting: v(0), KVShare: v(0.5)},
		"unknown queue": {KVShare: v(0.5)},
	} {
		s := newStore()
		feed(s, 1, 30, in, 0)
		assert.Empty(t, s.State().Suspect, name)
	}
}

func TestWedged(t *testing.T) {
	s := newStore()
	for i := range 10 {
		assert.Empty(t, s.State().Suspect)
		s.Observe(at(float64(i)), snap{Running: v(0), Waiting: v(float64(6 + i%2))}, 3)
	}
	assert.Equal(t, telemetry.SuspectWedged, s.State().Suspect, "own leases or not, moving or not")
	assert.Equal(t, at(9), s.State().SuspectSince)
	s.Observe(at(10), snap{Waiting: v(9)}, 0)
	assert.Equal(t, telemetry.SuspectWedged, s.State().Suspect)
	s.Observe(at(11), snap{Running: v(1)}, 0)
	assert.Empty(t, s.State().Suspect)

	for name, end := range map[string]snap{
		"running": {Running: v(1), Waiting: v(6)}, "queue empty": {Running: v(0), Waiting: v(0)},
		"unknown": {Running: v(-1)},
	} {
		s := newStore()
		feed(s, 0, 9, snap{Running: v(0), Waiting: v(6)}, 1)
		s.Observe(at(9), end, 1)
		feed(s, 10, 9, snap{Running: v(0), Waiting: v(6)}, 1)
		assert.Empty(t, s.State().Suspect, name)
	}
}

func TestWedgedNeedsFiguresOfOneTime(t *testing.T) {
	s := newStore()
	s.Observe(at(0), snap{Running: v(0)}, 1)
	feed(s, 11, 30, snap{Waiting: v(5)}, 1)
	assert.Empty(t, s.State().Suspect, "nothing is known about what runs meanwhile")
	s = newStore()
	s.Observe(at(0), snap{Running: v(0)}, 1)
	for i := range 10 {
		s.Observe(at(float64(i)/10), snap{Waiting: v(5)}, 1)
	}
	assert.Equal(t, telemetry.SuspectWedged, s.State().Suspect)
}

func TestWedgedCountsReportsOfTheQueue(t *testing.T) {
	s := newStore()
	s.Observe(at(0), snap{Running: v(0), Waiting: v(6)}, 1)
	for i := range 20 {
		s.Observe(at(1+float64(i)/10), snap{KVShare: v(0)}, 1)
	}
	assert.Empty(t, s.State().Suspect)
}

func TestWedgedGoesBeforeFrozen(t *testing.T) {
	s := telemetry.NewStore(telemetry.StoreConfig{FrozenAfter: 3})
	feed(s, 1, 3, snap{Running: v(0), Waiting: v(6)}, 0)
	assert.Equal(t, telemetry.SuspectWedged, s.State().Suspect)
	feed(s, 4, 3, snap{Running: v(2), Waiting: v(6)}, 0)
	assert.Equal(t, telemetry.SuspectFrozen, s.State().Suspect)
	s.Observe(at(7), snap{Running: v(0), Waiting: v(0)}, 0)
	assert.Empty(t, s.State().Suspect)
}

func TestTrustEndsSuspicion(t *testing.T) {
	s := newStore()
	feed(s, 1, 10, busy, 0)
	s.Trust(at(11))
	assert.Empty(t, s.State().Suspect)
	wantKnown(t, s.State().Running, 106, 10)
	feed(s, 12, 9, busy, 0)
	assert.Empty(t, s.State().Suspect, "it must be earned again")
	assert.True(t, s.Observe(at(21), busy, 0).Suspect)
	assert.Equal(t, uint64(1), s.Counters().Trusts)
	assert.Equal(t, at(11), s.Counters().LastTrustAt)

	s.Observe(at(22), snap{Epoch: "a"}, 0)
	s.Observe(at(23), snap{Epoch: "b"}, 0)
	assert.Empty(t, s.State().Suspect)
}
