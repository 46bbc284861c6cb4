package promexport_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/promexport"
	"github.com/isobar-go/isobar/telemetry"
)

// clock is a time that moves only by hand.
type clock struct{ ns atomic.Int64 }

func (c *clock) now() time.Time          { return time.Unix(1_000_000, c.ns.Load()) }
func (c *clock) advance(d time.Duration) { c.ns.Add(int64(d)) }

func newPool(t testing.TB, ids ...string) (*router.Pool, *clock) {
	t.Helper()
	c := &clock{}
	p, err := router.New(router.Config{Now: c.now, Circuit: router.Circuit{Failures: 1, OpenFor: time.Second}})
	require.NoError(t, err)
	for _, id := range ids {
		require.NoError(t, p.Add(router.Endpoint{ID: id}))
	}
	return p, c
}

// smallPool has a reporting endpoint with an open, a completed and a failed lease, and one that never reported.
func smallPool(t testing.TB) *router.Pool {
	p, c := newPool(t, "a", "mute")
	require.NoError(t, p.Drain("mute"))
	require.NoError(t, p.Observe("a", telemetry.Snapshot{
		ObservedAt: c.now(), Running: telemetry.At(3, c.now()), Waiting: telemetry.At(1, c.now()), KVShare: telemetry.At(0.25, c.now()),
	}))
	require.NoError(t, p.ScrapeFailed("mute", errors.New("refused")))
	c.advance(time.Second)
	for i := range 3 {
		l, err := p.Reserve(context.Background(), router.Request{Model: "m", Tenant: "secret-tenant", PromptTokens: 100})
		require.NoError(t, err)
		switch i {
		case 1:
			l.Done(router.Usage{})
		case 2:
			l.Fail(errors.New("broken"))
		}
	}
	_, err := p.Reserve(context.Background(), router.Request{Model: "m", PromptTokens: 100})
	require.Error(t, err, "the circuit of the only ready endpoint is open")
	c.advance(500 * time.Millisecond)
	return p
}

// compare expects exactly these series under these names; a name without a series expects that it has none.
func compare(t *testing.T, p *router.Pool, want string, names ...string) {
	t.Helper()
	var series strings.Builder
	got, err := testutil.CollectAndFormat(promexport.New(p, promexport.Options{}), expfmt.TypeTextPlain, names...)
	require.NoError(t, err)
	for line := range strings.Lines(string(got)) {
		if !strings.HasPrefix(line, "#") {
			series.WriteString(line)
		}
	}
	require.Equal(t, strings.TrimSpace(want), strings.TrimSpace(series.String()))
}

func TestFiguresOfAPool(t *testing.T) {
	compare(t, smallPool(t), `
isobar_decisions_degraded_total 0
isobar_decisions_total 3
isobar_endpoints 2
isobar_leases_ended_total{outcome="cancelled"} 0
isobar_leases_ended_total{outcome="completed"} 1
isobar_leases_ended_total{outcome="failed"} 1
isobar_leases_ended_total{outcome="refused"} 0
isobar_leases_open 1
isobar_oldest_lease_age_seconds 0.5
isobar_rejections_total{reason="deadline"} 0
isobar_rejections_total{reason="no-endpoints"} 1
isobar_rejections_total{reason="queue-full"} 0
isobar_rejections_total{reason="queue-timeout"} 0
isobar_rejections_total{reason="saturated"} 0
isobar_rejections_total{reason="telemetry-incomplete"} 0
isobar_rejections_total{reason="too-long"} 0
isobar_rejections_total{reason="unknown"} 0
isobar_scrape_errors_total 1
isobar_shadow_decisions_total{outcome="agree"} 0
isobar_shadow_decisions_total{outcome="differ"} 0
isobar_shadow_decisions_total{outcome="fault"} 0
isobar_shadow_decisions_total{outcome="skipped"} 0
isobar_snapshots_dropped_total 0
isobar_snapshots_total 1
`,
		"isobar_decisions_degraded_total", "isobar_decisions_total", "isobar_endpoints", "isobar_leases_ended_total",
		"isobar_leases_open", "isobar_oldest_lease_age_seconds", "isobar_rejections_total", "isobar_scrape_errors_total",
		"isobar_shadow_decisions_total", "isobar_snapshots_dropped_total", "isobar_snapshots_total")
}

