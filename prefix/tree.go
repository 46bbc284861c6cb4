package prefix

import "slices"

// newNode makes a node with its own copy of hashes, which is in no table and has no parent yet.
func (x *Index) newNode(scope Scope, block int32, hashes []uint64) *node {
	return x.adopt(scope, block, append([]uint64(nil), hashes...))
}

// adopt makes a node of hashes itself.
func (x *Index) adopt(scope Scope, block int32, hashes []uint64) *node {
	n := &node{scope: scope, block: block, hashes: hashes, first: hashes[0]}
	n.n.Store(uint32(len(hashes)))
	x.nodes++
	x.blocks += int64(len(hashes))
	x.bytes += nodeBytes + edgeBytes(hashes)
	return n
}

// discard takes n's own share out of the counts.
func (x *Index) discard(n *node) {
	x.nodes--
	x.blocks -= int64(n.len())
	x.bytes -= nodeBytes + edgeBytes(n.hashes)
}

// leaf hangs a new node with hashes under parent, which is nil at the start of a path.
func (x *Index) leaf(parent *node, q *Sequence, hashes []uint64) *node {
	n := x.newNode(q.scope, q.block, hashes)
	if parent != nil {
		if parent.down == nil {
			parent.down = &link{node: parent}
			x.bytes += linkBytes
		}
		parent.down.children++
		n.up = parent.down
	}
	x.bytes += x.table.insert(n)
	return n
}

// prune removes n if no holder and no child needs it, and then its parents likewise.
func (x *Index) prune(n *node) {
	for n.down == nil && n.holders() == 0 {
		x.bytes += x.table.remove(n)
		x.discard(n)
		up := n.up
		if up == nil {
			return
		}
		up.children--
		if up.children > 0 {
			return
		}
		n = up.node
		n.down = nil
		x.bytes -= linkBytes
	}
}

// split cuts n before its block at, in [1, len), and returns the two nodes that replace it. Every holder holds
// both. The tail is in the table before the head is, so that a reader who sees the head finds the tail.
func (x *Index) split(n *node, at int) (head, tail *node) {
	edge := n.edge()
	head = x.newNode(n.scope, n.block, edge[:at])
	tail = x.newNode(n.scope, n.block, edge[at:])
	head.up = n.up
	head.down = &link{node: head, children: 1}
	x.bytes += linkBytes
	tail.up = head.down
	if tail.down = n.down; tail.down != nil {
		tail.down.node = tail
	}
	if n.sole.Load() != 0 {
		head.own = holding{node: head, stamp: n.own.stamp, slot: n.own.slot, at: -1}
		swap(&n.own, &head.own)
		head.sole.Store(n.sole.Load())
		x.joinBehind(&head.own, tail)
	}
	if c := n.crowd.Load(); c != nil {
		// n keeps its crowd for the readers on it, so head needs a list of its own.
		x.bytes -= sizeOf(c)
		d := newCrowd(c.live + 1)
		x.bytes += sizeOf(d)
		for _, e := range c.holds[:c.used] {
			if e != nil {
				e.node = head
				d.put(e)
				x.joinBehind(e, tail)
			}
		}
		head.crowd.Store(d)
	}
	x.bytes += x.table.insert(tail)
	x.table.replace(n, head)
	x.discard(n)
	return head, tail
}

// joinBehind adds the holder of e to tail, the lower part of what e's node was, just behind e in recency.
func (x *Index) joinBehind(e *holding, tail *node) {
	f := x.join(tail, e.slot)
	f.stamp = e.stamp
	insert(e, f)
}

// truncate shortens n, which has one holder at most and no child, to its first keep blocks.
func (x *Index) truncate(n *node, keep int) {
	x.blocks -= int64(n.len() - keep)
	n.n.Store(uint32(keep))
	if cap(n.hashes) < 2*keep+8 {
		return
	}
	// Much of the array is unused now: a smaller copy gives the memory back.
	m := x.newNode(n.scope, n.block, n.edge())
	m.up = n.up
	x.move(n, m)
	x.table.replace(n, m)
	x.discard(n)
}

// move makes m, a new node, inherit the single holder of n, if it has one.
func (x *Index) move(n, m *node) {
	if n.sole.Load() == 0 {
		return
	}
	m.own = holding{node: m, stamp: n.own.stamp, slot: n.own.slot, at: -1}
	swap(&n.own, &m.own)
	m.sole.Store(n.sole.Load())
}

// merge joins n with its parent if n is the only child, the two have the same single holder, or none, and the
// result is short. It is what keeps a sequence that grows block by block from becoming a chain of tiny nodes.
func (x *Index) merge(n *node) {
	if n.up == nil || n.up.children != 1 {
		return
	}
	p := n.up.node
	if p.len()+n.len() > x.merged || p.sole.Load() != n.sole.Load() ||
		p.crowd.Load() != nil || n.crowd.Load() != nil {
		return
	}
	if n.sole.Load() != 0 {
		// While a holder is being cleared, what it has used since must not pull the rest back in.
		if cut := x.holders[n.own.slot].cut; (p.own.stamp > cut) != (n.own.stamp > cut) {
			return
		}
	}
	hashes := slices.Grow([]uint64(nil), p.len()+n.len())
	hashes = append(append(hashes, p.edge()...), n.edge()...)
	m := x.adopt(p.scope, p.block, hashes)
	m.up = p.up
	if m.down = n.down; m.down != nil {
		m.down.node = m
	}
	x.move(p, m)
	if n.sole.Load() != 0 {
		x.unlink(&n.own)
		x.holdings--
	}
	// The order matters to readers: one that stands on p and misses n sees that p is stale.
	x.table.replace(p, m)
	p.stale.Store(true)
	x.bytes += x.table.remove(n)
	x.bytes -= linkBytes
	x.discard(p)
	x.discard(n)
}
