package kvevents

import "github.com/isobar-go/isobar/prefix"

// none stands for no block.
const none = -1

// block is one block of a prompt in a scope, whichever ranks have it and by whatever hashes they call it.
type block struct {
	chain    uint64 // hash over it and all before it, as in package prefix
	parent   int32  // none for the first of a prompt
	depth    int32  // blocks before it
	root     int32  // index of its root
	named    int32  // pairs of rank and hash that name it; it is kept while there is any
	held     int32  // those of them whose source is not suspended; it gives credit while there is any
	children int32  // blocks kept behind it; it is kept while there is any
}

// place is where a block belongs: equal places mean equal tokens up to there.
type place struct {
	parent int32 // of a first block: none - 1 - its root
	chain  uint64
}

// root is a scope with an adapter: what is common to the blocks of a prompt.
type root struct {
	scope prefix.Scope
	lora  LoRA
}

// rooted is a root in use.
type rooted struct {
	root
	seed  uint64 // what stands before a first block
	users int32  // blocks kept under it, and an event that is being applied; it is kept while there is any
}

// entry is what a rank calls by one hash.
type entry struct {
	block  int32 // none: two different blocks are called so
	copies int32 // how many blocks the rank has by this hash, equal ones or not
}

// rank is one data-parallel rank in one source.
type rank struct {
	source *source
	blocks map[BlockHash]entry
	// whole: all that the engine has stored in this rank is known, so that an unknown parent means that something was missed.
	whole bool
}

// forest keeps the blocks. Slots of blocks and roots that are gone are used again.
type forest struct {
	blocks    []block
	free      []int32
	at        map[place]int32
	roots     []rooted
	freeRoots []int32
	rootAt    map[root]int32
	entries   int     // of all ranks
	held      int     // blocks that give credit
	gone      []int32 // blocks that may have to be freed when the pending run is out
}

// maxRoots bounds scopes with adapters of which there are blocks at one time: salts may be as many as users.
const maxRoots = 1 << 16

func newForest() forest {
	return forest{at: map[place]int32{}, rootAt: map[root]int32{}}
}

func (f *forest) known() int { return len(f.blocks) - len(f.free) }

func where(parent, root int32, chain uint64) place {
	if parent == none {
		parent = none - 1 - root
	}
	return place{parent, chain}
}

// rootOf gives the index of r, or none where there are too many. A new one has no user yet.
func (f *forest) rootOf(r root, blockTokens int) int32 {
	if i, ok := f.rootAt[r]; ok {
		return i
	}
	if len(f.rootAt) == maxRoots {
		return none
	}
	seed, err := prefix.ChainRoot(r.scope, blockTokens)
	if err != nil {
		return none
	}
	i := slot(&f.roots, &f.freeRoots)
	f.roots[i] = rooted{root: r, seed: seed}
	f.rootAt[r] = i
	return i
}

// leave ends one use of root i.
func (f *forest) leave(i int32) {
	r := &f.roots[i]
	if r.users--; r.users == 0 {
		delete(f.rootAt, r.root)
		*r = rooted{}
		f.freeRoots = append(f.freeRoots, i)
	}
}

// slot gives a place in all: one that is free, or a new one.
func slot[T any](all *[]T, free *[]int32) int32 {
	if k := len(*free); k > 0 {
		i := (*free)[k-1]
		*free = (*free)[:k-1]
		return i
	}
	var zero T
	*all = append(*all, zero)
	return int32(len(*all) - 1)
}

// add makes the block at p, which is not there yet.
func (f *forest) add(p place, parent, root int32) int32 {
	b := block{chain: p.chain, parent: parent, root: root}
	if parent != none {
		b.depth = f.blocks[parent].depth + 1
		f.blocks[parent].children++
	}
	f.roots[root].users++
	i := slot(&f.blocks, &f.free)
	f.blocks[i] = b
	f.at[p] = i
	return i
}

// sweep frees the blocks in gone that nothing names or stands on, with those before them.
func (f *forest) sweep() {
	for _, i := range f.gone {
		for i != none {
			b := &f.blocks[i]
			if b.named > 0 || b.children > 0 || b.depth < 0 {
				break
			}
			delete(f.at, where(b.parent, b.root, b.chain))
			b.depth = -1 // in free
			f.leave(b.root)
			f.free = append(f.free, i)
			if i = b.parent; i != none {
				f.blocks[i].children--
			}
		}
	}
	f.gone = f.gone[:0]
	if len(f.blocks) > 0 && len(f.free) == len(f.blocks) { // the memory is given back
		f.blocks, f.free, f.at = nil, nil, map[place]int32{}
	}
}

// chainTo are the hashes of a prompt up to and including block i.
func (f *forest) chainTo(i int32) []uint64 {
	out := make([]uint64, f.blocks[i].depth+1)
	for ; i != none; i = f.blocks[i].parent {
		out[f.blocks[i].depth] = f.blocks[i].chain
	}
	return out
}
