package node_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
	"github.com/isobar-go/isobar/examples/gateway/internal/node"
	"github.com/isobar-go/isobar/examples/internal/embedded"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

// reports is a server with these pages only; what begins with a digit is a status.
func reports(t *testing.T, pages map[string]string) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := pages[r.URL.Path]
		switch {
		case !ok:
			http.NotFound(w, r)
		case text == "503":
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			_, _ = io.WriteString(w, text)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

const (
	vllmText   = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.25\n"
	tgiText    = "tgi_queue_size 1\ntgi_batch_current_size 4\n"
	trtText    = "trtllm_num_requests_running{model_name=\"m\"} 2\ntrtllm_num_requests_waiting{model_name=\"m\"} 1\n"
	iterations = `[{"numActiveRequests":3,"numQueuedRequests":1,"inflightBatchingStats":{"numContextRequests":0},` +
		`"kvCacheStats":{"maxNumBlocks":10,"usedNumBlocks":5,"tokensPerBlock":32}}]`
)

// TestKinds: an engine is understood whether its kind is given or not, wherever its report is, and introduced once.
func TestKinds(t *testing.T) {
	for _, c := range []struct {
		name, kind string
		pages      map[string]string
		says       string
	}{
		{"recognised", "", map[string]string{"/metrics": tgiText},
			"x is tgi: has running, waiting; lacks waiting-tokens, kv, kv-used, kv-capacity, gen-rate, prefix-hit-rate, max-running, " +
				"adapters, asleep, epoch"},
		{"given", "vllm", map[string]string{"/metrics": tgiText + vllmText}, "x is vllm: has running, waiting, kv; lacks "},
		{"given, elsewhere", "trtllm", map[string]string{"/prometheus/metrics": trtText, "/metrics": iterations}, "x is trtllm: has running, waiting; "},
		{"recognised elsewhere", "", map[string]string{"/prometheus/metrics": trtText}, "x is trtllm: has running, waiting; "},
		{"elsewhere, idle", "", map[string]string{"/prometheus/metrics": trtText, "/metrics": "[]"}, "x is trtllm: has running, waiting; "},
		{"the better of two", "", map[string]string{"/prometheus/metrics": trtText, "/metrics": iterations}, "x is trtllm: has running, waiting; "},
		{"the worse of one", "", map[string]string{"/metrics": iterations}, "x is trtllm-iterations: has running, waiting, kv, "},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := router.Endpoint{ID: "x", Address: reports(t, c.pages).URL}
			if c.kind != "" {
				e.Labels = map[string]string{node.LabelEngine: c.kind}
			}
			var out lines
			r := start(t, node.Config{Endpoints: []router.Endpoint{e}, Out: &out})
			r.eventually(func() bool { return len(out.all()[0]) > 0 }, "not introduced")
			polls := r.node.Pool.Stats().Snapshots
			r.eventually(func() bool { return r.node.Pool.Stats().Snapshots > polls+3 }, "not polled on")
			require.Equal(t, telemetry.Fresh, r.node.Pool.Stats().Endpoints[0].Freshness)
			require.NoError(t, r.stop())
			require.Len(t, out.all(), 1)
			require.True(t, strings.HasPrefix(string(out.all()[0]), c.says), "%s", out.all()[0])
		})
	}
}

// TestDialects: a fleet of all kinds of engines, none of them named, is understood and served by.
func TestDialects(t *testing.T) {
	var out lines
	cfg := node.Config{Out: &out}
	for _, d := range embedded.Dialects() {
		e, err := embedded.Start(embedded.Config{Name: d, Dialect: d, TimeScale: scale, OutputTokens: 4})
		require.NoError(t, err)
		t.Cleanup(e.Kill)
		cfg.Endpoints = append(cfg.Endpoints, router.Endpoint{ID: "e-" + d, Address: e.URL()})
	}
	r := start(t, cfg)
	require.Len(t, out.all(), len(embedded.Dialects()), "%s", out.all())
	for _, d := range embedded.Dialects() {
		require.True(t, slices.ContainsFunc(out.all(), func(line []byte) bool {
			return strings.HasPrefix(string(line), "e-"+d+" is "+d+": has running, waiting, ")
		}), "%s", out.all())
	}
	for range 20 {
		require.Equal(t, 200, r.ask(`{"model":"demo","prompt":"hello"}`).StatusCode)
	}
	r.drained()
	r.eventually(func() bool {
		return !slices.ContainsFunc(r.node.Pool.Stats().Endpoints, func(e router.EndpointStats) bool { return e.Freshness != telemetry.Fresh })
	}, "not all are known")
}

// TestNewLifeIsIntroduced: another incarnation may be another engine.
func TestNewLifeIsIntroduced(t *testing.T) {
	a, b := reports(t, map[string]string{"/metrics": tgiText}), reports(t, map[string]string{"/metrics": vllmText})
	var out lines
	r := start(t, node.Config{Endpoints: []router.Endpoint{{ID: "x", Address: a.URL}}, Out: &out})
	r.eventually(func() bool { return bytes.Contains(out.all()[0], []byte("x is tgi")) }, "not introduced")
	require.NoError(t, r.node.Pool.SetEndpoints([]router.Endpoint{{ID: "x", Incarnation: "2", Address: b.URL}}))
	r.eventually(func() bool { return len(out.all()) == 2 && bytes.Contains(out.all()[1], []byte("x is vllm")) }, "not introduced again")
}

