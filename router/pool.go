package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/reserve"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// Router chooses endpoints. [Pool] implements it; the interface is there for hosts that put something in front. An
// implementation may be called from any goroutine.
type Router interface {
	// Score ranks every endpoint for req and changes nothing.
	Score(req Request) (Decision, error)
	// Reserve chooses an endpoint and records req's cost against it in one atomic step. It waits only if a queue is
	// configured, and then no longer than ctx and the queue's limit. It fails with ctx's error when ctx is done.
	Reserve(ctx context.Context, req Request) (*Lease, error)
	// Release ends a lease. Any later call for the same lease does nothing.
	Release(l *Lease, out Outcome)
}

// Pool is a set of endpoints and everything that is known of them. It starts no goroutine, opens no connection and reads no
// environment: the host tells it what happens. All methods may be called from any goroutine at any time.
type Pool struct {
	// Immutable.
	cfg         Config // resolved
	given       Config // with defaults
	model       *score.Model
	base        time.Time // time zero of the pool's scale
	index       *prefix.Index
	ledger      *reserve.Ledger
	decay       *decay
	fingerprint uint64 // of the configuration
	views       sync.Pool

	// set and version are read without a lock and changed under both admin and decide. version counts everything that
	// takes an endpoint out of the choice or changes it, so that no lease is granted on a view from before.
	set     atomic.Pointer[endpointSet]
	version atomic.Uint64
	mean    atomic.Uint64 // published mean of promptMean, bits of a float64; rarely written
	means   atomic.Pointer[tickMeans]

	_ [64]byte // what every end of a lease and every report writes does not share a cache line with what every decision reads

	outputs atomicMean // of outputs, tokens
	usual   usualSilence
	sharing overlap

	_ [64]byte // and neither does what every decision writes

	// decide is held while a lease is granted: choosing and reserving are one step. Leases end, and snapshots arrive,
	// without it.
	decide  sync.Mutex
	grants  atomic.Uint64   // leases granted; written under decide
	prompts promptMean      // guarded by decide
	log     [grantLog]int32 // places in the set of the newest grants, valid as long as version is the same

	_ [64]byte

	// tenantMu guards tenants; taken inside decide or alone, and only with caps on tenants.
	tenantMu sync.Mutex
	tenants  map[uint64]admission.Open // by tenant hash

	gate   *gate   // of seeds; nil = off
	shares *shares // nil = none
	queue  *queue  // nil = off

	// admin serialises changes of the endpoint set, and guards numbers.
	admin   sync.Mutex
	numbers uint64 // of the newest live

	// retiring guards retired, and that each endpoint is in the set or there. Taken inside decide or alone, so that a policy may ask
	// for Stats.
	retiring sync.Mutex
	retired  retired

	draws    atomic.Uint64 // requests seen by the sampler
	counters counters
	shadowed shadowBudget
	drain    drain
}

// grantLog is how many of the newest grants are remembered by endpoint, so that a decision that was overtaken by fewer
// looks again only at the endpoints concerned.
const grantLog = 64

// endpointSet is an immutable list of endpoints, sorted by id.
type endpointSet struct {
	list  []member
	byID  map[string]*live
	kinds []kind
}

// member is an endpoint in a set.
type member struct {
	*live
	kind   int
	slot   int // of the prefix index
	idHash uint64
}

func newSet(list []*live) *endpointSet {
	slices.SortFunc(list, func(a, b *live) int { return cmp.Compare(a.id, b.id) })
	s := &endpointSet{byID: make(map[string]*live, len(list)), list: make([]member, 0, len(list))}
	for _, l := range list {
		conf := l.conf.Load()
		k := kind{profile: conf.Profile.WithDefaults(), models: conf.Models, role: conf.Role.orBoth()}
		at := slices.IndexFunc(s.kinds, func(o kind) bool { return k.same(&o) })
		if at < 0 {
			at, s.kinds = len(s.kinds), append(s.kinds, k)
		}
		s.byID[l.id] = l
		s.list = append(s.list, member{live: l, kind: at, slot: l.holder.Slot(), idHash: identityHash(l.id)})
	}
	return s
}

func (s *endpointSet) lives() []*live {
	out := make([]*live, 0, len(s.list))
	for _, m := range s.list {
		out = append(out, m.live)
	}
	return out
}

type counters struct {
	degraded, retried                            atomic.Uint64
	rejected                                     [len(rejections)]atomic.Uint64
	policyFaults, observerFaults                 atomic.Uint64
	shadowSame, shadowOther                      atomic.Uint64
	shadowSkipped, shadowFaults                  atomic.Uint64
	snapshots, dropped, defects, scrapes, epochs atomic.Uint64
}

