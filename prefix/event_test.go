package prefix_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/prefix"
)

func TestFirstEventEndsApproximation(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	h, other := x.Add(0), x.Add(0)
	a, b := prompt(t, 4, 4, 1), prompt(t, 4, 4, 2)
	x.Record(h, a)
	x.Record(other, a)
	require.False(t, x.Exact(h))
	x.Apply(h, prefix.Event{Kind: prefix.Stored, Prefix: b.Head(5)})
	require.True(t, x.Exact(h))
	require.Equal(t, []int64{64, 128}, x.Match(a, nil))
	require.Equal(t, []int64{80, 64}, x.Match(b, nil))
	x.Record(h, a)
	require.Equal(t, []int64{64, 128}, x.Match(a, nil), "only events count now")
	x.Apply(h, prefix.Event{Kind: prefix.Cleared})
	require.Zero(t, x.Held(h))
	require.True(t, x.Exact(h))
	x.Clear(h)
	require.True(t, x.Exact(h), "a gap does not end the mode")
	require.NoError(t, x.Check())
}

func TestRemovedTakesExactlyTheBlocksNamed(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	h := x.Add(0)
	q := prompt(t, 3, 0, 0)
	stored := func(to, from int) {
		x.Apply(h, prefix.Event{Kind: prefix.Stored, Prefix: q.Head(to), From: from})
	}
	removed := func(to, from int) {
		x.Apply(h, prefix.Event{Kind: prefix.Removed, Prefix: q.Head(to), From: from})
	}
	is := func(matched, held int64) {
		t.Helper()
		require.Equal(t, matched*16, match(x, h, q))
		require.Equal(t, held*16, x.Held(h))
		require.NoError(t, x.Check())
	}
	stored(3, 0)
	is(3, 3)
	removed(1, 0)
	is(0, 2)
	stored(1, 0)
	is(3, 3)
	removed(2, 1)
	is(1, 2)
	removed(2, 1)
	is(1, 2)
	removed(3, 2)
	is(1, 1)
	stored(3, 2)
	is(1, 2)
	stored(2, 1)
	is(3, 3)
	removed(3, 0)
	is(0, 0)
	stored(3, 3)
	removed(3, 7)
	is(0, 0)
	x.Apply(h, prefix.Event{Kind: 17, Prefix: q})
	is(0, 0)
	require.Zero(t, x.Stats().Nodes)
}

// A hole in what one holder has must not be bridged by another who has it all.
func TestHolesBesideOthers(t *testing.T) {
	t.Parallel()
	for _, extra := range []int{0, 3} {
		x := index(t, prefix.Config{})
		q := prompt(t, 6, 0, 0)
		whole := x.Add(0)
		x.Record(whole, q)
		var hold []prefix.Holder
		for range 1 + extra {
			h := x.Add(0)
			x.Apply(h, prefix.Event{Kind: prefix.Stored, Prefix: q, From: 2})
			hold = append(hold, h)
		}
		got := x.Match(q, nil)
		for _, h := range hold {
			require.Zero(t, got[h.Slot()])
			require.EqualValues(t, 64, x.Held(h))
			x.Apply(h, prefix.Event{Kind: prefix.Stored, Prefix: q.Head(2), From: 0})
			x.Apply(h, prefix.Event{Kind: prefix.Removed, Prefix: q.Head(4), From: 3})
		}
		got = x.Match(q, nil)
		require.EqualValues(t, 96, got[whole.Slot()])
		for _, h := range hold {
			require.EqualValues(t, 48, got[h.Slot()])
			require.EqualValues(t, 80, x.Held(h))
		}
		require.NoError(t, x.Check())
	}
}

// The same, where the holder with the hole was there first.
func TestHolesBeforeOthers(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	q := prompt(t, 6, 0, 0)
	h, whole := x.Add(0), x.Add(0)
	x.Apply(h, prefix.Event{Kind: prefix.Stored, Prefix: q, From: 2})
	x.Record(whole, q)
	require.Equal(t, []int64{0, 96}, x.Match(q, nil))
	require.NoError(t, x.Check())
}

// Blocks behind a hole are held, and storing them again takes no room.
func TestStoredAgainBehindHole(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	h := x.Add(160)
	q := prompt(t, 0, 6, 1)
	x.Apply(h, prefix.Event{Kind: prefix.Stored, Prefix: q, From: 2})
	x.Apply(h, prefix.Event{Kind: prefix.Stored, Prefix: prompt(t, 0, 6, 2)})
	require.EqualValues(t, 160, x.Held(h))
	for range 3 {
		x.Apply(h, prefix.Event{Kind: prefix.Stored, Prefix: q, From: 2})
	}
	require.EqualValues(t, 160, x.Held(h))
	require.Zero(t, x.Stats().EvictedBlocks)
	require.NoError(t, x.Check())
}

// What is stored while a clear is under way does not keep the blocks before it.
func TestStoredDuringClear(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	h := x.Add(0)
	q := prompt(t, 0, 8, 1)
	x.Apply(h, prefix.Event{Kind: prefix.Stored, Prefix: q.Head(5)})
	finish := x.BeginClear(h)
	x.Apply(h, prefix.Event{Kind: prefix.Stored, Prefix: q, From: 5})
	finish()
	require.Zero(t, match(x, h, q))
	require.EqualValues(t, 48, x.Held(h))
	require.NoError(t, x.Check())
}

func TestUnknownEventChangesNothing(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	h := x.Add(0)
	q := prompt(t, 3, 0, 0)
	x.Record(h, q)
	x.Apply(h, prefix.Event{Prefix: q})
	require.False(t, x.Exact(h))
	require.EqualValues(t, 48, match(x, h, q))
	for k, want := range []string{"unknown", "stored", "removed", "cleared", "unknown"} {
		require.Equal(t, want, prefix.EventKind(k).String())
	}
}

// Engines report blocks as they fill and as they are evicted, one by one. Neither may leave a chain of tiny nodes.
func TestBlockByBlock(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	base := x.Stats()
	h := x.Add(0)
	q := prompt(t, 0, 1000, 1)
	for i := range 1000 {
		x.Apply(h, prefix.Event{Kind: prefix.Stored, Prefix: q.Head(i + 1), From: i})
	}
	require.EqualValues(t, 16000, match(x, h, q))
	require.LessOrEqual(t, x.Stats().Nodes, int64(1000/64+2))
	require.NoError(t, x.Check())
	for i := range 500 { // from the front
		x.Apply(h, prefix.Event{Kind: prefix.Removed, Prefix: q.Head(i + 1), From: i})
	}
	require.LessOrEqual(t, x.Stats().Nodes, int64(2*1000/64+4))
	require.EqualValues(t, 8000, x.Held(h))
	require.Zero(t, match(x, h, q))
	for i := 999; i >= 500; i-- { // and from the end
		x.Apply(h, prefix.Event{Kind: prefix.Removed, Prefix: q.Head(i + 1), From: i})
		require.NoError(t, x.Check())
	}
	x.Remove(h)
	require.Equal(t, base, x.Stats())
}

func TestExactHolderKeepsToItsCapacity(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	h := x.Add(160)
	for i := range 20 {
		x.Apply(h, prefix.Event{Kind: prefix.Stored, Prefix: prompt(t, 2, 6, i)})
		require.LessOrEqual(t, x.Held(h), int64(160))
		require.EqualValues(t, 128, match(x, h, prompt(t, 2, 6, i)))
	}
	require.NoError(t, x.Check())
}