// TestPollsOnTheDebugPage: what fails, how often and why, and how old the newest good answer is.
func TestPollsOnTheDebugPage(t *testing.T) {
	good, bad := reports(t, map[string]string{"/metrics": vllmText}), reports(t, map[string]string{"/metrics": "503"})
	r := start(t, node.Config{Endpoints: []router.Endpoint{
		{ID: "bad", Address: bad.URL, Labels: map[string]string{node.LabelEngine: "vllm"}}, {ID: "good", Address: good.URL},
		{ID: "odd", Address: good.URL, Labels: map[string]string{node.LabelEngine: "abacus"}},
	}})
	r.eventually(func() bool {
		polls := r.debug("?n=0").Polls
		return len(polls) == 3 && polls[0].FailuresInRow > 1 && polls[1].Successes > 1 && polls[2].Failures > 0
	}, "no polls on the page")
	doc := r.debug("?n=0")
	polls := doc.Polls
	require.Equal(t, "bad", polls[0].ID)
	require.Nil(t, polls[0].Age, "it has never answered")
	require.Equal(t, "status", polls[0].LastReason)
	require.Contains(t, polls[0].LastError, "503")
	require.Positive(t, polls[0].Backoff)
	require.Zero(t, polls[0].Successes)
	require.Equal(t, "vllm", polls[1].Kind)
	require.Less(t, time.Duration(*polls[1].Age), 5*time.Second)
	require.Zero(t, polls[1].Failures)
	require.Equal(t, "target", polls[2].LastReason)
	require.Equal(t, telemetry.Missing, doc.Stats.Endpoints[0].Freshness, "a failed poll is no reading")
}

// TestSilentEnginesAreNamed: an engine that cannot be read is in the first lines too, once, and again when it can be.
func TestSilentEnginesAreNamed(t *testing.T) {
	var ready atomic.Bool
	late := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !ready.Load() {
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = io.WriteString(w, vllmText)
	}))
	defer late.Close()
	html := reports(t, map[string]string{"/metrics": "<html>", "/prometheus/metrics": "<html>"})
	var out lines
	r := start(t, node.Config{Out: &out, Endpoints: []router.Endpoint{{ID: "html", Address: html.URL}, {ID: "late", Address: late.URL}}})
	require.Equal(t, []string{
		`html tells nothing yet: scrape: endpoint "html": content: media type text/html; KV events: ` + gateway.KVNone,
		`late tells nothing yet: scrape: endpoint "late": status 418; KV events: ` + gateway.KVNone,
	}, strings.Split(string(bytes.Join(out.all(), []byte("\n"))), "\n"))
	r.eventually(func() bool { return r.node.Pool.Stats().ScrapeErrors > 6 }, "not asked again")
	require.Len(t, out.all(), 2)
	ready.Store(true)
	r.eventually(func() bool { return len(out.all()) == 3 }, "not introduced")
	require.True(t, bytes.HasPrefix(out.all()[2], []byte("late is vllm: has running, ")))
}

// TestErrorsHideCredentials: what a poll failed of is shown on pages.
func TestErrorsHideCredentials(t *testing.T) {
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	host := strings.TrimPrefix(closed.URL, "http://")
	r := start(t, node.Config{Endpoints: []router.Endpoint{{ID: "a", Address: "http://secret:secret@" + host + "?key=secret"}}})
	require.NoError(t, r.node.Pool.Add(router.Endpoint{ID: "b", Address: "http://secret:se/cret@" + host}))
	r.eventually(func() bool {
		s := r.node.Pool.Stats()
		return s.Endpoints[0].Telemetry.LastScrapeError != "" && s.Endpoints[1].Telemetry.LastScrapeError != ""
	}, "no failure")
	text := read(t, r.get("/debug/isobar"))
	require.NotContains(t, text, "secret")
	for _, e := range r.node.Pool.Stats().Endpoints {
		require.NotContains(t, e.Telemetry.LastScrapeError, "cret@")
	}
}

// TestInBandReports: those that come reach the pool, and the client does not see them.
func TestInBandReports(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Endpoint-Load-Metrics", "TEXT num_requests_running=3, num_requests_waiting=4")
		_, _ = fmt.Fprint(w, "{}")
	}))
	t.Cleanup(s.Close)
	r := start(t, node.Config{Endpoints: []router.Endpoint{{ID: "x", Address: s.URL}}})
	resp := r.ask(`{"prompt":"x"}`)
	require.Empty(t, resp.Header.Get("Endpoint-Load-Metrics"))
	e := r.node.Pool.Stats().Endpoints[0]
	require.Equal(t, telemetry.Fresh, e.Freshness)
	require.Equal(t, [2]float64{7, 4}, [2]float64{e.Requests, e.Waiting})
}
