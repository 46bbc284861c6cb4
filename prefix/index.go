package prefix

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Config bounds an Index. The zero value is usable. A Config is a plain value.
type Config struct {
	// MaxBytes is the hard bound on the index's own memory in bytes, at least MinBytes. 0 means DefaultMaxBytes.
	// A long prompt takes about 8.2 bytes per block, a short one about 200 bytes, a further holder of the same
	// blocks about 60 bytes.
	MaxBytes int64
}

const (
	// DefaultMaxBytes is the bound where Config.MaxBytes is 0: 256 MiB.
	DefaultMaxBytes = 256 << 20
	// MinBytes is the smallest legal Config.MaxBytes: 64 KiB.
	MinBytes = 64 << 10
)

// Validate reports what is wrong with c.
func (c Config) Validate() error {
	if c.MaxBytes != 0 && c.MaxBytes < MinBytes {
		return fmt.Errorf("prefix: MaxBytes is %d, it must be 0 or at least %d", c.MaxBytes, int64(MinBytes))
	}
	return nil
}

// Index remembers which holder has which prefix. All methods may be called from any number of goroutines. Match
// takes no lock and never waits; the others take turns.
type Index struct {
	table table
	slots atomic.Int64  // places that Match needs
	reuse atomic.Uint64 // counts slots given a second time
	limit int64         // bytes

	// merged is the longest node that a merge makes, in blocks. It bounds what is copied when an engine reports a
	// growing sequence block by block, and spreads a node's own memory over about that many.
	merged int

	mu sync.Mutex
	// Guarded by mu.
	clock    uint64    // counts uses; a stamp is its value at one
	holders  []*holder // by slot; nil: free
	oldest   []uint64  // by slot: stamp of the least recently used holding, or never
	free     []int32   // slots to use again
	alive    int
	nodes    int64
	holdings int64
	blocks   int64
	bytes    int64
	evicted  int64
	lost     int64
}

const emptyBytes = int64(unsafe.Sizeof(Index{}))

// New makes an empty index. It fails if cfg is invalid.
func New(cfg Config) (*Index, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	x := &Index{limit: cfg.MaxBytes, bytes: emptyBytes, merged: 64}
	if x.limit == 0 {
		x.limit = DefaultMaxBytes
	}
	return x, nil
}

// Add makes a holder for one endpoint incarnation with room for capacityTokens tokens; 0 or less means that only
// MaxBytes bounds it.
func (x *Index) Add(capacityTokens int64) Holder {
	x.mu.Lock()
	defer x.mu.Unlock()
	h := &holder{index: x, capacity: max(capacityTokens, 0)}
	h.root.prev, h.root.next = &h.root, &h.root
	if k := len(x.free); k > 0 {
		h.slot = x.free[k-1]
		x.free = x.free[:k-1]
		x.holders[h.slot] = h
		// A reader that began before may still see what the slot's last holder had: it will look again.
		x.reuse.Add(1)
	} else {
		h.slot = int32(len(x.holders))
		x.holders = append(x.holders, h)
		x.oldest = append(x.oldest, never)
		x.slots.Store(int64(len(x.holders)))
	}
	x.alive++
	x.bytes += holderBytes
	return Holder{h}
}

// live gives the holder behind h, or nil if it is not, or no longer, one of x.
func (x *Index) live(h Holder) *holder {
	if h.p == nil || h.p.index != x || h.p.dead {
		return nil
	}
	return h.p
}

// SetCapacity changes the room of h in tokens, 0 or less for unbounded, and evicts what no longer fits. It
// returns when all fits; others get turns in between.
func (x *Index) SetCapacity(h Holder, tokens int64) {
	x.mu.Lock()
	if p := x.live(h); p != nil {
		p.capacity = max(tokens, 0)
	}
	x.mu.Unlock()
	x.inBatches(func(budget *int) bool {
		p := x.live(h)
		return p == nil || p.capacity == 0 || x.fit(p, p.capacity, budget)
	})
}

