package workload

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/router"
)

func TestClassesAreThoseOfTheRouter(t *testing.T) {
	for c := range uint8(7) {
		assert.Equal(t, router.Class(c).String(), Class(c).String())
	}
	assert.Equal(t, uint8(router.ClassSheddable), uint8(ClassSheddable))
}

func TestAppendBlocks(t *testing.T) {
	r := Request{PromptTokens: 16*5 + 15, OutputTokens: 20, Segments: []Segment{{10, 3}, {100, 4}}}
	ids := r.AppendBlocks([]uint64{7})
	require.Len(t, ids, 6)
	assert.EqualValues(t, 7, ids[0], "what was there stays")
	assert.EqualValues(t, 5, r.PromptBlocks())
	assert.Equal(t, []uint64{blockID(10), blockID(11), blockID(12), blockID(100), blockID(101)}, ids[1:])
	all := r.AppendAll(nil)
	assert.Equal(t, ids[1:], all[:5])
	assert.Equal(t, []uint64{blockID(102), blockID(103)}, all[5:], "95 + 20 tokens fill 7 blocks")

	short := Request{PromptTokens: 1000, OutputTokens: 1, Segments: []Segment{{10, 3}}}
	assert.Len(t, short.AppendBlocks(nil), 3, "the rest has no ids")
	none := Request{PromptTokens: 1000, OutputTokens: 1}
	assert.Empty(t, none.AppendAll(nil))
}

func TestScopesDoNotShare(t *testing.T) {
	base := Request{PromptTokens: 64, OutputTokens: 1, Segments: []Segment{{10, 4}}}
	scopes := []func(*Request){
		func(*Request) {},
		func(r *Request) { r.Adapter, r.AdapterDigest = "a", "b" },
		func(r *Request) { r.Adapter, r.AdapterDigest = "ab", "" },
		func(r *Request) { r.Adapter, r.AdapterDigest = "", "ab" },
		func(r *Request) { r.Salt = "ab" },
		func(r *Request) { r.Salt = "a" },
		func(r *Request) { r.Adapter, r.AdapterDigest, r.Salt = "a", "b", "a" },
	}
	seen := map[uint64]int{}
	for k, set := range scopes {
		r := base
		set(&r)
		for _, id := range r.AppendBlocks(nil) {
			before, dup := seen[id]
			require.False(t, dup, "scopes %d and %d", before, k)
			seen[id] = k
		}
	}
	r := base
	r.Tenant, r.Label, r.Session = "x", "y", 3
	assert.Equal(t, base.AppendBlocks(nil), r.AppendBlocks(nil), "nothing else matters")
}

// Two requests agree at a position exactly if their lists of numbers do.
func TestIDsAgreeAsNumbersDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) ([]Segment, []uint64) {
			var segments []Segment
			var numbers []uint64
			for _, first := range rapid.SliceOfN(rapid.SampledFrom([]uint64{0, 5, 1 << 40, ^uint64(2)}), 0, 4).Draw(t, name) {
				n := rapid.Int64Range(0, 6).Draw(t, "blocks")
				segments = appendSegment(segments, Segment{first, n})
				for i := range uint64(n) {
					numbers = append(numbers, first+i)
				}
			}
			return segments, numbers
		}
		s1, n1 := draw("a")
		s2, n2 := draw("b")
		a := Request{PromptTokens: 1000, OutputTokens: 1, Segments: s1}
		b := Request{PromptTokens: 1000, OutputTokens: 1, Segments: s2}
		ida, idb := a.AppendBlocks(nil), b.AppendAll(nil)
		require.Len(t, ida, len(n1))
		require.Len(t, idb, len(n2))
		for i := range ida {
			for j := range idb {
				require.Equal(t, n1[i] == n2[j], ida[i] == idb[j])
			}
		}
	})
}

