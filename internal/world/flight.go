package world

import (
	"errors"
	"slices"
	"time"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
)

// stage is how far a try has come.
type stage uint8

const (
	idle    stage = iota // the place is free
	asked                // its gateway is choosing
	sent                 // on its way to the engine
	loading              // at the engine, its adapter is not there
	inside               // in the engine
	ended                // the engine has done with it, its gateway does not know yet
)

// flight is an open request. Its place in world.flights is used again, and its generation tells the tries apart.
type flight struct {
	stage   stage
	gen     uint32
	number  int // of the record
	gate    int
	engine  int
	arrival Arrival
	req     Request
}

// id names a try: its place, and which of those there.
func (f *flight) id(place int32) uint64 { return uint64(f.gen)<<32 | uint64(uint32(place)) }

// flightOf returns the try of that id, nil if it is over.
func (w *world) flightOf(id uint64) *flight {
	f := &w.flights[uint32(id)]
	if f.gen != uint32(id>>32) || f.stage == idle {
		return nil
	}
	return f
}

// forEngine is the request as its engine sees it.
func (f *flight) forEngine(id uint64) sim.Request {
	return sim.Request{
		ID: id, Blocks: f.arrival.Blocks, PromptTokens: f.arrival.Ask.PromptTokens, OutputTokens: f.arrival.OutputTokens,
	}
}

// who orders the events of requests that fall on one instant.
func (f *flight) who() uint64 { return uint64(f.number)<<8 | uint64(f.req.Attempt) }

// arrive takes the next arrival of the source.
func (w *world) arrive() {
	a, ok := w.src.Next()
	number := len(w.records)
	if !ok {
		w.fail("the source has no request %d, though it said when it comes", number)
		return
	}
	if int64(a.At) != w.now {
		w.fail("request %d comes at %v, not when the source said", number, a.At)
		return
	}
	err := a.check(w.blocks)
	if err != nil {
		w.fail("request %d: %w", number, err)
		return
	}
	place := int32(len(w.flights))
	if n := len(w.unused); n > 0 {
		place, w.unused = w.unused[n-1], w.unused[:n-1]
	} else {
		w.flights = append(w.flights, flight{})
	}
	f := &w.flights[place]
	avoid := f.req.Avoid[:0]
	*f = flight{gen: f.gen, number: number, gate: w.gateOf(number, a.Ask.Session), arrival: a}
	// Routers get nothing that tells the length of the output: the hashes are cut off, and their capacity too.
	blocks := a.Blocks[:min(int64(len(a.Blocks)), a.Ask.PromptTokens/w.blocks)]
	blocks = blocks[:len(blocks):len(blocks)]
	f.req = Request{Ask: a.Ask, Number: number, At: w.clock(), Blocks: blocks, Avoid: avoid}
	if a.Ask.Deadline > 0 {
		f.req.Due = f.req.At.Add(a.Ask.Deadline)
	}
	if len(blocks) > 0 {
		if f.req.Prefix, err = prefix.FromChain(w.scope, int(w.blocks), blocks); err != nil {
			w.fail("request %d: %w", number, err)
			return
		}
	}
	w.records = append(w.records, Record{
		Number: number, Class: a.Ask.Class, Tenant: a.Ask.Tenant, Session: a.Ask.Session, Label: a.Label, Gateway: f.gate, Engine: None,
		Arrival: time.Duration(w.now), Deadline: a.Ask.Deadline, PromptTokens: a.Ask.PromptTokens, OutputTokens: a.OutputTokens,
		Sent: Never, Queued: Never, Start: Never, FirstToken: Never, End: Never,
	})
	w.open++
	if a.Patience > 0 {
		w.push(w.now+int64(a.Patience), evGiveUp, uint64(number), uint64(uint32(place)))
	}
	w.dispatch(place)
}

// dispatch asks the gateway's chooser and sends the request off.
func (w *world) dispatch(place int32) {
	f := &w.flights[place]
	g, r := w.gates[f.gate], &w.records[f.number]
	f.req.Slot = g.take()
	f.stage = asked
	choice, err := g.chooser.Choose(&f.req)
	if err != nil {
		g.give(f.req.Slot)
		r.Reason = codeOf(err)
		w.end(place, Rejected)
		return
	}
	if choice.Engine < 0 || choice.Engine >= len(w.nodes) {
		w.fail("the chooser of gateway %d names engine %d of %d", f.gate, choice.Engine, len(w.nodes))
		return
	}
	f.stage, f.engine = sent, choice.Engine
	r.Attempts++
	r.Engine, r.Sent = f.engine, time.Duration(w.now)
	r.Terms, r.PredictedCached = choice.Terms, choice.Cached
	r.ReportAge, r.Freshness, r.Degraded = choice.Age, choice.Freshness, choice.Degraded
	r.Queued, r.Start, r.FirstToken, r.Cached = Never, Never, Never, 0
	w.push(w.now+w.net(), evArrive, f.who(), f.id(place))
}

// codeOf is the short name of a rejection.
func codeOf(err error) string {
	var reject *router.RejectError
	if errors.As(err, &reject) {
		return reject.Code()
	}
	return err.Error()
}

func (g *gate) take() int {
	if n := len(g.slots); n > 0 {
		slot := g.slots[n-1]
		g.slots = g.slots[:n-1]
		return slot
	}
	g.nSlots++
	return g.nSlots - 1
}

func (g *gate) give(slot int) { g.slots = append(g.slots, slot) }

// tell ends a try at its gateway.
func (w *world) tell(f *flight, cause Cause, u router.Usage) {
	g := w.gates[f.gate]
	g.chooser.End(f.req.Slot, cause, u)
	g.give(f.req.Slot)
}

