package telemetry_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/telemetry"
)

func TestRanksAreAggregated(t *testing.T) {
	s := newStore()
	res := s.Observe(at(5), snap{Ranks: []rank{
		{ID: 2, Running: v(1), Waiting: v(2), WaitingTokens: v(3), DecodeTokens: v(4), KVUsed: v(10), KVCapacity: v(100),
			GenerationRate: v(5), PrefixHitRate: v(0.2), MaxRunning: v(8)},
		{ID: 0, Running: v(10), Waiting: v(20), WaitingTokens: v(30), DecodeTokens: v(40), KVUsed: v(60),
			KVCapacity: v(100), GenerationRate: v(50), PrefixHitRate: v(0.6), MaxRunning: v(8)},
		{ID: 1, Running: telemetry.At(0, at(3)), KVShare: v(0.3)},
	}}, 0)
	assert.Equal(t, result{}, res)
	st := s.State()
	wantKnown(t, st.Running, 11, 3) // as old as its oldest part
	wantKnown(t, st.Waiting, 22, 5)
	wantKnown(t, st.WaitingTokens, 33, 5)
	wantKnown(t, st.DecodeTokens, 44, 5)
	wantKnown(t, st.KVUsed, 70, 5)
	wantKnown(t, st.KVCapacity, 200, 5)
	wantKnown(t, st.KVShare, 0.6, 5)
	wantKnown(t, st.GenerationRate, 55, 5)
	wantKnown(t, st.PrefixHitRate, 0.4, 5)
	wantKnown(t, st.MaxRunning, 16, 5)
	ids := []int{}
	for _, r := range st.Ranks {
		ids = append(ids, r.ID)
	}
	assert.Equal(t, []int{0, 1, 2}, ids)
	wantKnown(t, st.Ranks[1].Running, 0, 3)
	wantKnown(t, st.Ranks[2].KVShare, 0.1, 5)
	assert.False(t, st.Ranks[1].Waiting.Known())
}

func TestOwnFiguresAreRankZero(t *testing.T) {
	s := newStore()
	s.Observe(at(1), snap{Running: v(1), KVShare: v(0.1), Ranks: []rank{{ID: 1, Running: v(40), KVShare: v(0.4)}}}, 0)
	wantKnown(t, s.State().Running, 41, 1)
	wantKnown(t, s.State().KVShare, 0.4, 1)
	assert.Len(t, s.State().Ranks, 2)

	s.Observe(at(2), snap{Running: v(1000), MaxRunning: v(8),
		Ranks: []rank{{ID: 1, Running: v(40)}, {ID: 0, Running: v(2)}}}, 0)
	wantKnown(t, s.State().Running, 42, 2)
	wantKnown(t, s.State().MaxRunning, 8, 2)
	assert.Len(t, s.State().Ranks, 2)
}

func TestDefectiveRanks(t *testing.T) {
	s := newStore()
	res := s.Observe(at(1), snap{Ranks: []rank{
		{ID: 0, Running: v(math.NaN()), Waiting: v(-1), KVUsed: v(900), KVCapacity: v(100)},
		{ID: 1, Running: v(3), KVShare: v(7)},
		{ID: 1, Running: v(50)}, {ID: -1, Running: v(50)},
		{ID: 2, KVUsed: v(1000), DecodeTokens: telemetry.At(1, at(2))},
	}}, 0)
	assert.Equal(t, result{DroppedReadings: 1, Defects: []string{"running", "waiting", "kv", "ranks"}}, res)
	st := s.State()
	wantKnown(t, st.Running, 3, 1)
	assert.False(t, st.Waiting.Known())
	assert.Equal(t, at(1), st.Waiting.ObservedAt(), "the newest word is that it is unknown")
	wantKnown(t, st.KVShare, 1, 1)
	wantKnown(t, st.KVUsed, 100, 1) // rank 2 does not know its capacity
	wantKnown(t, st.KVCapacity, 100, 1)
	assert.Len(t, st.Ranks, 3)

	s = newStore()
	res = s.Observe(at(1), snap{Ranks: []rank{{ID: 0, WaitingTokens: v(1e15)}, {ID: 1, WaitingTokens: v(1e15)}}}, 0)
	assert.Equal(t, []string{"waiting-tokens"}, res.Defects)
	assert.False(t, s.State().WaitingTokens.Known())
}

