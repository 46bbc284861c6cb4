package httptransport

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"strings"

	"github.com/isobar-go/isobar/router"
)

const (
	// maxLine is the length up to which a line of a stream is kept while its end is missing, in bytes. A longer one counts
	// as content, and nothing is read from it.
	maxLine = 64 << 10
	// tailBytes is how much of the end of a JSON document is kept for its usage, in bytes.
	tailBytes = 16 << 10
)

// kind is what a body is, as far as its bytes say something about tokens.
type kind uint8

const (
	opaque kind = iota // anything else, and everything compressed
	events             // server-sent events
	document
)

func kindOf(h http.Header) kind {
	if enc := h.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return opaque
	}
	media, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	switch {
	case media == "text/event-stream":
		return events
	case media == "application/json" || strings.HasSuffix(media, "+json"):
		return document
	}
	return opaque
}

// meter reads a body as it passes, in pieces of any size, and counts. The zero value meters an opaque body.
type meter struct {
	kind kind

	first  bool // content has come
	tokens int  // events with content
	usage  router.Usage
	last   bool  // a stream has said that it is over
	fault  error // a stream has said that the engine failed

	buf     []byte // the unfinished line, or the end of the document
	cut     bool   // buf is not all of it
	cr      bool   // the line before ended with CR: an LF behind it belongs to it
	counted bool   // the event under way has been counted
}

// feed takes the next bytes.
func (m *meter) feed(p []byte) {
	switch m.kind {
	case events:
		m.feedEvents(p)
	case document:
		m.first = m.first || len(p) > 0
		m.feedDocument(p)
	default:
		m.first = m.first || len(p) > 0
	}
}

// finish takes what is left at the end of the body.
func (m *meter) finish() {
	switch m.kind {
	case events:
		if len(m.buf) > 0 || m.cut {
			m.line(nil)
		}
	case document:
		m.usage, _ = findUsage(m.buf)
	}
}

// complete says that nothing more of use can come, though the end of the body has not been read.
func (m *meter) complete() bool {
	return m.last || m.kind == document && !m.cut && len(m.buf) > 0 && json.Valid(m.buf)
}

// progress is the number of tokens known to be generated.
func (m *meter) progress() int {
	return int(max(int64(m.tokens), min(m.usage.OutputTokens, 1<<31-1)))
}

func (m *meter) feedDocument(p []byte) {
	if len(p) >= tailBytes {
		m.cut = m.cut || len(m.buf) > 0 || len(p) > tailBytes
		m.buf = append(m.buf[:0], p[len(p)-tailBytes:]...)
		return
	}
	// Twice the tail is kept, so that moving it costs no more than one copy of the body.
	if len(m.buf)+len(p) > 2*tailBytes {
		m.buf = append(m.buf[:0], m.buf[len(m.buf)-tailBytes:]...)
		m.cut = true
	}
	m.buf = append(m.buf, p...)
}

// feedEvents cuts lines by the rules of the event stream format: LF, CR LF or CR ends one.
func (m *meter) feedEvents(p []byte) {
	for len(p) > 0 {
		if m.cr {
			m.cr = false
			if p[0] == '\n' {
				p = p[1:]
				continue
			}
		}
		end := bytes.IndexByte(p, '\n')
		if end >= 0 {
			if i := bytes.IndexByte(p[:end], '\r'); i >= 0 {
				end = i
			}
		} else {
			end = bytes.IndexByte(p, '\r')
		}
		if end < 0 {
			m.keep(p)
			return
		}
		m.cr = p[end] == '\r'
		m.line(p[:end])
		p = p[end+1:]
	}
}

func (m *meter) keep(p []byte) {
	if room := maxLine - len(m.buf); len(p) > room {
		p, m.cut = p[:room], true
	}
	m.buf = append(m.buf, p...)
}

// line takes the rest of a line, its end excluded.
func (m *meter) line(rest []byte) {
	whole := rest
	if len(m.buf) > 0 || m.cut || len(rest) > maxLine {
		m.keep(rest)
		whole = m.buf
	}
	m.event(whole, m.cut)
	m.buf, m.cut = m.buf[:0], false
}

var (
	dataField = []byte("data:")
	doneMark  = []byte("[DONE]")
)

