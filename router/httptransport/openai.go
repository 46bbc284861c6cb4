package httptransport

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"time"

	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
)

const (
	// DefaultMaxBody is the bound where OpenAI.MaxBody is 0: 8 MiB.
	DefaultMaxBody = 8 << 20
	// DefaultBlockTokens and DefaultBytesPerToken are the sizes where OpenAI leaves them at 0.
	DefaultBlockTokens   = 16
	DefaultBytesPerToken = 4
)

// OpenAI describes requests in the shape of OpenAI's API: chat completions, completions, and whatever else has a model and
// an input. Its Describe method is for Transport.Describe. The zero value is usable. It is a plain value: any number of
// goroutines may use it as long as nobody changes it.
//
// It reads the whole body, puts a copy in its place that can be sent again, and takes from it
//
//	Model                 model
//	Prefix, PromptTokens  messages (with tools), prompt or input; sizes estimated from the length in bytes, exact for token ids
//	                      and with Tokenize
//	MaxOutputTokens       max_completion_tokens, else max_tokens or max_output_tokens, 0 counting as 1; times n
//	Tenant                a digest of the Authorization header, else of user; empty without both
//	Session               SessionHeader, else prompt_cache_key, else user
//	Class                 ClassHeader, if one is named
//	Deadline              TimeoutHeader, if one is named: that many seconds from now
//	ID                    the X-Request-Id header
//
// The names of the body's fields count as they are spelled here, and of two of one name the last.
//
// A request without a body, a GET say, is described by its headers alone.
//
// The prompt is laid out so that a conversation only ever grows at its end, and texts with a common beginning share it:
// tools, then each message as a mark with its role, its text, and a mark for its end. It is not what the engine's chat
// template makes of it; equal prompts are equal all the same. Parts other than text stand in it as a digest, and their
// tokens are not counted.
type OpenAI struct {
	// MaxBody is the largest body, bytes; a larger one is refused with 413. Default 8 MiB.
	MaxBody int64
	// BlockTokens is the engines' block size, tokens. Default 16.
	BlockTokens int
	// BytesPerToken is the mean length of a token, bytes. Default 4.
	BytesPerToken int
	// SharedPrefixes lets tenants share affinity. Set it only where they share the engines' caches, too, and may know
	// from the timing what others have asked. The scope of a prompt is that of prefix.Parts{Model: model, Salt: cache_salt},
	// and off, with the tenant in it.
	SharedPrefixes bool
	// ExpectedOutputTokens is what requests probably generate, tokens, for each of n answers; 0 = unknown, then their maximum
	// counts. At most 2^32.
	ExpectedOutputTokens int64
	// SessionHeader names the header with the session. Default X-Session-Id.
	SessionHeader string
	// ClassHeader names the header with the priority class, as router.Class spells it. Default none: a client's own word
	// decides over others, so name one only where clients are trusted or the header is set in front.
	ClassHeader string
	// TimeoutHeader names the header that says how long the client waits for its whole answer, in seconds, such as 30 or 2.5, at
	// most a day. A request that cannot be complete by then is rejected, at once or from the queue; one that was placed is not
	// broken off. Default none: then the deadline is that of the request's context, if it has one.
	TimeoutHeader string
	// Now is the clock from which TimeoutHeader counts, the same as the pool's; nil = time.Now.
	Now func() time.Time
	// Tokenize gives the token ids of a prompt as the engines' tokenizer and chat template make them; nil, or false in place of
	// an answer, means that they are not known here: then the prompt is described by its bytes. It is required for
	// endpoints whose KV events are applied, since those hold what they hold by tokens, and no byte matches them. With
	// ids PromptTokens is exact, and Prefix has the blocks of the engine if BlockTokens is its block size.
	//
	// The events do not name tenants either: a tenant's own scope matches nothing in them. Set SharedPrefixes with them, and
	// keep tenants apart by a cache_salt where that matters. Tokenize is called by the goroutine of the request.
	Tokenize func(Prompt) (tokens []uint32, ok bool)
}

