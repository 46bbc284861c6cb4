package scrape_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/isobar-go/isobar/examples/gateway/internal/scrape"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is an engine that only reports.
type fake struct {
	*httptest.Server
	metrics, health, models atomic.Int32 // statuses; 0 = 200
	running                 atomic.Int32
	model                   atomic.Pointer[string]
	onModels                func()        // before that answer; nil = nothing
	hold                    chan struct{} // nil = answers at once
}

func engine(t *testing.T, hold chan struct{}) *fake {
	f := &fake{hold: hold}
	name := "m"
	f.model.Store(&name)
	status := func(w http.ResponseWriter, code int32) bool {
		if code != 0 {
			w.WriteHeader(int(code))
		}
		return code == 0
	}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/base/metrics":
			if f.hold != nil {
				select {
				case <-f.hold:
				case <-r.Context().Done():
				}
			}
			if status(w, f.metrics.Load()) {
				fmt.Fprintf(w, "vllm:num_requests_running{model_name=\"m\"} %d\nvllm:num_requests_waiting{model_name=\"m\"} 0\n", f.running.Load())
			}
		case "/base/health":
			status(w, f.health.Load())
		case "/base/v1/models":
			if f.onModels != nil {
				f.onModels()
			}
			if status(w, f.models.Load()) {
				fmt.Fprintf(w, `{"data":[{"id":%q}]}`, *f.model.Load())
			}
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(f.Close)
	return f
}

func poller(t *testing.T, engines ...*fake) *scrape.Poller {
	p, err := router.New(router.Config{})
	require.NoError(t, err)
	for i, e := range engines {
		require.NoError(t, p.Add(router.Endpoint{ID: string(rune('a' + i)), Address: e.URL + "/base/"}))
	}
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	return &scrape.Poller{Pool: p, Client: &http.Client{Transport: base}, Every: 5 * time.Millisecond}
}

func TestReadings(t *testing.T) {
	a, b := engine(t, nil), engine(t, nil)
	p := poller(t, a, b)
	a.running.Store(3)
	b.metrics.Store(500)
	p.Round(t.Context())
	s := p.Pool.Stats()
	require.Equal(t, telemetry.Fresh, s.Endpoints[0].Freshness)
	require.EqualValues(t, 3, s.Endpoints[0].Requests)
	require.Equal(t, telemetry.Missing, s.Endpoints[1].Freshness, "a failed poll is no reading")
	require.EqualValues(t, 1, s.ScrapeErrors)
	b.Close()
	p.Round(t.Context())
	require.EqualValues(t, 2, p.Pool.Stats().ScrapeErrors)
}

// TestAgeCountsFromTheSending: figures may be as old as the question.
func TestAgeCountsFromTheSending(t *testing.T) {
	hold := make(chan struct{})
	a := engine(t, hold)
	p := poller(t, a)
	a.running.Store(1)
	time.AfterFunc(60*time.Millisecond, func() { close(hold) })
	p.Round(t.Context())
	s := p.Pool.Stats()
	require.EqualValues(t, 1, s.Snapshots)
	require.GreaterOrEqual(t, s.Endpoints[0].Age, 50*time.Millisecond)
}

func TestHealthDrains(t *testing.T) {
	a := engine(t, nil)
	p := poller(t, a)
	state := func() router.Reason {
		p.Round(t.Context())
		return p.Pool.Stats().Endpoints[0].State
	}
	require.Equal(t, router.NoReason, state())
	a.health.Store(503)
	require.Equal(t, router.Draining, state())
	a.health.Store(404)
	require.Equal(t, router.Draining, state(), "no news")
	a.health.Store(0)
	require.Equal(t, router.NoReason, state())
	require.NoError(t, p.Pool.Drain("a"))
	require.Equal(t, router.Draining, state(), "what the host has drained stays so")
}

func TestModelsAreLearned(t *testing.T) {
	a := engine(t, nil)
	p := poller(t, a)
	a.models.Store(500)
	p.Round(t.Context())
	require.Empty(t, p.Pool.Endpoints()[0].Models)
	a.models.Store(0)
	p.Round(t.Context())
	require.Equal(t, []string{"m"}, p.Pool.Endpoints()[0].Models)
	other := "other"
	a.model.Store(&other)
	for range 50 {
		p.Round(t.Context())
	}
	require.Equal(t, []string{"other"}, p.Pool.Endpoints()[0].Models)
}

