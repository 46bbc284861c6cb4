package router_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// A retry avoids the engine that failed it. The others are then all there is, and a bound that they all break does not take the
// warm one's affinity: there is nobody inside the bounds to divert to.
func TestAnAvoidedEndpointIsNoAlternativeInsideTheBounds(t *testing.T) {
	for _, hard := range []bool{false, true} {
		c := newClock()
		cfg := router.Config{Now: c.now, Bounds: router.Bounds{MaxWaiting: 2}}
		p, err := router.New(cfg)
		require.NoError(t, err)
		require.NoError(t, p.SetEndpoints([]router.Endpoint{
			{ID: "a", Profile: flat}, {ID: "b", Profile: flat}, {ID: "idle", Profile: flat},
		}))
		idle(t, p, c, "a", "b", "idle")
		req := router.Request{Prefix: long(t, 1, 100), ExpectedOutputTokens: 1}
		only := req
		only.Exclude, only.ExcludeHard = []string{"b", "idle"}, true
		mustReserve(t, p, only).Done(router.Usage{})
		c.advance(time.Second)
		report(t, p, c, "a", 20, 100, 0.1)
		report(t, p, c, "b", 20, 100, 0.1)
		report(t, p, c, "idle", 0, 0, 0.1)

		d := scored(t, p, req)
		require.False(t, d.AffinityLifted)
		require.Equal(t, router.WithheldWaiting, candidate(t, d, "a").Withheld)
		req.Exclude, req.ExcludeHard = []string{"idle"}, hard
		d = scored(t, p, req)
		require.True(t, d.AffinityLifted, "hard: %v", hard)
		require.Equal(t, "a", d.Endpoint)
		require.Equal(t, router.NoReason, candidate(t, d, "a").Withheld)
		require.Equal(t, 1600.0, candidate(t, d, "a").Terms.Saved)
	}
}

// The cheapest for everybody asks the request itself to give up too much, so that another wins. That is said wherever the choice is
// explained.
func TestABarredCandidateSaysSo(t *testing.T) {
	c, k := newClock(), &keeper{}
	p := sized(t, c, router.Config{Receipts: router.Receipts{Observer: k}, Weights: score.Weights{Wait: router.None}}, "many", "queue")
	for id, waiting := range map[string]float64{"many": 0, "queue": 90_000} {
		running := 200.0
		if waiting > 0 {
			running = 0
		}
		observe(t, p, c, id, telemetry.Snapshot{
			Running: telemetry.V(running), Waiting: telemetry.V(0), WaitingTokens: telemetry.V(waiting), KVUsed: telemetry.V(0),
		})
	}
	req := router.Request{PromptTokens: 5000, ExpectedOutputTokens: 50}
	d := scored(t, p, req)
	require.Equal(t, "many", d.Endpoint)
	queue := candidate(t, d, "queue")
	require.Less(t, queue.Total, candidate(t, d, "many").Total, "cheaper in total")
	require.True(t, queue.Barred)
	require.Equal(t, router.NoReason, queue.Excluded, "it could be chosen, by another policy")
	require.False(t, candidate(t, d, "many").Barred)
	require.Contains(t, queue.String(), "barred")
	for line := range strings.Lines(d.Explain()) {
		require.Equal(t, strings.HasPrefix(line, "  queue  ") && !strings.Contains(line, "own"), strings.Contains(line, "barred"), line)
	}

	require.Equal(t, "many", mustReserve(t, p, req).Endpoint().ID)
	require.True(t, candidate(t, k.decided[0].Decision, "queue").Barred)
	replayed, err := router.Replay(roundTrip(t, k.decided[0]), router.Config{})
	require.NoError(t, err)
	require.True(t, candidate(t, replayed, "queue").Barred)
}

