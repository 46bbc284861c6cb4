package admission

const (
	// spareHeap is the greatest capacity of a heap that is kept with a spare group.
	spareHeap = 64
	// spares is the number of records of a kind that are kept for use, and the capacity beyond which the lists of an empty class are
	// not: what a storm has needed is given back.
	spares = 1024
)

// class is one priority class: its waiters by arrival, by tenant and by group.
type class[T any] struct {
	rank    int
	length  int
	tokens  int64
	virtual float64 // virtual start of the last grant in order, in tokens over weight
	waiters waitList[T]

	flows   map[uint64]*flow[T] // those that wait, and those remembered
	byGroup map[uint64]*group[T]
	subs    map[subKey]*subqueue[T]

	groups minHeap[float64, *group[T]] // those on offer in this pass, by their first waiter
	latest minHeap[int64, *Waiter[T]]  // waiters with a latest start
	held   minHeap[float64, *flow[T]]  // flows that wait, by minus tokens held over weight
	idle   minHeap[float64, *flow[T]]  // flows remembered, by virtual start
}

// flow is one tenant in one class. It is remembered without waiters while its start is ahead of the class: that is the
// part of its last request it has not paid off yet.
type flow[T any] struct {
	class   *class[T]
	tenant  uint64
	weight  float64 // of the newest waiter
	start   float64 // virtual start of the next waiter: where the last one ended, or the class's time on arrival
	held    int64   // tokens of its waiters
	waiters waitList[T]
	subs    *subqueue[T] // the first of its subqueues

	heldPlace, idlePlace int

	// While room is planned: what would be displaced of the flow, from the youngest on.
	planned  int64
	youngest *Waiter[T]
}

// group is the waiters of one class that are alike.
type group[T any] struct {
	class   *class[T]
	key     uint64
	waiters waitList[T]
	subs    minHeap[float64, *subqueue[T]] // those on offer in this pass, by virtual start, then arrival

	place, agePlace int
	skipped         uint64 // the pass that yields no more of the group
	passed          uint64 // the pass that offers no more of the group out of order
}

type subKey struct{ tenant, group uint64 }

// subqueue is the waiters of one tenant and group in one class: what the order chooses from is its first waiter.
type subqueue[T any] struct {
	flow       *flow[T]
	group      *group[T]
	waiters    waitList[T]
	next       *Waiter[T] // the next to be offered in this pass; nil: all were
	place      int
	prev, succ *subqueue[T] // neighbours among the subqueues of the flow
}

func (q *Queue[T]) insert(w *Waiter[T]) {
	c := &q.classes[w.ask.Rank]
	f := c.flows[w.ask.Tenant]
	if f == nil {
		f = take(&q.freeFlows)
		*f = flow[T]{class: c, tenant: w.ask.Tenant, start: c.virtual, waiters: waitList[T]{kind: inFlow}}
		c.flows[f.tenant] = f
	}
	if f.waiters.head == nil {
		c.idle.remove(&f.idlePlace)
		f.start = max(f.start, c.virtual)
	}
	g := c.byGroup[w.ask.Group]
	if g == nil {
		g = take(&q.freeGroups)
		*g = group[T]{class: c, key: w.ask.Group, waiters: waitList[T]{kind: inGroup}, subs: g.subs}
		c.byGroup[g.key] = g
	}
	key := subKey{f.tenant, g.key}
	s := c.subs[key]
	if s == nil {
		s = take(&q.freeSubs)
		*s = subqueue[T]{flow: f, group: g, waiters: waitList[T]{kind: inSub}, succ: f.subs}
		if f.subs != nil {
			f.subs.prev = s
		}
		f.subs = s
		c.subs[key] = s
	}

	w.sub = s
	c.waiters.push(w)
	f.waiters.push(w)
	g.waiters.push(w)
	s.waiters.push(w)
	c.length++
	c.tokens += w.ask.Cost
	f.weight = w.ask.Weight
	f.hold(w.ask.Cost)
	if w.ask.Latest != 0 {
		c.latest.set(w.ask.Latest, w.seq, w, &w.latestPlace)
	}
	if s.next == nil {
		s.next = w
		q.placeSub(s)
	}
	q.placeAge(g)
}

