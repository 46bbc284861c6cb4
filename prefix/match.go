package prefix

// tries bounds how often Match starts again because the tree changed under it.
const tries = 4

// Match returns, for every slot, how many leading tokens of q its holder holds: a whole number of blocks, 0 for
// free slots. The result has length Slots() and uses dst's memory if that suffices; then Match allocates nothing.
//
// Match takes no lock. A change that happens meanwhile may be seen or not. What is reported for a slot is never that
// of a holder removed before the slot was given to the one who has it when Match returns.
func (x *Index) Match(q Sequence, dst []int64) []int64 {
	slots := x.Slots()
	if cap(dst) < slots {
		dst = make([]int64, slots)
	}
	dst = dst[:slots]
	clear(dst)
	if len(q.hashes) == 0 || !q.scope.Known() {
		return dst
	}
	for range tries {
		reuse := x.reuse.Load()
		if x.walk(&q, dst) && reuse == x.reuse.Load() {
			return dst
		}
		clear(dst)
	}
	// The tree changes faster than a walk takes: no affinity is better than another holder's, or half of it.
	return dst
}

// walk follows q down the tree and reports false if it may have missed a part because of a merge.
func (x *Index) walk(q *Sequence, dst []int64) bool {
	size := int64(q.block)
	var last *node
	for pos := 0; pos < len(q.hashes); {
		n := x.table.lookup(q.hashes[pos], q)
		if n == nil {
			return last == nil || !last.stale.Load()
		}
		edge := n.edge()
		m := common(edge, q.hashes[pos:])
		if !n.mark(dst, int64(pos)*size, int64(pos+m)*size) || m < len(edge) {
			return true
		}
		pos += m
		last = n
	}
	return true
}

// mark raises the holders of n from base to reached where they held everything before, and reports whether there
// was one.
func (n *node) mark(dst []int64, base, reached int64) bool {
	any := false
	if w := n.sole.Load(); w != 0 && int(w) <= len(dst) && dst[w-1] == base {
		dst[w-1] = reached
		any = true
	}
	c := n.crowd.Load()
	if c == nil {
		return any
	}
	for i := range c.words {
		if w := uint(c.words[i].Load()) - 1; w < uint(len(dst)) && dst[w] == base {
			dst[w] = reached
			any = true
		}
	}
	return any
}
