package baseline

import (
	"fmt"
	"slices"

	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/score"
)

// pick is a rule: it returns one of the candidates, of which there is at least one.
type pick func(r *world.Request, among []int) int

// chooser is a fleet with a rule.
type chooser struct {
	*fleet
	pick pick
}

// Choose is a world.Chooser's.
func (c *chooser) Choose(r *world.Request) (world.Choice, error) {
	among, err := c.candidates(r)
	if err != nil {
		return world.Choice{}, err
	}
	c.match(r)
	c.terms = score.Terms{}
	at := c.pick(r, among)
	choice := world.Choice{Engine: at, Terms: c.terms, Cached: c.hits[at]}
	choice.Age, choice.Freshness = c.age(at)
	c.send(r, at)
	return choice, nil
}

// uses says whether a rule looks at prefixes.
type uses uint8

const (
	noPrefixes     uses = iota
	prefixes            // routed, or as engines tell
	routedPrefixes      // routed, whatever engines tell
)

// from makes a rule of its parts.
func from(u uses, rule func(f *fleet) pick) world.Maker {
	return func(e world.Env) (world.Chooser, error) {
		f, err := newFleet(e)
		if err != nil {
			return nil, err
		}
		if u != noPrefixes {
			if err := f.learn(u == routedPrefixes); err != nil {
				return nil, err
			}
		}
		return &chooser{fleet: f, pick: rule(f)}, nil
	}
}

// named is a rule with its name.
type named struct {
	name  string
	maker world.Maker
}

func rules() []named {
	return []named{
		{"round-robin", from(noPrefixes, roundRobin)},
		{"random", from(noPrefixes, random)},
		{"least-requests", from(noPrefixes, leastRequests)},
		{"power-of-two", from(noPrefixes, powerOfTwo)},
		{"session-hash", from(noPrefixes, sessionHash)},
		{"queue-only", from(noPrefixes, queueOnly)},
		{"prefix-only", from(prefixes, prefixOnly)},
		{"chwbl", from(noPrefixes, boundedHash)},
		{"gateway-cache-aware", from(routedPrefixes, cacheAware)},
		{"gateway-least-load", from(noPrefixes, leastLoad)},
		{"weighted-3-2-2", from(prefixes, weighted)},
		{"sticky-until-saturated", from(prefixes, sticky)},
		{"kv-router", from(prefixes, kvRouter)},
		{"lpwl", from(prefixes, leastPendingWork)},
		{"lmetric", from(prefixes, multiplied)},
		{"loadaware", from(prefixes, loadAware)},
		{"mooncake-conductor", from(prefixes, conductor)},
		{"prequal-hcl", from(noPrefixes, prequal)},
		{"own-only", ownOnly},
		{"oracle", oracleMaker(false)},
		{"oracle-others", oracleMaker(true)},
	}
}

// Names lists the rules, the oracles last.
func Names() []string {
	var names []string
	for _, r := range rules() {
		names = append(names, r.name)
	}
	return names
}

// ByName returns the maker of the rule of that name; an unknown name is an error that carries it and lists the known.
func ByName(name string) (world.Maker, error) {
	all := rules()
	if i := slices.IndexFunc(all, func(r named) bool { return r.name == name }); i >= 0 {
		return all[i].maker, nil
	}
	return nil, fmt.Errorf("baseline: rule %q is not one of %v", name, Names())
}
