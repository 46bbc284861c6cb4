package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/isobar-go/isobar/examples/replay/internal/report"
	"github.com/isobar-go/isobar/internal/experiment"
	"github.com/isobar-go/isobar/internal/workload"
	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/router"
)

// agenticSeeds is at how many seeds the agentic workload is played unless a number is given: its prompts are so long that a run
// takes as long as ten others.
const agenticSeeds = 2

// plan makes the grid of the flags.
func plan(o *options) (experiment.Grid, []report.Fact, error) {
	g := experiment.Grid{Loads: o.loads, Periods: o.ages, Gateways: o.gateways, Exact: o.exact, Parallel: o.parallel}
	g.Search.Tolerance = 0.04
	for k := range o.seeds {
		g.Seeds = append(g.Seeds, o.firstSeed+uint64(k))
	}
	for _, name := range o.policies {
		p, err := experiment.PolicyByName(name)
		if err != nil {
			return g, nil, err
		}
		if slices.Contains(experiment.Oracles(), name) {
			p.Seeds = o.oracleSeeds
		}
		g.Policies = append(g.Policies, p)
	}
	g.Policies[0].Watched = o.watch
	if o.ablation {
		for _, p := range experiment.Ablations() {
			if !slices.Contains(o.policies, p.Name) {
				g.Policies = append(g.Policies, p)
			}
		}
	}
	for _, n := range o.engines {
		for _, p := range o.profiles {
			f, err := experiment.NewFleet(n, strings.Split(p, "+")...)
			if err != nil {
				return g, nil, err
			}
			g.Fleets = append(g.Fleets, f)
		}
	}
	facts := []report.Fact{{Name: "seeds", Value: fmt.Sprintf("%d, from %d", o.seeds, o.firstSeed)}}
	if o.trace != "" {
		w, fact, err := readTrace(o)
		if err != nil {
			return g, nil, err
		}
		g.Workloads = []experiment.Workload{w}
		facts = append(facts, fact...)
	} else {
		for _, name := range o.workloads {
			w, err := experiment.BuiltIn(name, o.requests)
			if err != nil {
				return g, nil, err
			}
			if name == "agentic" && !o.given["seeds"] {
				w.Seeds = agenticSeeds
			}
			g.Workloads = append(g.Workloads, w)
		}
		facts = append(facts, report.Fact{
			Name:  "requests",
			Value: fmt.Sprintf("about %d of shared-prefixes in a run for 8 engines, of others as many as last about as long", o.requests),
		})
	}
	facts = append(facts,
		report.Fact{Name: "goodput", Value: "share of requests with the first token within 2 s and at most 50 ms per token"},
		report.Fact{Name: "runs", Value: fmt.Sprint(g.Cells())})
	return g, facts, g.Validate()
}

func readTrace(o *options) (experiment.Workload, []report.Fact, error) {
	fail := func(err error) (experiment.Workload, []report.Fact, error) {
		return experiment.Workload{}, nil, fmt.Errorf("replay: flag -trace: %w", err)
	}
	r, err := workload.OpenFile(o.trace, workload.ReadOptions{Format: workload.Format(o.format)})
	if err != nil {
		return fail(err)
	}
	all, err := workload.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		return fail(err)
	}
	if o.requests > 0 {
		if all, err = workload.Head(all, o.requests); err != nil {
			return fail(err)
		}
	}
	summary := workload.Summarize(all)
	replay := experiment.Replay{Jitter: o.jitter, Shared: summary.Hit > 0.5}
	if r.Format() == workload.FormatSessions {
		replay.Jitter, replay.SessionRate, replay.Closed = 0, o.sessionRate, !o.open
	}
	if o.given["guess"] {
		replay.Guess = workload.Guess{Bias: 1, Sigma: o.guess}
	}
	name := filepath.Base(o.trace)
	w, err := experiment.FromTrace(name, all, replay)
	if err != nil {
		return fail(err)
	}
	return w, []report.Fact{{Name: "trace", Value: fmt.Sprintf("%s (%s): %s", name, r.Format(), summary)}}, nil
}

// compare plays the grid and writes the report.
func compare(ctx context.Context, o *options, stdout, stderr io.Writer) error {
	g, facts, err := plan(o)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("replay: flag -out: %w", err)
	}
	r := newReport(o, &g, facts)
	if isTerminal(stderr) {
		done := progress(&g, stderr)
		defer done()
	}
	g.Keep = keeper(&g)
	table := experiment.NewTable(r.Oracle)
	err = writeFile(filepath.Join(o.out, "runs.csv"), func(w io.Writer) error {
		runs, err := report.NewRunsCSV(w)
		if err != nil {
			return err
		}
		r.Saturations, err = experiment.Run(ctx, g, func(x experiment.Result) error {
			table.Add(x)
			focus(r, &x)
			return runs.Add(x)
		})
		return errors.Join(err, runs.Flush())
	})
	if err != nil {
		return err
	}
	r.Rows = table.Rows()
	r.Verdicts = verdicts(r, &g)
	for name, write := range map[string]func(io.Writer) error{"report.html": r.HTML, "report.json": r.JSON, "figures.csv": r.CSV} {
		if err := writeFile(filepath.Join(o.out, name), write); err != nil {
			return err
		}
	}
	if o.receipts != "" {
		if err := writeReceipts(o.receipts, g, r.Saturations[0]); err != nil {
			return err
		}
	}
	if err := r.Text(stdout, report.Look{Color: isTerminal(stdout), Full: o.full}); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "\nThe report is %s\n", filepath.Join(o.out, "report.html"))
	return err
}

