package node_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
	"github.com/isobar-go/isobar/examples/gateway/internal/node"
	"github.com/isobar-go/isobar/examples/internal/embedded"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const scale = 50

// rig is a node before embedded engines, on loopback.
type rig struct {
	t       *testing.T
	node    *node.Node
	engines map[string]*embedded.Engine
	url     string
	http    *http.Client
	stop    func() error // once
}

func start(t *testing.T, cfg node.Config, engines ...string) *rig {
	r := &rig{t: t, engines: map[string]*embedded.Engine{}}
	for _, name := range engines {
		e, err := embedded.Start(embedded.Config{Name: name, TimeScale: scale, OutputTokens: 16})
		require.NoError(t, err)
		t.Cleanup(e.Kill)
		r.engines[name] = e
		cfg.Endpoints = append(cfg.Endpoints, router.Endpoint{
			ID: name, Address: e.URL(), Profile: score.Profile{Base: 6.8 / scale, PrefillToken: 0.03 / scale, KVCapacity: 421_011},
		})
	}
	cfg.Every = 20 * time.Millisecond
	n, err := node.New(cfg)
	require.NoError(t, err)
	r.node = n
	n.Poll(t.Context())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r.url = "http://" + ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx, ln) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	base := &http.Transport{}
	r.http = &http.Client{Transport: base}
	t.Cleanup(func() {
		base.CloseIdleConnections()
		_ = r.stop()
	})
	return r
}

func (r *rig) openai() openai.Client {
	return openai.NewClient(option.WithBaseURL(r.url+"/v1"), option.WithAPIKey("k"), option.WithHTTPClient(r.http), option.WithMaxRetries(0))
}

// chat posts a request as it is.
func (r *rig) chat(prompt, more string) *http.Response {
	body := fmt.Sprintf(`{"model":"demo","messages":[{"role":"user","content":%q}]%s}`, prompt, more)
	resp, err := r.http.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	require.NoError(r.t, err)
	return resp
}

func (r *rig) get(path string) *http.Response {
	resp, err := r.http.Get(r.url + path)
	require.NoError(r.t, err)
	return resp
}

func (r *rig) eventually(f func() bool, what string) {
	r.t.Helper()
	require.Eventually(r.t, f, 5*time.Second, 5*time.Millisecond, what)
}

func (r *rig) drained() {
	r.t.Helper()
	r.eventually(func() bool { return r.node.Pool.Stats().OpenLeases == 0 }, "a lease is still open")
}

func read(t *testing.T, resp *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return string(body)
}

// failure is the error document of a response.
func failure(t *testing.T, resp *http.Response) (code string) {
	t.Helper()
	var doc struct {
		Error struct {
			Message, Type string
			Code          string
		}
	}
	text := read(t, resp)
	require.NoError(t, json.Unmarshal([]byte(text), &doc), text)
	require.NotEmpty(t, doc.Error.Message)
	require.NotEmpty(t, doc.Error.Type)
	return doc.Error.Code
}

const endless = `,"stream":true,"ignore_eos":true,"max_tokens":50000`

// running opens an endless stream and reads its first event.
func (r *rig) running() (*http.Response, *bufio.Reader) {
	resp := r.chat("go on", endless)
	require.Equal(r.t, 200, resp.StatusCode)
	lines := bufio.NewReader(resp.Body)
	_, err := lines.ReadString('\n')
	require.NoError(r.t, err)
	return resp, lines
}

