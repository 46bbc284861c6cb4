package prefix

// batch is how many holdings are taken away under one hold of the lock, some tens of microseconds.
const batch = 256

// halveBlocks is the length from which eviction by bytes takes half a node instead of all of it.
const halveBlocks = 128

// drop takes the whole node of e away from its holder, and the node too if nothing needs it any more.
func (x *Index) drop(h *holder, e *holding) {
	n := e.node
	h.held -= n.tokens()
	x.unlink(e)
	x.leave(e)
	x.prune(n)
}

// cutTail takes the blocks from keep on, in [1, len), of e's node away from its holder.
func (x *Index) cutTail(h *holder, e *holding, keep int) {
	n := e.node
	if n.down == nil && n.holders() == 1 && e.at < 0 {
		h.held -= int64(n.len()-keep) * int64(n.block)
		x.truncate(n, keep)
		return
	}
	_, tail := x.split(n, keep)
	x.drop(h, tail.find(h.slot))
}

// fit evicts from h, least recently used and tail first, until it holds at most limit tokens. It takes at most
// *budget holdings and reports whether it is done.
func (x *Index) fit(h *holder, limit int64, budget *int) bool {
	for h.held > limit {
		if *budget <= 0 {
			return false
		}
		*budget--
		e := h.back()
		size := int64(e.node.block)
		want := (h.held - limit + size - 1) / size
		if have := int64(e.node.len()); want < have {
			x.evicted += want
			x.cutTail(h, e, int(have-want))
		} else {
			x.evicted += have
			x.drop(h, e)
		}
	}
	return true
}

// shrink evicts the least recently used of all holders until the index takes at most limit bytes. It takes at
// most *budget holdings and reports whether it is done; with nothing left to evict it is.
func (x *Index) shrink(limit int64, budget *int) bool {
	for x.bytes > limit {
		slot, second := -1, uint64(never)
		oldest := uint64(never)
		for i, stamp := range x.oldest {
			if stamp < oldest {
				slot, oldest, second = i, stamp, oldest
			} else if stamp < second {
				second = stamp
			}
		}
		if slot < 0 {
			return true
		}
		h := x.holders[slot]
		for x.bytes > limit && x.oldest[slot] <= second && x.oldest[slot] != never {
			if *budget <= 0 {
				return false
			}
			*budget--
			e := h.back()
			n := e.node
			if n.len() >= halveBlocks && n.down == nil && n.holders() == 1 && e.at < 0 {
				keep := n.len() / 3 // so that truncate copies the rest and frees the array
				x.evicted += int64(n.len() - keep)
				x.cutTail(h, e, keep)
			} else {
				x.evicted += int64(n.len())
				x.drop(h, e)
			}
		}
	}
	return true
}