// Validate reports every field that is out of range, all of them joined.
func (o OpenAI) Validate() error {
	var faults []error
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"MaxBody", o.MaxBody}, {"BlockTokens", int64(o.BlockTokens)}, {"BytesPerToken", int64(o.BytesPerToken)},
		{"ExpectedOutputTokens", o.ExpectedOutputTokens},
	} {
		if f.value < 0 {
			faults = append(faults, fmt.Errorf("httptransport: OpenAI field %s = %d must be at least 0", f.name, f.value))
		}
	}
	if o.ExpectedOutputTokens > maxOutput { // n times as many must be a number still
		const format = "httptransport: OpenAI field ExpectedOutputTokens = %d must be at most %d"
		faults = append(faults, fmt.Errorf(format, o.ExpectedOutputTokens, int64(maxOutput)))
	}
	return errors.Join(faults...)
}

func (o OpenAI) withDefaults() OpenAI {
	if o.MaxBody == 0 {
		o.MaxBody = DefaultMaxBody
	}
	o.MaxBody = min(o.MaxBody, math.MaxInt64-1) // one byte more is read
	if o.BlockTokens == 0 {
		o.BlockTokens = DefaultBlockTokens
	}
	if o.BytesPerToken == 0 {
		o.BytesPerToken = DefaultBytesPerToken
	}
	if o.SessionHeader == "" {
		o.SessionHeader = "X-Session-Id"
	}
	return o
}

// apiRequest is the part of a body that matters to routing.
type apiRequest struct {
	Model               string
	Messages            []apiMessage
	Tools               json.RawMessage
	Prompt              json.RawMessage
	Input               json.RawMessage
	MaxTokens           *int64
	MaxCompletionTokens *int64
	MaxOutputTokens     *int64
	N                   *int64
	User                string
	PromptCacheKey      string
	CacheSalt           string
}

// parse reads a body. Engines tell "Model" from "model" and take the last of two fields of one name: to decode into a struct at
// once would take the one for the other, and mix the two.
func (a *apiRequest) parse(body []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return notJSON("", err)
	}
	for _, f := range [...]struct {
		name string
		to   any
	}{
		{"model", &a.Model}, {"messages", &a.Messages}, {"max_tokens", &a.MaxTokens}, {"max_completion_tokens", &a.MaxCompletionTokens},
		{"max_output_tokens", &a.MaxOutputTokens}, {"n", &a.N}, {"user", &a.User}, {"prompt_cache_key", &a.PromptCacheKey},
		{"cache_salt", &a.CacheSalt},
	} {
		if raw := fields[f.name]; !isNull(raw) {
			if err := json.Unmarshal(raw, f.to); err != nil {
				return notJSON(f.name, err)
			}
		}
	}
	a.Tools, a.Prompt, a.Input = fields["tools"], fields["prompt"], fields["input"]
	return nil
}

type apiMessage struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	ToolCalls  json.RawMessage `json:"tool_calls"`
	ToolCallID string          `json:"tool_call_id"`
}

