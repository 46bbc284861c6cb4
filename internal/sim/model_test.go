package sim

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// hashPath draws n chained hashes from a tree of two branches per block, so that prefixes meet often. A hash divided
// by 3 is its parent's.
func hashPath(t *rapid.T, n int) []uint64 {
	path := make([]uint64, n)
	h := uint64(0)
	for i := range path {
		h = h*3 + uint64(rapid.IntRange(1, 2).Draw(t, "branch"))
		path[i] = h
	}
	return path
}

func drawRequest(t *rapid.T, id uint64, p Profile) Request {
	most := p.Blocks() * p.BlockSize
	r := Request{ID: id, PromptTokens: rapid.Int64Range(1, min(most, 40)).Draw(t, "prompt")}
	r.OutputTokens = rapid.Int64Range(1, min(most-r.PromptTokens+1, 12)).Draw(t, "output")
	full := int((r.PromptTokens + r.OutputTokens) / p.BlockSize)
	r.Blocks = hashPath(t, rapid.IntRange(0, full).Draw(t, "blocks"))
	return r
}

// checkBlocks is the conservation of blocks: every reference is a request's, every block is used or on the free list
// once, the index and the blocks agree.
func checkBlocks(t require.TestingT, e *Engine) {
	refs := make([]int32, len(e.pool.blocks))
	for _, r := range e.running {
		require.Equal(t, running, r.place)
		require.GreaterOrEqual(t, int64(len(r.blocks))*e.profile.BlockSize, r.computed)
		for _, b := range r.blocks {
			refs[b]++
		}
	}
	onFree := 0
	before := none
	for b := e.pool.head; b != none; b = e.pool.blocks[b].next {
		require.Equal(t, before, e.pool.blocks[b].prev)
		require.Zero(t, e.pool.blocks[b].ref)
		before = b
		onFree++
		require.LessOrEqual(t, onFree, len(e.pool.blocks))
	}
	require.Equal(t, e.pool.free, onFree)
	inUse, cached := 0, 0
	for i, b := range e.pool.blocks {
		require.Equal(t, refs[i], b.ref, "block %d", i)
		if b.ref > 0 {
			inUse++
		}
		if b.same != unnamed {
			cached++
			require.Equal(t, int32(i), e.pool.index.find(e.pool.blocks, b.hash))
		}
	}
	require.Equal(t, e.pool.index.n, cached)
	require.Equal(t, len(e.pool.blocks), onFree+inUse)
}

