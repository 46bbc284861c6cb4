package sim

// none marks the absence of a block.
const none int32 = -1

// unnamed marks a block without content that could be found.
const unnamed int32 = -1

// block is one KV block. A block with ref 0 is on the free list, with or without content worth finding.
type block struct {
	hash uint64
	ref  int32
	prev int32
	next int32
	same int32 // the next block of its chain in the index, off by one, 0 = the last; unnamed = not in the index
}

// pool is the KV memory: blocks with reference counts, an index of the cached ones by hash, and the list of the free
// ones from the next to be reused to the last.
type pool struct {
	blocks []block
	parent []uint64 // of the block's hash; only with record
	index  table
	head   int32
	tail   int32
	free   int
	record bool
	events []KVEvent
	found  []int32 // by the last match
}

func newPool(n int, record bool) *pool {
	p := &pool{blocks: make([]block, n), index: newTable(n), head: none, tail: none, record: record}
	if record {
		p.parent = make([]uint64, n)
	}
	for i := range p.blocks {
		p.blocks[i].same = unnamed
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

// match returns how many leading hashes are cached and how many of those blocks lie on the free list. share takes them.
func (p *pool) match(hashes []uint64) (found, onFree int) {
	p.found = p.found[:0]
	for _, h := range hashes {
		i := p.index.find(p.blocks, h)
		if i == none {
			break
		}
		if p.blocks[i].ref == 0 {
			onFree++
		}
		p.found = append(p.found, i)
	}
	return len(p.found), onFree
}

// share takes one more reference on each block that the last match has found and appends them to dst.
func (p *pool) share(dst []int32) []int32 {
	for _, i := range p.found {
		b := &p.blocks[i]
		if b.ref == 0 {
			p.unlinkFree(i)
		}
		b.ref++
	}
	return append(dst, p.found...)
}

// take appends n blocks without content to dst, dropping the cached content that was freed first. The caller has
// checked that n blocks are free.
func (p *pool) take(dst []int32, n int) []int32 {
	if n == 0 {
		return dst
	}
	at := p.head
	for range n {
		b := &p.blocks[at]
		dst = append(dst, at)
		if b.same != unnamed {
			p.forget(at)
		}
		b.ref = 1
		at = b.next
	}
	p.head = at
	if at == none {
		p.tail = none
	} else {
		p.blocks[at].prev = none
	}
	p.free -= n
	return dst
}

// forget drops the cached content of a block.
func (p *pool) forget(i int32) {
	p.index.remove(p.blocks, i)
	if p.record {
		p.events = append(p.events, KVEvent{Kind: KVRemoved, Hash: p.blocks[i].hash, Parent: p.parent[i]})
	}
}

// store makes a full block findable. A second block with the same content stays unnamed, and so is not found.
func (p *pool) store(i int32, hash, parent uint64) {
	if !p.index.put(p.blocks, hash, i) {
		return
	}
	if p.record {
		p.parent[i] = parent
		p.events = append(p.events, KVEvent{Kind: KVStored, Hash: hash, Parent: parent})
	}
}

// release drops one reference on each block, last block first, so that the tail of a request is reused before its head.
func (p *pool) release(ids []int32) {
	for k := len(ids) - 1; k >= 0; k-- {
		i := ids[k]
		b := &p.blocks[i]
		if b.ref--; b.ref == 0 {
			p.pushFree(i)
		}
	}
}

// clear forgets all cached content. Blocks in use stay in use and can no longer be found.
func (p *pool) clear() {
	for i := range p.blocks {
		p.blocks[i].same = unnamed
	}
	p.index.clear()
	if p.record {
		p.events = append(p.events, KVEvent{Kind: KVCleared})
	}
}
