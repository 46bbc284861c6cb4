package baseline

import (
	"math"
	"slices"
	"sort"
	"time"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/world"
)

// forecast is an engine's state without the identity of its blocks, as it goes on if nothing else comes in. Its passes follow the
// rules of package sim. Times are ms from now.
type forecast struct {
	profile sim.Profile
	slow    float64
	at      float64
	running []sim.Open // in the order of admission
	waiting []sim.Open // from head on
	head    int
	free    int64 // blocks
	stuck   bool  // the first that waits does not fit, and nothing has become free since
	chunks  []int64
	left    []sim.Open // those that have ended, as long as their blocks may be found

	start float64 // of the newcomer's first pass
	first float64 // token of it
	end   float64 // of it; +Inf until then
	done  float64 // sum of the ends of all requests
}

// newcomerID names the request in question. The world's IDs are below it.
const newcomerID = math.MaxUint64

// load takes over the true state of an engine, at the given time since the start of the run; false = it is down.
func (f *forecast) load(t world.Truth, now time.Duration) bool {
	if !t.Up || t.Engine == nil {
		return false
	}
	s := t.Engine.State()
	f.profile, f.slow = t.Engine.Profile(), t.Slow
	f.at, f.free = 0, int64(s.Blocks-s.UsedBlocks)
	f.head, f.stuck, f.left = 0, false, f.left[:0]
	f.start, f.first, f.end, f.done = 0, 0, math.Inf(1), 0
	f.running = t.Engine.Opens(f.running[:0])
	f.waiting = append(f.waiting[:0], f.running[s.Running:]...)
	f.running = f.running[:s.Running]
	for _, r := range t.Coming {
		f.waiting = append(f.waiting, t.Engine.AsWaiting(r))
	}
	if t.PassEnd > 0 {
		f.at = max(float64(t.PassEnd-now)/1e6, 0)
		f.chunks = f.chunks[:0]
		for i := range f.running {
			f.chunks = append(f.chunks, f.running[i].Chunk)
		}
		f.over()
	}
	return true
}

// fits says that the request alone fits into the engine, with an output of that length.
func (f *forecast) fits(prompt, output int64) bool {
	return prompt+output-1 <= f.profile.Blocks()*f.profile.BlockSize
}

func (f *forecast) idle() bool { return len(f.running) == 0 && f.head == len(f.waiting) }

// until goes on until the newcomer is done or, with everybody, until all are.
func (f *forecast) until(everybody bool) {
	for !f.idle() && (everybody || math.IsInf(f.end, 1)) {
		if !f.leap() {
			f.pass()
		}
	}
}

func known(o *sim.Open) int64 { return o.PromptTokens + o.Generated }

func (f *forecast) blocks(tokens int64) int64 {
	return (tokens + f.profile.BlockSize - 1) / f.profile.BlockSize
}

// pass does one pass.
func (f *forecast) pass() {
	var s sim.Pass
	f.chunks = f.chunks[:0]
	budget, preempted := f.profile.Budget, false
running:
	for i := 0; i < len(f.running) && budget > 0; i++ {
		r := &f.running[i]
		chunk := min(known(r)-r.Computed, budget)
		need := f.blocks(r.Computed+chunk) - int64(r.Blocks)
		for need > f.free && len(f.running) > 1 {
			preempted = true
			f.preempt()
			if i == len(f.running) {
				break running
			}
		}
		f.take(r, &s, chunk, need)
		budget -= chunk
	}
	f.stuck = false
	for !preempted && budget > 0 && f.head < len(f.waiting) && len(f.running) < f.profile.MaxSeqs {
		r := f.waiting[f.head]
		idle := int64(r.Blocks - r.Shared) // cached and free: they are taken too
		from, found := f.share(&r)
		chunk := min(known(&r)-r.Computed, budget)
		need := f.blocks(r.Computed+chunk) - int64(r.Blocks)
		if need+idle > f.free {
			if len(f.running) > 0 {
				f.stuck = true
				break
			}
			f.free = f.profile.Blocks() // nobody is there: what is not free by the count was shared by those who have gone
		}
		f.head++
		f.free -= idle
		if from != nil {
			from.Shared += found // they are the newcomer's to free
		}
		r.Running = true
		if r.ID == newcomerID && f.start == 0 {
			f.start = f.at
		}
		f.running = append(f.running, r)
		f.take(&f.running[len(f.running)-1], &s, chunk, need)
		budget -= chunk
	}
	f.at += f.profile.PassTime(s) * f.slow
	f.over()
}

