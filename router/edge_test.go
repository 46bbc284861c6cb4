package router_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

func TestWeightsNone(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{
		Weights: score.Weights{Interference: router.None, Displacement: router.None, KVPressure: router.None, Uncertainty: router.None},
	}, "a", "b")
	busy(t, p, c, "a", 10, 0)
	for _, x := range scored(t, p, router.Request{PromptTokens: 1000}).Candidates {
		require.Zero(t, x.Terms.Uncertainty+x.Terms.Interference+x.Terms.Displacement+x.Terms.KVPressure, x.ID)
	}
}

func TestFreshnessNone(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Freshness: router.Freshness{FreshFor: router.None}}, "a")
	busy(t, p, c, "a", 10, 0)
	require.Equal(t, telemetry.Fresh, scored(t, p, router.Request{}).Freshness, "of this very moment")
	c.advance(time.Second)
	d := scored(t, p, router.Request{})
	require.Equal(t, telemetry.Aging, d.Freshness)
	require.InDelta(t, 200, d.Terms.Uncertainty, 1e-3, "200 ms a second beyond FreshFor")
}

// An engine that restarts in place has none of the leases from before, whether or not the snapshot says when it was taken.
func TestRestartWithoutObservedAt(t *testing.T) {
	for _, dated := range []bool{true, false} {
		c := newClock()
		p := newPool(t, c, router.Config{}, "a")
		snapshot := func(epoch string, running float64) {
			c.advance(time.Second)
			s := telemetry.Snapshot{Running: telemetry.V(running), Waiting: telemetry.V(0), Epoch: epoch}
			if dated {
				s.ObservedAt = c.now()
			}
			require.NoError(t, p.Observe("a", s))
		}
		snapshot("1", 0)
		c.advance(time.Second)
		l := mustReserve(t, p, router.Request{})
		snapshot("2", 3)
		l.Fail(nil)
		require.Equal(t, 3.0, candidate(t, scored(t, p, router.Request{}), "a").Requests.Value, "dated: %v", dated)
	}
}

// A newer count retires an older token figure, and with it the time at which that was observed.
func TestRetiredTokensDoNotHoldBackTheLedger(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a")
	require.NoError(t, p.Observe("a", telemetry.Snapshot{
		ObservedAt: c.now(), Running: telemetry.V(0), Waiting: telemetry.V(0), WaitingTokens: telemetry.V(0),
	}))
	c.advance(time.Second)
	for range 5 {
		mustReserve(t, p, router.Request{})
	}
	c.advance(time.Second)
	busy(t, p, c, "a", 5, 0) // contains all five
	require.Equal(t, 5.0, candidate(t, scored(t, p, router.Request{}), "a").Requests.Value)
}

func TestNewerCountRetiresTokens(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a")
	report(t, p, c, "a", 3, 500, 0)
	require.Equal(t, 500.0, candidate(t, scored(t, p, router.Request{}), "a").Pending.Value)
	c.advance(time.Second)
	busy(t, p, c, "a", 1, 2)
	require.Equal(t, 2*1024.0, candidate(t, scored(t, p, router.Request{}), "a").Pending.Value, "two prompts of the mean length")
	c.advance(time.Second)
	report(t, p, c, "a", 2, 700, 0)
	require.Equal(t, 700.0, candidate(t, scored(t, p, router.Request{}), "a").Pending.Value)
}

func TestReadingAtThePoolsTimeZero(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a")
	require.NoError(t, p.Observe("a", telemetry.Snapshot{ObservedAt: c.now(), Running: telemetry.V(1)}))
	c.advance(20 * time.Second)
	require.NoError(t, p.Observe("a", telemetry.Snapshot{ObservedAt: c.now(), KVShare: telemetry.V(0.5)}))
	a := candidate(t, scored(t, p, router.Request{}), "a")
	require.Equal(t, telemetry.Stale, a.Requests.Class)
	require.Equal(t, telemetry.Fresh, a.KV.Class)
}

func TestRequestRoleAndClass(t *testing.T) {
	role, class := router.Request{Role: "encode"}, router.Request{Class: 99}
	require.ErrorContains(t, role.Validate(), `router: request field Role = "encode"`)
	require.ErrorContains(t, class.Validate(), "router: request field Class = 99")
}

