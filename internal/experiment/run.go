package experiment

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/isobar-go/isobar/internal/baseline"
	"github.com/isobar-go/isobar/internal/workload"
	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/router"
)

// Result is what came out of a cell. A Result is a plain value.
type Result struct {
	Cell
	// Figures of all requests.
	Figures world.Figures
	// Classes are the figures of each priority class that the workload has, in the order of the classes; empty if it has only
	// one.
	Classes []ClassFigures
	// End is when the last request ended, since the start.
	End time.Duration
	// Regret is that of its choices, where the policy is watched.
	Regret ChoiceRegret
	// Detail is the whole result, where Grid.Keep asks for it.
	Detail *world.Result
}

// ClassFigures are the figures of one class. A ClassFigures is a plain value.
type ClassFigures struct {
	// Class they are of.
	Class   router.Class
	Figures world.Figures
}

// ChoiceRegret is by what share choices were worse than the best ones at their moments, all choices of a run together. A
// ChoiceRegret is a plain value.
type ChoiceRegret struct {
	// Choices that were looked at.
	Choices int
	// Own is by what share the sum of the requests' own predicted completions exceeds the least possible, choice by choice; Others likewise
	// by what requests add to all completions.
	Own, Others float64
}

// regrets gathers the regret of choices.
type regrets struct {
	n                       int
	own, best, added, least float64
}

func (s *regrets) see(r baseline.Regret) {
	if math.IsInf(r.Own, 1) || math.IsInf(r.All, 1) { // it went to an engine that was down, which failures tell of
		return
	}
	s.n++
	s.own += r.Own
	s.best += r.Chosen - r.Own
	s.added += r.All
	s.least += r.Added - r.All
}

func (s *regrets) sum() ChoiceRegret {
	out := ChoiceRegret{Choices: s.n}
	if s.best > 0 {
		out.Own = s.own / s.best
	}
	if s.least > 0 {
		out.Others = s.added / s.least
	}
	return out
}

// Run plays the grid and hands every result to sink, in the order of workloads, fleets, loads, seeds, gateways, periods and
// policies, from the calling goroutine. It returns what it has found of saturations, in the order of workloads and fleets. An error
// of the grid, of a cell or of sink ends the run, and so does ctx, between cells.
func Run(ctx context.Context, g Grid, sink func(Result) error) ([]Saturation, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	g = g.WithDefaults()
	if g.Parallel == 0 {
		g.Parallel = runtime.GOMAXPROCS(0)
	}
	type pair struct {
		w Workload
		f Fleet
	}
	var pairs []pair
	for _, w := range g.Workloads {
		for _, f := range g.Fleets {
			pairs = append(pairs, pair{w, f})
		}
	}
	var found []Saturation
	search := func(p pair) (Saturation, error) { return g.Saturation(p.w, p.f) }
	err := inOrder(ctx, g.Parallel, slices.Values(pairs), search, func(s Saturation) error {
		found = append(found, s)
		g.tell(Progress{Searching: true, Done: len(found), Total: len(pairs)})
		return nil
	})
	if err != nil {
		return nil, err
	}
	done, total := 0, g.Cells()
	err = inOrder(ctx, g.Parallel, g.jobs(found), g.do, func(r Result) error {
		done++
		g.tell(Progress{Done: done, Total: total})
		return sink(r)
	})
	return found, err
}

func (g *Grid) tell(p Progress) {
	if g.Progress != nil {
		g.Progress(p)
	}
}

// job is a cell with what it needs.
type job struct {
	cell     Cell
	policy   Policy
	fleet    Fleet
	keep     bool
	scenario *scenario
}

// scenario is one workload that several cells share, made when the first of them needs it. It goes when the last of them is done.
type scenario struct {
	once sync.Once
	make func() (workload.Scenario, error)
	s    workload.Scenario
	err  error
}

func (s *scenario) get() (*workload.Scenario, error) {
	s.once.Do(func() { s.s, s.err = s.make() })
	return &s.s, s.err
}

// jobs lists the cells one by one.
func (g *Grid) jobs(found []Saturation) func(yield func(job) bool) {
	return func(yield func(job) bool) {
		pair := 0
		for _, w := range g.Workloads {
			for _, f := range g.Fleets {
				speed := found[pair].Speed
				pair++
				if !g.jobsOf(w, f, speed, yield) {
					return
				}
			}
		}
	}
}

