package sim

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// small has four-token blocks and durations that can be read off: 10 ms, and 1 ms per token beyond 2.
func small(blocks int64) Profile {
	return Profile{Base: 10, Knee: 2, PerToken: 1, KVTokens: blocks * 4, BlockSize: 4, MaxSeqs: 3, Budget: 8}
}

func mustNew(t testing.TB, p Profile, o Options) *Engine {
	t.Helper()
	e, err := New(p, o)
	require.NoError(t, err)
	return e
}

// trace runs n passes and writes one line each: duration, events, running/waiting/used blocks.
func trace(e *Engine, n int) []string {
	var out []string
	for range n {
		ms, events := e.Step(nil)
		var b strings.Builder
		fmt.Fprintf(&b, "%g ms:", ms)
		for _, ev := range events {
			fmt.Fprintf(&b, " %d %s %d,", ev.ID, ev.Kind, ev.Tokens)
		}
		s := e.State()
		fmt.Fprintf(&b, " [%d run %d wait %d used]", s.Running, s.Waiting, s.UsedBlocks)
		out = append(out, b.String())
	}
	return out
}

func TestSchedulingRules(t *testing.T) {
	tests := []struct {
		name    string
		profile Profile
		submit  []Request
		want    []string
	}{
		{
			name: "one request: prefill, then a token a pass", profile: small(10),
			submit: []Request{{ID: 1, PromptTokens: 4, OutputTokens: 3}},
			want: []string{
				"12 ms: 1 admitted 0, 1 first token 1, [1 run 0 wait 1 used]",
				"10 ms: 1 token 2, [1 run 0 wait 2 used]",
				"10 ms: 1 token 3, 1 finished 3, [0 run 0 wait 0 used]",
				"0 ms: [0 run 0 wait 0 used]",
			},
		},
		{
			name: "a prompt beyond the budget is cut; decodes go first", profile: small(20),
			submit: []Request{{ID: 1, PromptTokens: 3, OutputTokens: 4}, {ID: 2, PromptTokens: 14, OutputTokens: 1}},
			want: []string{
				"16 ms: 1 admitted 0, 2 admitted 0, 1 first token 1, [2 run 0 wait 3 used]",
				"16 ms: 1 token 2, [2 run 0 wait 4 used]",
				"11 ms: 1 token 3, 2 first token 1, 2 finished 1, [1 run 0 wait 2 used]",
			},
		},
		{
			name: "places are limited", profile: small(20),
			submit: []Request{
				{ID: 1, PromptTokens: 1, OutputTokens: 1}, {ID: 2, PromptTokens: 1, OutputTokens: 2},
				{ID: 3, PromptTokens: 1, OutputTokens: 2}, {ID: 4, PromptTokens: 1, OutputTokens: 1},
			},
			want: []string{
				"11 ms: 1 admitted 0, 2 admitted 0, 3 admitted 0, 1 first token 1, 1 finished 1, 2 first token 1, 3 first token 1, [2 run 1 wait 2 used]",
				"11 ms: 4 admitted 0, 2 token 2, 2 finished 2, 3 token 2, 3 finished 2, 4 first token 1, 4 finished 1, [0 run 0 wait 0 used]",
			},
		},
		{
			name: "first come, first served: a small request does not pass a big one", profile: small(2),
			submit: []Request{
				{ID: 1, PromptTokens: 1, OutputTokens: 2}, {ID: 2, PromptTokens: 7, OutputTokens: 1}, {ID: 3, PromptTokens: 1, OutputTokens: 1},
			},
			want: []string{
				"10 ms: 1 admitted 0, 1 first token 1, [1 run 2 wait 1 used]",
				"10 ms: 1 token 2, 1 finished 2, [0 run 2 wait 0 used]",
				"15 ms: 2 admitted 0, 2 first token 1, 2 finished 1, [0 run 1 wait 0 used]",
			},
		},
		{
			name: "the last running request is preempted, returns to the front and computes its output again", profile: small(4),
			submit: []Request{
				{ID: 1, PromptTokens: 4, OutputTokens: 6}, {ID: 2, PromptTokens: 4, OutputTokens: 6}, {ID: 3, PromptTokens: 4, OutputTokens: 1},
			},
			want: []string{
				"16 ms: 1 admitted 0, 2 admitted 0, 1 first token 1, 2 first token 1, [2 run 1 wait 2 used]",
				"10 ms: 1 token 2, 2 token 2, [2 run 1 wait 4 used]",
				"10 ms: 1 token 3, 2 token 3, [2 run 1 wait 4 used]",
				"10 ms: 1 token 4, 2 token 4, [2 run 1 wait 4 used]",
				"10 ms: 1 token 5, 2 token 5, [2 run 1 wait 4 used]",
				"10 ms: 2 preempted 5, 1 token 6, 1 finished 6, [0 run 2 wait 0 used]",
				"16 ms: 2 admitted 0, [1 run 1 wait 2 used]",
				"13 ms: 3 admitted 0, 2 token 6, 2 finished 6, 3 first token 1, 3 finished 1, [0 run 0 wait 0 used]",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := mustNew(t, tt.profile, Options{})
			for _, r := range tt.submit {
				require.NoError(t, e.Submit(r))
			}
			require.Equal(t, tt.want, trace(e, len(tt.want)))
		})
	}
}

