package embedded

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// writeTimeout is how long a client may leave a stream unread before it is dropped.
const writeTimeout = 30 * time.Second

type usage struct {
	PromptTokens        int64        `json:"prompt_tokens"`
	CompletionTokens    int64        `json:"completion_tokens"`
	TotalTokens         int64        `json:"total_tokens"`
	PromptTokensDetails tokenDetails `json:"prompt_tokens_details"`
}

type tokenDetails struct {
	CachedTokens int64 `json:"cached_tokens"`
}

// message is what an answer or a piece of it says.
type message struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type choice struct {
	Index        int      `json:"index"`
	Message      *message `json:"message,omitempty"` // chat, whole
	Delta        *message `json:"delta,omitempty"`   // chat, streamed
	Text         *string  `json:"text,omitempty"`    // completions, both
	Logprobs     *string  `json:"logprobs"`          // always null
	FinishReason *string  `json:"finish_reason"`
}

// document is a whole answer or one chunk of a stream.
type document struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}

func (e *Engine) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/chat/completions", e.only(http.MethodPost, func(w http.ResponseWriter, r *http.Request) {
		e.serveCompletion(w, r, true)
	}))
	mux.HandleFunc("/v1/completions", e.only(http.MethodPost, func(w http.ResponseWriter, r *http.Request) { e.serveCompletion(w, r, false) }))
	mux.HandleFunc("/v1/models", e.only(http.MethodGet, e.serveModels))
	mux.HandleFunc("/health", e.only(http.MethodGet, e.serveHealth))
	mux.HandleFunc(e.cfg.dialect().path, e.only(http.MethodGet, e.serveMetrics))
	if pages := e.cfg.dialect().pages; pages != nil {
		pages(e, mux)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		bad := badRequest("", "unknown_url", "Unknown request URL: %s %s.", r.Method, r.URL.Path)
		bad.status = http.StatusNotFound
		writeError(w, bad)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Engine-Name", e.cfg.Name)
		mux.ServeHTTP(w, r)
	})
}

// only refuses other methods than the given one; GET includes HEAD.
func (e *Engine) only(method string, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method && (method != http.MethodGet || r.Method != http.MethodHead) {
			w.Header().Set("Allow", method)
			bad := badRequest("", "", "Not allowed to %s on %s (HINT: Perhaps you meant to use %s).", r.Method, r.URL.Path, method)
			bad.status = http.StatusMethodNotAllowed
			writeError(w, bad)
			return
		}
		next(w, r)
	}
}

// writeJSON answers with v. A failed write means that the client has gone.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // no value of this package does
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func writeError(w http.ResponseWriter, bad *apiError) {
	writeJSON(w, bad.status, map[string]*apiError{"error": bad})
}

func unavailable(message string) *apiError {
	return &apiError{status: http.StatusServiceUnavailable, Message: message, Type: "server_error"}
}

func (e *Engine) serveModels(w http.ResponseWriter, _ *http.Request) {
	type model struct {
		ID          string `json:"id"`
		Object      string `json:"object"`
		Created     int64  `json:"created"`
		OwnedBy     string `json:"owned_by"`
		MaxModelLen int64  `json:"max_model_len"`
	}
	writeJSON(w, http.StatusOK, struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{"list", []model{{e.cfg.Model, "model", e.started.Unix(), "isobar", e.cfg.MaxModelLen}}})
}

