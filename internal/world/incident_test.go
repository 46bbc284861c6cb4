package world_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/router"
)

// steady is a light load for 20 s on two engines.
func steady() []world.Arrival {
	return arrivals(5, shape{n: 400, perSecond: 20, prompt: 300, output: 30, groups: 6})
}

func with(x ...world.Incident) world.Config {
	return world.Config{Engines: engines(2, small()), Incidents: x, Retries: 1, Telemetry: world.Telemetry{Period: 100 * time.Millisecond}}
}

// on returns the records that were sent to an engine in [from, to).
func on(r *world.Result, engine int, from, to time.Duration) []world.Record {
	return slices.DeleteFunc(slices.Clone(r.Records), func(rec world.Record) bool {
		return rec.Engine != engine || rec.Sent < from || rec.Sent >= to
	})
}

const second = time.Second

func TestDrain(t *testing.T) {
	r := run(t, with(world.Incident{Kind: world.Drain, Engine: 0, At: 5 * second, For: 5 * second}), steady())
	require.NotEmpty(t, on(r, 0, 0, 5*second))
	require.Empty(t, on(r, 0, 5*second+1, 10*second))
	require.NotEmpty(t, on(r, 0, 10*second, time.Hour))
	require.Equal(t, 400, r.Figures(world.SLO{}).Finished, "what was there goes on")
}

// Draining outlasts a death in between: whoever comes back is still not wanted.
func TestDrainAroundADeath(t *testing.T) {
	r := run(t, with(
		world.Incident{Kind: world.Drain, Engine: 0, At: 2 * second, For: 10 * second},
		world.Incident{Kind: world.Die, Engine: 0, At: 4 * second, For: 3 * second},
	), steady())
	require.Empty(t, on(r, 0, 2*second+1, 12*second))
	require.NotEmpty(t, on(r, 0, 12*second, time.Hour))
}

// A restart fails what is inside and comes back cold; retries go elsewhere.
func TestRestart(t *testing.T) {
	x := world.Incident{Kind: world.Restart, Engine: 0, At: 5 * second, For: 2 * second}
	r := run(t, with(x), steady())
	f := r.Figures(world.SLO{})
	require.Equal(t, 400, f.Finished)
	require.Positive(t, f.Retries)
	require.Equal(t, 2, r.Engines[0].Lives)
	require.Positive(t, r.Engines[0].Totals.Cancelled, "what died inside")
	for _, rec := range r.Records {
		if rec.Engine == 0 && rec.End > x.At+time.Millisecond {
			require.GreaterOrEqual(t, rec.Queued, x.At+x.For, "served by a dead process")
		}
		if rec.Attempts > 1 {
			require.Equal(t, 1, rec.Engine, "tried again on the engine that failed it")
			require.GreaterOrEqual(t, rec.FirstToken, x.At, "its first token is that of the last try")
		}
	}
	cold := slices.IndexFunc(on(r, 0, x.At+x.For, time.Hour), func(rec world.Record) bool { return rec.Cached == 0 })
	require.Zero(t, cold, "the new process has an empty cache")

	cfg := with(x)
	cfg.Retries = 0
	require.Positive(t, run(t, cfg, steady()).Figures(world.SLO{}).Failed)
}

// The pool sees a restart by its epoch, and a death by its notice.
func TestDeathReachesTheRouter(t *testing.T) {
	var pools []interface{ Pool() *router.Pool }
	maker := world.PoolChooser(router.Config{})
	cfg := with(
		world.Incident{Kind: world.Restart, Engine: 0, At: 4 * second},
		world.Incident{Kind: world.Die, Engine: 1, At: 6 * second, For: 4 * second, Notice: second},
	)
	cfg.Chooser = func(e world.Env) (world.Chooser, error) {
		c, err := maker(e)
		pools = append(pools, c.(interface{ Pool() *router.Pool }))
		return c, err
	}
	r := run(t, cfg, steady())
	s := pools[0].Pool().Stats()
	require.EqualValues(t, 1, s.EpochChanges)
	require.Len(t, s.Endpoints, 2)
	require.Equal(t, "life-2", s.Endpoints[1].Incarnation)
	require.Positive(t, s.ScrapeErrors)
	require.Empty(t, on(r, 1, 7*second+1, 10*second))
	require.NotEmpty(t, on(r, 1, 10*second, time.Hour))
	require.Equal(t, uint64(400+r.Figures(world.SLO{}).Retries), s.Decisions)
}

