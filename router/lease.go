package router

import (
	"sync/atomic"
	"time"

	"github.com/isobar-go/isobar/reserve"
)

// Cause is how a lease ended.
type Cause uint8

// The causes. The zero value is Completed.
const (
	// Completed: the stream came to its end.
	Completed Cause = iota
	// Failed: the endpoint failed it; counts towards its circuit.
	Failed
	// Cancelled: the caller gave up; says nothing about the endpoint.
	Cancelled
	// Refused: the endpoint is alive and said that it has too much to do. It says nothing to its circuit; the endpoint is
	// avoided for a second, doubled by each further refusal up to eight, while there is another.
	Refused
)

var causeNames = [...]string{"completed", "failed", "cancelled", "refused"}

// String is the cause's name.
func (c Cause) String() string {
	if int(c) < len(causeNames) {
		return causeNames[c]
	}
	return "unknown"
}

// MarshalText writes the name.
func (c Cause) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads a name; an unknown one is an error that carries it.
func (c *Cause) UnmarshalText(text []byte) error {
	for i, name := range causeNames {
		if name == string(text) {
			*c = Cause(i)
			return nil
		}
	}
	return unknownName("cause", string(text))
}

// Usage is what the engine says a request has used, tokens; 0 = not known. A Usage is a plain value.
type Usage struct {
	// PromptTokens is the length of the prompt, CachedTokens how many of them came from the prefix cache, OutputTokens the
	// length of the output.
	PromptTokens int64 `json:"prompt_tokens,omitempty"`
	CachedTokens int64 `json:"cached_tokens,omitempty"`
	OutputTokens int64 `json:"output_tokens,omitempty"`
}

// Outcome is how a request ended. Its zero value is a completion of which nothing more is known; a Cause that is none of the
// constants counts as Cancelled. An Outcome is a plain value.
type Outcome struct {
	Cause Cause
	// Err is the failure; only its type is ever recorded, since its text may contain what must not be.
	Err   error
	Usage Usage
}

// Lease is one selected request, from selection to the end of its stream. Every lease must be ended by one of
// Done, Fail, Refuse, Cancel and Release: the first call counts, further ones do nothing, from any goroutine. No timer ends it: a
// forgotten lease is reported as [Stats].OldestLease.
type Lease struct {
	pool     *Pool
	endpoint *live
	conf     *Endpoint
	account  reserve.Lease
	verdict  verdict
	receipt  *Receipt
	tenant   uint64 // hash; 0 = not counted
	size     int64  // tokens counted for it
	class    uint8  // rank of its class, where shares are kept
	share    int64  // tokens taken of its share; 0 = not counted
	began    int64  // ns on the pool's scale
	nth      uint64 // of those sent to the endpoint
	started  atomic.Int64
	first    atomic.Int64
	tokens   atomic.Int64
	ended    atomic.Bool
	half     atomic.Bool // is the probe of an open circuit, and has shown no sign of life yet
	due      bool        // is the probe of a suspect endpoint
}

// Endpoint is the chosen endpoint, as it was configured at the time of the choice. Its slices and maps are the pool's: do not
// write to them.
func (l *Lease) Endpoint() Endpoint {
	if !l.granted() {
		return Endpoint{}
	}
	return *l.conf
}

// granted says that the lease came from a pool. Calls on others, and on nil, do nothing.
func (l *Lease) granted() bool { return l != nil && l.pool != nil }

// Decision is why it was chosen.
func (l *Lease) Decision() Decision {
	if !l.granted() {
		return Decision{}
	}
	return l.pool.decision(&l.verdict, l.endpoint.id, l.endpoint.incarnation, l.pool.base.Add(time.Duration(l.began)))
}

// Started says that the endpoint has accepted the request, for instance that its response headers are there. It changes no
// cost and is recorded as the start delay. Only the first call counts.
func (l *Lease) Started() {
	if !l.granted() {
		return
	}
	_, now := l.pool.now()
	l.started.CompareAndSwap(0, max(now, 1))
}

// FirstToken says that the first token is there: the prefill is over, and its share of the cost ends. Only the first call
// counts.
func (l *Lease) FirstToken() {
	if !l.granted() || l.first.Load() != 0 || l.ended.Load() {
		return
	}
	t, now := l.pool.now()
	if l.first.CompareAndSwap(0, max(now, 1)) {
		l.prefilled()
		l.account.FirstToken(t)
		l.pool.heard(l.endpoint, now, l.nth, signFirst)
		l.alive(now)
		l.roomier()
	}
}

