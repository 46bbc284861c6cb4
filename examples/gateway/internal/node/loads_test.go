package node_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/examples/gateway/internal/node"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

// TestLoadWithAnAnswer: an engine whose metrics cannot be read is known by what its answers say, since it is asked to say it; the
// client sees nothing of that.
func TestLoadWithAnAnswer(t *testing.T) {
	var asked atomic.Value
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/chat/completions":
			asked.Store(r.Header.Get("Endpoint-Load-Metrics-Format"))
			w.Header().Set("Endpoint-Load-Metrics", "TEXT named_metrics.num_requests_running=4, named_metrics.num_requests_waiting=3, named_metrics.kv_cache_usage_perc=0.5")
			_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":3,"completion_tokens":1}}`)
		case "/health":
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer engine.Close()
	r := start(t, node.Config{Endpoints: []router.Endpoint{{ID: "x", Address: engine.URL}}})
	require.Equal(t, telemetry.Missing, r.node.Pool.Stats().Endpoints[0].Freshness)
	resp := r.chat("hello", "")
	require.Equal(t, 200, resp.StatusCode)
	require.Empty(t, resp.Header.Get("Endpoint-Load-Metrics"))
	_ = read(t, resp)
	require.Equal(t, "TEXT", asked.Load())
	e := r.node.Pool.Stats().Endpoints[0]
	require.Equal(t, telemetry.Fresh, e.Freshness)
	require.Equal(t, [3]float64{7, 3, 0.5}, [3]float64{e.Requests, e.Waiting, e.KVShare})
}
