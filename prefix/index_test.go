package prefix_test

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/prefix"
)

func index(t testing.TB, cfg prefix.Config) *prefix.Index {
	t.Helper()
	x, err := prefix.New(cfg)
	require.NoError(t, err)
	return x
}

// prompt is blocks blocks of 16 tokens in model "m": the first shared of them the same for all, the rest own.
func prompt(t testing.TB, shared, own, id int) prefix.Sequence {
	t.Helper()
	tokens := make([]int32, (shared+own)*16)
	for i := range tokens {
		tokens[i] = int32(i)
		if i >= shared*16 {
			tokens[i] = int32(1<<20 + id<<4 + i%16)
		}
	}
	q, err := prefix.FromTokens(scope(t, prefix.Parts{Model: "m"}), 16, tokens)
	require.NoError(t, err)
	return q
}

func match(x *prefix.Index, h prefix.Holder, q prefix.Sequence) int64 {
	return x.Match(q, nil)[h.Slot()]
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, n := range []int64{-1, 1, prefix.MinBytes - 1} {
		require.ErrorContains(t, prefix.Config{MaxBytes: n}.Validate(), "prefix: MaxBytes is ")
		_, err := prefix.New(prefix.Config{MaxBytes: n})
		require.Error(t, err)
	}
	require.Equal(t, int64(256<<20), index(t, prefix.Config{}).Stats().MaxBytes)
	require.Equal(t, int64(prefix.MinBytes), index(t, prefix.Config{MaxBytes: prefix.MinBytes}).Stats().MaxBytes)
}

func TestUnknownScopeIsNeverRecorded(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	h := x.Add(0)
	q, err := prefix.FromTokens(prefix.Scope{}, 1, []int{1, 2, 3})
	require.NoError(t, err)
	x.Record(h, q)
	require.Zero(t, x.Held(h))
	x.Apply(h, prefix.Event{Kind: prefix.Stored, Prefix: q})
	require.Zero(t, x.Held(h)+match(x, h, q))
	require.True(t, x.Exact(h))
	x.Record(h, prefix.Sequence{})
	require.Equal(t, []int64{0}, x.Match(prefix.Sequence{}, nil))
}

func TestHandles(t *testing.T) {
	t.Parallel()
	x, y := index(t, prefix.Config{}), index(t, prefix.Config{})
	q := prompt(t, 4, 0, 0)
	a, b := x.Add(0), x.Add(0)
	require.Equal(t, []int{0, 1, 2, -1}, []int{a.Slot(), b.Slot(), x.Slots(), prefix.Holder{}.Slot()})
	x.Record(a, q)
	x.Remove(a)
	c := x.Add(0)
	require.Equal(t, a.Slot(), c.Slot(), "slots are used again")
	require.NotEqual(t, a, c)
	for _, h := range []prefix.Holder{a, {}, y.Add(0)} { // removed, none, another index's
		x.Record(h, q)
		x.Apply(h, prefix.Event{Kind: prefix.Stored, Prefix: q})
		x.SetCapacity(h, 1)
		x.Clear(h)
		x.Remove(h)
		require.Zero(t, x.Held(h))
		require.False(t, x.Exact(h))
	}
	require.Equal(t, []int64{0, 0}, x.Match(q, nil))
	require.Equal(t, 2, x.Stats().Holders)
	require.NoError(t, x.Check())
}

func TestMatchBuffer(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	q := prompt(t, 4, 0, 0)
	x.Add(0)
	h := x.Add(0)
	x.Record(h, q)
	dst := []int64{9, 9, 9, 9}
	got := x.Match(q, dst)
	require.Equal(t, []int64{0, 64}, got)
	require.Same(t, &dst[0], &got[0])
	require.Equal(t, []int64{0, 64}, x.Match(q, make([]int64, 1)))
	require.Empty(t, index(t, prefix.Config{}).Match(q, dst))
}

func TestSharedHeadOutlivesTails(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	h := x.Add(1600)
	for i := range 12 {
		x.Record(h, prompt(t, 40, 10, i))
		require.EqualValues(t, 800, match(x, h, prompt(t, 40, 10, i)))
		require.NoError(t, x.Check())
	}
	require.EqualValues(t, 1600, x.Held(h))
	for i := range 12 {
		want := int64(640)
		if i >= 6 {
			want = 800 // (1600 - 640) / 160 = 6 tails
		}
		require.Equal(t, want, match(x, h, prompt(t, 40, 10, i)), "prompt %d", i)
	}
	require.EqualValues(t, 60, x.Stats().EvictedBlocks)
}

