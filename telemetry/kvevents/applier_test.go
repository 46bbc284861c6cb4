package kvevents_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/telemetry/kvevents"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	_, err := kvevents.New(kvevents.Config{Sources: -1, MaxBlocks: -1, Limits: kvevents.Limits{Bytes: -1}})
	for _, want := range []string{
		"kvevents: Config.ID is empty", "kvevents: Config.Sink is nil", "kvevents: Config.BlockTokens is 0, it must be in [1, 2147483647]",
		"kvevents: Config.Sources is -1", "kvevents: Config.MaxBlocks is -1", "kvevents: Limits.Bytes is -1",
	} {
		require.ErrorContains(t, err, want)
	}
	a, _ := applier(t, nil)
	c := a.Config()
	require.Equal(t, []int{1, 1 << 18, 16 << 20, 1 << 16, 1 << 18, 1 << 22},
		[]int{c.Sources, c.MaxBlocks, c.Limits.Bytes, c.Limits.Events, c.Limits.Blocks, c.Limits.Tokens})
}

func TestSourcesAreNamed(t *testing.T) {
	t.Parallel()
	a, _ := applier(t, nil)
	for _, i := range []int{-1, 1} {
		for _, err := range []error{a.Apply(i, 0, nil), a.Suspend(i), a.Replay(i, 0, nil), a.Resume(i), a.Lost(i)} {
			require.ErrorContains(t, err, "it must be in [0, 1)")
		}
		_, known := a.Position(i)
		require.False(t, known)
	}
	require.ErrorContains(t, a.Replay(0, 0, nil), "source 0 is not suspended")
	require.NoError(t, a.Resume(0), "there is nothing to resume")
	require.NoError(t, a.Lost(0))
	require.Equal(t, kvevents.Stats{}, a.Stats())
}

// Hashes and parents become chains; whole stretches reach the Sink at once.
func TestStoredAndRemoved(t *testing.T) {
	t.Parallel()
	a, x := applier(t, nil)
	base := scope(t, prefix.Parts{})
	all := span(1, 0, 6)
	is := func(want int) {
		t.Helper()
		require.Equal(t, want, x.blocks(t, base, all))
		require.NoError(t, kvevents.Check(a))
	}
	require.NoError(t, a.Apply(0, 0, batch(1, 0,
		stored(nil, span(1, 0, 2), 10, 11), stored(11, span(1, 2, 3), 12), stored(12, span(1, 3, 6), 13, []byte("x"), -15))))
	is(6)
	require.Len(t, x.events, 1, "one event for the stretch")
	require.NoError(t, a.Apply(0, 1, batch(2, 0, removed(-15), removed([]byte("x")), removed(13, 12))))
	is(2)
	require.Len(t, x.events, 2)
	require.Equal(t, 2, x.events[1].From)
	require.NoError(t, a.Apply(0, 2, batch(3, 0, stored(11, span(1, 2, 3), 12), removed(11), removed(99))))
	is(1)
	require.NoError(t, a.Apply(0, 3, batch(4, 0, stored(10, span(1, 1, 2), 11))))
	is(3)
	require.NoError(t, a.Apply(0, 4, batch(5, 0, cleared())))
	is(0)
	s := a.Stats()
	require.Equal(t, kvevents.Stats{Batches: 5, Stored: 8, Removed: 5, AllCleared: 1, Unmatched: 1}, s)
	require.True(t, x.t.Exact(x.h))
}

// An engine that computes a prompt twice at the same time has two copies, and reports each.
func TestCopies(t *testing.T) {
	t.Parallel()
	a, x := applier(t, nil)
	base := scope(t, prefix.Parts{})
	require.NoError(t, a.Apply(0, 0, batch(1, 0, stored(nil, span(1, 0, 1), 7), stored(nil, span(1, 0, 1), 7))))
	require.NoError(t, a.Apply(0, 1, batch(2, 0, removed(7))))
	require.Equal(t, 1, x.blocks(t, base, span(1, 0, 1)))
	require.NoError(t, a.Apply(0, 2, batch(3, 0, removed(7))))
	require.Equal(t, 0, x.blocks(t, base, span(1, 0, 1)))
}