func TestFiguresOfEndpoints(t *testing.T) {
	compare(t, smallPool(t), `
isobar_endpoint_chosen_total{endpoint="a"} 3
isobar_endpoint_chosen_total{endpoint="mute"} 0
isobar_endpoint_circuit{endpoint="a",state="closed"} 0
isobar_endpoint_circuit{endpoint="a",state="half-open"} 0
isobar_endpoint_circuit{endpoint="a",state="open"} 1
isobar_endpoint_circuit{endpoint="mute",state="closed"} 1
isobar_endpoint_circuit{endpoint="mute",state="half-open"} 0
isobar_endpoint_circuit{endpoint="mute",state="open"} 0
isobar_endpoint_leases_open{endpoint="a"} 1
isobar_endpoint_leases_open{endpoint="mute"} 0
isobar_endpoint_leases_unobserved{endpoint="a"} 1
isobar_endpoint_leases_unobserved{endpoint="mute"} 0
isobar_endpoint_readiness{endpoint="a",state="asleep"} 0
isobar_endpoint_readiness{endpoint="a",state="draining"} 0
isobar_endpoint_readiness{endpoint="a",state="ready"} 1
isobar_endpoint_readiness{endpoint="mute",state="asleep"} 0
isobar_endpoint_readiness{endpoint="mute",state="draining"} 1
isobar_endpoint_readiness{endpoint="mute",state="ready"} 0
`,
		"isobar_endpoint_chosen_total", "isobar_endpoint_circuit", "isobar_endpoint_leases_open",
		"isobar_endpoint_leases_unobserved", "isobar_endpoint_readiness")
}

// What was never reported has no series at all: a 0 would make the silent endpoint look the best.
func TestUnknownIsAbsent(t *testing.T) {
	compare(t, smallPool(t), `
isobar_endpoint_reported_kv_usage_ratio{endpoint="a"} 0.25
isobar_endpoint_reported_requests{endpoint="a"} 4
isobar_endpoint_reported_waiting_requests{endpoint="a"} 1
isobar_endpoint_telemetry_age_seconds{endpoint="a"} 1.5
isobar_endpoint_telemetry_freshness{endpoint="a",state="aging"} 0
isobar_endpoint_telemetry_freshness{endpoint="a",state="fresh"} 1
isobar_endpoint_telemetry_freshness{endpoint="a",state="missing"} 0
isobar_endpoint_telemetry_freshness{endpoint="a",state="stale"} 0
isobar_endpoint_telemetry_freshness{endpoint="mute",state="aging"} 0
isobar_endpoint_telemetry_freshness{endpoint="mute",state="fresh"} 0
isobar_endpoint_telemetry_freshness{endpoint="mute",state="missing"} 1
isobar_endpoint_telemetry_freshness{endpoint="mute",state="stale"} 0
`,
		"isobar_endpoint_reported_kv_usage_ratio", "isobar_endpoint_reported_requests",
		"isobar_endpoint_reported_waiting_requests", "isobar_endpoint_telemetry_age_seconds", "isobar_endpoint_telemetry_freshness")
}

func TestAReportedZeroIsShown(t *testing.T) {
	p, c := newPool(t, "a")
	require.NoError(t, p.Observe("a", telemetry.Snapshot{
		ObservedAt: c.now(), Running: telemetry.At(0, c.now()), Waiting: telemetry.At(0, c.now()), KVShare: telemetry.At(0, c.now()),
	}))
	compare(t, p, `
isobar_endpoint_reported_kv_usage_ratio{endpoint="a"} 0
isobar_endpoint_reported_requests{endpoint="a"} 0
isobar_endpoint_reported_waiting_requests{endpoint="a"} 0
`, "isobar_endpoint_reported_kv_usage_ratio", "isobar_endpoint_reported_requests", "isobar_endpoint_reported_waiting_requests")
}

