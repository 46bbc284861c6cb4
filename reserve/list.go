package reserve

// node is the link of an element of type T in a list; the element owns it and own points back.
type node[T any] struct {
	key        int64
	prev, next *node[T]
	own        *T
}

// list is an intrusive list in ascending order of key; equal keys stay in the order of insertion. The zero value is
// empty. Not safe for concurrent use.
type list[T any] struct {
	head, tail *node[T]
	// last is where the newest insertion went, so that a run of out-of-order keys (a clock set back) costs one long
	// walk and not one for each insertion.
	last *node[T]
	n    int
}

// insert costs the number of elements between the key's place and the nearer of the tail and the last insertion, in
// the common case none.
func (l *list[T]) insert(e *node[T], key int64) {
	e.key = key
	p := l.tail
	if p != nil && p.key > key {
		p = l.last
		for p != nil && p.key > key {
			p = p.prev
		}
		for p != nil && p.next.key <= key { // the tail's key is greater: next exists
			p = p.next
		}
	}
	e.prev = p
	if p == nil {
		e.next, l.head = l.head, e
	} else {
		e.next, p.next = p.next, e
	}
	if e.next == nil {
		l.tail = e
	} else {
		e.next.prev = e
	}
	l.last = e
	l.n++
}

func (l *list[T]) remove(e *node[T]) {
	if e.prev == nil {
		l.head = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		l.tail = e.prev
	} else {
		e.next.prev = e.prev
	}
	if l.last == e {
		if l.last = e.prev; l.last == nil {
			l.last = e.next
		}
	}
	e.prev, e.next = nil, nil
	l.n--
}
