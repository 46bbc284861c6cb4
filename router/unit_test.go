package router_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
)

func TestConfigValidateNamesEveryField(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for field, cfg := range map[string]router.Config{
		"Freshness.StaleAfter = 1s":       {Freshness: router.Freshness{FreshFor: 2 * time.Second, StaleAfter: time.Second}},
		"Bounds.MaxKV = NaN":              {Bounds: router.Bounds{MaxKV: nan}},
		"Bounds.MaxKV = +Inf":             {Bounds: router.Bounds{MaxKV: inf}},
		"Bounds.GiveUp.Ratio = NaN":       {Bounds: router.Bounds{GiveUp: router.GiveUp{Ratio: nan}}},
		"Bounds.GiveUp.Ratio = -Inf":      {Bounds: router.Bounds{GiveUp: router.GiveUp{Ratio: math.Inf(-1)}}},
		"Receipts.Sample = NaN":           {Receipts: router.Receipts{Sample: nan}},
		"Receipts.Sample = 1.5 ":          {Receipts: router.Receipts{Sample: 1.5}},
		"Weights.Interference = NaN":      {Weights: score.Weights{Interference: nan}},
		"Weights.Displacement = +Inf":     {Weights: score.Weights{Displacement: inf}},
		"Weights.KVPressure = NaN":        {Weights: score.Weights{KVPressure: nan}},
		"Weights.Uncertainty = NaN":       {Weights: score.Weights{Uncertainty: nan}},
		"Circuit.Window = 65":             {Circuit: router.Circuit{Window: 65}},
		"Circuit.MaxOpenFor = 250ms":      {Circuit: router.Circuit{MaxOpenFor: time.Second / 4}},
		"Caps: admission: Caps.Waiting":   {Caps: admission.Caps{Waiting: -1}},
		"Caps: admission: Caps.Endpoint":  {Caps: admission.Caps{Endpoint: -1}},
		"Caps: admission: Caps.Aggregate": {Caps: admission.Caps{Aggregate: -1}},
		"Caps: admission: Caps.Tenant":    {Caps: admission.Caps{Tenant: -1}},
	} {
		err := cfg.Validate()
		require.ErrorContains(t, err, "router: Config."+field)
		_, newErr := router.New(cfg)
		require.EqualError(t, newErr, err.Error(), "New gives the error of Validate")
		_, replayErr := router.Replay(&router.Receipt{Decision: router.Decision{Candidates: []router.Candidate{{Profile: &score.Profile{}}}}}, cfg)
		require.EqualError(t, replayErr, err.Error())
	}
	joined := router.Config{Circuit: router.Circuit{Window: 65}, Receipts: router.Receipts{Sample: 2}, Caps: admission.Caps{Tenant: -1}}.Validate()
	for _, part := range []string{"Circuit.Window", "Receipts.Sample", "Caps.Tenant"} {
		require.ErrorContains(t, joined, part)
	}
	require.NoError(t, router.Config{}.Validate())
}

func TestConfigDefaults(t *testing.T) {
	d := router.Config{}.WithDefaults()
	require.Equal(t, "pressure", d.Policy.Name())
	require.NotNil(t, d.Now)
	d.Policy, d.Now = nil, nil
	want := router.Config{
		ShadowBudget: time.Millisecond, Replicas: 1, VisibilityLag: 50 * time.Millisecond, TieWindow: time.Millisecond,
		DefaultOutputTokens: 256, MeanPromptTokens: 1024, UnobservedMax: 4, FrozenAfter: 10, ProbeAfter: 30 * time.Second,
		Freshness: router.Freshness{FreshFor: 2 * time.Second, StaleAfter: 10 * time.Second, Decay: time.Second},
		Bounds: router.Bounds{
			MaxWaiting: 128, MaxKV: 0.95, MaxQueueDelay: 10 * time.Second, MaxLead: 5 * time.Second,
			GiveUp: router.GiveUp{Ratio: 0.5, Extra: 500 * time.Millisecond},
		},
		Circuit: router.Circuit{Failures: 5, Window: 20, OpenFor: time.Second / 2, MaxOpenFor: time.Minute},
		Weights: score.Weights{}.WithDefaults(), Prefix: router.Prefix{MaxBytes: 256 << 20},
	}
	require.Equal(t, want, d)

	again := d.WithDefaults()
	again.Policy, again.Now = nil, nil
	require.Equal(t, d, again, "defaults of defaults are the same where nothing was None")

	p, err := router.New(router.Config{})
	require.NoError(t, err)
	got := p.Config()
	got.Policy, got.Now = nil, nil
	require.Equal(t, want, got, "the effective values are readable")
}