func TestNamesFollowTheRules(t *testing.T) {
	problems, err := testutil.CollectAndLint(promexport.New(smallPool(t), promexport.Options{}))
	require.NoError(t, err)
	require.Empty(t, problems)
}

// A pedantic registry checks every metric against the descriptions.
func TestDescriptionsCoverTheMetrics(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(promexport.New(smallPool(t), promexport.Options{})))
	families, err := r.Gather()
	require.NoError(t, err)
	require.NotEmpty(t, families)
}

func TestSeriesAreBounded(t *testing.T) {
	p, c := newPool(t)
	perPool := testutil.CollectAndCount(promexport.New(p, promexport.Options{}))
	for i := range 20 {
		id := fmt.Sprintf("engine-%d", i)
		require.NoError(t, p.Add(router.Endpoint{ID: id, Labels: map[string]string{"pod": id}}))
		require.NoError(t, p.Observe(id, telemetry.Snapshot{ObservedAt: c.now(), Running: telemetry.At(0, c.now()),
			Waiting: telemetry.At(0, c.now()), KVShare: telemetry.At(0, c.now())}))
	}
	count := func() int { return testutil.CollectAndCount(promexport.New(p, promexport.Options{})) }
	full := count()
	perEndpoint := (full - perPool) / 20
	require.Equal(t, perPool+20*perEndpoint, full)
	require.LessOrEqual(t, perEndpoint, 30)
	for i := range 200 {
		l, err := p.Reserve(context.Background(), router.Request{
			ID: fmt.Sprint(i), Model: fmt.Sprint("m", i), Tenant: fmt.Sprint("t", i), Session: fmt.Sprint("s", i), PromptTokens: 10,
		})
		require.NoError(t, err)
		defer l.Done(router.Usage{})
	}
	require.Equal(t, full, count(), "requests make no series")
	require.NoError(t, p.SetEndpoints(nil))
	require.Equal(t, perPool, count(), "removed endpoints keep none")
}

func TestOnlyKnownLabels(t *testing.T) {
	r := prometheus.NewRegistry()
	require.NoError(t, r.Register(promexport.New(smallPool(t), promexport.Options{})))
	families, err := r.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				require.Contains(t, []string{"endpoint", "outcome", "reason", "state"}, l.GetName(), f.GetName())
				require.NotContains(t, l.GetValue(), "secret-tenant")
			}
		}
	}
}

func TestOptions(t *testing.T) {
	r := prometheus.NewRegistry()
	p, _ := newPool(t, "a")
	require.NoError(t, r.Register(promexport.New(p, promexport.Options{ConstLabels: prometheus.Labels{"pool": "one"}})))
	require.NoError(t, r.Register(promexport.New(p, promexport.Options{ConstLabels: prometheus.Labels{"pool": "two"}})))
	require.NoError(t, r.Register(promexport.New(p, promexport.Options{Namespace: "three"})))
	require.Error(t, r.Register(promexport.New(p, promexport.Options{Namespace: "three"})), "the same twice")
	require.NoError(t, testutil.GatherAndCompare(r, strings.NewReader(`
# HELP isobar_endpoints Endpoints in the pool.
# TYPE isobar_endpoints gauge
isobar_endpoints{pool="one"} 1
isobar_endpoints{pool="two"} 1
# HELP three_endpoints Endpoints in the pool.
# TYPE three_endpoints gauge
three_endpoints 1
`), "isobar_endpoints", "three_endpoints"))
}