func TestRanks(t *testing.T) {
	t.Parallel()
	a, x := applier(t, func(c *kvevents.Config) { c.Sources = 2 })
	base := scope(t, prefix.Parts{})
	is := func(want int) {
		t.Helper()
		require.Equal(t, want, x.blocks(t, base, span(1, 0, 2)))
		require.NoError(t, kvevents.Check(a))
	}
	// Each rank has its own names for the same blocks, and one name may mean different blocks.
	require.NoError(t, a.Apply(0, 0, batch(1, 0, stored(nil, span(1, 0, 2), 7, 8))))
	require.NoError(t, a.Apply(1, 0, batch(1, 1, stored(nil, span(1, 0, 2), 8, 7))))
	is(2)
	require.NoError(t, a.Apply(0, 1, batch(2, 0, removed(8))))
	is(2)
	require.NoError(t, a.Apply(1, 1, batch(2, 1, removed(7))))
	is(1)
	require.NoError(t, a.Apply(0, 2, batch(3, 0, cleared())))
	is(1)
	// A gap of one rank takes nothing from the other.
	require.NoError(t, a.Apply(0, 3, batch(4, 0, stored(nil, span(1, 0, 2), 7, 8))))
	is(2)
	require.NoError(t, a.Apply(0, 9, batch(5, 0)))
	is(1)
	require.Equal(t, 1, x.clears)
	require.NoError(t, a.Lost(1))
	is(0)
	s := a.Stats()
	require.Equal(t, []int64{1, 5, 2, 2}, []int64{s.Gaps, s.Missed, s.Losses, s.Clears})
}

func TestLosses(t *testing.T) {
	t.Parallel()
	base := scope(t, prefix.Parts{})
	for name, c := range map[string]struct {
		seq     uint64
		payload []byte
		fails   string
		left    int // blocks of the prompt of the next batch
		count   func(kvevents.Stats) int64
	}{
		"gap":                        {5, batch(2, 0, stored(nil, span(2, 0, 1), 20)), "", 1, func(s kvevents.Stats) int64 { return s.Gaps }},
		"back":                       {1, batch(2, 0, stored(nil, span(2, 0, 1), 20)), "", 1, func(s kvevents.Stats) int64 { return s.Restarts }},
		"same number, other content": {3, batch(2, 0, stored(nil, span(2, 0, 1), 20)), "", 1, func(s kvevents.Stats) int64 { return s.Restarts }},
		"garbage": {4, []byte("x"), "kvevents: batch: not an array but int (byte 0x78) (source 0, sequence number 4)", 0,
			func(s kvevents.Stats) int64 { return s.Invalid }},
		"end of numbers": {math.MaxUint64, batch(2, 0), "end of a replay", 0, func(s kvevents.Stats) int64 { return s.Gaps }},
		"unknown parent": {4, batch(2, 0, stored(99, span(1, 2, 3), 12), stored(nil, span(2, 0, 1), 20)), "", 1,
			func(s kvevents.Stats) int64 { return s.Orphans }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, x := applier(t, nil)
			for seq := range uint64(4) {
				require.NoError(t, a.Apply(0, seq, batch(float64(seq), 0, cleared(), stored(nil, span(1, 0, 2), 10, 11))))
			}
			require.Equal(t, 2, x.blocks(t, base, span(1, 0, 2)))
			err := a.Apply(0, c.seq, c.payload)
			if c.fails != "" {
				require.ErrorContains(t, err, c.fails)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, 0, x.blocks(t, base, span(1, 0, 2)), "nothing stale")
			require.Equal(t, c.left, x.blocks(t, base, span(2, 0, 1)), "it goes on with what follows")
			require.EqualValues(t, 1, c.count(a.Stats()))
			require.Positive(t, x.clears)
			require.EqualValues(t, x.clears, a.Stats().Clears)
			// What was before is not known any more, and that is no further loss.
			last, known := a.Position(0)
			require.True(t, known)
			require.Equal(t, c.seq, last)
			if c.seq < math.MaxUint64 {
				before := x.clears
				require.NoError(t, a.Apply(0, c.seq+1, batch(9, 0, stored(11, span(1, 2, 3), 12), removed(10))))
				require.Equal(t, before, x.clears)
				require.Positive(t, a.Stats().Refused[kvevents.UnknownParent])
				require.EqualValues(t, 1, a.Stats().Unmatched)
			}
			require.NoError(t, kvevents.Check(a))
		})
	}
}

