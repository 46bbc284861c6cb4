package world_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/router"
)

// Whole runs as text: what a change of the engines, the router or the world does to them shows as a difference.
//
//	run [policy=NAME] [engines=N] [mixed] [gateways=N] [period=D] [exact] [requests=N] [rate=R] [adapters=N] [retries=N] [records=N]
//	KIND ENGINE AT FOR   (incidents, one a line)
//	----
//	figures, and the first records
func TestGolden(t *testing.T) {
	datadriven.RunTest(t, "testdata/runs.txt", func(t *testing.T, d *datadriven.TestData) string {
		require.Equal(t, "run", d.Cmd)
		n, gateways, requests, rate, adapters, retries, records := 2, 1, 200, 30, 0, 0, 3
		policy, period := "pressure", "1s"
		d.MaybeScanArgs(t, "engines", &n)
		d.MaybeScanArgs(t, "gateways", &gateways)
		d.MaybeScanArgs(t, "requests", &requests)
		d.MaybeScanArgs(t, "rate", &rate)
		d.MaybeScanArgs(t, "adapters", &adapters)
		d.MaybeScanArgs(t, "retries", &retries)
		d.MaybeScanArgs(t, "records", &records)
		d.MaybeScanArgs(t, "policy", &policy)
		d.MaybeScanArgs(t, "period", &period)
		p, err := router.PolicyByName(policy)
		require.NoError(t, err)
		cfg := world.Config{
			Seed: 1, Engines: engines(n, small()), Gateways: gateways, Retries: retries, Cache: world.Cache{Exact: d.HasArg("exact")},
			Chooser: world.PoolChooser(router.Config{Policy: p}), Incidents: incidents(t, d.Input),
		}
		cfg.Telemetry.Period, err = time.ParseDuration(period)
		require.NoError(t, err)
		if d.HasArg("mixed") {
			cfg.Engines[0].Profile, _ = sim.ProfileByName("h100-8b")
		}
		for i := range cfg.Engines {
			cfg.Engines[i].AdapterSlots = min(adapters, 1)
		}
		r := run(t, cfg, arrivals(1, shape{
			n: requests, perSecond: float64(rate), prompt: 800, output: 60, groups: 8, adapters: adapters, patience: 8 * second, outputs: true,
		}))
		return text(r, records)
	})
}

func incidents(t *testing.T, input string) []world.Incident {
	t.Helper()
	var out []world.Incident
	for line := range strings.Lines(input) {
		var kind, at, lasts string
		x := world.Incident{Factor: 3, Notice: time.Second}
		_, err := fmt.Sscan(line, &kind, &x.Engine, &at, &lasts)
		require.NoError(t, err, line)
		for x.Kind = world.Drain; x.Kind.String() != kind; x.Kind++ {
			require.LessOrEqual(t, x.Kind, world.Slow, line)
		}
		x.At, err = time.ParseDuration(at)
		require.NoError(t, err)
		x.For, err = time.ParseDuration(lasts)
		require.NoError(t, err)
		out = append(out, x)
	}
	return out
}

// text is a result in rounded figures.
func text(r *world.Result, records int) string {
	var b strings.Builder
	f := r.Figures(world.SLO{})
	dist := func(name string, d world.Dist) {
		_, _ = fmt.Fprintf(&b, "%-5s n %d mean %.1f p50 %.1f p90 %.1f p99 %.1f ms\n", name, d.N, d.Mean, d.P50, d.P90, d.P99)
	}
	_, _ = fmt.Fprintf(&b, "%d requests: %d finished, %d rejected, %d failed, %d gave up; %d retries, %d preemptions, %d cold loads, %d late\n",
		f.Requests, f.Finished, f.Rejected, f.Failed, f.GaveUp, f.Retries, f.Preemptions, f.ColdLoads, f.Missed)
	dist("ttft", f.TTFT)
	dist("tpot", f.TPOT)
	dist("e2e", f.E2E)
	dist("error", f.StartError)
	_, _ = fmt.Fprintf(&b, "goodput %.3f, hits %.3f (predicted %.3f), churn %.3f, jain %.3f, max/mean work %.3f, bias %.1f ms, degraded %d\n",
		f.Goodput, f.HitShare, f.PredictedHitShare, f.Churn, f.Jain, f.MaxWork, f.StartBias, f.Degraded)
	for _, e := range r.Engines {
		_, _ = fmt.Fprintf(&b, "%s: busy %.2f s, %d passes, %d finished, lives %d;", e.ID, e.Busy.Seconds(), e.Totals.Passes, e.Totals.Finished, e.Lives)
		for i, s := range e.Series[:min(len(e.Series), 8)] {
			_, _ = fmt.Fprintf(&b, " %ds %d+%d", i, s.Running, s.Waiting)
		}
		b.WriteString("\n")
	}
	for _, rec := range r.Records[:records] {
		ms := func(at time.Duration) float64 { return float64(at) / 1e6 }
		_, _ = fmt.Fprintf(&b, "#%d %d+%d at %.1f: engine %d, start %.1f, first %.1f, end %.1f, cached %d, %v\n",
			rec.Number, rec.PromptTokens, rec.OutputTokens, ms(rec.Arrival), rec.Engine, ms(rec.Start), ms(rec.FirstToken), ms(rec.End), rec.Cached, rec.Outcome)
	}
	return b.String()
}