func TestConfigNone(t *testing.T) {
	all := router.Config{
		ShadowBudget: -5, VisibilityLag: -5, TieWindow: -5, DefaultOutputTokens: -5, MeanPromptTokens: -5, UnobservedMax: -5,
		FrozenAfter: -5, ProbeAfter: -5, Freshness: router.Freshness{FreshFor: -5, StaleAfter: -5, Decay: -5},
		Bounds:  router.Bounds{MaxWaiting: -5, MaxKV: -5, MaxQueueDelay: -5, MaxLead: -5},
		Circuit: router.Circuit{Failures: -5, Window: -5, OpenFor: -5, MaxOpenFor: -5},
	}
	require.NoError(t, all.Validate())
	d := all.WithDefaults()
	for i, v := range []int64{
		int64(d.ShadowBudget), int64(d.VisibilityLag), int64(d.TieWindow), d.DefaultOutputTokens, d.MeanPromptTokens, int64(d.UnobservedMax),
		int64(d.FrozenAfter), int64(d.ProbeAfter), int64(d.Freshness.FreshFor), int64(d.Freshness.StaleAfter), int64(d.Freshness.Decay),
		int64(d.Bounds.MaxWaiting), int64(d.Bounds.MaxKV), int64(d.Bounds.MaxQueueDelay), int64(d.Bounds.MaxLead),
		int64(d.Circuit.Failures), int64(d.Circuit.Window), int64(d.Circuit.OpenFor), int64(d.Circuit.MaxOpenFor),
	} {
		require.EqualValues(t, router.None, v, "field %d", i)
	}
	again := d.WithDefaults()
	d.Policy, d.Now, again.Policy, again.Now = nil, nil, nil, nil
	require.Equal(t, d, again, "what stands for zero stays so")
	require.Equal(t, 1, router.Config{Replicas: router.None}.WithDefaults().Replicas, "there is always this gateway")
	half := router.Config{Bounds: router.Bounds{GiveUp: router.GiveUp{Ratio: router.None, Extra: time.Second}}}.WithDefaults()
	require.Equal(t, router.GiveUp{Ratio: router.None, Extra: time.Second}, half.Bounds.GiveUp)
}

// A pool by the configuration in effect of another makes the same choices.
func TestConfigCanBeUsedAgain(t *testing.T) {
	cfg := router.Config{TieWindow: router.None, VisibilityLag: router.None, UnobservedMax: 2, Seed: 8, Circuit: router.Circuit{Failures: router.None}}
	want, p := walk(t, cfg, 60)
	again := p.Config()
	got, q := walk(t, again, 60)
	require.Equal(t, want, got)
	a, b := p.Config(), q.Config()
	a.Policy, a.Now, b.Policy, b.Now = nil, nil, nil, nil
	require.Equal(t, a, b)
}

func TestSampleDefaults(t *testing.T) {
	with := router.Config{Receipts: router.Receipts{Observer: &keeper{}}}
	require.Equal(t, 1.0, with.WithDefaults().Receipts.Sample)
	require.Zero(t, router.Config{}.WithDefaults().Receipts.Sample)
}

func TestEndpointValidate(t *testing.T) {
	require.NoError(t, router.Endpoint{ID: "a"}.Validate())
	for want, e := range map[string]router.Endpoint{
		"router: endpoint field ID is empty":                                         {},
		`router: endpoint "a": field Role = "encode" is not both, prefill or decode`: {ID: "a", Role: "encode"},
		`router: endpoint "a": score: Profile.Base = -1 must be a number`:            {ID: "a", Profile: score.Profile{Base: -1}},
		`router: endpoint "a": score: Profile.KVToken = NaN must be a number`:        {ID: "a", Profile: score.Profile{KVToken: math.NaN()}},
		`router: endpoint "a": score: Profile.PrefillToken = +Inf must be`:           {ID: "a", Profile: score.Profile{PrefillToken: math.Inf(1)}},
		`router: endpoint "a": score: Profile.KVCapacity = -5 must be a number`:      {ID: "a", Profile: score.Profile{KVCapacity: -5}},
		`router: endpoint "a": score: Profile.BlockSize = -5 must be a number`:       {ID: "a", Profile: score.Profile{BlockSize: -5}},
	} {
		require.ErrorContains(t, e.Validate(), want)
		p, err := router.New(router.Config{})
		require.NoError(t, err)
		require.ErrorContains(t, p.Add(e), want)
		require.ErrorContains(t, p.SetEndpoints([]router.Endpoint{{ID: "fine"}, e}), want)
		require.Empty(t, p.Endpoints(), "nothing half done")
	}
	both := router.Endpoint{Role: "x", Profile: score.Profile{Base: -1, Sequence: -2}}.Validate()
	for _, part := range []string{"ID is empty", "Role", "Profile.Base", "Profile.Sequence"} {
		require.ErrorContains(t, both, part)
	}
}