// While a policy thinks, the alternative gets so much to do that the warm endpoint's queue is no longer too long beside it: its affinity
// counts again in the choice that follows, and in its price.
func TestAffinityComesBackWhenTheAlternativeFillsUp(t *testing.T) {
	var meanwhile func()
	var looks []router.Candidate
	p, c, req := warm(t, router.Config{Policy: hosted(func(v *router.View) int {
		if f := meanwhile; f != nil {
			looks = append(looks, v.At(0))
			meanwhile = nil
			f()
		} else {
			looks = append(looks, v.At(0))
		}
		return last{}.Choose(v)
	})})
	looks = nil
	report(t, p, c, "a", 1, 6000, 0.1)
	report(t, p, c, "b", 0, 0, 0.1)
	meanwhile = func() { mustReserve(t, p, router.Request{PromptTokens: 3000}) }
	require.Equal(t, "b", mustReserve(t, p, req).Endpoint().ID)
	first, again := looks[0], looks[len(looks)-1]
	require.Equal(t, router.WithheldLead, first.Withheld)
	require.Zero(t, first.Terms.Saved)
	require.Equal(t, router.NoReason, again.Withheld)
	require.Equal(t, 1600.0, again.Terms.Saved)
	for _, x := range looks {
		require.InDelta(t, x.Terms.Total(), x.Total, 1e-9, "what the choice goes by is what the terms say")
	}
}

// A shadow of the same policy proposes by luck of its own: it neither copies the lot that was drawn nor spends it.
func TestTheShadowDrawsLotsOfItsOwn(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Policy: router.Random(), Shadow: router.Random()}, "a", "b", "c", "d")
	for range 100 {
		mustReserve(t, p, router.Request{}).Cancel()
	}
	s := p.Stats()
	require.Greater(t, s.ShadowOther, uint64(50))
	require.Greater(t, s.ShadowSame, uint64(5))
}

// A rejection names the one reason that all endpoints share, and none where they differ.
func TestARejectionSaysBecauseOfWhat(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Caps: admission.Caps{Tenant: 1}})
	require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a", Models: []string{"x", "y"}}, {ID: "b", Models: []string{"x"}}}))
	expect := func(req router.Request, sentinel error, because router.Reason) *router.RejectError {
		t.Helper()
		r := rejected(t, p, req, sentinel)
		require.Equal(t, because, r.Because)
		_, err := p.Score(req)
		var scored *router.RejectError
		require.ErrorAs(t, err, &scored)
		require.ErrorIs(t, err, sentinel)
		require.Equal(t, because, scored.Because)
		return r
	}
	r := expect(router.Request{Model: "z"}, router.ErrNoEndpoints, router.ModelNotServed)
	require.EqualError(t, r, "router: no endpoint can serve the request (model)")
	mustReserve(t, p, router.Request{Tenant: "t"})
	r = expect(router.Request{Tenant: "t"}, router.ErrSaturated, router.CapTenant)
	require.EqualError(t, r, "router: every endpoint is at a cap (cap-tenant)")
	mustReserve(t, p, router.Request{Tenant: "u"})
	require.NoError(t, p.Drain("a"))
	expect(router.Request{Model: "y"}, router.ErrNoEndpoints, router.NoReason)
	require.NoError(t, p.Drain("b"))
	expect(router.Request{Model: "y"}, router.ErrNoEndpoints, router.Draining)
	require.NoError(t, p.SetEndpoints(nil))
	expect(router.Request{}, router.ErrNoEndpoints, router.NoReason)
}

// A deadline that has passed is the reason, whatever else would have kept the request out.
func TestADeadlineIsRejectedForNothingElse(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{})
	require.NoError(t, p.Add(router.Endpoint{ID: "a", Models: []string{"x"}}))
	r := rejected(t, p, router.Request{Model: "z", Deadline: c.now()}, router.ErrDeadline)
	require.Equal(t, router.NoReason, r.Because)
	require.EqualError(t, r, "router: the deadline cannot be met")
}

func TestReserveWithoutAContext(t *testing.T) {
	p := newPool(t, newClock(), router.Config{}, "a")
	var none context.Context
	l, err := p.Reserve(none, router.Request{})
	require.NoError(t, err)
	l.Done(router.Usage{})
}