// TestModelsComeLate: what has happened to the endpoint since the question was sent stands.
func TestModelsComeLate(t *testing.T) {
	a := engine(t, nil)
	p := poller(t, a)
	e := p.Pool.Endpoints()[0]
	a.onModels = func() { require.NoError(t, p.Pool.Remove("a")) }
	p.Round(t.Context())
	require.Empty(t, p.Pool.Endpoints(), "an endpoint that was removed does not come back")

	require.NoError(t, p.Pool.Add(e))
	e.Labels = map[string]string{"zone": "z"}
	a.onModels = func() { require.NoError(t, p.Pool.Add(e)) }
	p.Round(t.Context())
	require.Equal(t, "z", p.Pool.Endpoints()[0].Labels["zone"])
	require.Equal(t, []string{"m"}, p.Pool.Endpoints()[0].Models)

	e.Incarnation = "second"
	a.onModels = func() { require.NoError(t, p.Pool.SetEndpoints([]router.Endpoint{e})) }
	other := "other"
	a.model.Store(&other)
	for range 41 {
		p.Round(t.Context())
		if p.Pool.Endpoints()[0].Incarnation != "" {
			break
		}
	}
	require.Equal(t, "second", p.Pool.Endpoints()[0].Incarnation)
	require.Empty(t, p.Pool.Endpoints()[0].Models, "which are not those of the first")
}

// TestGoneEndpointsAreForgotten: their names may be many.
func TestGoneEndpointsAreForgotten(t *testing.T) {
	a := engine(t, nil)
	p := poller(t, a)
	a.health.Store(503)
	p.Round(t.Context())
	require.Equal(t, router.Draining, p.Pool.Stats().Endpoints[0].State)
	for i := range 5 {
		next := router.Endpoint{ID: "a", Incarnation: fmt.Sprint(i), Address: a.URL + "/base"}
		require.NoError(t, p.Pool.SetEndpoints([]router.Endpoint{next}))
		require.NoError(t, p.Pool.Drain("a"))
		a.health.Store(200)
		p.Round(t.Context())
		require.Equal(t, 1, p.Known())
		require.Equal(t, router.Draining, p.Pool.Stats().Endpoints[0].State, "it was the host that drained this one")
	}
}

// TestErrorsHideCredentials: what a poll failed of is shown on pages.
func TestErrorsHideCredentials(t *testing.T) {
	closed := engine(t, nil)
	closed.Close()
	host := strings.TrimPrefix(closed.URL, "http://")
	for _, address := range []string{"http://secret:secret@" + host + "?key=secret", "http://secret:se/cret@" + host} {
		p := poller(t)
		require.NoError(t, p.Pool.Add(router.Endpoint{ID: "a", Address: address}))
		p.Round(t.Context())
		text := p.Pool.Stats().Endpoints[0].Telemetry.LastScrapeError
		require.NotEmpty(t, text)
		require.NotContains(t, text, "secret")
		require.NotContains(t, text, "cret@")
	}
}

// TestASlowEngineHoldsUpNobody: the others are polled on.
func TestASlowEngineHoldsUpNobody(t *testing.T) {
	slow, quick := engine(t, make(chan struct{})), engine(t, nil)
	p := poller(t, slow, quick)
	p.Timeout = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	require.Eventually(t, func() bool { return p.Pool.Stats().Snapshots > 3 }, 5*time.Second, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	require.Zero(t, p.Pool.Stats().ScrapeErrors, "the end of the poller is no failed poll")
	require.Error(t, (&scrape.Poller{}).Run(t.Context()))
}

func TestTimeoutIsAFailedPoll(t *testing.T) {
	p := poller(t, engine(t, make(chan struct{})))
	p.Timeout = 20 * time.Millisecond
	p.Round(t.Context())
	require.EqualValues(t, 1, p.Pool.Stats().ScrapeErrors)
}
