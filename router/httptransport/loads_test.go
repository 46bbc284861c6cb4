package httptransport_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
	"github.com/isobar-go/isobar/telemetry"
)

const (
	loadHeader = "endpoint-load-metrics"
	loadText   = "TEXT named_metrics.num_requests_running=3, named_metrics.num_requests_waiting=2, named_metrics.kv_cache_usage_perc=0.5"
	loadJSON   = `JSON {"named_metrics":{"num_requests_running":3,"num_requests_waiting":2,"kv_cache_usage_perc":0.5}}`
)

// heard keeps what it is told.
type heard struct {
	mu    sync.Mutex
	ids   []string
	snaps []telemetry.Snapshot
	err   error
}

func (h *heard) ObserveAnswer(l *router.Lease, s telemetry.Snapshot) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ids, h.snaps = append(h.ids, l.Endpoint().ID), append(h.snaps, s)
	return h.err
}

func figure(t *testing.T, r telemetry.Reading) float64 {
	t.Helper()
	v, ok := r.Value()
	require.True(t, ok)
	return v
}

// TestLoadReports: every form, on every kind of answer, of the endpoint that gave it.
func TestLoadReports(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		name, report string
		method       string
		status       int
	}{
		{"text", loadText, http.MethodPost, 200},
		{"text with colons", strings.ReplaceAll(loadText, "=", ":"), http.MethodPost, 200},
		{"JSON", loadJSON, http.MethodPost, 200},
		{"no body", loadText, http.MethodHead, 200},
		{"a client's fault", loadText, http.MethodPost, 400},
		{"a refusal", loadText, http.MethodPost, 429},
		{"a failure", loadText, http.MethodPost, 500},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := server(t, func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set(loadHeader, c.report)
				rw.WriteHeader(c.status)
			})
			p := pool(t, router.Config{}, s.URL)
			var h heard
			tr := transport(t, p)
			tr.Loads, tr.Now, tr.Retries = &h, func() time.Time { return at }, -1
			resp, err := tr.RoundTrip(request(t, c.method, ""))
			require.NoError(t, err)
			require.Equal(t, []string{"a"}, h.ids, "as soon as the headers are there")
			require.NoError(t, resp.Body.Close())
			got := h.snaps[0]
			require.Equal(t, at, got.ObservedAt)
			require.Equal(t, "in-band", got.Source)
			require.Equal(t, [3]float64{3, 2, 0.5}, [3]float64{figure(t, got.Running), figure(t, got.Waiting), figure(t, got.KVShare)})
			require.Equal(t, c.report, resp.Header.Get(loadHeader), "the response is as it was")
			require.Len(t, h.ids, 1)
		})
	}
}

// TestLoadReportOfEachAttempt: also of the endpoint whose answer nobody sees.
func TestLoadReportOfEachAttempt(t *testing.T) {
	answer := func(status int) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set(loadHeader, loadText)
			rw.WriteHeader(status)
		}
	}
	p := pool(t, router.Config{}, server(t, answer(503)).URL, server(t, answer(503)).URL)
	var h heard
	tr := transport(t, p)
	tr.Loads = &h
	resp, err := tr.RoundTrip(request(t, http.MethodPost, "{}"))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.ElementsMatch(t, []string{"a", "b"}, h.ids)
}

// TestLoadReportInTrailers: it is that of the engine after the request, and the lease has ended by then.
func TestLoadReportInTrailers(t *testing.T) {
	for _, declared := range []bool{true, false} {
		s := server(t, func(rw http.ResponseWriter, r *http.Request) {
			name := http.TrailerPrefix + "Endpoint-Load-Metrics"
			if declared {
				name = "Endpoint-Load-Metrics"
				rw.Header().Set("Trailer", name)
			}
			rw.Header().Set("Content-Type", "text/event-stream")
			send(rw, chunk(0), doneChunk)
			rw.Header().Set(name, loadText)
		})
		p := pool(t, router.Config{}, s.URL)
		tr := transport(t, p)
		open := int64(-1)
		tr.Loads = observer(func(string, telemetry.Snapshot) { open = p.Stats().OpenLeases })
		resp, err := tr.RoundTrip(request(t, http.MethodPost, "{}"))
		require.NoError(t, err)
		require.EqualValues(t, -1, open)
		read(t, resp)
		require.Zero(t, open, "told after the end of the lease")
		ends(t, p, 1, 0, 0)
	}
}