// Who joins late knows of no blocks before, and need not clear for that.
func TestJoinsLate(t *testing.T) {
	t.Parallel()
	a, x := applier(t, nil)
	base := scope(t, prefix.Parts{})
	require.NoError(t, a.Apply(0, 700, batch(1, 0, stored(99, span(1, 5, 6), 15), stored(nil, span(2, 0, 1), 20))))
	require.Equal(t, 1, x.blocks(t, base, span(2, 0, 1)))
	require.NoError(t, a.Apply(0, 700, batch(1, 0, stored(99, span(1, 5, 6), 15), stored(nil, span(2, 0, 1), 20))))
	s := a.Stats()
	require.Equal(t, []int64{0, 0, 1, 1}, []int64{s.Clears, s.Orphans, s.Duplicates, s.Refused[kvevents.UnknownParent]})
	// Once all is gone, all that comes is known.
	require.NoError(t, a.Apply(0, 701, batch(2, 0, cleared(), stored(99, span(1, 5, 6), 15))))
	require.EqualValues(t, 1, a.Stats().Orphans)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	base := scope(t, prefix.Parts{})
	adapter := scope(t, prefix.Parts{AdapterID: "a", AdapterDigest: "d"})
	salted := scope(t, prefix.Parts{Salt: "s"})
	byName := func(k kvevents.Keys) (prefix.Scope, bool) {
		switch {
		case k.LoRA.Name == "a":
			return adapter, true
		case len(k.Extra) == 1 && k.Extra[0] == "s" && !k.Parent.Known():
			return salted, true
		case len(k.Extra) == 1 && k.Extra[0] == "same":
			return k.Parent, true
		}
		return prefix.Scope{}, false
	}
	event := func(parent any, tokens []uint32, lora any, extra any, hashes ...any) list {
		return list{"BlockStored", list(hashes), parent, tokens, size, nil, "GPU", lora, extra}
	}
	for name, c := range map[string]struct {
		events []any
		why    kvevents.Reason
		number int64
		scope  prefix.Scope
		want   int // blocks of prompt 1
	}{
		"block size":                    {[]any{list{"BlockStored", list{1, 2}, nil, span(1, 0, 2), 8, nil}}, kvevents.WrongBlockSize, 2, base, 0},
		"too few tokens":                {[]any{stored(nil, span(1, 0, 1), 1, 2)}, kvevents.WrongTokens, 2, base, 0},
		"too many tokens":               {[]any{stored(nil, span(1, 0, 2), 1)}, kvevents.WrongTokens, 1, base, 0},
		"adapter":                       {[]any{event(nil, span(1, 0, 2), "b", nil, 1, 2)}, kvevents.NoScope, 2, base, 0},
		"adapter by number only":        {[]any{list{"BlockStored", list{1}, nil, span(1, 0, 1), size, 0}}, kvevents.NoScope, 1, base, 0},
		"adapter's blocks in its scope": {[]any{event(nil, span(1, 0, 2), "a", list{list{"a"}, list{"a"}}, 1, 2)}, 0, 0, adapter, 2},
		"adapter's blocks in another":   {[]any{event(nil, span(1, 0, 2), "a", nil, 1, 2)}, 0, 0, base, 0},
		"salt":                          {[]any{event(nil, span(1, 0, 2), nil, list{list{"s"}, nil}, 1, 2)}, 0, 0, salted, 2},
		"salt in another":               {[]any{event(nil, span(1, 0, 2), nil, list{list{"s"}, nil}, 1, 2)}, 0, 0, base, 0},
		"unknown salt":                  {[]any{event(nil, span(1, 0, 2), nil, list{list{"t"}, nil}, 1, 2)}, kvevents.NoScope, 2, base, 0},
		"image in the middle":           {[]any{event(nil, span(1, 0, 3), nil, list{nil, list{list{"image", 3}}, nil}, 1, 2, 3)}, kvevents.NoScope, 2, base, 1},
		"image the host does not mind":  {[]any{event(nil, span(1, 0, 3), nil, list{nil, list{"same"}, nil}, 1, 2, 3)}, 0, 0, base, 3},
		"salt in the middle":            {[]any{event(nil, span(1, 0, 1), nil, nil, 1), event(1, span(1, 1, 2), nil, list{list{"s"}}, 2)}, kvevents.NoScope, 1, base, 1},
		"adapter in the middle":         {[]any{event(nil, span(1, 0, 1), nil, nil, 1), event(1, span(1, 1, 2), "a", nil, 2)}, kvevents.NoScope, 1, base, 1},
		"behind a refused one": {
			[]any{event(nil, span(1, 0, 1), "b", nil, 1), event(1, span(1, 1, 2), "b", nil, 2)}, kvevents.UnknownParent, 1, base, 0,
		},
		"one hash for two blocks": {
			[]any{stored(nil, span(1, 0, 2), 1, 2), stored(nil, span(2, 0, 1), 2)}, kvevents.Ambiguous, 1, base, 1,
		},
		"behind such": {
			[]any{stored(nil, span(1, 0, 2), 1, 2), stored(nil, span(2, 0, 1), 2), stored(2, span(1, 2, 3), 3)}, kvevents.Ambiguous, 2, base, 1,
		},
		"such again, whatever is removed": {
			[]any{stored(nil, span(1, 0, 2), 1, 2), stored(nil, span(2, 0, 1), 2), removed(2), stored(1, span(1, 1, 2), 2)}, kvevents.Ambiguous, 2, base, 1,
		},
		"such again, when all of them are gone": {
			[]any{stored(nil, span(1, 0, 2), 1, 2), stored(nil, span(2, 0, 1), 2), removed(2, 2), stored(1, span(1, 1, 2), 2)}, kvevents.Ambiguous, 1, base, 2,
		},
		"full": {[]any{stored(nil, span(2, 0, 4), 21, 22, 23, 24), stored(nil, span(1, 0, 5), 11, 12, 13, 14, 15)}, kvevents.Full, 1, base, 4},
		"full until others are gone": {
			[]any{stored(nil, span(2, 0, 4), 21, 22, 23, 24), removed(24), stored(nil, span(1, 0, 5), 11, 12, 13, 14, 15)}, 0, 0, base, 5,
		},
		"full until one is gone": {
			[]any{stored(nil, span(2, 0, 8), 21, 22, 23, 24, 25, 26, 27, 28), removed(28), stored(nil, span(1, 0, 1), 11)}, 0, 0, base, 1,
		},
		"full until all are gone": {
			[]any{stored(nil, span(2, 0, 8), 21, 22, 23, 24, 25, 26, 27, 28), removed(28, 27, 26, 25, 24, 23, 22, 21), stored(nil, span(1, 0, 1), 11)},
			0, 0, base, 1,
		},
		"full of ancestors": {
			[]any{stored(nil, span(2, 0, 4), 21, 22, 23, 24), removed(21, 22), stored(nil, span(1, 0, 5), 11, 12, 13, 14, 15)}, kvevents.Full, 1, base, 4,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, x := applier(t, func(c *kvevents.Config) { c.Scope = byName; c.MaxBlocks = 8 })
			require.NoError(t, a.Apply(0, 0, batch(1, 0, c.events...)))
			var want kvevents.Refusals
			if got := a.Stats().Refused; c.number > 0 {
				require.Equal(t, c.number, got[c.why], "%s in %v", c.why, got)
			} else {
				require.Equal(t, want, got)
			}
			require.Equal(t, c.want, x.blocks(t, c.scope, span(1, 0, 5)))
			require.Zero(t, a.Stats().Clears, "a refusal is no loss")
			require.NoError(t, kvevents.Check(a))
		})
	}
	a, x := applier(t, func(c *kvevents.Config) { c.Base = prefix.Scope{} })
	require.NoError(t, a.Apply(0, 0, batch(1, 0, stored(nil, span(1, 0, 1), 1), event(nil, span(1, 0, 1), "a", nil, 2))))
	require.EqualValues(t, 2, a.Stats().Refused[kvevents.NoScope])
	require.Empty(t, x.events)
	var names []string
	for r := kvevents.WrongBlockSize; r <= kvevents.Full+1; r++ {
		names = append(names, r.String())
	}
	require.Equal(t, "wrong block size, wrong tokens, unknown parent, no scope, ambiguous, full, unknown", strings.Join(names, ", "))
}

