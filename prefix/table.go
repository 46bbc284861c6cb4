package prefix

import (
	"math/bits"
	"sync/atomic"
)

// shards is the number of tables that node lookup is spread over. It bounds the pause of one rebuild: at ten
// million nodes a shard holds 40 thousand.
const shards = 256

// table finds nodes by the hash of their first block. As hashes are chained, that hash stands for the whole path
// down to the node, so one lookup replaces a map of children per node.
//
// Readers probe without a lock. A filled slot never moves: removal leaves a tombstone, and a rebuild publishes a
// new array; a reader therefore never misses an entry that stays.
type table struct {
	shard [shards]shard
}

type shard struct {
	slots atomic.Pointer[[]slot] // nil while the shard is empty; length a power of two
	// Guarded by Index.mu.
	live int // entries
	used int // entries and tombstones
}

// slot's key tells what node to expect; the node itself has the last word, as the two are not written at once.
type slot struct {
	key  atomic.Uint64
	node atomic.Pointer[node]
}

const (
	keyEmpty   = 0
	keyRemoved = 1
	minSlots   = 4
	slotBytes  = 16
	sliceBytes = 24
)

func keyOf(hash uint64) uint64 {
	if hash <= keyRemoved {
		return hash + 2
	}
	return hash
}

func (t *table) of(hash uint64) *shard { return &t.shard[hash>>56] }

// lookup is the readers' search. Two nodes may have one hash in two scopes, hence the check of scope and block size.
func (t *table) lookup(hash uint64, q *Sequence) *node {
	p := t.of(hash).slots.Load()
	if p == nil {
		return nil
	}
	slots, key := *p, keyOf(hash)
	mask := uint64(len(slots) - 1)
	for i := key & mask; ; i = (i + 1) & mask {
		switch slots[i].key.Load() {
		case keyEmpty:
			return nil
		case key:
			n := slots[i].node.Load()
			if n != nil && n.hashes[0] == hash && n.scope == q.scope && n.block == q.block {
				return n
			}
		}
	}
}

// child is the writers' search: it also insists on the parent, so that the tree stays well formed even when
// hashes collide. parent is nil for the first node of a path.
func (t *table) child(parent *node, hash uint64, q *Sequence) *node {
	var up *link
	if parent != nil {
		if up = parent.down; up == nil {
			return nil
		}
	}
	p := t.of(hash).slots.Load()
	if p == nil {
		return nil
	}
	slots, key := *p, keyOf(hash)
	mask := uint64(len(slots) - 1)
	for i := key & mask; ; i = (i + 1) & mask {
		switch slots[i].key.Load() {
		case keyEmpty:
			return nil
		case key:
			n := slots[i].node.Load()
			if n.up == up && n.first == hash && n.scope == q.scope && n.block == q.block {
				return n
			}
		}
	}
}

// insert adds n and returns by how many bytes the table grew, which is negative if it shrank.
func (t *table) insert(n *node) int64 {
	s := t.of(n.first)
	var delta int64
	if p := s.slots.Load(); p == nil || (s.used+1)*4 > len(*p)*3 {
		delta = s.rebuild(s.live + 1)
	}
	slots, key := *s.slots.Load(), keyOf(n.first)
	mask := uint64(len(slots) - 1)
	for i := key & mask; ; i = (i + 1) & mask {
		switch slots[i].key.Load() {
		case keyEmpty:
			s.used++
			fallthrough
		case keyRemoved:
			slots[i].node.Store(n)
			slots[i].key.Store(key)
			s.live++
			return delta
		}
	}
}

// replace puts n where old was. Both have the same first hash.
func (t *table) replace(old, n *node) { t.place(old).node.Store(n) }

// remove takes n out and returns by how many bytes the table grew (zero or less).
func (t *table) remove(n *node) int64 {
	at := t.place(n)
	at.node.Store(nil)
	at.key.Store(keyRemoved)
	s := t.of(n.first)
	s.live--
	if s.live == 0 || s.live*8 < len(*s.slots.Load()) {
		return s.rebuild(s.live)
	}
	return 0
}

func (t *table) place(n *node) *slot {
	slots, key := *t.of(n.first).slots.Load(), keyOf(n.first)
	mask := uint64(len(slots) - 1)
	i := key & mask
	for slots[i].node.Load() != n {
		i = (i + 1) & mask
	}
	return &slots[i]
}

// rebuild copies the live entries into slots for want entries, at most half full. It does nothing if that is
// what there is already and no tombstone would go.
func (s *shard) rebuild(want int) int64 {
	var old []slot
	if p := s.slots.Load(); p != nil {
		old = *p
	}
	before := tableBytes(len(old))
	if want == 0 {
		s.slots.Store(nil)
		s.used = 0
		return -before
	}
	size := max(minSlots, 1<<bits.Len(uint(2*want-1)))
	if size == len(old) && s.used == s.live {
		return 0
	}
	slots := make([]slot, size)
	mask := uint64(size - 1)
	for i := range old {
		key := old[i].key.Load()
		if key <= keyRemoved {
			continue
		}
		j := key & mask
		for slots[j].key.Load() != keyEmpty {
			j = (j + 1) & mask
		}
		slots[j].node.Store(old[i].node.Load())
		slots[j].key.Store(key)
	}
	s.used = s.live
	s.slots.Store(&slots)
	return tableBytes(size) - before
}

func tableBytes(slots int) int64 {
	if slots == 0 {
		return 0
	}
	return int64(slots)*slotBytes + sliceBytes
}
