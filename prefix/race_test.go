package prefix_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/isobar-go/isobar/prefix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Eight writers, each with prompts of its own behind a shared head, and readers that know who can hold what. A
// writer keeps giving up its holder, so that slots change hands under the readers' feet.
func TestRaceNeverLonger(t *testing.T) {
	t.Parallel()
	const writers, readers, shared, own = 8, 3, 5, 9
	x := index(t, prefix.Config{MaxBytes: 96 << 10})
	base := x.Stats()

	// owner of a slot: writer+1 in the low byte, above it a number that is never used again; 0 while it changes.
	var owner [64]atomic.Uint64
	var serial atomic.Uint64
	var prompts [writers][16]prefix.Sequence
	for w := range prompts {
		for i := range prompts[w] {
			prompts[w][i] = prompt(t, shared, own+i%3, w*1000+i)
		}
	}
	var matched atomic.Int64
	var stop atomic.Bool
	var work, watch sync.WaitGroup
	for w := range writers {
		work.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			add := func() prefix.Holder {
				h := x.Add([]int64{0, 600, 2000}[rng.IntN(3)])
				owner[h.Slot()].Store(serial.Add(1)<<8 | uint64(w+1))
				return h
			}
			remove := func(h prefix.Holder) {
				owner[h.Slot()].Store(0)
				x.Remove(h)
			}
			h := add()
			// At least so much, and until the readers have had their share of the processors.
			for i := 0; i < 2000 || i < 200_000 && matched.Load() < 2000 && !t.Failed(); i++ {
				q := prompts[w][rng.IntN(16)]
				q = q.Head(q.Blocks() - rng.IntN(4))
				switch rng.IntN(40) {
				case 0:
					remove(h)
					h = add()
				case 1:
					x.Clear(h)
				case 2:
					x.SetCapacity(h, int64(rng.IntN(2000)))
				case 3, 4:
					x.Apply(h, prefix.Event{Kind: prefix.Stored, Prefix: q, From: rng.IntN(8)})
				case 5:
					x.Apply(h, prefix.Event{Kind: prefix.Removed, Prefix: q, From: rng.IntN(8)})
				case 6:
					if w == 0 {
						x.ClearAll()
					}
				default:
					x.Record(h, q)
				}
			}
			remove(h)
		})
	}
	for r := range readers {
		watch.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(r), 2))
			var before [64]uint64
			var dst []int64
			for !stop.Load() {
				w := rng.IntN(writers)
				q := prompts[w][rng.IntN(16)]
				for i := range before {
					before[i] = owner[i].Load()
				}
				dst = x.Match(q, dst)
				for slot, tokens := range dst {
					now := owner[slot].Load()
					if now == 0 || now != before[slot] {
						continue
					}
					limit := int64(shared * 16)
					if int(now&0xff)-1 == w {
						limit = q.Tokens()
					}
					if tokens > 0 {
						matched.Add(1)
					}
					if tokens > limit || tokens%16 != 0 {
						assert.LessOrEqual(t, tokens, limit)
						return
					}
				}
			}
		})
	}
	work.Wait()
	stop.Store(true)
	watch.Wait()
	require.NoError(t, x.Check())
	require.NotZero(t, matched.Load(), "the readers saw something")
	require.Equal(t, base.Bytes, x.Stats().Bytes)
	require.Zero(t, x.Stats().Nodes)
}

// A prompt that is held throughout must be matched in full at every moment, while others split it up and tables
// are rebuilt around it.
func TestRaceNeverMissesWhatStays(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	stays, moves := x.Add(0), x.Add(0)
	const length = 30
	var current atomic.Pointer[prefix.Sequence]
	var stop atomic.Bool
	var seen atomic.Int64
	var watch sync.WaitGroup
	for range 2 {
		watch.Go(func() {
			var dst []int64
			for !stop.Load() {
				q := current.Load()
				if q == nil {
					continue
				}
				dst = x.Match(*q, dst)
				if dst[stays.Slot()] != length*16 {
					assert.EqualValues(t, length*16, dst[stays.Slot()])
					return
				}
				seen.Add(1)
			}
		})
	}
	for round := 0; round < 100 || round < 3000 && seen.Load() < 20_000 && !t.Failed(); round++ {
		q := prompt(t, 0, length, round)
		x.Apply(stays, prefix.Event{Kind: prefix.Stored, Prefix: q})
		current.Store(&q)
		for cut := 1; cut < length; cut++ { // each splits off one block more
			x.Record(moves, q.Head(cut))
		}
		x.Clear(moves)
	}
	stop.Store(true)
	watch.Wait()
	require.NoError(t, x.Check())
}

// Growing block by block merges a leaf into its parent again and again: a reader must never see less than before.
func TestRaceMergesAreInvisible(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	h := x.Add(0)
	for round := range 150 {
		q := prompt(t, 0, 60, round)
		var stored atomic.Int64
		var watch sync.WaitGroup
		watch.Go(func() {
			var dst []int64
			for low := int64(0); low < 60; low = stored.Load() {
				dst = x.Match(q, dst)
				if dst[0] < low*16 {
					assert.GreaterOrEqual(t, dst[0], low*16)
					return
				}
			}
		})
		for i := range 60 {
			x.Apply(h, prefix.Event{Kind: prefix.Stored, Prefix: q.Head(i + 1), From: i})
			stored.Store(int64(i + 1))
		}
		watch.Wait()
	}
}