// Describe reads the request's body, leaves a copy in its place, and says what the request needs. The error is a
// [*RequestError]: the body too large, cut short, compressed, no JSON, or a field or header of the wrong type or out of range.
func (o OpenAI) Describe(r *http.Request) (router.Request, error) {
	if err := o.Validate(); err != nil {
		return router.Request{}, err
	}
	o = o.withDefaults()
	out := router.Request{
		ID: r.Header.Get("X-Request-Id"), Session: r.Header.Get(o.SessionHeader), ExpectedOutputTokens: o.ExpectedOutputTokens,
	}
	if auth := r.Header.Get("Authorization"); auth != "" {
		out.Tenant = digest("authorization", auth)
	}
	if name := o.ClassHeader; name != "" && r.Header.Get(name) != "" {
		if err := out.Class.UnmarshalText([]byte(r.Header.Get(name))); err != nil {
			return router.Request{}, &RequestError{
				Param: name, Message: fmt.Sprintf("header %s = %.40q is not a class", name, r.Header.Get(name)), Err: err,
			}
		}
	}
	deadline, err := o.deadline(r.Header)
	if err != nil {
		return router.Request{}, err
	}
	out.Deadline = deadline
	body, err := o.read(r)
	if err == nil && len(body) == 0 {
		out.ExpectedOutputTokens = 1 // nothing is generated, as for a list of models; 0 would mean unknown
	}
	if err != nil || len(body) == 0 || !isJSON(r.Header) {
		return out, err
	}
	var api apiRequest
	if err := api.parse(body); err != nil {
		return router.Request{}, err
	}
	if err := o.fill(&out, &api, promptOf(r, &api, body)); err != nil {
		return router.Request{}, err
	}
	return out, nil
}

// read takes the body out and puts a copy in its place.
func (o OpenAI) read(r *http.Request) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return nil, &RequestError{
			Status: http.StatusUnsupportedMediaType, Message: fmt.Sprintf("a request body in the encoding %.40q is not accepted", enc),
		}
	}
	if r.ContentLength > o.MaxBody {
		return nil, tooLarge(o.MaxBody, nil)
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		buf.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(r.Body, o.MaxBody+1))
	_ = r.Body.Close()
	switch {
	case err != nil:
		return nil, unreadable(err)
	case n > o.MaxBody:
		return nil, tooLarge(o.MaxBody, nil)
	case r.ContentLength >= 0 && n != r.ContentLength:
		return nil, unreadable(io.ErrUnexpectedEOF)
	}
	body := buf.Bytes()
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.Body, _ = r.GetBody()
	r.ContentLength, r.TransferEncoding = n, nil
	return body, nil
}

// isJSON says whether the body is to be read as JSON: it says so, or says nothing.
func isJSON(h http.Header) bool {
	media, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	return media == "" || media == "application/json"
}

// notJSON is the error of a body, or of the field of that name in it, that cannot be decoded.
func notJSON(name string, err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		if name == "" {
			return &RequestError{Message: "the request body must not be a JSON " + wrong.Value, Err: err}
		}
		if wrong.Field != "" {
			name += "." + wrong.Field
		}
		return &RequestError{Param: name, Message: fmt.Sprintf("field %q must not be a JSON %s", name, wrong.Value), Err: err}
	}
	return &RequestError{Message: "the request body is not JSON: " + err.Error(), Err: err}
}

// maxOutput bounds what a client can say about its output, tokens.
const maxOutput = 1 << 32

func (o OpenAI) fill(out *router.Request, api *apiRequest, given Prompt) error {
	out.Model = api.Model
	if out.Tenant == "" && api.User != "" {
		out.Tenant = digest("user", api.User)
	}
	for _, s := range []string{api.PromptCacheKey, api.User} {
		if out.Session == "" {
			out.Session = s
		}
	}
	for _, f := range []struct {
		name  string
		value *int64
	}{{"max_output_tokens", api.MaxOutputTokens}, {"max_tokens", api.MaxTokens}, {"max_completion_tokens", api.MaxCompletionTokens}} {
		switch {
		case f.value == nil:
		case *f.value < 0 || *f.value > maxOutput:
			return &RequestError{Param: f.name, Message: fmt.Sprintf("field %q = %d is out of range", f.name, *f.value)}
		default:
			out.MaxOutputTokens = max(*f.value, 1) // 0 would mean unknown
		}
	}
	if n := api.N; n != nil {
		if *n < 1 || *n > 1024 {
			return &RequestError{Param: "n", Message: fmt.Sprintf("field %q = %d is out of range", "n", *n)}
		}
		out.MaxOutputTokens *= *n
		out.ExpectedOutputTokens *= *n
	}
	text, err := o.prompt(api)
	if err != nil {
		return err
	}
	out.PromptTokens = int64((len(text) + o.BytesPerToken - 1) / o.BytesPerToken)
	tokens, tokenized := o.tokenize(given)
	if tokenized {
		out.PromptTokens = int64(len(tokens))
	}
	if api.Model == "" {
		return nil // no scope, no affinity
	}
	parts := prefix.Parts{Model: api.Model, Salt: api.CacheSalt}
	if !o.SharedPrefixes {
		parts.Tenant = out.Tenant
	}
	scope, err := prefix.NewScope(parts)
	if err != nil {
		return err
	}
	if tokenized {
		out.Prefix, err = prefix.FromTokens(scope, o.BlockTokens, tokens)
		return err
	}
	out.Prefix, err = prefix.FromBytes(scope, o.BlockTokens, o.BytesPerToken, text)
	return err
}

