package watch_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/isobar-go/isobar/examples/gateway/internal/watch"
	"github.com/isobar-go/isobar/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is an engine that only says how it is.
type fake struct {
	*httptest.Server
	health, models atomic.Int32 // statuses; 0 = 200
	asked          atomic.Int32 // for health
	model          atomic.Pointer[string]
	onModels       func()        // before that answer; nil = nothing
	hold           chan struct{} // nil = answers at once
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
		case "/base/health":
			f.asked.Add(1)
			if f.hold != nil {
				select {
				case <-f.hold:
				case <-r.Context().Done():
				}
			}
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

func watcher(t *testing.T, engines ...*fake) *watch.Watcher {
	p, err := router.New(router.Config{})
	require.NoError(t, err)
	for i, e := range engines {
		require.NoError(t, p.Add(router.Endpoint{ID: string(rune('a' + i)), Address: e.URL + "/base/"}))
	}
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	return &watch.Watcher{Pool: p, Client: &http.Client{Transport: base}, Every: 5 * time.Millisecond}
}

func TestHealthDrains(t *testing.T) {
	a := engine(t, nil)
	w := watcher(t, a)
	state := func() router.Reason {
		w.Round(t.Context())
		return w.Pool.Stats().Endpoints[0].State
	}
	require.Equal(t, router.NoReason, state())
	a.health.Store(503)
	require.Equal(t, router.Draining, state())
	a.health.Store(404)
	require.Equal(t, router.Draining, state(), "no news")
	a.health.Store(0)
	require.Equal(t, router.NoReason, state())
	require.NoError(t, w.Pool.Drain("a"))
	require.Equal(t, router.Draining, state(), "what the host has drained stays so")
}

func TestModelsAreLearned(t *testing.T) {
	a := engine(t, nil)
	w := watcher(t, a)
	a.models.Store(500)
	w.Round(t.Context())
	require.Empty(t, w.Pool.Endpoints()[0].Models)
	a.models.Store(0)
	w.Round(t.Context())
	require.Equal(t, []string{"m"}, w.Pool.Endpoints()[0].Models)
	other := "other"
	a.model.Store(&other)
	for range 50 {
		w.Round(t.Context())
	}
	require.Equal(t, []string{"other"}, w.Pool.Endpoints()[0].Models)
}

// TestModelsComeLate: what has happened to the endpoint since the question was sent stands.
func TestModelsComeLate(t *testing.T) {
	a := engine(t, nil)
	w := watcher(t, a)
	e := w.Pool.Endpoints()[0]
	a.onModels = func() { require.NoError(t, w.Pool.Remove("a")) }
	w.Round(t.Context())
	require.Empty(t, w.Pool.Endpoints(), "an endpoint that was removed does not come back")

	require.NoError(t, w.Pool.Add(e))
	e.Labels = map[string]string{"zone": "z"}
	a.onModels = func() { require.NoError(t, w.Pool.Add(e)) }
	w.Round(t.Context())
	require.Equal(t, "z", w.Pool.Endpoints()[0].Labels["zone"])
	require.Equal(t, []string{"m"}, w.Pool.Endpoints()[0].Models)

	e.Incarnation = "second"
	a.onModels = func() { require.NoError(t, w.Pool.SetEndpoints([]router.Endpoint{e})) }
	other := "other"
	a.model.Store(&other)
	for range 41 {
		w.Round(t.Context())
		if w.Pool.Endpoints()[0].Incarnation != "" {
			break
		}
	}
	require.Equal(t, "second", w.Pool.Endpoints()[0].Incarnation)
	require.Empty(t, w.Pool.Endpoints()[0].Models, "which are not those of the first")
}

// TestGoneEndpointsAreForgotten: their names may be many.
func TestGoneEndpointsAreForgotten(t *testing.T) {
	a := engine(t, nil)
	w := watcher(t, a)
	a.health.Store(503)
	w.Round(t.Context())
	require.Equal(t, router.Draining, w.Pool.Stats().Endpoints[0].State)
	for i := range 5 {
		next := router.Endpoint{ID: "a", Incarnation: fmt.Sprint(i), Address: a.URL + "/base"}
		require.NoError(t, w.Pool.SetEndpoints([]router.Endpoint{next}))
		require.NoError(t, w.Pool.Drain("a"))
		a.health.Store(200)
		w.Round(t.Context())
		require.Equal(t, 1, w.Known())
		require.Equal(t, router.Draining, w.Pool.Stats().Endpoints[0].State, "it was the host that drained this one")
	}
}

// TestASlowEngineHoldsUpNobody: the others are asked on.
func TestASlowEngineHoldsUpNobody(t *testing.T) {
	slow, quick := engine(t, make(chan struct{})), engine(t, nil)
	w := watcher(t, slow, quick)
	w.Timeout = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	require.Eventually(t, func() bool { return quick.asked.Load() > 3 }, 5*time.Second, time.Millisecond)
	require.EqualValues(t, 1, slow.asked.Load(), "one question at a time")
	cancel()
	require.NoError(t, <-done)
	require.Equal(t, router.NoReason, w.Pool.Stats().Endpoints[0].State)
	require.Error(t, (&watch.Watcher{}).Run(t.Context()))
}

func TestTimeoutIsNoNews(t *testing.T) {
	w := watcher(t, engine(t, make(chan struct{})))
	w.Timeout = 20 * time.Millisecond
	w.Round(t.Context())
	require.Equal(t, router.NoReason, w.Pool.Stats().Endpoints[0].State)
	require.Empty(t, w.Pool.Endpoints()[0].Models)
}
