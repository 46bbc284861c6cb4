package kvevents

import "fmt"

// MaxRoots bounds scopes with adapters of which there are blocks.
const MaxRoots = maxRoots

// Check counts everything that is kept from scratch.
func Check(a *Applier) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := &a.forest
	named, held, children := map[int32]int32{}, map[int32]int32{}, map[int32]int32{}
	entries := 0
	for _, s := range a.sources {
		for _, r := range s.ranks {
			entries += len(r.blocks)
			for h, e := range r.blocks {
				if e.copies < 1 {
					return fmt.Errorf("%v has %d copies", h, e.copies)
				}
				if e.block == none {
					continue
				}
				named[e.block]++
				if !s.suspended {
					held[e.block]++
				}
			}
		}
	}
	live, giving := 0, 0
	users := map[int32]int32{}
	for i := range f.blocks {
		b := &f.blocks[i]
		if b.depth < 0 {
			continue
		}
		live++
		users[b.root]++
		if b.parent != none {
			children[b.parent]++
			if f.blocks[b.parent].depth != b.depth-1 {
				return fmt.Errorf("block %d is not behind its parent", i)
			}
		}
		if f.at[where(b.parent, b.root, b.chain)] != int32(i) {
			return fmt.Errorf("block %d is not found in its place", i)
		}
	}
	for i := range f.blocks {
		b, k := &f.blocks[i], int32(i)
		if b.depth < 0 {
			continue
		}
		if b.held > 0 {
			giving++
		}
		if b.named != named[k] || b.held != held[k] || b.children != children[k] || b.named+b.children == 0 {
			return fmt.Errorf("block %d is %+v; named %d, held %d, children %d", i, *b, named[k], held[k], children[k])
		}
	}
	for r, i := range f.rootAt {
		if f.roots[i].root != r || f.roots[i].users != users[i] {
			return fmt.Errorf("root %d is %+v, used by %d", i, f.roots[i], users[i])
		}
	}
	if len(users) != len(f.rootAt) || len(f.rootAt)+len(f.freeRoots) != len(f.roots) {
		return fmt.Errorf("%d roots, %d free, found %d, used %d", len(f.roots), len(f.freeRoots), len(f.rootAt), len(users))
	}
	if entries != f.entries || live != f.known() || live != len(f.at) || giving != f.held || len(f.gone) > 0 || a.run.kind != 0 {
		return fmt.Errorf("%d entries, %d blocks, %d held, counted %d, %d, %d", entries, live, giving, f.entries, f.known(), f.held)
	}
	return nil
}
