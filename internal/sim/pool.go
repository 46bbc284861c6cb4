package sim

// none marks the absence of a block.
const none int32 = -1

// block is one KV block. A block with ref 0 is on the free list, with or without content worth finding.
type block struct {
	hash   uint64
	parent uint64
	ref    int32
	prev   int32
	next   int32
	cached bool // hash is valid and index[hash] is this block
}

// pool is the KV memory: blocks with reference counts, an index of the cached ones by hash, and the list of the free
// ones from the next to be reused to the last.
type pool struct {
	blocks []block
	index  map[uint64]int32
	head   int32
	tail   int32
	free   int
	record bool
	events []KVEvent
}

func newPool(n int, record bool) *pool {
	p := &pool{blocks: make([]block, n), index: make(map[uint64]int32), head: none, tail: none, record: record}
	for i := range p.blocks {
		p.pushFree(int32(i))
	}
	return p
}

func (p *pool) pushFree(i int32) {
	b := &p.blocks[i]
	b.prev, b.next = p.tail, none
	if p.tail == none {
		p.head = i
	} else {
		p.blocks[p.tail].next = i
	}
	p.tail = i
	p.free++
}

func (p *pool) unlinkFree(i int32) {
	b := &p.blocks[i]
	if b.prev == none {
		p.head = b.next
	} else {
		p.blocks[b.prev].next = b.next
	}
	if b.next == none {
		p.tail = b.prev
	} else {
		p.blocks[b.next].prev = b.prev
	}
	p.free--
}

// match returns how many leading hashes are cached and how many of those blocks lie on the free list.
func (p *pool) match(hashes []uint64) (found, onFree int) {
	for _, h := range hashes {
		i, ok := p.index[h]
		if !ok {
			break
		}
		if p.blocks[i].ref == 0 {
			onFree++
		}
		found++
	}
	return found, onFree
}

// share takes one more reference on each of the cached hashes and appends their blocks to dst. All must be cached.
func (p *pool) share(dst []int32, hashes []uint64) []int32 {
	for _, h := range hashes {
		i := p.index[h]
		b := &p.blocks[i]
		if b.ref == 0 {
			p.unlinkFree(i)
		}
		b.ref++
		dst = append(dst, i)
	}
	return dst
}

// take appends n blocks without content to dst, dropping the cached content that was freed first. The caller has
// checked that n blocks are free.
func (p *pool) take(dst []int32, n int) []int32 {
	for ; n > 0; n-- {
		i := p.head
		p.unlinkFree(i)
		b := &p.blocks[i]
		p.forget(b)
		b.ref = 1
		dst = append(dst, i)
	}
	return dst
}

func (p *pool) forget(b *block) {
	if !b.cached {
		return
	}
	delete(p.index, b.hash)
	b.cached = false
	if p.record {
		p.events = append(p.events, KVEvent{Kind: KVRemoved, Hash: b.hash, Parent: b.parent})
	}
}

// store makes a full block findable. A second block with the same content stays unnamed, and so is not found.
func (p *pool) store(i int32, hash, parent uint64) {
	if _, dup := p.index[hash]; dup {
		return
	}
	b := &p.blocks[i]
	b.hash, b.parent, b.cached = hash, parent, true
	p.index[hash] = i
	if p.record {
		p.events = append(p.events, KVEvent{Kind: KVStored, Hash: hash, Parent: parent})
	}
}

// release drops one reference on each block, last block first, so that the tail of a request is reused before its head.
func (p *pool) release(ids []int32) {
	for k := len(ids) - 1; k >= 0; k-- {
		i := ids[k]
		b := &p.blocks[i]
		b.ref--
		if b.ref == 0 {
			p.pushFree(i)
		}
	}
}

// clear forgets all cached content. Blocks in use stay in use and can no longer be found.
func (p *pool) clear() {
	for i := range p.blocks {
		p.blocks[i].cached = false
	}
	clear(p.index)
	if p.record {
		p.events = append(p.events, KVEvent{Kind: KVCleared})
	}
}
