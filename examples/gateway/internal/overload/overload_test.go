package overload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/isobar-go/isobar/examples/gateway/internal/node"
	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/reserve"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSchedule: it is always the same, and asks for ten times what the engines can do, in the parts of each kind.
func TestSchedule(t *testing.T) {
	profile, ok := sim.ProfileByName(profileName)
	require.True(t, ok)
	most := capacity(profile)
	const length = 5 * time.Minute
	plan := schedule(length, most)
	require.Equal(t, plan, schedule(length, most))
	var work [kinds]float64
	var greedyOnes, heaps int
	last := time.Duration(0)
	for _, a := range plan {
		require.True(t, a.at >= last && a.at < length)
		last = a.at
		work[a.kind] += float64(kindOf(a.kind).output)
		if a.kind >= kindBatch {
			heaps++
			if a.tenant == 0 {
				greedyOnes++
			}
		}
	}
	all := 0.0
	for k := range kinds {
		require.InEpsilon(t, kindOf(k).share*most*length.Seconds(), work[k], 0.1, "kind %d", k)
		all += work[k]
	}
	require.InEpsilon(t, offered*most*length.Seconds(), all, 0.03)
	require.InEpsilon(t, greedy, float64(greedyOnes)/float64(heaps), 0.05)
}

// TestCapacity: no engine of the profile is faster than it is said to be.
func TestCapacity(t *testing.T) {
	profile, _ := sim.ProfileByName(profileName)
	e, err := sim.New(profile, sim.Options{})
	require.NoError(t, err)
	for i := range uint64(perEngine) {
		require.NoError(t, e.Submit(sim.Request{ID: i + 1, PromptTokens: 80, OutputTokens: 10_000}))
	}
	var took, generated float64
	for range 200 {
		ms, ok := e.Begin()
		require.True(t, ok)
		took += ms
		e.End(nil)
	}
	generated = float64(e.State().GeneratedTokens)
	require.Less(t, generated/perEngine*aggregate/took*1000, capacity(profile))
	require.Greater(t, generated/perEngine*aggregate/took*1000, 0.9*capacity(profile))
}

func TestTokens(t *testing.T) {
	const two = "data: {\"a\":1}\n\ndata: {\"a\":2}\n\n"
	for _, c := range []struct {
		body   string
		stream bool
		want   int
		err    string
	}{
		{two + "data: [DONE]\n\n", true, 2, ""},
		{two, true, 2, "no end"},
		{two + `data: {"error":{"message":"failed"}}` + "\n\n", true, 2, "failed"},
		{"", true, 0, "no end"},
		{`{"usage":{"completion_tokens":7}}`, false, 7, ""},
		{`{"usage":{"completion`, false, 0, "unexpected"},
	} {
		n, err := tokens(strings.NewReader(c.body), c.stream)
		require.Equal(t, c.want, n)
		if c.err == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.err)
		}
	}
}

func TestRefusal(t *testing.T) {
	const body = `{"error":{"message":"m","type":"t","code":"c"}}`
	for _, c := range []struct {
		status      int
		after, body string
		want        result
	}{
		{429, "", body, refused}, {429, "1", body, refused}, {429, "30", body, refused}, {504, "", body, late},
		{429, "0", body, lost}, {429, "31", body, lost}, {429, "1.5", body, lost}, {429, "", `{"error":{"message":"m"}}`, lost}, {429, "", "busy", lost},
	} {
		resp := &http.Response{StatusCode: c.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(c.body))}
		if c.after != "" {
			resp.Header.Set("Retry-After", c.after)
		}
		got, err := refusal(resp)
		require.Equal(t, c.want, got, "%+v", c)
		require.Equal(t, c.want == lost, err != nil)
	}
}

func TestJain(t *testing.T) {
	require.Zero(t, jain(nil))
	require.Zero(t, jain([]int64{0, 0}))
	require.InDelta(t, 1, jain([]int64{5, 5, 5}), 1e-9)
	require.InDelta(t, 1.0/3, jain([]int64{0, 7, 0}), 1e-9)
	require.InDelta(t, 0.9, jain([]int64{1, 2}), 1e-9)
}