func TestCapacity(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	long := prompt(t, 0, 200, 1)
	h := x.Add(1000) // 62 whole blocks
	x.Record(h, long)
	require.EqualValues(t, 992, match(x, h, long), "the head up to the capacity")
	x.SetCapacity(h, 100)
	require.EqualValues(t, 96, match(x, h, long))
	require.EqualValues(t, 96, x.Held(h))
	x.SetCapacity(h, 0)
	x.Record(h, long)
	require.EqualValues(t, 3200, match(x, h, long))
	x.SetCapacity(h, 15)
	require.Zero(t, x.Held(h))
	x.Record(h, long)
	require.Zero(t, x.Held(h), "no whole block fits")
	require.EqualValues(t, 1, x.Stats().LostRecords)
	require.NoError(t, x.Check())
}

// A bounded holder of equal, unshared prompts is a plain LRU cache of prompts.
func TestEvictionIsLeastRecentlyUsed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		x, _ := prefix.New(prefix.Config{})
		room := rapid.IntRange(1, 6).Draw(t, "room")
		h := x.Add(int64(room * 5))
		s, _ := prefix.NewScope(prefix.Parts{Model: "m"})
		make := func(id int) prefix.Sequence {
			q, _ := prefix.FromTokens(s, 1, []int{id, 1, 2, 3, 4})
			return q
		}
		var lru []int
		for _, id := range rapid.SliceOfN(rapid.IntRange(0, 9), 1, 60).Draw(t, "prompts") {
			x.Record(h, make(id))
			lru = slices.DeleteFunc(lru, func(v int) bool { return v == id })
			lru = append(lru, id)
			lru = lru[max(0, len(lru)-room):]
			for other := range 10 {
				want := int64(0)
				if slices.Contains(lru, other) {
					want = 5
				}
				require.Equal(t, want, x.Match(make(other), nil)[0])
			}
		}
		require.NoError(t, x.Check())
	})
}

func TestMaxBytesIsHard(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{MaxBytes: prefix.MinBytes})
	rng := rand.New(rand.NewPCG(1, 2))
	var holders []prefix.Holder
	for i := range 5 {
		holders = append(holders, x.Add([]int64{0, 0, 0, 4000, 100000}[i]))
	}
	sizes := []int{1, 3, 10, 100, 1000, 5000}
	for i := range 3000 {
		h := holders[rng.IntN(len(holders))]
		q := prompt(t, rng.IntN(3)*7, sizes[min(rng.IntN(40), rng.IntN(len(sizes)))], i)
		x.Record(h, q)
		st := x.Stats()
		require.LessOrEqual(t, st.Bytes, st.MaxBytes)
		if h != holders[3] || q.Tokens() <= 4000 {
			require.Equal(t, q.Tokens(), match(x, h, q), "the newest prompt is whole")
		}
		if i%500 == 0 {
			require.NoError(t, x.Check())
		}
	}
	require.NotZero(t, x.Stats().EvictedBlocks)
	require.Zero(t, x.Stats().LostRecords)

	// Far too long for the bound: a head of it stays.
	q := prompt(t, 0, 20000, 7)
	x.Record(holders[0], q)
	require.NoError(t, x.Check())
	require.Greater(t, match(x, holders[0], q), int64(4000*16))

	x.ClearAll()
	require.Zero(t, x.Stats().Blocks)
	for _, h := range holders {
		x.Remove(h)
	}
	require.Equal(t, index(t, prefix.Config{}).Stats().Bytes, x.Stats().Bytes)
}

func TestMaxBytesEvictsOverAllHolders(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{MaxBytes: 1 << 20})
	idle, busy := x.Add(0), x.Add(0)
	x.Record(idle, prompt(t, 0, 500, 0))
	for i := range 20000 {
		x.Record(busy, prompt(t, 0, 2, 1+i))
		if i%100 == 0 && i < 10000 {
			x.Record(idle, prompt(t, 0, 500, 0))
		}
		if i == 10000 {
			require.EqualValues(t, 8000, x.Held(idle), "in use, it stays")
		}
	}
	require.Zero(t, x.Held(idle), "the least recently used goes, whoever holds it")
	require.NoError(t, x.Check())
}

