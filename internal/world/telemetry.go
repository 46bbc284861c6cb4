package world

import (
	"time"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/prefix"
)

// polls are the reports under way, in places that are used again.
type polls struct {
	list   []underway
	unused []int
}

// underway is a poll, from when it was sent until its answer is there.
type underway struct {
	gate, engine int
	sentAt       int64
	lost         bool
	report       Report
}

// startPolls polls every engine at once, as a gateway does before it serves.
func (w *world) startPolls() {
	if w.cfg.Telemetry.Period <= 0 {
		return
	}
	for pair := range uint64(len(w.gates) * len(w.nodes)) {
		w.push(0, evPoll, pair, 0)
	}
}

// phase is when the second poll of a pair is sent; from then on they come in periods.
func (w *world) phase(pair uint64) int64 {
	period := int64(w.cfg.Telemetry.Period)
	if w.cfg.Telemetry.InStep {
		return period
	}
	return 1 + int64(draw(w.cfg.Seed, drawPhase, pair, 0)*float64(period-1))
}

// skewOf is the fixed error of an engine's times, ns.
func (w *world) skewOf(engine int) int64 {
	return int64((2*draw(w.cfg.Seed, drawSkew, uint64(engine), 0) - 1) * float64(w.cfg.Telemetry.Skew))
}

// poll sends one and schedules the next; ref counts those of the pair.
func (w *world) poll(e event) {
	next := int64(w.cfg.Telemetry.Period)
	if e.ref == 0 {
		next = w.phase(e.who())
	}
	w.push(w.now+next, evPoll, e.who(), e.ref+1)
	at := len(w.polls.list)
	if n := len(w.polls.unused); n > 0 {
		at, w.polls.unused = w.polls.unused[n-1], w.polls.unused[:n-1]
	} else {
		w.polls.list = append(w.polls.list, underway{})
	}
	u := &w.polls.list[at]
	u.gate, u.engine, u.sentAt = int(e.who())/len(w.nodes), int(e.who())%len(w.nodes), w.now
	u.lost = w.cfg.Telemetry.Loss > 0 && draw(w.cfg.Seed, drawLoss, e.who(), e.ref) < w.cfg.Telemetry.Loss
	w.push(w.now+w.net(), evRead, e.who(), uint64(at))
}

// read takes the figures of an engine as a poll arrives there.
func (w *world) read(e event) {
	u := &w.polls.list[e.ref]
	n := w.nodes[u.engine]
	u.lost = u.lost || !n.up || n.silent
	if !u.lost {
		u.report = n.observe()
		u.report.ObservedAt = w.base.Add(time.Duration(u.sentAt + n.skew))
	}
	w.push(w.now+w.net()+int64(w.cfg.Telemetry.Lag), evReport, e.who(), e.ref)
}

// deliver brings the answer to the gateway.
func (w *world) deliver(ref uint64) {
	u := &w.polls.list[ref]
	n, c := w.nodes[u.engine], w.gates[u.gate].chooser
	switch {
	case n.gone: // operators have taken it out, and its polls with it
	case u.lost:
		c.Lost(u.engine)
	default:
		c.Observe(u.engine, &u.report)
	}
	w.polls.unused = append(w.polls.unused, int(ref))
}

// observe is what the engine reports of itself at the moment.
func (n *node) observe() Report {
	if n.stuck {
		return n.stale
	}
	n.settle()
	s := n.engine.State()
	size := n.world.blocks
	r := Report{
		Running: s.Running, Waiting: s.Waiting, WaitingTokens: -1, Generated: s.GeneratedTokens, Epoch: n.epoch,
		KVUsed: int64(s.UsedBlocks) * size, KVCapacity: int64(s.Blocks) * size,
	}
	if n.world.cfg.Telemetry.WaitingTokens {
		r.WaitingTokens = n.engine.WaitingUncached()
	}
	if len(n.adapters.places) > 0 {
		r.Waiting += n.waits()
		r.Adapters, r.HasAdapters = n.adapters.list(nil), true
	}
	return r
}

// batches are changes of caches under way.
type batches struct {
	list   map[uint64][]prefix.Event
	next   uint64
	events []sim.KVEvent
}

// collect sends what has changed in the cache of a node to all gateways.
func (n *node) collect() {
	w := n.world
	if !w.cfg.Cache.Exact || n.engine == nil {
		return
	}
	w.batches.events = n.engine.KVEvents(w.batches.events[:0])
	if len(w.batches.events) == 0 {
		return
	}
	var out []prefix.Event
	for i := 0; i < len(w.batches.events); {
		e, used := w.translate(w.batches.events[i:])
		out = append(out, e)
		i += used
	}
	w.sendCache(n, out)
}

// translate makes one event of as many as belong together: blocks stored one after the other, or removed from the tail on.
func (w *world) translate(events []sim.KVEvent) (prefix.Event, int) {
	first := events[0]
	if first.Kind == sim.KVCleared {
		return prefix.Event{Kind: prefix.Cleared}, 1
	}
	c, known := w.chains[first.Hash]
	if !known {
		w.fail("a cache event has a hash that no request has")
		return prefix.Event{Kind: prefix.Cleared}, 1
	}
	low, high, used := c.at, c.at, 1
	for ; used < len(events) && events[used].Kind == first.Kind; used++ {
		h := events[used].Hash
		if first.Kind == sim.KVStored && high+1 < len(c.blocks) && c.blocks[high+1] == h {
			high++
		} else if first.Kind == sim.KVRemoved && low > 0 && c.blocks[low-1] == h {
			low--
		} else {
			break
		}
	}
	kind := prefix.Stored
	if first.Kind == sim.KVRemoved {
		kind = prefix.Removed
	}
	q, err := prefix.FromChain(w.scope, int(w.blocks), c.blocks[:high+1:high+1])
	if err != nil {
		w.fail("%w", err)
	}
	return prefix.Event{Kind: kind, Prefix: q, From: low}, used
}

func (w *world) sendCache(n *node, events []prefix.Event) {
	if w.batches.list == nil {
		w.batches.list = map[uint64][]prefix.Event{}
	}
	w.batches.next++
	w.batches.list[w.batches.next] = events
	w.push(w.now+w.net()+int64(w.cfg.Cache.Delay), evCache, uint64(n.number), w.batches.next)
}

// tellCleared tells that a new process has nothing cached.
func (w *world) tellCleared(n *node) { w.sendCache(n, []prefix.Event{{Kind: prefix.Cleared}}) }

func (w *world) deliverCache(e event) {
	events := w.batches.list[e.ref]
	delete(w.batches.list, e.ref)
	engine := int(e.who())
	if w.nodes[engine].gone {
		return
	}
	for _, g := range w.gates {
		for _, ev := range events {
			g.chooser.Cache(engine, ev)
		}
	}
}
