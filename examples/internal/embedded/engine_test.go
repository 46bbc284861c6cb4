package embedded_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/isobar-go/isobar/examples/internal/embedded"
	"github.com/isobar-go/isobar/internal/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a fast engine until the end of the test.
func start(t *testing.T, cfg embedded.Config) *embedded.Engine {
	t.Helper()
	if cfg.TimeScale == 0 {
		cfg.TimeScale = 200
	}
	e, err := embedded.Start(cfg)
	require.NoError(t, err)
	t.Cleanup(e.Kill)
	return e
}

func newClient(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

func post(t *testing.T, c *http.Client, url string, body any) *http.Response {
	t.Helper()
	raw, ok := body.(string)
	if !ok {
		b, err := json.Marshal(body)
		require.NoError(t, err)
		raw = string(b)
	}
	resp, err := c.Post(url, "application/json", strings.NewReader(raw))
	require.NoError(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func decode[T any](t *testing.T, r io.Reader) T {
	t.Helper()
	var v T
	require.NoError(t, json.NewDecoder(r).Decode(&v))
	return v
}

type obj = map[string]any

func chat(content string, more obj) obj {
	o := obj{"model": "demo", "messages": []obj{{"role": "user", "content": content}}}
	for k, v := range more {
		o[k] = v
	}
	return o
}

type reply struct {
	ID, Object, Model string
	Choices           []struct {
		Message      struct{ Role, Content string }
		Delta        struct{ Role, Content string }
		Text         string
		FinishReason string `json:"finish_reason"`
	}
	Usage *struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
		Total      int64 `json:"total_tokens"`
		Details    struct {
			Cached int64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

// events reads the data lines of a stream and checks its framing.
func events(r io.Reader) (list []string, err error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			return list, fmt.Errorf("not an event: %q", lines.Text())
		}
		if !lines.Scan() || lines.Text() != "" {
			return list, errors.Join(fmt.Errorf("event %q is not closed", data), lines.Err())
		}
		list = append(list, data)
	}
	return list, lines.Err()
}

func TestChatWhole(t *testing.T) {
	e := start(t, embedded.Config{Name: "a"})
	resp := post(t, newClient(t), e.URL()+"/v1/chat/completions", chat("how is the weather", nil))
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "a", resp.Header.Get("X-Engine-Name"))
	r := decode[reply](t, resp.Body)
	require.Equal(t, "chat.completion", r.Object)
	require.Equal(t, "chatcmpl-a-1", r.ID)
	require.Equal(t, "assistant", r.Choices[0].Message.Role)
	require.Equal(t, "stop", r.Choices[0].FinishReason)
	require.Len(t, r.Choices[0].Message.Content, 4*128)
	require.EqualValues(t, 1+5+1+1, r.Usage.Prompt, "role, text, end, role of the answer")
	require.EqualValues(t, 128, r.Usage.Completion)
	require.EqualValues(t, 136, r.Usage.Total)
}

func TestChatStream(t *testing.T) {
	e := start(t, embedded.Config{})
	c := newClient(t)
	ask := chat("how is the weather", obj{"stream": true, "max_tokens": 7, "stream_options": obj{"include_usage": true}})
	resp := post(t, c, e.URL()+"/v1/chat/completions", ask)
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "text/event-stream; charset=utf-8", resp.Header.Get("Content-Type"))
	list, err := events(resp.Body)
	require.NoError(t, err)
	require.Len(t, list, 1+7+1+1, "role, tokens, usage, end")
	require.Equal(t, "[DONE]", list[9])
	text := ""
	for i, data := range list[:9] {
		r := decode[reply](t, strings.NewReader(data))
		require.Equal(t, "chat.completion.chunk", r.Object)
		if i == 8 {
			require.Empty(t, r.Choices)
			require.EqualValues(t, 7, r.Usage.Completion)
			continue
		}
		require.Nil(t, r.Usage)
		if i == 0 {
			require.Equal(t, "assistant", r.Choices[0].Delta.Role)
		} else {
			require.Len(t, r.Choices[0].Delta.Content, 4)
		}
		require.Equal(t, i == 7, r.Choices[0].FinishReason == "length")
		text += r.Choices[0].Delta.Content
	}
	delete(ask, "stream")
	delete(ask, "stream_options")
	whole := decode[reply](t, post(t, c, e.URL()+"/v1/chat/completions", ask).Body)
	require.Equal(t, whole.Choices[0].Message.Content, text, "the same request has the same answer")
}

func TestCompletions(t *testing.T) {
	e := start(t, embedded.Config{OutputTokens: 5})
	c := newClient(t)
	r := decode[reply](t, post(t, c, e.URL()+"/v1/completions", obj{"model": "demo", "prompt": "12345678 "}).Body)
	require.Equal(t, "text_completion", r.Object)
	require.Len(t, r.Choices[0].Text, 20)
	require.EqualValues(t, 3, r.Usage.Prompt)
	r = decode[reply](t, post(t, c, e.URL()+"/v1/completions", obj{"model": "demo", "prompt": []int{5, 6, 7, 8}, "max_tokens": 9, "ignore_eos": true}).Body)
	require.EqualValues(t, 4, r.Usage.Prompt)
	require.EqualValues(t, 9, r.Usage.Completion)
	require.Equal(t, "length", r.Choices[0].FinishReason)

	list, err := events(post(t, c, e.URL()+"/v1/completions", obj{"model": "demo", "prompt": []string{"x"}, "max_tokens": 2, "stream": true}).Body)
	require.NoError(t, err)
	require.Len(t, list, 3)
	require.Contains(t, list[0], `"text":"`)
}

// The second turn of a conversation finds the first one, answer included, in the cache.
func TestCachedTokens(t *testing.T) {
	e := start(t, embedded.Config{OutputTokens: 40})
	c := newClient(t)
	url := e.URL() + "/v1/chat/completions"
	long := strings.Repeat("pressure falls, wind rises. ", 40)
	first := decode[reply](t, post(t, c, url, chat(long, nil)).Body)
	require.Zero(t, first.Usage.Details.Cached)
	require.EqualValues(t, 1+280+2, first.Usage.Prompt)
	again := decode[reply](t, post(t, c, url, chat(long, nil)).Body)
	require.EqualValues(t, 272, again.Usage.Details.Cached, "17 of 17.7 blocks")

	next := decode[reply](t, post(t, c, url, obj{"model": "demo", "messages": []obj{
		{"role": "user", "content": long}, {"role": "assistant", "content": again.Choices[0].Message.Content},
		{"role": "user", "content": []obj{{"type": "text", "text": "and tomorrow?"}}},
	}}).Body)
	require.EqualValues(t, 320, next.Usage.Details.Cached, "283 of the prompt and 39 of the answer fill 20 blocks")

	other := decode[reply](t, post(t, c, url, chat(long, obj{"cache_salt": "someone else"})).Body)
	require.Zero(t, other.Usage.Details.Cached)
	s := e.Stats()
	require.EqualValues(t, 272+320, s.CacheHits)
	e.ClearCache()
	require.Zero(t, e.Stats().CachedBlocks)
}

func TestErrors(t *testing.T) {
	p, _ := sim.ProfileByName("h100-8b")
	p.KVTokens = 640
	e := start(t, embedded.Config{Profile: p})
	c := newClient(t)
	huge := `{"model":"demo","prompt":"` + strings.Repeat("x", 9<<20) + `"}`
	for _, tt := range []struct {
		path   string
		body   any
		status int
		param  any
		code   any
		text   string
	}{
		{"chat/completions", `{"model":`, 400, nil, nil, "could not parse"},
		{"chat/completions", `{"model":"demo"} trailing`, 400, nil, nil, "could not parse"},
		{"chat/completions", ``, 400, nil, nil, "could not parse"},
		{"chat/completions", chat("x", obj{"max_tokens": "many"}), 400, "max_tokens", nil, "Invalid type"},
		{"chat/completions", chat("x", obj{"max_tokens": 0}), 400, "max_tokens", nil, "at least 1, got 0"},
		{"chat/completions", chat("x", obj{"max_completion_tokens": -3}), 400, "max_completion_tokens", nil, "at least 1, got -3"},
		{"chat/completions", chat("x", obj{"n": 2}), 400, "n", nil, "got 2"},
		{"chat/completions", chat("x", obj{"stream_options": obj{}}), 400, "stream_options", nil, "only allowed"},
		{"chat/completions", chat("x", obj{"model": "other"}), 404, "model", "model_not_found", `"other" does not exist`},
		{"chat/completions", obj{"messages": []obj{}}, 400, "model", nil, "model parameter"},
		{"chat/completions", obj{"model": "demo"}, 400, "messages", nil, "at least one message"},
		{"chat/completions", obj{"model": "demo", "messages": []obj{{"content": "x"}}}, 400, "messages[0].role", nil, "missing"},
		{"chat/completions", obj{"model": "demo", "messages": []obj{{"role": "user", "content": 5}}}, 400, "messages[0].content", nil, "text parts"},
		{"chat/completions", obj{"model": "demo", "messages": []obj{{"role": "user", "content": []obj{{"type": "image_url"}}}}}, 400, "messages[0].content", nil, "text parts"},
		{"chat/completions", chat(strings.Repeat("x", 4*640), nil), 400, "messages", "context_length_exceeded", "maximum context length is 640 tokens"},
		{"chat/completions", chat("x", obj{"max_tokens": 1 << 60}), 400, "messages", "context_length_exceeded", "maximum context length"},
		{"completions", obj{"model": "demo", "prompt": "x", "max_tokens": 640}, 400, "prompt", "context_length_exceeded", "641 tokens (1 in the prompt"},
		{"completions", obj{"model": "demo"}, 400, "prompt", nil, "provide a prompt"},
		{"completions", obj{"model": "demo", "prompt": ""}, 400, "prompt", nil, "empty"},
		{"completions", obj{"model": "demo", "prompt": []string{"a", "b"}}, 400, "prompt", nil, "must be"},
		{"completions", obj{"model": "demo", "prompt": []int{-1}}, 400, "prompt", nil, "prompt[0] is -1"},
		{"completions", huge, 413, nil, "request_too_large", "larger than 8388608 bytes"},
		{"embeddings", obj{}, 404, nil, "unknown_url", "/v1/embeddings"},
		{"models", obj{}, 405, nil, nil, "use GET"},
	} {
		resp := post(t, c, e.URL()+"/v1/"+tt.path, tt.body)
		require.Equal(t, tt.status, resp.StatusCode, tt.text)
		got := decode[struct{ Error obj }](t, resp.Body).Error
		require.Contains(t, got["message"], tt.text)
		require.Equal(t, "invalid_request_error", got["type"])
		require.Equal(t, tt.param, got["param"], tt.text)
		require.Equal(t, tt.code, got["code"], tt.text)
	}
	require.Zero(t, e.Stats().Submitted)

	// At the brim of the context an answer is cut short.
	r := decode[reply](t, post(t, c, e.URL()+"/v1/completions", obj{"model": "demo", "prompt": strings.Repeat("x", 4*600)}).Body)
	require.EqualValues(t, 40, r.Usage.Completion)
	require.Equal(t, "length", r.Choices[0].FinishReason)
}

// Fifty streams at once all come out whole, and the engine is empty after them.
func TestManyStreams(t *testing.T) {
	e := start(t, embedded.Config{OutputTokens: 50})
	c := newClient(t)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			body, err := json.Marshal(chat(strings.Repeat(fmt.Sprint("cloud ", i%5), 300), obj{"stream": true}))
			if !assert.NoError(t, err) {
				return
			}
			resp, err := c.Post(e.URL()+"/v1/chat/completions", "application/json", bytes.NewReader(body))
			if !assert.NoError(t, err) {
				return
			}
			defer func() { _ = resp.Body.Close() }()
			list, err := events(resp.Body)
			assert.NoError(t, err)
			assert.Len(t, list, 52)
		})
	}
	wg.Wait()
	s := e.Stats()
	require.EqualValues(t, 50, s.Finished)
	require.EqualValues(t, 50*50, s.GeneratedTokens)
	require.Zero(t, s.Running+s.Waiting+s.UsedBlocks)
	require.Positive(t, s.CacheHits)
	require.NoError(t, e.Shutdown(t.Context()))
}

