package world

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
)

// None is what a duration or count of a configuration is set to where zero itself is meant, since the zero value stands for
// the default.
const None = -1

// maxFigure bounds times in ns and token counts, so that no sum of them overflows.
const maxFigure = 1 << 53

// Spread says how arrivals are spread over gateways.
type Spread uint8

const (
	// ByTurns gives each gateway its turn.
	ByTurns Spread = iota
	// BySession keeps a session at one gateway; requests without a session take turns.
	BySession
)

// Config describes a world. Its zero value lacks engines; everything else has a default. A Config is a plain value; with a
// Maker of its own it may be used by any number of runs at once.
type Config struct {
	// Seed of all that is drawn by lot.
	Seed uint64
	// Engines, at least one, all of one block size.
	Engines []Engine
	// Chooser makes the chooser of each gateway; nil = PoolChooser with the router's defaults.
	Chooser Maker
	// Gateways in front of the engines, each with a chooser of its own. Default 1.
	Gateways int
	// Spread of the arrivals over them.
	Spread Spread
	// Net is the time a message takes between a gateway and an engine, one way. Default 1 ms.
	Net time.Duration
	// Telemetry says how reports come.
	Telemetry Telemetry
	// Cache says how choosers learn what engines have cached.
	Cache Cache
	// Incidents in any order.
	Incidents []Incident
	// Retries is how often a request that its engine failed is tried again, elsewhere if the chooser can. Default 0.
	Retries int
	// ProgressEvery is the number of passes after which an engine's streams report how far they are; each decoding one
	// has then as many tokens more. It bounds the cost of a run. Default 16; None = never.
	ProgressEvery int
	// SampleEvery is the step of the time series. Default 1 s; None = no series.
	SampleEvery time.Duration
	// Horizon ends the run at that time, whatever is still open; 0 = when all requests have ended.
	Horizon time.Duration
	// PassByPass does every pass on its own. The results are the same, later. Default off.
	PassByPass bool
}

// Engine is one engine of the world. An Engine is a plain value.
type Engine struct {
	// ID names it for the router; empty = "engine-" and its number in two digits.
	ID string
	// Profile is what it is.
	Profile sim.Profile
	// Believed is what the router is told that it is; the zero value = the truth.
	Believed score.Profile
	// Models it serves; empty = any.
	Models []string
	// AdapterSlots is how many adapters fit into its memory; 0 = any number, loaded from the start.
	AdapterSlots int
	// AdapterLoad is how long the loading of an adapter takes. Default 1 s.
	AdapterLoad time.Duration
}

// Telemetry says how a gateway learns of the engines' load. A Telemetry is a plain value.
type Telemetry struct {
	// Period between the polls of one engine by one gateway. Default 1 s; None = no polls.
	Period time.Duration
	// Lag is how much longer than the network takes a report is under way. Default 0.
	Lag time.Duration
	// InStep makes all polls at whole multiples of the period; otherwise every pair of gateway and engine has a phase of its own after
	// the first, which is sent at the start.
	InStep bool
	// WaitingTokens makes engines report the uncached tokens that wait, which few do.
	WaitingTokens bool
	// Loss is the share of polls that fail, 0 to 1.
	Loss float64
	// Skew bounds how far the times of reports are off: each engine's by a fixed offset, drawn between -Skew and Skew.
	Skew time.Duration
}

// Cache says how choosers learn what engines have cached. A Cache is a plain value.
type Cache struct {
	// Exact makes engines tell every change of their cache. Otherwise choosers know only what they have sent. Passes are then done
	// one by one.
	Exact bool
	// Delay of these events beyond the network's.
	Delay time.Duration
}

// WithDefaults returns the configuration in effect.
func (c Config) WithDefaults() Config {
	if c.Chooser == nil {
		c.Chooser = PoolChooser(router.Config{})
	}
	orDefault(&c.Gateways, 1)
	orDefault(&c.Net, time.Millisecond)
	orDefault(&c.ProgressEvery, 16)
	orDefault(&c.SampleEvery, time.Second)
	orDefault(&c.Telemetry.Period, time.Second)
	engines := make([]Engine, len(c.Engines))
	for i, e := range c.Engines {
		if e.ID == "" {
			e.ID = fmt.Sprintf("engine-%02d", i)
		}
		if e.Believed == (score.Profile{}) {
			e.Believed = believed(e.Profile)
		}
		orDefault(&e.AdapterLoad, time.Second)
		if e.AdapterSlots > 0 && e.Believed.AdapterLoad == 0 {
			e.Believed.AdapterLoad = float64(max(e.AdapterLoad, 1)) / 1e6
		}
		engines[i] = e
	}
	c.Engines = engines
	return c
}

func orDefault[T int | time.Duration](v *T, def T) {
	switch {
	case *v == 0:
		*v = def
	case *v < 0:
		*v = None
	}
}