func TestTheFirstOfARepeatedRankCounts(t *testing.T) {
	const n = 500
	var ranks []rank
	for i := range 2 * n {
		ranks = append(ranks, rank{ID: (i*7919 + 1) % n, Running: v(float64(1 + i/n))})
	}
	s := newStore()
	assert.Equal(t, result{Defects: []string{"ranks"}}, s.Observe(at(1), snap{Ranks: ranks}, 0))
	wantKnown(t, s.State().Running, n, 1)
	assert.Len(t, s.State().Ranks, n)
	assert.Equal(t, 1, ranks[0].ID, "the caller's list stays as it is")
}

func TestKVUsedOfTheRanksWithACapacity(t *testing.T) {
	s := newStore()
	s.Observe(at(1), snap{Ranks: []rank{{ID: 0, KVUsed: v(10), KVCapacity: v(100)}, {ID: 1, KVUsed: v(50)}}}, 0)
	wantKnown(t, s.State().KVUsed, 10, 1)
	s = newStore()
	s.Observe(at(1), snap{KVUsed: v(50), Ranks: []rank{{ID: 1, KVCapacity: v(100)}}}, 0)
	assert.False(t, s.State().KVUsed.Known())
	assert.False(t, s.State().KVShare.Known())
	s = newStore()
	s.Observe(at(1), snap{Ranks: []rank{{ID: 0, KVUsed: v(10)}, {ID: 1, KVUsed: v(50)}}}, 0)
	wantKnown(t, s.State().KVUsed, 60, 1)
}

func TestRanksOfTheNewestSnapshot(t *testing.T) {
	s := newStore()
	ranks := []rank{{ID: 0, Running: v(1)}, {ID: 1, Running: v(2)}}
	s.Observe(at(2), snap{Ranks: ranks}, 0)
	ranks[0].ID = 77
	s.Observe(at(3), snap{ObservedAt: at(1), Ranks: []rank{{ID: 5, Running: v(9), Waiting: v(1)}}}, 0)
	assert.Len(t, s.State().Ranks, 2)
	assert.Equal(t, 0, s.State().Ranks[0].ID)
	wantKnown(t, s.State().Waiting, 1, 1)
}

func TestRankOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		reading := rapid.Custom(func(t *rapid.T) telemetry.Reading {
			switch rapid.IntRange(0, 5).Draw(t, "kind") {
			case 0:
				return telemetry.Reading{}
			case 1:
				return v(math.NaN())
			default:
				return telemetry.At(float64(rapid.IntRange(0, 64).Draw(t, "64ths"))/64,
					at(float64(rapid.IntRange(1, 5).Draw(t, "time"))))
			}
		})
		var ranks []rank
		for i := range rapid.IntRange(1, 5).Draw(t, "ranks") {
			ranks = append(ranks, rank{ID: i, Running: reading.Draw(t, "running"), KVShare: reading.Draw(t, "share"),
				KVUsed: reading.Draw(t, "used"), KVCapacity: reading.Draw(t, "capacity"),
				PrefixHitRate: reading.Draw(t, "hits")})
		}
		a, b := newStore(), newStore()
		resA := a.Observe(at(9), snap{Ranks: ranks}, 0)
		resB := b.Observe(at(9), snap{Ranks: rapid.Permutation(slices.Clone(ranks)).Draw(t, "order")}, 0)
		assert.Equal(t, resA, resB)
		assert.Equal(t, *a.State(), *b.State())
	})
}