// What is wrong is said by Register, and a scrape without Register does not panic either.
func TestFaultsAreErrors(t *testing.T) {
	p, _ := newPool(t, "a")
	for name, tc := range map[string]struct {
		pool *router.Pool
		opts promexport.Options
		want string
	}{
		"no pool":      {nil, promexport.Options{}, "promexport: pool is nil"},
		"bad label":    {p, promexport.Options{ConstLabels: prometheus.Labels{"": "x"}}, "label"},
		"taken label":  {p, promexport.Options{ConstLabels: prometheus.Labels{"endpoint": "x"}}, "label"},
		"bad value":    {p, promexport.Options{ConstLabels: prometheus.Labels{"pool": "\xff"}}, "UTF-8"},
		"bad name":     {p, promexport.Options{Namespace: "\xff"}, "name"},
		"taken label2": {p, promexport.Options{ConstLabels: prometheus.Labels{"outcome": "x"}}, "label"},
	} {
		t.Run(name, func(t *testing.T) {
			c := promexport.New(tc.pool, tc.opts)
			require.ErrorContains(t, prometheus.NewRegistry().Register(c), tc.want)
			metrics := make(chan prometheus.Metric, 1000)
			c.Collect(metrics)
			require.NotEmpty(t, metrics)
		})
	}
}

// An ID is the host's and may be anything; no two of them may become one series.
func TestEndpointIDsOfAnyBytes(t *testing.T) {
	p, _ := newPool(t, "a\xff", "a\xfe", `"a\xff"`, "a\n\"b\\", `"`, "ä")
	compare(t, p, `
isobar_endpoint_chosen_total{endpoint="\"\\\"\""} 0
isobar_endpoint_chosen_total{endpoint="\"\\\"a\\\\xff\\\"\""} 0
isobar_endpoint_chosen_total{endpoint="\"a\\xfe\""} 0
isobar_endpoint_chosen_total{endpoint="\"a\\xff\""} 0
isobar_endpoint_chosen_total{endpoint="a\n\"b\\"} 0
isobar_endpoint_chosen_total{endpoint="ä"} 0
`, "isobar_endpoint_chosen_total")
}

// Scrapes run beside everything else, and no counter of the pool ever falls.
func TestScrapesBesideTraffic(t *testing.T) {
	p, c := newPool(t, "a", "b")
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(promexport.New(p, promexport.Options{})))
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 200 {
				if l, err := p.Reserve(context.Background(), router.Request{PromptTokens: 10}); err == nil {
					l.Done(router.Usage{})
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 200 {
			c.advance(time.Millisecond)
			_ = p.Observe("a", telemetry.Snapshot{ObservedAt: c.now(), Running: telemetry.At(float64(i), c.now())})
			_ = p.Remove("b")
			_ = p.Add(router.Endpoint{ID: "b", Incarnation: fmt.Sprint(i)})
		}
	})
	for range 2 {
		wg.Go(func() {
			last := map[string]float64{}
			for range 40 {
				families, err := r.Gather()
				if err != nil {
					t.Error(err)
					return
				}
				for _, f := range families {
					for _, m := range f.GetMetric() {
						// A counter of an endpoint begins again with each incarnation.
						if key := f.GetName() + fmt.Sprint(m.GetLabel()); m.GetCounter() != nil && !strings.Contains(key, "endpoint") {
							if v := m.GetCounter().GetValue(); v < last[key] {
								t.Errorf("%s fell from %v to %v", key, last[key], v)
							} else {
								last[key] = v
							}
						}
					}
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkCollect(b *testing.B) {
	ids := make([]string, 64)
	for i := range ids {
		ids[i] = fmt.Sprintf("engine-%d", i)
	}
	p, _ := newPool(b, ids...)
	c := promexport.New(p, promexport.Options{})
	metrics := make(chan prometheus.Metric, 4096)
	b.ReportAllocs()
	for b.Loop() {
		c.Collect(metrics)
		for range len(metrics) {
			<-metrics
		}
	}
}