func TestPrefixCache(t *testing.T) {
	e := mustNew(t, small(8), Options{KVEvents: true})
	first := Request{ID: 1, PromptTokens: 8, OutputTokens: 5, Blocks: []uint64{11, 12, 13}}
	require.Zero(t, e.Cached(first))
	require.NoError(t, e.Submit(first))
	drain(e)
	require.Equal(t, []KVEvent{
		{Kind: KVStored, Hash: 11}, {Kind: KVStored, Hash: 12, Parent: 11}, {Kind: KVStored, Hash: 13, Parent: 12},
	}, e.KVEvents(nil), "the output's block is cached too")
	require.Empty(t, e.KVEvents(nil))

	same := Request{ID: 2, PromptTokens: 8, OutputTokens: 1, Blocks: []uint64{11, 12}}
	require.EqualValues(t, 4, e.Cached(same), "the last token of a prompt is always computed")
	longer := Request{ID: 3, PromptTokens: 14, OutputTokens: 1, Blocks: []uint64{11, 12, 13}}
	require.EqualValues(t, 12, e.Cached(longer))
	require.NoError(t, e.Submit(longer))
	require.EqualValues(t, 14, e.State().WaitingTokens)
	require.EqualValues(t, 2, e.WaitingUncached())
	ms, events := e.Step(nil)
	require.Equal(t, 10.0, ms)
	require.Equal(t, Event{ID: 3, Kind: Admitted, Tokens: 12}, events[0])
	s := e.State()
	require.EqualValues(t, 22, s.CacheQueries)
	require.EqualValues(t, 12, s.CacheHits)
	require.EqualValues(t, 22, s.PromptTokens)
	require.EqualValues(t, 6, s.GeneratedTokens)
	require.EqualValues(t, 10, s.PrefilledTokens)

	e.ClearCache()
	require.Zero(t, e.Cached(longer))
	require.Zero(t, e.State().CachedBlocks)
}

// Cache statistics count a request once, however often it starts.
func TestCacheStatisticsAfterPreemption(t *testing.T) {
	e := mustNew(t, small(4), Options{})
	require.NoError(t, e.Submit(Request{ID: 1, PromptTokens: 4, OutputTokens: 6}))
	require.NoError(t, e.Submit(Request{ID: 2, PromptTokens: 4, OutputTokens: 6, Blocks: []uint64{51, 52}}))
	drain(e)
	s := e.State()
	require.EqualValues(t, 1, s.Preemptions)
	require.EqualValues(t, 8, s.CacheQueries)
	require.Zero(t, s.CacheHits)
	require.EqualValues(t, 8, s.PromptTokens)
}

// A shared block is held once, and by whoever is left.
func TestSharedBlocks(t *testing.T) {
	e := mustNew(t, small(8), Options{})
	for id := range uint64(2) {
		require.NoError(t, e.Submit(Request{ID: id, PromptTokens: 5, OutputTokens: 9, Blocks: []uint64{21}}))
	}
	_, events := e.Step(nil)
	require.Contains(t, events, Event{ID: 1, Kind: Admitted, Tokens: 4}, "the second finds the block the first is filling")
	require.Equal(t, 3, e.State().UsedBlocks)
	require.True(t, e.Cancel(0))
	require.Equal(t, 2, e.State().UsedBlocks)
	require.True(t, e.Cancel(1))
	require.Zero(t, e.State().UsedBlocks)
	require.Equal(t, 1, e.State().CachedBlocks)
}

// The least recently freed content goes first, and the tail of a prompt before its head.
func TestEvictionOrder(t *testing.T) {
	e := mustNew(t, small(6), Options{})
	old := Request{ID: 1, PromptTokens: 13, OutputTokens: 1, Blocks: []uint64{31, 32, 33}}
	require.NoError(t, e.Submit(old))
	drain(e) // four blocks: three with content, one partial
	other := Request{ID: 2, PromptTokens: 9, OutputTokens: 1, Blocks: []uint64{41, 42}}
	require.NoError(t, e.Submit(other))
	drain(e) // takes the two never used and the partial one
	old.ID, other.ID = 3, 4
	require.EqualValues(t, 12, e.Cached(old))
	require.NoError(t, e.Submit(Request{ID: 5, PromptTokens: 8, OutputTokens: 1}))
	drain(e)
	require.EqualValues(t, 4, e.Cached(old), "33, then 32 go")
	require.EqualValues(t, 8, e.Cached(other))
}

