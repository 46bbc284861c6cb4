package sim

import (
	"errors"
	"fmt"
)

// Errors that Submit wraps, for errors.Is.
var (
	// ErrTooLong: prompt and output together never fit the KV cache.
	ErrTooLong = errors.New("sim: request is longer than the KV cache")
	// ErrDuplicate: a request with this ID is inside the engine.
	ErrDuplicate = errors.New("sim: request ID is in use")
)

// Options are the switches of an engine. The zero value is the usual one. It is a plain value.
type Options struct {
	// KVEvents keeps a record of stored and removed blocks for Engine.KVEvents. The host must then collect it, or it
	// grows without end. Off by default.
	KVEvents bool
}

// Engine is the model of one engine. It must not be used by two goroutines at once.
type Engine struct {
	profile Profile
	pool    *pool
	byID    map[uint64]*request
	waiting queue
	running []*request

	open     bool       // between Begin and End
	pass     []*request // what the open pass computes; a record that has ended since has chunk 0, used again or not
	starts   []Event    // preemptions and admissions of the open pass
	count    counters
	scrapped []*request // records to use again

	promised int // quiet passes that may be skipped
	lists    byBlock
}

// New returns an idle engine with an empty cache, or the faults of the profile.
func New(p Profile, o Options) (*Engine, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return &Engine{
		profile: p,
		pool:    newPool(int(p.Blocks()), o.KVEvents),
		byID:    make(map[uint64]*request),
	}, nil
}

// Profile returns the engine's profile.
func (e *Engine) Profile() Profile { return e.profile }

// Submit puts a request at the end of the waiting queue. It fails, and changes nothing, on a length below 1, on too
// many Blocks, with ErrTooLong and with ErrDuplicate.
func (e *Engine) Submit(r Request) error {
	if r.PromptTokens < 1 {
		return fmt.Errorf("sim: Request.PromptTokens %d is below 1", r.PromptTokens)
	}
	if r.OutputTokens < 1 {
		return fmt.Errorf("sim: Request.OutputTokens %d is below 1", r.OutputTokens)
	}
	// The KV of the last token is never needed.
	if limit := e.profile.Blocks() * e.profile.BlockSize; r.PromptTokens > limit || r.OutputTokens-1 > limit-r.PromptTokens {
		return fmt.Errorf("%w: PromptTokens %d, OutputTokens %d, cache %d", ErrTooLong, r.PromptTokens, r.OutputTokens, limit)
	}
	if most := (r.PromptTokens + r.OutputTokens) / e.profile.BlockSize; int64(len(r.Blocks)) > most {
		return fmt.Errorf("sim: Request.Blocks has %d hashes, the request fills %d blocks", len(r.Blocks), most)
	}
	if _, dup := e.byID[r.ID]; dup {
		return fmt.Errorf("%w: %d", ErrDuplicate, r.ID)
	}
	e.promised = 0
	q := e.newRequest(r)
	e.byID[r.ID] = q
	e.waiting.pushBack(q)
	e.count.Submitted++
	return nil
}

// Cancel removes a request and frees its blocks at once; what was cached of it stays cached. If a pass is open, its
// duration stays as it was and End reports no token for the request. Cancel returns false if there is no such
// request, for instance because it has finished.
func (e *Engine) Cancel(id uint64) bool {
	r, ok := e.byID[id]
	if !ok {
		return false
	}
	e.promised = 0
	if r.place == running {
		for i, other := range e.running {
			if other == r {
				e.running = append(e.running[:i], e.running[i+1:]...)
				break
			}
		}
		e.pool.release(r.blocks)
	} else {
		e.waiting.remove(r)
	}
	e.forget(r)
	e.count.Cancelled++
	return true
}

// forget ends a request that is on no list any more and holds no block.
func (e *Engine) forget(r *request) {
	delete(e.byID, r.ID)
	r.place = gone
	r.chunk = 0
	r.blocks = r.blocks[:0]
	r.Blocks = nil
	e.scrapped = append(e.scrapped, r)
}

func (e *Engine) newRequest(r Request) *request {
	n := len(e.scrapped)
	if n == 0 {
		return &request{Request: r}
	}
	q := e.scrapped[n-1]
	e.scrapped = e.scrapped[:n-1]
	*q = request{Request: r, blocks: q.blocks[:0]}
	return q
}

// Begin opens a pass and returns its duration in ms. It returns 0 and false if there is nothing to compute, or if a
// pass is open already.
func (e *Engine) Begin() (ms float64, ok bool) {
	if e.open || (len(e.running) == 0 && e.waiting.n == 0) {
		return 0, false
	}
	e.promised = 0
	e.pass = e.pass[:0]
	e.starts = e.starts[:0]
	s := Pass{}
	budget := e.scheduleRunning(&s, e.profile.Budget)
	if len(e.starts) == 0 {
		e.admit(&s, budget)
	}
	// A lone request always fits (Submit saw to it), so there is never a pass without work.
	e.open = true
	e.count.Passes++
	return e.profile.PassTime(s), true
}