func TestExpansionDoesNotAllocate(t *testing.T) {
	r := Request{PromptTokens: 12_000, OutputTokens: 100, Segments: []Segment{{1, 32}, {1000, 718}}, Adapter: "a", AdapterDigest: "b"}
	buf := make([]uint64, 0, 1000)
	assert.Zero(t, testing.AllocsPerRun(100, func() { buf = r.AppendBlocks(buf[:0]) }))
	assert.Len(t, buf, 750)
}

func TestRequestValidate(t *testing.T) {
	good := Request{PromptTokens: 100, OutputTokens: 28, Segments: []Segment{{1, 4}, {9, 4}}}
	require.NoError(t, good.Validate())
	for want, spoil := range map[string]func(*Request){
		"Arrival is -1ns":           func(r *Request) { r.Arrival = -1 },
		"PromptTokens is 0":         func(r *Request) { r.PromptTokens = 0 },
		"PromptTokens is 214748364": func(r *Request) { r.PromptTokens = MaxTokens + 1 },
		"OutputTokens is 0":         func(r *Request) { r.OutputTokens = 0 },
		"MaxOutputTokens is 27":     func(r *Request) { r.MaxOutputTokens = 27 },
		"ExpectedOutputTokens is":   func(r *Request) { r.ExpectedOutputTokens = -1 },
		"Turn is -1":                func(r *Request) { r.Turn = -1 },
		"Think is":                  func(r *Request) { r.Think = -time.Second },
		"AdapterDigest is":          func(r *Request) { r.Adapter = "a" },
		"Class is 5":                func(r *Request) { r.Class = 5 },
		"Deadline is":               func(r *Request) { r.Deadline = -1 },
		"Segments[1].Blocks is 5":   func(r *Request) { r.Segments = []Segment{{1, 4}, {9, 5}} },
		"Segments[0].Blocks is 0":   func(r *Request) { r.Segments = []Segment{{1, 0}} },
		"Segments[1].First is 5":    func(r *Request) { r.Segments = []Segment{{1, 4}, {5, 1}} },
	} {
		r := good
		spoil(&r)
		err := r.Validate()
		require.ErrorContains(t, err, want)
		assert.True(t, strings.HasPrefix(err.Error(), "workload: request 0: "), err)
	}
}

func TestCheck(t *testing.T) {
	ok := Workload{
		{ID: 1, PromptTokens: 160, OutputTokens: 1, Segments: []Segment{{1, 5}, {20, 5}}},
		{ID: 2, PromptTokens: 160, OutputTokens: 1, Segments: []Segment{{1, 5}, {20, 2}}},
		{ID: 3, PromptTokens: 160, OutputTokens: 1, Segments: []Segment{{1, 3}, {40, 2}}, Session: 1},
		{ID: 4, PromptTokens: 160, OutputTokens: 1, Session: 1, Turn: 1},
	}
	require.NoError(t, ok.Check())
	for want, more := range map[string]Request{
		"request 2: ID is used twice":                                 {ID: 2, PromptTokens: 1, OutputTokens: 1},
		"Turn is 1, it must be above 1, the turn before in session 1": {ID: 9, PromptTokens: 1, OutputTokens: 1, Session: 1, Turn: 1},
		"the block numbered 20 does not follow":                       {ID: 9, PromptTokens: 160, OutputTokens: 1, Segments: []Segment{{1, 4}, {20, 1}}},
		"the block numbered 40 does not follow":                       {ID: 9, PromptTokens: 160, OutputTokens: 1, Segments: []Segment{{40, 1}}},
		"the block numbered 22 begins a segment and is inside":        {ID: 9, PromptTokens: 160, OutputTokens: 1, Segments: []Segment{{22, 1}}},
		"the block numbered 1 begins a segment and is inside":         {ID: 9, PromptTokens: 160, OutputTokens: 1, Segments: []Segment{{^uint64(0), 3}}},
		"PromptTokens is 0":                                           {ID: 9},
	} {
		assert.ErrorContains(t, append(ok[:4:4], more).Check(), want)
	}
}
