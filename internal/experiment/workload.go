package experiment

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/isobar-go/isobar/internal/workload"
	"github.com/isobar-go/isobar/internal/world"
)

// Workload is a kind of traffic that can be had at any speed. A Workload is a plain value; Build may be called from any
// goroutine and gives the same for the same arguments.
type Workload struct {
	// Name is how reports call it.
	Name string
	// Shared says that prefixes are heavily shared, for criteria that ask for it.
	Shared bool
	// Seeds is at how many of the seeds, from the first, it is played, where it takes long; 0 = at all.
	Seeds int
	// Build makes it for a fleet, a seed and a speed, where 2 is twice the load.
	Build func(f Fleet, seed uint64, speed float64) (workload.Scenario, error)
}

// sharedPrefixes are the built-in workloads in which most prompt tokens have been seen before.
var sharedPrefixes = [...]string{
	"shared-prefixes", "popular-prefix", "agentic", "telemetry-lag", "draining", "silent", "restart", "slowed", "frozen",
	"dead",
}

// BuiltIn is the scenario of that name of package workload. requests, at most a million, is about how many shared-prefixes has for 8
// engines; 0 = 2000. Other fleets have them in proportion, and other workloads as many as keep their engines busy for about as
// long at saturation, where that does not take too long: tiny chats 20 times as many, long prompts a quarter. Agentic sessions are
// played in a closed loop, where more load means more of them: there are a fifth as many requests, times a speed above 1. An unknown
// name is an error that lists the known.
func BuiltIn(name string, requests int) (Workload, error) {
	if !slices.Contains(workload.ScenarioNames(), name) {
		return Workload{}, fmt.Errorf("experiment: workload %q is not one of %s", name, strings.Join(workload.ScenarioNames(), ", "))
	}
	if requests < 0 || requests > 1e6 {
		return Workload{}, fmt.Errorf("experiment: requests is %d, it must be in [0, 1000000]", requests)
	}
	if requests == 0 {
		requests = 2000
	}
	return Workload{
		Name: name, Shared: slices.Contains(sharedPrefixes[:], name),
		Build: func(f Fleet, seed uint64, speed float64) (workload.Scenario, error) {
			n := float64(requests) * float64(len(f.Engines)) / 8
			for _, w := range weights {
				if w.name == name {
					n *= w.times
				}
			}
			if name == "agentic" {
				n *= max(1, speed)
			}
			return workload.BuildScenario(name, workload.Size{
				Seed: seed, Requests: max(1, int(math.Round(min(n, maxRequests)))), Endpoints: len(f.Engines), Speed: speed,
			})
		},
	}, nil
}

// weights are how many times as many requests a workload has as shared-prefixes.
var weights = [...]struct {
	name  string
	times float64
}{{"interactive-batch", 1.5}, {"cold-start", 2}, {"tenant-skew", 1.5}, {"tiny-chats", 20}, {"long-prompts", 0.25}, {"agentic", 0.2}}

// maxRequests keeps a mistyped grid from taking the host's memory.
const maxRequests = 10_000_000

// Replay says how a trace is played. The zero value works. A Replay is a plain value.
type Replay struct {
	// Jitter delays every arrival by a time of its own, uniform in [0, Jitter), drawn for each seed: it is what seeds differ in.
	Jitter time.Duration
	// SessionRate is the number of sessions that begin in a second at speed 1, as a Poisson process; 0 = as recorded. Traces that
	// tell times since the start of each session need it.
	SessionRate float64
	// Closed plays sessions in a closed loop: a request comes its think time after the end of the one before.
	Closed bool
	// Guess is what clients know of their outputs; the zero value = nothing.
	Guess workload.Guess
	// Shared says that prefixes are heavily shared.
	Shared bool
}

// FromTrace replays requests that were read from a trace. Speed 1 is as recorded. What does not fit into the smallest engine of the
// fleet is left out, so that all policies serve the same requests.
func FromTrace(name string, w workload.Workload, o Replay) (Workload, error) {
	switch {
	case len(w) == 0:
		return Workload{}, fmt.Errorf("experiment: trace %s has no requests", name)
	case o.Jitter < 0:
		return Workload{}, fmt.Errorf("experiment: Jitter is %v, it must be at least 0", o.Jitter)
	case !(o.SessionRate >= 0):
		return Workload{}, fmt.Errorf("experiment: SessionRate is %v, it must be at least 0", o.SessionRate)
	}
	build := func(f Fleet, seed uint64, speed float64) (workload.Scenario, error) {
		out, err := workload.CutContext(w, f.smallest())
		if err != nil {
			return workload.Scenario{}, err
		}
		if len(out) == 0 {
			return workload.Scenario{}, fmt.Errorf("experiment: no request of trace %s fits into an engine of %s", name, f.Name)
		}
		if o.SessionRate > 0 {
			out, err = workload.StartSessions(out, workload.Starts{Rate: o.SessionRate * speed, Seed: seed})
		} else {
			out, err = workload.Scale(out, speed)
		}
		if err != nil {
			return workload.Scenario{}, err
		}
		// After the scaling, so that the ticks of a slow clock are filled at any speed.
		if out, err = workload.Jitter(out, time.Duration(float64(o.Jitter)/speed), seed); err != nil {
			return workload.Scenario{}, err
		}
		if o.Guess != (workload.Guess{}) {
			guess := o.Guess
			guess.Seed += seed
			if out, err = workload.Estimates(out, guess); err != nil {
				return workload.Scenario{}, err
			}
		}
		return workload.Scenario{Name: name, Requests: out, Closed: o.Closed}, nil
	}
	return Workload{Name: name, Shared: o.Shared, Build: build}, nil
}

// leastPeriod stands for polls before every decision, which the world does not have.
const leastPeriod = 10 * time.Millisecond

// configure puts what a scenario says of the world into a configuration. Telemetry of its own goes before that of the
// configuration.
func configure(s *workload.Scenario, cfg *world.Config) error {
	for _, x := range s.Incidents {
		in := world.Incident{Engine: x.Endpoint, At: x.At, For: x.For, Factor: x.Factor}
		switch x.Kind {
		case workload.Drain:
			in.Kind = world.Drain
		case workload.Silent:
			in.Kind = world.Silent
		case workload.Restart:
			in.Kind = world.Restart
		case workload.Slow:
			in.Kind = world.Slow
		case workload.Freeze:
			in.Kind = world.Freeze
		case workload.Dead:
			// Nobody is told: operators would notice only after it is back.
			in.Kind, in.Notice = world.Die, x.For
			if x.For == 0 {
				return errors.New("experiment: a dead endpoint must come back")
			}
		default:
			return fmt.Errorf("experiment: incident %v is not known", x.Kind)
		}
		cfg.Incidents = append(cfg.Incidents, in)
	}
	if t := s.Telemetry; t != nil {
		cfg.Telemetry = world.Telemetry{
			Period: max(t.Period, leastPeriod), Lag: t.Delay, Loss: t.Loss, Skew: max(t.Skew, -t.Skew), InStep: cfg.Telemetry.InStep,
			WaitingTokens: cfg.Telemetry.WaitingTokens,
		}
		cfg.Cache.Delay = t.EventDelay
	}
	return nil
}