// New makes a pool without endpoints. The error is that of [Config.Validate].
func New(cfg Config) (*Pool, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	given := cfg.WithDefaults()
	cfg = cfg.resolved()
	if cfg.Now().IsZero() {
		return nil, errors.New("router: Config.Now returns the zero time")
	}
	index, err := prefix.New(prefix.Config{MaxBytes: cfg.Prefix.MaxBytes})
	if err != nil {
		return nil, fmt.Errorf("router: Config.Prefix: %w", err)
	}
	ledger, err := reserve.NewLedger(reserve.Config{
		VisibilityLag: cfg.VisibilityLag, Horizon: max(cfg.Freshness.StaleAfter, 3*maxPace), // as long as a reading can count
	})
	if err != nil {
		return nil, fmt.Errorf("router: Config.VisibilityLag: %w", err)
	}
	p := &Pool{
		cfg: cfg, given: given, model: score.NewModel(cfg.Weights, cfg.limits()), base: cfg.Now(), index: index, ledger: ledger,
		tenants: map[uint64]admission.Open{}, decay: newDecay(float64(cfg.Freshness.Decay)),
	}
	if p.gate, err = newGate(&cfg); err != nil {
		return nil, fmt.Errorf("router: Config.Seeds: %w", err)
	}
	if p.shares, err = newShares(&cfg); err != nil {
		return nil, fmt.Errorf("router: Config.Shares: %w", err)
	}
	if p.queue, err = newQueue(&cfg); err != nil {
		return nil, fmt.Errorf("router: Config.Queue: %w", err)
	}
	p.fingerprint = fingerprint(cfg)
	p.prompts = promptMean{exact: float64(cfg.MeanPromptTokens), published: float64(cfg.MeanPromptTokens)}
	p.mean.Store(math.Float64bits(p.prompts.published))
	p.set.Store(newSet(nil))
	p.views.New = func() any {
		return &View{cfg: &p.cfg, model: p.model, decay: p.decay, clock: p.clock, gate: p.gate, shares: p.shares}
	}
	return p, nil
}

// Config returns the configuration in effect, every default filled in, see [Config.WithDefaults].
func (p *Pool) Config() Config { return p.given }

func (p *Pool) since(t time.Time) int64 { return int64(t.Sub(p.base)) }

func (p *Pool) clock() int64 { return p.since(p.cfg.Now()) }

func (p *Pool) now() (time.Time, int64) {
	t := p.cfg.Now()
	return t, p.since(t)
}

// SetEndpoints makes the pool consist of exactly these endpoints. One that is there already, by ID and Incarnation, keeps its leases,
// readings, prefixes and readiness and takes over the new configuration; a new incarnation starts afresh; the others are
// removed. On error nothing has changed.
func (p *Pool) SetEndpoints(endpoints []Endpoint) error {
	seen := make(map[string]bool, len(endpoints))
	for _, e := range endpoints {
		if err := e.Validate(); err != nil {
			return err
		}
		if seen[e.ID] {
			return fmt.Errorf("router: endpoint %q is given twice", e.ID)
		}
		seen[e.ID] = true
	}
	defer p.happened()
	p.admin.Lock()
	defer p.admin.Unlock()
	old := p.set.Load()
	next := make([]*live, 0, len(endpoints))
	for _, e := range endpoints {
		next = append(next, p.adopt(old, e))
	}
	p.replace(old, next)
	return nil
}

// Add puts one endpoint into the pool, or changes the configuration of one that is there by ID and Incarnation. An endpoint
// of the same ID and another incarnation is replaced.
func (p *Pool) Add(e Endpoint) error {
	if err := e.Validate(); err != nil {
		return err
	}
	defer p.happened()
	p.admin.Lock()
	defer p.admin.Unlock()
	old := p.set.Load()
	next := slices.DeleteFunc(old.lives(), func(l *live) bool { return l.id == e.ID })
	p.replace(old, append(next, p.adopt(old, e)))
	return nil
}

// Remove takes an endpoint out of the pool. Its open leases stay valid and end as usual; they touch nothing of a later
// incarnation with the same ID. An unknown ID is an error.
func (p *Pool) Remove(id string) error {
	defer p.happened()
	p.admin.Lock()
	defer p.admin.Unlock()
	old := p.set.Load()
	if old.byID[id] == nil {
		return unknownEndpoint(id)
	}
	p.replace(old, slices.DeleteFunc(old.lives(), func(l *live) bool { return l.id == id }))
	return nil
}

