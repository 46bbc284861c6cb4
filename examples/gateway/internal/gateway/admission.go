package gateway

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/isobar-go/isobar/router"
)

// lobby is a pool whose waiting room can be closed: after that nobody waits in it, and who does is refused. Any number of
// goroutines may use it.
type lobby struct {
	router.Router
	pool   *router.Pool
	closed context.Context // done = closed
}

// Reserve waits as the pool does, until the lobby is closed.
func (l *lobby) Reserve(ctx context.Context, req router.Request) (*router.Lease, error) {
	if l.closed.Err() != nil {
		return l.atOnce(req)
	}
	waiting, leave := context.WithCancel(ctx)
	defer leave()
	defer context.AfterFunc(l.closed, leave)()
	lease, err := l.Router.Reserve(waiting, req)
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		return nil, errStopping()
	}
	return lease, err
}

// atOnce places a request or refuses it, and lets it wait in neither case.
func (l *lobby) atOnce(req router.Request) (*router.Lease, error) {
	t, err := l.pool.Enqueue(req)
	if err != nil {
		return nil, err
	}
	select {
	case <-t.Done():
		return t.Lease()
	default:
		t.Cancel()
		return nil, errStopping()
	}
}

// errStopping is the answer to requests for which a gateway that stops has no time any more.
func errStopping() error { return &router.RejectError{Reason: router.ErrNoEndpoints} }

// tally counts the errors that the gateway has answered itself. Any number of goroutines may use it.
type tally struct {
	mu     sync.Mutex
	counts map[int]uint64 // by status
}

func (t *tally) add(status int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		t.counts = map[int]uint64{}
	}
	t.counts[status]++
}

func (t *tally) all() map[int]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.counts)
}

// Whether there is an adaptive limit, as the debug page and the command's flag say it.
const (
	LimitOff     = "off"
	LimitObserve = "observe"
	LimitOn      = "on"
)

// admissionPage says on the debug page who is admitted. How it goes is beside it, in the stats of the pool and its endpoints. It
// belongs to the goroutine that makes it.
type admissionPage struct {
	Caps struct {
		Waiting      int   `json:"waiting"`
		Endpoint     int   `json:"endpoint"`
		Aggregate    int   `json:"aggregate"`
		Tenant       int   `json:"tenant"`
		TenantTokens int64 `json:"tenant_tokens"`
	} `json:"caps"` // 0 = none
	Queue  *queuePage         `json:"queue"`  // null = none
	Shares map[string]float64 `json:"shares"` // by class; those with none are not in it
	Seeds  *seedPage          `json:"seeds"`  // null = off
	Limit  string             `json:"adaptive_limit"`
	// Errors counts what was answered in place of an engine, by status: 499 are clients that left before their answer began.
	Errors map[int]uint64 `json:"errors"`
}

// queuePage is how the queue is set. It is a plain value.
type queuePage struct {
	Max              int           `json:"max"`
	MaxTokens        int64         `json:"max_tokens"` // 0 = no limit
	Timeout          time.Duration `json:"timeout_ns"`
	AgeAfter         time.Duration `json:"age_after_ns"`
	AgedEvery        int           `json:"aged_every"`
	WaitForEndpoints bool          `json:"wait_for_endpoints"`
}

// seedPage is how seeds are set, and how many there were. It is a plain value.
type seedPage struct {
	Max          int           `json:"max"`
	For          time.Duration `json:"for_ns"`
	Observations int           `json:"observations"`
	Cooldown     time.Duration `json:"cooldown_ns"`
	Allowance    float64       `json:"allowance"`
	Given        uint64        `json:"given"` // of the requests whose receipts are made
}

// admission makes the part of the debug page that says who is admitted.
func (g *Gateway) admission() admissionPage {
	cfg := g.cfg.Pool.Config()
	out := admissionPage{Shares: map[string]float64{}, Limit: LimitOff, Errors: g.errors.all()}
	out.Caps.Waiting, out.Caps.Endpoint, out.Caps.Aggregate = cfg.Caps.Waiting, cfg.Caps.Endpoint, cfg.Caps.Aggregate
	out.Caps.Tenant, out.Caps.TenantTokens = cfg.Caps.Tenant, cfg.Caps.TenantTokens
	if q := cfg.Queue; q.Max > 0 {
		out.Queue = &queuePage{q.Max, q.MaxTokens, q.Timeout, q.AgeAfter, q.AgedEvery, q.WaitForEndpoints}
	}
	for class, part := range map[router.Class]float64{
		router.ClassSystem: cfg.Shares.System, router.ClassInteractive: cfg.Shares.Interactive,
		router.ClassStandard: cfg.Shares.Standard, router.ClassBatch: cfg.Shares.Batch,
	} {
		if part > 0 {
			out.Shares[class.String()] = part
		}
	}
	if s := cfg.Seeds; s.Max > 0 {
		out.Seeds = &seedPage{s.Max, s.For, s.Observations, s.Cooldown, s.Allowance, g.cfg.Receipts.Seeds()}
	}
	switch {
	case cfg.Limit.Adaptive && cfg.Limit.Learn.ObserveOnly:
		out.Limit = LimitObserve
	case cfg.Limit.Adaptive:
		out.Limit = LimitOn
	}
	return out
}

// mayWait says that a request which finds no room now would wait for it.
func (g *Gateway) mayWait(err error) bool {
	if !errors.Is(err, router.ErrSaturated) && !errors.Is(err, router.ErrTelemetryIncomplete) {
		return false
	}
	q := g.cfg.Pool.Stats().Queue
	return q != nil && q.Waiting < g.cfg.Pool.Config().Queue.Max
}
