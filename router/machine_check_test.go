package router_test

import (
	"encoding/json"
	"math"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/router"
)

func (m *machine) checkScore(t *rapid.T, d router.Decision, views []twinView, degraded bool) {
	require.Len(t, d.Candidates, len(views))
	require.Equal(t, degraded, d.Degraded)
	for _, v := range views {
		i := slices.IndexFunc(d.Candidates, func(c router.Candidate) bool { return c.ID == v.id })
		require.GreaterOrEqual(t, i, 0)
		c := d.Candidates[i]
		require.Equal(t, v.excluded, c.Excluded, "exclusion of %s: want %s, got %s", v.id, v.excluded, c.Excluded)
		require.Equal(t, v.sums.Live, c.Own, v.id)
		require.Equal(t, v.sums.Unobserved.Requests, c.OwnUnobserved, v.id)
		require.Equal(t, v.freshness, c.Freshness, v.id)
		require.Equal(t, v.observed, c.Observed, v.id)
		require.Equal(t, v.half && (v.barrier == router.NoReason || v.barrier == router.Excluded), c.HalfOpen, v.id)
		require.False(t, c.ProbeDue, v.id)
		require.Equal(t, v.cached, c.Cached, v.id)
		for _, f := range []struct {
			name string
			want twinFigure
			got  router.Figure
		}{{"requests", v.requests, c.Requests}, {"waiting", v.waiting, c.Waiting}, {"pending", v.pending, c.Pending}, {"kv", v.kv, c.KV}} {
			require.Equal(t, f.want.class, f.got.Class, "%s of %s", f.name, v.id)
			// What has ended is remembered as long as a reading counts; where the oldest figure is older than that, too much is
			// left of the others, never too little.
			old := m.clock.now().Sub(m.twin.members[v.id].account.observed) >= m.twin.cfg.Freshness.StaleAfter
			if f.want.usable() && !sameFloat(f.want.value, f.got.Value) && !(old && f.got.Value > f.want.value) {
				t.Fatalf("%s of %s: want %v, got %v", f.name, v.id, f.want.value, f.got.Value)
			}
		}
	}
}

func (m *machine) checkChoice(t *rapid.T, r *twinRequest, a, b *router.Lease, foreseen router.Decision, views []twinView) {
	d := a.Decision()
	require.Equal(t, d.Endpoint, b.Endpoint().ID, "the order of the list, a shadow, an observer or a score has changed the choice")
	require.Equal(t, foreseen.Endpoint, d.Endpoint, "Score foresaw another choice")
	require.Equal(t, foreseen.Terms, d.Terms)
	require.Equal(t, foreseen.Number, d.Number)
	require.Equal(t, foreseen.RunnerUp, d.RunnerUp)
	require.Equal(t, foreseen.Candidates[0].ID, d.Endpoint, "best first")
	next, name := math.Inf(1), ""
	for _, c := range foreseen.Candidates[1:] {
		if c.Excluded == router.NoReason && c.Total < next {
			next, name = c.Total, c.ID
		}
	}
	if name != "" {
		require.Equal(t, next, d.RunnerUpTotal)
	}
	require.Equal(t, name == "", d.RunnerUp == "")
	require.False(t, d.PolicyFault)
	i := slices.IndexFunc(views, func(v twinView) bool { return v.id == d.Endpoint })
	require.GreaterOrEqual(t, i, 0, "%s is not in the pool", d.Endpoint)
	require.True(t, views[i].choosable, "%s: %+v", d.Endpoint, views[i])
	require.Equal(t, views[i].half, d.Probe)
	require.Equal(t, m.twin.members[d.Endpoint].conf, a.Endpoint())
	require.Equal(t, m.cfg.Policy.Name(), d.Policy)
	// Before and after are what the ledger held.
	require.Equal(t, views[i].sums.Live, m.last.Before)
	require.Equal(t, int64(1), m.last.After.Requests-m.last.Before.Requests)
	require.Equal(t, m.twin.output(r), m.last.After.Decode-m.last.Before.Decode)
	require.Equal(t, r.prompt()+m.twin.output(r), m.last.After.KV-m.last.Before.KV)
}

func (m *machine) checkCaps(t *rapid.T, r *twinRequest, l *twinLease) {
	caps := m.cfg.Caps
	if caps.Endpoint > 0 {
		require.LessOrEqual(t, m.twin.sums(l.account).Live.Requests, int64(caps.Endpoint))
	}
	if caps.Tenant > 0 && r.Tenant != "" {
		require.LessOrEqual(t, m.twin.openOf(r.Tenant), caps.Tenant)
	}
	if caps.Aggregate > 0 {
		n := int64(0)
		for _, e := range m.twin.members {
			n += m.twin.sums(e.account).Live.Requests
		}
		require.LessOrEqual(t, n, int64(caps.Aggregate))
	}
}

// checkReplay decides the newest receipt again after a way through JSON.
func (m *machine) checkReplay(t *rapid.T) {
	text, err := json.Marshal(m.last)
	require.NoError(t, err)
	require.False(t, strings.Contains(string(text), "alpha") || strings.Contains(string(text), "beta"), "a tenant's name in %s", text)
	var r router.Receipt
	require.NoError(t, json.Unmarshal(text, &r))
	d, err := router.Replay(&r, m.cfg)
	if r.Rejected != "" {
		var reject *router.RejectError
		require.ErrorAs(t, err, &reject)
		require.Equal(t, r.Rejected, reject.Code())
	} else {
		require.NoError(t, err)
	}
	sameDecision(t, m.last.Decision, d)
}

// sameDecision compares everything that a decision says but the shadow's budget.
func sameDecision(t require.TestingT, want, got router.Decision) {
	require.Equal(t, want.Endpoint, got.Endpoint)
	require.Equal(t, want.Terms, got.Terms)
	require.Equal(t, want.Degraded, got.Degraded)
	require.Equal(t, want.AffinityLifted, got.AffinityLifted)
	require.Equal(t, want.RunnerUp, got.RunnerUp)
	require.Equal(t, want.RunnerUpTotal, got.RunnerUpTotal)
	require.Equal(t, want.Probe, got.Probe)
	require.Equal(t, want.Shadow, got.Shadow)
	require.Len(t, got.Candidates, len(want.Candidates))
	for i, c := range want.Candidates {
		o := got.Candidates[i]
		require.Equal(t, c.ID, o.ID)
		require.Equal(t, c.Excluded, o.Excluded, "%s: want %s, got %s", c.ID, c.Excluded, o.Excluded)
		require.Equal(t, c.Withheld, o.Withheld, c.ID)
		require.Equal(t, c.Terms, o.Terms, c.ID)
		require.Equal(t, c.Native, o.Native, c.ID)
		require.Equal(t, c.Load, o.Load, c.ID)
		require.Equal(t, c.Total, o.Total, c.ID)
	}
}
