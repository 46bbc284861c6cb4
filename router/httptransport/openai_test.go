package httptransport_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
)

func post(t testing.TB, body string, header ...string) *http.Request {
	r, err := http.NewRequest(http.MethodPost, "http://x/v1/chat/completions", strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

func describe(t testing.TB, o httptransport.OpenAI, body string, header ...string) router.Request {
	t.Helper()
	r := post(t, body, header...)
	req, err := o.Describe(r)
	require.NoError(t, err)
	for range 2 { // the body is there still, and again
		back, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.Equal(t, body, string(back))
		require.EqualValues(t, len(body), r.ContentLength)
		r.Body, err = r.GetBody()
		require.NoError(t, err)
	}
	return req
}

func TestDescribeFields(t *testing.T) {
	var o httptransport.OpenAI
	text := strings.Repeat("word ", 100) // 500 bytes
	chat := func(more string) string {
		return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]%s}`, text, more)
	}
	r := describe(t, o, chat(`,"max_tokens":7`), "X-Request-Id", "id1", "X-Session-Id", "s1")
	require.Equal(t, "m", r.Model)
	require.Equal(t, "id1", r.ID)
	require.Equal(t, "s1", r.Session)
	require.EqualValues(t, 7, r.MaxOutputTokens)
	require.Empty(t, r.Tenant)
	require.InDelta(t, 125, r.PromptTokens, 5)
	require.Equal(t, int64(112), r.Prefix.Tokens())
	require.True(t, r.Prefix.Scope().Known())

	require.EqualValues(t, 9, describe(t, o, chat(`,"max_tokens":7,"max_completion_tokens":9`)).MaxOutputTokens)
	require.EqualValues(t, 21, describe(t, o, chat(`,"max_tokens":7,"n":3`)).MaxOutputTokens)
	require.EqualValues(t, 5, describe(t, o, chat(`,"max_output_tokens":5`)).MaxOutputTokens)
	require.EqualValues(t, 1, describe(t, o, chat(`,"max_tokens":0`)).MaxOutputTokens, "0 is known, and next to nothing")
	require.Zero(t, describe(t, o, chat(`,"max_tokens":null,"n":null`)).MaxOutputTokens)
	require.Equal(t, "key", describe(t, o, chat(`,"prompt_cache_key":"key","user":"u"`)).Session)
	require.Equal(t, "u", describe(t, o, chat(`,"user":"u"`)).Session)
	require.Equal(t, router.ClassStandard, describe(t, o, chat(``), "X-Class", "batch").Class, "not unless the host names the header")
	o.ClassHeader = "X-Class"
	require.Equal(t, router.ClassBatch, describe(t, o, chat(``), "X-Class", "batch").Class)

	o = httptransport.OpenAI{ExpectedOutputTokens: 50, BlockTokens: 32, BytesPerToken: 5}
	r = describe(t, o, chat(``))
	require.EqualValues(t, 50, r.ExpectedOutputTokens)
	require.InDelta(t, 102, r.PromptTokens, 3)
	require.EqualValues(t, 96, r.Prefix.Tokens())
}

// TestNamesAreExact: the engine that reads the body after the router finds the same in it.
func TestNamesAreExact(t *testing.T) {
	var o httptransport.OpenAI
	r := describe(t, o, `{"model":"m","Model":"other","MAX_TOKENS":5,"Messages":5,"User":"u"}`)
	require.Equal(t, router.Request{Model: "m", Prefix: r.Prefix}, r)
	r = describe(t, o, `{"model":"a","messages":[{"role":"user","content":"xxxxyyyy"},{"role":"user"}],"messages":[{"content":"xxxx"}],"model":"m"}`)
	one := describe(t, o, `{"messages":[{"content":"xxxx"}],"model":"m"}`)
	require.Equal(t, one, r, "the last of two counts, by itself")
}

func TestDescribeOtherBodies(t *testing.T) {
	var o httptransport.OpenAI
	text := strings.Repeat("word ", 100)
	a := describe(t, o, fmt.Sprintf(`{"model":"m","prompt":%q}`, text))
	b := describe(t, o, fmt.Sprintf(`{"model":"m","input":%q}`, text))
	require.EqualValues(t, 125, a.PromptTokens)
	require.Equal(t, a.Prefix, b.Prefix)

	ids := strings.TrimSuffix(strings.Repeat("15496,", 100), ",")
	r := describe(t, o, `{"model":"m","prompt":[`+ids+`]}`)
	require.EqualValues(t, 100, r.PromptTokens, "ids are counted, not their digits")
	require.EqualValues(t, 96, r.Prefix.Tokens())
	more := describe(t, o, `{"model":"m","prompt":[`+ids+`,1,2]}`)
	require.Equal(t, r.Prefix, more.Prefix.Head(6))
	wide := describe(t, httptransport.OpenAI{BytesPerToken: 11}, `{"model":"m","prompt":[`+ids+`]}`)
	require.EqualValues(t, 100, wide.PromptTokens)
	require.NotZero(t, describe(t, o, `{"model":"m","prompt":["a","b"]}`).PromptTokens)

	r = describe(t, o, fmt.Sprintf(`{"prompt":%q}`, text))
	require.False(t, r.Prefix.Scope().Known(), "no model, no affinity")
	require.EqualValues(t, 125, r.PromptTokens)

	image := strings.Repeat("A", 100_000)
	r = describe(t, o, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"`+image+`"}}]}]}`)
	require.Less(t, r.PromptTokens, int64(50), "an image's bytes are no tokens")

	get, err := http.NewRequest(http.MethodGet, "http://x/v1/models", nil)
	require.NoError(t, err)
	r, err = o.Describe(get)
	require.NoError(t, err)
	require.Equal(t, router.Request{ExpectedOutputTokens: 1}, r, "nothing is generated")

	form := post(t, "--x\r\n")
	form.Header.Set("Content-Type", "multipart/form-data; boundary=x")
	r, err = o.Describe(form)
	require.NoError(t, err)
	require.Equal(t, router.Request{}, r)
}

