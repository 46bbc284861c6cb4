package admission

// Begin starts a pass over the waiters, in the order in which they should be offered capacity, and ends the one before.
func (q *Queue[T]) Begin(now int64) {
	q.advance(now)
	q.end()
	q.walking = true
	q.rank = 0
}

// Next returns the next waiter to be offered capacity, or nil at the end of the pass. The caller either grants it
// (Granted), or takes it out (Remove), or passes it over by calling Next again, after SkipGroup if none of its group
// fits either. Nobody is offered twice in a pass. Next costs O(log n).
func (q *Queue[T]) Next() *Waiter[T] {
	if !q.walking {
		return nil
	}
	if w := q.current; w != nil {
		q.current = nil
		q.step(w.sub)
	}
	for ; q.rank < len(q.classes); q.rank++ {
		if w := q.agedTurn(); w != nil {
			return w
		}
		c := &q.classes[q.rank]
		if len(c.groups) > 0 {
			w := c.groups[0].item.subs[0].item.next
			w.offered = q.pass
			q.current = w
			return w
		}
	}
	q.end()
	return nil
}

// SkipGroup passes over every waiter of the group, in all classes, for the rest of the pass. O(log n), however many
// they are.
func (q *Queue[T]) SkipGroup(key uint64) {
	if !q.walking {
		return
	}
	for rank := range q.classes {
		if g := q.classes[rank].byGroup[key]; g != nil && g.skipped != q.pass {
			g.skipped = q.pass
			q.marked = append(q.marked, g)
			q.placeGroup(g)
			q.placeAge(g)
		}
	}
}

// agedTurn offers the next aged waiter if it is the turn of one: the oldest first, and of each class and group only the
// oldest. It does not while a waiter of a higher class, not yet reached in this pass, could miss its latest start by
// losing one grant; the turn stays due.
func (q *Queue[T]) agedTurn() *Waiter[T] {
	for q.sinceAged >= q.cfg.AgedEvery-1 && len(q.byAge) > 0 {
		g := q.byAge[0].item
		w := g.waiters.head
		if !q.isAged(w, q.now) || q.urgentAbove(g.class.rank) {
			return nil
		}
		g.passed = q.pass // remove lifts it
		q.marked = append(q.marked, g)
		q.placeAge(g)
		if w.offered != q.pass {
			w.offered, w.turn = q.pass, q.pass
			q.current = w
			return w
		}
	}
	return nil
}

func (q *Queue[T]) urgentAbove(rank int) bool {
	gap := unknownGap
	if q.gapCount > 0 {
		gap = q.gapSum / int64(q.gapCount)
	}
	before := addTime(addTime(q.now, gap), gap)
	for r := q.rank; r < rank; r++ {
		if latest := q.classes[r].latest; len(latest) > 0 && latest[0].key < before {
			return true
		}
	}
	return false
}

func (q *Queue[T]) isAged(w *Waiter[T], now int64) bool {
	return now >= addTime(w.enqueued, int64(q.cfg.AgeAfter))
}

// oldestAged returns the oldest aged waiter, whether or not the pass still offers it.
func (q *Queue[T]) oldestAged(now int64) *Waiter[T] {
	var oldest *Waiter[T]
	for rank := 1; rank < len(q.classes); rank++ {
		if w := q.classes[rank].waiters.head; w != nil && (oldest == nil || w.seq < oldest.seq) {
			oldest = w
		}
	}
	if oldest == nil || !q.isAged(oldest, now) {
		return nil
	}
	return oldest
}

// step moves the subqueue on from the waiter just offered to its next, for this pass. What was offered out of order was
// the oldest of its group and not offered before, and so was next in its subqueue too.
func (q *Queue[T]) step(s *subqueue[T]) {
	s.next = s.next.links[inSub].next
	q.moved = append(q.moved, s)
	q.placeSub(s)
}

// end ends the pass: everybody is on offer again. Subqueues and groups that were emptied meanwhile, and may serve
// another purpose by now, come to no harm: what is done here is right for any of them.
func (q *Queue[T]) end() {
	if !q.walking {
		return
	}
	q.walking, q.current = false, nil
	q.pass++
	for i, s := range q.moved {
		q.moved[i] = nil
		if s.flow != nil {
			s.next = s.waiters.head
			q.placeSub(s)
		}
	}
	for i, g := range q.marked {
		q.marked[i] = nil
		if g.class != nil {
			q.placeGroup(g)
			q.placeAge(g)
		}
	}
	q.moved, q.marked = q.moved[:0], q.marked[:0]
	if max(cap(q.moved), cap(q.marked)) > spares && q.length <= spares {
		q.moved, q.marked = nil, nil
	}
}
