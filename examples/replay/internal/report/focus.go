package report

import (
	"math"
	"slices"
	"time"

	"github.com/isobar-go/isobar/internal/experiment"
	"github.com/isobar-go/isobar/internal/world"
)

// Focus is a place of the grid with one run of each policy in detail. A Focus is a plain value.
type Focus struct {
	// Group is the place, Seed that of the runs.
	Group experiment.Group
	Seed  uint64
	// Runs, one for each policy.
	Runs []Run
}

// Run is what plots need of a run. A Run is a plain value.
type Run struct {
	// Policy is its name.
	Policy string
	// Classes in their order.
	Classes []Times
	// Points are requests: what was predicted of their start and what became of it. Empty where nothing was predicted.
	Points []Point
	// Loads are the requests at each engine over time.
	Loads []Load
}

// Times are quantiles of a class. A Times is a plain value.
type Times struct {
	// Class is its name.
	Class string
	// TTFT, TPOT and E2E in ms, evenly spaced from the least to the greatest; empty if there are none.
	TTFT, TPOT, E2E []float64
}

// Point is one request. A Point is a plain value.
type Point struct {
	// Class is the name of its class.
	Class string
	// Predicted and Observed time from the choice to the first token, ms.
	Predicted, Observed float64
}

// Load is one engine over time. A Load is a plain value.
type Load struct {
	// Engine is its name.
	Engine string
	// At in seconds, Requests running and waiting there.
	At, Requests []float64
}

const (
	maxPoints    = 700 // of a scatter: more make the page heavy and the plot no clearer
	maxSamples   = 240 // of a line over time
	maxQuantiles = 101
)

// Digest takes from a result in detail what plots need.
func Digest(r experiment.Result) Run {
	run := Run{Policy: r.Policy}
	if r.Detail == nil {
		return run
	}
	records := r.Detail.Records
	var seen []string
	for i := range records {
		if c := records[i].Class.String(); !slices.Contains(seen, c) {
			seen = append(seen, c)
		}
	}
	slices.Sort(seen)
	for _, class := range seen {
		run.Classes = append(run.Classes, times(class, records))
	}
	run.Points = points(records)
	for _, e := range r.Detail.Engines {
		step := max(1, (len(e.Series)+maxSamples-1)/maxSamples)
		l := Load{Engine: e.ID}
		for i := 0; i < len(e.Series); i += step {
			s := e.Series[i]
			l.At = append(l.At, s.At.Seconds())
			l.Requests = append(l.Requests, float64(s.Running+s.Waiting))
		}
		run.Loads = append(run.Loads, l)
	}
	return run
}

func millis(d time.Duration) float64 { return float64(d) / 1e6 }

func times(class string, records []world.Record) Times {
	var ttft, tpot, e2e []float64
	for i := range records {
		x := &records[i]
		if x.Class.String() != class || x.Outcome != world.Finished {
			continue
		}
		if t, ok := x.TTFT(); ok {
			ttft = append(ttft, millis(t))
		}
		if t, ok := x.TPOT(); ok {
			tpot = append(tpot, millis(t))
		}
		if t, ok := x.E2E(); ok {
			e2e = append(e2e, millis(t))
		}
	}
	return Times{Class: class, TTFT: quantiles(ttft), TPOT: quantiles(tpot), E2E: quantiles(e2e)}
}

func quantiles(v []float64) []float64 {
	slices.Sort(v)
	if len(v) <= maxQuantiles {
		return v
	}
	out := make([]float64, maxQuantiles)
	for i := range out {
		out[i] = v[int(math.Round(float64(i)/(maxQuantiles-1)*float64(len(v)-1)))]
	}
	return out
}

func points(records []world.Record) []Point {
	var all []Point
	for i := range records {
		x := &records[i]
		if start := x.Terms.Start(); start > 0 && x.FirstToken >= 0 {
			all = append(all, Point{x.Class.String(), start, millis(x.FirstToken - x.Sent)})
		}
	}
	if len(all) <= maxPoints {
		return all
	}
	out := make([]Point, 0, maxPoints)
	for i := range maxPoints {
		out = append(out, all[i*len(all)/maxPoints])
	}
	return out
}