func TestCancelInsidePass(t *testing.T) {
	e := mustNew(t, small(8), Options{})
	require.NoError(t, e.Submit(Request{ID: 1, PromptTokens: 4, OutputTokens: 4}))
	require.NoError(t, e.Submit(Request{ID: 2, PromptTokens: 4, OutputTokens: 4}))
	_, ok := e.Begin()
	require.True(t, ok)
	_, ok = e.Begin()
	require.False(t, ok, "one pass at a time")
	require.NoError(t, e.Submit(Request{ID: 3, PromptTokens: 2, OutputTokens: 1}))
	require.True(t, e.Cancel(1))
	require.False(t, e.Cancel(1))
	require.NoError(t, e.Submit(Request{ID: 1, PromptTokens: 2, OutputTokens: 1}), "its ID is free at once")
	require.EqualValues(t, 2, e.State().Waiting)
	require.Equal(t, []Event{
		{ID: 1, Kind: Admitted}, {ID: 2, Kind: Admitted}, {ID: 2, Kind: FirstToken, Tokens: 1},
	}, e.End(nil))
	require.Empty(t, e.End(nil))
	n, ok := e.Inside(2)
	require.True(t, ok)
	require.EqualValues(t, 1, n)
	drain(e)
	_, ok = e.Inside(2)
	require.False(t, ok)
}

func TestPendingPrefill(t *testing.T) {
	e := mustNew(t, small(20), Options{})
	require.NoError(t, e.Submit(Request{ID: 1, PromptTokens: 20, OutputTokens: 3}))
	for _, want := range []int64{12, 4, 0} {
		e.Step(nil)
		require.Equal(t, want, e.State().PendingPrefill)
	}
}

func TestSubmitErrors(t *testing.T) {
	e := mustNew(t, small(4), Options{})
	require.NoError(t, e.Submit(Request{ID: 9, PromptTokens: 1, OutputTokens: 16}), "the last token needs no memory")
	for _, tt := range []struct {
		r    Request
		want string
	}{
		{Request{ID: 1, OutputTokens: 1}, "sim: Request.PromptTokens 0 is below 1"},
		{Request{ID: 1, PromptTokens: 1}, "sim: Request.OutputTokens 0 is below 1"},
		{Request{ID: 1, PromptTokens: 1, OutputTokens: 17}, "sim: request is longer than the KV cache: PromptTokens 1, OutputTokens 17, cache 16"},
		{Request{ID: 1, PromptTokens: math.MaxInt64, OutputTokens: math.MaxInt64}, "longer than the KV cache"},
		{Request{ID: 1, PromptTokens: 5, OutputTokens: 2, Blocks: []uint64{1, 2}}, "sim: Request.Blocks has 2 hashes, the request fills 1 blocks"},
		{Request{ID: 9, PromptTokens: 1, OutputTokens: 1}, "sim: request ID is in use: 9"},
	} {
		require.ErrorContains(t, e.Submit(tt.r), tt.want)
	}
	require.ErrorIs(t, e.Submit(Request{PromptTokens: 99, OutputTokens: 1}), ErrTooLong)
	require.ErrorIs(t, e.Submit(Request{ID: 9, PromptTokens: 1, OutputTokens: 1}), ErrDuplicate)
	s := e.State()
	require.EqualValues(t, 1, s.Submitted)
	require.Equal(t, 1, s.Waiting)
}

func TestProfiles(t *testing.T) {
	for _, p := range Profiles() {
		require.NoError(t, p.Validate(), p.Name)
		got, ok := ProfileByName(p.Name)
		require.True(t, ok)
		require.Equal(t, p, got)
	}
	_, ok := ProfileByName("abacus")
	require.False(t, ok)

	_, err := New(Profile{PerToken: -1, PerSeq: math.NaN(), Knee: -2, KVTokens: 3}, Options{})
	for _, want := range []string{
		"sim: Profile.Base 0 is out of range", "Profile.PerToken -1", "Profile.PerSeq NaN", "Profile.Knee -2 is negative",
		"Profile.BlockSize 0", "Profile.MaxSeqs 0", "Profile.Budget 0",
	} {
		require.ErrorContains(t, err, want)
	}
	p := small(4)
	p.KVTokens = 3
	require.ErrorContains(t, p.Validate(), "sim: Profile.KVTokens 3 makes 0 blocks")
	require.Zero(t, Profile{KVTokens: 5}.Blocks())
}

func TestPassTime(t *testing.T) {
	p := Profile{Base: 10, Knee: 100, PerToken: 0.1, PerContext: 0.01, PerPair: 0.001, PerSeq: 0.5}
	require.Equal(t, 10.0, p.PassTime(Pass{}))
	require.Equal(t, 10.0, p.PassTime(Pass{Tokens: 100}), "below the knee tokens are free")
	require.InDelta(t, 15, p.PassTime(Pass{Tokens: 150}), 1e-9)
	require.InDelta(t, 10+0.1*50+0.01*200+0.001*3000+0.5*4, p.PassTime(Pass{Tokens: 150, DecodeContext: 200, Pairs: 3000, Seqs: 4}), 1e-9)
	require.Equal(t, 20*(100+10.0), chunkPairs(100, 20))
}

func TestKindString(t *testing.T) {
	require.Equal(t, "preempted admitted first token token finished EventKind(9)",
		fmt.Sprint(Preempted, " ", Admitted, " ", FirstToken, " ", Token, " ", Finished, " ", EventKind(9)))
}