func TestManyHolders(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	base := x.Stats()
	var all []prefix.Holder
	for i := range 300 {
		h := x.Add(0)
		all = append(all, h)
		x.Record(h, prompt(t, 20, 5, i%7))
	}
	require.NoError(t, x.Check())
	got := x.Match(prompt(t, 20, 5, 3), nil)
	for i := range all {
		want := int64(320)
		if i%7 == 3 {
			want = 400
		}
		require.Equal(t, want, got[i])
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for i, h := range all {
		x.Remove(h)
		if i%50 == 0 {
			require.NoError(t, x.Check())
		}
	}
	require.Equal(t, base, x.Stats())
}

func TestNoAllocations(t *testing.T) {
	x := index(t, prefix.Config{})
	var last prefix.Holder
	for i := range 64 {
		last = x.Add(1 << 20)
		x.Record(last, prompt(t, 40, 10, i%8))
	}
	q := prompt(t, 40, 10, 63%8)
	dst := make([]int64, x.Slots())
	require.Zero(t, testing.AllocsPerRun(100, func() { dst = x.Match(q, dst) }))
	require.Zero(t, testing.AllocsPerRun(100, func() { x.Record(last, q) }))
	e := prefix.Event{Kind: prefix.Stored, Prefix: q}
	x.Apply(last, e)
	require.Zero(t, testing.AllocsPerRun(100, func() { x.Apply(last, e) }))
}

func TestMatchTakesNoLock(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	h := x.Add(0)
	q := prompt(t, 4, 0, 0)
	x.Record(h, q)
	x.Locked(func() { require.EqualValues(t, 64, match(x, h, q)) })
}

func TestMaxBytesCoversTableGrowth(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{MaxBytes: 8 << 20})
	h := x.Add(0)
	s := scope(t, prefix.Parts{Model: "m"})
	for i := range 60_000 {
		q, _ := prefix.FromHashes(s, 16, []uint64{uint64(i)})
		x.Record(h, q)
		if st := x.Stats(); st.Bytes > st.MaxBytes {
			t.Fatalf("%d bytes of %d after %d records", st.Bytes, st.MaxBytes, i)
		}
	}
	require.NoError(t, x.Check())
}

// Room for one long prompt is made from all holders, oldest first, and not from one of them.
func TestMaxBytesTakesTurns(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{MaxBytes: prefix.MinBytes})
	a, b := x.Add(0), x.Add(0)
	for i := 0; x.Stats().EvictedBlocks == 0; i++ {
		x.Record(a, prompt(t, 0, 2, 2*i))
		x.Record(b, prompt(t, 0, 2, 2*i+1))
	}
	x.Record(a, prompt(t, 0, 3000, 1<<20))
	require.Greater(t, x.Stats().EvictedBlocks, int64(100))
	require.InDelta(t, x.Held(a)-48000, x.Held(b), 64)
	require.NoError(t, x.Check())
}

func TestMaxBytesShortensLongPrompts(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{MaxBytes: prefix.MinBytes})
	h := x.Add(0)
	long := prompt(t, 0, 5000, 1<<20)
	x.Record(h, long)
	for i := 0; x.Stats().EvictedBlocks == 0; i++ {
		x.Record(h, prompt(t, 0, 2, i))
	}
	left := match(x, h, long)
	require.Less(t, left, long.Tokens())
	require.Greater(t, left, long.Tokens()/4, "a head of it is worth more than nothing")
	require.NoError(t, x.Check())
}

// A walk that misses below a node that has been merged away meanwhile does not count.
func TestMatchLooksAgainAfterMerge(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	h := x.Add(0)
	q := prompt(t, 0, 3, 0)
	x.Record(h, q.Head(2))
	require.EqualValues(t, 32, match(x, h, q))
	x.Merged(q)
	require.Zero(t, match(x, h, q), "nothing, rather than what may be less than there is")
	require.EqualValues(t, 32, match(x, h, q.Head(2)), "a walk that got all it asked for is right")
}

