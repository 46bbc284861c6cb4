package kvevents

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// ErrDiscontinuous is what Replay returns, wrapped, for a batch that does not continue what is known of its source.
var ErrDiscontinuous = errors.New("kvevents: the replay does not continue what is known")

// Applier turns the batches of one endpoint into changes of a Sink. All its methods may be called from any number of
// goroutines; those with batches of one source in the order of the source.
type Applier struct {
	cfg Config

	mu sync.Mutex
	// Guarded by mu.
	sources []*source
	forest  forest
	run     run
	stats   Stats
	failed  error // what the Sink said; from then on it hears nothing, until it has been cleared
	batch   Batch
	scratch []uint64
}

// source is one stream of batches.
type source struct {
	started   bool
	suspended bool
	proven    bool   // a replay has shown that it continues what is known; while suspended
	whole     bool   // known from its first batch on
	next      uint64 // sequence number of the batch that should come next
	seen      []uint64
	ranks     map[int]*rank
}

// maxSeen bounds how far back the digests in source.seen reach, in batches: beyond what engines keep for replays.
const maxSeen = 1 << 14

// New makes an Applier that knows of nothing.
func New(cfg Config) (*Applier, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a := &Applier{cfg: cfg.WithDefaults(), forest: newForest()}
	for range a.cfg.Sources {
		a.sources = append(a.sources, &source{ranks: map[int]*rank{}})
	}
	return a, nil
}

// Config is the configuration in effect, with its defaults.
func (a *Applier) Config() Config { return a.cfg }

// find gives a source by its number.
func (a *Applier) find(source int) (*source, error) {
	if source < 0 || source >= len(a.sources) {
		return nil, fmt.Errorf("kvevents: source is %d, it must be in [0, %d)", source, len(a.sources))
	}
	return a.sources[source], nil
}

// Apply takes over the batch with the sequence number seq of a source in [0, Config.Sources). payload may be used again
// when it returns.
//
// A number that leaves some out or goes back, and a payload that cannot be decoded, mean that blocks may be gone unnoticed:
// the endpoint's prefixes are cleared at once, all that was known of this source is given up, and what is known of
// others is stored again. Then the batch is applied as the first one of the source. That is counted and no error, except
// for what cannot be decoded. A batch that is known already, by its number and content, is ignored. A source that is
// suspended is resumed first. An error of the Sink is returned, and the Sink is brought into step with the next call.
func (a *Applier) Apply(source int, seq uint64, payload []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, err := a.find(source)
	if err != nil {
		return err
	}
	a.inStep()
	if s.suspended {
		a.resume(s)
	}
	digest := xxhash.Sum64(payload)
	switch {
	case !s.started || seq == s.next:
	case seq > s.next:
		a.stats.Gaps++
		a.stats.Missed += int64(min(seq-s.next, math.MaxInt32))
		a.lose(s)
	case s.has(seq, digest):
		a.stats.Duplicates++
		return a.failed
	default:
		a.stats.Restarts++
		a.lose(s)
	}
	return a.accept(source, s, seq, digest, payload)
}

// Position is where a replay has to begin, to show that it continues what is known of a source: at the last batch that was
// applied. false means that nothing is known, and that a replay should begin at 0.
func (a *Applier) Position(source int) (uint64, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, err := a.find(source)
	if err != nil || !s.started {
		return 0, false
	}
	return s.next - 1, true
}

// Suspend tells that batches of a source are or may be missing, and can perhaps be had yet. The endpoint's prefixes are
// cleared at once; what is known of the source stays in mind without giving any credit, and what other sources hold is
// stored again. Of a source that is suspended already, nothing changes.
func (a *Applier) Suspend(source int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, err := a.find(source)
	if err != nil {
		return err
	}
	a.inStep()
	if s.suspended {
		return a.failed
	}
	a.flush()
	for _, r := range s.ranks {
		for _, e := range r.blocks {
			if e.block != none {
				a.unhold(e.block)
			}
		}
	}
	s.suspended, s.proven = true, false
	if s.started {
		a.stats.Clears++
		a.clear()
	}
	return a.failed
}

// Replay takes over a batch of a suspended source that the engine has sent again. The first one should be that of Position:
// if it is not the same batch as it was, or if one is left out, Replay changes nothing and returns ErrDiscontinuous, as
// the engine was restarted or no longer has what is missing. Then call Lost, and begin again at 0 if at all.
func (a *Applier) Replay(source int, seq uint64, payload []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, err := a.find(source)
	if err != nil {
		return err
	}
	if !s.suspended {
		return fmt.Errorf("kvevents: source %d is not suspended, it takes no replay", source)
	}
	a.inStep()
	digest := xxhash.Sum64(payload)
	if s.started {
		switch {
		case seq < s.next && s.has(seq, digest):
			s.proven = true
			a.stats.Duplicates++
			return a.failed
		case seq < s.next:
			return fmt.Errorf("%w: batch %d of source %d is another one than it was", ErrDiscontinuous, seq, source)
		case seq > s.next || !s.proven:
			return fmt.Errorf("%w: batch %d of source %d follows batch %d, which is not there", ErrDiscontinuous, seq, source, seq-1)
		}
	}
	s.proven = true
	return a.accept(source, s, seq, digest, payload)
}