func TestUnknownCauseCanBeReadBack(t *testing.T) {
	k := &keeper{}
	p := newPool(t, newClock(), router.Config{Receipts: router.Receipts{Observer: k}}, "a")
	l := mustReserve(t, p, router.Request{})
	p.Release(l, router.Outcome{Cause: 9})
	_ = roundTrip(t, k.ended[0])
}

func roundTrip(t *testing.T, r *router.Receipt) *router.Receipt {
	t.Helper()
	text, err := json.Marshal(r)
	require.NoError(t, err)
	var back router.Receipt
	require.NoError(t, json.Unmarshal(text, &back))
	return &back
}

// Choices among near ties show the tie window that a replay works with.
func TestReplayWithTheEffectiveConfig(t *testing.T) {
	c, k := newClock(), &keeper{}
	p := newPool(t, c, router.Config{TieWindow: router.None, Receipts: router.Receipts{Observer: k}}, "a", "b")
	busy(t, p, c, "a", 0, 0)
	busy(t, p, c, "b", 1, 0)
	for range 20 {
		mustReserve(t, p, router.Request{PromptTokens: 1, ExpectedOutputTokens: 1}).Cancel()
	}
	for _, r := range k.decided {
		require.Less(t, r.RunnerUpTotal-r.Terms.Total(), 1.0, "within the default window")
		d, err := router.Replay(roundTrip(t, r), p.Config())
		require.NoError(t, err)
		require.Equal(t, r.Endpoint, d.Endpoint)
		require.Equal(t, r.TieWindow, d.TieWindow)
	}
}

func TestReplayOfASuspectHalfOpenEndpoint(t *testing.T) {
	k := &keeper{}
	cfg := router.Config{Circuit: router.Circuit{Failures: 1}, Receipts: router.Receipts{Observer: k}}
	p, c := suspects(t, cfg, 3, 1)
	l := mustReserve(t, p, router.Request{Exclude: []string{"a"}, ExcludeHard: true})
	l.Fail(nil)
	c.advance(6 * time.Second)
	busy(t, p, c, "a", 1, 0)
	busy(t, p, c, "b", 3, 1)
	mustReserve(t, p, router.Request{})
	r := k.decided[len(k.decided)-1]
	require.True(t, candidate(t, r.Decision, "b").HalfOpen)
	require.NotEmpty(t, candidate(t, r.Decision, "b").Suspect)
	d, err := router.Replay(roundTrip(t, r), cfg)
	require.NoError(t, err)
	sameDecision(t, r.Decision, d)
}

func TestReplayOfRejections(t *testing.T) {
	for name, x := range map[string]struct {
		ids  []string
		req  router.Request
		want error
	}{
		"deadline":     {[]string{"a"}, router.Request{Deadline: epochStart}, router.ErrDeadline},
		"no endpoints": {nil, router.Request{}, router.ErrNoEndpoints},
		"excluded":     {[]string{"a"}, router.Request{Exclude: []string{"a"}, ExcludeHard: true}, router.ErrNoEndpoints},
		"too long":     {[]string{"small"}, router.Request{PromptTokens: 1 << 40}, router.ErrTooLong},
	} {
		t.Run(name, func(t *testing.T) {
			k := &keeper{}
			cfg := router.Config{Receipts: router.Receipts{Observer: k}}
			p := newPool(t, newClock(), cfg, x.ids...)
			if name == "too long" {
				require.NoError(t, p.Add(router.Endpoint{ID: "small", Profile: flat}))
			}
			rejected(t, p, x.req, x.want)
			_, err := router.Replay(roundTrip(t, k.decided[0]), cfg)
			require.ErrorIs(t, err, x.want)
		})
	}
}

func TestReplayNeedsCandidates(t *testing.T) {
	_, err := router.Replay(&router.Receipt{Decision: router.Decision{Endpoint: "a"}}, router.Config{})
	require.ErrorContains(t, err, "router: the receipt holds no candidates")
	_, err = router.Replay(&router.Receipt{Decision: router.Decision{Candidates: []router.Candidate{{ID: "a"}}}}, router.Config{})
	require.EqualError(t, err, "router: candidate a of the receipt has no profile")
}

