package world

import (
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
)

// world is a run.
type world struct {
	cfg    Config // with defaults
	src    Source
	now    int64 // ns since the start
	base   time.Time
	heap   heap
	real   int // events in it that are no part of an endless row, such as polls
	nodes  []*node
	gates  []*gate
	scope  prefix.Scope
	blocks int64 // block size, tokens
	leap   bool  // quiet passes may be jumped over

	flights []flight
	unused  []int32 // free places in flights
	open    int     // requests that have not ended
	owed    int     // cancellations on their way to engines

	records []Record
	polls   polls
	chains  map[uint64]chain // exact mode: where a block hash occurs
	batches batches
	marches [][]progress // free buffers
	reached map[uint64][]progress
	nMarch  uint64
	events  []sim.Event
	fault   error
}

// gate is a gateway.
type gate struct {
	number  int
	chooser Chooser
	slots   []int // free
	nSlots  int
}

// Run simulates until every request has ended, or the horizon. An error means that the configuration is not valid, that the
// source sent what is not, or that an invariant is broken; there is no result then.
func Run(cfg Config, src Source) (*Result, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	w, err := newWorld(cfg, src)
	if err != nil {
		return nil, err
	}
	for w.fault == nil && w.step() {
	}
	if err := src.Err(); err != nil && w.fault == nil {
		w.fault = fmt.Errorf("world: source: %w", err)
	}
	if w.fault == nil {
		w.finish()
	}
	if w.fault != nil {
		return nil, w.fault
	}
	return w.result(), nil
}

// fail ends the run with its first fault.
func (w *world) fail(format string, args ...any) {
	if w.fault == nil {
		w.fault = fmt.Errorf("world: at %v: "+format, append([]any{time.Duration(w.now)}, args...)...)
	}
}

// newWorld makes a run of a valid configuration, before its first event.
func newWorld(cfg Config, src Source) (*world, error) {
	w := &world{
		cfg: cfg.WithDefaults(), src: src, base: time.Unix(1_700_000_000, 0).UTC(), reached: map[uint64][]progress{},
	}
	return w, w.build()
}

func (w *world) build() error {
	w.blocks = w.cfg.Engines[0].Profile.BlockSize
	w.leap = !w.cfg.PassByPass && !w.cfg.Cache.Exact
	scope, err := prefix.NewScope(prefix.Parts{Model: "world"})
	if err != nil {
		return err
	}
	w.scope = scope
	if w.cfg.Cache.Exact {
		w.chains = map[uint64]chain{}
	}
	endpoints := make([]router.Endpoint, len(w.cfg.Engines))
	for i, e := range w.cfg.Engines {
		endpoints[i] = router.Endpoint{ID: e.ID, Incarnation: "life-1", Models: e.Models, Profile: e.Believed}
		n := &node{world: w, number: i, cfg: e, slow: 1}
		if err := n.boot(); err != nil {
			return err
		}
		n.skew = w.skewOf(i)
		w.nodes = append(w.nodes, n)
	}
	for g := range w.cfg.Gateways {
		c, err := w.cfg.Chooser(Env{
			Gateway: g, Gateways: w.cfg.Gateways, Seed: mix(mix(mix(w.cfg.Seed)^drawSeed) ^ uint64(g)), Endpoints: endpoints,
			BlockTokens: int(w.blocks), Period: max(w.cfg.Telemetry.Period, 0), Now: w.clock, Truth: w.truth,
		})
		if err != nil {
			return fmt.Errorf("world: chooser of gateway %d: %w", g, err)
		}
		w.gates = append(w.gates, &gate{number: g, chooser: c})
	}
	for i, x := range w.cfg.Incidents {
		w.push(int64(x.At), evBegin, uint64(i), 0)
	}
	w.startPolls()
	if w.cfg.SampleEvery > 0 {
		w.push(0, evSample, 0, 0)
	}
	return nil
}

// clock is the time of choosers.
func (w *world) clock() time.Time { return w.base.Add(time.Duration(w.now)) }

// push schedules an event. Nothing comes before its cause.
func (w *world) push(at int64, k eventKind, who, ref uint64) {
	if at < w.now {
		w.fail("an event of kind %d would come at %v, before its cause", k, time.Duration(at))
		return
	}
	w.real += count(!k.endless())
	w.heap.push(event{at: at, rank: rankOf(k, who), ref: ref})
}

// step does the next event or arrival and says whether there was one.
func (w *world) step() bool {
	at, more := w.src.Peek()
	if !more && w.open == 0 && w.owed == 0 {
		return false
	}
	if w.real == 0 && !more {
		w.fail("%d requests are open and nothing will ever happen", w.open)
		return false
	}
	n, next := len(w.heap.list), int64(at)
	if !more || n > 0 && w.heap.list[0].at <= next {
		next = w.heap.list[0].at
		more = false
	}
	if w.cfg.Horizon > 0 && next > int64(w.cfg.Horizon) {
		w.now = int64(w.cfg.Horizon)
		return false
	}
	if next < w.now {
		w.fail("request %d arrives in the past, at %v", len(w.records), time.Duration(next))
		return false
	}
	w.now = next
	if more {
		w.arrive()
		return true
	}
	w.do(w.heap.pop())
	return true
}

func (w *world) do(e event) {
	w.real -= count(!e.kind().endless())
	switch e.kind() {
	case evPass:
		w.nodes[e.who()].passOver(e.ref)
	case evBegin:
		w.begin(int(e.who()))
	case evOver:
		w.over(int(e.who()))
	case evNotice:
		w.notice(int(e.who()))
	case evLoaded:
		w.nodes[e.ref>>32].loaded(uint32(e.ref))
	case evArrive:
		w.reach(e.ref)
	case evWithdraw:
		w.withdraw(e.who(), e.ref)
	case evRead:
		w.read(e)
	case evCache:
		w.deliverCache(e)
	case evFirst:
		w.first(e.ref)
	case evProgress:
		w.deliverProgress(e.ref)
	case evDone:
		w.done(e.ref)
	case evRefused:
		w.refused(e.ref)
	case evBroken:
		w.broken(e.ref)
	case evReport:
		w.deliver(e.ref)
	case evGiveUp:
		w.giveUp(e.who(), e.ref)
	case evPoll:
		w.poll(e)
	case evSample:
		w.sample()
	}
}

// net is the time of a message between a gateway and an engine, ns.
func (w *world) net() int64 { return max(int64(w.cfg.Net), 0) }

// gateOf is the gateway of a request.
func (w *world) gateOf(number int, session string) int {
	if w.cfg.Gateways == 1 {
		return 0
	}
	if w.cfg.Spread == BySession && session != "" {
		return int(mix(xxhash.Sum64String(session)) % uint64(w.cfg.Gateways))
	}
	return number % w.cfg.Gateways
}

func (w *world) truth(engine int) Truth {
	n := w.nodes[engine]
	n.settle()
	t := Truth{Engine: n.engine, Up: n.up, Slow: n.slow}
	if n.busy {
		t.PassEnd = time.Duration(n.passEnd)
	}
	for i := range w.flights {
		f := &w.flights[i]
		if f.engine == engine && (f.stage == sent || f.stage == loading) {
			t.Coming = append(t.Coming, f.forEngine(f.id(int32(i))))
		}
	}
	return t
}