// Resume ends a suspension: what is known of the source gives credit again. If no replay has shown that it continues what
// was known, that is given up as with Lost.
func (a *Applier) Resume(source int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, err := a.find(source)
	if err != nil {
		return err
	}
	a.inStep()
	if s.suspended {
		a.resume(s)
	}
	return a.failed
}

func (a *Applier) resume(s *source) {
	if s.started && !s.proven {
		a.lose(s)
	}
	s.suspended = false
	for _, r := range s.ranks {
		for _, e := range r.blocks {
			if e.block != none {
				a.hold(e.block)
			}
		}
	}
	if a.failed == nil {
		a.publish()
	}
}

// Lost tells that batches of a source are missing for good, or that nobody listens to it any longer. What was known of it
// is given up, and unless it is suspended the endpoint's prefixes are cleared and what other sources hold is stored again.
// The next batch is taken as the first one.
func (a *Applier) Lost(source int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, err := a.find(source)
	if err != nil {
		return err
	}
	a.inStep()
	if s.started {
		a.lose(s)
	}
	return a.failed
}

// Stats gives the figures.
func (a *Applier) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.stats
	out.Held, out.Known = a.forest.held, a.forest.known()
	for _, s := range a.sources {
		if s.suspended {
			out.Suspended++
		}
	}
	return out
}

// has reports whether batch seq was this one. Batches too far back are not known.
func (s *source) has(seq, digest uint64) bool {
	back := s.next - seq
	return back >= 1 && back <= uint64(len(s.seen)) && s.seen[uint64(len(s.seen))-back] == digest
}

// advance notes batch seq as the last one. Digests from before matter only while a replay may overlap the live stream.
func (s *source) advance(seq, digest uint64) {
	s.next = seq + 1
	switch {
	case !s.suspended:
		s.seen = append(s.seen[:0], digest)
	case len(s.seen) == maxSeen:
		copy(s.seen, s.seen[1:])
		s.seen[maxSeen-1] = digest
	default:
		s.seen = append(s.seen, digest)
	}
}

// lose gives up what is known of s, with its place in the stream.
func (a *Applier) lose(s *source) {
	s.started, s.whole, s.proven = false, false, false
	s.seen = nil
	a.loseBlocks(s)
}

// loseBlocks gives up what is known of the blocks of s.
func (a *Applier) loseBlocks(s *source) {
	a.flush()
	a.stats.Losses++
	for _, r := range s.ranks {
		a.drop(r)
	}
	clear(s.ranks)
	s.whole = false
	a.flush()
	if !s.suspended {
		a.stats.Clears++
		a.clear()
	}
}

// accept applies a batch that is the next one of s, or the first.
func (a *Applier) accept(number int, s *source, seq, digest uint64, payload []byte) error {
	if len(payload) > usualBytes {
		defer func() { a.batch, a.scratch = Batch{}, nil }()
	}
	err := Decode(&a.batch, payload, a.cfg.Limits)
	if seq == math.MaxUint64 && err == nil {
		err = errors.New("kvevents: the sequence number is that of the end of a replay")
	}
	if err != nil {
		a.stats.Invalid++
		if s.started {
			a.loseBlocks(s)
		}
		s.started = true
		s.advance(seq, digest)
		return fmt.Errorf("%w (source %d, sequence number %d)", err, number, seq)
	}
	if !s.started {
		s.started = true
		s.whole = seq == 0
	}
	s.advance(seq, digest)
	a.stats.Batches++
	for i := range a.batch.Events {
		// The rank is looked up each time, as a loss on the way gives all ranks up.
		r := s.ranks[a.batch.Rank]
		if r == nil {
			r = &rank{source: s, blocks: map[BlockHash]entry{}, whole: s.whole}
			s.ranks[a.batch.Rank] = r
		}
		switch e := &a.batch.Events[i]; e.Kind {
		case BlockStored:
			a.stored(r, e)
		case BlockRemoved:
			a.removed(r, e)
		case AllBlocksCleared:
			a.cleared(r)
		}
	}
	a.flush()
	return a.failed
}

// usualBytes is the size of a payload up to which the memory for it is kept for the next one: that of some prompts of 32k
// tokens.
const usualBytes = 256 << 10