// TestTally: only what happens between begin and end counts, and of refusals only those without a wait are timed.
func TestTally(t *testing.T) {
	plan := []arrival{{kind: kindBatch}, {kind: kindBatch}}
	y := newTally(plan)
	granted := &router.Receipt{Class: router.ClassBatch, Tenant: 7, PromptTokens: 10, OutputTokens: 5, Decision: router.Decision{Waited: time.Second}}
	rejected := &router.Receipt{Class: router.ClassSheddable, Rejected: "saturated"}
	r := &timed{Router: rejecting{}, tally: y}
	all := func() {
		y.Decided(granted)
		y.Decided(rejected)
		y.Ended(granted)
		_, _ = r.Reserve(t.Context(), router.Request{})
		_, _ = r.Reserve(t.Context(), router.Request{ID: "waited"})
	}
	all()
	require.Equal(t, sums{}, y.counts())
	y.begin()
	all()
	y.end()
	all()
	got := y.counts()
	require.Equal(t, 1, got.admitted[kindBatch])
	require.Equal(t, 1, got.refused[kindSheddable])
	require.Equal(t, map[uint64]int64{7: 15}, y.tenants)
	require.Equal(t, []time.Duration{time.Second}, y.waits[kindBatch])
	require.Len(t, y.refusals, 1)
}

type rejecting struct{ router.Router }

func (rejecting) Reserve(_ context.Context, req router.Request) (*router.Lease, error) {
	r := &router.RejectError{Reason: router.ErrSaturated}
	if req.ID == "waited" {
		r.Decision.Waited = time.Second
	}
	return nil, r
}

// good is an outcome of which all claims hold: a request of each kind served, and twenty of batch refused.
func good() *outcome {
	var plan []arrival
	add := func(k, tenant int, r result) { plan = append(plan, arrival{kind: k, tenant: tenant, result: r}) }
	for i := range tenants {
		add(kindInteractive, i, served)
		add(kindBatch, i, served)
	}
	for range 20 {
		add(kindBatch, 0, refused)
	}
	add(kindStandard, 1, late)
	o := &outcome{plan: plan, tally: newTally(plan), scale: 2, capacity: 100, sent: time.Second, peak: perEngine, heap: [2]int64{5 << 20, 6 << 20}}
	o.before.Queue, o.after.Queue = &router.QueueStats{}, &router.QueueStats{Queued: 3, Granted: 3}
	o.after.Endpoints = []router.EndpointStats{{ID: "a"}}
	y := o.tally
	for i := range plan {
		y.offered[plan[i].kind]++
	}
	for i := range tenants {
		y.tenants[uint64(i)] = 1000
		y.waits[kindInteractive] = append(y.waits[kindInteractive], 0)
		y.waits[kindBatch] = append(y.waits[kindBatch], time.Second)
	}
	y.admitted[kindInteractive], y.admitted[kindBatch] = tenants, tenants
	y.refused[kindBatch], y.refused[kindStandard] = 20, 1
	y.reasons[kindBatch][3] = 20
	y.refusals = append(y.refusals, time.Microsecond, 2*time.Microsecond)
	return o
}

