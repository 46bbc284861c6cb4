package sim

import (
	"slices"
)

// naive is the engine again, as simply as the rules can be written: every list is a slice, every lookup a scan, every
// figure counted afresh.
type naive struct {
	p       Profile
	free    []int // block numbers, next to be reused first
	hash    map[int]uint64
	ref     []int
	waiting []*naiveReq
	running []*naiveReq
	pass    []*naiveReq
	starts  []Event
	kv      []KVEvent
	open    bool
}

type naiveReq struct {
	Request
	blocks          []int
	computed, chunk int64
	generated       int64
	gone            bool
}

func newNaive(p Profile) *naive {
	n := &naive{p: p, hash: map[int]uint64{}, ref: make([]int, p.Blocks())}
	for i := range n.ref {
		n.free = append(n.free, i)
	}
	return n
}

func (n *naive) find(h uint64) (int, bool) {
	for i, have := range n.hash {
		if have == h {
			return i, true
		}
	}
	return 0, false
}

func (n *naive) submit(r Request) { n.waiting = append(n.waiting, &naiveReq{Request: r}) }

func (n *naive) cancel(id uint64) bool {
	for _, list := range []*[]*naiveReq{&n.waiting, &n.running} {
		for i, r := range *list {
			if r.ID == id {
				*list = slices.Delete(*list, i, i+1)
				n.drop(r)
				r.gone = true
				return true
			}
		}
	}
	return false
}

func (n *naive) drop(r *naiveReq) {
	slices.Reverse(r.blocks)
	for _, b := range r.blocks {
		n.ref[b]--
		if n.ref[b] == 0 {
			n.free = append(n.free, b)
		}
	}
	r.blocks = nil
	r.computed = 0
}

// compute gives r chunk tokens, or reports that the blocks for them are missing.
func (n *naive) compute(r *naiveReq, cached []int, chunk int64) bool {
	start := r.computed + int64(len(cached))*n.p.BlockSize
	need := -len(r.blocks) - len(cached)
	for at := int64(0); at < start+chunk; at += n.p.BlockSize {
		need++
	}
	left := slices.DeleteFunc(slices.Clone(n.free), func(b int) bool { return slices.Contains(cached, b) })
	if need > len(left) {
		return false
	}
	n.free = left
	for _, b := range cached {
		n.ref[b]++
	}
	r.blocks = append(r.blocks, cached...)
	for range need {
		b := n.free[0]
		n.free = n.free[1:]
		if h, ok := n.hash[b]; ok {
			delete(n.hash, b)
			n.kv = append(n.kv, KVEvent{Kind: KVRemoved, Hash: h, Parent: h / 3})
		}
		n.ref[b] = 1
		r.blocks = append(r.blocks, b)
	}
	for i := start / n.p.BlockSize; i < (start+chunk)/n.p.BlockSize && i < int64(len(r.Blocks)); i++ {
		if _, ok := n.find(r.Blocks[i]); !ok {
			n.hash[r.blocks[i]] = r.Blocks[i]
			n.kv = append(n.kv, KVEvent{Kind: KVStored, Hash: r.Blocks[i], Parent: r.Blocks[i] / 3})
		}
	}
	r.computed = start
	r.chunk = chunk
	n.pass = append(n.pass, r)
	return true
}

func (n *naive) begin() (float64, bool) {
	if n.open || len(n.running)+len(n.waiting) == 0 {
		return 0, false
	}
	n.open = true
	n.pass, n.starts = nil, nil
	budget := n.p.Budget
outer:
	for i := 0; i < len(n.running) && budget > 0; i++ {
		r := n.running[i]
		chunk := min(budget, r.PromptTokens+r.generated-r.computed)
		for !n.compute(r, nil, chunk) {
			victim := n.running[len(n.running)-1]
			n.running = n.running[:len(n.running)-1]
			n.drop(victim)
			n.waiting = slices.Insert(n.waiting, 0, victim)
			n.starts = append(n.starts, Event{ID: victim.ID, Kind: Preempted, Tokens: victim.generated})
			if victim == r {
				break outer
			}
		}
		budget -= chunk
	}
	for len(n.starts) == 0 || n.starts[0].Kind == Admitted {
		if budget == 0 || len(n.waiting) == 0 || len(n.running) == n.p.MaxSeqs {
			break
		}
		r := n.waiting[0]
		var cached []int
		for _, h := range r.Blocks {
			b, ok := n.find(h)
			if !ok || int64(len(cached)+1)*n.p.BlockSize >= r.PromptTokens+r.generated {
				break
			}
			cached = append(cached, b)
		}
		hit := int64(len(cached)) * n.p.BlockSize
		chunk := min(budget, r.PromptTokens+r.generated-hit)
		if !n.compute(r, cached, chunk) {
			break
		}
		budget -= chunk
		n.waiting = n.waiting[1:]
		n.running = append(n.running, r)
		n.starts = append(n.starts, Event{ID: r.ID, Kind: Admitted, Tokens: hit})
	}
	fresh, ctx, pairs := 0.0, 0.0, 0.0
	for _, r := range n.pass {
		fresh += float64(r.chunk)
		if r.generated > 0 && r.computed == r.PromptTokens+r.generated-1 {
			ctx += float64(r.computed + 1)
		} else {
			pairs += float64(r.chunk) * (float64(r.computed) + float64(r.chunk)/2)
		}
	}
	return n.p.Base + n.p.PerToken*max(0, fresh-float64(n.p.Knee)) + n.p.PerContext*ctx + n.p.PerPair*pairs +
		n.p.PerSeq*float64(len(n.pass)), true
}

func (n *naive) end() []Event {
	if !n.open {
		return nil
	}
	n.open = false
	out := n.starts
	for _, r := range n.pass {
		if r.gone {
			continue
		}
		r.computed += r.chunk
		if r.computed != r.PromptTokens+r.generated {
			continue
		}
		r.generated++
		kind := Token
		if r.generated == 1 {
			kind = FirstToken
		}
		out = append(out, Event{ID: r.ID, Kind: kind, Tokens: r.generated})
		if r.generated == r.OutputTokens {
			out = append(out, Event{ID: r.ID, Kind: Finished, Tokens: r.generated})
			n.drop(r)
			n.running = slices.DeleteFunc(n.running, func(o *naiveReq) bool { return o == r })
		}
	}
	return out
}

func (n *naive) clearCache() {
	clear(n.hash)
	n.kv = append(n.kv, KVEvent{Kind: KVCleared})
}

func (n *naive) waitingUncached() (all, uncached int64) {
	for _, r := range n.waiting {
		known := r.PromptTokens + r.generated
		all += known
		uncached += known
		for i, h := range r.Blocks {
			if _, ok := n.find(h); !ok || int64(i+1)*n.p.BlockSize >= known {
				break
			}
			uncached -= n.p.BlockSize
		}
	}
	return all, uncached
}
