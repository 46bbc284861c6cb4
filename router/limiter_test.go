package router_test

import (
	"context"
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

// kneeEngine decodes only: a pass gives each running request one token and takes base ms up to the knee, and slope ms more for each
// request beyond it.
type kneeEngine struct{ base, knee, slope float64 }

func (e kneeEngine) pass(n float64) float64 { return e.base + e.slope*max(0, n-e.knee) }

func (e kneeEngine) throughput(n float64) float64 { return 1000 * n / e.pass(n) }

// best is the lowest number of requests from which a quarter more brings less than that share of it in tokens.
func (e kneeEngine) best(gain float64) (n float64) {
	for n = 1; math.Log(e.throughput(1.25*n)/e.throughput(n))/math.Log(1.25) >= gain; n++ {
	}
	return n
}

// engineLoop puts a pool with an adaptive limit before one such engine, in steps of a second; demand is how many want to run.
type engineLoop struct {
	tb     testing.TB
	clock  *clock
	pool   *router.Pool
	engine kneeEngine
	demand int
	size   int64   // tokens of each answer
	share  float64 // requests that the engine runs for each of the pool's
	leases []*router.Lease
	tokens []float64 // generated
	most   int
}

func (l *engineLoop) step() {
	for len(l.leases) < l.demand {
		lease, err := l.pool.Reserve(context.Background(), router.Request{PromptTokens: 10, MaxOutputTokens: l.size})
		if err != nil {
			require.ErrorIs(l.tb, err, router.ErrSaturated)
			break
		}
		l.leases, l.tokens = append(l.leases, lease), append(l.tokens, 0)
	}
	n := float64(len(l.leases))
	l.most = max(l.most, len(l.leases))
	l.clock.advance(time.Second)
	if n == 0 {
		return
	}
	each := l.engine.throughput(n*l.share) / (n * l.share)
	kept := 0
	for i, lease := range l.leases {
		if l.tokens[i] += each; l.tokens[i] >= float64(l.size) {
			lease.Done(router.Usage{OutputTokens: l.size})
			continue
		}
		lease.Progress(int(l.tokens[i]))
		l.leases[kept], l.tokens[kept] = lease, l.tokens[i]
		kept++
	}
	l.leases, l.tokens = l.leases[:kept], l.tokens[:kept]
	require.NoError(l.tb, l.pool.Observe("a", telemetry.Snapshot{
		ObservedAt: l.clock.now(), Running: telemetry.V(float64(kept) * l.share), Waiting: telemetry.V(0), KVShare: telemetry.V(0.1),
	}))
	l.clock.advance(time.Millisecond)
}

func newEngineLoop(tb testing.TB, change func(*router.Config)) *engineLoop {
	c := newClock()
	cfg := router.Config{Limit: router.Limit{Adaptive: true, Learn: admission.LimitConfig{Min: 8, Max: 256}}, FrozenAfter: router.None}
	if change != nil {
		change(&cfg)
	}
	return &engineLoop{tb: tb, clock: c, pool: newPool(tb, c, cfg, "a"), engine: kneeEngine{base: 10, knee: 60, slope: 0.16}, demand: 400, size: 2000, share: 1}
}

func TestLimiterFindsTheKnee(t *testing.T) {
	l := newEngineLoop(t, nil)
	best := l.engine.best(0.2)
	sum, n := 0.0, 0
	for i := range 2400 {
		l.step()
		if i >= 1200 {
			sum += float64(l.pool.Stats().Endpoints[0].Limiter.Limit)
			n++
		}
	}
	s := l.pool.Stats().Endpoints[0]
	t.Logf("best %v, mean limit of the last 20 minutes %.0f, learned %d", best, sum/float64(n), s.Limiter.Learned)
	require.Equal(t, 256, l.most, "what is not known is not limited")
	require.InEpsilon(t, best, sum/float64(n), 0.4)
	require.NotEmpty(t, s.Limiter.Changes)
	for _, change := range s.Limiter.Changes {
		require.NotEmpty(t, change.Reason)
		require.True(t, change.At.After(epochStart))
	}
	require.LessOrEqual(t, s.Own.Live.Requests, int64(256))

	l.demand = 10_000
	l.step()
	require.LessOrEqual(t, len(l.leases), 256)
	more, reject := burst(t, l.pool, 300, router.Request{})
	require.NotNil(t, reject)
	require.Equal(t, router.CapAdaptive, reject.Because)
	l.leases = append(l.leases, more...)

	text, err := json.Marshal(l.pool.Stats())
	require.NoError(t, err)
	var back router.Stats
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, l.pool.Stats().Endpoints[0].Limiter.Limit, back.Endpoints[0].Limiter.Limit)
	require.Len(t, back.Endpoints[0].Limiter.Changes, len(l.pool.Stats().Endpoints[0].Limiter.Changes))
	for _, lease := range l.leases {
		lease.Cancel()
	}
	empty(t, l.pool)
}