// TestClaims: each of them can fail, and is said to.
func TestClaims(t *testing.T) {
	var b strings.Builder
	require.NoError(t, good().report(&b))
	require.NotContains(t, b.String(), "NOT")
	require.Contains(t, b.String(), "queue-full 20")
	n := len(good().claims())
	failed := map[string]bool{}
	for _, spoil := range []func(o *outcome){
		func(o *outcome) { o.sent = time.Minute },
		func(o *outcome) { o.plan[0].result, o.plan[0].fault = broken, errors.New("gone") },
		func(o *outcome) { o.tally.refused[kindBatch]++ },
		func(o *outcome) { o.peak++ },
		func(o *outcome) { o.tally.refusals = append(o.tally.refusals, time.Second, time.Second) },
		func(o *outcome) { o.tally.waits[kindInteractive][0] = time.Minute },
		func(o *outcome) { o.tally.tenants[0] = 100_000 },
		func(o *outcome) { o.heap[1] += maxGrowth },
		func(o *outcome) { o.after.Queue.Tokens = 1 },
		func(o *outcome) { o.goroutines = 1 },
	} {
		o := good()
		spoil(o)
		for _, c := range o.claims() {
			if !c.ok {
				failed[c.says] = true
			}
		}
		b.Reset()
		err := o.report(&b)
		require.ErrorContains(t, err, "overload: ")
		require.Contains(t, b.String(), "DOES NOT HOLD")
		require.NotContains(t, err.Error(), "behind the schedule")
	}
	require.Len(t, failed, n, "each claim fails once")
	for _, spoil := range []func(o *outcome){
		func(o *outcome) { o.after.OpenLeases = 1 },
		func(o *outcome) { o.after.Endpoints[0].Own.Live = reserve.Load{KV: 1} },
		func(o *outcome) { o.after.Queue.Waiting = 1 },
		func(o *outcome) { o.refill = errors.New("the empty pool refuses") },
		func(o *outcome) { o.unsettled = errors.New("open") },
	} {
		o := good()
		spoil(o)
		require.ErrorContains(t, o.report(io.Discard), "all sums are zero")
	}
	o := good()
	o.late, o.peak = time.Second, perEngine+1
	require.ErrorContains(t, o.report(io.Discard), "behind the schedule")
	require.Error(t, (&outcome{tally: newTally(nil), before: o.before, after: o.after}).report(io.Discard), "nothing was shown")
}

func TestLine(t *testing.T) {
	var b strings.Builder
	last := sums{offered: [kinds]int{1, 1, 1, 1}}
	now := sums{offered: [kinds]int{11, 12, 13, 14}, admitted: [kinds]int{1, 2, 3, 4}, refused: [kinds]int{5, 6, 7, 8}}
	line(&b, 7, &last, &now, map[string]int{"interactive": 1, "batch": 3}, 4.25)
	require.Equal(t, "   7 |   10   11   12   13  |    1    2    3    4  |    1    0    3  |    5    6    7    8  |    4.2\n", b.String())
	for _, text := range strings.Split(strings.TrimSuffix(heading, "\n"), "\n") {
		require.Equal(t, columns(b.String()), columns(text), text)
	}
}

// columns are where the bars of a line are.
func columns(s string) (out []int) {
	for i, c := range s {
		if c == '|' {
			out = append(out, i)
		}
	}
	return out
}

// TestRefill: a pool with something left in a sum does not take its cap again.
func TestRefill(t *testing.T) {
	for left, want := range map[int]string{0: "", 1: fmt.Sprintf("has no room for request %d of %d", aggregate, aggregate)} {
		s := refilled(t, limits(1), left)
		if err := s.fill(); want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
	wide := limits(1)
	wide.Caps.Aggregate++
	require.ErrorContains(t, refilled(t, wide, 0).fill(), "takes more than")
}

// refilled is a stand with a pool of idle engines, where that many leases were forgotten.
func refilled(t *testing.T, cfg router.Config, left int) *stand {
	pool, err := router.New(cfg)
	require.NoError(t, err)
	for _, id := range []string{"a", "b", "c"} {
		require.NoError(t, pool.Add(router.Endpoint{ID: id, Models: []string{model}}))
		require.NoError(t, pool.Observe(id, idle()))
	}
	for range left {
		_, err := pool.Reserve(t.Context(), router.Request{Model: model, Class: router.ClassBatch})
		require.NoError(t, err)
	}
	return &stand{node: &node.Node{Pool: pool}}
}

func idle() telemetry.Snapshot {
	return telemetry.Snapshot{Running: telemetry.V(0), Waiting: telemetry.V(0), KVShare: telemetry.V(0)}
}