func (g *Grid) jobsOf(w Workload, f Fleet, saturation float64, yield func(job) bool) bool {
	for _, load := range g.Loads {
		for k, seed := range g.seeds(w.Seeds) {
			s := &scenario{make: func() (workload.Scenario, error) { return w.Build(f, seed, load*saturation) }}
			for _, gateways := range g.Gateways {
				for _, period := range g.Periods {
					for _, p := range g.Policies {
						if k >= len(g.seeds(p.Seeds)) {
							continue
						}
						j := job{policy: p, fleet: f, scenario: s, cell: Cell{
							Group:  Group{Workload: w.Name, Fleet: f.Name, Load: load, Period: period, Gateways: gateways},
							Policy: p.Name, Seed: seed, Speed: load * saturation,
						}}
						j.keep = g.Keep != nil && g.Keep(j.cell)
						if !yield(j) {
							return false
						}
					}
				}
			}
		}
	}
	return true
}

// do plays a cell.
func (g *Grid) do(j job) (Result, error) {
	fail := func(err error) (Result, error) {
		return Result{}, fmt.Errorf("experiment: %s, %v, seed %d: %w", j.policy.Name, j.cell.Group, j.cell.Seed, err)
	}
	s, err := j.scenario.get()
	if err != nil {
		return fail(err)
	}
	sample := time.Duration(world.None)
	if j.keep {
		sample = g.SampleEvery
	}
	choose, seen := j.policy.Make, regrets{}
	if j.policy.Watched {
		choose = baseline.Watch(choose, seen.see)
	}
	r, err := g.play(j.fleet, s, choose, j.cell.Seed, j.cell.Gateways, j.cell.Period, sample)
	if err != nil {
		return fail(err)
	}
	out := Result{Cell: j.cell, Figures: r.Figures(g.SLO), End: r.End, Regret: seen.sum()}
	out.Classes = classes(r.Records, g.SLO)
	if j.keep {
		out.Detail = r
	}
	return out, nil
}

// Play plays a single cell: its period, gateways, seed and speed count. The result has series.
func (g Grid) Play(w Workload, f Fleet, p Policy, c Cell) (*world.Result, error) {
	g = g.WithDefaults()
	s, err := w.Build(f, c.Seed, c.Speed)
	if err != nil {
		return nil, err
	}
	return g.play(f, &s, p.Make, c.Seed, c.Gateways, c.Period, g.SampleEvery)
}

func classes(records []world.Record, slo world.SLO) []ClassFigures {
	var seen []router.Class
	for i := range records {
		if c := records[i].Class; !slices.Contains(seen, c) {
			seen = append(seen, c)
		}
	}
	if len(seen) < 2 {
		return nil
	}
	slices.Sort(seen)
	var out []ClassFigures
	for _, c := range seen {
		out = append(out, ClassFigures{c, world.Summarize(records, slo, func(r *world.Record) bool { return r.Class == c })})
	}
	return out
}

// inOrder does jobs on several goroutines and hands their results over in the order of the jobs, from the calling goroutine. At
// most four results for each goroutine wait to be handed over. The first error, in the order of the jobs, ends it.
func inOrder[J, R any](ctx context.Context, parallel int, jobs func(yield func(J) bool), do func(J) (R, error), sink func(R) error) error {
	type answer struct {
		r   R
		err error
	}
	type task struct {
		j   J
		out chan answer
	}
	ctx, cancel := context.WithCancel(ctx)
	tasks := make(chan task)
	order := make(chan chan answer, 4*parallel)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for range parallel {
		all.Go(func() {
			for t := range tasks {
				if err := ctx.Err(); err != nil {
					t.out <- answer{err: err}
					continue
				}
				r, err := do(t.j)
				t.out <- answer{r, err}
			}
		})
	}
	all.Go(func() {
		defer close(tasks)
		defer close(order)
		for j := range jobs {
			t := task{j, make(chan answer, 1)}
			select {
			case order <- t.out:
			case <-ctx.Done():
				return
			}
			tasks <- t
		}
	})
	for out := range order {
		a := <-out
		if a.err == nil {
			a.err = sink(a.r)
		}
		if a.err != nil {
			return a.err
		}
	}
	return ctx.Err()
}
