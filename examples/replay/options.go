package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/isobar-go/isobar/internal/experiment"
	"github.com/isobar-go/isobar/internal/workload"
	"github.com/isobar-go/isobar/router"
)

// options are what the flags say.
type options struct {
	quick, ablation, watch, open, exact, full bool

	policies, workloads, profiles []string
	loads                         []float64
	engines, gateways             []int
	ages                          []time.Duration
	seeds, requests, parallel     int
	oracleSeeds                   int
	firstSeed                     uint64

	trace, format string
	jitter        time.Duration
	sessionRate   float64
	guess         float64

	out, receipts string

	against  string
	examples int
	router   router.Config
	given    map[string]bool
}

// defaults of flags that differ with -quick.
var (
	normal = options{seeds: 5, oracleSeeds: 2, requests: 1000, loads: []float64{0.8, 1.1}}
	quick  = options{seeds: 3, oracleSeeds: 1, requests: 600, loads: []float64{0.95}}
)

// defaultWorkloads have something for every figure: shared prefixes, classes with deadlines, heavy tails, adapters, sessions.
var (
	defaultWorkloads = [...]string{"shared-prefixes", "interactive-batch", "heavy-tail", "adapters", "agentic"}
	quickWorkloads   = [...]string{"shared-prefixes", "interactive-batch", "adapters"}
)

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{given: map[string]bool{}}
	f := flag.NewFlagSet("replay", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.BoolVar(&o.quick, "quick", false, "fewer workloads, loads, seeds and requests")
	policies := f.String("policies", "all",
		"policies to compare, by commas, the first is held against the others: "+strings.Join(policyNames(), ", "))
	workloads := f.String("workloads", "", "workloads, by commas: "+strings.Join(workload.ScenarioNames(), ", "))
	loads := f.String("loads", "", "loads in `percent` of round robin's saturation, by commas (default 80,110; -quick 95)")
	engines := f.String("engines", "8", "numbers of engines, by commas")
	profiles := f.String("profiles", "h100-8b", "profiles of the engines, by commas; A+B is a fleet of both by turns")
	gateways := f.String("gateways", "1", "numbers of gateways before the same engines, by commas")
	ages := f.String("age", "1s", "periods at which gateways poll the engines, by commas: how old a snapshot gets")
	f.IntVar(&o.seeds, "seeds", 0, "number of seeds (default 5; -quick 3)")
	f.IntVar(&o.oracleSeeds, "oracle-seeds", 0, "number of `seeds` for the oracles, which take long (default 2; -quick 1)")
	f.Uint64Var(&o.firstSeed, "seed", 1, "the first of them")
	f.IntVar(&o.requests, "requests", 0,
		"requests of shared-prefixes for 8 engines, others in proportion, or the first of a trace (default 1000; -quick 600; trace: all)")
	f.StringVar(&o.trace, "trace", "", "`file` of a trace to replay in place of built-in workloads")
	f.StringVar(&o.format, "format", "", "format of the trace: mooncake, blocks16, azure or sessions; empty = found out")
	f.DurationVar(&o.jitter, "jitter", 3*time.Second, "how far the arrivals of a trace are spread, anew for each seed")
	f.Float64Var(&o.sessionRate, "session-rate", 0.1, "sessions of a trace that begin in a second at speed 1")
	f.BoolVar(&o.open, "open", false, "replay the sessions of a trace in an open loop: at recorded times, whatever becomes of them")
	f.Float64Var(&o.guess, "guess", math.NaN(),
		"clients of a trace guess their outputs, off by a lognormal factor of that `sigma`; 0 = exactly (default: none)")
	f.BoolVar(&o.exact, "exact", false, "engines tell gateways every change of their caches; takes several times as long")
	f.BoolVar(&o.ablation, "ablation", false, "also the default with one part off each")
	f.BoolVar(&o.watch, "watch", false, "measure the regret of each choice of the first policy too; takes longer")
	f.BoolVar(&o.full, "full", false, "print a table for each workload, fleet and load too")
	f.IntVar(&o.parallel, "parallel", 0, "runs at a time; 0 = one for each processor. It changes no result")
	f.StringVar(&o.out, "out", filepath.Join(os.TempDir(), "isobar-replay"), "folder for report.html, report.json, figures.csv and runs.csv")
	f.StringVar(&o.receipts, "receipts", "", "`file` for the receipts of the default policy in the first run")
	f.StringVar(&o.against, "against", "", "`file` of receipts to decide again, instead of a simulation")
	policy := f.String("policy", router.Pressure().Name(), "with -against: the policy, one of "+strings.Join(router.PolicyNames(), ", "))
	weights := f.String("weights", "", "with -against: weights by name, such as interference=0.2,displacement=0")
	bounds := f.String("bounds", "",
		"with -against: bounds by name, such as waiting=8,kv=0.9,queue-delay=5s,lead=2s,give-up-ratio=0.5,give-up-extra=500ms")
	f.IntVar(&o.examples, "n", 5, "with -against: how many changes are shown in full")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	f.Visit(func(x *flag.Flag) { o.given[x.Name] = true })
	if f.NArg() > 0 {
		return nil, fmt.Errorf("replay: unexpected argument %q", f.Arg(0))
	}
	if err := o.together(); err != nil {
		return nil, err
	}
	base, names := normal, defaultWorkloads[:]
	if o.quick {
		base, names = quick, quickWorkloads[:]
	}
	if !o.given["seeds"] {
		o.seeds = base.seeds
	}
	if !o.given["oracle-seeds"] {
		o.oracleSeeds = base.oracleSeeds
	}
	if !o.given["requests"] && o.trace == "" {
		o.requests = base.requests
	}
	o.loads, o.workloads = base.loads, names
	for _, x := range []struct {
		name, value string
		read        func(string) error
	}{
		{"policies", *policies, func(s string) (err error) { o.policies, err = choosePolicies(s); return }},
		{"workloads", *workloads, func(s string) (err error) { o.workloads, err = list(s, known(workload.ScenarioNames())); return }},
		{"loads", *loads, func(s string) (err error) { o.loads, err = list(s, percentage); return }},
		{"engines", *engines, func(s string) (err error) { o.engines, err = list(s, within(1, 4096)); return }},
		{"profiles", *profiles, func(s string) (err error) { o.profiles, err = list(s, text); return }},
		{"gateways", *gateways, func(s string) (err error) { o.gateways, err = list(s, within(1, 1024)); return }},
		{"age", *ages, func(s string) (err error) { o.ages, err = list(s, period); return }},
		{"policy", *policy, func(s string) (err error) { o.router.Policy, err = router.PolicyByName(s); return }},
		{"weights", *weights, func(s string) error { return setWeights(&o.router, s) }},
		{"bounds", *bounds, func(s string) error { return setBounds(&o.router, s) }},
	} {
		if x.value == "" {
			if o.given[x.name] {
				return nil, fmt.Errorf("replay: flag -%s is empty", x.name)
			}
			continue
		}
		if err := x.read(x.value); err != nil {
			return nil, fmt.Errorf("replay: flag -%s = %q: %w", x.name, x.value, err)
		}
	}
	return o, o.check()
}