func (m *meter) event(line []byte, cut bool) {
	if len(line) == 0 {
		m.counted = false // a blank line ends the event
		return
	}
	data, ok := bytes.CutPrefix(line, dataField)
	if !ok {
		return
	}
	data = bytes.TrimSpace(data)
	switch {
	case len(data) == 0:
		return
	case bytes.Equal(data, doneMark):
		m.last = true
		return
	}
	if !cut {
		if u, ok := findUsage(data); ok {
			m.usage = u
		}
		if code, ok := errorEvent(data); ok {
			if code < 400 || code >= 500 { // the caller's fault is none of the engine
				m.fault = &StreamError{Code: code}
			}
			return
		}
		if !carriesContent(data) {
			return
		}
	}
	m.first = true
	if !m.counted {
		m.counted = true
		m.tokens++
	}
}

// afterKey returns what follows key and a colon at its first occurrence in data, and what follows the key itself. A key
// inside a JSON string has backslashes before its quotes and is never found.
func afterKey(data, key []byte) (value, rest []byte, ok bool) {
	for {
		i := bytes.Index(data, key)
		if i < 0 {
			return nil, nil, false
		}
		data = data[i+len(key):]
		if v := bytes.TrimLeft(data, " \t"); len(v) > 0 && v[0] == ':' {
			return bytes.TrimLeft(v[1:], " \t"), data, true
		}
	}
}

var (
	choicesKey = []byte(`"choices"`)
	usageKey   = []byte(`"usage"`)
	textKeys   = [...][]byte{
		[]byte(`"content"`), []byte(`"text"`), []byte(`"reasoning_content"`), []byte(`"reasoning"`), []byte(`"arguments"`),
		[]byte(`"refusal"`),
	}
	toolKeys = [...][]byte{[]byte(`"tool_calls"`), []byte(`"function_call"`)}
)

// carriesContent says whether an event brings output. A chunk in OpenAI's shape that only names the role, the reason of
// the end or the usage does not; an event of another shape does.
func carriesContent(data []byte) bool {
	choices, _, ok := afterKey(data, choicesKey)
	if !ok {
		return true
	}
	for _, key := range textKeys {
		for rest := choices; ; {
			value, next, ok := afterKey(rest, key)
			if !ok {
				break
			}
			if len(value) > 1 && (value[0] == '"' && value[1] != '"' || value[0] == '[' && value[1] != ']') {
				return true
			}
			rest = next
		}
	}
	for _, key := range toolKeys {
		if value, _, ok := afterKey(choices, key); ok && len(value) > 0 && (value[0] == '[' || value[0] == '{') {
			return true
		}
	}
	return false
}

// errorEvent says whether an event is an error of the engine, as vLLM and others send it, and its code; 0 = none.
func errorEvent(data []byte) (code int, ok bool) {
	if !bytes.HasPrefix(data, []byte("{")) || !bytes.HasPrefix(bytes.TrimLeft(data[1:], " \t"), []byte(`"error"`)) {
		return 0, false
	}
	var e struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(data, &e) != nil || len(e.Error) == 0 || string(e.Error) == "null" {
		return 0, false
	}
	var detail struct {
		Code any `json:"code"`
	}
	_ = json.Unmarshal(e.Error, &detail) // an error that is a bare string has no code
	if n, isNumber := detail.Code.(float64); isNumber && n >= 100 && n < 600 {
		code = int(n)
	}
	return code, true
}

// findUsage returns the last usage object in data, which may have lost its beginning.
func findUsage(data []byte) (router.Usage, bool) {
	for end := len(data); ; {
		i := bytes.LastIndex(data[:end], usageKey)
		if i < 0 {
			return router.Usage{}, false
		}
		end = i
		value, _, ok := afterKey(data[i:], usageKey)
		if !ok || len(value) == 0 || value[0] != '{' {
			continue
		}
		type details struct {
			Cached int64 `json:"cached_tokens"`
		}
		var u struct {
			Prompt       int64    `json:"prompt_tokens"`
			Completion   int64    `json:"completion_tokens"`
			Details      *details `json:"prompt_tokens_details"`
			Input        int64    `json:"input_tokens"`
			Output       int64    `json:"output_tokens"`
			InputDetails *details `json:"input_tokens_details"`
		}
		if json.NewDecoder(bytes.NewReader(value)).Decode(&u) != nil {
			continue
		}
		out := router.Usage{PromptTokens: max(u.Prompt, u.Input, 0), OutputTokens: max(u.Completion, u.Output, 0)}
		for _, d := range []*details{u.Details, u.InputDetails} {
			if d != nil {
				out.CachedTokens = max(out.CachedTokens, d.Cached)
			}
		}
		return out, true
	}
}