// scheduleRunning gives the running requests their tokens, in order, and preempts from the end where blocks are short.
// It returns what is left of the budget.
func (e *Engine) scheduleRunning(s *Pass, budget int64) int64 {
	for i := 0; i < len(e.running) && budget > 0; i++ {
		r := e.running[i]
		chunk := min(r.known()-r.computed, budget)
		need := e.blocksFor(r.computed+chunk) - len(r.blocks)
		for need > e.pool.free {
			last := e.running[len(e.running)-1]
			e.running = e.running[:len(e.running)-1]
			e.preempt(last)
			if last == r {
				return budget
			}
		}
		e.schedule(r, s, chunk, need)
		budget -= chunk
	}
	return budget
}

func (e *Engine) preempt(r *request) {
	e.pool.release(r.blocks)
	r.blocks = r.blocks[:0]
	r.named = 0
	r.computed = 0
	r.place = waiting
	e.waiting.pushFront(r)
	e.count.Preemptions++
	e.starts = append(e.starts, Event{ID: r.ID, Kind: Preempted, Tokens: r.generated})
}

// admit starts waiting requests in order while budget, places and blocks last.
func (e *Engine) admit(s *Pass, budget int64) {
	for budget > 0 && e.waiting.n > 0 && len(e.running) < e.profile.MaxSeqs {
		r := e.waiting.head
		hits := r.Blocks[:min(int64(len(r.Blocks)), (r.known()-1)/e.profile.BlockSize)]
		found, onFree := e.pool.match(hits)
		cached := int64(found) * e.profile.BlockSize
		chunk := min(r.known()-cached, budget)
		need := e.blocksFor(cached+chunk) - found
		if need+onFree > e.pool.free {
			return
		}
		e.waiting.remove(r)
		r.blocks = e.pool.share(r.blocks)
		r.named = found
		r.computed = cached
		r.place = running
		if r.starts == 0 {
			e.count.CacheQueries += r.PromptTokens
			e.count.CacheHits += cached
		}
		r.starts++
		e.running = append(e.running, r)
		e.starts = append(e.starts, Event{ID: r.ID, Kind: Admitted, Tokens: cached})
		e.schedule(r, s, chunk, need)
		budget -= chunk
	}
}

// schedule puts chunk tokens of r into the pass and gives it the blocks they need. Blocks become findable as soon as
// the pass fills them: a request admitted later in the same pass may share them.
func (e *Engine) schedule(r *request, s *Pass, chunk int64, need int) {
	if need > 0 {
		r.blocks = e.pool.take(r.blocks, need)
	}
	r.chunk = chunk
	after := r.computed + chunk
	e.nameUpTo(r, after)
	s.Tokens += chunk
	s.Seqs++
	if chunk == 1 && r.generated > 0 && after == r.known() {
		s.DecodeContext += after
	} else {
		s.Pairs += chunkPairs(r.computed, chunk)
		e.count.Prefilled += chunk
	}
	e.pass = append(e.pass, r)
}

// nameUpTo makes the blocks that r fills with that many tokens findable.
func (e *Engine) nameUpTo(r *request, tokens int64) {
	for full := min(int(tokens/e.profile.BlockSize), len(r.Blocks)); r.named < full; r.named++ {
		var parent uint64
		if r.named > 0 {
			parent = r.Blocks[r.named-1]
		}
		e.pool.store(r.blocks[r.named], r.Blocks[r.named], parent)
	}
}

func (e *Engine) blocksFor(tokens int64) int {
	return int((tokens + e.profile.BlockSize - 1) / e.profile.BlockSize)
}

// End closes the open pass and appends what happened in it to dst, in order: preemptions and admissions, then the
// tokens of every request that has one, each last token followed by Finished. Without an open pass it returns dst.
func (e *Engine) End(dst []Event) []Event {
	if !e.open {
		return dst
	}
	dst = append(dst, e.starts...)
	finished := false
	for _, r := range e.pass {
		if r.chunk == 0 {
			continue
		}
		r.computed += r.chunk
		if r.computed < r.known() {
			continue
		}
		r.generated++
		e.count.Generated++
		kind := Token
		if r.generated == 1 {
			kind = FirstToken
			e.count.Prompted += r.PromptTokens
		}
		dst = append(dst, Event{ID: r.ID, Kind: kind, Tokens: r.generated})
		if r.generated == r.OutputTokens {
			dst = append(dst, Event{ID: r.ID, Kind: Finished, Tokens: r.generated})
			e.pool.release(r.blocks)
			e.forget(r)
			e.count.Finished++
			finished = true
		}
	}
	if finished {
		kept := e.running[:0]
		for _, r := range e.running {
			if r.place == running {
				kept = append(kept, r)
			}
		}
		clear(e.running[len(kept):])
		e.running = kept
	}
	e.open = false
	return dst
}

// Step runs one whole pass: Begin, then End. It returns its duration in ms and dst with the pass's events appended;
// 0 and dst if there was nothing to do. An open pass is closed first, and counts as the whole step with duration 0.
func (e *Engine) Step(dst []Event) (ms float64, events []Event) {
	ms, ok := e.Begin()
	if !ok && !e.open {
		return 0, dst
	}
	return ms, e.End(dst)
}

// ClearCache forgets all cached blocks. Requests inside the engine go on; their blocks so far are no longer found.
func (e *Engine) ClearCache() {
	e.promised = 0
	e.pool.clear()
}

// KVEvents appends the changes of the cached set since the last call to dst, in order. Always empty without
// Options.KVEvents.
func (e *Engine) KVEvents(dst []KVEvent) []KVEvent {
	dst = append(dst, e.pool.events...)
	e.pool.events = e.pool.events[:0]
	return dst
}