func TestStreamsAndUsage(t *testing.T) {
	var receipts lines
	r := start(t, node.Config{Receipts: &receipts}, "a", "b")
	c := r.openai()
	params := openai.ChatCompletionNewParams{
		Model: "demo", MaxTokens: openai.Int(7), Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello there")},
	}
	whole, err := c.Chat.Completions.New(t.Context(), params)
	require.NoError(t, err)
	require.EqualValues(t, 7, whole.Usage.CompletionTokens)

	params.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := c.Chat.Completions.NewStreaming(t.Context(), params, option.WithHeader("X-Request-Id", "mine"))
	var text strings.Builder
	var usage openai.CompletionUsage
	for stream.Next() {
		if chunk := stream.Current(); len(chunk.Choices) > 0 {
			text.WriteString(chunk.Choices[0].Delta.Content)
		} else {
			usage = chunk.Usage
		}
	}
	require.NoError(t, stream.Err())
	require.NoError(t, stream.Close())
	require.Equal(t, whole.Choices[0].Message.Content, text.String())
	require.EqualValues(t, 7, usage.CompletionTokens)

	completion, err := c.Completions.New(t.Context(), openai.CompletionNewParams{
		Model: "demo", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("once")}, MaxTokens: openai.Int(3),
	})
	require.NoError(t, err)
	require.EqualValues(t, 3, completion.Usage.CompletionTokens)

	models, err := c.Models.List(t.Context())
	require.NoError(t, err)
	require.Len(t, models.Data, 1)
	require.Equal(t, "demo", models.Data[0].ID)

	_, err = c.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{Model: "other", Messages: params.Messages})
	var bad *openai.Error
	require.ErrorAs(t, err, &bad)
	require.Equal(t, http.StatusNotFound, bad.StatusCode)
	require.Equal(t, "model_not_found", bad.Code)

	r.drained()
	require.NoError(t, r.stop())
	require.Equal(t, 4, len(receipts.all()))
	require.Contains(t, string(receipts.all()[3]), `"rejected":"no-endpoints"`)
	var last router.Receipt
	require.NoError(t, json.Unmarshal(receipts.all()[1], &last))
	require.Equal(t, "mine", last.RequestID)
	require.Equal(t, router.Usage{PromptTokens: usage.PromptTokens, OutputTokens: 7}, last.Outcome.Usage)
	require.EqualValues(t, 7, last.Outcome.Tokens)
	require.NotZero(t, last.Tenant)
}

// lines is a writer whose content may be read at the end.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) all() [][]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Split(bytes.TrimSuffix(l.buf.Bytes(), []byte("\n")), []byte("\n"))
}