func newReport(o *options, g *experiment.Grid, facts []report.Fact) *report.Report {
	r := &report.Report{Title: "Routing policies compared", Facts: facts, Candidate: g.Policies[0].Name}
	for _, p := range g.Policies {
		switch {
		case slices.Contains(experiment.Oracles(), p.Name):
			if p.Name == experiment.Oracle {
				r.Oracle = p.Name
			}
			r.Aside = append(r.Aside, p.Name)
		case p.Name == experiment.OwnOnlyDefault && p.Name != r.Candidate:
			r.Aside = append(r.Aside, p.Name)
		}
	}
	for _, p := range experiment.Ablations() {
		if p.Name != r.Candidate && (o.ablation || slices.Contains(o.policies, p.Name)) {
			r.Aside = append(r.Aside, p.Name)
			r.Ablations = append(r.Ablations, p.Name)
		}
	}
	return r
}

// keeper chooses what plots show: of each workload the first fleet, gateways, period and seed, and the greatest load that is below
// saturation, or else the least.
func keeper(g *experiment.Grid) func(experiment.Cell) bool {
	load := slices.Min(g.Loads)
	for _, l := range g.Loads {
		if l <= 1 {
			load = max(load, l)
		}
	}
	return func(c experiment.Cell) bool {
		return c.Fleet == g.Fleets[0].Name && c.Gateways == g.Gateways[0] && c.Period == g.Periods[0] && c.Seed == g.Seeds[0] && c.Load == load
	}
}

// focus keeps what plots need of a result in detail.
func focus(r *report.Report, x *experiment.Result) {
	if x.Detail == nil {
		return
	}
	n := len(r.Focus)
	if n == 0 || r.Focus[n-1].Group != x.Group {
		r.Focus = append(r.Focus, report.Focus{Group: x.Group, Seed: x.Seed})
		n++
	}
	r.Focus[n-1].Runs = append(r.Focus[n-1].Runs, report.Digest(*x))
}

// verdicts holds the first policy against the others, oracles and its own variants left out.
func verdicts(r *report.Report, g *experiment.Grid) []experiment.Verdict {
	roles := experiment.Roles{Candidate: r.Candidate, OwnOnly: experiment.OwnOnly(), Shared: func(name string) bool {
		i := slices.IndexFunc(g.Workloads, func(w experiment.Workload) bool { return w.Name == name })
		return i >= 0 && g.Workloads[i].Shared
	}}
	for _, p := range g.Policies {
		if p.Name != r.Candidate && !slices.Contains(r.Aside, p.Name) {
			roles.Baselines = append(roles.Baselines, p.Name)
		}
	}
	return experiment.Accept(r.Rows, roles)
}

// searchSteps is how many runs a search for a saturation takes, about.
const searchSteps = 14

// progress shows a bar with the time left. What it returns ends it.
func progress(g *experiment.Grid, w io.Writer) func() {
	searches := len(g.Workloads) * len(g.Fleets)
	bar := progressbar.NewOptions(searches*searchSteps+g.Cells(), progressbar.OptionSetWriter(w), progressbar.OptionSetPredictTime(true),
		progressbar.OptionShowCount(), progressbar.OptionSetWidth(30), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(), progressbar.OptionSetDescription("saturation"))
	g.Progress = func(p experiment.Progress) {
		at := p.Done * searchSteps
		if !p.Searching {
			bar.Describe("policies")
			at = searches*searchSteps + p.Done
		}
		_ = bar.Set(at) // a bar that can not be drawn is no reason to stop
	}
	return func() { _ = bar.Finish() }
}

// writeReceipts plays the default policy at the first place of the grid and writes what it decided, line by line in the order in
// which requests ended. The file is the same for the same flags: it does not go through a buffer that drops.
func writeReceipts(name string, g experiment.Grid, at experiment.Saturation) error {
	return writeFile(name, func(w io.Writer) error {
		keep := &recorder{enc: json.NewEncoder(w)}
		g = g.WithDefaults()
		cfg := router.Config{Receipts: router.Receipts{Observer: keep}}
		first := experiment.Cell{Group: experiment.Group{Load: g.Loads[0], Period: g.Periods[0], Gateways: g.Gateways[0]}, Seed: g.Seeds[0]}
		first.Speed = first.Load * at.Speed
		_, err := g.Play(g.Workloads[0], g.Fleets[0], experiment.Policy{Make: world.PoolChooser(cfg)}, first)
		return errors.Join(err, keep.err)
	})
}

// recorder writes receipts, rejections when they are made, leases when they end. A run tells it by one goroutine.
type recorder struct {
	enc *json.Encoder
	err error
}

func (k *recorder) write(r *router.Receipt) {
	if k.err == nil {
		k.err = k.enc.Encode(r)
	}
}

// Decided writes rejections.
func (k *recorder) Decided(r *router.Receipt) {
	if r.Rejected != "" {
		k.write(r)
	}
}

// Ended writes what was granted.
func (k *recorder) Ended(r *router.Receipt) { k.write(r) }