// Progress says how many tokens have been generated so far; the decode share of the cost shrinks accordingly. A smaller
// number than before changes nothing, and any number above 0 implies the first token.
func (l *Lease) Progress(tokens int) {
	if !l.granted() || tokens <= 0 || l.ended.Load() {
		return
	}
	more := false
	for old := l.tokens.Load(); int64(tokens) > old; old = l.tokens.Load() {
		if more = l.tokens.CompareAndSwap(old, int64(tokens)); more {
			l.endpoint.limiter.serve(int64(tokens) - old)
			break
		}
	}
	t, now := l.pool.now()
	first := l.first.CompareAndSwap(0, max(now, 1))
	if first {
		l.prefilled()
	}
	l.account.Progress(t, int64(tokens))
	switch {
	case first:
		l.pool.heard(l.endpoint, now, l.nth, signFirst)
	case more:
		l.pool.heard(l.endpoint, now, 0, signOther)
	}
	l.alive(now)
	if first {
		l.roomier()
	}
}

// roomier tells those who wait of the first token: their starts are sooner, and where nothing has been reported there is room for another.
func (l *Lease) roomier() {
	if l.endpoint.reported.Load().seen {
		l.pool.sooner()
	} else {
		l.pool.happened()
	}
}

// prefilled notes that the prompt has been computed, once.
func (l *Lease) prefilled() {
	l.endpoint.starting.Add(-1)
	l.endpoint.limiter.serve(l.account.Cost().Prefill)
}

// alive closes the circuit that the lease was to probe: tokens have shown that the endpoint works, however long the rest takes.
func (l *Lease) alive(now int64) {
	if l.half.Load() && l.half.CompareAndSwap(true, false) {
		l.endpoint.circuit.record(&l.pool.cfg.Circuit, now, l.began, true, false)
		l.endpoint.probing.Add(-1)
		l.pool.happened()
	}
}

// forget drops what an endpoint was taken to hold whose circuit has just opened: most that fail in such a way come back as a new
// process. It is learned again from what is served there.
func (p *Pool) forget(e *live, now int64) {
	e.adapters.clear()
	if !p.index.Exact(e.holder) { // its events will tell
		p.index.Clear(e.holder)
		e.cleared.Store(max(now, 1))
	}
}

// Done ends the lease: the stream came to its end.
func (l *Lease) Done(u Usage) { l.end(Outcome{Usage: u}) }

// Fail ends the lease: the endpoint failed it. It counts towards the endpoint's circuit.
func (l *Lease) Fail(err error) { l.end(Outcome{Cause: Failed, Err: err}) }

// Refuse ends the lease: the endpoint said that it has too much to do, as by status 429.
func (l *Lease) Refuse(err error) { l.end(Outcome{Cause: Refused, Err: err}) }

// Cancel ends the lease: the caller gave up, which says nothing about the endpoint.
func (l *Lease) Cancel() { l.end(Outcome{Cause: Cancelled}) }

// Live says that the lease has not ended.
func (l *Lease) Live() bool { return l.granted() && !l.ended.Load() }

// Release ends a lease: what it took is given back, exactly once, to the incarnation it was taken from. Any later call for
// the same lease does nothing, and so does a nil lease. A lease of another pool is given back there.
func (p *Pool) Release(l *Lease, out Outcome) { l.end(out) }

func (l *Lease) end(out Outcome) {
	if !l.granted() || !l.ended.CompareAndSwap(false, true) {
		return
	}
	p := l.pool
	if out.Cause > Refused {
		out.Cause = Cancelled // a cause that is none says nothing about the endpoint
	}
	t, now := p.now()
	e := l.endpoint
	switch out.Cause {
	case Failed:
		e.failed.Add(1)
	case Cancelled:
		e.cancelled.Add(1)
	case Refused:
		e.refusals.Add(1)
		e.refused.mark(now, l.began)
	default:
		e.completed.Add(1)
		if cost := l.account.Cost(); l.first.Load() != 0 { // whose first token is there
			p.heard(e, now, 0, signOther)
		} else if cost.KV > cost.Decode { // an answer to no prompt need not come from the engine
			p.heard(e, now, l.nth, signWhole)
		}
		e.refused.clear(l.began)
		if n := max(out.Usage.OutputTokens, l.tokens.Load()); n > 0 {
			p.outputs.learn(float64(min(n, longest)))
		}
	}
	if e.limiter != nil && out.Cause == Completed {
		e.limiter.serve(out.Usage.OutputTokens - l.tokens.Load())
		if out.Usage.OutputTokens > 0 && l.first.Load() == 0 {
			e.limiter.serve(l.account.Cost().Prefill)
		}
	}
	if l.first.CompareAndSwap(0, -1) { // no token any more
		p.unheard(l, now)
	}
	l.account.Release(t)
	p.uncountTenant(l)
	p.shares.give(l, now)
	probe := l.half.Swap(false)
	if out.Cause == Completed || out.Cause == Failed || probe && out.Cause == Refused { // who refuses is alive
		if e.circuit.record(&p.cfg.Circuit, now, l.began, probe, out.Cause == Failed) {
			p.forget(e, now)
		}
	}
	if probe {
		e.probing.Add(-1)
	}
	if l.due {
		e.probeAt.Store(now)
	}
	p.happened() // before the observer is told, who may ask for more
	if l.receipt != nil {
		p.ended(l, out, now)
	}
}
