package sim

import "sort"

// Open is how far a request inside an engine is. It is a plain value whose Hashes must only be read.
type Open struct {
	// ID, PromptTokens and OutputTokens are those of the Request.
	ID                         uint64
	PromptTokens, OutputTokens int64
	// Hashes are its Blocks.
	Hashes []uint64
	// Generated is the number of tokens it has generated, the open pass not counted.
	Generated int64
	// Computed is the number of tokens whose KV is there, the open pass not counted; of a waiting request, those that an
	// admission would find in the cache.
	Computed int64
	// Chunk is the number of tokens that the open pass computes; 0 = it has no part in one.
	Chunk int64
	// Blocks is the number of blocks it holds or, while it waits, would find in the cache. Shared of them are held by others too.
	Blocks, Shared int
	// Running says that it holds blocks, or else that it waits.
	Running bool
}

// Opens appends to dst the requests inside, those that run in the order of admission, then those that wait in theirs. It changes
// nothing. It searches the cache as AsWaiting does.
func (e *Engine) Opens(dst []Open) []Open {
	computing := 0 // running requests with a part in the open pass: always the first ones, since it goes by their order
	if e.open {
		for _, r := range e.pass {
			if r.chunk > 0 {
				computing++
			}
		}
	}
	for i, r := range e.running {
		o := Open{
			ID: r.ID, PromptTokens: r.PromptTokens, OutputTokens: r.OutputTokens, Hashes: r.Blocks, Generated: r.generated,
			Computed: r.computed, Blocks: len(r.blocks), Running: true,
			Shared: sort.Search(len(r.blocks), func(i int) bool { return e.pool.blocks[r.blocks[i]].ref < 2 }),
		}
		if i < computing {
			o.Chunk = r.chunk
		}
		dst = append(dst, o)
	}
	for r := e.waiting.head; r != nil; r = r.next {
		o := e.AsWaiting(r.Request)
		if r.generated > 0 { // its generated tokens are computed again too, and may be cached
			o.Generated = r.generated
			o.find(e, r.Blocks, r.known())
		}
		dst = append(dst, o)
	}
	return dst
}

// AsWaiting is what a request would be if it waited here. It changes nothing. Cached blocks are looked for by binary search, which is
// exact as long as no block is cached without those before it: blocks are freed from the tail on, so that others are rare.
func (e *Engine) AsWaiting(r Request) Open {
	o := Open{ID: r.ID, PromptTokens: r.PromptTokens, OutputTokens: r.OutputTokens, Hashes: r.Blocks}
	o.find(e, r.Blocks, r.PromptTokens)
	return o
}

// find fills in what the cache has of the blocks of a request with that many tokens to compute, never the last of them.
func (o *Open) find(e *Engine, hashes []uint64, known int64) {
	p := e.pool
	n := max(min(int64(len(hashes)), (known-1)/e.profile.BlockSize), 0)
	o.Blocks = sort.Search(int(n), func(i int) bool { return p.index.find(p.blocks, hashes[i]) == none })
	o.Shared = sort.Search(o.Blocks, func(i int) bool {
		b := p.index.find(p.blocks, hashes[i])
		return b == none || p.blocks[b].ref == 0
	})
	o.Computed = int64(o.Blocks) * e.profile.BlockSize
}
