package admission

import (
	"math"
	"time"
)

// Gate holds the seed leases of a pool. While the engines report more waiting requests than is allowed, nothing is admitted
// but seeds: single requests, each bound to one endpoint that is observed to be idle, few enough that the endpoint is not
// buried before its figures show them.
//
// The rules, for one endpoint:
//
//   - A lease belongs to the endpoint and one prefix group. It begins with its first seed and ends after SeedConfig.For or
//     with the SeedConfig.Observations-th observation made after it began. Within it the group gets at most
//     SeedConfig.Max seeds, in one burst or in several. After it the group gets none for SeedConfig.Cooldown.
//   - An observation is not spent twice. A round begins with a seed whose observation is newer than the last seed of the
//     endpoint, so that the observation shows all seeds before it. Until the next round all groups together get at most
//     SeedConfig.Max seeds, and a lease begins only until For has passed since the round began or a lease begun in it was
//     ended by observations, whichever is first. Several groups may so begin leases on one observation, and a lease may
//     go on over several rounds.
//
// The caller decides which endpoints are idle and below their caps (see [SeedSurvey]), holds the binding (a seed goes
// where it was granted or nowhere) and calls [Gate.Take] in the same atomic step that reserves the request. It calls
// [Gate.Observed] for each observation and [Gate.Forget] when an incarnation is gone for good.
//
// Times are nanoseconds on one scale of the caller's choice. A now before an earlier one counts as that earlier one.
// Observation times are those at which the figures can have held; a caller who allows for a delay until figures show a
// request subtracts it everywhere.
//
// Memory: one record for each endpoint that had a seed, until Forget, and one for each lease that runs or cools down; what
// is over is dropped by the next Take or Observed of its endpoint. Each method takes constant time, over many calls;
// Forget takes time in the number of leases that it drops.
//
// A Gate has no lock: calls must not run concurrently, except that any number of Check may when nothing else does.
// [NewGate] makes one.
type Gate struct {
	cfg       SeedConfig // in effect
	now       int64      // the greatest seen by Take
	endpoints map[uint64]*seedEndpoint
	leases    map[seedKey]*seedLease
	free      *seedLease // records to use again, linked by next
	freeCount int
}

// maxFreeSeedLeases bounds the records kept for reuse.
const maxFreeSeedLeases = 1024

type seedKey struct{ endpoint, group uint64 }

// seedEndpoint is what is known of one endpoint's seeds.
type seedEndpoint struct {
	newest   int64 // newest observation told since the record was made
	told     uint64
	lastSeed int64

	// The round.
	round uint64
	began int64
	spent int
	shut  bool // a lease begun in it was ended by observations

	// Leases in the order in which they began: those ended by observations, then from open on the others, of which those
	// from unseen on began after the newest observation. The ends of leases are in the same order.
	head, tail   *seedLease
	open, unseen *seedLease
}

type seedLease struct {
	key        seedKey
	owner      *seedEndpoint
	prev, next *seedLease
	began, end int64
	due        uint64 // number of the observation that ends it, once one is newer than began
	round      uint64
	taken      int
}

// NewGate returns a Gate without leases, or the error of [SeedConfig.Validate].
func NewGate(cfg SeedConfig) (*Gate, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Gate{
		cfg: cfg.WithDefaults(), now: math.MinInt64,
		endpoints: make(map[uint64]*seedEndpoint), leases: make(map[seedKey]*seedLease),
	}, nil
}

// Config returns the settings in effect.
func (g *Gate) Config() SeedConfig { return g.cfg }

// Check says whether the endpoint may take a seed of the group now, on the observation made at observedAt, the newest that
// the caller has. It changes nothing. The endpoint stands for one incarnation; requests without a prefix are one group.
func (g *Gate) Check(endpoint, group uint64, observedAt, now int64) SeedVerdict {
	if g.cfg.Max == 0 {
		return SeedOff
	}
	l := g.leases[seedKey{endpoint, group}]
	e := (*seedEndpoint)(nil)
	if l != nil {
		e = l.owner
	} else {
		e = g.endpoints[endpoint]
	}
	return g.verdict(e, l, observedAt, max(now, g.now))
}

