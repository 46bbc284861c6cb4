package world

import (
	"context"
	"errors"
	"fmt"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// PoolChooser is the real router in every gateway. Now and Seed of the configuration are set per gateway; Replicas, where it
// is 0, is the number of gateways.
func PoolChooser(cfg router.Config) Maker {
	return func(e Env) (Chooser, error) {
		cfg := cfg
		cfg.Now = e.Now
		cfg.Seed = mix(cfg.Seed ^ e.Seed)
		if cfg.Replicas == 0 {
			cfg.Replicas = e.Gateways
		}
		pool, err := router.New(cfg)
		if err != nil {
			return nil, err
		}
		c := &poolChooser{pool: pool, env: e, number: make(map[string]int, len(e.Endpoints))}
		for i, ep := range e.Endpoints {
			c.number[ep.ID] = i
		}
		c.lives = make([]int, len(e.Endpoints))
		return c, pool.SetEndpoints(e.Endpoints)
	}
}

// poolChooser adapts a pool.
type poolChooser struct {
	pool   *router.Pool
	env    Env
	number map[string]int
	leases []*router.Lease // by slot
	lives  []int           // by engine: how often it has joined again
	fault  error
}

// Pool is the router itself.
func (c *poolChooser) Pool() *router.Pool { return c.pool }

func (c *poolChooser) Choose(r *Request) (Choice, error) {
	l, err := c.pool.Reserve(context.Background(), router.Request{
		Model: r.Model, PromptTokens: r.PromptTokens, MaxOutputTokens: r.MaxOutputTokens,
		ExpectedOutputTokens: r.ExpectedOutputTokens, Prefix: r.Prefix, Adapter: r.Adapter, Tenant: r.Tenant, Class: r.Class,
		Deadline: r.Due, Session: r.Session, Exclude: r.Avoid,
	})
	if err != nil {
		return Choice{}, err
	}
	for r.Slot >= len(c.leases) {
		c.leases = append(c.leases, nil)
	}
	c.leases[r.Slot] = l
	d := l.Decision()
	n, known := c.number[d.Endpoint]
	if !known {
		return Choice{}, fmt.Errorf("world: the pool chose %q, which is no engine", d.Endpoint)
	}
	return Choice{Engine: n, Terms: d.Terms, Cached: d.Cached, Age: d.Age, Freshness: d.Freshness, Degraded: d.Degraded}, nil
}

func (c *poolChooser) FirstToken(slot int) { c.leases[slot].FirstToken() }

func (c *poolChooser) Progress(slot int, tokens int64) { c.leases[slot].Progress(int(tokens)) }

// errBroken stands for the broken connection that a host would see.
var errBroken = errors.New("world: the engine is gone")

func (c *poolChooser) End(slot int, cause Cause, u router.Usage) {
	l := c.leases[slot]
	c.leases[slot] = nil
	switch cause {
	case Done:
		l.Done(u)
	case Broken:
		l.Fail(errBroken)
	default:
		l.Cancel()
	}
}

func (c *poolChooser) Observe(engine int, r *Report) {
	s := telemetry.Snapshot{
		ObservedAt: r.ObservedAt, Interval: c.env.Period, Running: telemetry.V(float64(r.Running)), Waiting: telemetry.V(float64(r.Waiting)),
		KVUsed: telemetry.V(float64(r.KVUsed)), KVCapacity: telemetry.V(float64(r.KVCapacity)), Epoch: r.Epoch,
		Adapters: telemetry.AdapterReport{Known: r.HasAdapters, Adapters: r.Adapters},
	}
	if r.WaitingTokens >= 0 {
		s.WaitingTokens = telemetry.V(float64(r.WaitingTokens))
	}
	c.note(c.pool.Observe(c.env.Endpoints[engine].ID, s))
}

// errPoll stands for the failure of a poll.
var errPoll = errors.New("world: the poll failed")

func (c *poolChooser) Lost(engine int) {
	c.note(c.pool.ScrapeFailed(c.env.Endpoints[engine].ID, errPoll))
}

func (c *poolChooser) Cache(engine int, e prefix.Event) {
	c.note(c.pool.ApplyKV(c.env.Endpoints[engine].ID, e))
}

func (c *poolChooser) Change(engine int, change Change) {
	ep := c.env.Endpoints[engine]
	switch change {
	case Draining:
		c.note(c.pool.Drain(ep.ID))
	case Ready:
		c.note(c.pool.Ready(ep.ID))
	case Gone:
		c.note(c.pool.Remove(ep.ID))
	case Joined:
		c.lives[engine]++
		ep.Incarnation = fmt.Sprintf("life-%d", c.lives[engine]+1)
		c.note(c.pool.Add(ep))
	}
}

func (c *poolChooser) note(err error) {
	if c.fault == nil {
		c.fault = err
	}
}

// Close reports what went wrong on the way, or that leases are still open.
func (c *poolChooser) Close() error {
	if open := c.pool.Stats().OpenLeases; c.fault == nil && open != 0 {
		return fmt.Errorf("world: %d leases are open at the end", open)
	}
	return c.fault
}

// closer is a chooser that can say at the end whether its books are in order.
type closer interface{ Close() error }

// believed is the profile of an engine in the terms of the cost model.
func believed(p sim.Profile) score.Profile {
	return score.Profile{
		Base: p.Base, PrefillToken: p.PerToken, KVToken: p.PerContext, Attention: p.PerPair, Sequence: p.PerSeq,
		KVCapacity: p.KVTokens, BlockSize: int(p.BlockSize), MaxRunning: int64(p.MaxSeqs),
	}
}
