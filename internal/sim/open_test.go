package sim

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Opens shows what is inside in the middle of a pass: who computes what, who waits, and what of the cache is whose.
func TestOpens(t *testing.T) {
	e := mustNew(t, small(20), Options{})
	head, long := []uint64{1, 2}, []uint64{1, 2, 3, 4}
	require.Empty(t, e.Opens(nil))
	require.NoError(t, e.Submit(Request{ID: 1, PromptTokens: 9, OutputTokens: 3, Blocks: head}))
	e.Step(nil) // 8 of 9 tokens
	require.NoError(t, e.Submit(Request{ID: 2, PromptTokens: 20, OutputTokens: 1, Blocks: long}))
	require.Equal(t, Open{ID: 9, PromptTokens: 8, OutputTokens: 1, Hashes: head, Computed: 4, Blocks: 1, Shared: 1},
		e.AsWaiting(Request{ID: 9, PromptTokens: 8, OutputTokens: 1, Blocks: head}), "the last token is never cached")
	require.Equal(t, []Open{
		{ID: 1, PromptTokens: 9, OutputTokens: 3, Hashes: head, Computed: 8, Blocks: 2, Running: true},
		{ID: 2, PromptTokens: 20, OutputTokens: 1, Hashes: long, Computed: 8, Blocks: 2, Shared: 2},
	}, e.Opens(nil))
	e.Begin() // the last token of 1, seven of 2
	require.Equal(t, []Open{
		{ID: 1, PromptTokens: 9, OutputTokens: 3, Hashes: head, Computed: 8, Chunk: 1, Blocks: 3, Shared: 2, Running: true},
		{ID: 2, PromptTokens: 20, OutputTokens: 1, Hashes: long, Computed: 8, Chunk: 7, Blocks: 4, Shared: 2, Running: true},
	}, e.Opens(nil))
	require.True(t, e.Cancel(1))
	require.Equal(t, []Open{
		{ID: 2, PromptTokens: 20, OutputTokens: 1, Hashes: long, Computed: 8, Chunk: 7, Blocks: 4, Running: true},
	}, e.Opens(nil), "the blocks are its own now")
	e.End(nil)
	require.Zero(t, e.Opens(nil)[0].Chunk)
	e.Step(nil)
	require.Equal(t, Open{PromptTokens: 9, OutputTokens: 1, Hashes: head, Computed: 8, Blocks: 2}, e.AsWaiting(Request{PromptTokens: 9, OutputTokens: 1, Blocks: head}))
	require.Zero(t, e.AsWaiting(Request{Blocks: head}).Computed)
}

// Whatever has happened, Opens agrees with State and with what the next End reports.
func TestOpensAgrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Profile{Base: 5, BlockSize: 4, MaxSeqs: 3, Budget: rapid.Int64Range(1, 12).Draw(t, "budget"), KVTokens: 4 * rapid.Int64Range(8, 30).Draw(t, "blocks")}
		e, err := New(p, Options{})
		require.NoError(t, err)
		next := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"submit": func(t *rapid.T) {
				next++
				_ = e.Submit(drawRequest(t, next, p))
			},
			"begin":  func(*rapid.T) { e.Begin() },
			"end":    func(*rapid.T) { e.End(nil) },
			"cancel": func(t *rapid.T) { e.Cancel(rapid.Uint64Range(1, next+1).Draw(t, "id")) },
			"": func(t *rapid.T) {
				s := e.State()
				running, chunks := 0, int64(0)
				all := e.Opens(nil)
				for i, o := range all {
					require.LessOrEqual(t, o.Shared, o.Blocks)
					generated, ok := e.Inside(o.ID)
					require.True(t, ok)
					require.Equal(t, generated, o.Generated)
					if o.Running {
						require.Equal(t, i, running, "running ones come first")
						running++
					}
					chunks += o.Chunk
				}
				require.Equal(t, [2]int{s.Running, s.Waiting}, [2]int{running, len(all) - running})
				want := int64(0)
				if e.open {
					for _, r := range e.running {
						for _, q := range e.pass {
							if q == r {
								want += r.chunk
							}
						}
					}
				}
				require.Equal(t, want, chunks)
			},
		})
	})
}
