package prefix

import "runtime"

// EventKind says what an engine reports about its cache.
type EventKind uint8

// Kinds of events. The zero kind is none of them, and an event of an unknown kind does nothing.
const (
	Stored  EventKind = iota + 1 // the blocks are in the cache now
	Removed                      // the blocks are gone, and nothing else
	Cleared                      // all blocks are gone
)

// String names the kind.
func (k EventKind) String() string {
	switch k {
	case Stored:
		return "stored"
	case Removed:
		return "removed"
	case Cleared:
		return "cleared"
	}
	return "unknown"
}

// Event is one change of an engine's cache: the blocks of Prefix from index From on (0, or less: all of them)
// were stored or removed. The blocks before From only say where these belong. Cleared needs neither.
//
// Event is a plain value; any number of goroutines may read one.
type Event struct {
	// Kind is what happened, to the blocks of Prefix from index From on.
	Kind   EventKind
	Prefix Sequence
	From   int
}

// Apply takes over what the engine of h reports. The first event puts h in exact mode: what had been approximated
// is dropped, and only events count from then on. Events of one holder must be applied in order, by one
// goroutine at a time; after a gap in them call Clear.
func (x *Index) Apply(h Holder, e Event) {
	if e.Kind < Stored || e.Kind > Cleared {
		return
	}
	x.mu.Lock()
	p := x.live(h)
	cut, all := x.clock, e.Kind == Cleared
	if p != nil && !p.exact {
		p.exact = true
		all = true
	}
	if p != nil && all {
		p.cut = cut
	}
	x.mu.Unlock()
	if p == nil {
		return
	}
	if all {
		x.drain(p, cut)
	}
	from := max(e.From, 0)
	if e.Kind == Cleared || from >= e.Prefix.Blocks() {
		return
	}
	for !x.apply(p, &e, from) {
		runtime.Gosched()
	}
}

func (x *Index) apply(p *holder, e *Event, from int) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p.dead {
		return true
	}
	if e.Kind == Stored {
		budget := batch
		return x.put(p, e.Prefix, from, &budget)
	}
	x.take(p, &e.Prefix, from)
	return true
}
