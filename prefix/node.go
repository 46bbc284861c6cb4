package prefix

import (
	"slices"
	"sync/atomic"
	"unsafe"
)

// node is an edge of the radix tree with the point it leads to. A holder holds all blocks of a node or none:
// where they differ the node is split. That makes a holding one word, and a hole in what an engine holds just a
// node without that holder.
//
// The first 64 bytes are what readers touch; the rest belongs to writers, who hold Index.mu.
type node struct {
	scope  Scope
	hashes []uint64              // never changes; the blocks are the first n
	n      atomic.Uint32         // blocks, at least 1; only ever shrinks
	block  int32                 // tokens per block
	sole   atomic.Uint32         // slot+1 of the holder that uses own, or 0
	stale  atomic.Bool           // merged into another node: a reader that ends here must look again
	crowd  atomic.Pointer[crowd] // further holders

	first uint64 // = hashes[0]
	up    *link  // to the parent; nil at the start of a path
	down  *link  // shared by the children; nil without any
	own   holding
}

// link stands for a parent in all its children, so that a split need not visit them.
type link struct {
	node     *node
	children int
}

// holding is one holder at one node, a member of the holder's recency list.
type holding struct {
	prev, next *holding
	node       *node
	stamp      uint64 // Index.clock at the last use; the list is sorted by it, newest first
	slot       int32
	at         int32 // index in crowd; -1: own
}

// crowd lists the holders of a node beyond its own one. Readers scan words, in which 0 is an empty place.
type crowd struct {
	words []atomic.Uint32 // slot+1
	holds []*holding
	live  int // places in use
	used  int // places ever used; behind them all is empty
}

const (
	nodeBytes    = int64(unsafe.Sizeof(node{}))
	linkBytes    = int64(unsafe.Sizeof(link{}))
	holdingBytes = 48 // 40, in the allocator's class of 48
	crowdBytes   = int64(unsafe.Sizeof(crowd{}))
	placeBytes   = 12
)

func edgeBytes(hashes []uint64) int64 { return 8 * int64(cap(hashes)) }

func (n *node) len() int { return int(n.n.Load()) }

// edge is the node's blocks.
func (n *node) edge() []uint64 { return n.hashes[:n.n.Load()] }

func (n *node) tokens() int64 { return int64(n.n.Load()) * int64(n.block) }

// common is the number of leading blocks that edge and hashes share, given that they share the first. Chained
// hashes agree up to one point and never again, so a binary search finds it.
func common(edge, hashes []uint64) int {
	m := min(len(edge), len(hashes))
	if edge[m-1] == hashes[m-1] {
		return m
	}
	lo, hi := 0, m-1 // equal at lo, different at hi
	for hi-lo > 1 {
		mid := int(uint(lo+hi) / 2)
		if edge[mid] == hashes[mid] {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}

// holders is the number of holders.
func (n *node) holders() int {
	k := 0
	if n.sole.Load() != 0 {
		k = 1
	}
	if c := n.crowd.Load(); c != nil {
		k += c.live
	}
	return k
}

// find gives the holding of the holder in slot, or nil.
func (n *node) find(slot int32) *holding {
	word := uint32(slot) + 1
	if n.sole.Load() == word {
		return &n.own
	}
	if c := n.crowd.Load(); c != nil {
		words := c.words[:c.used]
		for i := range words {
			if words[i].Load() == word {
				return c.holds[i]
			}
		}
	}
	return nil
}

// join adds a holder that n does not have and returns its holding, not yet in a recency list.
func (x *Index) join(n *node, slot int32) *holding {
	x.holdings++
	if n.sole.Load() == 0 {
		n.own = holding{node: n, slot: slot, at: -1}
		n.sole.Store(uint32(slot) + 1)
		return &n.own
	}
	c := n.crowd.Load()
	if c == nil || c.used == len(c.words) {
		c = x.resize(n, c, 1)
	}
	e := &holding{node: n, slot: slot, at: int32(c.used)}
	x.bytes += holdingBytes
	c.holds[c.used] = e
	c.words[c.used].Store(uint32(slot) + 1)
	c.used++
	c.live++
	return e
}

// leave takes e's holder off e's node. The node is left standing, even if nothing needs it any more.
func (x *Index) leave(e *holding) {
	x.holdings--
	n := e.node
	if e.at < 0 {
		n.sole.Store(0)
		n.own = holding{}
		return
	}
	x.bytes -= holdingBytes
	c := n.crowd.Load()
	c.words[e.at].Store(0)
	c.holds[e.at] = nil
	c.live--
	if c.live == 0 {
		n.crowd.Store(nil)
		x.bytes -= sizeOf(c)
	} else if c.live*4 < len(c.words) && len(c.words) > 4 {
		x.resize(n, c, 0)
	}
}

// resize publishes a new crowd with the live places of c and room for extra more. Readers of the old one are not
// disturbed.
func (x *Index) resize(n *node, c *crowd, extra int) *crowd {
	live := 0
	if c != nil {
		live = c.live
		x.bytes -= sizeOf(c)
	}
	size := live + extra
	size += size / 4
	d := newCrowd(max(2, size))
	if c != nil {
		for _, e := range c.holds[:c.used] {
			if e != nil {
				d.put(e)
			}
		}
	}
	x.bytes += sizeOf(d)
	n.crowd.Store(d)
	return d
}

func newCrowd(size int) *crowd {
	// Grown by append, so that the capacities are the allocator's sizes and the accounting is true.
	holds := slices.Grow([]*holding(nil), size)
	words := slices.Grow([]atomic.Uint32(nil), cap(holds))
	return &crowd{words: words[:cap(holds)], holds: holds[:cap(holds)]}
}

// put adds a holding to a crowd that no reader sees yet.
func (c *crowd) put(e *holding) {
	e.at = int32(c.used)
	c.holds[c.used] = e
	c.words[c.used].Store(uint32(e.slot) + 1)
	c.used++
	c.live++
}

func sizeOf(c *crowd) int64 {
	return crowdBytes + 4*int64(cap(c.words)) + 8*int64(cap(c.holds))
}
