package router_test

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a virtual clock. Any number of goroutines may use it.
type clock struct{ ns atomic.Int64 }

var epochStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (c *clock) now() time.Time                { return epochStart.Add(time.Duration(c.ns.Load())) }
func (c *clock) advance(d time.Duration)       { c.ns.Add(int64(d)) }
func newClock() *clock                         { c := &clock{}; c.ns.Store(int64(time.Second)); return c }
func (c *clock) ago(d time.Duration) time.Time { return c.now().Add(-d) }

// newPool makes a pool on a virtual clock of plain endpoints with the given ids, all of the default profile.
func newPool(tb testing.TB, c *clock, cfg router.Config, ids ...string) *router.Pool {
	tb.Helper()
	cfg.Now = c.now
	p, err := router.New(cfg)
	require.NoError(tb, err)
	require.NoError(tb, p.SetEndpoints(plain(ids...)))
	return p
}

func plain(ids ...string) []router.Endpoint {
	var out []router.Endpoint
	for _, id := range ids {
		out = append(out, router.Endpoint{ID: id})
	}
	return out
}

// idle reports an idle engine now.
func idle(tb testing.TB, p *router.Pool, c *clock, ids ...string) {
	tb.Helper()
	for _, id := range ids {
		busy(tb, p, c, id, 0, 0)
	}
}

// busy reports running and waiting requests, and no pending tokens but those of the count, now.
func busy(tb testing.TB, p *router.Pool, c *clock, id string, running, waiting float64) {
	tb.Helper()
	require.NoError(tb, p.Observe(id, telemetry.Snapshot{
		ObservedAt: c.now(), Running: telemetry.V(running), Waiting: telemetry.V(waiting), KVShare: telemetry.V(0.1),
	}))
}

func mustReserve(tb testing.TB, p *router.Pool, req router.Request) *router.Lease {
	tb.Helper()
	l, err := p.Reserve(context.Background(), req)
	require.NoError(tb, err)
	return l
}

// reserveN reserves n times.
func reserveN(tb testing.TB, p *router.Pool, req router.Request, n int) []*router.Lease {
	tb.Helper()
	out := make([]*router.Lease, n)
	for i := range out {
		out[i] = mustReserve(tb, p, req)
	}
	return out
}

// cachedOn is how many tokens of the prompt the pool takes to be cached on an endpoint.
func cachedOn(tb testing.TB, p *router.Pool, id string, q prefix.Sequence) int64 {
	tb.Helper()
	n, err := p.Cached(id, q)
	require.NoError(tb, err)
	return n
}

// rejected requires a rejection for that reason.
func rejected(tb testing.TB, p *router.Pool, req router.Request, reason error) *router.RejectError {
	tb.Helper()
	l, err := p.Reserve(context.Background(), req)
	require.Nil(tb, l)
	require.ErrorIs(tb, err, reason)
	var reject *router.RejectError
	require.ErrorAs(tb, err, &reject)
	return reject
}

func scored(tb testing.TB, p *router.Pool, req router.Request) router.Decision {
	tb.Helper()
	d, err := p.Score(req)
	require.NoError(tb, err)
	return d
}

// candidate finds an endpoint in a decision.
func candidate(tb testing.TB, d router.Decision, id string) router.Candidate {
	tb.Helper()
	i := slices.IndexFunc(d.Candidates, func(c router.Candidate) bool { return c.ID == id })
	require.GreaterOrEqual(tb, i, 0, "no candidate %s", id)
	return d.Candidates[i]
}

// prompt hashes a prompt of whole blocks of 16 tokens: blocks with equal names at its head are equal.
func prompt(tb require.TestingT, blocks ...int) prefix.Sequence {
	return scopedPrompt(tb, "m", blocks...)
}

func scopedPrompt(tb require.TestingT, model string, blocks ...int) prefix.Sequence {
	scope, err := prefix.NewScope(prefix.Parts{Model: model})
	require.NoError(tb, err)
	tokens := make([]int32, 0, 16*len(blocks))
	for _, b := range blocks {
		for i := range 16 {
			tokens = append(tokens, int32(b*16+i))
		}
	}
	q, err := prefix.FromTokens(scope, 16, tokens)
	require.NoError(tb, err)
	return q
}

// long is a prompt of n blocks that begins with the block named first and shares nothing with another first.
func long(tb require.TestingT, first, n int) prefix.Sequence {
	blocks := make([]int, n)
	for i := range blocks {
		blocks[i] = first*100_000 + i
	}
	return prompt(tb, blocks...)
}

// choices reserves n times, ends each lease at once, and returns the endpoints.
func choices(tb testing.TB, p *router.Pool, n int, req func(i int) router.Request) []string {
	tb.Helper()
	var out []string
	for i := range n {
		l := mustReserve(tb, p, req(i))
		out = append(out, l.Endpoint().ID)
		l.Cancel()
	}
	return out
}

func tally(ids []string) map[string]int {
	out := map[string]int{}
	for _, id := range ids {
		out[id]++
	}
	return out
}

func sameFloat(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(a), math.Abs(b)) }

// flat is a profile in which only prefill costs, 1 ms a token.
var flat = score.Profile{PrefillToken: 1, KVCapacity: 1 << 20}
