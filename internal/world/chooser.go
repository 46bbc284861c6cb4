package world

import (
	"time"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// Request is what a chooser sees of a request. It belongs to the world: a chooser must not keep it beyond the call.
type Request struct {
	Ask
	// Number counts the requests of the run from 0, Attempt its tries from 0.
	Number, Attempt int
	// Slot names the try at this gateway until its end: a small number that is given again afterwards.
	Slot int
	// At is when it arrived, and Due its deadline; zero = none.
	At, Due time.Time
	// Blocks are the chained hashes of the full blocks of the prompt; Prefix is the same for a prefix index.
	Blocks []uint64
	Prefix prefix.Sequence
	// Avoid are the engines that failed it before.
	Avoid []string
}

// Choice is where a request goes, and what was expected of it, as far as the chooser knows. A Choice is a plain value.
type Choice struct {
	// Engine is the number of the chosen engine.
	Engine int
	// Terms is what was predicted, ms; zero = nothing was.
	Terms score.Terms
	// Cached is the number of prompt tokens that were expected to be in its cache.
	Cached int64
	// Age and Freshness are those of what was known of it; Degraded says that nothing was known of anybody.
	Age       time.Duration
	Freshness telemetry.Class
	Degraded  bool
}

// Report is what a poll has read from an engine. It belongs to the world: a chooser must not keep it beyond the call.
type Report struct {
	// ObservedAt is when the poll was sent, by a clock that may be off: see [Telemetry].Skew.
	ObservedAt time.Time
	// Running and Waiting are numbers of requests.
	Running, Waiting int
	// WaitingTokens is the number of uncached prompt tokens that wait; -1 = not reported.
	WaitingTokens int64
	// KVUsed and KVCapacity are in tokens.
	KVUsed, KVCapacity int64
	// Generated is the number of tokens generated since the engine's start.
	Generated int64
	// Epoch names the life of the engine process.
	Epoch string
	// Adapters is the list of adapters, where the engine has any; HasAdapters says that there is a list.
	Adapters    []telemetry.Adapter
	HasAdapters bool
}

// Cause is how a try ended, for its chooser.
type Cause uint8

const (
	// Done: the stream came to its end.
	Done Cause = iota + 1
	// Broken: the engine failed it.
	Broken
	// GivenUp: the client went away, or the engine would never take it.
	GivenUp
)

// Change is something that operators tell a gateway about an engine.
type Change uint8

const (
	// Draining: it takes no new requests.
	Draining Change = iota + 1
	// Ready: it does again.
	Ready
	// Gone: it is no longer part of the service.
	Gone
	// Joined: it is part of it again, as a new incarnation.
	Joined
)

// Chooser decides for one gateway. It is called by the goroutine of the run alone, in the order of virtual time.
type Chooser interface {
	// Choose picks an engine and takes the request into account until End, in one step. An error is a rejection.
	Choose(r *Request) (Choice, error)
	// FirstToken tells that the first token of the try in that slot has come.
	FirstToken(slot int)
	// Progress tells how many tokens it has generated; see [Config].ProgressEvery.
	Progress(slot int, tokens int64)
	// End tells that it is over; the slot may be given again from then on.
	End(slot int, cause Cause, u router.Usage)
	// Observe brings a report of an engine.
	Observe(engine int, r *Report)
	// Lost tells that a poll of it failed.
	Lost(engine int)
	// Cache brings a change of its cache; only with [Cache].Exact.
	Cache(engine int, e prefix.Event)
	// Change tells what operators say of it.
	Change(engine int, c Change)
}

// Deaf is a chooser's ears that hear nothing, for embedding. It is immutable.
type Deaf struct{}

// FirstToken does nothing.
func (Deaf) FirstToken(int) {}

// Progress does nothing.
func (Deaf) Progress(int, int64) {}

// End does nothing.
func (Deaf) End(int, Cause, router.Usage) {}

// Observe does nothing.
func (Deaf) Observe(int, *Report) {}

// Lost does nothing.
func (Deaf) Lost(int) {}

// Cache does nothing.
func (Deaf) Cache(int, prefix.Event) {}

// Change does nothing.
func (Deaf) Change(int, Change) {}

// Truth is the true state of an engine. The engine must only be read. A Truth is valid until the chooser returns and belongs to it.
type Truth struct {
	// Engine is the engine itself, inside its open pass if there is one.
	Engine *sim.Engine
	// PassEnd is when the open pass ends, since the start; 0 = none is open.
	PassEnd time.Duration
	// Up is false while it is down; Slow is the factor on its times.
	Up   bool
	Slow float64
	// Coming are the requests on their way there, or waiting for an adapter.
	Coming []sim.Request
}

// Env is what a chooser is made with. An Env is a plain value; its functions belong to the run.
type Env struct {
	// Gateway is the number of its gateway, of Gateways.
	Gateway, Gateways int
	// Seed is a seed of its own.
	Seed uint64
	// Endpoints are the engines, by number, as operators believe them to be.
	Endpoints []router.Endpoint
	// BlockTokens is the block size of the run.
	BlockTokens int
	// Period is how often the gateway polls each engine; 0 = never.
	Period time.Duration
	// Now is the virtual clock.
	Now func() time.Time
	// Truth shows the true state of an engine, for oracles only.
	Truth func(engine int) Truth
}

// Maker makes the chooser of a gateway. It may be called from any goroutine, once per gateway and run.
type Maker func(e Env) (Chooser, error)