// Salts come and go: the number of those in use is bounded, that of all there have been is not.
func TestManySalts(t *testing.T) {
	t.Parallel()
	salted := func(k kvevents.Keys) (prefix.Scope, bool) {
		s, err := prefix.NewScope(prefix.Parts{Model: "m", Salt: k.Extra[0].(string)})
		return s, err == nil
	}
	a, x := applier(t, func(c *kvevents.Config) { c.Scope, c.Limits.Events = salted, 1<<20 })
	store := func(salt int) list {
		return list{"BlockStored", list{salt}, nil, span(1, 0, 1), size, nil, "GPU", nil, list{list{fmt.Sprint(salt)}}}
	}
	last := func(salt int) prefix.Scope { return scope(t, prefix.Parts{Salt: fmt.Sprint(salt)}) }
	events, gone := []any{stored(nil, span(1, 0, 1), -1)}, list{"BlockRemoved", list{}}
	for i := range kvevents.MaxRoots {
		events = append(events, store(i))
		gone[1] = append(gone[1].(list), i)
	}
	require.NoError(t, a.Apply(0, 0, batch(1, 0, events...)))
	require.EqualValues(t, 1, a.Stats().Refused[kvevents.NoScope], "bounded")
	require.NoError(t, a.Apply(0, 1, batch(2, 0, removed(0), store(-2), gone, store(-3))))
	require.EqualValues(t, 1, a.Stats().Refused[kvevents.NoScope])
	require.Equal(t, []int{1, 1, 1}, []int{
		x.blocks(t, last(-2), span(1, 0, 1)), x.blocks(t, last(-3), span(1, 0, 1)), x.blocks(t, scope(t, prefix.Parts{}), span(1, 0, 1)),
	})
	require.NoError(t, kvevents.Check(a))
}

