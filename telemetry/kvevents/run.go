package kvevents

import "github.com/isobar-go/isobar/prefix"

// run is a stretch of blocks of one prompt that were all stored or all removed, and of which the Sink has not heard yet.
// Engines report long prompts block by block, and an event for each would take time that grows with the square of the
// prompt: an event holds the whole chain.
type run struct {
	kind        prefix.EventKind // 0: there is none
	first, last int32
}

// changed tells the Sink, sooner or later, that block i has begun to give credit or ceased to.
func (a *Applier) changed(kind prefix.EventKind, i int32) {
	if a.run.kind == kind {
		switch {
		case a.forest.blocks[i].parent == a.run.last:
			a.run.last = i
			return
		case kind == prefix.Removed && i == a.forest.blocks[a.run.first].parent:
			a.run.first = i // an engine evicts from the tail
			return
		}
	}
	a.flush()
	a.run = run{kind, i, i}
}

// flush tells the Sink what is pending, and lets go of blocks that were kept for it.
func (a *Applier) flush() {
	if a.run.kind != 0 {
		a.send(a.run.kind, a.run.first, a.run.last)
		a.run = run{}
	}
	a.forest.sweep()
}

// send makes one event. A Sink that has failed hears nothing more until it is in step again.
func (a *Applier) send(kind prefix.EventKind, first, last int32) {
	if a.failed != nil {
		return
	}
	f := &a.forest
	q, err := prefix.FromChain(f.roots[f.blocks[last].root].scope, a.cfg.BlockTokens, f.chainTo(last))
	if err == nil {
		err = a.cfg.Sink.ApplyKV(a.cfg.ID, prefix.Event{Kind: kind, Prefix: q, From: int(f.blocks[first].depth)})
	}
	a.failed = err
}

// clear makes the Sink forget the endpoint's prefixes, and then tells it of all blocks that give credit.
func (a *Applier) clear() {
	a.run = run{}
	a.forest.sweep()
	if a.failed = a.cfg.Sink.ClearPrefixes(a.cfg.ID); a.failed == nil {
		a.publish()
	}
}

// inStep tries again where the Sink has failed before, such as with an endpoint that it did not know yet.
func (a *Applier) inStep() {
	if a.failed != nil {
		a.clear()
	}
}

// publish tells the Sink of all blocks that give credit, in stretches as long as can be.
func (a *Applier) publish() {
	f := &a.forest
	if f.held == 0 {
		return
	}
	inner := make([]bool, len(f.blocks)) // a block behind it is held too
	for i := range f.blocks {
		if b := &f.blocks[i]; b.held > 0 && b.parent != none {
			inner[b.parent] = true
		}
	}
	told := make([]bool, len(f.blocks))
	for i := range f.blocks {
		if f.blocks[i].held == 0 || inner[i] {
			continue
		}
		first := int32(i)
		told[first] = true
		for up := f.blocks[first].parent; up != none && !told[up] && f.blocks[up].held > 0; up = f.blocks[first].parent {
			first = up
			told[first] = true
		}
		a.send(prefix.Stored, first, int32(i))
	}
}
