package experiment

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/isobar-go/isobar/internal/world"
)

// Search finds the speed at which a fleet stops keeping up with a workload; see the package comment for what that is. The
// zero value works. A Search is a plain value; its Reference is called from several goroutines at once.
type Search struct {
	// Reference is the policy that decides meanwhile; its zero value = round robin.
	Reference Policy
	// Keep is the share of the light load's goodput that must be left, above 0 and below 1. Default 0.8.
	Keep float64
	// Stretch is how many times the mean end-to-end time of the light load may grow, above 1. Default 8.
	Stretch float64
	// Light is the speed of the light load, Most the greatest speed that is tried, both above 0. Defaults 1/16 and 64.
	Light, Most float64
	// Tolerance is how far the speed may be below the one looked for, as a share, above 0 and at most 1. Default 0.02.
	Tolerance float64
	// Seeds over whose runs the figures are averaged. Empty = the first of the grid.
	Seeds []uint64
}

// Saturation is what a search has found. A Saturation is a plain value.
type Saturation struct {
	// Workload and Fleet are names.
	Workload, Fleet string
	// Speed is the greatest one at which the fleet keeps up; that of a load of 1.
	Speed float64
	// Rate is the mean number of arrivals in a second at that speed.
	Rate float64
	// Goodput there and at the light load, 0 to 1; E2E likewise, the mean in ms.
	Goodput, LightGoodput float64
	E2E, LightE2E         float64
	// Unsaturated says that the fleet keeps up with the greatest speed too: Speed is that one.
	Unsaturated bool
	// Runs is how many it took.
	Runs int
}

func (s Search) withDefaults(seeds []uint64) Search {
	if s.Reference.Make == nil {
		s.Reference = RoundRobin()
	}
	for _, f := range []struct {
		v   *float64
		def float64
	}{{&s.Keep, 0.8}, {&s.Stretch, 8}, {&s.Light, 1.0 / 16}, {&s.Most, 64}, {&s.Tolerance, 0.02}} {
		if *f.v == 0 {
			*f.v = f.def
		}
	}
	if len(s.Seeds) == 0 {
		s.Seeds = seeds[:1]
	}
	return s
}

func (s Search) validate() error {
	var faults []error
	for _, f := range []struct {
		name  string
		value float64
		ok    bool
		want  string
	}{
		{"Keep", s.Keep, s.Keep > 0 && s.Keep < 1, "above 0 and below 1"},
		{"Stretch", s.Stretch, s.Stretch > 1 && finite(s.Stretch), "above 1"},
		{"Light", s.Light, s.Light >= 1e-6 && s.Light < s.Most, "at least 1e-6 and below Most"},
		{"Most", s.Most, s.Most <= 1e6, "at most 1e6"},
		{"Tolerance", s.Tolerance, s.Tolerance > 0 && s.Tolerance <= 1, "above 0 and at most 1"},
	} {
		if !f.ok {
			faults = append(faults, fmt.Errorf("experiment: Grid.Search.%s = %v is not %s", f.name, f.value, f.want))
		}
	}
	return errors.Join(faults...)
}

// probe is what a run at some speed showed.
type probe struct{ goodput, e2e, rate float64 }

// Saturation searches for one workload and fleet of the grid.
func (g Grid) Saturation(w Workload, f Fleet) (Saturation, error) {
	if err := g.Validate(); err != nil {
		return Saturation{}, err
	}
	g = g.WithDefaults()
	at := func(speed float64) (probe, error) { return g.probe(w, f, speed) }
	s, err := g.Search.find(at)
	s.Workload, s.Fleet = w.Name, f.Name
	if err != nil {
		return s, fmt.Errorf("experiment: saturation of %s on %s: %w", w.Name, f.Name, err)
	}
	return s, nil
}

// find brackets the speed by doubling and then halves the bracket on a logarithmic scale.
func (s Search) find(at func(speed float64) (probe, error)) (Saturation, error) {
	out := Saturation{}
	ask := func(speed float64) (probe, error) {
		out.Runs++
		return at(speed)
	}
	light, err := ask(s.Light)
	if err != nil {
		return out, err
	}
	out.LightGoodput, out.LightE2E = light.goodput, light.e2e
	good, low, high := light, s.Light, 0.0
	keeps := func(p probe) bool { return p.goodput >= s.Keep*light.goodput && p.e2e <= s.Stretch*light.e2e }
	for speed := 2 * s.Light; high == 0 && low < s.Most; speed *= 2 {
		speed = min(speed, s.Most)
		p, err := ask(speed)
		if err != nil {
			return out, err
		}
		if keeps(p) {
			good, low = p, speed
		} else {
			high = speed
		}
	}
	out.Unsaturated = high == 0
	for high > low*(1+s.Tolerance) {
		speed := math.Sqrt(low * high)
		p, err := ask(speed)
		if err != nil {
			return out, err
		}
		if keeps(p) {
			good, low = p, speed
		} else {
			high = speed
		}
	}
	out.Speed, out.Goodput, out.E2E, out.Rate = low, good.goodput, good.e2e, good.rate
	return out, nil
}

// probe plays a workload at a speed.
func (g *Grid) probe(w Workload, f Fleet, speed float64) (probe, error) {
	sum := probe{}
	for _, seed := range g.Search.Seeds {
		s, err := w.Build(f, seed, speed)
		if err != nil {
			return probe{}, err
		}
		s.Incidents = nil
		r, err := g.play(f, &s, g.Search.Reference.Make, seed, 1, time.Second, world.None)
		if err != nil {
			return probe{}, err
		}
		fig := r.Figures(g.SLO)
		n := float64(len(g.Search.Seeds))
		sum.goodput += fig.Goodput / n
		sum.e2e += fig.E2E.Mean / n
		if last := r.Records[len(r.Records)-1].Arrival; last > 0 {
			sum.rate += float64(len(r.Records)-1) / last.Seconds() / n
		}
	}
	return sum, nil
}