func TestScoreAndDeadline(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a")
	req := router.Request{Deadline: c.now()}
	rejected(t, p, req, router.ErrDeadline)
	d, err := p.Score(req)
	require.ErrorIs(t, err, router.ErrDeadline)
	require.Len(t, d.Candidates, 1, "with the ranking all the same")
	require.NoError(t, p.Drain("a"))
	rejected(t, p, req, router.ErrDeadline)
	_, err = p.Score(req)
	require.ErrorIs(t, err, router.ErrDeadline, "first the deadline, then the rest")
}

func TestPrefixMaxBytes(t *testing.T) {
	for _, bytes := range []int64{1, 1 << 10} {
		cfg := router.Config{Prefix: router.Prefix{MaxBytes: bytes}}
		require.ErrorContains(t, cfg.Validate(), "router: Config.Prefix")
		_, err := router.New(cfg)
		require.EqualError(t, err, cfg.Validate().Error())
	}
}

func TestFrozenAfterNone(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{FrozenAfter: router.None}, "a")
	for range 50 {
		c.advance(time.Second)
		busy(t, p, c, "a", 3, 1)
	}
	require.Empty(t, candidate(t, scored(t, p, router.Request{}), "a").Suspect, "none is off")
}

// A lease that outlived its endpoint's removal ends where it was taken, and touches nothing of the next incarnation.
func TestLeasesOutliveTheirEndpoint(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Circuit: router.Circuit{Failures: 1}}, "a")
	idle(t, p, c, "a")
	old := mustReserve(t, p, router.Request{PromptTokens: 10})
	require.NoError(t, p.Add(router.Endpoint{ID: "a", Incarnation: "2"}))
	young := mustReserve(t, p, router.Request{PromptTokens: 20})
	require.Equal(t, "2", young.Endpoint().Incarnation)
	require.Empty(t, old.Endpoint().Incarnation)
	require.EqualValues(t, 2, p.Stats().OpenLeases)
	old.FirstToken()
	old.Fail(errors.New("gone"))
	sums, err := p.Ledger("a")
	require.NoError(t, err)
	require.EqualValues(t, 1, sums.Live.Requests)
	require.EqualValues(t, 20, sums.Live.Prefill)
	s := p.Stats()
	require.Equal(t, "closed", s.Endpoints[0].Circuit)
	require.Zero(t, s.Endpoints[0].Failed)
	require.EqualValues(t, 1, s.Failed)

	t.Run("the same incarnation added again without live leases starts afresh", func(t *testing.T) {
		q := newPool(t, c, router.Config{}, "a")
		idle(t, q, c, "a")
		c.advance(time.Second)
		l := mustReserve(t, q, router.Request{Prefix: prompt(t, 1, 2)})
		c.advance(time.Second)
		idle(t, q, c, "a")
		l.Done(router.Usage{})
		sums, err := q.Ledger("a")
		require.NoError(t, err)
		require.NotZero(t, sums.Departed)
		require.NoError(t, q.Remove("a"))
		require.NoError(t, q.Add(router.Endpoint{ID: "a"}))
		sums, err = q.Ledger("a")
		require.NoError(t, err)
		require.Zero(t, sums)
		cached, err := q.Cached("a", prompt(t, 1, 2))
		require.NoError(t, err)
		require.Zero(t, cached)
		require.Equal(t, 1, q.Stats().Prefix.Holders)
	})
	t.Run("the same incarnation added again finds its live leases", func(t *testing.T) {
		require.NoError(t, p.Remove("a"))
		require.NoError(t, p.Add(router.Endpoint{ID: "a", Incarnation: "2"}))
		sums, err := p.Ledger("a")
		require.NoError(t, err)
		require.EqualValues(t, 1, sums.Live.Requests)
		young.Done(router.Usage{})
		sums, err = p.Ledger("a")
		require.NoError(t, err)
		require.Zero(t, sums.Live)
	})
}

