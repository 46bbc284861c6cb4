package workload

import (
	"fmt"
	"strings"
	"time"
)

// Scenario is a workload with the world around it, ready to be played. It is a plain value.
type Scenario struct {
	// Name is one of ScenarioNames, or the host's own.
	Name string
	// Requests are what comes in.
	Requests Workload
	// Closed asks for a Loop; else it is an open loop.
	Closed bool
	// Concurrent is that of the Loop.
	Concurrent int
	// Incidents in order of their begin.
	Incidents []Incident
	// Telemetry is what gateways see; nil = what the host has for all scenarios.
	Telemetry *Telemetry
}

// Source plays the scenario from its start. Any number of them may be under way.
func (s Scenario) Source() (Source, error) {
	if !s.Closed {
		return NewOpen(s.Requests.Stream()), nil
	}
	return NewLoop(s.Requests, LoopConfig{Concurrent: s.Concurrent})
}

// Size is how much a scenario has of everything. The zero value works. It is a plain value.
type Size struct {
	// Seed of everything random.
	Seed uint64
	// Requests is about how many there are, at most 50 million; 0 = 2000.
	Requests int
	// Endpoints is the number of endpoints that rates and incidents are made for, 1 to 1e5; 0 = 8. The default rates of the
	// generators suit 8 endpoints.
	Endpoints int
	// Speed is the load: the times of open scenarios are divided by it (waves and batches keep their size and come more
	// often), in closed ones that many times as many sessions begin in a second. 0 = 1.
	Speed float64
}

// builtin is one scenario: its generator for a number of requests, and what happens to the world in a workload that
// takes span.
type builtin struct {
	name   string
	make   func(l Load, load float64) Generator // load is for closed ones only: the others' time is scaled
	closed bool
	world  func(s *Scenario, endpoints int, span time.Duration)
}

// background is the work under incidents: enough prefixes for the caches to matter.
func background(l Load, _ float64) Generator { return SharedPrefixes{Load: l, Prompts: 128} }

// during is an incident of endpoint 0, in the middle third of the workload.
func during(kind IncidentKind, factor float64) func(*Scenario, int, time.Duration) {
	return func(s *Scenario, _ int, span time.Duration) {
		s.Incidents = []Incident{{Kind: kind, At: span / 3, For: span / 3, Factor: factor}}
	}
}

func builtins() []builtin {
	return []builtin{
		{name: "long-prompts", make: func(l Load, _ float64) Generator { return LongPrompts{Load: l} }},
		{name: "tiny-chats", make: func(l Load, _ float64) Generator { return TinyChats{Load: l} }},
		{name: "popular-prefix", make: func(l Load, _ float64) Generator { return PopularPrefix{Load: l} }},
		{name: "shared-prefixes", make: func(l Load, _ float64) Generator { return SharedPrefixes{Load: l} }},
		{name: "adapters", make: func(l Load, _ float64) Generator { return Adapters{Load: l} }},
		{name: "cold-start", make: func(l Load, _ float64) Generator { return ColdStart{Load: l} }},
		{name: "tenant-skew", make: func(l Load, _ float64) Generator { return TenantSkew{Load: l} }},
		{name: "heavy-tail", make: func(l Load, _ float64) Generator { return HeavyTail{Load: l} }},
		{name: "interactive-batch", make: func(l Load, _ float64) Generator { return InteractiveBatch{Load: l} }},
		{name: "agentic", closed: true, make: func(l Load, load float64) Generator {
			// Think times are people's and tools': more load is more sessions, not faster ones.
			return Agentic{Seed: l.Seed, Sessions: max(1, l.Requests/agenticTurns), Rate: 0.25 * load}
		}},
		{name: "telemetry-lag", make: background, world: func(s *Scenario, _ int, _ time.Duration) {
			s.Telemetry = &Telemetry{Period: 5 * time.Second, Delay: 500 * time.Millisecond, Loss: 0.1, EventDelay: 2 * time.Second}
		}},
		{name: "draining", make: background, world: during(Drain, 0)},
		{name: "silent", make: background, world: during(Silent, 0)},
		{name: "restart", make: background, world: func(s *Scenario, endpoints int, span time.Duration) {
			// A rollout in the middle half: each is away for 10 s, or half of its turn if that is less.
			turn := span / 2 / time.Duration(endpoints)
			for k := range endpoints {
				s.Incidents = append(s.Incidents, Incident{
					Kind: Restart, Endpoint: k, At: span/4 + time.Duration(k)*turn, For: min(10*time.Second, turn/2),
				})
			}
		}},
		{name: "slowed", make: background, world: during(Slow, 3)},
		{name: "frozen", make: background, world: during(Freeze, 0)},
		{name: "dead", make: background, world: during(Dead, 0)},
	}
}

// agenticTurns is about the mean number of turns that the defaults of Agentic leave of a session.
const agenticTurns = 23

// ScenarioNames are the names that BuildScenario knows.
func ScenarioNames() []string {
	var names []string
	for _, b := range builtins() {
		names = append(names, b.name)
	}
	return names
}

// BuildScenario makes the scenario of that name: the generator of the same name with its defaults, or SharedPrefixes with
// 128 prompts while something happens to the world.
//
//	telemetry-lag   polls every 5 s show what was 0.5 s ago, one in ten fails, cache events come 2 s late
//	draining        endpoint 0 drains, in the middle third of the workload
//	silent, frozen, dead, slowed (by 3)   likewise
//	restart         one endpoint after the other restarts with an honest zero, in the middle half
func BuildScenario(name string, size Size) (Scenario, error) {
	endpoints := orInt(size.Endpoints, 8)
	speed := orFloat(size.Speed, 1)
	err := firstOf(
		inRange("Endpoints", float64(endpoints), 1, 1e5),
		inRange("Speed", speed, 1e-6, 1e6))
	if err != nil {
		return Scenario{}, err
	}
	for _, b := range builtins() {
		if b.name != name {
			continue
		}
		load := speed * float64(endpoints) / 8
		l := Load{Seed: size.Seed, Requests: orInt(size.Requests, 2000)}
		w, err := b.make(l, load).Generate()
		if err != nil {
			return Scenario{}, err
		}
		s := Scenario{Name: name, Requests: w, Closed: b.closed}
		if !b.closed {
			if s.Requests, err = Scale(w, load); err != nil {
				return Scenario{}, err
			}
		}
		if b.world != nil {
			b.world(&s, endpoints, s.Requests[len(w)-1].Arrival)
		}
		return s, nil
	}
	return Scenario{}, fmt.Errorf("workload: there is no scenario %q, only %s", name, strings.Join(ScenarioNames(), ", "))
}