func (q *Queue[T]) remove(w *Waiter[T]) {
	s := w.sub
	f, g, c := s.flow, s.group, s.flow.class
	if s.next == w {
		s.next = w.links[inSub].next
	}
	if q.current == w {
		q.current = nil
		if w.turn == q.pass {
			g.passed = 0 // nobody of the group has declined: the next turn of this pass may be the group's again
		}
	}
	c.waiters.remove(w)
	f.waiters.remove(w)
	g.waiters.remove(w)
	s.waiters.remove(w)
	c.latest.remove(&w.latestPlace)
	q.length--
	q.tokens -= w.ask.Cost
	c.length--
	c.tokens -= w.ask.Cost
	f.hold(-w.ask.Cost)
	w.owner, w.sub = nil, nil

	q.placeSub(s)
	q.placeAge(g)
	if s.waiters.head == nil {
		q.dropSub(s)
	}
	if g.waiters.head == nil {
		delete(c.byGroup, g.key)
		g.class = nil
		if cap(g.subs) > spareHeap {
			g.subs = nil
		}
		q.freeGroups = keep(q.freeGroups, g)
	}
	if f.waiters.head == nil {
		c.held.remove(&f.heldPlace)
		c.idle.set(f.start, f.tenant, f, &f.idlePlace)
		q.forget(c)
	}
	if c.length == 0 {
		q.restart(c)
	}
	if q.length == 0 {
		q.granting = false
	}
}

func (q *Queue[T]) dropSub(s *subqueue[T]) {
	f := s.flow
	if s.prev == nil {
		f.subs = s.succ
	} else {
		s.prev.succ = s.succ
	}
	if s.succ != nil {
		s.succ.prev = s.prev
	}
	delete(f.class.subs, subKey{f.tenant, s.group.key})
	*s = subqueue[T]{}
	q.freeSubs = keep(q.freeSubs, s)
}

// charge moves the tenant's next virtual start behind w. The class's time follows a grant in order only: the turn of an
// aged waiter must not void what the tenants before it have coming.
func (q *Queue[T]) charge(w *Waiter[T], inOrder bool) {
	f := w.sub.flow
	c := f.class
	// A tenant that was passed over because nothing of it fitted stays first, and saves up no credit by it.
	start := max(f.start, c.virtual)
	f.start = start + float64(w.ask.Cost)/w.ask.Weight
	if inOrder {
		c.virtual = start
		q.forget(c)
	}
	for s := f.subs; s != nil; s = s.succ {
		if s != w.sub { // remove places that one
			q.placeSub(s)
		}
	}
}

// forget drops the idle flows whose past no longer matters, and those nearest to that beyond the bound.
func (q *Queue[T]) forget(c *class[T]) {
	for len(c.idle) > 0 && (c.idle[0].key <= c.virtual || len(c.idle) > idleFlows) {
		q.forgetFirst(c)
	}
}

// restart forgets the past of a class in which nobody waits: there is nobody to be fair to.
func (q *Queue[T]) restart(c *class[T]) {
	for len(c.idle) > 0 {
		q.forgetFirst(c)
	}
	c.virtual = 0
	if max(cap(c.groups), cap(c.held), cap(c.latest)) > spares {
		c.flows, c.byGroup, c.subs = make(map[uint64]*flow[T]), make(map[uint64]*group[T]), make(map[subKey]*subqueue[T])
		c.groups, c.held, c.latest = nil, nil, nil
	}
	if q.length == 0 && cap(q.byAge) > spares {
		q.byAge = nil
	}
}

func (q *Queue[T]) forgetFirst(c *class[T]) {
	f := c.idle[0].item
	c.idle.remove(&f.idlePlace)
	delete(c.flows, f.tenant)
	*f = flow[T]{}
	q.freeFlows = keep(q.freeFlows, f)
}

func (f *flow[T]) hold(tokens int64) {
	f.held += tokens
	f.placeHeld()
}

func (f *flow[T]) placeHeld() {
	f.class.held.set(-float64(f.held-f.planned)/f.weight, f.tenant, f, &f.heldPlace)
}

func (q *Queue[T]) placeSub(s *subqueue[T]) {
	g := s.group
	if s.next == nil {
		g.subs.remove(&s.place)
	} else {
		g.subs.set(s.flow.start, s.next.seq, s, &s.place)
	}
	q.placeGroup(g)
}

func (q *Queue[T]) placeGroup(g *group[T]) {
	if len(g.subs) == 0 || g.skipped == q.pass {
		g.class.groups.remove(&g.place)
		return
	}
	g.class.groups.set(g.subs[0].key, g.subs[0].tie, g, &g.place)
}

func (q *Queue[T]) placeAge(g *group[T]) {
	if g.class.rank == 0 || g.waiters.head == nil || g.skipped == q.pass || g.passed == q.pass {
		q.byAge.remove(&g.agePlace)
		return
	}
	q.byAge.set(g.waiters.head.seq, 0, g, &g.agePlace)
}

// keep adds a spare to the list, unless there are enough.
func keep[E any](spare []*E, e *E) []*E {
	if len(spare) >= spares {
		return spare
	}
	return append(spare, e)
}

// take returns a spare of the list, or a new one.
func take[E any](spare *[]*E) *E {
	last := len(*spare) - 1
	if last < 0 {
		return new(E)
	}
	e := (*spare)[last]
	(*spare)[last] = nil
	*spare = (*spare)[:last]
	return e
}