// A public client library understands every kind of answer.
func TestOpenAIClient(t *testing.T) {
	e := start(t, embedded.Config{OutputTokens: 20})
	c := openai.NewClient(option.WithBaseURL(e.URL()+"/v1"), option.WithAPIKey("none"), option.WithHTTPClient(newClient(t)), option.WithMaxRetries(0))
	ask := openai.ChatCompletionNewParams{
		Model:         "demo",
		Messages:      []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("be brief"), openai.UserMessage("how is the weather")},
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	}
	s := c.Chat.Completions.NewStreaming(t.Context(), ask)
	acc := openai.ChatCompletionAccumulator{}
	for s.Next() {
		require.True(t, acc.AddChunk(s.Current()))
	}
	require.NoError(t, s.Err())
	require.Len(t, acc.Choices[0].Message.Content, 80)
	require.Equal(t, "stop", acc.Choices[0].FinishReason)
	require.EqualValues(t, 20, acc.Usage.CompletionTokens)

	ask.StreamOptions = openai.ChatCompletionStreamOptionsParam{}
	whole, err := c.Chat.Completions.New(t.Context(), ask)
	require.NoError(t, err)
	require.Equal(t, acc.Choices[0].Message.Content, whole.Choices[0].Message.Content)

	ask.Model = "other"
	_, err = c.Chat.Completions.New(t.Context(), ask)
	var apiErr *openai.Error
	require.ErrorAs(t, err, &apiErr)
	require.Equal(t, 404, apiErr.StatusCode)
	require.Equal(t, "model_not_found", apiErr.Code)

	models, err := c.Models.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, "demo", models.Data[0].ID)
}