// together refuses flags that mean nothing beside each other.
func (o *options) together() error {
	switch {
	case o.against != "":
		for name := range o.given {
			if !slices.Contains([]string{"against", "policy", "weights", "bounds", "n", "out"}, name) {
				return fmt.Errorf("replay: flag -%s means nothing beside -against", name)
			}
		}
		return nil
	case o.given["policy"] || o.given["weights"] || o.given["bounds"] || o.given["n"]:
		return fmt.Errorf("replay: flags -policy, -weights, -bounds and -n go with -against; to compare policies there is -policies")
	case o.trace != "" && o.given["workloads"]:
		return fmt.Errorf("replay: flag -trace = %q takes the place of -workloads", o.trace)
	case o.trace == "" && (o.given["format"] || o.given["jitter"] || o.given["session-rate"] || o.open || o.given["guess"]):
		return fmt.Errorf("replay: flags -format, -jitter, -session-rate, -open and -guess go with -trace")
	}
	return nil
}

// check finds what a single flag does not show.
func (o *options) check() error {
	switch {
	case o.seeds < 1 || o.seeds > 10_000:
		return fmt.Errorf("replay: flag -seeds = %d is not in 1 to 10000", o.seeds)
	case o.requests < 0 || o.requests > 1_000_000 || o.requests == 0 && o.trace == "":
		return fmt.Errorf("replay: flag -requests = %d is not in 1 to 1000000", o.requests)
	case o.jitter < 0:
		return fmt.Errorf("replay: flag -jitter = %v is negative", o.jitter)
	case !(o.sessionRate > 0 && o.sessionRate <= 1e6):
		return fmt.Errorf("replay: flag -session-rate = %v is not above 0 and at most 1e6", o.sessionRate)
	case o.given["guess"] && !(o.guess >= 0 && o.guess <= 4):
		return fmt.Errorf("replay: flag -guess = %v is not in 0 to 4", o.guess)
	case o.oracleSeeds < 1:
		return fmt.Errorf("replay: flag -oracle-seeds = %d is below 1", o.oracleSeeds)
	case o.parallel < 0:
		return fmt.Errorf("replay: flag -parallel = %d is negative", o.parallel)
	case o.examples < 0:
		return fmt.Errorf("replay: flag -n = %d is negative", o.examples)
	}
	if err := o.router.Validate(); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	return nil
}

func policyNames() []string {
	var names []string
	for _, p := range allPolicies() {
		names = append(names, p.Name)
	}
	return names
}

// allPolicies are the default and the baselines.
func allPolicies() []experiment.Policy {
	return append([]experiment.Policy{experiment.Default()}, experiment.Baselines()...)
}

func choosePolicies(s string) ([]string, error) {
	if s == "all" {
		return policyNames(), nil
	}
	return list(s, func(name string) (string, error) {
		p, err := experiment.PolicyByName(name)
		return p.Name, err
	})
}

// list reads values by commas, each of them once.
func list[T comparable](s string, read func(string) (T, error)) ([]T, error) {
	var out []T
	for part := range strings.SplitSeq(s, ",") {
		v, err := read(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		if slices.Contains(out, v) {
			return nil, fmt.Errorf("%v is there twice", v)
		}
		out = append(out, v)
	}
	return out, nil
}

func text(s string) (string, error) {
	if s == "" {
		return "", fmt.Errorf("an item is empty")
	}
	return s, nil
}

func known(names []string) func(string) (string, error) {
	return func(s string) (string, error) {
		if !slices.Contains(names, s) {
			return "", fmt.Errorf("%q is not one of %s", s, strings.Join(names, ", "))
		}
		return s, nil
	}
}

func within(low, high int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < low || n > high {
			return 0, fmt.Errorf("%q is not a whole number in %d to %d", s, low, high)
		}
		return n, nil
	}
}

func percentage(s string) (float64, error) {
	v, err := strconv.ParseFloat(strings.TrimSuffix(s, "%"), 64)
	if err != nil || !(v >= 1 && v <= 10_000) {
		return 0, fmt.Errorf("%q is not a percentage in 1 to 10000", s)
	}
	return v / 100, nil
}

func period(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < time.Millisecond || d > time.Hour {
		return 0, fmt.Errorf("%q is not a time in 1ms to 1h, such as 100ms", s)
	}
	return d, nil
}