// TestTenants: who pays is never told in clear, and affinity does not cross from one to the other.
func TestTenants(t *testing.T) {
	var o httptransport.OpenAI
	body := fmt.Sprintf(`{"model":"m","prompt":%q`, strings.Repeat("word ", 100))
	a := describe(t, o, body+`}`, "Authorization", "Bearer secret-a")
	b := describe(t, o, body+`}`, "Authorization", "Bearer secret-b")
	u := describe(t, o, body+`,"user":"secret-a"}`)
	require.NotEmpty(t, a.Tenant)
	require.NotContains(t, a.Tenant, "secret")
	require.NotEqual(t, a.Tenant, b.Tenant)
	require.NotEqual(t, a.Tenant, u.Tenant)
	require.NotEqual(t, a.Prefix.Scope(), b.Prefix.Scope())
	require.Equal(t, a.Tenant, describe(t, o, body+`,"user":"other"}`, "Authorization", "Bearer secret-a").Tenant)

	o.SharedPrefixes = true
	a = describe(t, o, body+`}`, "Authorization", "Bearer secret-a")
	b = describe(t, o, body+`}`, "Authorization", "Bearer secret-b")
	require.NotEqual(t, a.Tenant, b.Tenant)
	require.Equal(t, a.Prefix, b.Prefix)
	salted := describe(t, o, body+`,"cache_salt":"x"}`)
	require.NotEqual(t, a.Prefix.Scope(), salted.Prefix.Scope())
}

