package admission

import "cmp"

// minHeap is a binary heap of elements that know their place in it, which is their index + 1, and 0 while they are not
// in it. Keys stand beside the elements, so that comparing follows no pointer.
type minHeap[K cmp.Ordered, E any] []heapNode[K, E]

type heapNode[K cmp.Ordered, E any] struct {
	key   K
	tie   uint64
	item  E
	place *int
}

func (n *heapNode[K, E]) before(m *heapNode[K, E]) bool {
	return n.key < m.key || n.key == m.key && n.tie < m.tie
}

// set puts the element in, or moves it to its new key.
func (h *minHeap[K, E]) set(key K, tie uint64, item E, place *int) {
	if *place == 0 {
		*h = append(*h, heapNode[K, E]{})
		h.up(len(*h)-1, heapNode[K, E]{key, tie, item, place})
		return
	}
	i := *place - 1
	old := &(*h)[i]
	if old.key == key && old.tie == tie {
		return
	}
	h.fix(i, heapNode[K, E]{key, tie, item, place})
}

// remove takes the element out, if it is in.
func (h *minHeap[K, E]) remove(place *int) {
	if *place == 0 {
		return
	}
	i, last := *place-1, len(*h)-1
	*place = 0
	moved := (*h)[last]
	(*h)[last] = heapNode[K, E]{}
	*h = (*h)[:last]
	if i < last {
		h.fix(i, moved)
	}
}

func (h *minHeap[K, E]) fix(i int, n heapNode[K, E]) {
	if i > 0 && n.before(&(*h)[(i-1)/2]) {
		h.up(i, n)
	} else {
		h.down(i, n)
	}
}

// up finds the place of n at or above the hole i.
func (h *minHeap[K, E]) up(i int, n heapNode[K, E]) {
	s := *h
	for i > 0 {
		parent := (i - 1) / 2
		if !n.before(&s[parent]) {
			break
		}
		s[i] = s[parent]
		*s[i].place = i + 1
		i = parent
	}
	s[i] = n
	*n.place = i + 1
}

// down finds the place of n at or below the hole i.
func (h *minHeap[K, E]) down(i int, n heapNode[K, E]) {
	s := *h
	for {
		child := 2*i + 1
		if child >= len(s) {
			break
		}
		if child+1 < len(s) && s[child+1].before(&s[child]) {
			child++
		}
		if !s[child].before(&n) {
			break
		}
		s[i] = s[child]
		*s[i].place = i + 1
		i = child
	}
	s[i] = n
	*n.place = i + 1
}

// Every waiter stands in one list of each kind, in order of arrival.
const (
	inClass = iota
	inFlow  // of a tenant in a class
	inGroup // of a group in a class, over all tenants
	inSub   // of a tenant and a group in a class
	listKinds
)

type links[T any] struct{ prev, next *Waiter[T] }

type waitList[T any] struct {
	head, tail *Waiter[T]
	kind       int
}

func (l *waitList[T]) push(w *Waiter[T]) {
	w.links[l.kind] = links[T]{prev: l.tail}
	if l.tail == nil {
		l.head = w
	} else {
		l.tail.links[l.kind].next = w
	}
	l.tail = w
}

func (l *waitList[T]) remove(w *Waiter[T]) {
	at := &w.links[l.kind]
	if at.prev == nil {
		l.head = at.next
	} else {
		at.prev.links[l.kind].next = at.next
	}
	if at.next == nil {
		l.tail = at.prev
	} else {
		at.next.links[l.kind].prev = at.prev
	}
	*at = links[T]{}
}
