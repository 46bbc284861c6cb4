package kvevents

import (
	"strings"

	"github.com/isobar-go/isobar/prefix"
)

// fast reports whether blocks in a medium can be used as they are. Engines that know one medium only do not name it.
func fast(medium string) bool { return medium == "" || strings.EqualFold(medium, "GPU") }

// hold makes block i give credit once more, and reports whether it gave none.
func (a *Applier) hold(i int32) bool {
	b := &a.forest.blocks[i]
	b.held++
	if b.held > 1 {
		return false
	}
	a.forest.held++
	return true
}

// unhold undoes one hold, and reports whether it was the last.
func (a *Applier) unhold(i int32) bool {
	b := &a.forest.blocks[i]
	b.held--
	if b.held > 0 {
		return false
	}
	a.forest.held--
	return true
}

// refuse counts n stored blocks that give no credit. From then on parents may be unknown without a loss.
func (a *Applier) refuse(r *rank, why Reason, n int) {
	a.stats.Refused[why] += int64(n)
	r.whole = false
}

func (a *Applier) full() bool {
	return a.forest.known() >= a.cfg.MaxBlocks || a.forest.entries >= a.cfg.MaxBlocks
}

// stored notes the blocks of e, up to the first one that must be refused: those behind it are refused with it.
func (a *Applier) stored(r *rank, e *Event) {
	f := &a.forest
	n := len(e.Hashes)
	if !fast(e.Medium) {
		a.stats.OtherMedium += int64(n)
		return
	}
	a.stats.Stored += int64(n)
	if n == 0 {
		return
	}
	if e.BlockTokens != int64(a.cfg.BlockTokens) {
		a.refuse(r, WrongBlockSize, n)
		return
	}
	if int64(len(e.Tokens)) != int64(n)*e.BlockTokens {
		a.refuse(r, WrongTokens, n)
		return
	}
	parent := int32(none)
	if e.HasParent {
		p, ok := r.blocks[e.Parent]
		if !ok {
			if r.whole {
				a.stats.Orphans++
				a.loseBlocks(r.source)
			}
			a.refuse(r, UnknownParent, n)
			return
		}
		if p.block == none {
			a.refuse(r, Ambiguous, n)
			return
		}
		parent = p.block
	}
	root := a.rootOf(parent, e)
	if root == none {
		a.refuse(r, NoScope, n)
		return
	}
	f.roots[root].users++ // else it could go with the last block under it, before the first new one
	defer f.leave(root)
	prev := f.roots[root].seed
	if parent != none {
		prev = f.blocks[parent].chain
	}
	var err error
	if a.scratch, err = prefix.ChainTokens(a.scratch[:0], prev, a.cfg.BlockTokens, e.Tokens); err != nil {
		a.refuse(r, WrongBlockSize, n) // cannot be: the size was validated
		return
	}
	for i, h := range e.Hashes {
		if i > 0 && !a.belongs(root, e, i) {
			a.refuse(r, NoScope, n-i)
			return
		}
		block, why := a.name(r, h, where(parent, root, a.scratch[i]), parent, root)
		if block == none {
			a.refuse(r, why, n-i)
			return
		}
		parent = block
	}
}

// rootOf gives the root of the first block of e, behind parent, or none if it has no scope.
func (a *Applier) rootOf(parent int32, e *Event) int32 {
	f := &a.forest
	if parent != none {
		root := f.blocks[parent].root
		if f.roots[root].lora != e.LoRA || !a.belongs(root, e, 0) {
			return none
		}
		return root
	}
	scope := a.cfg.Base
	if extra := e.extra(0); e.LoRA.Used() || extra != nil {
		var ok bool
		if a.cfg.Scope == nil {
			return none
		}
		if scope, ok = a.cfg.Scope(Keys{LoRA: e.LoRA, Extra: extra}); !ok {
			return none
		}
	}
	if !scope.Known() {
		return none
	}
	if len(f.rootAt) == maxRoots {
		a.flush() // may free some
	}
	return f.rootOf(root{scope, e.LoRA}, a.cfg.BlockTokens)
}

// extra are the extra keys of block i, nil for none.
func (e *Event) extra(i int) []any {
	if e.Extra == nil {
		return nil
	}
	return e.Extra[i]
}

// belongs reports whether block i of e may follow blocks of root: whether it has no extra keys, or has some that leave it
// in the same scope.
func (a *Applier) belongs(root int32, e *Event, i int) bool {
	extra := e.extra(i)
	if extra == nil {
		return true
	}
	if a.cfg.Scope == nil {
		return false
	}
	same := a.forest.roots[root].scope
	scope, ok := a.cfg.Scope(Keys{LoRA: e.LoRA, Extra: extra, Parent: same})
	return ok && scope == same
}

// name notes that r calls the block at p by h and has one copy more of it. It returns the block, or none and why not.
func (a *Applier) name(r *rank, h BlockHash, p place, parent, root int32) (int32, Reason) {
	f := &a.forest
	at, exists := f.at[p]
	if e, ok := r.blocks[h]; ok {
		e.copies++
		if exists && e.block == at {
			r.blocks[h] = e
			return at, 0
		}
		// Which of the two a later event means cannot be told. The hash means nothing until both are gone.
		r.blocks[h] = entry{none, e.copies}
		if e.block != none {
			a.unname(r, e.block)
		}
		return none, Ambiguous
	}
	if a.full() {
		a.flush() // may free some
		if a.full() {
			return none, Full
		}
		at, exists = f.at[p]
	}
	if !exists {
		at = f.add(p, parent, root)
	}
	r.blocks[h] = entry{block: at, copies: 1}
	f.entries++
	f.blocks[at].named++
	if !r.source.suspended && a.hold(at) {
		a.changed(prefix.Stored, at)
	}
	return at, 0
}

// unname undoes what name did for block i, for all copies.
func (a *Applier) unname(r *rank, i int32) {
	if !r.source.suspended && a.unhold(i) {
		a.changed(prefix.Removed, i) // may sweep, so i must still be named
	}
	a.forest.blocks[i].named--
	a.forest.gone = append(a.forest.gone, i)
}

// removed takes one copy of each block of e away.
func (a *Applier) removed(r *rank, e *Event) {
	if !fast(e.Medium) {
		a.stats.OtherMedium += int64(len(e.Hashes))
		return
	}
	for _, h := range e.Hashes {
		known, ok := r.blocks[h]
		if !ok {
			a.stats.Unmatched++
			continue
		}
		a.stats.Removed++
		if known.copies--; known.copies > 0 {
			r.blocks[h] = known
			continue
		}
		delete(r.blocks, h)
		a.forest.entries--
		if known.block != none {
			a.unname(r, known.block)
		}
	}
}

// cleared takes all blocks of r away.
func (a *Applier) cleared(r *rank) {
	a.stats.AllCleared++
	a.flush()
	a.drop(r)
	r.whole = true
	a.flush()
	if r.source.suspended || a.failed != nil {
		return
	}
	// The Sink knows no ranks: what the others have is stored again.
	if a.failed = a.cfg.Sink.ApplyKV(a.cfg.ID, prefix.Event{Kind: prefix.Cleared}); a.failed == nil {
		a.publish()
	}
}

// drop forgets all that r has. The Sink has to be told otherwise.
func (a *Applier) drop(r *rank) {
	for _, e := range r.blocks {
		if e.block == none {
			continue
		}
		a.forest.blocks[e.block].named--
		if !r.source.suspended {
			a.unhold(e.block)
		}
		a.forest.gone = append(a.forest.gone, e.block)
	}
	a.forest.entries -= len(r.blocks)
	r.blocks = map[BlockHash]entry{}
}