// TestLoadReportAskedFor: the answer to what the transport has asked, in place of the caller, is not passed on: through a
// proxy no client sees it, in headers or trailers.
func TestLoadReportAskedFor(t *testing.T) {
	const name = "Endpoint-Load-Metrics"
	for _, c := range []struct {
		where  string
		format string
		want   string
	}{
		{"header", "TEXT", ""}, {"trailer", "TEXT", ""}, {"undeclared trailer", "TEXT", ""},
		{"header", "", loadText}, {"trailer", "", loadText}, {"undeclared trailer", "", loadText},
	} {
		s := server(t, func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "text/event-stream")
			switch c.where {
			case "header":
				rw.Header().Set(name, loadText)
			case "trailer":
				rw.Header().Set("Trailer", name+", X-Other")
			}
			send(rw, chunk(0), doneChunk)
			switch c.where {
			case "trailer":
				rw.Header().Set("X-Other", "1")
				rw.Header().Set(name, loadText)
			case "undeclared trailer":
				rw.Header().Set(http.TrailerPrefix+name, loadText)
			}
		})
		p := pool(t, router.Config{}, s.URL)
		var h heard
		tr := transport(t, p)
		tr.Loads, tr.LoadFormat = &h, c.format
		proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}, Transport: tr})
		req, err := http.NewRequest(http.MethodPost, proxy.URL, strings.NewReader("{}"))
		require.NoError(t, err)
		req.Header.Set("Endpoint-Load-Metrics-Format", "JSON")
		resp, err := proxy.Client().Do(req)
		require.NoError(t, err)
		read(t, resp)
		require.Equal(t, c.want, resp.Header.Get(name)+resp.Trailer.Get(name), "%+v", c)
		require.Equal(t, c.where == "trailer", resp.Trailer.Get("X-Other") == "1")
		proxy.Close()
		require.Equal(t, []string{"a"}, h.ids)
	}
}

type observer func(string, telemetry.Snapshot)

func (o observer) ObserveAnswer(l *router.Lease, s telemetry.Snapshot) error {
	o(l.Endpoint().ID, s)
	return nil
}

// TestUselessLoadReports are ignored: nothing becomes of them, and the answer is as good as without.
func TestUselessLoadReports(t *testing.T) {
	for _, c := range []struct {
		report string
		fault  error
		lines  int
	}{
		{"", nil, 0},
		{"TEXT", nil, 0}, // has no figures
		{"TEXT nonsense", nil, 1},
		{"XML <a/>", nil, 1},
		{"JSON {", nil, 1},
		{strings.Repeat("x", 70<<10), nil, 1},
		{loadText, errors.New("no such endpoint"), 1},
	} {
		s := server(t, func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set(loadHeader, c.report)
			_, _ = io.WriteString(rw, "{}")
		})
		for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
			p := pool(t, router.Config{}, s.URL)
			var log bytes.Buffer
			tr := transport(t, p)
			tr.Loads, tr.Log = p, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: level}))
			if c.fault != nil {
				tr.Loads = &heard{err: c.fault}
			}
			resp, err := tr.RoundTrip(request(t, http.MethodPost, "{}"))
			require.NoError(t, err)
			require.Equal(t, "{}", read(t, resp))
			st := p.Stats()
			require.Equal(t, telemetry.Missing, st.Endpoints[0].Freshness, "%.20q", c.report)
			require.Negative(t, st.Endpoints[0].Requests)
			want := c.lines
			if level > slog.LevelDebug {
				want = 0
			}
			require.Equal(t, want, strings.Count(log.String(), "load report not used"), "%.20q: %s", c.report, log.String())
			if want > 0 {
				require.Contains(t, log.String(), "level=DEBUG")
				require.Contains(t, log.String(), "endpoint=a")
			}
		}
	}
}

// TestLoadReportsOff: without Loads nobody is told, and nothing is logged.
func TestLoadReportsOff(t *testing.T) {
	s := server(t, func(rw http.ResponseWriter, r *http.Request) { rw.Header().Set(loadHeader, "nonsense") })
	p := pool(t, router.Config{}, s.URL)
	var log bytes.Buffer
	tr := transport(t, p)
	tr.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	resp, err := tr.RoundTrip(request(t, http.MethodPost, "{}"))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Zero(t, p.Stats().Snapshots)
	require.Empty(t, log.String())
}

