package node_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
	"github.com/isobar-go/isobar/examples/gateway/internal/node"
	"github.com/isobar-go/isobar/router"
)

// page is the document of the debug page.
type page struct {
	Policy    string
	Explain   []string
	Open      []router.Receipt
	Receipts  []router.Receipt
	Stats     router.Stats
	Endpoints []router.Endpoint
	Polls     []struct {
		ID            string
		Kind          string
		Age           *int64 `json:"age_ns"`
		Successes     uint64
		Failures      uint64
		FailuresInRow int    `json:"failures_in_row"`
		LastReason    string `json:"last_reason"`
		LastError     string `json:"last_error"`
		Backoff       int64  `json:"backoff_ns"`
	}
	KV []gateway.KVState `json:"kv_events"`
}

func (r *rig) debug(query string) page {
	r.t.Helper()
	resp := r.get("/debug/isobar" + query)
	text := read(r.t, resp)
	require.Equal(r.t, http.StatusOK, resp.StatusCode, text)
	require.Contains(r.t, text, "\n  \"policy\"", "for people to read")
	var doc page
	require.NoError(r.t, json.Unmarshal([]byte(text), &doc))
	return doc
}

// ask posts a short completion with these headers, and returns the answer read to its end.
func (r *rig) ask(body string, header ...string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequest(http.MethodPost, r.url+"/v1/completions", strings.NewReader(body))
	require.NoError(r.t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := r.http.Do(req)
	require.NoError(r.t, err)
	read(r.t, resp)
	return resp
}

// TestDebugPageAnswers: the request that one looks for at night is found, above all while it hangs.
func TestDebugPageAnswers(t *testing.T) {
	r := start(t, node.Config{}, "a", "b")
	for _, id := range []string{"one", "two", "three"} {
		r.ask(`{"model":"demo","prompt":"x","max_tokens":1}`, gateway.HeaderRequestID, id)
	}
	r.drained()
	open, _ := r.running()
	hung := open.Header.Get(gateway.HeaderRequestID)

	doc := r.debug("")
	require.Equal(t, 3, len(doc.Receipts))
	require.Equal(t, 1, len(doc.Open))
	require.Empty(t, doc.Explain)
	doc = r.debug("?n=2")
	require.Equal(t, 2, len(doc.Receipts))
	require.Equal(t, "three", doc.Receipts[0].RequestID)
	require.Empty(t, r.debug("?n=0").Receipts)

	doc = r.debug("?id=two")
	require.Equal(t, 1, len(doc.Receipts))
	require.Equal(t, "two", doc.Receipts[0].RequestID)
	require.Empty(t, doc.Open)
	require.NotEmpty(t, doc.Explain)
	doc = r.debug("?id=" + hung)
	require.Equal(t, 1, len(doc.Open))
	require.Equal(t, open.Header.Get(gateway.HeaderEndpoint), doc.Open[0].Endpoint)
	require.Empty(t, doc.Receipts)

	resp := r.get("/debug/isobar?id=nobody")
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
	require.Equal(t, "unknown_request", failure(t, resp))
	for _, n := range []string{"-1", "many"} {
		require.Equal(t, http.StatusBadRequest, r.status("/debug/isobar?n="+n))
	}
	_ = open.Body.Close()
	r.drained()
	require.Empty(t, r.debug("").Open)
}

func TestDebugPageHidesCredentials(t *testing.T) {
	engine := httptest.NewServer(http.NotFoundHandler())
	defer engine.Close()
	host := strings.TrimPrefix(engine.URL, "http://")
	r := start(t, node.Config{Endpoints: []router.Endpoint{{ID: "x", Address: "http://user:secret@" + host + "/base?key=secret"}}})
	resp := r.get("/debug/isobar")
	text := read(t, resp)
	require.Contains(t, text, "xxxxx@"+host+"/base")
	require.NotContains(t, text, "secret")
	require.Equal(t, "http://user:secret@"+host+"/base?key=secret", r.node.Pool.Endpoints()[0].Address, "the pool's own is as it was")
}

// TestClassNeedsTrust: nobody calls his requests system just so.
func TestClassNeedsTrust(t *testing.T) {
	for _, trust := range []bool{false, true} {
		r := start(t, node.Config{Gateway: gateway.Config{TrustClass: trust}}, "a")
		r.ask(`{"model":"demo","prompt":"x","max_tokens":1}`, gateway.HeaderClass, "system")
		r.drained()
		require.Equal(t, trust, r.debug("").Receipts[0].Class == router.ClassSystem)
	}
}

// TestUnknownModel: the engines that do not serve it may be draining; it is the client's mistake all the same.
func TestUnknownModel(t *testing.T) {
	r := start(t, node.Config{}, "a", "b")
	r.eventually(func() bool {
		return len(r.node.Pool.Endpoints()[0].Models) > 0 && len(r.node.Pool.Endpoints()[1].Models) > 0
	}, "models")
	ask := func(body string) *http.Response {
		resp, err := r.http.Post(r.url+"/v1/completions", "application/json", strings.NewReader(body))
		require.NoError(t, err)
		return resp
	}
	for range 2 {
		resp := ask(`{"model":"nope","Model":"demo","prompt":"x"}`)
		require.Equal(t, http.StatusNotFound, resp.StatusCode)
		require.Equal(t, "model_not_found", failure(t, resp))
		r.engines["a"].SetDraining(true)
		r.eventually(func() bool { return r.node.Pool.Stats().Endpoints[0].State == router.Draining }, "not noticed")
	}
	r.engines["b"].SetDraining(true)
	r.eventually(func() bool { return r.node.Pool.Stats().Endpoints[1].State == router.Draining }, "not noticed")
	resp := ask(`{"model":"demo","prompt":"x"}`)
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, "the model is known")
	require.Equal(t, "no_endpoints", failure(t, resp))
}

// TestInterimResponses: a 1xx of an engine takes nothing off the answer.
func TestInterimResponses(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(gateway.HeaderRequestID, "the engine's own")
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(w, "{}")
	}))
	defer engine.Close()
	r := start(t, node.Config{Endpoints: []router.Endpoint{{ID: "x", Address: engine.URL}}})
	resp := r.ask(`{"prompt":"x"}`, gateway.HeaderRequestID, "mine")
	require.Equal(t, []string{"mine"}, resp.Header.Values(gateway.HeaderRequestID))
	require.Equal(t, "x", resp.Header.Get(gateway.HeaderEndpoint))
}

// TestFailuresAreLogged: the client is told no cause, so the log must be.
func TestFailuresAreLogged(t *testing.T) {
	var log lines
	r := start(t, node.Config{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))}, "a")
	r.engines["a"].Kill()
	resp := r.ask(`{"model":"demo","prompt":"secret","user":"secret"}`, "Authorization", "Bearer secret", gateway.HeaderRequestID, "id-1")
	require.Equal(t, http.StatusBadGateway, resp.StatusCode)
	require.NoError(t, r.stop())
	var attempt, request bool
	for _, line := range log.all() {
		text := string(line)
		require.NotContains(t, text, "secret")
		if strings.Contains(text, "request_id=id-1") && strings.Contains(text, "connection refused") {
			attempt = attempt || strings.Contains(text, `msg="attempt failed"`) && strings.Contains(text, "endpoint=a")
			request = request || strings.Contains(text, `msg="request failed"`) && strings.Contains(text, "status=502")
		}
	}
	require.True(t, attempt && request, "attempt %v, request %v", attempt, request)
}