// While slots change hands no walk can be trusted. Not parallel: the other goroutine must really run beside the walk.
func TestMatchLooksAgainAfterReuse(t *testing.T) {
	if runtime.GOMAXPROCS(0) == 1 {
		t.Skip("needs somebody to run beside the walk")
	}
	x := index(t, prefix.Config{})
	x.SetMerged(0)
	h := x.Add(0)
	q := prompt(t, 0, 600, 0) // in as many nodes: a long walk
	for i := range q.Blocks() {
		x.Record(h, q.Head(i+1))
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				x.Reuse()
			}
		}
	}()
	for tries := 0; match(x, h, q) != 0; tries++ {
		require.Less(t, tries, 200_000)
	}
	close(stop)
	<-done
	require.Equal(t, q.Tokens(), match(x, h, q))
}

func TestCollisions(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	base := x.Stats().Bytes
	a, b := scope(t, prefix.Parts{Model: "a"}), scope(t, prefix.Parts{Model: "b"})
	h, g := x.Add(0), x.Add(0)
	q := prefix.Forge(a, 16, 1, 2, 3)
	x.Record(h, q)
	for _, other := range []prefix.Sequence{prefix.Forge(b, 16, 1, 2, 3), prefix.Forge(a, 8, 1, 2, 3)} {
		require.Equal(t, []int64{0, 0}, x.Match(other, nil), "another scope or block size never matches")
		x.Record(g, other)
		require.Equal(t, []int64{0, other.Tokens()}, x.Match(other, nil))
		require.Equal(t, []int64{48, 0}, x.Match(q, nil))
		require.NoError(t, x.Check())
	}
	x.ClearAll()

	// Values that the table uses as marks, and their neighbours.
	for v := range uint64(5) {
		x.Record(h, prefix.Forge(a, 1, v))
		require.Equal(t, []int64{1, 0}, x.Match(prefix.Forge(a, 1, v), nil))
		require.NoError(t, x.Check())
	}
	x.ClearAll()

	// One hash behind two different ones: what a chain cannot give, yet the tree must stay sound.
	x.SetMerged(0)
	for _, v := range []uint64{10, 20, 30} {
		x.Record(h, prefix.Forge(a, 1, v))
		x.Record(h, prefix.Forge(a, 1, v, 7, 8))
		x.Record(g, prefix.Forge(a, 1, v, 7, 9))
		require.NoError(t, x.Check())
	}
	x.Apply(h, prefix.Event{Kind: prefix.Removed, Prefix: prefix.Forge(a, 1, 20, 7, 8)})
	require.NoError(t, x.Check())
	x.Remove(h)
	require.NoError(t, x.Check())
	x.Remove(g)
	require.Equal(t, base, x.Stats().Bytes)
}

// What is recorded while a clear is under way stays, and brings nothing back beyond itself.
func TestRecordDuringClear(t *testing.T) {
	t.Parallel()
	for _, merged := range []int{0, 64} {
		x := index(t, prefix.Config{})
		x.SetMerged(merged)
		h, other := x.Add(0), x.Add(0)
		q := prompt(t, 0, 10, 1)
		x.Record(h, q.Head(3))
		x.Record(h, q)
		x.Record(other, q)
		finish := x.BeginClear(h)
		x.Record(h, q.Head(5))
		finish()
		require.Equal(t, []int64{80, 160}, x.Match(q, nil))
		require.EqualValues(t, 80, x.Held(h))
		require.NoError(t, x.Check())
	}
}

// A prompt in many pieces, deeper than the short way of touching it goes.
func TestDeepPath(t *testing.T) {
	t.Parallel()
	x := index(t, prefix.Config{})
	x.SetMerged(0)
	h, other := x.Add(60*16), x.Add(0)
	q := prompt(t, 0, 40, 1)
	for i := range 40 {
		x.Record(other, q.Head(1+i))
	}
	x.Record(h, q)
	require.GreaterOrEqual(t, x.Stats().Nodes, int64(40))
	for i := range 30 {
		x.Record(h, prompt(t, 0, 4, 2+i))
		x.Record(h, q)
		require.NoError(t, x.Check())
		require.EqualValues(t, 640, match(x, h, q), "it is always the newest but one")
	}
}
