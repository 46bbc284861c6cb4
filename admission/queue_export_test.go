package admission

import (
	"cmp"
	"fmt"
)

// IdleFlows is the bound on remembered tenants per class.
const IdleFlows = idleFlows

// Remembered returns the number of tenants of the class that the queue knows.
func (q *Queue[T]) Remembered(rank int) int { return len(q.classes[rank].flows) }

// Check reports the first internal contradiction.
func (q *Queue[T]) Check() error {
	length, tokens, aged := 0, int64(0), 0
	for rank := range q.classes {
		c := &q.classes[rank]
		n, sum, subs, late := 0, int64(0), 0, 0
		for w := c.waiters.head; w != nil; w = w.links[inClass].next {
			n++
			sum += w.ask.Cost
			if w.latestPlace > 0 {
				late++
			}
			if w.owner != q || w.sub.flow.class != c || w.sub.group.class != c {
				return fmt.Errorf("waiter %d of class %d is elsewhere", w.seq, rank)
			}
		}
		if n != c.length || sum != c.tokens || late != len(c.latest) {
			return fmt.Errorf("class %d counts %d of %d tokens, holds %d of %d", rank, c.length, c.tokens, n, sum)
		}
		active := 0
		for _, f := range c.flows {
			held := int64(0)
			for w := f.waiters.head; w != nil; w = w.links[inFlow].next {
				held += w.ask.Cost
			}
			if held != f.held || f.planned != 0 || (held > 0) != (f.heldPlace > 0) || (held > 0) != (f.idlePlace == 0) {
				return fmt.Errorf("tenant %d of class %d holds %d, says %d", f.tenant, rank, held, f.held)
			}
			if held > 0 {
				active++
				if c.held[f.heldPlace-1].key != -float64(held)/f.weight {
					return fmt.Errorf("tenant %d of class %d is not where its holding belongs", f.tenant, rank)
				}
			}
			for s := f.subs; s != nil; s = s.succ {
				subs++
				if s.flow != f || s.waiters.head == nil || s.place == 0 && s.next != nil {
					return fmt.Errorf("subqueue of tenant %d of class %d is empty or not on offer", f.tenant, rank)
				}
				if s.place > 0 && (s.group.subs[s.place-1].key != f.start || s.group.subs[s.place-1].tie != s.next.seq) {
					return fmt.Errorf("subqueue of tenant %d of class %d is not where its start belongs", f.tenant, rank)
				}
			}
		}
		if active != len(c.held) || len(c.flows) != len(c.held)+len(c.idle) || subs != len(c.subs) {
			return fmt.Errorf("class %d has %d flows: %d wait, %d are idle; %d subqueues of %d", rank,
				len(c.flows), len(c.held), len(c.idle), subs, len(c.subs))
		}
		for _, g := range c.byGroup {
			if g.waiters.head == nil {
				return fmt.Errorf("group %d of class %d is empty", g.key, rank)
			}
			if rank > 0 && (g.agePlace > 0) == (g.skipped == q.pass || g.passed == q.pass) {
				return fmt.Errorf("group %d of class %d is not where its age belongs", g.key, rank)
			}
			if (g.place > 0) != (len(g.subs) > 0 && g.skipped != q.pass) || g.place > 0 && c.groups[g.place-1].key != g.subs[0].key {
				return fmt.Errorf("group %d of class %d is not where its first start belongs", g.key, rank)
			}
			if g.agePlace > 0 {
				aged++
			}
			if err := checkHeap(g.subs); err != nil {
				return err
			}
		}
		if err := cmp.Or(checkHeap(c.groups), checkHeap(c.latest), checkHeap(c.held), checkHeap(c.idle)); err != nil {
			return err
		}
		length += n
		tokens += sum
	}
	if length != q.length || tokens != q.tokens || aged != len(q.byAge) {
		return fmt.Errorf("queue counts %d of %d tokens, holds %d of %d", q.length, q.tokens, length, tokens)
	}
	return checkHeap(q.byAge)
}

func checkHeap[K cmp.Ordered, E any](h minHeap[K, E]) error {
	for i := range h {
		if *h[i].place != i+1 {
			return fmt.Errorf("heap element %d believes to be at %d", i, *h[i].place-1)
		}
		if i > 0 && h[i].before(&h[(i-1)/2]) {
			return fmt.Errorf("heap element %d is before its parent", i)
		}
	}
	return nil
}