// share lets one that is to be admitted have the blocks that have become cached since it was looked up: those of others that run, or
// have ended since. It returns with whom it shares the more, if that one runs, and how many blocks.
func (f *forecast) share(r *sim.Open) (from *sim.Open, found int) {
	most := min(len(r.Hashes), int((known(r)-1)/f.profile.BlockSize))
	had := r.Blocks
	for i := range f.running {
		o := &f.running[i]
		computed := o.Computed
		if i < len(f.chunks) {
			computed += f.chunks[i]
		}
		if n := common(o, r, min(most, int(computed/f.profile.BlockSize))); n > r.Blocks {
			r.Blocks, from = n, o
		}
	}
	for i := range f.left {
		o := &f.left[i]
		if n := common(o, r, min(most, int(o.Computed/f.profile.BlockSize))); n > r.Blocks {
			r.Blocks, from = n, nil
		}
	}
	if r.Blocks > had {
		r.Computed = int64(r.Blocks) * f.profile.BlockSize
	}
	return from, r.Blocks - had
}

// common is the number of leading blocks, at most limit, that both have, if it is more than r has found; else at most that.
func common(o, r *sim.Open, limit int) int {
	limit = min(limit, len(o.Hashes))
	if limit <= r.Blocks || o.Hashes[r.Blocks] != r.Hashes[r.Blocks] {
		return r.Blocks
	}
	return r.Blocks + sort.Search(limit-r.Blocks, func(i int) bool { return o.Hashes[r.Blocks+i] != r.Hashes[r.Blocks+i] })
}

// take puts chunk tokens of a running request into the pass.
func (f *forecast) take(r *sim.Open, s *sim.Pass, chunk, need int64) {
	if need > 0 {
		r.Blocks += int(need)
		f.free -= need
	}
	after := r.Computed + chunk
	s.Tokens += chunk
	s.Seqs++
	if chunk == 1 && r.Generated > 0 && after == known(r) {
		s.DecodeContext += after
	} else {
		s.Pairs += float64(chunk) * (float64(r.Computed) + float64(chunk)/2)
	}
	f.chunks = append(f.chunks, chunk)
}

// preempt puts the last running request back to the front of the queue. What stays cached of it is not known: nothing.
func (f *forecast) preempt() {
	r := f.running[len(f.running)-1]
	f.running = f.running[:len(f.running)-1]
	f.free += int64(r.Blocks - r.Shared)
	r.Blocks, r.Shared, r.Computed, r.Running = 0, 0, 0, false
	if f.head == 0 {
		f.waiting = slices.Insert(f.waiting, 0, r)
		return
	}
	f.head--
	f.waiting[f.head] = r
}

// over ends a pass: chunks has the tokens of the first running requests.
func (f *forecast) over() {
	finished := false
	for i, chunk := range f.chunks {
		r := &f.running[i]
		if r.Computed += chunk; chunk == 0 || r.Computed < known(r) {
			continue
		}
		r.Generated++
		if r.ID == newcomerID && r.Generated == 1 {
			f.first = f.at
		}
		finished = finished || r.Generated >= r.OutputTokens
	}
	if finished {
		f.leave()
	}
}

// leave takes out those that are done.
func (f *forecast) leave() {
	kept := f.running[:0]
	for _, r := range f.running {
		if r.Generated < r.OutputTokens {
			kept = append(kept, r)
			continue
		}
		f.free += int64(r.Blocks - r.Shared)
		f.done += f.at
		if len(r.Hashes) > 0 {
			f.left = append(f.left, r)
		}
		if r.ID == newcomerID {
			f.end = f.at
		}
	}
	f.running = kept
	f.stuck = false
}

// leap does all passes at once up to the next end of a request, or as many as there is memory for, if they bring nothing but one more
// token for everybody. It returns false, and does nothing, if the next pass is another one.
func (f *forecast) leap() bool {
	seqs := int64(len(f.running))
	if seqs == 0 || seqs > f.profile.Budget || f.head < len(f.waiting) && !f.stuck && len(f.running) < f.profile.MaxSeqs {
		return false
	}
	n, context := f.free/seqs*f.profile.BlockSize, int64(0)
	for i := range f.running {
		r := &f.running[i]
		if r.Generated == 0 || known(r)-r.Computed != 1 {
			return false
		}
		context += known(r)
		n = min(n, r.OutputTokens-r.Generated)
	}
	if n < 1 {
		return false
	}
	one := f.profile.PassTime(sim.Pass{Tokens: seqs, Seqs: seqs, DecodeContext: context})
	f.at += (float64(n)*one + f.profile.PerContext*float64(seqs)*float64(n)*float64(n-1)/2) * f.slow
	finished := false
	for i := range f.running {
		r := &f.running[i]
		r.Computed += n
		r.Generated += n
		if need := f.blocks(r.Computed) - int64(r.Blocks); need > 0 {
			r.Blocks += int(need)
			f.free -= need
		}
		finished = finished || r.Generated >= r.OutputTokens
	}
	if finished {
		f.leave()
	}
	return true
}