// What is copied to slower memory neither adds to what the fast one has nor takes from it.
func TestOtherMedia(t *testing.T) {
	t.Parallel()
	a, x := applier(t, nil)
	base := scope(t, prefix.Parts{})
	require.NoError(t, a.Apply(0, 0, batch(1, 0,
		list{"BlockStored", list{1}, nil, span(1, 0, 1), size, nil, "gpu"},
		list{"BlockStored", list{1}, nil, list{}, 0, nil, "CPU"}, list{"BlockRemoved", list{1}, "CPU"},
		list{"BlockStored", list{2}, 1, span(1, 1, 2), size, nil, "DISK"})))
	require.Equal(t, 1, x.blocks(t, base, span(1, 0, 2)))
	require.EqualValues(t, 3, a.Stats().OtherMedium)
	require.Equal(t, kvevents.Refusals{}, a.Stats().Refused)
}

func TestSuspendReplayResume(t *testing.T) {
	t.Parallel()
	base := scope(t, prefix.Parts{})
	first, second := batch(1, 0, stored(nil, span(1, 0, 2), 10, 11)), batch(2, 0, removed(11))
	begin := func() (*kvevents.Applier, *index) {
		a, x := applier(t, nil)
		require.NoError(t, a.Apply(0, 0, first))
		require.NoError(t, a.Suspend(0))
		require.NoError(t, a.Suspend(0))
		require.Equal(t, 0, x.blocks(t, base, span(1, 0, 2)))
		require.Equal(t, 1, x.clears)
		s := a.Stats()
		require.Equal(t, []int{0, 2, 1}, []int{s.Held, s.Known, s.Suspended})
		return a, x
	}
	a, x := begin() // healed
	require.NoError(t, a.Replay(0, 0, first))
	require.NoError(t, a.Replay(0, 1, second))
	require.Equal(t, 0, x.blocks(t, base, span(1, 0, 2)))
	require.NoError(t, a.Resume(0))
	require.Equal(t, 1, x.blocks(t, base, span(1, 0, 2)))
	require.NoError(t, a.Apply(0, 1, second), "the live stream has it too")
	require.NoError(t, a.Apply(0, 2, batch(3, 0)))
	s := a.Stats()
	require.Equal(t, []int64{3, 2, 0, 1}, []int64{s.Batches, s.Duplicates, s.Losses, s.Clears})

	a, x = begin() // another process
	require.ErrorIs(t, a.Replay(0, 0, second), kvevents.ErrDiscontinuous)
	require.ErrorIs(t, a.Replay(0, 1, second), kvevents.ErrDiscontinuous, "what was before it was not shown")
	require.ErrorIs(t, a.Replay(0, 7, second), kvevents.ErrDiscontinuous)
	require.Equal(t, 2, a.Stats().Known, "nothing half done")
	require.NoError(t, a.Resume(0))
	require.Equal(t, 0, a.Stats().Known)
	require.EqualValues(t, 1, a.Stats().Losses)
	require.Equal(t, 0, x.blocks(t, base, span(1, 0, 2)))

	a, x = begin() // a batch that is no good in the replay
	require.NoError(t, a.Replay(0, 0, first))
	require.Error(t, a.Replay(0, 1, []byte("garbage")))
	require.NoError(t, a.Replay(0, 2, batch(3, 0, stored(nil, span(2, 0, 1), 20))))
	require.NoError(t, a.Resume(0))
	require.Equal(t, 0, x.blocks(t, base, span(1, 0, 2)))
	require.Equal(t, 1, x.blocks(t, base, span(2, 0, 1)))
	require.NoError(t, kvevents.Check(a))
}

