package world

import (
	"fmt"
	"time"

	"github.com/isobar-go/isobar/internal/sim"
)

// node is an engine with its clock. At any time it does nothing, or one pass (busy), or a run of quiet passes (leaping), of
// which only the end is an event; settle turns the run into the single pass that is open at the moment.
type node struct {
	world  *world
	number int
	cfg    Engine
	engine *sim.Engine
	life   int       // of the process, from 1
	epoch  string    // names it in reports
	up     bool      // false: the process is not there
	past   sim.State // counters of earlier lives

	slow   float64 // factor on the time of passes
	frozen bool

	busy      bool
	passStart int64
	passEnd   int64
	passStall int64 // of it, frozen
	leaping   bool
	ends      []int64 // of the quiet passes of the run
	quiet     []float64
	token     uint64 // of the event that ends the pass or run; an older one is void
	passes    int64  // in this life, completed

	busyTime int64 // ns
	skew     int64 // of the times of its reports, ns
	silent   bool
	stuck    bool // its reports do not change
	stale    Report
	gone     bool // operators have taken it out
	draining bool // operators want no new requests on it

	adapters adapters
	series   []Sample
}

// boot starts a process with an empty cache.
func (n *node) boot() error {
	e, err := sim.New(n.cfg.Profile, sim.Options{KVEvents: n.world.cfg.Cache.Exact})
	if err != nil {
		return err
	}
	n.engine, n.up, n.passes = e, true, 0
	n.life++
	n.epoch = fmt.Sprintf("%s/%d", n.cfg.ID, n.life)
	n.adapters = newAdapters(n.cfg.AdapterSlots)
	return nil
}

// lasts is the duration of a pass, ns; the product is rounded before it is added, on every processor alike.
func (n *node) lasts(ms float64) int64 { return int64(float64(ms*n.slow*1e6) + 0.5) }

// work starts the next pass, or run of quiet passes, if there is something to do and nothing is under way.
func (n *node) work() {
	if n.busy || n.leaping || !n.up || n.frozen {
		return
	}
	if n.world.leap && n.tryLeap() {
		return
	}
	n.open(n.world.now)
}

// maxLeap bounds a run of quiet passes where no progress is reported.
const maxLeap = 256

func (n *node) tryLeap() bool {
	limit := maxLeap
	if every := n.world.cfg.ProgressEvery; every > 0 {
		limit = every - int(n.passes%int64(every))
	}
	if limit < 2 {
		return false
	}
	n.quiet = n.engine.Quiet(limit, n.quiet[:0])
	if len(n.quiet) < 2 {
		return false
	}
	n.passStart, n.ends = n.world.now, n.ends[:0]
	at := n.passStart
	for _, ms := range n.quiet {
		at += n.lasts(ms)
		n.ends = append(n.ends, at)
	}
	n.leaping = true
	n.schedule(at)
	return true
}

// open begins one pass at the given time, which may lie behind where a run of quiet passes is cut.
func (n *node) open(at int64) {
	ms, ok := n.engine.Begin()
	if !ok {
		if s := n.engine.State(); s.Running != 0 || s.Waiting != 0 || s.UsedBlocks != 0 {
			n.world.fail("engine %d idles: %d requests run, %d wait, %d blocks are used", n.number, s.Running, s.Waiting, s.UsedBlocks)
		}
		return
	}
	n.busy, n.passStart, n.passStall = true, at, 0
	n.schedule(at + n.lasts(ms))
	n.collect()
}

// schedule sets when the pass or run ends and makes an earlier event for it void.
func (n *node) schedule(end int64) {
	n.token++
	n.passEnd = end
	n.world.push(end, evPass, uint64(n.number), n.token)
}

// settle cuts a run of quiet passes at the present: those that have ended are done, and the one that is under way is open.
func (n *node) settle() {
	if !n.leaping {
		return
	}
	n.leaping = false
	done := 0
	for done < len(n.ends) && n.ends[done] <= n.world.now {
		done++
	}
	n.skip(done)
	if done == len(n.ends) {
		n.world.fail("engine %d: a run of quiet passes has not ended in time", n.number)
		return
	}
	n.open(n.passStart)
}

// skip does the first quiet passes of the run.
func (n *node) skip(done int) {
	if done == 0 {
		return
	}
	if n.engine.Skip(done) != done {
		n.world.fail("engine %d has fewer than %d quiet passes", n.number, done)
	}
	n.busyTime += n.ends[done-1] - n.passStart
	n.passStart = n.ends[done-1]
	n.passes += int64(done)
}

// passOver ends the pass or run for which the event was meant.
func (n *node) passOver(token uint64) {
	if token != n.token || !n.busy && !n.leaping {
		return
	}
	w := n.world
	if n.leaping {
		n.leaping = false
		n.skip(len(n.ends))
	} else {
		n.busyTime += w.now - n.passStart - n.passStall
		n.passes++
		w.events = n.engine.End(w.events[:0])
		for i := range w.events {
			n.happened(&w.events[i])
		}
		n.busy = false // only now: a place that became free must not start the next pass before this one is taken down
	}
	if every := int64(w.cfg.ProgressEvery); every > 0 && n.passes%every == 0 {
		w.report(n)
	}
	n.work()
	n.collect()
}

// happened takes down one event of a pass.
func (n *node) happened(e *sim.Event) {
	if e.Kind == sim.Token {
		return
	}
	w := n.world
	f := w.flightOf(e.ID)
	if f == nil { // withdrawn by its client, which its engine does not know yet
		if e.Kind == sim.Finished {
			n.freeAdapter(e.ID)
		}
		return
	}
	r := &w.records[f.number]
	switch e.Kind {
	case sim.Admitted:
		if r.Start == Never {
			r.Start, r.Cached = time.Duration(n.passStart), e.Tokens
			if r.Start < r.Queued {
				w.fail("request %d starts at %v, before it is there", f.number, r.Start)
			}
		}
	case sim.Preempted:
		r.Preemptions++
	case sim.FirstToken:
		w.push(w.now+w.net(), evFirst, f.who(), e.ID)
	case sim.Finished:
		f.stage = ended
		n.freeAdapter(e.ID)
		w.push(w.now+w.net(), evDone, f.who(), e.ID)
	}
}

// crash kills the process with all that is inside, and drops what it has cached.
func (n *node) crash() {
	w := n.world
	n.settle()
	if n.busy && !n.frozen {
		n.busyTime += w.now - n.passStart - n.passStall
	}
	n.busy = false
	n.token++
	s := n.engine.State()
	n.past = n.total()
	n.past.Cancelled += s.Submitted - s.Finished - s.Cancelled // what died inside counts as cancelled
	n.up, n.frozen, n.stuck = false, false, false
	for i := range w.flights {
		f := &w.flights[i]
		if f.engine == n.number && (f.stage == inside || f.stage == loading) {
			w.breakOff(f, f.id(int32(i)))
		}
	}
	n.engine = nil
	n.adapters = newAdapters(0)
}

// total are its counters over all lives.
func (n *node) total() sim.State {
	t := n.past
	if n.engine == nil {
		return t
	}
	s := n.engine.State()
	t.Submitted += s.Submitted
	t.Finished += s.Finished
	t.Cancelled += s.Cancelled
	t.Preemptions += s.Preemptions
	t.Passes += s.Passes
	t.CacheQueries += s.CacheQueries
	t.CacheHits += s.CacheHits
	t.PromptTokens += s.PromptTokens
	t.GeneratedTokens += s.GeneratedTokens
	t.PrefilledTokens += s.PrefilledTokens
	return t
}
