package router

import (
	"time"

	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/reserve"
	"github.com/isobar-go/isobar/telemetry"
)

// Stats is a reading of a pool's counters and of the state of its endpoints. Counters only ever rise. The parts are read
// one after the other, so they may differ by what happened meanwhile. A Stats belongs to the caller.
type Stats struct {
	// Decisions is the number of granted leases, Rejected of refused requests, Degraded of decisions without any usable
	// telemetry, Retried of looks repeated because another lease was granted meanwhile.
	Decisions uint64 `json:"decisions"`
	Rejected  uint64 `json:"rejected"`
	Degraded  uint64 `json:"degraded"`
	Retried   uint64 `json:"retried"`
	// RejectedBy are the refused requests by the code of the reason, see [RejectError.Code]; reasons that never occurred are
	// not in it.
	RejectedBy map[string]uint64 `json:"rejected_by,omitempty"`
	// Completed, Failed, Cancelled and Refused are the numbers of leases that ended so.
	Completed uint64 `json:"completed"`
	Failed    uint64 `json:"failed"`
	Cancelled uint64 `json:"cancelled"`
	Refused   uint64 `json:"refused"`
	// PolicyFaults counts calls in which the policy failed to choose, ObserverFaults panics of the observer.
	PolicyFaults   uint64 `json:"policy_faults"`
	ObserverFaults uint64 `json:"observer_faults"`
	// ShadowSame and ShadowOther count the shadow's choices that agree and differ; ShadowSkipped those it was not asked
	// for since it had taken too long; ShadowFaults those in which it failed.
	ShadowSame    uint64 `json:"shadow_same"`
	ShadowOther   uint64 `json:"shadow_other"`
	ShadowSkipped uint64 `json:"shadow_skipped"`
	ShadowFaults  uint64 `json:"shadow_faults"`
	// Snapshots is the number of snapshots delivered, Dropped of those that were older than what was held, Defects of
	// invalid figures, ScrapeErrors of failed polls, EpochChanges of engine restarts.
	Snapshots    uint64 `json:"snapshots"`
	Dropped      uint64 `json:"dropped"`
	Defects      uint64 `json:"defects"`
	ScrapeErrors uint64 `json:"scrape_errors"`
	EpochChanges uint64 `json:"epoch_changes"`
	// OpenLeases is the number of leases that have not ended.
	OpenLeases int64 `json:"open_leases"`
	// OldestLease is the age of the oldest of them; 0 = none. A lease that was forgotten shows here.
	OldestLease time.Duration `json:"oldest_lease_ns"`
	// OldestEndpoint is where it is.
	OldestEndpoint string `json:"oldest_endpoint,omitempty"`
	// Prefix is the state of the index.
	Prefix prefix.Stats `json:"prefix"`
	// Queue is the state of the queue; nil where there is none.
	Queue *QueueStats `json:"queue,omitempty"`
	// Endpoints are the members, sorted by ID.
	Endpoints []EndpointStats `json:"endpoints"`
}

// EndpointStats is the state of one endpoint. An EndpointStats is a plain value.
type EndpointStats struct {
	// ID and Incarnation are its identity.
	ID          string `json:"id"`
	Incarnation string `json:"incarnation,omitempty"`
	// State is NoReason when ready, or Draining or Asleep as set by the host.
	State Reason `json:"state"`
	// Circuit is closed, open or half-open; Opened counts how often it opened.
	Circuit string `json:"circuit"`
	Opened  uint64 `json:"opened"`
	// Freshness and Age are those of the load readings in use: of running and waiting requests the older counts. Age is negative where
	// there are none.
	Freshness telemetry.Class `json:"freshness"`
	Age       time.Duration   `json:"age_ns"`
	// Suspect says why the readings are not believed.
	Suspect telemetry.SuspectReason `json:"suspect,omitempty"`
	// Silence is for how much longer than its prompts and what is usual explain it has given no sign of life while leases of the pool
	// wait there for their first token, or what is remembered of that: by so much its queue is priced higher. 0 = none.
	Silence time.Duration `json:"silence_ns,omitempty"`
	// Own are the pool's open leases there.
	Own reserve.Sums `json:"own"`
	// Requests, Waiting and KVShare are as last reported; negative = unknown.
	Requests float64 `json:"requests"`
	Waiting  float64 `json:"waiting"`
	KVShare  float64 `json:"kv_share"`
	// CachedTokens is what the index believes it to hold; ExactCache says that its own events say so.
	CachedTokens int64 `json:"cached_tokens"`
	ExactCache   bool  `json:"exact_cache"`
	// Chosen, Completed, Failed, Cancelled and Refused count its leases.
	Chosen    uint64 `json:"chosen"`
	Completed uint64 `json:"completed"`
	Failed    uint64 `json:"failed"`
	Cancelled uint64 `json:"cancelled"`
	Refused   uint64 `json:"refused"`
	// Limiter is the state of its adaptive limit; nil where that is off.
	Limiter *LimiterStats `json:"limiter,omitempty"`
	// Telemetry are the counters of its readings.
	Telemetry telemetry.Counters `json:"telemetry"`
}