// inBatches calls step under the lock until it reports that it is done, with a pause for others each time step
// has used up its budget.
func (x *Index) inBatches(step func(budget *int) bool) {
	for {
		budget := batch
		x.mu.Lock()
		done := step(&budget)
		x.mu.Unlock()
		if done {
			return
		}
		runtime.Gosched()
	}
}

// Slots is the number of places Match fills: one more than the largest slot ever given.
func (x *Index) Slots() int { return int(x.slots.Load()) }

// Record notes that q was routed to h, whose engine will hold it from now on (approximate mode). It does nothing
// for a holder in exact mode, and allocates nothing if h already holds q. A prompt longer than h's capacity is
// recorded up to it.
func (x *Index) Record(h Holder, q Sequence) {
	for !x.record(h, &q) {
		runtime.Gosched()
	}
}

func (x *Index) record(h Holder, q *Sequence) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.live(h)
	if p == nil || p.exact {
		return true
	}
	budget := batch
	return x.put(p, *q, 0, &budget)
}

// Exact reports whether h is in exact mode.
func (x *Index) Exact(h Holder) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.live(h)
	return p != nil && p.exact
}

// Held is the number of tokens h holds; blocks under several prompts count once.
func (x *Index) Held(h Holder) int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := x.live(h); p != nil {
		return p.held
	}
	return 0
}

// Clear forgets all that h held when it was called; h stays in its mode. It returns when that is done; others get
// turns in between.
func (x *Index) Clear(h Holder) {
	x.mu.Lock()
	p := x.live(h)
	cut := x.clock
	if p != nil {
		p.cut = cut
	}
	x.mu.Unlock()
	if p != nil {
		x.drain(p, cut)
	}
}

// drain drops what p has not used since cut.
func (x *Index) drain(p *holder, cut uint64) {
	x.inBatches(func(budget *int) bool {
		for ; *budget > 0; *budget-- {
			e := p.back()
			if e == nil || e.stamp > cut {
				return true
			}
			x.drop(p, e)
		}
		return false
	})
}

// ClearAll forgets what every holder held.
func (x *Index) ClearAll() {
	x.mu.Lock()
	all := make([]*holder, 0, x.alive)
	for _, p := range x.holders {
		if p != nil && !p.dead {
			p.cut = x.clock
			all = append(all, p)
		}
	}
	cut := x.clock
	x.mu.Unlock()
	for _, p := range all {
		x.drain(p, cut)
	}
}

// Remove ends h. The handle is dead at once; Match may report what it held until Remove returns, and only then
// can its slot be given to another. Others get turns in between.
func (x *Index) Remove(h Holder) {
	x.mu.Lock()
	p := x.live(h)
	if p != nil {
		p.dead = true
		p.cut = x.clock
		x.alive--
	}
	x.mu.Unlock()
	if p == nil {
		return
	}
	x.drain(p, never)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.holders[p.slot] = nil
	x.free = append(x.free, p.slot)
	x.bytes -= holderBytes
}

// Stats are figures of one moment. A Stats is a plain value.
type Stats struct {
	Holders       int   `json:"holders"`        // alive
	Nodes         int64 `json:"nodes"`          // of the radix tree
	Holdings      int64 `json:"holdings"`       // pairs of a node and a holder
	Blocks        int64 `json:"blocks"`         // stored, each path once however many hold it
	Bytes         int64 `json:"bytes"`          // of memory in use by the index, as accounted
	MaxBytes      int64 `json:"max_bytes"`      // the bound
	EvictedBlocks int64 `json:"evicted_blocks"` // taken away from holders by the bounds, since New
	LostRecords   int64 `json:"lost_records"`   // records and events that found no room at all, since New
}

// Stats gives the index's figures.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	return Stats{
		Holders:       x.alive,
		Nodes:         x.nodes,
		Holdings:      x.holdings,
		Blocks:        x.blocks,
		Bytes:         x.bytes,
		MaxBytes:      x.limit,
		EvictedBlocks: x.evicted,
		LostRecords:   x.lost,
	}
}
