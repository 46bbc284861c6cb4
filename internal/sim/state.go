package sim

// counters only ever grow.
type counters struct {
	Submitted    int64
	Finished     int64
	Cancelled    int64
	Preemptions  int64
	Passes       int64
	CacheQueries int64
	CacheHits    int64
	Prompted     int64
	Generated    int64
	Prefilled    int64
}

// State is what an engine would report of itself at one moment. It is a plain value.
type State struct {
	// Running is the number of requests with blocks, Waiting of those without.
	Running, Waiting int
	// WaitingTokens is what the waiting requests would compute if nothing were cached.
	WaitingTokens int64
	// PendingPrefill is what running requests have still to compute before their next token can come, without decodes.
	PendingPrefill int64
	// Blocks is the size of the KV cache in blocks. Each is either used (a request holds it) or free; CachedBlocks of
	// them can be found by hash, used or not.
	Blocks, UsedBlocks, CachedBlocks int
	// KVUsed is UsedBlocks / Blocks, 0 to 1. Blocks that are merely cached do not count.
	KVUsed float64

	// The rest counts since New.

	// Submitted, Finished, Cancelled are numbers of requests; the difference is inside the engine.
	Submitted, Finished, Cancelled int64
	// Preemptions is how often a request lost its blocks.
	Preemptions int64
	// Passes is the number of passes begun.
	Passes int64
	// CacheQueries is the prompt tokens looked up at first admissions, CacheHits the tokens of them found.
	CacheQueries, CacheHits int64
	// PromptTokens is the prompt length of all requests that have had their first token.
	PromptTokens int64
	// GeneratedTokens is the number of tokens generated.
	GeneratedTokens int64
	// PrefilledTokens is the number of tokens computed in prefill chunks, those computed again included.
	PrefilledTokens int64
}

// State returns the engine's state. Between Begin and End it is that inside the pass: blocks and places are taken, the
// tokens have not come yet. It takes time in proportion to the running requests.
func (e *Engine) State() State {
	used := len(e.pool.blocks) - e.pool.free
	s := State{
		Running:         len(e.running),
		Waiting:         e.waiting.n,
		WaitingTokens:   e.waiting.tokens,
		Blocks:          len(e.pool.blocks),
		UsedBlocks:      used,
		CachedBlocks:    e.pool.index.n,
		KVUsed:          float64(used) / float64(len(e.pool.blocks)),
		Submitted:       e.count.Submitted,
		Finished:        e.count.Finished,
		Cancelled:       e.count.Cancelled,
		Preemptions:     e.count.Preemptions,
		Passes:          e.count.Passes,
		CacheQueries:    e.count.CacheQueries,
		CacheHits:       e.count.CacheHits,
		PromptTokens:    e.count.Prompted,
		GeneratedTokens: e.count.Generated,
		PrefilledTokens: e.count.Prefilled,
	}
	for _, r := range e.running {
		if rest := r.known() - r.computed; rest > 1 || r.generated == 0 {
			s.PendingPrefill += rest
		}
	}
	return s
}

// WaitingUncached returns the tokens the waiting requests would compute if they started now. It looks every one up in
// the cache, so it takes time in proportion to their cached prefixes.
func (e *Engine) WaitingUncached() int64 {
	n := e.waiting.tokens
	for r := e.waiting.head; r != nil; r = r.next {
		n -= e.cachedOf(r.Blocks, r.known())
	}
	return n
}

// Cached returns how many leading tokens of a request the cache holds, as its admission would count them: whole blocks,
// never the last token. It changes nothing.
func (e *Engine) Cached(r Request) int64 { return e.cachedOf(r.Blocks, r.PromptTokens) }

func (e *Engine) cachedOf(hashes []uint64, tokens int64) int64 {
	if tokens < 1 {
		return 0
	}
	found, _ := e.pool.match(hashes[:min(int64(len(hashes)), (tokens-1)/e.profile.BlockSize)])
	return int64(found) * e.profile.BlockSize
}

// Inside reports whether the request is waiting or running here, and how many tokens it has generated.
func (e *Engine) Inside(id uint64) (generated int64, ok bool) {
	r, ok := e.byID[id]
	if !ok {
		return 0, false
	}
	return r.generated, true
}

// Generated appends to dst, for every running request that has a token, a Token event with how many it has, in the order of
// admission. It changes nothing.
func (e *Engine) Generated(dst []Event) []Event {
	for _, r := range e.running {
		if r.generated > 0 {
			dst = append(dst, Event{ID: r.ID, Kind: Token, Tokens: r.generated})
		}
	}
	return dst
}