// A Sink that fails, as a pool does before it knows the endpoint, is brought into step as soon as it does not.
func TestSinkFails(t *testing.T) {
	t.Parallel()
	a, x := applier(t, nil)
	base := scope(t, prefix.Parts{})
	x.fail = errors.New("no such endpoint")
	require.ErrorIs(t, a.Apply(0, 0, batch(1, 0, stored(nil, span(1, 0, 2), 10, 11))), x.fail)
	require.ErrorIs(t, a.Apply(0, 1, batch(2, 0, removed(11))), x.fail)
	x.fail = nil
	require.NoError(t, a.Apply(0, 2, batch(3, 0)))
	require.Equal(t, 1, x.blocks(t, base, span(1, 0, 2)))
	require.NoError(t, kvevents.Check(a))
}

// Sources may be applied from goroutines of their own.
func TestConcurrently(t *testing.T) {
	t.Parallel()
	a, x := applier(t, func(c *kvevents.Config) { c.Sources = 4 })
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			for seq := range uint64(200) {
				events := []any{stored(nil, span(uint32(seq%5), 0, 3), seq*3, seq*3+1, seq*3+2)}
				if seq >= 5 {
					events = append(events, removed(seq*3-13, seq*3-14, seq*3-15))
				}
				if err := a.Apply(i, seq, batch(float64(seq), i, events...)); err != nil {
					t.Error(err)
				}
				switch seq % 50 {
				case 10:
					_ = a.Suspend(i)
				case 11, 30:
					_ = a.Lost(i)
				}
				a.Stats()
			}
		})
	}
	group.Wait()
	require.NoError(t, kvevents.Check(a))
	require.EqualValues(t, a.Stats().Held*size, x.t.Held(x.h))
}