func TestLimiterObserveOnly(t *testing.T) {
	l := newEngineLoop(t, func(cfg *router.Config) { cfg.Limit.Learn.ObserveOnly = true })
	for i := range 1200 {
		l.demand = 20 + (i%400)/2*2 // the load itself goes up and down
		l.step()
		require.Equal(t, 256, l.pool.Stats().Endpoints[0].Limiter.Limit, "nothing is limited")
	}
	s := l.pool.Stats().Endpoints[0].Limiter
	t.Logf("learned %d, best %v", s.Learned, l.engine.best(0.2))
	require.Less(t, s.Learned, 256, "and what it would have done is told")
	require.NotEmpty(t, s.Changes)
	_, err := json.Marshal(l.pool.Stats())
	require.NoError(t, err)
}

// A waiter is served when the limit rises with an observation, and not before.
func TestLimiterAndQueue(t *testing.T) {
	l := newEngineLoop(t, func(cfg *router.Config) {
		cfg.Queue = router.Queue{Max: 1000, Timeout: time.Hour}
		cfg.Limit.Learn = admission.LimitConfig{Min: 8, Max: 64, Start: 8}
	})
	var tickets []*router.Ticket
	for range 500 {
		tickets = append(tickets, enqueue(t, l.pool, router.Request{PromptTokens: 10, MaxOutputTokens: 2000}))
	}
	open := func() (n int) {
		for _, ticket := range tickets {
			if lease, _ := ticket.Lease(); lease != nil && lease.Live() {
				n++
			}
		}
		return n
	}
	require.Equal(t, 8, open())
	generated := make([]float64, len(tickets))
	highest := 0
	for range 500 {
		n := open()
		limit := l.pool.Stats().Endpoints[0].Limiter.Limit
		require.LessOrEqual(t, n, max(limit, highest))
		highest = max(highest, limit)
		l.clock.advance(time.Second)
		for i, ticket := range tickets {
			if lease, _ := ticket.Lease(); lease != nil && lease.Live() {
				if generated[i] += l.engine.throughput(float64(n)) / float64(n); generated[i] >= 2000 {
					lease.Done(router.Usage{OutputTokens: 2000})
				} else {
					lease.Progress(int(generated[i]))
				}
			}
		}
		for i, ticket := range tickets {
			if lease, _ := ticket.Lease(); lease != nil && !lease.Live() {
				tickets[i], generated[i] = enqueue(t, l.pool, router.Request{PromptTokens: 10, MaxOutputTokens: 2000}), 0
			}
		}
		require.NoError(t, l.pool.Observe("a", telemetry.Snapshot{Running: telemetry.V(float64(n)), Waiting: telemetry.V(0), KVShare: telemetry.V(0.1)}))
	}
	require.Greater(t, highest, 30, "throughput rises all the way up to the knee")
	require.Greater(t, open(), 30)
	for _, ticket := range tickets {
		ticket.Cancel()
	}
	empty(t, l.pool)
}

func TestLimiterOff(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a")
	require.Nil(t, p.Stats().Endpoints[0].Limiter)
	p = newPool(t, c, router.Config{Limit: router.Limit{Adaptive: true}}, "a")
	s := p.Stats().Endpoints[0].Limiter
	require.Equal(t, &router.LimiterStats{Limit: 256, Learned: 256}, s)
	text, err := json.Marshal(p.Stats())
	require.NoError(t, err)
	require.Contains(t, string(text), `"limiter":{"limit":256,"learned":256}`)
	busy(t, p, c, "a", 255, 0)
	mustReserve(t, p, router.Request{})
	require.Equal(t, router.CapAdaptive, rejected(t, p, router.Request{}, router.ErrSaturated).Because)
}

// Half of what an engine runs is sent by another gateway: what that is served is not seen here, and counts as much as this one's.
func TestLimiterCountsWhatOthersAreServed(t *testing.T) {
	for _, share := range []float64{1, 2} {
		l := newEngineLoop(t, nil)
		l.share = share
		for range 1200 {
			l.step()
		}
		changes := l.pool.Stats().Endpoints[0].Limiter.Changes
		require.NotEmpty(t, changes)
		last := changes[len(changes)-1]
		require.InEpsilon(t, l.engine.throughput(last.Running), last.Throughput, 0.15, "share %v: %+v", share, last)
		require.InEpsilon(t, l.engine.pass(last.Running), last.PerToken, 0.15)
	}
}