func TestOldestLease(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a", "b")
	require.Zero(t, p.Stats().OldestLease)
	first := mustReserve(t, p, router.Request{Exclude: []string{"a"}})
	c.advance(time.Hour)
	mustReserve(t, p, router.Request{Exclude: []string{"b"}})
	c.advance(time.Minute)
	require.NoError(t, p.Remove("b"))
	s := p.Stats()
	require.Equal(t, time.Hour+time.Minute, s.OldestLease, "never reaped, and shown though its endpoint is gone")
	require.Equal(t, "b", s.OldestEndpoint)
	first.Cancel()
	s = p.Stats()
	require.Equal(t, time.Minute, s.OldestLease)
	require.Equal(t, "a", s.OldestEndpoint)
}

func TestRestartForgetsPrefixes(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a")
	for i, epoch := range []string{"1", "1", "2"} {
		c.advance(time.Second)
		require.NoError(t, p.Observe("a", telemetry.Snapshot{ObservedAt: c.now(), Running: telemetry.V(0), Epoch: epoch}))
		require.Equal(t, []int64{0, 32, 0}[i], cachedOn(t, p, "a", prompt(t, 1, 2)))
		mustReserve(t, p, router.Request{Prefix: prompt(t, 1, 2)}).Done(router.Usage{})
	}
	require.EqualValues(t, 1, p.Stats().EpochChanges)
}

// The first event of an engine's cache puts it into exact mode: what had been routed counts no more, and teaches nothing.
func TestExactCache(t *testing.T) {
	p := newPool(t, newClock(), router.Config{}, "a")
	routed, stored := prompt(t, 1, 2), prompt(t, 5, 6, 7)
	mustReserve(t, p, router.Request{Prefix: routed}).Done(router.Usage{})
	require.EqualValues(t, 32, cachedOn(t, p, "a", routed))
	require.NoError(t, p.ApplyKV("a", prefix.Event{Kind: prefix.Stored, Prefix: stored}))
	require.Zero(t, cachedOn(t, p, "a", routed))
	mustReserve(t, p, router.Request{Prefix: routed}).Done(router.Usage{})
	require.Zero(t, cachedOn(t, p, "a", routed))
	require.EqualValues(t, 48, cachedOn(t, p, "a", stored))
	require.True(t, p.Stats().Endpoints[0].ExactCache)
	require.EqualValues(t, 48, p.Stats().Endpoints[0].CachedTokens)
	require.NoError(t, p.ApplyKV("a", prefix.Event{Kind: prefix.Removed, Prefix: stored, From: 2}))
	require.EqualValues(t, 32, cachedOn(t, p, "a", stored))
	require.NoError(t, p.ApplyKV("a", prefix.Event{Kind: prefix.Cleared}))
	require.Zero(t, cachedOn(t, p, "a", stored))
	require.ErrorContains(t, p.ApplyKV("a", prefix.Event{Kind: 9}), "router: event field Kind = 9")
}

// Whatever arrives counts in the next decision, though no time has passed and nothing else has changed.
func TestEverythingCountsAtOnce(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{})
	require.NoError(t, p.Add(router.Endpoint{ID: "a", Profile: flat}))
	report(t, p, c, "a", 0, 0, 0.1)
	look := func() router.Candidate { return candidate(t, scored(t, p, router.Request{PromptTokens: 10}), "a") }
	share := func() float64 { return look().KV.Value / float64(flat.KVCapacity) }
	require.InDelta(t, 0.1, share(), 1e-6)
	c.advance(time.Millisecond / 2) // decisions may not tell the two times apart
	require.NoError(t, p.Observe("a", telemetry.Snapshot{ObservedAt: c.now(), KVShare: telemetry.V(0.7)}))
	require.InDelta(t, 0.7, share(), 1e-6)
	require.NoError(t, p.Drain("a"))
	_, err := p.Score(router.Request{})
	require.ErrorIs(t, err, router.ErrNoEndpoints)
	require.NoError(t, p.Ready("a"))
	l := mustReserve(t, p, router.Request{PromptTokens: 10})
	require.EqualValues(t, 1, look().Own.Requests)
	require.EqualValues(t, 10, look().Own.Prefill)
	l.FirstToken()
	require.Zero(t, look().Own.Prefill)
	l.Progress(6)
	require.EqualValues(t, 250, look().Own.Decode)
	l.Cancel()
	require.Zero(t, look().Own)
	require.NoError(t, p.Observe("a", telemetry.Snapshot{ObservedAt: c.now(), Health: telemetry.HealthError}))
	_, err = p.Score(router.Request{})
	require.ErrorIs(t, err, router.ErrNoEndpoints)
}