// An engine for ever dead, and the only one: nothing hangs, everything is accounted for.
func TestNobodyLeft(t *testing.T) {
	cfg := world.Config{Engines: engines(1, small()), Incidents: []world.Incident{{Kind: world.Die, At: 5 * second, Notice: second}}}
	f := run(t, cfg, steady()).Figures(world.SLO{})
	require.Positive(t, f.Failed)
	require.Positive(t, f.Rejected)
	require.Equal(t, 400, f.Finished+f.Failed+f.Rejected)
}

func TestFreezeAndSlow(t *testing.T) {
	cfg := with(world.Incident{Kind: world.Freeze, Engine: 0, At: 5 * second, For: 3 * second})
	cfg.Chooser = only(0)
	r := run(t, cfg, steady())
	for _, rec := range r.Records {
		for _, at := range []time.Duration{rec.FirstToken, rec.End} {
			require.False(t, at > 5*second+2*time.Millisecond && at < 8*second, "a token at %v while frozen", at)
		}
	}
	busy := r.Engines[0].Busy

	cfg.Incidents[0].Kind, cfg.Incidents[0].At, cfg.Incidents[0].For, cfg.Incidents[0].Factor = world.Slow, 0, 0, 3
	slow := run(t, cfg, steady())
	require.Greater(t, slow.Engines[0].Busy, busy)
	alone := []world.Arrival{one(0, 100, 9)}
	cfg.Incidents[0].At = 1
	a, b := run(t, cfg, alone), run(t, world.Config{Engines: engines(1, small()), Chooser: only(0)}, alone)
	require.InDelta(t, 3*float64(b.Engines[0].Busy), float64(a.Engines[0].Busy), 10)
}

// Reports of a silent engine grow old; those of a stuck one do not change.
func TestSilentAndStuck(t *testing.T) {
	var ears *listener
	cfg := with(
		world.Incident{Kind: world.Silent, Engine: 0, At: 2 * second, For: 4 * second}, world.Incident{Kind: world.Stuck, Engine: 1, At: 10 * second, For: 5 * second},
	)
	cfg.Chooser = func(e world.Env) (world.Chooser, error) {
		ears = &listener{env: e}
		return ears, nil
	}
	run(t, cfg, steady())
	require.Equal(t, 40, ears.lost[0])
	require.Zero(t, ears.lost[1])
	kept := map[int64]bool{}
	for _, r := range ears.reports[1] {
		if at := r.ObservedAt.Sub(ears.start); at > 10*second && at < 15*second {
			kept[r.Generated] = true
		}
	}
	require.Len(t, kept, 1)
}

// listener takes turns and keeps what it hears.
type listener struct {
	world.Deaf
	env     world.Env
	start   time.Time
	at      []time.Time // of reports
	reports map[int][]world.Report
	lost    map[int]int
	turn    int
	asked   []world.Request
	first   []int
	steps   map[int][]int64
}

func (l *listener) Choose(r *world.Request) (world.Choice, error) {
	kept := *r
	kept.Avoid = slices.Clone(r.Avoid)
	l.asked = append(l.asked, kept)
	l.turn++
	return world.Choice{Engine: l.turn % len(l.env.Endpoints)}, nil
}

func (l *listener) FirstToken(slot int) { l.first = append(l.first, slot) }

func (l *listener) Progress(slot int, tokens int64) {
	if l.steps == nil {
		l.steps = map[int][]int64{}
	}
	l.steps[slot] = append(l.steps[slot], tokens)
}

func (l *listener) Observe(engine int, r *world.Report) {
	if l.reports == nil {
		l.reports, l.start = map[int][]world.Report{}, time.Unix(1_700_000_000, 0)
	}
	l.reports[engine] = append(l.reports[engine], *r)
	l.at = append(l.at, l.env.Now())
}

func (l *listener) Lost(engine int) {
	if l.lost == nil {
		l.lost = map[int]int{}
	}
	l.lost[engine]++
}