// Take is Check and, if the answer is SeedOK, counts the seed.
func (g *Gate) Take(endpoint, group uint64, observedAt, now int64) SeedVerdict {
	if g.cfg.Max == 0 {
		return SeedOff
	}
	g.now = max(g.now, now)
	k := seedKey{endpoint, group}
	e := g.endpoints[endpoint]
	if e != nil {
		g.sweep(e)
	}
	l := g.leases[k]
	if v := g.verdict(e, l, observedAt, g.now); v != SeedOK {
		return v
	}
	if e == nil {
		e = &seedEndpoint{newest: math.MinInt64, lastSeed: math.MinInt64}
		g.endpoints[endpoint] = e
	}
	if e.round == 0 || observedAt > e.lastSeed {
		e.round++
		e.began, e.spent, e.shut = g.now, 0, false
	}
	if l == nil {
		l = g.lease(k, e)
	}
	l.taken++
	e.spent++
	e.lastSeed = g.now
	return SeedOK
}

// Observed tells that an observation of the endpoint was made at the time at. One that is not newer than those told
// before does nothing.
func (g *Gate) Observed(endpoint uint64, at int64) {
	e := g.endpoints[endpoint]
	if e == nil || at <= e.newest {
		return
	}
	e.newest = at
	e.told++
	if g.cfg.Observations > 0 {
		for ; e.unseen != nil && e.unseen.began < at; e.unseen = e.unseen.next {
			e.unseen.due = e.told + uint64(g.cfg.Observations) - 1
		}
		for ; e.open != e.unseen && e.open.due <= e.told; e.open = e.open.next {
			e.open.end = min(e.open.end, at)
			e.shut = e.shut || e.open.round == e.round
		}
	}
	g.sweep(e)
}

// Forget drops all that is known of the endpoint.
func (g *Gate) Forget(endpoint uint64) {
	e := g.endpoints[endpoint]
	if e == nil {
		return
	}
	for e.head != nil {
		g.drop(e)
	}
	delete(g.endpoints, endpoint)
}

// Leases returns the number of leases that are remembered: running, cooling down, or over and not yet dropped.
func (g *Gate) Leases() int { return len(g.leases) }

// verdict judges by the rules in the comment of Gate. e and l may be nil.
func (g *Gate) verdict(e *seedEndpoint, l *seedLease, observedAt, now int64) SeedVerdict {
	running := false
	if l != nil {
		switch running = now < l.end; {
		case running && l.taken >= g.cfg.Max:
			return SeedSpent
		case !running && now < g.over(l):
			return SeedCooling
		}
	}
	switch {
	case observedAt > now:
		return SeedStale
	case e == nil || observedAt > e.lastSeed:
		return SeedOK
	case e.spent >= g.cfg.Max:
		return SeedStale
	case !running && (e.shut || now >= later(e.began, g.cfg.For)):
		return SeedStale
	}
	return SeedOK
}

// over is the time from which the lease means nothing any more.
func (g *Gate) over(l *seedLease) int64 { return later(l.end, max(0, g.cfg.Cooldown)) }

// later adds without overflow; d is not negative.
func later(t int64, d time.Duration) int64 {
	if t > math.MaxInt64-int64(d) {
		return math.MaxInt64
	}
	return t + int64(d)
}

// sweep drops the leases of e that are over.
func (g *Gate) sweep(e *seedEndpoint) {
	for e.head != nil && g.over(e.head) <= g.now {
		g.drop(e)
	}
}

// lease appends a new lease to those of e.
func (g *Gate) lease(k seedKey, e *seedEndpoint) *seedLease {
	l := g.free
	if l != nil {
		g.free = l.next
		g.freeCount--
	} else {
		l = new(seedLease)
	}
	*l = seedLease{key: k, owner: e, prev: e.tail, began: g.now, end: later(g.now, g.cfg.For), round: e.round}
	if e.tail != nil {
		e.tail.next = l
	} else {
		e.head = l
	}
	e.tail = l
	if e.open == nil {
		e.open = l
	}
	if e.unseen == nil {
		e.unseen = l
	}
	g.leases[k] = l
	return l
}

// drop removes the first lease of e.
func (g *Gate) drop(e *seedEndpoint) {
	l := e.head
	if e.open == l {
		e.open = l.next
	}
	if e.unseen == l {
		e.unseen = l.next
	}
	if e.head = l.next; e.head == nil {
		e.tail = nil
	}
	delete(g.leases, l.key)
	*l = seedLease{}
	if g.freeCount < maxFreeSeedLeases {
		l.next, g.free = g.free, l
		g.freeCount++
	}
}
