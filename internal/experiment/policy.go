package experiment

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/isobar-go/isobar/internal/baseline"
	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
)

// Policy is a rule under test. A Policy is a plain value.
type Policy struct {
	// Name is how reports call it.
	Name string
	// Make makes its chooser in every gateway.
	Make world.Maker
	// Watched measures the regret of each of its choices by the true state of the engines, which takes several times as long.
	Watched bool
	// Seeds is at how many of the seeds, from the first, it is played, for policies that take long; 0 = at all.
	Seeds int
}

// Default is the router as it is out of the box, under the name of its policy.
func Default() Policy {
	return Policy{Name: router.Pressure().Name(), Make: world.PoolChooser(router.Config{})}
}

// RoundRobin is the policy whose saturation is a load of 1.
func RoundRobin() Policy {
	return Policy{Name: router.RoundRobin().Name(), Make: world.PoolChooser(router.Config{Policy: router.RoundRobin()})}
}

// Baselines are the rules of package baseline, the oracles among them.
func Baselines() []Policy {
	var out []Policy
	for _, name := range baseline.Names() {
		if m, err := baseline.ByName(name); err == nil {
			out = append(out, Policy{Name: name, Make: m})
		}
	}
	return out
}

// Oracles are the names of those that see the true state of every engine.
func Oracles() []string { return []string{Oracle, "oracle-others"} }

// Oracle is the one that regret is measured against.
const Oracle = "oracle"

// OwnOnlyDefault is the default policy without telemetry, which is no published rule.
const OwnOnlyDefault = "own-only"

// OwnOnly are the names of the baselines that know their gateway's own requests alone and read no telemetry.
func OwnOnly() []string {
	return []string{
		"round-robin", "random", "least-requests", "power-of-two", "session-hash", "prefix-only", "chwbl", "gateway-cache-aware",
		"sticky-until-saturated", "kv-router", "lpwl", "lmetric", "loadaware", OwnOnlyDefault,
	}
}

// PolicyByName is the default, an ablation or a baseline; an unknown name is an error that lists the known.
func PolicyByName(name string) (Policy, error) {
	all := slices.Concat([]Policy{Default()}, Baselines(), Ablations())
	var names []string
	for _, p := range all {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Policy{}, fmt.Errorf("experiment: policy %q is not one of %s", name, strings.Join(names, ", "))
}

// Ablations are the default with one part off each, named after what is missing.
func Ablations() []Policy {
	with := func(name string, cfg router.Config) Policy {
		return Policy{Name: "no " + name, Make: world.PoolChooser(cfg)}
	}
	return []Policy{
		with("interference", router.Config{Weights: score.Weights{Interference: router.None}}),
		with("displacement", router.Config{Weights: score.Weights{Displacement: router.None}}),
		with("external terms", router.Config{Weights: score.Weights{Interference: router.None, Displacement: router.None}}),
		with("wait", router.Config{Weights: score.Weights{Wait: router.None}}),
		with("kv pressure", router.Config{Weights: score.Weights{KVPressure: router.None}}),
		with("uncertainty", router.Config{Weights: score.Weights{Uncertainty: router.None}}),
		with("give-up bound", router.Config{Bounds: router.Bounds{GiveUp: router.GiveUp{Ratio: 1e6, Extra: 1000 * time.Hour}}}),
		with("decay of readings", router.Config{Freshness: router.Freshness{Decay: router.None}}),
		with("ties by lot", router.Config{TieWindow: router.None}),
	}
}
