package router

import (
	"errors"
	"fmt"
	"time"

	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/reserve"
	"github.com/isobar-go/isobar/telemetry"
)

// Observe takes what an engine reported. ObservedAt must be the earliest moment at which the figures can have held: the
// time at which the poll was sent. An older snapshot than the one held is dropped, per reading, and an invalid figure is
// taken as unknown; both are counted, see [Pool.Stats], and no error. An unknown ID is an error, and so is a snapshot of
// another incarnation than the present one.
func (p *Pool) Observe(id string, s telemetry.Snapshot) error {
	_, err := p.Report(id, s)
	return err
}

// Report is Observe and says what became of the snapshot.
func (p *Pool) Report(id string, s telemetry.Snapshot) (telemetry.Result, error) {
	e, err := p.find(id)
	if err != nil {
		return telemetry.Result{}, err
	}
	if s.Incarnation != "" && s.Incarnation != e.incarnation {
		return telemetry.Result{}, replacedEndpoint(id, s.Incarnation)
	}
	return p.report(e, s, nil), nil
}

// ObserveAnswer takes what an endpoint reported with its answer to the request of a lease: it counts for the incarnation
// that the lease was granted on, and its figures contain that request. An error says that this incarnation is not in the
// pool any more, that the snapshot is of another one, or that the lease is not of this pool.
func (p *Pool) ObserveAnswer(l *Lease, s telemetry.Snapshot) error {
	if !l.granted() || l.pool != p {
		return errors.New("router: the lease is not of this pool")
	}
	e := l.endpoint
	if p.set.Load().byID[e.id] != e {
		return replacedEndpoint(e.id, e.incarnation)
	}
	if s.Incarnation != "" && s.Incarnation != e.incarnation {
		return replacedEndpoint(e.id, s.Incarnation)
	}
	p.report(e, s, &l.account)
	return nil
}

// report takes a snapshot of an endpoint, which came with the answer to a lease's request, or by itself.
func (p *Pool) report(l *live, s telemetry.Snapshot, answered *reserve.Lease) telemetry.Result {
	defer p.happened() // after the lock
	now := p.cfg.Now()
	l.reporting.Lock()
	defer l.reporting.Unlock()
	observedAt := s.ObservedAt
	if observedAt.IsZero() {
		observedAt = now
	}
	own := l.account.Sums().Live.Requests
	if own == 0 && l.account.Version() != l.told {
		own = 1 // there was one at least since the last report
	}
	res := l.store.Observe(now, s, own)
	p.counters.snapshots.Add(1)
	p.counters.defects.Add(uint64(len(res.Defects)))
	if res.Dropped != "" {
		p.counters.dropped.Add(1)
		return res
	}
	// An odd number tells decisions that figures and ledger are of two observations. They read the ledger first and the
	// figures then, so that new figures may meet old sums, and never the other way round: see View.read.
	l.changes.Add(1)
	if res.EpochChanged {
		// The engine has restarted in place: its cache is empty, and no later snapshot can contain what was sent before.
		p.counters.epochs.Add(1)
		// Unless that has been done since the report before: what is known now is of the new process.
		if at := l.cleared.Load(); at == 0 || at <= l.heard {
			p.index.Clear(l.holder)
		}
		l.adapters.clear()
		l.account.Restart(observedAt)
		l.circuit.restarted(p.since(observedAt), p.since(now))
		l.waiting.restart(p.since(observedAt))
	}
	state := l.store.State()
	rep := digestState(state, p.since, p.cfg.Freshness.StaleAfter)
	if rep.counted {
		if l.pace.report(rep.countsAt) && s.Interval > 0 {
			l.pace.told = int64(s.Interval)
		}
	}
	rep.freshFor, rep.staleAfter = l.pace.limits(&p.cfg.Freshness)
	// Memory is taken by what is computed. Other figures move with those who come and go, too.
	if old := l.reported.Load(); old.known[figKV] && rep.known[figKV] && old.kvIsShare == rep.kvIsShare &&
		rep.value[figKV] > old.value[figKV] {
		p.heard(l, old.at[figKV], 0, signOther) // or at some time since
	}
	l.reported.Store(rep)
	if rep.counted {
		l.limiter.observe(p.since(state.Running.ObservedAt()), state.Running, l.account.Sums().Live.Requests)
		if rep.countsAt != p.since(observedAt) {
			answered = nil // the counts are those of another report
		}
		p.gate.observed(l, rep.countsAt)
		if l.account.ObserveAnswer(p.base.Add(time.Duration(rep.countsAt)), answered) {
			p.compare(l, rep)
		}
	}
	if s.Epoch != "" {
		l.heard = max(l.heard, p.since(observedAt))
	}
	l.told = l.account.Version()
	l.changes.Add(1)
	p.boundIndex(l, l.conf.Load().Profile.KVCapacity)
	return res
}

