package admission

// makeRoom displaces whom the newcomer may displace, into q.displaced; if even that makes no room, nobody.
func (q *Queue[T]) makeRoom(ask *Ask) bool {
	clear(q.displaced)
	q.displaced = q.displaced[:0]
	places, tokens := q.length+1-q.cfg.Max, int64(0)
	if q.cfg.MaxTokens > 0 {
		tokens = q.tokens + ask.Cost - q.cfg.MaxTokens
	}
	for rank := len(q.classes) - 1; rank > ask.Rank; rank-- {
		for w := q.classes[rank].waiters.tail; w != nil && (places > 0 || tokens > 0); w = w.links[inClass].prev {
			q.displaced = append(q.displaced, w)
			places--
			tokens -= w.ask.Cost
		}
	}

	// Longest-queue drop within the class, on paper: the flows' keys are put back before anybody leaves.
	lower := len(q.displaced)
	c := &q.classes[ask.Rank]
	own := c.flows[ask.Tenant]
	would := float64(ask.Cost)
	if own != nil {
		would = float64(own.held + ask.Cost)
	}
	would /= ask.Weight
	for places > 0 || tokens > 0 {
		f := c.longest(own)
		if f == nil || float64(f.held-f.planned)/f.weight <= would {
			break
		}
		if f.planned == 0 {
			f.youngest = f.waiters.tail
		}
		w := f.youngest
		f.youngest = w.links[inFlow].prev
		f.planned += w.ask.Cost
		f.placeHeld()
		q.displaced = append(q.displaced, w)
		places--
		tokens -= w.ask.Cost
	}
	for _, w := range q.displaced[lower:] {
		if f := w.sub.flow; f.planned != 0 {
			f.planned, f.youngest = 0, nil
			f.placeHeld()
		}
	}
	if places > 0 || tokens > 0 {
		clear(q.displaced)
		q.displaced = q.displaced[:0]
		return false
	}
	for _, w := range q.displaced {
		q.remove(w)
	}
	return true
}

// longest returns the flow, other than own, that holds most over its weight, or nil.
func (c *class[T]) longest(own *flow[T]) *flow[T] {
	var best *heapNode[float64, *flow[T]]
	for i := range min(len(c.held), 3) { // the root, or else the first of its children
		n := &c.held[i]
		if n.item != own && (best == nil || n.before(best)) {
			best = n
		}
	}
	if best == nil {
		return nil
	}
	return best.item
}