// Stats reads the pool's counters and the state of its endpoints. It takes the short locks of the accounts, the index and the circuits
// one after the other, never the one under which leases are granted or that of the queue.
func (p *Pool) Stats() Stats {
	c := &p.counters
	n := p.countEnds() // before the granted ones, of which they are a part
	s := Stats{
		Decisions: p.grants.Load(), Degraded: c.degraded.Load(), Retried: c.retried.Load(),
		RejectedBy: map[string]uint64{}, Completed: n.completed, Failed: n.failed, Cancelled: n.cancelled, Refused: n.refused,
		PolicyFaults: c.policyFaults.Load(), ObserverFaults: c.observerFaults.Load(),
		ShadowSame: c.shadowSame.Load(), ShadowOther: c.shadowOther.Load(), ShadowSkipped: c.shadowSkipped.Load(),
		ShadowFaults: c.shadowFaults.Load(),
		Snapshots:    c.snapshots.Load(), Dropped: c.dropped.Load(), Defects: c.defects.Load(), ScrapeErrors: c.scrapes.Load(),
		EpochChanges: c.epochs.Load(),
		Prefix:       p.index.Stats(),
	}
	for i := range c.rejected {
		if count := c.rejected[i].Load(); count > 0 {
			s.RejectedBy[rejections[i]] = count
			s.Rejected += count
		}
	}
	s.OpenLeases = int64(s.Decisions - n.sum())
	oldest := p.ledger.Oldest(1)
	_, now := p.now()
	if len(oldest) > 0 {
		s.OldestLease = p.base.Add(time.Duration(now)).Sub(oldest[0].DispatchedAt)
		s.OldestEndpoint = oldest[0].ID
	}
	v := &View{cfg: &p.cfg, now: now, clock: p.clock}
	for _, e := range p.set.Load().list {
		s.Endpoints = append(s.Endpoints, p.endpointStats(v, e.live))
	}
	s.Queue = p.queueStats()
	return s
}

// QueueStats is the state of the queue in front of a pool. A QueueStats is a plain value.
type QueueStats struct {
	// Waiting is the number of requests that wait, Tokens the sum of their prompts and expected outputs.
	Waiting int   `json:"waiting"`
	Tokens  int64 `json:"tokens"`
	// ByClass is the number of them by the name of their class; classes of which none waits are not in it.
	ByClass map[string]int `json:"by_class,omitempty"`
	// Oldest is how long the oldest of them has waited, Longest the longest wait of one that was served.
	Oldest  time.Duration `json:"oldest_ns"`
	Longest time.Duration `json:"longest_ns"`
	// Queued counts those that have joined, and the others how they left: Granted with a lease, Cancelled by their callers,
	// Displaced by others, TimedOut, Missed since their deadlines could not be met any more, Refused since waiting could not
	// help.
	Queued    uint64 `json:"queued"`
	Granted   uint64 `json:"granted"`
	Cancelled uint64 `json:"cancelled"`
	Displaced uint64 `json:"displaced"`
	TimedOut  uint64 `json:"timed_out"`
	Missed    uint64 `json:"missed"`
	Refused   uint64 `json:"refused"`
}

func (p *Pool) queueStats() *QueueStats {
	q := p.queue
	if q == nil {
		return nil
	}
	n := &q.counts
	out := &QueueStats{
		Waiting: int(q.waiting.Load()), Tokens: n.tokens.Load(), Longest: time.Duration(n.longest.Load()), Queued: n.queued.Load(),
		Granted: n.granted.Load(), Cancelled: n.cancelled.Load(), Displaced: n.displaced.Load(), TimedOut: n.timedOut.Load(),
		Missed: n.missed.Load(), Refused: n.refused.Load(),
	}
	if since := n.oldest.Load(); since != never {
		_, now := p.now()
		out.Oldest = time.Duration(max(now-since, 0))
	}
	for class := range Class(ranks) {
		if waiting := n.classes[class.rank()].Load(); waiting > 0 {
			if out.ByClass == nil {
				out.ByClass = map[string]int{}
			}
			out.ByClass[class.String()] = int(waiting)
		}
	}
	return out
}

func (p *Pool) countEnds() ends {
	p.retiring.Lock()
	defer p.retiring.Unlock()
	p.retired.fold()
	n := p.retired.counts
	for _, e := range p.retired.list {
		n.add(e)
	}
	for _, m := range p.set.Load().list {
		n.add(m.live)
	}
	return n
}

func (p *Pool) endpointStats(v *View, e *live) EndpointStats {
	rep := e.reported.Load()
	out := EndpointStats{
		ID: e.id, Incarnation: e.incarnation, Own: e.account.Sums(), Suspect: rep.suspect,
		Age: -1, Requests: -1, Waiting: -1, KVShare: -1, CachedTokens: p.index.Held(e.holder), ExactCache: p.index.Exact(e.holder),
		Chosen: e.chosen.Load(), Completed: e.completed.Load(), Failed: e.failed.Load(), Cancelled: e.cancelled.Load(),
		Refused:   e.refusals.Load(),
		Telemetry: e.store.Counters(), Limiter: e.limiter.stats(p.base),
	}
	switch e.readied.Load() {
	case stateDraining:
		out.State = Draining
	case stateAsleep:
		out.State = Asleep
	}
	switch until := e.circuit.until.Load(); {
	case until == 0:
		out.Circuit = "closed"
	case v.now < until:
		out.Circuit = "open"
	default:
		out.Circuit = "half-open"
	}
	out.Opened = e.circuit.openings()
	if rep.known[figRequests] {
		out.Requests = rep.value[figRequests]
	}
	if rep.known[figWaiting] {
		out.Waiting = rep.value[figWaiting]
	}
	if share, ok := e.store.State().KVShare.Value(); ok {
		out.KVShare = share
	}
	silence := e.waiting.beyond(v.now, p.usual.value(), &out.Own.Live, &e.conf.Load().Profile)
	out.Silence = time.Duration(silence * 1e6)
	if load := rep.loadFigure(); rep.known[load] {
		out.Freshness, out.Age = v.classOf(rep.at[load], rep.freshFor, rep.staleAfter), time.Duration(max(v.now-rep.at[load], 0))
	}
	return out
}