// adopt returns the live state for e: the one that is there, with the new configuration, or a new one.
func (p *Pool) adopt(old *endpointSet, e Endpoint) *live {
	e = e.clone()
	capacity := e.Profile.KVCapacity
	if l := old.byID[e.ID]; l != nil && l.incarnation == e.Incarnation {
		l.conf.Store(&e)
		p.boundIndex(l, capacity)
		return l
	}
	p.numbers++
	l := &live{number: p.numbers, id: e.ID, incarnation: e.Incarnation, account: p.ledger.Account(e.ID, e.Incarnation)}
	l.waiting.state = &l.silent
	l.conf.Store(&e)
	l.store = telemetry.NewStore(telemetry.StoreConfig{Limits: p.cfg.limits(), FrozenAfter: p.cfg.frozenAfter()})
	l.reported.Store(&reported{})
	l.limiter = newLimiter(&p.cfg)
	l.changes.Store(2)
	l.told = l.account.Version()
	l.holder = p.index.Add(capacity)
	l.indexed.Store(capacity)
	return l
}

// boundIndex bounds what the index holds of an endpoint: by its configured capacity, else by the reported one.
func (p *Pool) boundIndex(l *live, configured int64) {
	if configured == 0 {
		configured = int64(l.reported.Load().kvCapacity)
	}
	if l.indexed.Swap(configured) != configured {
		p.index.SetCapacity(l.holder, configured)
	}
}

// replace publishes a new set; p.admin is held. When it returns, no lease is granted to an endpoint that is not in it.
func (p *Pool) replace(old *endpointSet, list []*live) {
	set := newSet(list)
	var gone []*live
	for _, l := range old.lives() {
		if set.byID[l.id] != l {
			gone = append(gone, l)
		}
	}
	p.publish(set, gone)
	for _, l := range gone {
		p.ledger.Close(l.account)
		p.index.Remove(l.holder)
		p.gate.forget(l)
	}
}

// publish puts a new set in the place of the old one, which had those who are gone too.
func (p *Pool) publish(set *endpointSet, gone []*live) {
	p.decide.Lock()
	defer p.decide.Unlock()
	p.retiring.Lock()
	defer p.retiring.Unlock()
	p.set.Store(set)
	p.version.Add(1)
	p.retired.fold()
	p.retired.list = append(p.retired.list, gone...)
}

// Drain takes an endpoint out of the choice; open streams go on. An unknown ID is an error.
func (p *Pool) Drain(id string) error { return p.setReadiness(id, stateDraining) }

// Ready takes an endpoint back into the choice after Drain or Sleep. An unknown ID is an error.
func (p *Pool) Ready(id string) error { return p.setReadiness(id, stateReady) }

// Sleep marks an endpoint as asleep: out of the choice until Ready. An unknown ID is an error.
func (p *Pool) Sleep(id string) error { return p.setReadiness(id, stateAsleep) }

func (p *Pool) setReadiness(id string, state int32) error {
	defer p.happened()
	p.admin.Lock()
	defer p.admin.Unlock()
	l := p.set.Load().byID[id]
	if l == nil {
		return unknownEndpoint(id)
	}
	p.decide.Lock()
	l.readied.Store(state)
	p.version.Add(1)
	p.decide.Unlock()
	return nil
}

// Endpoints returns the endpoints of the pool, sorted by ID. They are copies.
func (p *Pool) Endpoints() []Endpoint {
	set := p.set.Load()
	out := make([]Endpoint, 0, len(set.list))
	for _, l := range set.list {
		out = append(out, l.conf.Load().clone())
	}
	return out
}

func (p *Pool) find(id string) (*live, error) {
	if l := p.set.Load().byID[id]; l != nil {
		return l, nil
	}
	return nil, unknownEndpoint(id)
}

// identityHash is the part of an endpoint in consistent hashing: by ID alone, so that a restart keeps its sessions.
func identityHash(id string) uint64 { return mix(xxhash.Sum64String(id)) }

// fingerprint identifies a configuration in receipts.
func fingerprint(c Config) uint64 {
	shadow := ""
	if c.Shadow != nil {
		shadow = c.Shadow.Name()
	}
	policy := c.Policy.Name()
	c.Policy, c.Shadow, c.Now, c.Receipts.Observer, c.Queue = nil, nil, nil, nil, Queue{}
	return xxhash.Sum64String(fmt.Sprintf("%s\x00%s\x00%+v", policy, shadow, c))
}