// TestWarmPrefix: a conversation goes on where it began, and the engine finds it in its cache.
func TestWarmPrefix(t *testing.T) {
	r := start(t, node.Config{}, "a", "b", "c")
	for talk := range 6 {
		prompt := fmt.Sprintf("conversation %d ", talk) + strings.Repeat("a long beginning ", 500)
		first := r.chat(prompt, `,"max_tokens":2`)
		read(t, first)
		r.drained()
		second := r.chat(prompt, `,"max_tokens":2`)
		require.Equal(t, first.Header.Get(gateway.HeaderEndpoint), second.Header.Get(gateway.HeaderEndpoint))
		var doc struct {
			Usage struct {
				Details struct {
					Cached int64 `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		require.NoError(t, json.Unmarshal([]byte(read(t, second)), &doc))
		require.Greater(t, doc.Usage.Details.Cached, int64(2000))
		r.drained()
	}
}

func TestDrainedEngineGetsNothing(t *testing.T) {
	r := start(t, node.Config{}, "a", "b")
	r.engines["a"].SetDraining(true)
	for range 10 { // before the gateway knows, the engine's refusal is no answer; after, it is not asked
		resp := r.chat("hello", `,"max_tokens":2`)
		require.Equal(t, 200, resp.StatusCode)
		require.Equal(t, "b", resp.Header.Get(gateway.HeaderEndpoint))
		read(t, resp)
	}
	state := func() router.Reason { return r.node.Pool.Stats().Endpoints[0].State }
	r.eventually(func() bool { return state() == router.Draining }, "not noticed")
	r.engines["a"].SetDraining(false)
	r.eventually(func() bool { return state() == router.NoReason }, "not taken back")
	r.drained()
}

// TestKillInMidStream: the client of a stream that dies is told in the stream, and later requests go elsewhere.
func TestKillInMidStream(t *testing.T) {
	r := start(t, node.Config{}, "a", "b")
	c := r.openai()
	var resp *http.Response
	stream := c.Chat.Completions.NewStreaming(t.Context(), openai.ChatCompletionNewParams{
		Model: "demo", MaxTokens: openai.Int(50000), Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("go on")},
	}, option.WithJSONSet("ignore_eos", true), option.WithResponseInto(&resp))
	require.True(t, stream.Next())
	victim := resp.Header.Get(gateway.HeaderEndpoint)
	r.engines[victim].Kill()
	for stream.Next() {
	}
	var event *ssestream.StreamError
	require.ErrorAs(t, stream.Err(), &event)
	require.ErrorContains(t, stream.Err(), "upstream_failed")
	require.NoError(t, stream.Close())
	for range 10 {
		resp := r.chat("hello", `,"max_tokens":2`)
		require.Equal(t, 200, resp.StatusCode)
		require.NotEqual(t, victim, resp.Header.Get(gateway.HeaderEndpoint))
		read(t, resp)
	}
	r.drained()
	s := r.node.Pool.Stats()
	require.Positive(t, s.Failed)
	r.eventually(func() bool { return r.node.Pool.Stats().ScrapeErrors > 0 }, "failed polls are told")
	require.NoError(t, r.stop(), "a gateway stops in good order whatever its engines do")
}

func TestCaps(t *testing.T) {
	r := start(t, node.Config{Pool: router.Config{Caps: admission.Caps{Aggregate: 2}}}, "a", "b")
	one, _ := r.running()
	two, _ := r.running()
	over := r.chat("one too many", "")
	require.Equal(t, http.StatusTooManyRequests, over.StatusCode)
	require.Equal(t, "saturated", failure(t, over))
	require.Equal(t, http.StatusTooManyRequests, r.status("/healthz"), "healthy, but full")
	_ = one.Body.Close()
	_ = two.Body.Close()
	r.drained()
	r.eventually(func() bool { return r.status("/healthz") == 200 }, "the engines report that they are idle")
	s := r.node.Pool.Stats()
	require.EqualValues(t, 2, s.Cancelled)
	require.Zero(t, s.Failed)
}

func (r *rig) status(path string) int {
	resp := r.get(path)
	_ = read(r.t, resp)
	return resp.StatusCode
}

func TestWithoutEngines(t *testing.T) {
	r := start(t, node.Config{})
	resp := r.chat("hello", "")
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.Equal(t, "no_endpoints", failure(t, resp))
	require.Equal(t, http.StatusServiceUnavailable, r.status("/healthz"))
	require.Equal(t, http.StatusServiceUnavailable, r.status("/v1/models"))
}

func TestDebugPage(t *testing.T) {
	r := start(t, node.Config{}, "a")
	const secret = "a secret key"
	req, err := http.NewRequest(http.MethodPost, r.url+"/v1/completions", strings.NewReader(`{"model":"demo","prompt":"a secret prompt","user":"a secret user"}`))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+secret)
	resp, err := r.http.Do(req)
	require.NoError(t, err)
	read(t, resp)
	r.drained()
	resp = r.get("/debug/isobar")
	require.Equal(t, 200, resp.StatusCode)
	page := read(t, resp)
	require.NotContains(t, page, "secret")
	var doc struct {
		Policy   string
		Stats    router.Stats
		Receipts []router.Receipt
	}
	require.NoError(t, json.Unmarshal([]byte(page), &doc))
	require.Equal(t, "pressure", doc.Policy)
	require.EqualValues(t, 1, doc.Stats.Completed)
	require.Len(t, doc.Receipts, 1)
	require.Len(t, doc.Receipts[0].Candidates, 1)

	req, err = http.NewRequest(http.MethodGet, r.url+"/debug/isobar", nil)
	require.NoError(t, err)
	req.Header.Set("X-Forwarded-For", "203.0.113.5")
	resp, err = r.http.Do(req)
	require.NoError(t, err)
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
	require.Equal(t, "forbidden", failure(t, resp))
}

func TestRefusals(t *testing.T) {
	r := start(t, node.Config{Gateway: gateway.Config{MaxBody: 1000}}, "a")
	resp := r.chat(strings.Repeat("x", 2000), "")
	require.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode)
	require.Equal(t, "request_too_large", failure(t, resp))

	// The same without a length.
	req, err := http.NewRequest(http.MethodPost, r.url+"/v1/completions", io.MultiReader(strings.NewReader(strings.Repeat("x", 2000))))
	require.NoError(t, err)
	resp, err = r.http.Do(req)
	require.NoError(t, err)
	require.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode)
	_ = resp.Body.Close()

	resp, err = r.http.Post(r.url+"/v1/completions", "application/json", strings.NewReader("{"))
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
	_ = failure(t, resp)

	resp = r.get("/v1/chat/completions")
	require.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)
	require.Equal(t, "method_not_allowed", failure(t, resp))
	resp = r.get("/nowhere")
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
	require.Equal(t, "unknown_url", failure(t, resp))

	req, err = http.NewRequest(http.MethodGet, r.url+"/healthz", nil)
	require.NoError(t, err)
	req.Header.Set("X-Big", strings.Repeat("x", 100<<10))
	resp, err = r.http.Do(req)
	require.NoError(t, err)
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, resp.StatusCode)
	_ = resp.Body.Close()
	require.Zero(t, r.node.Pool.Stats().Decisions, "nothing of it reached an engine")
}

// TestSlowClients: a body that does not come, and an answer that is not taken, end after their time.
func TestSlowClients(t *testing.T) {
	r := start(t, node.Config{Gateway: gateway.Config{BodyTimeout: 100 * time.Millisecond, StallTimeout: 150 * time.Millisecond}}, "a")
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	require.NoError(t, err)
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)

	body := `{"model":"demo","prompt":"x","ignore_eos":true,"stream":true,"max_tokens":100000}`
	stalled, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	require.NoError(t, err)
	defer stalled.Close()
	require.NoError(t, stalled.(*net.TCPConn).SetReadBuffer(4096))
	_, err = fmt.Fprintf(stalled, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	require.NoError(t, err)
	require.Eventually(t, func() bool { s := r.node.Pool.Stats(); return s.Cancelled == 1 && s.OpenLeases == 0 }, 15*time.Second, 10*time.Millisecond,
		"a client that takes nothing is left")
	require.Zero(t, r.node.Pool.Stats().Failed)

	// Neither limit touches a stream that is longer than both and is taken.
	long := r.chat("go on", `,"stream":true,"ignore_eos":true,"max_tokens":3000`)
	require.True(t, strings.HasSuffix(read(t, long), "data: [DONE]\n\n"))
	r.drained()
}

// TestPauses: the time an answer may lie untaken is not that between two parts of it, nor before its end, and leaves nothing
// behind on the connection.
func TestPauses(t *testing.T) {
	const stall = 40 * time.Millisecond
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("X-Request-Id", "the engine's own")
		for range 2 {
			_, _ = io.WriteString(w, "data: {}\n\n")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(3 * stall)
		}
	}))
	defer engine.Close()
	r := start(t, node.Config{
		Gateway: gateway.Config{StallTimeout: stall, BodyTimeout: stall}, Endpoints: []router.Endpoint{{ID: "x", Address: engine.URL}},
	})
	for range 2 {
		resp := r.chat("hello", "")
		require.Equal(t, "data: {}\n\ndata: {}\n\n", read(t, resp))
		require.Len(t, resp.Header.Values(gateway.HeaderRequestID), 1)
		require.NotContains(t, resp.Header.Get(gateway.HeaderRequestID), "engine")
	}
	r.drained()
	require.EqualValues(t, 2, r.node.Pool.Stats().Completed)
}

// TestGracefulStop: an open stream comes to its end, a new request is not taken.
func TestGracefulStop(t *testing.T) {
	r := start(t, node.Config{}, "a")
	resp := r.chat("go on", `,"stream":true,"ignore_eos":true,"max_tokens":2000`)
	first := make([]byte, 10)
	_, err := io.ReadFull(resp.Body, first)
	require.NoError(t, err)
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	r.eventually(func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, "still listening")
	require.True(t, strings.HasSuffix(read(t, resp), "data: [DONE]\n\n"))
	require.NoError(t, <-stopped)
	s := r.node.Pool.Stats()
	require.EqualValues(t, 1, s.Completed)
	require.Zero(t, s.OpenLeases)
}

// TestStopAfterGrace: a stream that does not end is broken off.
func TestStopAfterGrace(t *testing.T) {
	r := start(t, node.Config{Gateway: gateway.Config{Grace: 100 * time.Millisecond}}, "a")
	resp, rest := r.running()
	require.ErrorContains(t, r.stop(), "100ms")
	_, err := io.Copy(io.Discard, rest)
	require.Error(t, err)
	_ = resp.Body.Close()
	s := r.node.Pool.Stats()
	require.Zero(t, s.OpenLeases, "Run returns when the last request has ended")
	require.Zero(t, s.Failed, "which is no fault of the engine")
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []node.Config{
		{Pool: router.Config{Caps: admission.Caps{Tenant: -1}}},
		{Endpoints: []router.Endpoint{{Address: "http://a"}}},
		{Endpoints: []router.Endpoint{{ID: "a", Address: "a:8000"}}},
		{Gateway: gateway.Config{MaxBody: -1, Grace: -1}},
	} {
		_, err := node.New(c)
		require.Error(t, err)
	}
}