// end closes a request.
func (w *world) end(place int32, o Outcome) {
	f := &w.flights[place]
	r := &w.records[f.number]
	if r.Outcome != Open {
		w.fail("request %d ends as %v and as %v", f.number, r.Outcome, o)
		return
	}
	r.Outcome, r.End = o, time.Duration(w.now)
	key := f.arrival.Key
	f.stage = idle
	f.gen++
	f.arrival, f.req = Arrival{}, Request{Avoid: f.req.Avoid[:0]}
	w.unused = append(w.unused, place)
	w.open--
	w.src.Finished(End{Key: key, Number: r.Number, At: time.Duration(w.now), Outcome: o})
}

// reach brings a request to its engine.
func (w *world) reach(id uint64) {
	f := w.flightOf(id)
	if f == nil { // its client has given up on the way
		return
	}
	n := w.nodes[f.engine]
	if !n.up {
		w.breakOff(f, id)
		return
	}
	w.records[f.number].Queued = time.Duration(w.now)
	if !n.wantAdapter(f, id) {
		f.stage = loading
		return
	}
	w.submit(f, id)
}

// submit puts a request into its engine.
func (w *world) submit(f *flight, id uint64) {
	n := w.nodes[f.engine]
	n.settle()
	q := f.forEngine(id)
	if err := n.engine.Submit(q); err != nil {
		n.freeAdapter(id)
		if errors.Is(err, sim.ErrTooLong) {
			f.stage = ended
			w.push(w.now+w.net(), evRefused, f.who(), id)
			return
		}
		w.fail("request %d: %w", f.number, err)
		return
	}
	w.note(q)
	f.stage = inside
	n.work()
}

// breakOff tells the gateway that the engine has failed the try.
func (w *world) breakOff(f *flight, id uint64) {
	f.stage = ended
	w.push(w.now+w.net(), evBroken, f.who(), id)
}

func (w *world) first(id uint64) {
	f := w.flightOf(id)
	if f == nil {
		return
	}
	w.records[f.number].FirstToken = time.Duration(w.now)
	w.gates[f.gate].chooser.FirstToken(f.req.Slot)
}

func (w *world) done(id uint64) {
	f := w.flightOf(id)
	if f == nil {
		return
	}
	r := &w.records[f.number]
	w.tell(f, Done, router.Usage{PromptTokens: r.PromptTokens, CachedTokens: r.Cached, OutputTokens: r.OutputTokens})
	w.end(int32(uint32(id)), Finished)
}

func (w *world) refused(id uint64) {
	f := w.flightOf(id)
	if f == nil {
		return
	}
	w.records[f.number].Reason = "too-long"
	w.tell(f, GivenUp, router.Usage{})
	w.end(int32(uint32(id)), Rejected)
}

// broken lets the client try again, or gives up.
func (w *world) broken(id uint64) {
	f := w.flightOf(id)
	if f == nil {
		return
	}
	place := int32(uint32(id))
	w.tell(f, Broken, router.Usage{})
	if f.req.Attempt >= w.cfg.Retries {
		w.records[f.number].Reason = "broken"
		w.end(place, Failed)
		return
	}
	if engine := w.cfg.Engines[f.engine].ID; !slices.Contains(f.req.Avoid, engine) {
		f.req.Avoid = append(f.req.Avoid, engine)
	}
	f.req.Attempt++
	f.gen++
	w.dispatch(place)
}

// giveUp takes a request back whose client has run out of patience, wherever it is.
func (w *world) giveUp(number, place uint64) {
	f := &w.flights[place]
	if f.stage == idle || f.number != int(number) {
		return
	}
	id := f.id(int32(place))
	w.tell(f, GivenUp, router.Usage{})
	if f.stage == loading || f.stage == inside {
		w.owed++
		w.push(w.now+w.net(), evWithdraw, f.who()<<engineBits|uint64(f.engine), id)
	}
	w.end(int32(place), GaveUp)
}

// withdraw takes a request out of its engine whose client has gone.
func (w *world) withdraw(who, id uint64) {
	w.owed--
	n := w.nodes[who&(1<<engineBits-1)]
	if !n.up {
		return
	}
	n.settle()
	n.engine.Cancel(id)
	n.freeAdapter(id)
}

// progress is how far a stream is.
type progress struct {
	id     uint64
	tokens int64
}

// report sends the progress of a node's streams to their gateways.
func (w *world) report(n *node) {
	w.events = n.engine.Generated(w.events[:0])
	if len(w.events) == 0 {
		return
	}
	var buf []progress
	if k := len(w.marches); k > 0 {
		buf, w.marches = w.marches[k-1][:0], w.marches[:k-1]
	}
	for _, e := range w.events {
		buf = append(buf, progress{e.ID, e.Tokens})
	}
	w.nMarch++
	w.reached[w.nMarch] = buf
	w.push(w.now+w.net(), evProgress, uint64(n.number), w.nMarch)
}

func (w *world) deliverProgress(ref uint64) {
	buf := w.reached[ref]
	delete(w.reached, ref)
	for _, p := range buf {
		if f := w.flightOf(p.id); f != nil {
			w.gates[f.gate].chooser.Progress(f.req.Slot, p.tokens)
		}
	}
	w.marches = append(w.marches, buf)
}

// chain says where a block hash occurs: in blocks, at that place.
type chain struct {
	blocks []uint64
	at     int
}

// note remembers the hashes of a request where cache events are to be told.
func (w *world) note(q sim.Request) {
	if w.chains == nil {
		return
	}
	for i, h := range q.Blocks {
		if _, known := w.chains[h]; !known {
			w.chains[h] = chain{q.Blocks, i}
		}
	}
}
