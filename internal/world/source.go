package world

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/isobar-go/isobar/router"
)

// Ask is what a client says about its request. It has no output length: nobody knows it beforehand. An Ask is a plain value.
type Ask struct {
	// Model is the model asked for; empty = any engine.
	Model string
	// PromptTokens is the length of the prompt, tokens, at least 1.
	PromptTokens int64
	// MaxOutputTokens is the limit the client sets, tokens; 0 = none.
	MaxOutputTokens int64
	// ExpectedOutputTokens is an estimate, tokens, right or wrong; 0 = none.
	ExpectedOutputTokens int64
	// Adapter it needs; the zero value = the base model.
	Adapter router.Adapter
	// Tenant and Session it belongs to; empty = none.
	Tenant, Session string
	// Class is its priority.
	Class router.Class
	// Deadline is how long after its arrival its result is worth something; 0 = for ever.
	Deadline time.Duration
}

// Arrival is a request that a source sends. An Arrival is a plain value.
type Arrival struct {
	// At is when it arrives at its gateway, since the start.
	At time.Duration
	// Ask is what is said about it.
	Ask Ask
	// Blocks are the chained hashes of the full blocks of the prompt and, where the source knows them, of what the output
	// fills after it, in blocks of the engines' size: see sim.Request. Hashes must differ wherever a cache may not be shared
	// (tenant, adapter). The world keeps the slice and only reads it. Routers see those of the prompt only.
	Blocks []uint64
	// OutputTokens is how much it will generate, tokens, at least 1. Only the engine knows.
	OutputTokens int64
	// Patience is how long after its arrival the client gives up; 0 = never.
	Patience time.Duration
	// Key is the source's own number for it; it comes back with Finished.
	Key int64
	// Label is the part of the workload it belongs to, for reports; may be empty.
	Label string
}

// End is the end of a request, as its client sees it. An End is a plain value.
type End struct {
	// Key and Number are the source's and the world's number of the request.
	Key    int64
	Number int
	// At is when it ended, since the start.
	At time.Duration
	// Outcome is how.
	Outcome Outcome
}

// Source sends the requests of a run. It is called by the goroutine of the run alone.
type Source interface {
	// Peek returns when the next arrival known so far comes, and false if none is known: in a closed loop, Finished may bring
	// more. The run is over when none is known and all requests have ended. Nothing may arrive before what has passed.
	Peek() (at time.Duration, ok bool)
	// Next returns the arrival that Peek has seen and goes on to the one after it; false exactly if Peek is.
	Next() (Arrival, bool)
	// Finished tells that a request has ended.
	Finished(e End)
	// Err is what stopped the source; nil at its regular end. It fails the run.
	Err() error
}

// List is a source with all its arrivals known beforehand. It belongs to one run.
type List struct {
	arrivals []Arrival
	next     int
}

// NewList makes a source of arrivals, in the order of their times; equal times keep their order. It keeps the slice.
func NewList(arrivals []Arrival) *List {
	slices.SortStableFunc(arrivals, func(a, b Arrival) int { return cmp.Compare(a.At, b.At) })
	return &List{arrivals: arrivals}
}

// Peek returns the time of the next arrival.
func (l *List) Peek() (time.Duration, bool) {
	if l.next == len(l.arrivals) {
		return 0, false
	}
	return l.arrivals[l.next].At, true
}

// Next returns the next arrival.
func (l *List) Next() (Arrival, bool) {
	if l.next == len(l.arrivals) {
		return Arrival{}, false
	}
	l.next++
	return l.arrivals[l.next-1], true
}

// Finished does nothing: the list does not depend on it.
func (l *List) Finished(End) {}

// Err is nil.
func (l *List) Err() error { return nil }

// check names the first field of an arrival that is out of range.
func (a *Arrival) check(blockTokens int64) error {
	for _, f := range []struct {
		name         string
		value, least int64
	}{
		{"PromptTokens", a.Ask.PromptTokens, 1}, {"OutputTokens", a.OutputTokens, 1},
		{"MaxOutputTokens", a.Ask.MaxOutputTokens, 0}, {"ExpectedOutputTokens", a.Ask.ExpectedOutputTokens, 0},
		{"Deadline", int64(a.Ask.Deadline), 0}, {"Patience", int64(a.Patience), 0},
	} {
		if f.value < f.least || f.value > maxFigure {
			return fmt.Errorf("field %s = %d is not in %d to %d", f.name, f.value, f.least, int64(maxFigure))
		}
	}
	if most := (a.Ask.PromptTokens + a.OutputTokens) / blockTokens; int64(len(a.Blocks)) > most {
		return fmt.Errorf("field Blocks has %d hashes, the request fills %d blocks", len(a.Blocks), most)
	}
	return nil
}