// TestConversationsGrow: each turn begins with all of the turns before it.
func TestConversationsGrow(t *testing.T) {
	type message struct {
		Role    string `json:"role"`
		Content any    `json:"content"`
	}
	var o httptransport.OpenAI
	var last prefix.Sequence
	var messages []message
	for turn := range 6 {
		role := []string{"system", "user", "assistant"}[min(turn, 1+turn%2)]
		var content any = fmt.Sprintf("turn %d %s", turn, strings.Repeat("says this and that ", 30))
		if turn == 3 {
			content = []map[string]any{{"type": "text", "text": content}, {"type": "image_url", "image_url": map[string]any{"url": "x"}}}
		}
		messages = append(messages, message{role, content})
		body, err := json.Marshal(map[string]any{"model": "m", "messages": messages, "tools": []any{map[string]any{"type": "function"}}})
		require.NoError(t, err)
		q := describe(t, o, string(body)).Prefix
		require.Greater(t, q.Blocks(), last.Blocks())
		require.Equal(t, last.Fingerprint(), q.Head(last.Blocks()).Fingerprint())
		last = q
	}
	changed := describe(t, o, `{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("another ", 50)+`"}]}`).Prefix
	require.NotEqual(t, last.Head(1).Fingerprint(), changed.Head(1).Fingerprint())
}

func TestDescribeRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		o      httptransport.OpenAI
		make   func() *http.Request
		status int
		param  string
	}{
		{"no JSON", httptransport.OpenAI{}, func() *http.Request { return post(t, `{"model":`) }, 0, ""},
		{"a list", httptransport.OpenAI{}, func() *http.Request { return post(t, `[]`) }, 0, ""},
		{"a wrong type", httptransport.OpenAI{}, func() *http.Request { return post(t, `{"max_tokens":"many"}`) }, 0, "max_tokens"},
		{"a wrong type within", httptransport.OpenAI{}, func() *http.Request { return post(t, `{"messages":[{"role":5}]}`) }, 0, "messages.role"},
		{"negative", httptransport.OpenAI{}, func() *http.Request { return post(t, `{"max_tokens":-1}`) }, 0, "max_tokens"},
		{"huge", httptransport.OpenAI{}, func() *http.Request { return post(t, `{"max_completion_tokens":99999999999}`) }, 0, "max_completion_tokens"},
		{"n", httptransport.OpenAI{}, func() *http.Request { return post(t, `{"n":0}`) }, 0, "n"},
		{"content", httptransport.OpenAI{}, func() *http.Request { return post(t, `{"messages":[{"role":"user","content":5}]}`) }, 0, "messages[0].content"},
		{"class", httptransport.OpenAI{ClassHeader: "X-Class"}, func() *http.Request { return post(t, `{}`, "X-Class", "vip") }, 0, "X-Class"},
		{"too large", httptransport.OpenAI{MaxBody: 10}, func() *http.Request { return post(t, `{"model":"m"}`) }, 413, ""},
		{"too large, not said so", httptransport.OpenAI{MaxBody: 10}, func() *http.Request {
			r := post(t, `{"model":"m"}`)
			r.ContentLength = -1
			return r
		}, 413, ""},
		{"cut short", httptransport.OpenAI{}, func() *http.Request {
			r := post(t, `{}`)
			r.ContentLength = 5
			return r
		}, 0, ""},
		{"unreadable", httptransport.OpenAI{}, func() *http.Request {
			r := post(t, `{}`)
			r.Body = io.NopCloser(broken{})
			return r
		}, 0, ""},
		{"compressed", httptransport.OpenAI{}, func() *http.Request { return post(t, `x`, "Content-Encoding", "gzip") }, 415, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := c.o.Describe(c.make())
			var bad *httptransport.RequestError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, c.status, bad.Status)
			require.Equal(t, c.param, bad.Param)
		})
	}
	o := httptransport.OpenAI{MaxBody: -1, BlockTokens: -2, ExpectedOutputTokens: math.MaxInt64 / 2}
	_, err := o.Describe(post(t, `{}`))
	require.ErrorContains(t, err, "MaxBody = -1")
	require.ErrorContains(t, err, "BlockTokens = -2")
	require.ErrorContains(t, err, "ExpectedOutputTokens = 4611686018427387903 must be at most 4294967296")
	require.NoError(t, httptransport.OpenAI{}.Validate())

	most := httptransport.OpenAI{ExpectedOutputTokens: 1 << 32, MaxBody: math.MaxInt64}
	require.EqualValues(t, 1<<42, describe(t, most, `{"n":1024}`).ExpectedOutputTokens)
}

// FuzzDescribe: a body gives a request that a pool accepts, or an error that says whose fault it is.
func FuzzDescribe(f *testing.F) {
	f.Add(`{"model":"m","messages":[{"role":"user","content":[{"text":"x"},{"type":"image_url"}],"tool_calls":[1]}],"tools":[],"max_tokens":1}`)
	f.Add(`{"model":"m","prompt":[1,-2,3],"n":1024,"max_output_tokens":4294967296}`)
	f.Add(`{"input":{"x":1},"user":"u","cache_salt":"s"}`)
	f.Fuzz(func(t *testing.T, body string) {
		r, err := httptransport.OpenAI{ExpectedOutputTokens: 1 << 32}.Describe(post(t, body))
		var bad *httptransport.RequestError
		if err != nil {
			require.True(t, errors.As(err, &bad), "%v", err)
			return
		}
		require.NoError(t, r.Validate())
	})
}

// TestDescribeTokens: with a tokenizer, size and blocks are those of its token ids, in the scope of the request.
func TestDescribeTokens(t *testing.T) {
	tokens := make([]uint32, 40)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	known := true
	var got httptransport.Prompt
	o := httptransport.OpenAI{BlockTokens: 8, SharedPrefixes: true, Tokenize: func(p httptransport.Prompt) ([]uint32, bool) {
		got = p
		return tokens, known
	}}
	const body = `{"model":"m","messages":[{"role":"user","content":"hello"}],"cache_salt":"s"}`
	r := describe(t, o, body, "Authorization", "k")
	require.Equal(t, httptransport.Prompt{Path: "/v1/chat/completions", Model: "m", Body: []byte(body)}, got)
	scope, err := prefix.NewScope(prefix.Parts{Model: "m", Salt: "s"})
	require.NoError(t, err)
	want, err := prefix.FromTokens(scope, 8, tokens)
	require.NoError(t, err)
	require.Equal(t, want, r.Prefix)
	require.EqualValues(t, 40, r.PromptTokens)
	require.EqualValues(t, 40, describe(t, o, `{"prompt":"hello"}`).PromptTokens, "no model, no scope, but a size")

	known = false
	plain := o
	plain.Tokenize = nil
	require.Equal(t, describe(t, plain, body), describe(t, o, body), "what the tokenizer does not know goes by its bytes")
	known, tokens = true, nil
	require.Zero(t, describe(t, o, body).Prefix.Blocks())
	require.Zero(t, describe(t, o, body).PromptTokens)
}
