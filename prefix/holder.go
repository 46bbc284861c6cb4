package prefix

import (
	"math"
	"unsafe"
)

// Holder is a handle on one endpoint incarnation in an Index. It stays bound to that incarnation: once it has
// been removed, every call with it does nothing, even if its slot has been given to another. The zero Holder is
// no holder.
//
// Holder is a comparable value; any number of goroutines may use one.
type Holder struct{ p *holder }

// Slot is the holder's position in what Match returns: a small number, given again to a later holder after
// Remove has returned. It is -1 for the zero Holder.
func (h Holder) Slot() int {
	if h.p == nil {
		return -1
	}
	return int(h.p.slot)
}

// holder is guarded by Index.mu, except index and slot, which never change.
type holder struct {
	index    *Index
	slot     int32
	dead     bool
	exact    bool
	capacity int64   // tokens; 0: unbounded
	held     int64   // tokens
	cut      uint64  // holdings with a stamp up to this one are being cleared and count as gone for writers
	root     holding // head of the ring of holdings, root.next the newest
}

// holderBytes includes the holder's place in the slices by slot.
const holderBytes = (int64(unsafe.Sizeof(holder{}))+15)/16*16 + 16

// never is the oldest stamp of a holder that holds nothing.
const never = math.MaxUint64

// newest puts e, which is in no list, before all others of h and stamps it.
func (x *Index) newest(h *holder, e *holding) {
	x.clock++
	e.stamp = x.clock
	if h.root.prev == &h.root {
		x.oldest[h.slot] = e.stamp
	}
	insert(&h.root, e)
}

// touch makes e the most recently used of h.
func (x *Index) touch(h *holder, e *holding) {
	if h.root.next == e && h.root.prev != e {
		x.clock++
		e.stamp = x.clock
		return
	}
	x.unlink(e)
	x.newest(h, e)
}

// insert puts f right behind e.
func insert(e, f *holding) {
	f.prev, f.next = e, e.next
	e.next.prev = f
	e.next = f
}

// unlink takes e out of its list. The list of an alive or dying holder has its root, so e has neighbours.
func (x *Index) unlink(e *holding) {
	h := x.holders[e.slot]
	e.prev.next, e.next.prev = e.next, e.prev
	if e.next == &h.root {
		x.refreshOldest(h)
	}
	e.prev, e.next = nil, nil
}

func (x *Index) refreshOldest(h *holder) {
	if h.root.prev == &h.root {
		x.oldest[h.slot] = never
	} else {
		x.oldest[h.slot] = h.root.prev.stamp
	}
}

// swap puts f in the place of e.
func swap(e, f *holding) {
	f.prev, f.next = e.prev, e.next
	e.prev.next, e.next.prev = f, f
	e.prev, e.next = nil, nil
}

// back is the least recently used holding of h, or nil. As a path is always touched from its tail to its head, no
// node below it is held by h.
func (h *holder) back() *holding {
	if h.root.prev == &h.root {
		return nil
	}
	return h.root.prev
}