// Marks in a laid out prompt. A text that contains them can pass for another prompt of its own tenant, whose cache then
// is expected and not found: no more than that.
const (
	roleMark = "\x00\x02" // before a role and, once more, behind it
	endText  = "\x00\x03" // behind a message
	partMark = "\x00\x04" // before the digest of a part that is not text
)

// prompt lays the prompt out as one growing text.
func (o OpenAI) prompt(api *apiRequest) ([]byte, error) {
	var b []byte
	if !isNull(api.Tools) {
		b = append(b, roleMark+"tools"+roleMark...)
		b = append(append(b, api.Tools...), endText...)
	}
	for i := range api.Messages {
		m := &api.Messages[i]
		b = append(append(append(b, roleMark...), m.Role...), roleMark...)
		var err error
		if b, err = appendContent(b, m.Content, fmt.Sprintf("messages[%d].content", i)); err != nil {
			return nil, err
		}
		b = append(b, m.ToolCallID...)
		if !isNull(m.ToolCalls) {
			b = append(b, m.ToolCalls...)
		}
		b = append(b, endText...)
	}
	for _, raw := range []json.RawMessage{api.Prompt, api.Input} {
		var text string
		var ids []int64
		switch {
		case isNull(raw):
		case json.Unmarshal(raw, &text) == nil:
			b = append(b, text...)
		case json.Unmarshal(raw, &ids) == nil:
			for _, id := range ids {
				b = o.appendToken(b, id)
			}
		default: // several prompts, or items: their JSON grows at its end, too
			b = append(b, bytes.TrimSuffix(raw, []byte("]"))...)
		}
	}
	return b, nil
}

// appendToken adds a token given by its id, as long as a token is taken to be.
func (o OpenAI) appendToken(b []byte, id int64) []byte {
	var le [8]byte
	binary.LittleEndian.PutUint64(le[:], uint64(id))
	for i := range o.BytesPerToken {
		b = append(b, le[i%8])
	}
	return b
}

// appendContent adds the text of a message: a string, a list of parts, or nothing.
func appendContent(b []byte, raw json.RawMessage, field string) ([]byte, error) {
	if isNull(raw) {
		return b, nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return append(b, text...), nil
	}
	var parts []json.RawMessage
	if json.Unmarshal(raw, &parts) != nil {
		return nil, &RequestError{Param: field, Message: fmt.Sprintf("field %q must be a string or a list of parts", field)}
	}
	for _, part := range parts {
		var p struct {
			Type string  `json:"type"`
			Text *string `json:"text"`
		}
		if json.Unmarshal(part, &p) == nil && p.Text != nil {
			b = append(b, *p.Text...)
			continue
		}
		sum := sha256.Sum256(part)
		b = append(append(b, partMark...), sum[:]...)
	}
	return b, nil
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// digest names a secret without telling it.
func digest(kind, secret string) string {
	sum := sha256.Sum256([]byte(kind + "\x00" + secret))
	return hex.EncodeToString(sum[:16])
}