// The engine does what its naive twin does, call by call, and its books balance after each.
func TestEngineAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Profile{
			Base: 5, Knee: rapid.Int64Range(0, 8).Draw(t, "knee"), PerToken: 0.5, PerContext: 0.25, PerPair: 0.125, PerSeq: 0.0625,
			BlockSize: rapid.Int64Range(1, 5).Draw(t, "block size"),
			MaxSeqs:   rapid.IntRange(1, 5).Draw(t, "seqs"),
			Budget:    rapid.Int64Range(1, 24).Draw(t, "budget"),
		}
		p.KVTokens = p.BlockSize * rapid.Int64Range(2, 16).Draw(t, "kv blocks")
		e, err := New(p, Options{KVEvents: true})
		require.NoError(t, err)
		n := newNaive(p)
		next := uint64(1)
		mirror := map[uint64]bool{} // the cached set, as the KV events tell it
		tokens := map[uint64]int64{}

		begin := func(t *rapid.T) {
			wantMS, wantOK := n.begin()
			ms, ok := e.Begin()
			require.Equal(t, wantOK, ok)
			require.InDelta(t, wantMS, ms, 1e-9)
			if ok {
				require.NotEmpty(t, e.pass, "a pass without work")
			}
		}
		end := func(t *rapid.T) {
			got := e.End(nil)
			require.Equal(t, n.end(), got)
			for _, ev := range got {
				if ev.Kind == FirstToken || ev.Kind == Token {
					require.Equal(t, tokens[ev.ID]+1, ev.Tokens, "a token was lost or came twice")
					tokens[ev.ID]++
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"submit": func(t *rapid.T) {
				r := drawRequest(t, next, p)
				next++
				require.NoError(t, e.Submit(r))
				n.submit(r)
			},
			"cancel": func(t *rapid.T) {
				id := rapid.Uint64Range(1, next).Draw(t, "id")
				require.Equal(t, n.cancel(id), e.Cancel(id))
			},
			"step":  func(t *rapid.T) { begin(t); end(t) },
			"begin": begin,
			"skip": func(t *rapid.T) {
				most := rapid.IntRange(1, 12).Draw(t, "most")
				quiet := e.Quiet(most, nil)
				require.LessOrEqual(t, len(quiet), most)
				skipped := rapid.IntRange(0, len(quiet)).Draw(t, "skipped")
				require.Equal(t, skipped, e.Skip(skipped))
				for _, want := range quiet[:skipped] {
					ms, ok := n.begin()
					require.True(t, ok)
					require.InDelta(t, want, ms, 1e-9)
					for _, ev := range n.end() {
						require.Equal(t, Token, ev.Kind, "a pass that is not quiet")
						tokens[ev.ID]++
					}
				}
			},
			"end": end,
			"clear": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "really") == 0 {
					e.ClearCache()
					n.clearCache()
				}
			},
			"": func(t *rapid.T) {
				checkBlocks(t, e)
				s := e.State()
				require.Equal(t, len(n.running), s.Running)
				require.Equal(t, len(n.waiting), s.Waiting)
				all, uncached := n.waitingUncached()
				require.Equal(t, all, s.WaitingTokens)
				require.Equal(t, uncached, e.WaitingUncached())
				require.Equal(t, len(n.ref)-len(n.free), s.UsedBlocks)
				require.Equal(t, s.Submitted, s.Finished+s.Cancelled+int64(s.Running+s.Waiting))
				require.LessOrEqual(t, s.CacheHits, s.CacheQueries)
				require.LessOrEqual(t, s.Running, p.MaxSeqs)

				free := []int{}
				for b := e.pool.head; b != none; b = e.pool.blocks[b].next {
					free = append(free, int(b))
				}
				require.True(t, slices.Equal(n.free, free), "the free list is %v, not %v", free, n.free)
				kv := e.KVEvents(nil)
				require.Equal(t, n.kv, kv)
				n.kv = nil
				for _, ev := range kv {
					switch ev.Kind {
					case KVStored:
						require.False(t, mirror[ev.Hash])
						mirror[ev.Hash] = true
					case KVRemoved:
						require.True(t, mirror[ev.Hash])
						delete(mirror, ev.Hash)
					case KVCleared:
						clear(mirror)
					}
				}
				require.Len(t, mirror, s.CachedBlocks)
				require.Len(t, n.hash, s.CachedBlocks)
			},
		})

		// Whatever happened, everything inside ends when nothing more comes.
		for range 100_000 {
			if e.State().Submitted == e.State().Finished+e.State().Cancelled {
				break
			}
			e.Step(nil)
		}
		s := e.State()
		require.Zero(t, s.Running+s.Waiting+s.UsedBlocks)
		require.Equal(t, s.Submitted, s.Finished+s.Cancelled)
		checkBlocks(t, e)
	})
}

// The same calls give the same events, whatever was recycled before.
func TestDeterministic(t *testing.T) {
	p, _ := ProfileByName("rtx4090-8b")
	p.KVTokens = 4096
	run := func() string {
		e, err := New(p, Options{})
		require.NoError(t, err)
		var all []Event
		total := 0.0
		for i := range 400 {
			r := Request{ID: uint64(i), PromptTokens: int64(i*37%900 + 1), OutputTokens: int64(i%90 + 1)}
			require.NoError(t, e.Submit(r))
			if i%7 == 3 {
				e.Cancel(uint64(i / 2))
			}
			ms, ev := e.Step(nil)
			total += ms
			all = append(all, ev...)
		}
		return fmt.Sprint(total, all)
	}
	require.Equal(t, run(), run())
}

func drain(e *Engine) []Event {
	var all []Event
	for {
		ms, ev := e.Step(nil)
		if ms == 0 {
			return all
		}
		all = slices.Concat(all, ev)
	}
}
