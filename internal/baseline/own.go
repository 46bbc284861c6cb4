package baseline

import (
	"time"

	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

// forEver is longer than any run.
const forEver = time.Duration(1 << 53)

// ownOnly, "own-only": the real router with its default policy, which hears of its own requests only. It gets no report and no cache
// event. So that it does not take that for blindness, in which it would leave cached prefixes out of account, it is told once that each
// engine is idle: a reading that stays fresh, and has no weight beside the pool's own ledger. It counts no other gateway's requests.
func ownOnly(e world.Env) (world.Chooser, error) {
	inner, err := world.PoolChooser(router.Config{
		Replicas: 1, FrozenAfter: router.None, Freshness: router.Freshness{FreshFor: forEver, StaleAfter: forEver, Decay: 1},
	})(e)
	if err != nil {
		return nil, err
	}
	o := &deafened{Chooser: inner, env: e}
	for i := range e.Endpoints {
		o.idle(i)
	}
	return o, nil
}

// deafened is a chooser that does not hear of engines.
type deafened struct {
	world.Chooser
	env world.Env
}

// idle tells that an engine has nothing to do.
func (o *deafened) idle(i int) {
	o.Chooser.Observe(i, &world.Report{ObservedAt: o.env.Now(), KVCapacity: o.env.Endpoints[i].Profile.WithDefaults().KVCapacity})
}

// Choose leaves out what the pool believes to know of the engine.
func (o *deafened) Choose(r *world.Request) (world.Choice, error) {
	c, err := o.Chooser.Choose(r)
	c.Age, c.Freshness = 0, telemetry.Missing
	return c, err
}

// Observe does nothing.
func (o *deafened) Observe(int, *world.Report) {}

// Lost does nothing.
func (o *deafened) Lost(int) {}

// Change tells the chooser, and of a new life that it is idle.
func (o *deafened) Change(i int, c world.Change) {
	o.Chooser.Change(i, c)
	if c == world.Joined {
		o.idle(i)
	}
}

// Close asks the chooser, where it can say.
func (o *deafened) Close() error { return closeOf(o.Chooser) }
