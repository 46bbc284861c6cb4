package demo

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"

	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
)

// verdict is how a request ended, as its client saw it.
type verdict string

const (
	answered verdict = "answered"
	refused  verdict = "refused" // 429: too much at once
	broken   verdict = "broken"  // an error event in the middle of the stream
	lost     verdict = "lost"    // anything else: must not happen
)

// result is what a client saw of its request. Times are of the clock.
type result struct {
	job
	sent     time.Time
	start    time.Duration // until the first token
	took     time.Duration // until the end
	verdict  verdict
	endpoint string
	attempts int
	prompt   int64 // tokens, as the engine counts
	cached   int64
	output   int64
	err      error
}

// progress is what others may know of a request under way.
type progress struct {
	endpoint atomic.Pointer[string]
	chunks   atomic.Int64
	over     atomic.Bool
}

// client sends requests as an application would: with OpenAI's own library.
type client struct {
	openai openai.Client
	base   *http.Transport
}

func newClient(url string) *client {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.Proxy = nil
	base.MaxIdleConnsPerHost = 256
	return &client{
		openai: openai.NewClient(
			option.WithBaseURL(url+"/v1"), option.WithAPIKey("demonstration"), option.WithHTTPClient(&http.Client{Transport: base}),
			option.WithMaxRetries(0), // what the gateway says is what counts here
		),
		base: base,
	}
}

func (c *client) close() { c.base.CloseIdleConnections() }

func (c *client) run(ctx context.Context, j job, model string, p *progress) result {
	defer p.over.Store(true)
	params := openai.ChatCompletionNewParams{
		Model: model, MaxTokens: openai.Int(j.output),
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	}
	for _, m := range j.messages {
		switch m.role {
		case "system":
			params.Messages = append(params.Messages, openai.SystemMessage(m.text))
		case "assistant":
			params.Messages = append(params.Messages, openai.AssistantMessage(m.text))
		default:
			params.Messages = append(params.Messages, openai.UserMessage(m.text))
		}
	}
	var resp *http.Response
	opts := []option.RequestOption{
		option.WithHeader(gateway.HeaderRequestID, j.id), option.WithHeader(gateway.HeaderClass, j.class.String()),
		option.WithResponseInto(&resp),
	}
	if j.session != "" {
		opts = append(opts, option.WithHeader("X-Session-Id", j.session))
	}
	if j.exact {
		opts = append(opts, option.WithJSONSet("ignore_eos", true))
	}
	r := result{job: j, sent: time.Now()}
	stream := c.openai.Chat.Completions.NewStreaming(ctx, params, opts...)
	defer func() { _ = stream.Close() }()
	if resp != nil {
		r.endpoint = resp.Header.Get(gateway.HeaderEndpoint)
		r.attempts, _ = strconv.Atoi(resp.Header.Get(gateway.HeaderAttempts))
		p.endpoint.Store(&r.endpoint)
	}
	for stream.Next() {
		chunk := stream.Current()
		if len(chunk.Choices) > 0 && chunk.Choices[0].Delta.Content != "" {
			if p.chunks.Add(1) == 1 {
				r.start = time.Since(r.sent)
			}
		}
		if u := chunk.Usage; u.TotalTokens > 0 {
			r.prompt, r.cached, r.output = u.PromptTokens, u.PromptTokensDetails.CachedTokens, u.CompletionTokens
		}
	}
	r.took = time.Since(r.sent)
	r.err = stream.Err()
	r.verdict = judge(&r)
	return r
}

func judge(r *result) verdict {
	var status *openai.Error
	var event *ssestream.StreamError
	switch {
	case r.err == nil && r.output > 0 && r.start > 0:
		return answered
	case errors.As(r.err, &status) && status.StatusCode == http.StatusTooManyRequests:
		return refused
	case errors.As(r.err, &event):
		return broken
	}
	return lost
}