// TestLoadFormat: the endpoints are asked, and only where that is wanted.
func TestLoadFormat(t *testing.T) {
	var asked []string
	s := server(t, func(rw http.ResponseWriter, r *http.Request) { asked = r.Header.Values("endpoint-load-metrics-format") })
	for _, c := range []struct {
		format, own string
		want        []string
	}{
		{"", "", nil},
		{"", "JSON", []string{"JSON"}},
		{"TEXT", "", []string{"TEXT"}},
		{"JSON", "TEXT", []string{"JSON"}},
	} {
		p := pool(t, router.Config{}, s.URL)
		tr := transport(t, p)
		tr.LoadFormat = c.format
		req := request(t, http.MethodPost, "{}")
		if c.own != "" {
			req.Header.Set("endpoint-load-metrics-format", c.own)
		}
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, c.want, asked, "%+v", c)
		require.Equal(t, c.own, req.Header.Get("endpoint-load-metrics-format"), "the caller's request is not touched")
	}
}

// TestNewestReportCounts: a poll that was sent before a response came in says nothing any more when it arrives later, and
// one that was sent after it does.
func TestNewestReportCounts(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	clock := func() time.Time { return now }
	s := server(t, func(rw http.ResponseWriter, r *http.Request) { rw.Header().Set(loadHeader, loadText) })
	p := pool(t, router.Config{Now: clock}, s.URL)
	tr := transport(t, p)
	tr.Loads, tr.Now = p, clock
	poll := func(sent time.Time, running float64) {
		t.Helper()
		require.NoError(t, p.Observe("a", telemetry.Snapshot{
			ObservedAt: sent, Running: telemetry.V(running), Waiting: telemetry.V(0), KVShare: telemetry.V(0.1),
		}))
	}
	state := func() [3]float64 {
		e := p.Stats().Endpoints[0]
		return [3]float64{e.Requests, e.Waiting, e.KVShare}
	}
	poll(now, 20)
	require.Equal(t, [3]float64{20, 0, 0.1}, state())
	sent := now.Add(100 * time.Millisecond)
	now = now.Add(200 * time.Millisecond)
	resp, err := tr.RoundTrip(request(t, http.MethodPost, "{}"))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	reported := state()
	require.Equal(t, [3]float64{5, 2, 0.5}, reported, "running and waiting together")
	now = now.Add(100 * time.Millisecond)
	poll(sent, 30)
	require.Equal(t, reported, state(), "an older poll that arrives later")
	require.EqualValues(t, 1, p.Stats().Dropped)
	require.Equal(t, 100*time.Millisecond, p.Stats().Endpoints[0].Age)
	poll(now, 7)
	require.Equal(t, [3]float64{7, 0, 0.1}, state())
}

func TestLoadSettings(t *testing.T) {
	p := pool(t, router.Config{})
	require.ErrorContains(t, (&httptransport.Transport{Pool: p, LoadFormat: "text"}).Validate(), `LoadFormat = "text"`)
	require.ErrorContains(t, (&httptransport.Transport{Pool: p, Loads: (*router.Pool)(nil)}).Validate(), "Loads")
	require.NoError(t, (&httptransport.Transport{Pool: p, Loads: p, LoadFormat: "TEXT"}).Validate())
}

// TestLoadReportsRace: many responses at once.
func TestLoadReportsRace(t *testing.T) {
	s := server(t, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set(loadHeader, loadJSON)
		rw.Header().Set(http.TrailerPrefix+"Endpoint-Load-Metrics", loadText)
		_, _ = io.WriteString(rw, "{}")
	})
	p := pool(t, router.Config{}, s.URL, s.URL)
	tr := transport(t, p)
	tr.Loads, tr.LoadFormat = p, "JSON"
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				resp, err := tr.RoundTrip(request(t, http.MethodPost, "{}"))
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
			}
		})
	}
	all.Wait()
	ends(t, p, 160, 0, 0)
	require.EqualValues(t, 320, p.Stats().Snapshots)
}
