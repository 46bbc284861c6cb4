package node_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
	"github.com/isobar-go/isobar/examples/gateway/internal/node"
	"github.com/isobar-go/isobar/router"
)

// answer is what became of a request that was sent by a goroutine of its own.
type answer struct {
	resp *http.Response
	text string
	err  error
}

// send posts a short request with headers, and reads its answer.
func (r *rig) send(ctx context.Context, more string, header ...string) <-chan answer {
	body := `{"model":"demo","prompt":"hello","max_tokens":2` + more + `}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/v1/completions", strings.NewReader(body))
	require.NoError(r.t, err)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	done := make(chan answer, 1)
	go func() {
		resp, err := r.http.Do(req)
		if err != nil {
			done <- answer{err: err}
			return
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		done <- answer{resp, string(text), err}
	}()
	return done
}

// refused checks an answer in OpenAI's shape.
func (r *rig) refused(done <-chan answer, status int, kind, code string) answer {
	r.t.Helper()
	a := r.got(done)
	require.Equal(r.t, status, a.resp.StatusCode, a.text)
	var doc struct {
		Error struct{ Message, Type, Code string }
	}
	require.NoError(r.t, json.Unmarshal([]byte(a.text), &doc), a.text)
	require.Equal(r.t, kind, doc.Error.Type)
	require.Equal(r.t, code, doc.Error.Code)
	require.NotEmpty(r.t, doc.Error.Message)
	if after := a.resp.Header.Get("Retry-After"); after != "" {
		n, err := strconv.Atoi(after)
		require.NoError(r.t, err)
		require.True(r.t, n >= 1 && n <= 30, after)
	}
	return a
}

func (r *rig) got(done <-chan answer) answer {
	r.t.Helper()
	select {
	case a := <-done:
		require.NoError(r.t, a.err)
		return a
	case <-time.After(10 * time.Second):
		require.Fail(r.t, "no answer")
		return answer{}
	}
}

// waits waits until that many requests are in the queue.
func (r *rig) waits(n int) {
	r.t.Helper()
	r.eventually(func() bool { return r.node.Pool.Stats().Queue.Waiting == n }, fmt.Sprintf("%d requests should wait", n))
}

// one is a gateway that lets one request in.
func one(q router.Queue) node.Config {
	return node.Config{Pool: router.Config{Caps: admission.Caps{Aggregate: 1}, Queue: q}}
}

// TestQueueHoldsToTheEnd: a place becomes free at the end of a stream and not at its headers, and goes to who waits.
func TestQueueHoldsToTheEnd(t *testing.T) {
	r := start(t, one(router.Queue{Max: 4}), "a")
	first, rest := r.running()
	second := r.send(t.Context(), "")
	r.waits(1)
	for range 20 { // of the stream's events, all of them after the headers
		_, err := rest.ReadString('\n')
		require.NoError(t, err)
	}
	require.Empty(t, second)
	require.Equal(t, 1, r.node.Pool.Stats().Queue.Waiting)
	require.Equal(t, 200, r.status("/healthz"), "what comes can wait")
	require.NoError(t, first.Body.Close())
	require.Equal(t, 200, r.got(second).resp.StatusCode)
	r.drained()
	s := r.node.Pool.Stats()
	require.EqualValues(t, 1, s.Queue.Granted)
	require.Zero(t, s.Queue.Tokens)
}

// TestQueueRefusals: the queue's own, at once and after a wait.
func TestQueueRefusals(t *testing.T) {
	r := start(t, one(router.Queue{Max: 1, Timeout: 300 * time.Millisecond}), "a")
	first, _ := r.running()
	defer func() { _ = first.Body.Close() }()
	waiting := r.send(t.Context(), "")
	r.waits(1)
	require.Equal(t, http.StatusTooManyRequests, r.status("/healthz"), "what comes can not even wait")
	r.refused(r.send(t.Context(), ""), 429, "rate_limit_error", "queue_full")
	a := r.refused(waiting, 429, "rate_limit_error", "queue_timeout")
	require.Empty(t, a.resp.Header.Get("Retry-After"), "nothing has ended yet by which it could be known")
	s := r.node.Pool.Stats()
	require.Zero(t, s.Queue.Waiting)
	require.EqualValues(t, 1, s.Queue.TimedOut)
}

// TestRetryAfter: what the pool has measured is told.
func TestRetryAfter(t *testing.T) {
	r := start(t, node.Config{Pool: router.Config{Caps: admission.Caps{Aggregate: 1}}}, "a")
	full := func() answer {
		var held *http.Response
		r.eventually(func() bool { // until the engine reports that the stream before has ended
			held = r.chat("go on", endless)
			if held.StatusCode != 200 {
				_ = held.Body.Close()
			}
			return held.StatusCode == 200
		}, "the engine is idle")
		a := r.refused(r.send(t.Context(), ""), 429, "rate_limit_error", "saturated")
		require.NoError(t, held.Body.Close())
		r.drained()
		return a
	}
	require.Empty(t, full().resp.Header.Get("Retry-After"))
	for began := time.Now(); time.Since(began) < 10*time.Second; { // leases must end over a second and more
		if full().resp.Header.Get("Retry-After") != "" {
			return
		}
	}
	t.Fatal("never told")
}

// TestDeadlines: a client says how long it waits, and is told at once or from the queue that it is in vain.
func TestDeadlines(t *testing.T) {
	r := start(t, one(router.Queue{Max: 4}), "a")
	r.refused(r.send(t.Context(), `,"min_tokens":1`, gateway.HeaderClientTimeout, "0.000001"), 504, "server_error", "deadline")
	r.refused(r.send(t.Context(), "", gateway.HeaderClientTimeout, "soon"), 400, "invalid_request_error", "")
	require.Zero(t, r.node.Pool.Stats().Decisions)
	first, _ := r.running()
	defer func() { _ = first.Body.Close() }()
	r.refused(r.send(t.Context(), "", gateway.HeaderClientTimeout, "0.3"), 504, "server_error", "deadline")
	s := r.node.Pool.Stats()
	require.EqualValues(t, 1, s.Queue.Missed)
	require.EqualValues(t, 2, s.RejectedBy["deadline"])
}

// TestTenantLimits: who is at his own limit is told so, while others are served; or he waits for himself alone.
func TestTenantLimits(t *testing.T) {
	endlessly := func(r *rig) {
		body := `{"model":"demo","prompt":"go on","ignore_eos":true,"stream":true,"max_tokens":20000}`
		req, err := http.NewRequest(http.MethodPost, r.url+"/v1/completions", strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer a")
		resp, err := r.http.Do(req)
		require.NoError(t, err)
		t.Cleanup(func() { _ = resp.Body.Close() })
		_, err = bufio.NewReader(resp.Body).ReadString('\n')
		require.NoError(t, err)
	}
	for code, caps := range map[string]admission.Caps{"tenant_limit": {Tenant: 1}, "tenant_token_limit": {TenantTokens: 20_002}} {
		r := start(t, node.Config{Pool: router.Config{Caps: caps}}, "a")
		endlessly(r)
		a := r.refused(r.send(t.Context(), "", "Authorization", "Bearer a"), 429, "rate_limit_error", code)
		require.NotContains(t, a.text, "engine")
		require.Equal(t, 200, r.got(r.send(t.Context(), "", "Authorization", "Bearer b")).resp.StatusCode)

		q := start(t, node.Config{Pool: router.Config{Caps: caps, Queue: router.Queue{Max: 4, Timeout: 200 * time.Millisecond}}}, "a")
		endlessly(q)
		own := q.send(t.Context(), "", "Authorization", "Bearer a")
		q.waits(1)
		require.Equal(t, 200, q.got(q.send(t.Context(), "", "Authorization", "Bearer b")).resp.StatusCode, "he holds nobody up")
		q.refused(own, 429, "rate_limit_error", "queue_timeout")
	}
}

// TestClasses: the more important waits less, and what is sheddable does not wait; both only where the header is trusted.
func TestClasses(t *testing.T) {
	cfg := one(router.Queue{Max: 4})
	cfg.Gateway.TrustClass = true
	r := start(t, cfg, "a")
	first, _ := r.running()
	batch := r.send(t.Context(), endlessly(2000), gateway.HeaderClass, "batch")
	r.waits(1)
	interactive := r.send(t.Context(), "", gateway.HeaderClass, "interactive")
	r.waits(2)
	require.Equal(t, map[string]int{"batch": 1, "interactive": 1}, r.node.Pool.Stats().Queue.ByClass)
	r.refused(r.send(t.Context(), "", gateway.HeaderClass, "sheddable"), 429, "rate_limit_error", "saturated")
	require.NoError(t, first.Body.Close())
	require.Equal(t, 200, r.got(interactive).resp.StatusCode)
	require.Empty(t, batch)
	require.Equal(t, 200, r.got(batch).resp.StatusCode)
}

// endlessly is a request with so much to generate that others can look on.
func endlessly(tokens int) string { return fmt.Sprintf(`,"ignore_eos":true,"max_tokens":%d`, tokens) }

// TestClientLeavesWhileWaiting: it leaves the queue at once and takes no place, and the gateway notes it.
func TestClientLeavesWhileWaiting(t *testing.T) {
	var logged lines
	cfg := one(router.Queue{Max: 4})
	cfg.Log = slog.New(slog.NewTextHandler(&logged, nil))
	r := start(t, cfg, "a")
	first, _ := r.running()
	ctx, leave := context.WithCancel(t.Context())
	gone := r.send(ctx, "", gateway.HeaderRequestID, "gone")
	r.waits(1)
	behind := r.send(t.Context(), "")
	r.waits(2)
	leave()
	require.ErrorIs(t, (<-gone).err, context.Canceled)
	r.waits(1)
	require.EqualValues(t, 1, r.node.Pool.Stats().Queue.Cancelled)
	require.NoError(t, first.Body.Close())
	require.Equal(t, 200, r.got(behind).resp.StatusCode)
	r.drained()
	require.EqualValues(t, 2, r.node.Pool.Stats().Decisions)
	r.eventually(func() bool { return strings.Contains(read(t, r.get("/debug/isobar")), `"499": 1`) }, "not counted")
	require.NoError(t, r.stop())
	require.Regexp(t, `level=INFO msg="client gave up" request_id=gone status=499`, string(bytes.Join(logged.all(), []byte("\n"))))
}

// TestNobodyServes: with a queue, too, unless it is told to wait for endpoints.
func TestNobodyServes(t *testing.T) {
	r := start(t, node.Config{Pool: router.Config{Queue: router.Queue{Max: 4}}})
	r.refused(r.send(t.Context(), ""), 503, "server_error", "no_endpoints")
	r = start(t, node.Config{Pool: router.Config{Queue: router.Queue{Max: 4, WaitForEndpoints: true}}})
	waiting := r.send(t.Context(), "")
	r.waits(1)
	late := start(t, node.Config{}, "a")
	require.NoError(t, r.node.Pool.Add(router.Endpoint{ID: "late", Address: late.engines["a"].URL()}))
	require.Equal(t, 200, r.got(waiting).resp.StatusCode)
}

// TestStopServesWhoWaits: a stop in good order.
func TestStopServesWhoWaits(t *testing.T) {
	r := start(t, one(router.Queue{Max: 4}), "a")
	first, _ := r.running()
	second := r.send(t.Context(), "")
	r.waits(1)
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	r.eventually(func() bool { _, err := r.http.Get(r.url + "/healthz"); return err != nil }, "still listening")
	require.Empty(t, second)
	require.NoError(t, first.Body.Close())
	require.Equal(t, 200, r.got(second).resp.StatusCode)
	require.NoError(t, <-stopped)
	s := r.node.Pool.Stats()
	require.Zero(t, s.OpenLeases)
	require.Zero(t, s.Queue.Waiting)
}

// TestStopRefusesWhoWaitsTooLong: who has not been served by the middle of the grace is told so while there is time.
func TestStopRefusesWhoWaitsTooLong(t *testing.T) {
	cfg := one(router.Queue{Max: 4})
	cfg.Gateway.Grace = 600 * time.Millisecond
	r := start(t, cfg, "a")
	first, rest := r.running()
	defer func() { _ = first.Body.Close() }()
	var waiting []<-chan answer
	for range 3 {
		waiting = append(waiting, r.send(t.Context(), ""))
	}
	r.waits(3)
	begin := time.Now()
	require.ErrorContains(t, r.stop(), "600ms", "the stream has no end")
	require.GreaterOrEqual(t, time.Since(begin), 600*time.Millisecond)
	for _, w := range waiting {
		a := r.refused(w, 503, "server_error", "no_endpoints")
		require.Empty(t, a.resp.Header.Get("Retry-After"))
	}
	_, err := io.Copy(io.Discard, rest)
	require.Error(t, err)
	s := r.node.Pool.Stats()
	require.Zero(t, s.OpenLeases)
	require.Zero(t, s.Queue.Waiting)
	require.EqualValues(t, 3, s.Queue.Cancelled)
}

// TestDebugPageShowsAdmission: settings, queue, limits and seeds, and nobody's name.
func TestDebugPageShowsAdmission(t *testing.T) {
	cfg := one(router.Queue{Max: 4, MaxTokens: 1000})
	cfg.Pool.Caps.TenantTokens = 1 << 20
	cfg.Pool.Shares.Interactive = 0.25
	cfg.Pool.Seeds.Max = 2
	cfg.Pool.Limit = router.Limit{Adaptive: true, Learn: admission.LimitConfig{ObserveOnly: true}}
	cfg.Gateway.TrustClass = true
	r := start(t, cfg, "a")
	first, _ := r.running()
	waiting := r.send(t.Context(), `,"user":"a secret user"`, "Authorization", "Bearer secret", gateway.HeaderClass, "interactive")
	r.waits(1)
	page := read(t, r.get("/debug/isobar"))
	require.NotContains(t, page, "secret")
	var doc struct {
		Admission struct {
			Caps   map[string]int64
			Queue  map[string]any
			Shares map[string]float64
			Seeds  map[string]any
			Limit  string           `json:"adaptive_limit"`
			Errors map[string]int64 `json:"errors"`
		}
		Stats router.Stats
	}
	require.NoError(t, json.Unmarshal([]byte(page), &doc))
	a, q := doc.Admission, doc.Stats.Queue
	require.Equal(t, map[string]int64{"waiting": 0, "endpoint": 0, "aggregate": 1, "tenant": 0, "tenant_tokens": 1 << 20}, a.Caps)
	require.EqualValues(t, 4, a.Queue["max"])
	require.EqualValues(t, 30*time.Second, a.Queue["timeout_ns"])
	require.Equal(t, map[string]float64{"interactive": 0.25}, a.Shares)
	require.EqualValues(t, 2, a.Seeds["max"])
	require.EqualValues(t, 0, a.Seeds["given"])
	require.Equal(t, "observe", a.Limit)
	require.Empty(t, a.Errors)
	require.Equal(t, 1, q.Waiting)
	require.Equal(t, map[string]int{"interactive": 1}, q.ByClass)
	require.Positive(t, q.Oldest)
	require.NotNil(t, doc.Stats.Endpoints[0].Limiter)
	require.Positive(t, doc.Stats.Endpoints[0].Limiter.Limit)
	require.NoError(t, first.Body.Close())
	require.Equal(t, 200, r.got(waiting).resp.StatusCode)

	r = start(t, node.Config{}, "a")
	page = read(t, r.get("/debug/isobar"))
	for _, part := range []string{`"queue": null`, `"seeds": null`, `"adaptive_limit": "off"`, `"shares": {}`} {
		require.Contains(t, page, part)
	}
}

// TestFailClosedWaits: where the state of the engines is not known a request waits until it is, and without a queue is refused.
func TestFailClosedWaits(t *testing.T) {
	closed := router.Config{FailClosed: true}
	r := start(t, node.Config{Pool: closed, Endpoints: []router.Endpoint{{ID: "x", Address: "http://127.0.0.1:1"}}})
	r.refused(r.send(t.Context(), ""), 503, "server_error", "telemetry_incomplete")
	closed.Queue = router.Queue{Max: 4, Timeout: 200 * time.Millisecond}
	r = start(t, node.Config{Pool: closed, Endpoints: []router.Endpoint{{ID: "x", Address: "http://127.0.0.1:1"}}})
	r.refused(r.send(t.Context(), ""), 429, "rate_limit_error", "queue_timeout")
}