// compare learns from a report how much of what is computed of the requests in it, by the ledger, the engine holds once for several of
// them. Requests that wait hold nothing yet, so that a report of such teaches nothing.
func (p *Pool) compare(l *live, rep *reported) {
	capacity := rep.capacityOr(&l.conf.Load().Profile)
	if rep.suspected || !rep.uniform || rep.kvOccupied || capacity == 0 ||
		!rep.known[figRequests] || !rep.known[figWaiting] || !rep.known[figKV] || rep.value[figWaiting] > 0 {
		return
	}
	sums := l.account.Sums() // contained in the report are the live ones that are not unobserved, and what has departed since
	n := float64(sums.Live.Requests - sums.Unobserved.Requests + sums.Departed.Requests)
	held := float64(computed(&sums.Live) - computed(&sums.Unobserved) + computed(&sums.Departed))
	if n <= 0 || held <= 0 || rep.value[figRequests] < n {
		return
	}
	held *= rep.value[figRequests] / n // those of other gateways are taken to be like these
	p.sharing.learn(held-rep.kvTokens(capacity), held)
}

// computed is the context of requests so far, tokens.
func computed(l *reserve.Load) int64 { return l.KV - l.Prefill - l.Decode }

// ScrapeFailed tells that a poll of the endpoint failed. It is counted and never becomes a reading. An unknown ID is an
// error.
func (p *Pool) ScrapeFailed(id string, cause error) error {
	l, err := p.find(id)
	if err != nil {
		return err
	}
	p.counters.scrapes.Add(1)
	l.store.ScrapeError(p.cfg.Now(), cause)
	return nil
}

// ApplyKV takes an exact event of an engine's KV cache. The first one of an endpoint puts it into exact mode: from then on
// its cache holds what the events say, and what was routed there teaches nothing. An unknown ID is an error.
func (p *Pool) ApplyKV(id string, e prefix.Event) error {
	l, err := p.find(id)
	if err != nil {
		return err
	}
	if e.Kind < prefix.Stored || e.Kind > prefix.Cleared {
		return fmt.Errorf("router: event field Kind = %d is not stored, removed or cleared", e.Kind)
	}
	p.index.Apply(l.holder, e)
	if e.Kind == prefix.Cleared {
		l.cleared.Store(max(p.since(p.cfg.Now()), 1))
	}
	return nil
}

// ClearPrefixes forgets what the endpoint's cache was believed to hold; leases are not touched. An unknown ID is an error.
func (p *Pool) ClearPrefixes(id string) error {
	l, err := p.find(id)
	if err != nil {
		return err
	}
	p.index.Clear(l.holder)
	return nil
}

// ClearAllPrefixes does so for every endpoint.
func (p *Pool) ClearAllPrefixes() { p.index.ClearAll() }

// Cached says how many leading tokens of the prefix an endpoint is believed to hold, in whole blocks of its own. An
// unknown ID is an error.
func (p *Pool) Cached(id string, q prefix.Sequence) (int64, error) {
	l, err := p.find(id)
	if err != nil {
		return 0, err
	}
	dst := p.index.Match(q, nil)
	if l.holder.Slot() >= len(dst) {
		return 0, nil
	}
	tokens := dst[l.holder.Slot()]
	return tokens - tokens%int64(l.conf.Load().Profile.WithDefaults().BlockSize), nil
}

// Ledger returns what the pool itself has open on an endpoint. An unknown ID is an error.
func (p *Pool) Ledger(id string) (reserve.Sums, error) {
	l, err := p.find(id)
	if err != nil {
		return reserve.Sums{}, err
	}
	return l.account.Sums(), nil
}