// A waiting request of unknown length counts as the mean of the pool's own traffic, as it is now.
func TestMeanPromptCountsAtOnce(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{})
	require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a", Profile: flat}, {ID: "b", Profile: flat}}))
	busy(t, p, c, "a", 0, 2)
	idle(t, p, c, "b")
	pending := func() float64 { return candidate(t, scored(t, p, router.Request{}), "a").Pending.Value }
	require.Equal(t, 2048.0, pending())
	require.Equal(t, "b", mustReserve(t, p, router.Request{PromptTokens: 1 << 19}).Endpoint().ID)
	require.Greater(t, pending(), 4096.0)
}

func TestCapacityCanBeChanged(t *testing.T) {
	p := newPool(t, newClock(), router.Config{}, "a")
	q := long(t, 1, 100)
	mustReserve(t, p, router.Request{Prefix: q}).Done(router.Usage{})
	for _, capacity := range []int64{800, 400} {
		require.NoError(t, p.Add(router.Endpoint{ID: "a", Profile: score.Profile{KVCapacity: capacity}}))
		cached := cachedOn(t, p, "a", q)
		require.LessOrEqual(t, cached, capacity, "what is left is a usable head")
		require.Positive(t, cached)
	}
}

// The pool's own part of a queue vetoes also when the report of the rest is stale.
func TestWaitingCapDuringAnOutage(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Caps: admission.Caps{Waiting: 3}}, "a")
	busy(t, p, c, "a", 0, 2)
	c.advance(11 * time.Second)
	for range 3 {
		mustReserve(t, p, router.Request{})
	}
	rejected(t, p, router.Request{}, router.ErrSaturated)
	require.Equal(t, router.CapWaiting, mustScoreFail(t, p).Candidates[0].Excluded)
}

func mustScoreFail(t *testing.T, p *router.Pool) router.Decision {
	t.Helper()
	d, err := p.Score(router.Request{})
	require.Error(t, err)
	return d
}

// After the clock went back nothing is fresh.
func TestReadingsFromTheFuture(t *testing.T) {
	for back, class := range map[time.Duration]telemetry.Class{
		0: telemetry.Fresh, 2 * time.Millisecond: telemetry.Stale, time.Hour: telemetry.Stale,
	} {
		c := newClock()
		p := newPool(t, c, router.Config{}, "a")
		c.advance(2 * time.Hour)
		busy(t, p, c, "a", 1, 0)
		c.advance(-back)
		require.Equal(t, class, scored(t, p, router.Request{}).Freshness, "%v back", back)
		require.NotNil(t, mustReserve(t, p, router.Request{}))
		require.GreaterOrEqual(t, candidate(t, scored(t, p, router.Request{}), "a").Requests.Age, time.Duration(0))
	}
}

// A policy that takes long does not make a report stale that arrives meanwhile.
func TestAReportThatArrivesDuringADecisionIsNotFromTheFuture(t *testing.T) {
	c := newClock()
	var p *router.Pool
	first := true
	p = newPool(t, c, router.Config{FailClosed: true, Policy: hosted(func(v *router.View) int {
		if first {
			first = false
			c.advance(20 * time.Millisecond)
			busy(t, p, c, "a", 2, 0)
			mustReserve(t, p, router.Request{}).Cancel() // overtakes, so that the view is read again
		}
		return 0
	})}, "a")
	c.advance(time.Second)
	busy(t, p, c, "a", 1, 0)
	require.Equal(t, telemetry.Fresh, mustReserve(t, p, router.Request{}).Decision().Freshness)
}
