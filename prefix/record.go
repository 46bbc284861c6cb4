package prefix

import "math"

// putSlack is room for what one insertion may need beside the new edge: nodes of a split, links, growing crowds.
const putSlack = 1024

// put notes that h holds the blocks of q from index from on, within the bounds. It takes at most *budget holdings
// away to make room, and reports whether it is done; if not it has to be called again.
func (x *Index) put(h *holder, q Sequence, from int, budget *int) bool {
	if !q.scope.Known() || len(q.hashes) == 0 {
		return true
	}
	if h.capacity > 0 {
		q = q.Head(int(min(h.capacity/int64(q.block), int64(len(q.hashes)))))
	}
	// A node array may be an eighth larger than asked for.
	most := (x.limit - x.base() - putSlack) / 9
	q = q.Head(int(max(0, min(most, int64(len(q.hashes))))))
	if from >= len(q.hashes) {
		x.lost++
		return true
	}
	missing, absent := x.missing(h, &q, from)
	if missing == 0 {
		return true
	}
	if h.capacity > 0 && !x.fit(h, h.capacity-int64(missing)*int64(q.block), budget) {
		return false
	}
	if !x.shrink(x.limit-9*int64(absent)-putSlack, budget) {
		return false
	}
	x.add(h, &q, from)
	all := math.MaxInt // a table may have grown: that must be made up for before anybody looks
	x.shrink(x.limit, &all)
	return true
}

// base is the memory of an index whose holders hold nothing.
func (x *Index) base() int64 { return emptyBytes + int64(x.alive)*holderBytes }

// missing counts the blocks of q from index from on that h does not hold, and those of q that are not in the tree.
// What h does hold of q becomes its most recently used, so that making room takes other blocks first.
func (x *Index) missing(h *holder, q *Sequence, from int) (missing, absent int) {
	var last *node
	var path [8]*holding // holdings of h on the way, as far as they fit
	depth := 0
	open := true // an approximate holder has nothing below the first node that it lacks
	pos := 0
	for pos < len(q.hashes) {
		n := x.table.child(last, q.hashes[pos], q)
		if n == nil {
			break
		}
		m := common(n.edge(), q.hashes[pos:])
		var e *holding
		if open {
			e = h.holding(n)
			open = e != nil || h.exact
		}
		if e == nil {
			missing += max(0, pos+m-max(pos, from))
		} else {
			if depth < len(path) {
				path[depth] = e
			}
			depth++
		}
		pos += m
		last = n
		if m < n.len() {
			break
		}
	}
	absent = len(q.hashes) - pos
	missing += len(q.hashes) - max(pos, from)
	if depth > len(path) {
		x.touchUp(h, last)
		return missing, absent
	}
	for depth > 0 { // as touchUp does, without searching again
		depth--
		x.touch(h, path[depth])
	}
	return missing, absent
}

// holding is h's holding of n, or nil; one that a clear under way has yet to take is none.
func (h *holder) holding(n *node) *holding {
	if e := n.find(h.slot); e != nil && e.stamp > h.cut {
		return e
	}
	return nil
}

// touchUp makes n and all above it that h holds the most recently used of h, the topmost last: so no node is
// ever older than one below it, and the oldest is always a tail.
func (x *Index) touchUp(h *holder, n *node) {
	for n != nil {
		if e := h.holding(n); e != nil {
			x.touch(h, e)
		}
		if n.up == nil {
			return
		}
		n = n.up.node
	}
}

// add enters q and makes h hold its blocks from index from on, all of which fits.
func (x *Index) add(h *holder, q *Sequence, from int) {
	var last *node
	for pos := 0; pos < len(q.hashes); {
		rest := q.hashes[pos:]
		n := x.table.child(last, rest[0], q)
		if n == nil {
			if pos < from {
				rest = rest[:from-pos] // a stretch that only leads to the blocks
			}
			n = x.leaf(last, q, rest)
		} else {
			m := common(n.edge(), rest)
			held := h.holding(n) != nil
			if pos < from && !held {
				m = min(m, from-pos)
			}
			if m < n.len() && (m < len(rest) || !held) {
				n, _ = x.split(n, m)
			}
		}
		if pos >= from {
			x.claim(h, n)
		}
		pos += n.len()
		last = n
	}
	x.touchUp(h, last)
	x.merge(last)
}

// claim makes h hold n, as its most recently used.
func (x *Index) claim(h *holder, n *node) {
	if e := n.find(h.slot); e != nil {
		x.touch(h, e)
		return
	}
	x.newest(h, x.join(n, h.slot))
	h.held += n.tokens()
}

// take makes h no longer hold the blocks of q from index from on, as far as it does.
func (x *Index) take(h *holder, q *Sequence, from int) {
	if !q.scope.Known() {
		return
	}
	var last *node
	for pos := 0; pos < len(q.hashes); {
		n := x.table.child(last, q.hashes[pos], q)
		if n == nil {
			return
		}
		m := common(n.edge(), q.hashes[pos:])
		skip := max(0, from-pos) // blocks of this node that stay
		e := n.find(h.slot)
		end := m < n.len() || pos+m == len(q.hashes) || n.down == nil
		switch {
		case e == nil || skip >= m:
		case m < n.len():
			// The blocks behind m stay too, so they need a node of their own.
			n, _ = x.split(n, m)
			if skip > 0 {
				_, n = x.split(n, skip)
			}
			x.drop(h, n.find(h.slot))
			x.merge(n)
		case skip > 0 && end:
			x.cutTail(h, e, skip)
		case skip > 0:
			_, n = x.split(n, skip)
			x.drop(h, n.find(h.slot))
		default:
			x.drop(h, e)
		}
		if end {
			return
		}
		pos += m
		last = n
	}
}
