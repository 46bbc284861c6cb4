package experiment

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/isobar-go/isobar/internal/workload"
	"github.com/isobar-go/isobar/internal/world"
)

// Grid is what is to be compared: every policy under every combination of the rest. A Grid is a plain value; its functions are
// called as their fields say.
type Grid struct {
	// Policies, at least one, of different names.
	Policies []Policy
	// Workloads and Fleets, at least one of each, of different names.
	Workloads []Workload
	Fleets    []Fleet
	// Loads are shares of the saturation of round robin, above 0 and at most 100. Empty = 0.8.
	Loads []float64
	// Periods of the polls, above 0. Empty = 1 s.
	Periods []time.Duration
	// Gateways in front of the engines, at least 1. Empty = 1.
	Gateways []int
	// Seeds, each at most once. Empty = 1 to 5.
	Seeds []uint64

	// SLO that goodput is measured by.
	SLO world.SLO
	// Search finds the saturation.
	Search Search
	// Spread of the arrivals over gateways.
	Spread world.Spread
	// Retries is how often a request that its engine failed is tried again. Default 2; world.None = never.
	Retries int
	// Exact makes engines tell gateways every change of their cache. It takes several times as long.
	Exact bool
	// SampleEvery is the step of the time series of results that are kept. Default 1 s.
	SampleEvery time.Duration

	// Parallel is the number of cells that are under way at a time; 0 = GOMAXPROCS. It changes no result.
	Parallel int
	// Keep says of which cells the whole result is handed over; nil = of none. It is called by one goroutine at a time.
	Keep func(Cell) bool
	// Progress is told after every step; nil = nobody. It is called by one goroutine at a time, not always the same.
	Progress func(Progress)
}

// Progress is how far a run is. A Progress is a plain value.
type Progress struct {
	// Searching says that the steps are searches for a saturation, of which there is one for each workload and fleet; then they are cells.
	Searching bool
	// Done of Total.
	Done, Total int
}

// Group is a place in the grid, without policy and seed: what is compared inside it is comparable. A Group is a plain value.
type Group struct {
	// Workload and Fleet are names.
	Workload, Fleet string
	// Load is the share of round robin's saturation.
	Load float64
	// Period of the polls.
	Period time.Duration
	// Gateways in front of the engines.
	Gateways int
}

// String is the group in one line.
func (g Group) String() string {
	gateways := "gateways"
	if g.Gateways == 1 {
		gateways = "gateway"
	}
	return fmt.Sprintf("%s, %s, %.0f %%, polls every %v, %d %s", g.Workload, g.Fleet, 100*g.Load, g.Period, g.Gateways, gateways)
}

// Cell is one run of the grid. A Cell is a plain value.
type Cell struct {
	Group
	// Policy is a name, Seed one of the seeds.
	Policy string
	Seed   uint64
	// Speed is what the load means for this workload and fleet.
	Speed float64
}

// WithDefaults returns the grid in effect.
func (g Grid) WithDefaults() Grid {
	if len(g.Loads) == 0 {
		g.Loads = []float64{0.8}
	}
	if len(g.Periods) == 0 {
		g.Periods = []time.Duration{time.Second}
	}
	if len(g.Gateways) == 0 {
		g.Gateways = []int{1}
	}
	if len(g.Seeds) == 0 {
		g.Seeds = []uint64{1, 2, 3, 4, 5}
	}
	if g.Retries == 0 {
		g.Retries = 2
	}
	if g.SampleEvery == 0 {
		g.SampleEvery = time.Second
	}
	g.Search = g.Search.withDefaults(g.Seeds)
	return g
}

// Cells is the number of runs of the grid, the searches not counted.
func (g Grid) Cells() int {
	g = g.WithDefaults()
	runs := 0
	for _, w := range g.Workloads {
		for _, p := range g.Policies {
			runs += len(g.seeds(w.Seeds, p.Seeds))
		}
	}
	return runs * len(g.Fleets) * len(g.Loads) * len(g.Periods) * len(g.Gateways)
}

// seeds are the first ones, as many as all limits above 0 allow.
func (g *Grid) seeds(limits ...int) []uint64 {
	n := len(g.Seeds)
	for _, limit := range limits {
		if limit > 0 {
			n = min(n, limit)
		}
	}
	return g.Seeds[:n]
}

// Validate reports every fault of the grid, all of them joined. Whether engines and requests are in order is found when they
// are used.
func (g Grid) Validate() error {
	var faults []error
	bad := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("experiment: Grid."+format, args...))
	}
	g = g.WithDefaults()
	seen := map[string]bool{}
	name := func(field string, i int, n string) {
		if n == "" {
			bad("%s[%d].Name is empty", field, i)
		}
		if key := field + "\x00" + n; seen[key] {
			bad("%s[%d].Name = %q is there twice", field, i, n)
		} else {
			seen[key] = true
		}
	}
	for i, p := range g.Policies {
		name("Policies", i, p.Name)
		if p.Make == nil {
			bad("Policies[%d].Make is nil", i)
		}
		if p.Seeds < 0 {
			bad("Policies[%d].Seeds = %d is negative", i, p.Seeds)
		}
	}
	for i, w := range g.Workloads {
		name("Workloads", i, w.Name)
		if w.Build == nil {
			bad("Workloads[%d].Build is nil", i)
		}
		if w.Seeds < 0 {
			bad("Workloads[%d].Seeds = %d is negative", i, w.Seeds)
		}
	}
	for i, f := range g.Fleets {
		name("Fleets", i, f.Name)
		if len(f.Engines) == 0 {
			bad("Fleets[%d].Engines is empty", i)
		}
	}
	for _, f := range []struct {
		name string
		n    int
	}{{"Policies", len(g.Policies)}, {"Workloads", len(g.Workloads)}, {"Fleets", len(g.Fleets)}} {
		if f.n == 0 {
			bad("%s is empty", f.name)
		}
	}
	for i, l := range g.Loads {
		if !(l > 0 && l <= 100) {
			bad("Loads[%d] = %v is not above 0 and at most 100", i, l)
		}
	}
	for i, p := range g.Periods {
		if p <= 0 {
			bad("Periods[%d] = %v is not above 0", i, p)
		}
	}
	for i, n := range g.Gateways {
		if n < 1 {
			bad("Gateways[%d] = %d is below 1", i, n)
		}
	}
	for i, s := range g.Seeds {
		if key := fmt.Sprintf("seed %d", s); seen[key] {
			bad("Seeds[%d] = %d is there twice", i, s)
		} else {
			seen[key] = true
		}
	}
	if g.Parallel < 0 {
		bad("Parallel = %d is negative", g.Parallel)
	}
	return errors.Join(append(faults, g.Search.validate())...)
}

// play runs a scenario under a policy.
func (g *Grid) play(f Fleet, s *workload.Scenario, make world.Maker, seed uint64, gateways int, period, sample time.Duration) (
	*world.Result, error,
) {
	cfg := world.Config{
		Seed: seed, Engines: f.Engines, Chooser: make, Gateways: gateways, Spread: g.Spread, Retries: g.Retries, SampleEvery: sample,
		Telemetry: world.Telemetry{Period: period}, Cache: world.Cache{Exact: g.Exact},
	}
	if err := configure(s, &cfg); err != nil {
		return nil, err
	}
	src, err := s.Source()
	if err != nil {
		return nil, err
	}
	return world.Run(cfg, world.FromWorkload(src))
}

// finite says that a figure can be shown and compared.
func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