func TestEndpointsAreCopies(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{})
	e := router.Endpoint{ID: "a", Models: []string{"m"}, Labels: map[string]string{"zone": "1"}}
	require.NoError(t, p.Add(e))
	e.Models[0], e.Labels["zone"] = "changed", "changed"
	got := p.Endpoints()[0]
	require.Equal(t, []string{"m"}, got.Models)
	require.Equal(t, "1", got.Labels["zone"])
	got.Models[0], got.Labels["zone"] = "changed", "changed"
	require.Equal(t, []string{"m"}, p.Endpoints()[0].Models)
	require.Equal(t, "1", p.Endpoints()[0].Labels["zone"])
}

func TestRequestValidate(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a")
	for want, r := range map[string]router.Request{
		"router: request field PromptTokens = -1 must be at least 0":                          {PromptTokens: -1},
		"router: request field MaxOutputTokens = -2 must be at least 0":                       {MaxOutputTokens: -2},
		"router: request field ExpectedOutputTokens = -3 must be at least 0":                  {ExpectedOutputTokens: -3},
		`router: request field Adapter = {ID "lora", Digest ""} needs both parts or none`:     {Adapter: router.Adapter{ID: "lora"}},
		`router: request field Adapter = {ID "", Digest "sha256:1"} needs both parts or none`: {Adapter: router.Adapter{Digest: "sha256:1"}},
		"router: request field PromptTokens = -9223372036854775808 must be at least 0":        {PromptTokens: math.MinInt64},
	} {
		require.EqualError(t, r.Validate(), want)
		_, err := p.Score(r)
		require.EqualError(t, err, want)
		l, err := p.Reserve(context.Background(), r)
		require.EqualError(t, err, want)
		require.Nil(t, l)
	}
	require.Zero(t, p.Stats().Rejected, "a request that is wrong is not a rejected one")
	huge := mustReserve(t, p, router.Request{PromptTokens: math.MaxInt64, MaxOutputTokens: math.MaxInt64})
	s, err := p.Ledger("a")
	require.NoError(t, err)
	require.Positive(t, s.Live.KV)
	huge.Done(router.Usage{})
}

func TestSizesOfARequest(t *testing.T) {
	for _, c := range []struct {
		req            router.Request
		prompt, output int64
	}{
		{router.Request{}, 0, 256},
		{router.Request{PromptTokens: 7, MaxOutputTokens: 9}, 7, 9},
		{router.Request{Prefix: prompt(t, 1, 2, 3), ExpectedOutputTokens: 5}, 48, 5},
		{router.Request{PromptTokens: 50, Prefix: prompt(t, 1, 2, 3), ExpectedOutputTokens: 50, MaxOutputTokens: 20}, 50, 20},
		{router.Request{PromptTokens: 20, Prefix: prompt(t, 1, 2, 3), ExpectedOutputTokens: 5, MaxOutputTokens: 20}, 20, 5},
	} {
		p := newPool(t, newClock(), router.Config{}, "a")
		mustReserve(t, p, c.req)
		s, err := p.Ledger("a")
		require.NoError(t, err)
		require.Equal(t, []int64{1, c.prompt, c.output, c.prompt + c.output}, []int64{s.Live.Requests, s.Live.Prefill, s.Live.Decode, s.Live.KV})
	}
}

