package world

import (
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// Outcome is how a request ended.
type Outcome uint8

const (
	// Open: it has not ended.
	Open Outcome = iota
	// Finished: its last token has come.
	Finished
	// Rejected: no engine was chosen, or none can hold it.
	Rejected
	// Failed: its engines failed it as often as it was tried.
	Failed
	// GaveUp: its client ran out of patience.
	GaveUp
	// Unfinished: the run ended before it did.
	Unfinished
)

// String returns the outcome in lower case.
func (o Outcome) String() string {
	if names := [...]string{"open", "finished", "rejected", "failed", "gave up", "unfinished"}; int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}

// Never is the time of what did not happen.
const Never = time.Duration(-1)

// Record is what became of a request. Times are since the start of the run, Never where it never came to that. Of a request that was
// tried more than once, Engine to PredictedCached are those of the last try: what its client got in the end. A Record is a plain value.
type Record struct {
	// Number is its number in the order of arrival.
	Number int
	// Class, Tenant, Session, Label, Gateway, Deadline, PromptTokens and OutputTokens are as they came; the output is what it would have.
	Class                      router.Class
	Tenant, Session, Label     string
	Gateway                    int
	Deadline                   time.Duration
	PromptTokens, OutputTokens int64

	// Arrival at the gateway; End there, whatever the Outcome.
	Arrival, End time.Duration
	Outcome      Outcome
	// Reason is the code of a rejection or failure.
	Reason string
	// Attempts is how often it was sent to an engine; Preemptions how often it lost its blocks there, all tries together.
	Attempts, Preemptions int
	// ColdLoad says that it made an engine load its adapter.
	ColdLoad bool

	// Engine is the number of the engine; -1 = none.
	Engine int
	// Sent by the gateway, Queued at the engine, Start of the first pass, FirstToken at the gateway.
	Sent, Queued, Start, FirstToken time.Duration
	// Cached is the number of prompt tokens that its engine had in its cache.
	Cached int64
	// ReportAge, Freshness and Degraded are what was known of the engine at the choice.
	ReportAge time.Duration
	Freshness telemetry.Class
	Degraded  bool
	// Terms and PredictedCached are what was expected of it.
	Terms           score.Terms
	PredictedCached int64
}

// TTFT is the time to the first token and whether there was one.
func (r *Record) TTFT() (time.Duration, bool) { return r.FirstToken - r.Arrival, r.FirstToken >= 0 }

// E2E is the time to the last token and whether it finished.
func (r *Record) E2E() (time.Duration, bool) { return r.End - r.Arrival, r.Outcome == Finished }

// TPOT is the mean time between its tokens and whether it finished and had more than one.
func (r *Record) TPOT() (time.Duration, bool) {
	if r.Outcome != Finished || r.OutputTokens < 2 {
		return 0, false
	}
	return (r.End - r.FirstToken) / time.Duration(r.OutputTokens-1), true
}

// Late says that it had a deadline and did not finish by then.
func (r *Record) Late() bool {
	return r.Deadline > 0 && (r.Outcome != Finished || r.End-r.Arrival > r.Deadline)
}

// check is what must hold of the times of a record.
func (r *Record) check() error {
	before := r.Arrival
	for _, t := range []struct {
		name string
		at   time.Duration
	}{{"Sent", r.Sent}, {"Queued", r.Queued}, {"Start", r.Start}, {"FirstToken", r.FirstToken}, {"End", r.End}} {
		if t.at == Never {
			continue
		}
		if t.at < before {
			return fmt.Errorf("request %d: %s at %v is before its cause at %v", r.Number, t.name, t.at, before)
		}
		before = t.at
	}
	if r.Outcome == Finished && (r.Start == Never || r.FirstToken == Never) {
		return fmt.Errorf("request %d finished without having been served", r.Number)
	}
	if r.Cached >= r.PromptTokens {
		return fmt.Errorf("request %d: %d of %d prompt tokens were cached, and the last never can be", r.Number, r.Cached, r.PromptTokens)
	}
	return nil
}

// EngineResult is what an engine did in a run. An EngineResult is a plain value.
type EngineResult struct {
	// ID is its name.
	ID string
	// Busy is the time it spent in passes.
	Busy time.Duration
	// Totals are its counters, all lives together; what a death took with it counts as cancelled.
	Totals sim.State
	// Lives is the number of its processes.
	Lives int
	// Series is its load over time.
	Series []Sample
}

// Result is the outcome of a run. A Result is a plain value.
type Result struct {
	// Records of all requests, by their numbers.
	Records []Record
	// Engines by their numbers.
	Engines []EngineResult
	// End is when the run ended, since its start.
	End time.Duration
}

// Digest is a hash of everything in the result: equal digests, equal results, to the last bit.
func (r *Result) Digest() uint64 {
	h := xxhash.New()
	for i := range r.Records {
		_, _ = fmt.Fprintf(h, "%+v\n", r.Records[i])
	}
	for i := range r.Engines {
		_, _ = fmt.Fprintf(h, "%+v\n", r.Engines[i])
	}
	_, _ = fmt.Fprintf(h, "%d\n", r.End)
	return h.Sum64()
}

// finish closes the books.
func (w *world) finish() {
	for i := range w.flights {
		if f := &w.flights[i]; f.stage != idle {
			w.tell(f, GivenUp, router.Usage{})
			w.end(int32(i), Unfinished)
		}
	}
	cut := w.cfg.Horizon > 0 && (w.owed > 0 || w.cutOff())
	for i := range w.records {
		r := &w.records[i]
		if err := r.check(); err != nil {
			w.fail("%w", err)
			return
		}
		if r.Outcome == Open {
			w.fail("request %d never ended", i)
			return
		}
	}
	for _, n := range w.nodes {
		if !n.up {
			continue
		}
		n.settle()
		s := n.engine.State()
		if in := s.Submitted - s.Finished - s.Cancelled; in != int64(s.Running+s.Waiting) || in != 0 && !cut {
			w.fail("engine %d: %d requests came in, %d finished, %d were cancelled, %d run, %d wait", n.number, s.Submitted, s.Finished,
				s.Cancelled, s.Running, s.Waiting)
			return
		}
		n.check(s.Running, s.Waiting, s.UsedBlocks)
	}
	for i, g := range w.gates {
		if len(g.slots) != g.nSlots {
			w.fail("gateway %d: %d of %d slots are open at the end", i, g.nSlots-len(g.slots), g.nSlots)
			return
		}
		if c, ok := g.chooser.(closer); ok {
			if err := c.Close(); err != nil {
				w.fail("gateway %d: %w", i, err)
				return
			}
		}
	}
}

// cutOff says that the horizon has left requests unfinished.
func (w *world) cutOff() bool {
	for i := range w.records {
		if w.records[i].Outcome == Unfinished {
			return true
		}
	}
	return false
}

func (w *world) result() *Result {
	r := &Result{Records: w.records, End: time.Duration(w.now)}
	for _, n := range w.nodes {
		r.Engines = append(r.Engines, EngineResult{
			ID: n.cfg.ID, Busy: time.Duration(n.busyTime), Totals: n.total(), Lives: n.life, Series: n.series,
		})
	}
	return r
}