func (e *Engine) serveHealth(w http.ResponseWriter, _ *http.Request) {
	if e.draining.Load() {
		writeError(w, unavailable("The engine is draining."))
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (e *Engine) serveCompletion(w http.ResponseWriter, r *http.Request, chat bool) {
	req, bad := readRequest(w, r)
	if bad != nil {
		writeError(w, bad)
		return
	}
	job, bad := e.cfg.prepare(req, chat)
	if bad == nil && e.draining.Load() {
		bad = unavailable("The engine is draining.")
	}
	if bad != nil {
		writeError(w, bad)
		return
	}
	s, err := e.submit(job)
	if err != nil {
		writeError(w, badRequest("", "", "%v", err))
		return
	}
	defer e.abandon(s)
	a := &answer{e: e, w: w, r: r, s: s, job: job, chat: chat, created: time.Now().Unix()}
	if req.Stream {
		a.stream(req.StreamOptions != nil && req.StreamOptions.IncludeUsage)
	} else {
		a.whole()
	}
}

// answer is one response in the making.
type answer struct {
	e       *Engine
	w       http.ResponseWriter
	r       *http.Request
	s       *stream
	job     job
	chat    bool
	created int64
}

// wait blocks until more than have tokens are there and returns how many, or 0 if the client has gone. If the engine
// dies it panics with http.ErrAbortHandler, which breaks off the response.
func (a *answer) wait(have int64) int64 {
	for {
		if n := a.s.generated.Load(); n > have {
			return n
		}
		select {
		case <-a.s.notify:
		case <-a.r.Context().Done():
			return 0
		case <-a.e.ctx.Done():
			panic(http.ErrAbortHandler)
		}
	}
}

func (a *answer) document(streamed bool, choices ...choice) document {
	d := document{Created: a.created, Model: a.e.cfg.Model, Choices: choices}
	if a.chat {
		d.ID, d.Object = fmt.Sprintf("chatcmpl-%s-%d", a.e.cfg.Name, a.s.id), "chat.completion"
		if streamed {
			d.Object += ".chunk"
		}
	} else {
		d.ID, d.Object = fmt.Sprintf("cmpl-%s-%d", a.e.cfg.Name, a.s.id), "text_completion"
	}
	return d
}

func (a *answer) usage() *usage {
	p, c := a.job.request.PromptTokens, a.job.request.OutputTokens
	return &usage{p, c, p + c, tokenDetails{a.s.cached.Load()}}
}

func (a *answer) whole() {
	n, total := int64(0), a.job.request.OutputTokens
	for n < total {
		if n = a.wait(n); n == 0 {
			return
		}
	}
	var b strings.Builder
	for i := range total {
		b.WriteString(word(a.job.seed, i))
	}
	text := b.String()
	c := choice{FinishReason: &a.job.reason}
	if a.chat {
		c.Message = &message{Role: "assistant", Content: &text}
	} else {
		c.Text = &text
	}
	d := a.document(false, c)
	d.Usage = a.usage()
	a.e.reportLoad(a.w, a.r)
	writeJSON(a.w, http.StatusOK, d)
}

func (a *answer) stream(withUsage bool) {
	h := a.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	a.e.reportLoad(a.w, a.r)
	a.w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(a.w)
	if control.Flush() != nil {
		return
	}
	sent, total := int64(0), a.job.request.OutputTokens
	for sent < total {
		n := a.wait(sent)
		if n == 0 {
			return
		}
		// Fails only on a connection that is lost anyway.
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
		if sent == 0 && a.chat {
			a.chunk(a.document(true, choice{Delta: &message{Role: "assistant", Content: new(string)}}))
		}
		for ; sent < n; sent++ {
			a.chunk(a.token(sent))
		}
		if sent == total {
			if withUsage {
				d := a.document(true)
				d.Choices, d.Usage = []choice{}, a.usage()
				a.chunk(d)
			}
			_, _ = a.w.Write([]byte("data: [DONE]\n\n"))
		}
		if control.Flush() != nil {
			return
		}
	}
	_ = control.SetWriteDeadline(time.Time{})
}

// token is the chunk of token i; the last one carries the reason.
func (a *answer) token(i int64) document {
	text := word(a.job.seed, i)
	var c choice
	if a.chat {
		c.Delta = &message{Content: &text}
	} else {
		c.Text = &text
	}
	if i == a.job.request.OutputTokens-1 {
		c.FinishReason = &a.job.reason
	}
	return a.document(true, c)
}

// chunk writes one event. A failed write shows at the next flush.
func (a *answer) chunk(d document) {
	body, err := json.Marshal(d)
	if err != nil { // no document of this package does
		panic(http.ErrAbortHandler)
	}
	_, _ = a.w.Write(append(append([]byte("data: "), body...), "\n\n"...))
}