func TestRejectError(t *testing.T) {
	for code, sentinel := range map[string]error{
		"no-endpoints": router.ErrNoEndpoints, "too-long": router.ErrTooLong, "saturated": router.ErrSaturated,
		"queue-full": router.ErrQueueFull, "queue-timeout": router.ErrQueueTimeout, "deadline": router.ErrDeadline,
		"telemetry-incomplete": router.ErrTelemetryIncomplete,
	} {
		err := fmt.Errorf("host: %w", &router.RejectError{Reason: sentinel})
		require.ErrorIs(t, err, sentinel)
		for _, other := range []error{router.ErrNoEndpoints, router.ErrSaturated, router.ErrDeadline} {
			require.Equal(t, other == sentinel, errors.Is(err, other))
		}
		var reject *router.RejectError
		require.ErrorAs(t, err, &reject)
		require.Equal(t, code, reject.Code())
		require.Equal(t, sentinel.Error(), reject.Error())
		require.Contains(t, reject.Error(), "router: ")
	}
	require.Equal(t, "unknown", (&router.RejectError{Reason: errors.New("x")}).Code())
	require.ElementsMatch(t, []string{
		"no-endpoints", "too-long", "saturated", "queue-full", "queue-timeout", "deadline", "telemetry-incomplete",
		"unknown",
	}, router.RejectCodes())
}

func TestRetryAfter(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Circuit: router.Circuit{Failures: 1, OpenFor: 5 * time.Second}}, "a", "b")
	idle(t, p, c, "a", "b")
	fail := func(id string) {
		l := mustReserve(t, p, router.Request{Exclude: []string{map[string]string{"a": "b", "b": "a"}[id]}, ExcludeHard: true})
		require.Equal(t, id, l.Endpoint().ID)
		l.Fail(nil)
	}
	fail("a")
	c.advance(1500 * time.Millisecond)
	fail("b")
	for range 60 {
		c.advance(50 * time.Millisecond)
		r := rejected(t, p, router.Request{}, router.ErrNoEndpoints)
		require.Zero(t, r.RetryAfter%time.Second)
		require.GreaterOrEqual(t, r.RetryAfter, time.Second)
		require.LessOrEqual(t, r.RetryAfter, 4*time.Second)
		if again := c.now().Add(r.RetryAfter); again.Before(epochStart.Add(6 * time.Second)) { // a opened at 1 s
			t.Fatalf("told to come back at %v, when a is still open", again)
		}
	}
	require.Zero(t, rejected(t, newPool(t, c, router.Config{}), router.Request{}, router.ErrNoEndpoints).RetryAfter, "absent when unknown")
}

func TestRetryAfterIsAtMostThirtySeconds(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Circuit: router.Circuit{Failures: 1, OpenFor: time.Hour, MaxOpenFor: time.Hour}}, "a")
	mustReserve(t, p, router.Request{}).Fail(nil)
	require.Equal(t, 30*time.Second, rejected(t, p, router.Request{}, router.ErrNoEndpoints).RetryAfter)
}

func TestTextRoundTrips(t *testing.T) {
	names := map[string]bool{}
	for r := router.NoReason; r.String() != "unknown"; r++ {
		text, err := r.MarshalText()
		require.NoError(t, err)
		require.False(t, names[string(text)], "%q names two reasons", text)
		names[string(text)] = true
		back := router.Reason(255)
		require.NoError(t, back.UnmarshalText(text))
		require.Equal(t, r, back)
	}
	require.Len(t, names, 29)
	for class := router.ClassStandard; class <= router.ClassSheddable; class++ {
		text, err := class.MarshalText()
		require.NoError(t, err)
		var back router.Class
		require.NoError(t, back.UnmarshalText(text))
		require.Equal(t, class, back)
	}
	for cause := router.Completed; cause <= router.Cancelled; cause++ {
		text, err := cause.MarshalText()
		require.NoError(t, err)
		var back router.Cause
		require.NoError(t, back.UnmarshalText(text))
		require.Equal(t, cause, back)
	}
	r, class, cause := router.Draining, router.ClassBatch, router.Failed
	require.EqualError(t, r.UnmarshalText([]byte("tired")), `router: unknown reason "tired"`)
	require.EqualError(t, class.UnmarshalText([]byte("first")), `router: unknown class "first"`)
	require.EqualError(t, cause.UnmarshalText([]byte("lost")), `router: unknown cause "lost"`)
	require.Equal(t, router.Draining, r, "unchanged on error")
	require.Equal(t, router.ClassBatch, class)
	require.Equal(t, router.Failed, cause)
	require.Equal(t, "unknown", router.Class(99).String())
	require.Equal(t, "unknown", router.Cause(99).String())
}

func TestUnknownEndpoint(t *testing.T) {
	p := newPool(t, newClock(), router.Config{}, "a")
	for _, call := range []func(id string) error{p.Remove, p.Drain, p.Ready, p.Sleep, p.ClearPrefixes} {
		require.EqualError(t, call("b"), `router: endpoint "b" is not in the pool`)
	}
}
