package sim

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Skipping leaves the same engine as passing, up to the blocks and the events of the cache, on long outputs and every limit.
func TestSkipIsManyPasses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Profile{
			Base: 5, PerToken: 0.5, PerContext: 0.25, PerSeq: 0.0625, Knee: 2,
			BlockSize: rapid.SampledFrom([]int64{1, 2, 3, 16}).Draw(t, "block size"), MaxSeqs: 6, Budget: 64,
		}
		p.KVTokens = p.BlockSize * rapid.Int64Range(31, 90).Draw(t, "kv blocks")
		passed, err := New(p, Options{KVEvents: true})
		require.NoError(t, err)
		skipped, err := New(p, Options{KVEvents: true})
		require.NoError(t, err)
		for id := range uint64(rapid.IntRange(1, 8).Draw(t, "requests")) {
			r := Request{ID: id, PromptTokens: rapid.Int64Range(1, 30).Draw(t, "prompt")}
			r.OutputTokens = rapid.Int64Range(1, min(60, p.Blocks()*p.BlockSize-r.PromptTokens)+1).Draw(t, "output")
			full := int((r.PromptTokens + r.OutputTokens) / p.BlockSize)
			r.Blocks = hashPath(t, rapid.IntRange(0, full).Draw(t, "blocks"))
			if passed.Submit(r) == nil {
				require.NoError(t, skipped.Submit(r))
			}
		}
		limit := rapid.IntRange(1, 70).Draw(t, "limit")
		for passed.State().Running+passed.State().Waiting > 0 {
			quiet := skipped.Quiet(limit, nil)
			require.Equal(t, len(quiet), skipped.Skip(len(quiet)))
			for _, want := range quiet {
				ms, events := passed.Step(nil)
				require.Equal(t, want, ms) // the very same float, or the clocks of hosts drift apart
				require.Len(t, events, len(passed.running))
			}
			require.Equal(t, passed.State(), skipped.State())
			a, evA := passed.Step(nil)
			b, evB := skipped.Step(nil)
			require.Equal(t, a, b)
			require.Equal(t, evA, evB)
			require.Equal(t, passed.KVEvents(nil), skipped.KVEvents(nil))
			require.Equal(t, passed.pool.blocks, skipped.pool.blocks)
			require.Equal(t, [2]int32{passed.pool.head, passed.pool.tail}, [2]int32{skipped.pool.head, skipped.pool.tail})
			checkBlocks(t, skipped)
		}
	})
}

// A lone decode on an empty engine is quiet up to its last token; nothing is skipped that was not promised.
func TestQuiet(t *testing.T) {
	p, _ := ProfileByName("h100-8b")
	e := mustNew(t, p, Options{})
	require.Empty(t, e.Quiet(10, nil), "nobody is there")
	require.NoError(t, e.Submit(Request{ID: 1, PromptTokens: 100, OutputTokens: 50}))
	require.Empty(t, e.Quiet(10, nil), "a prefill")
	e.Step(nil)
	require.Zero(t, e.Skip(1), "not promised")
	require.Len(t, e.Quiet(1000, nil), 48)
	require.Len(t, e.Quiet(10, nil), 10)
	require.Equal(t, 7, e.Skip(7))
	require.Equal(t, 3, e.Skip(9), "more than is left of the promise")
	require.Zero(t, e.Skip(1))
	generated, _ := e.Inside(1)
	require.EqualValues(t, 11, generated)
	require.NotEmpty(t, e.Quiet(1, nil))
	require.NoError(t, e.Submit(Request{ID: 2, PromptTokens: 100, OutputTokens: 50}))
	require.Zero(t, e.Skip(1), "a request has come in between")
	require.Empty(t, e.Quiet(10, nil), "it will be admitted")
	_, ok := e.Begin()
	require.True(t, ok)
	require.Empty(t, e.Quiet(10, nil), "a pass is open")
	require.Zero(t, e.Skip(1))
}

// The table holds what a map would, under hashes that collide.
func TestTableAgainstMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "blocks")
		tab := newTable(n)
		blocks := make([]block, n)
		for i := range blocks {
			blocks[i].same = unnamed
		}
		want := map[uint64]int32{}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				b := rapid.Int32Range(0, int32(n-1)).Draw(t, "block")
				h := rapid.Uint64Range(0, 60).Draw(t, "hash") << 61 >> rapid.SampledFrom([]uint{0, 3, 61}).Draw(t, "shift")
				if blocks[b].same != unnamed {
					return
				}
				_, dup := want[h]
				require.Equal(t, !dup, tab.put(blocks, h, b))
				if !dup {
					want[h] = b
				}
			},
			"remove": func(t *rapid.T) {
				b := rapid.Int32Range(0, int32(n-1)).Draw(t, "block")
				if blocks[b].same != unnamed {
					delete(want, blocks[b].hash)
					tab.remove(blocks, b)
				}
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(want), tab.n)
				for h := range uint64(61) {
					for _, h := range []uint64{h << 61, h << 61 >> 3, h} {
						b, ok := want[h]
						if !ok {
							b = none
						}
						require.Equal(t, b, tab.find(blocks, h))
					}
				}
			},
		})
	})
}

func BenchmarkSkip100Decodes(b *testing.B) {
	p, _ := ProfileByName("h100-8b")
	e := mustNew(b, p, Options{})
	var quiet []float64
	id := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		for len(e.running)+e.waiting.n < 100 {
			if err := e.Submit(Request{ID: id, PromptTokens: 500, OutputTokens: 2000}); err != nil {
				b.Fatal(err)
			}
			id++
		}
		quiet = e.Quiet(16, quiet[:0])
		if e.Skip(16) == 0 {
			e.Step(nil)
		}
	}
}
