package experiment

import (
	"fmt"
	"strings"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/world"
)

// AdapterSlots is how many adapters fit into an engine of a fleet made by NewFleet: less than half of what the workload of that name has.
const AdapterSlots = 4

// Fleet is the engines that serve. A Fleet is a plain value; nobody may change its engines once it is used.
type Fleet struct {
	// Name is how reports call it.
	Name string
	// Engines are at least one.
	Engines []world.Engine
}

// NewFleet is a fleet of n engines, 1 to 4096, with the profiles by turns: one profile makes equal engines, several make a
// mixed fleet. The names of profiles are those of package sim.
func NewFleet(n int, profiles ...string) (Fleet, error) {
	if n < 1 || n > 4096 {
		return Fleet{}, fmt.Errorf("experiment: n is %d, it must be in [1, 4096]", n)
	}
	if len(profiles) == 0 {
		return Fleet{}, fmt.Errorf("experiment: profiles is empty, a fleet needs one")
	}
	f := Fleet{Name: fmt.Sprintf("%d x %s", n, strings.Join(profiles, "/")), Engines: make([]world.Engine, n)}
	for i := range f.Engines {
		name := profiles[i%len(profiles)]
		p, known := sim.ProfileByName(name)
		if !known {
			var names []string
			for _, p := range sim.Profiles() {
				names = append(names, p.Name)
			}
			return Fleet{}, fmt.Errorf("experiment: profile %q is not one of %s", name, strings.Join(names, ", "))
		}
		f.Engines[i] = world.Engine{Profile: p, AdapterSlots: AdapterSlots}
	}
	return f, nil
}

// smallest is the least KV memory of an engine, tokens.
func (f *Fleet) smallest() int64 {
	least := f.Engines[0].Profile.KVTokens
	for _, e := range f.Engines {
		least = min(least, e.Profile.KVTokens)
	}
	return least
}