// Whatever weights and profiles are accepted, every cost is a number.
func TestEveryCostIsANumber(t *testing.T) {
	const most = score.MaxWeight
	for name, w := range map[string]score.Weights{
		"Interference": {Interference: 2 * most}, "Displacement": {Displacement: 2 * most}, "KVPressure": {KVPressure: 2 * most},
		"Uncertainty": {Uncertainty: 2 * most},
	} {
		require.ErrorContains(t, router.Config{Weights: w}.Validate(), "router: Config.Weights."+name+" = 2e+06 is above 1e+06")
	}
	c := newClock()
	p := newPool(t, c, router.Config{Weights: score.Weights{Interference: most, Displacement: most, KVPressure: most, Uncertainty: most}})
	for want, profile := range map[string]score.Profile{
		"Base": {Base: 1e307}, "PrefillToken": {Base: 1, PrefillToken: 1e306}, "KVToken": {KVToken: 1e300}, "Attention": {Attention: 1e300},
		"Sequence": {Sequence: 1e300}, "AdapterLoad": {AdapterLoad: 1e300},
	} {
		require.ErrorContains(t, p.Add(router.Endpoint{ID: "a", Profile: profile}), "Profile."+want+" = ")
	}
	require.Empty(t, p.Endpoints())
	for _, id := range []string{"a", "b"} {
		require.NoError(t, p.Add(router.Endpoint{ID: id, Profile: score.Profile{
			Base: 1e6, PrefillToken: 1e6, KVToken: 1e6, Attention: 1e6, Sequence: 1e6, AdapterLoad: 1e9, KVCapacity: 1e15, MaxRunning: 1e15,
		}}))
	}
	observe(t, p, c, "a", telemetry.Snapshot{
		Running: telemetry.V(1e15), Waiting: telemetry.V(1e15), WaitingTokens: telemetry.V(1e15), KVShare: telemetry.V(1),
	})
	c.advance(3 * time.Second)
	d := scored(t, p, router.Request{
		PromptTokens: math.MaxInt64, MaxOutputTokens: math.MaxInt64, Adapter: router.Adapter{ID: "x", Digest: "1"},
	})
	for _, x := range d.Candidates {
		for _, v := range []float64{x.Total, x.OwnCost, x.Terms.Total(), x.Terms.Own()} {
			require.False(t, math.IsNaN(v) || math.IsInf(v, 0), "%s: %v", x.ID, v)
		}
	}
	_ = roundTrip(t, &router.Receipt{Decision: d})
}

// nosy is an error that cannot be asked what it is.
type nosy struct{}

func (nosy) Error() string   { panic("no text") }
func (nosy) Is(error) bool   { panic("no comparison") }
func (nosy) Unwrap() []error { panic("nothing inside") }

func TestAHostsErrorThatPanicsCostsItsRecordOnly(t *testing.T) {
	k := &keeper{}
	p := newPool(t, newClock(), router.Config{Caps: admission.Caps{Tenant: 1}, Receipts: router.Receipts{Observer: k}}, "a")
	for _, end := range []func(l *router.Lease){
		func(l *router.Lease) { l.Fail(nosy{}) }, func(l *router.Lease) { l.Refuse(nosy{}) },
		func(l *router.Lease) { p.Release(l, router.Outcome{Cause: router.Failed, Err: nosy{}}) },
	} {
		l := mustReserve(t, p, router.Request{Tenant: "t"})
		require.NotPanics(t, func() { end(l) })
		require.False(t, l.Live())
	}
	s := p.Stats()
	require.EqualValues(t, 3, s.ObserverFaults)
	require.Zero(t, s.OpenLeases)
	require.EqualValues(t, 2, s.Failed)
	l := mustReserve(t, p, router.Request{Tenant: "t"})
	l.Fail(errors.New("plain"))
	require.Equal(t, "*errors.errorString", k.ended[len(k.ended)-1].Outcome.ErrorType)
}
