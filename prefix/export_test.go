package prefix

import "fmt"

// SetMerged sets the longest node that a merge makes.
func (x *Index) SetMerged(blocks int) { x.merged = blocks }

// ChainSeed is the value before the first block.
var ChainSeed = chainSeed

// Forge makes a sequence of given chain values, such as no hash would give.
func Forge(s Scope, block int, hashes ...uint64) Sequence {
	return Sequence{scope: s, block: int32(block), hashes: hashes}
}

// BeginClear stops Clear where others get their turn: before anything is taken away. finish does the rest.
func (x *Index) BeginClear(h Holder) (finish func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	cut := x.clock
	h.p.cut = cut
	return func() { x.drain(h.p, cut) }
}

// Merged marks the node where q starts as one that a merge has replaced, without having replaced it.
func (x *Index) Merged(q Sequence) { x.table.lookup(q.hashes[0], &q).stale.Store(true) }

// Reuse counts a slot as given a second time.
func (x *Index) Reuse() { x.reuse.Add(1) }

// Locked runs f while the writers' lock is held.
func (x *Index) Locked(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f()
}

// Check verifies every invariant of the tree, the lists and the counts, from scratch.
func (x *Index) Check() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	var nodes, holdings, blocks int64
	bytes := emptyBytes
	kids := map[*link]int{}
	known := map[*node]bool{}
	for i := range x.table.shard {
		s := &x.table.shard[i]
		live, used := 0, 0
		p := s.slots.Load()
		if p == nil {
			if s.live != 0 || s.used != 0 {
				return fmt.Errorf("shard %d has no slots and counts %d live, %d used", i, s.live, s.used)
			}
			continue
		}
		bytes += tableBytes(len(*p))
		for j := range *p {
			key, n := (*p)[j].key.Load(), (*p)[j].node.Load()
			if key != keyEmpty {
				used++
			}
			if key <= keyRemoved {
				if n != nil {
					return fmt.Errorf("a node without a key")
				}
				continue
			}
			live++
			if key != keyOf(n.first) || n.first != n.hashes[0] || n.len() < 1 || n.len() > len(n.hashes) || n.stale.Load() {
				return fmt.Errorf("bad node %+v", n)
			}
			known[n] = true
			nodes++
			blocks += int64(n.len())
			bytes += nodeBytes + edgeBytes(n.hashes)
			if n.up != nil {
				kids[n.up]++
			}
			if n.down != nil {
				bytes += linkBytes
			} else if n.holders() == 0 {
				return fmt.Errorf("a leaf nobody holds")
			}
			if c := n.crowd.Load(); c != nil {
				bytes += sizeOf(c) + holdingBytes*int64(c.live)
				k := 0
				for at := range c.words {
					w := c.words[at].Load()
					if (w == 0) != (c.holds[at] == nil) {
						return fmt.Errorf("word %d, holding %v", w, c.holds[at])
					}
					if e := c.holds[at]; e != nil {
						k++
						if e.node != n || e.at != int32(at) || uint32(e.slot)+1 != w || at >= c.used {
							return fmt.Errorf("bad holding %+v", e)
						}
					}
				}
				if k != c.live || k == 0 {
					return fmt.Errorf("crowd of %d counts %d", k, c.live)
				}
			}
			holdings += int64(n.holders())
		}
		if live != s.live || used != s.used {
			return fmt.Errorf("shard counts %d live, %d used; has %d, %d", s.live, s.used, live, used)
		}
	}
	for l, k := range kids {
		if l.children != k || l.node.down != l || !known[l.node] {
			return fmt.Errorf("link counts %d children, has %d", l.children, k)
		}
	}
	for n := range known {
		if n.down != nil && kids[n.down] == 0 {
			return fmt.Errorf("a link without children")
		}
	}
	alive := 0
	for slot, h := range x.holders {
		if h == nil {
			if x.oldest[slot] != never {
				return fmt.Errorf("free slot %d has an oldest stamp", slot)
			}
			continue
		}
		alive++
		bytes += holderBytes
		var held int64
		at := map[*node]int{}
		stamp, k := uint64(never), 0
		for e := h.root.next; e != &h.root; e = e.next {
			if e.next.prev != e || e.stamp > stamp || e.slot != h.slot || !known[e.node] || e.node.find(h.slot) != e {
				return fmt.Errorf("bad list member %+v", e)
			}
			stamp = e.stamp
			held += e.node.tokens()
			k++
			at[e.node] = k
		}
		holdings -= int64(k)
		if k == 0 {
			stamp = never
		}
		if x.oldest[slot] != stamp || h.held != held {
			return fmt.Errorf("slot %d: oldest %d, want %d; held %d, want %d", slot, x.oldest[slot], stamp, h.held, held)
		}
		if h.capacity > 0 && held > h.capacity {
			return fmt.Errorf("slot %d holds %d of %d tokens", slot, held, h.capacity)
		}
		for n, pos := range at {
			for up := n.up; up != nil; up = up.node.up {
				above, ok := at[up.node]
				if ok && above > pos {
					return fmt.Errorf("a head is older than its tail")
				}
				if !ok && !h.exact {
					return fmt.Errorf("a tail is held without its head")
				}
			}
		}
	}
	if holdings != 0 {
		return fmt.Errorf("%d holdings are in no list", holdings)
	}
	if nodes != x.nodes || blocks != x.blocks || bytes != x.bytes || alive != x.alive {
		return fmt.Errorf("counts %d nodes, %d blocks, %d bytes, %d holders; has %d, %d, %d, %d",
			x.nodes, x.blocks, x.bytes, x.alive, nodes, blocks, bytes, alive)
	}
	if x.bytes > x.limit && nodes > 0 {
		return fmt.Errorf("%d bytes, limit %d", x.bytes, x.limit)
	}
	return nil
}
