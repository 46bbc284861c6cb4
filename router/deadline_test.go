package router_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// deadlined makes a pool of a slow and a fast endpoint: 1000 prompt tokens take 2 s and 200 ms, an output token 10 ms on both.
func deadlined(t *testing.T, c *clock, cfg router.Config) *router.Pool {
	p := newPool(t, c, cfg)
	require.NoError(t, p.SetEndpoints([]router.Endpoint{
		{ID: "slow", Profile: score.Profile{Base: 10, PrefillToken: 2, KVCapacity: 1e6}},
		{ID: "fast", Profile: score.Profile{Base: 10, PrefillToken: 0.2, KVCapacity: 1e6}},
	}))
	for _, id := range []string{"slow", "fast"} {
		require.NoError(t, p.Observe(id, counts(0, 0)))
	}
	return p
}

// TestADeadlineThatCannotBeMet is said at once and by its name: not first after the request has taken its time from others.
func TestADeadlineThatCannotBeMet(t *testing.T) {
	c := newClock()
	p := deadlined(t, c, router.Config{})
	req := func(d time.Duration) router.Request {
		return router.Request{PromptTokens: 1000, MaxOutputTokens: 10, Deadline: c.now().Add(d)}
	}
	l, err := p.Reserve(context.Background(), req(500*time.Millisecond))
	require.NoError(t, err)
	require.Equal(t, "fast", l.Endpoint().ID)
	l.Cancel()

	r := rejected(t, p, req(250*time.Millisecond), router.ErrDeadline)
	require.Equal(t, router.MissesDeadline, r.Because)
	d, err := p.Score(req(500 * time.Millisecond))
	require.NoError(t, err)
	require.Equal(t, router.MissesDeadline, d.Candidates[1].Excluded, "the slow one would miss it")

	// With work before it the fast one misses it too, and the next request has more time.
	require.NoError(t, p.Observe("fast", telemetry.Snapshot{
		ObservedAt: c.now().Add(time.Microsecond), Running: telemetry.V(1), Waiting: telemetry.V(0), WaitingTokens: telemetry.V(20_000), KVShare: telemetry.V(0.1),
	}))
	c.advance(time.Millisecond)
	require.NoError(t, p.Observe("fast", telemetry.Snapshot{
		Running: telemetry.V(1), Waiting: telemetry.V(2), WaitingTokens: telemetry.V(20_000), KVShare: telemetry.V(0.1),
	}))
	rejected(t, p, req(time.Second), router.ErrDeadline)
	l, err = p.Reserve(context.Background(), req(3*time.Second))
	require.NoError(t, err)
	require.Equal(t, "slow", l.Endpoint().ID)
	l.Cancel()
}

// TestAFullEndpointIsNoMissedDeadline: where the only endpoint that could meet it has no room, the reason is the room; it may have
// some in a moment.
func TestAFullEndpointIsNoMissedDeadline(t *testing.T) {
	c := newClock()
	p := deadlined(t, c, router.Config{Caps: admission.Caps{Endpoint: 1}})
	req := router.Request{PromptTokens: 1000, MaxOutputTokens: 10, Deadline: c.now().Add(time.Second)}
	l, err := p.Reserve(context.Background(), req)
	require.NoError(t, err)
	require.Equal(t, "fast", l.Endpoint().ID)
	l.FirstToken()
	rejected(t, p, req, router.ErrSaturated)
	req.Deadline = c.now().Add(100 * time.Millisecond)
	rejected(t, p, req, router.ErrDeadline)
	l.Cancel()
}

// TestAnUnknownLoadMissesNoDeadline: what is not known of an endpoint is a price, and no prediction.
func TestAnUnknownLoadMissesNoDeadline(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a", "b")
	l, err := p.Reserve(context.Background(), router.Request{PromptTokens: 10, MaxOutputTokens: 1, Deadline: c.now().Add(50 * time.Millisecond)})
	require.NoError(t, err)
	require.Greater(t, l.Decision().Terms.Uncertainty, 50.0)
	l.Cancel()
}

// TestTenantTokens: what a tenant has open is capped in tokens, exactly, and given back at the end.
func TestTenantTokens(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Caps: admission.Caps{TenantTokens: 1000}}, "a", "b")
	reserve := func(tenant string, prompt, output int64) (*router.Lease, error) {
		return p.Reserve(context.Background(), router.Request{Tenant: tenant, PromptTokens: prompt, MaxOutputTokens: output})
	}
	one, err := reserve("t", 500, 100)
	require.NoError(t, err)
	two, err := reserve("t", 300, 100)
	require.NoError(t, err)
	r := rejected(t, p, router.Request{Tenant: "t", PromptTokens: 1, MaxOutputTokens: 1}, router.ErrSaturated)
	require.Equal(t, router.CapTenantTokens, r.Because)
	_, err = reserve("u", 900, 100)
	require.NoError(t, err, "another tenant")
	_, err = reserve("", 5000, 100)
	require.NoError(t, err, "nobody in particular")
	one.Done(router.Usage{})
	one.Cancel()
	_, err = reserve("t", 501, 100)
	require.ErrorIs(t, err, router.ErrSaturated)
	_, err = reserve("t", 500, 100)
	require.NoError(t, err)
	two.Fail(nil)
	rejected(t, p, router.Request{Tenant: "v", PromptTokens: 1000, MaxOutputTokens: 1}, router.ErrSaturated)
}
