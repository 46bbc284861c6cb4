package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/isobar-go/isobar/internal/sim"
)

const (
	// maxBody bounds a request body, in bytes.
	maxBody = 8 << 20
	// bodyTimeout is how long a client may take to send it.
	bodyTimeout = 10 * time.Second
)

// apiRequest is the part of an OpenAI request that matters to the model. Everything else is ignored.
type apiRequest struct {
	Model         string          `json:"model"`
	Messages      []apiMessage    `json:"messages"`
	Tools         json.RawMessage `json:"tools"`
	Prompt        json.RawMessage `json:"prompt"`
	Stream        bool            `json:"stream"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	MaxTokens           *int64 `json:"max_tokens"`
	MaxCompletionTokens *int64 `json:"max_completion_tokens"`
	N                   *int64 `json:"n"`
	IgnoreEOS           bool   `json:"ignore_eos"`
	CacheSalt           string `json:"cache_salt"`
}

type apiMessage struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	ToolCalls  json.RawMessage `json:"tool_calls"`
	ToolCallID string          `json:"tool_call_id"`
}

// apiError is an error of the OpenAI API, with the status it travels under.
type apiError struct {
	status  int
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func (a *apiError) Error() string { return a.Message }

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func badRequest(param, code, format string, args ...any) *apiError {
	return &apiError{
		status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...), Type: "invalid_request_error",
		Param: orNil(param), Code: orNil(code),
	}
}

// readRequest reads and decodes a body.
func readRequest(w http.ResponseWriter, r *http.Request) (apiRequest, *apiError) {
	// A deadline left in place would end a long stream: it is taken back once the body is here. Both calls fail only on
	// a connection that is lost anyway.
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	_ = control.SetReadDeadline(time.Time{})
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		bad := badRequest("", "request_too_large", "The request body is larger than %d bytes.", maxBody)
		bad.status = http.StatusRequestEntityTooLarge
		return apiRequest{}, bad
	case err != nil:
		return apiRequest{}, badRequest("", "", "The request body could not be read: %v.", err)
	}
	return parseRequest(body)
}

func parseRequest(body []byte) (apiRequest, *apiError) {
	var req apiRequest
	err := json.Unmarshal(body, &req)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		return apiRequest{}, badRequest(wrong.Field, "", "Invalid type for %q: got a JSON %s.", wrong.Field, wrong.Value)
	case err != nil:
		return apiRequest{}, badRequest("", "", "We could not parse the JSON body of your request: %v.", err)
	}
	return req, nil
}

// job is a request made ready for the engine.
type job struct {
	request sim.Request
	seed    uint64
	// reason is how the answer will end: "stop" by itself, "length" at a limit.
	reason string
	// numbers are the ids of all tokens, the answer's included, and salt is the request's; with KV events only.
	numbers []uint32
	salt    string
}

// prepare checks a request and turns it into a job.
func (c Config) prepare(req apiRequest, chat bool) (job, *apiError) {
	switch {
	case req.Model == "":
		return job{}, badRequest("model", "", "You must provide a model parameter.")
	case req.Model != c.Model:
		bad := badRequest("model", "model_not_found", "The model %q does not exist.", req.Model)
		bad.status = http.StatusNotFound
		return job{}, bad
	case req.N != nil && *req.N != 1:
		return job{}, badRequest("n", "", "n must be 1, got %d.", *req.N)
	case req.StreamOptions != nil && !req.Stream:
		return job{}, badRequest("stream_options", "", "stream_options is only allowed when stream is true.")
	}
	limitName, limit := "max_tokens", req.MaxTokens
	if req.MaxCompletionTokens != nil {
		limitName, limit = "max_completion_tokens", req.MaxCompletionTokens
	}
	if limit != nil && *limit < 1 {
		return job{}, badRequest(limitName, "", "%s must be at least 1, got %d.", limitName, *limit)
	}
	p := newPrompt(c.Profile.BlockSize, req.CacheSalt)
	p.numbered = c.KVEvents
	if bad := p.add(req, chat); bad != nil {
		return job{}, bad
	}
	least := int64(1)
	if limit != nil {
		least = *limit
	}
	if least > c.MaxModelLen-p.tokens {
		field := "prompt"
		if chat {
			field = "messages"
		}
		return job{}, badRequest(field, "context_length_exceeded",
			"This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the prompt, %d for the completion).",
			c.MaxModelLen, p.tokens+min(least, 1<<40), p.tokens, least)
	}
	j := c.job(p, limit, req.IgnoreEOS)
	j.salt = req.CacheSalt
	return j, nil
}

// job fixes the answer: its length, why it ends and the blocks it fills.
func (c Config) job(p *prompt, limit *int64, ignoreEOS bool) job {
	j := job{seed: p.seed(), reason: "stop"}
	j.request.PromptTokens = p.tokens
	j.request.OutputTokens = min(c.OutputTokens, c.MaxModelLen-p.tokens)
	if limit != nil && (ignoreEOS || *limit <= j.request.OutputTokens) {
		j.request.OutputTokens = *limit
		j.reason = "length"
	} else if j.request.OutputTokens < c.OutputTokens {
		j.reason = "length"
	}
	for i := range j.request.OutputTokens {
		p.text(word(j.seed, i))
	}
	j.request.Blocks, j.numbers = p.blocks, p.numbers
	return j
}

// Tokenize gives the token ids of a request's prompt as the engine's KV events know them, whichever engine of this package
// it goes to: body is the request, and path that of its URL, which tells chat completions from bare prompts. false means
// that an engine would refuse the prompt. It may be called by any number of goroutines.
func Tokenize(path string, body []byte) ([]uint32, bool) {
	req, bad := parseRequest(body)
	if bad != nil {
		return nil, false
	}
	p := newPrompt(math.MaxInt64, "") // no block is wanted
	p.numbered = true
	if bad := p.add(req, strings.HasSuffix(path, "/chat/completions")); bad != nil {
		return nil, false
	}
	return p.numbers, true
}

// add adds the prompt of a request.
func (p *prompt) add(req apiRequest, chat bool) *apiError {
	if chat {
		return p.chat(req)
	}
	return p.completion(req.Prompt)
}

// chat adds a conversation and opens the answer.
func (p *prompt) chat(req apiRequest) *apiError {
	if len(req.Messages) == 0 {
		return badRequest("messages", "", "messages must hold at least one message.")
	}
	if !isNull(req.Tools) {
		p.role("tools")
		p.text(string(req.Tools))
		p.end()
	}
	for i, m := range req.Messages {
		if m.Role == "" {
			return badRequest(fmt.Sprintf("messages[%d].role", i), "", "messages[%d].role is missing.", i)
		}
		text, ok := contentText(m.Content)
		if !ok {
			return badRequest(fmt.Sprintf("messages[%d].content", i), "",
				"messages[%d].content must be a string or an array of text parts.", i)
		}
		p.role(m.Role)
		p.text(text)
		p.text(m.ToolCallID)
		if !isNull(m.ToolCalls) {
			p.text(string(m.ToolCalls))
		}
		p.end()
	}
	p.role("assistant")
	return nil
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// contentText returns the text of a message: a string, an array of text parts, or nothing.
func contentText(raw json.RawMessage) (string, bool) {
	if isNull(raw) {
		return "", true
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, true
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return "", false
	}
	var b strings.Builder
	for _, part := range parts {
		if part.Type != "text" {
			return "", false
		}
		b.WriteString(part.Text)
	}
	return b.String(), true
}

// completion adds a bare prompt: a string, an array of one string, or an array of token ids.
func (p *prompt) completion(raw json.RawMessage) *apiError {
	var text string
	var texts []string
	var ids []int64
	switch {
	case isNull(raw):
		return badRequest("prompt", "", "You must provide a prompt.")
	case json.Unmarshal(raw, &text) == nil:
		p.text(text)
	case json.Unmarshal(raw, &ids) == nil:
		for i, id := range ids {
			if id < 0 {
				return badRequest("prompt", "", "prompt[%d] is %d, a token id is not negative.", i, id)
			}
			p.id(id)
		}
	case json.Unmarshal(raw, &texts) == nil && len(texts) == 1:
		p.text(texts[0])
	default:
		return badRequest("prompt", "", "prompt must be a string, an array of one string or an array of token ids.")
	}
	if p.tokens == 0 {
		return badRequest("prompt", "", "The prompt is empty.")
	}
	return nil
}