// Validate reports every fault of the configuration, all of them joined.
func (c Config) Validate() error {
	var faults []error
	bad := func(field string, value any, why string) {
		faults = append(faults, fmt.Errorf("world: Config.%s = %v %s", field, value, why))
	}
	c = c.WithDefaults()
	if n := len(c.Engines); n == 0 || n > maxEngines {
		bad("Engines", fmt.Sprintf("%d engines", n), fmt.Sprintf("is not in 1 to %d", maxEngines))
	}
	seen := map[string]bool{}
	for i, e := range c.Engines {
		at := fmt.Sprintf("Engines[%d]", i)
		if err := e.Profile.Validate(); err != nil {
			faults = append(faults, fmt.Errorf("world: Config.%s: %w", at, err))
		}
		if err := e.Believed.Validate(); err != nil {
			faults = append(faults, fmt.Errorf("world: Config.%s.Believed: %w", at, err))
		}
		if seen[e.ID] {
			bad(at+".ID", e.ID, "is there twice")
		}
		seen[e.ID] = true
		if size := c.Engines[0].Profile.BlockSize; e.Profile.BlockSize != size {
			bad(at+".Profile.BlockSize", e.Profile.BlockSize, fmt.Sprintf("is not that of the first engine, %d", size))
		}
		if e.AdapterSlots < 0 || e.AdapterSlots > maxAdapters {
			bad(at+".AdapterSlots", e.AdapterSlots, fmt.Sprintf("is not in 0 to %d", maxAdapters))
		}
	}
	if c.Gateways < 1 || c.Gateways > maxGateways {
		bad("Gateways", c.Gateways, fmt.Sprintf("is not in 1 to %d", maxGateways))
	}
	if c.Spread > BySession {
		bad("Spread", c.Spread, "is not one of the ways")
	}
	if c.Retries < 0 || c.Retries > maxRetries {
		bad("Retries", c.Retries, fmt.Sprintf("is not in 0 to %d", maxRetries))
	}
	if l := c.Telemetry.Loss; !(l >= 0 && l <= 1) {
		bad("Telemetry.Loss", l, "is not in 0 to 1")
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"Telemetry.Lag", c.Telemetry.Lag}, {"Telemetry.Skew", c.Telemetry.Skew}, {"Cache.Delay", c.Cache.Delay}, {"Horizon", c.Horizon},
	} {
		if d.value < 0 || d.value > maxFigure {
			bad(d.name, d.value, "is negative or too long")
		}
	}
	for i, x := range c.Incidents {
		if err := x.check(len(c.Engines)); err != nil {
			faults = append(faults, fmt.Errorf("world: Config.Incidents[%d]: %w", i, err))
		}
		for j, o := range c.Incidents[:i] {
			if x.clashes(o) {
				faults = append(faults, fmt.Errorf("world: Config.Incidents[%d]: field At = %v: Incidents[%d] is not over by then", i, x.At, j))
			}
		}
	}
	return errors.Join(faults...)
}

const (
	engineBits  = 12 // of an engine's number in the rank of an event
	maxEngines  = 1 << engineBits
	maxAdapters = 1<<16 - 1
	maxGateways = 1024
	maxRetries  = 100
)

// Kind is what happens to an engine in an incident.
type Kind uint8

const (
	// Drain: it takes no new requests for a while, by the operators' word; what is there goes on.
	Drain Kind = iota + 1
	// Restart: its process dies with all that is inside, and comes back under a new epoch with an empty cache. Nobody is told.
	Restart
	// Die: the same, and after Notice operators take it out of the gateways until it is back.
	Die
	// Freeze: it stops computing, and its reports stop changing. The open pass goes on afterwards.
	Freeze
	// Stuck: its reports stop changing, though it works.
	Stuck
	// Silent: polls of it fail, though it works.
	Silent
	// Slow: its passes take Factor times as long, from the next one on.
	Slow
)

// String returns the kind in lower case.
func (k Kind) String() string {
	if names := [...]string{"drain", "restart", "die", "freeze", "stuck", "silent", "slow"}; k >= Drain && k <= Slow {
		return names[k-1]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// effect is what an incident has in common with others of another kind: two of one effect must not overlap.
func (k Kind) effect() Kind {
	switch k {
	case Die:
		return Restart
	case Stuck:
		return Freeze
	}
	return k
}

// Incident is something that happens to an engine. Of one engine no two may overlap that are of one kind, or Restart and Die, or
// Freeze and Stuck. An Incident is a plain value.
type Incident struct {
	// Kind is what happens.
	Kind Kind
	// Engine is the number of the engine.
	Engine int
	// At is when it begins, since the start; For is how long it lasts. 0 = for ever, but not for Freeze, which must end.
	At, For time.Duration
	// Factor is that of Slow, above 0.
	Factor float64
	// Notice is how long after a Die operators notice.
	Notice time.Duration
}

func (x Incident) check(engines int) error {
	switch {
	case x.Kind < Drain || x.Kind > Slow:
		return fmt.Errorf("field Kind = %v is not one of the kinds", x.Kind)
	case x.Engine < 0 || x.Engine >= engines:
		return fmt.Errorf("field Engine = %d is not one of %d", x.Engine, engines)
	case x.At < 0 || x.At > maxFigure:
		return fmt.Errorf("field At = %v is negative or too long", x.At)
	case x.For < 0 || x.For > maxFigure:
		return fmt.Errorf("field For = %v is negative or too long", x.For)
	case x.Notice < 0 || x.Notice > maxFigure:
		return fmt.Errorf("field Notice = %v is negative or too long", x.Notice)
	case x.Kind == Freeze && x.For == 0:
		return errors.New("field For = 0: a freeze must end")
	case x.Kind == Slow && (!(x.Factor > 0) || math.IsInf(x.Factor, 0)):
		return fmt.Errorf("field Factor = %v is not above 0 and finite", x.Factor)
	}
	return nil
}

// clashes says that both concern the same thing at the same time.
func (x Incident) clashes(o Incident) bool {
	if x.Engine != o.Engine || x.Kind.effect() != o.Kind.effect() {
		return false
	}
	endless := func(i Incident) bool { return i.For == 0 && i.Kind != Restart }
	return (endless(x) || o.At <= x.At+x.For) && (endless(o) || x.At <= o.At+o.For)
}
