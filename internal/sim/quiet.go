package sim

// A quiet pass computes one token for every running request and does nothing else: nobody is admitted, preempted, starts or
// ends. As long as nothing comes in from outside, it is known without running them how many lie ahead and how long they take,
// and all can be done at once.

// Quiet appends to dst the durations in ms of the quiet passes that lie ahead, at most limit of them. It may stop short of the
// first other one. Between Begin and End there are none. Skip does them.
func (e *Engine) Quiet(limit int, dst []float64) []float64 {
	e.promised = 0
	seqs := int64(len(e.running))
	if e.open || seqs == 0 || seqs > e.profile.Budget {
		return dst
	}
	if e.waiting.n > 0 && len(e.running) < e.profile.MaxSeqs && seqs < e.profile.Budget {
		return dst // whether the next one fits changes with what is cached
	}
	// In n passes no request needs more than n/BlockSize new blocks, rounded up.
	n, context := min(int64(limit), int64(e.pool.free)/seqs*e.profile.BlockSize), int64(0)
	for _, r := range e.running {
		if r.generated == 0 || r.known()-r.computed != 1 {
			return dst
		}
		context += r.known()
		n = min(n, r.OutputTokens-r.generated-1) // a last token is not quiet
	}
	for range n {
		dst = append(dst, e.profile.PassTime(Pass{Tokens: seqs, Seqs: seqs, DecodeContext: context}))
		context += seqs
	}
	e.promised = max(int(n), 0)
	return dst
}

// Skip does n passes at once, with the same result as that many times Begin and End, to the last block and cache event, but
// without the tokens' events. It does no more than the last Quiet has promised, nothing if any other call came in between, and
// returns how many it did.
func (e *Engine) Skip(n int) int {
	n = max(min(n, e.promised), 0)
	if n == 0 {
		return 0
	}
	e.promised -= n
	e.skipBlocks(n)
	for _, r := range e.running {
		r.computed += int64(n)
		r.generated += int64(n)
	}
	e.count.Passes += int64(n)
	e.count.Generated += int64(n) * int64(len(e.running))
	return n
}

// byBlock lists requests by how many tokens their last block holds, so that each of many passes visits only those that begin
// or fill a block.
type byBlock struct {
	head []int32 // by computed mod BlockSize; none between calls
	next []int32 // by place in running
}

// skipBlocks takes and names blocks in the order in which n passes would. A request takes one in the pass that finds its last
// block full, and names one in the pass that fills it.
func (e *Engine) skipBlocks(n int) {
	size := e.profile.BlockSize
	l := &e.lists
	if l.head == nil {
		l.head = make([]int32, size)
		for i := range l.head {
			l.head[i] = none
		}
	}
	if len(l.next) < len(e.running) {
		l.next = make([]int32, 2*len(e.running))
	}
	names := false
	for i := len(e.running) - 1; i >= 0; i-- {
		r := e.running[i]
		at := r.computed % size
		l.next[i], l.head[at] = l.head[at], int32(i)
		names = names || r.named < len(r.Blocks)
	}
	for p := range int64(n) {
		take := l.head[(size-p%size)%size]
		name := none
		if names && size > 1 {
			name = l.head[(2*size-1-p%size)%size]
		}
		for take != none || name != none {
			if name == none || take != none && take < name {
				r := e.running[take]
				r.blocks = e.pool.take(r.blocks, 1)
				if size == 1 {
					e.nameUpTo(r, r.computed+p+1)
				}
				take = l.next[take]
				continue
			}
			e.nameUpTo(e.running[name], e.running[name].computed+p+1)
			name = l.next[name]
		}
	}
	for _, r := range e.running {
		l.head[r.computed%size] = none
	}
}
