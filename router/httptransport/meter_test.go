package httptransport_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
)

const sse = "text/event-stream"

func data(payload string) string { return "data: " + payload + "\n\n" }

func TestMeterEvents(t *testing.T) {
	for _, c := range []struct {
		name, body string
		first      bool
		tokens     int
	}{
		{"nothing", "", false, 0},
		{"a comment", ": ping\n\n", false, 0},
		{"only the end", data("[DONE]"), false, 0},
		{"a role", roleChunk, false, 0},
		{"content", chunk(0), true, 1},
		{"no blank after the colon", "data:{\"x\":1}\n\n", true, 1},
		{"CR LF", strings.ReplaceAll(chunk(0)+chunk(1)+doneChunk, "\n", "\r\n"), true, 2},
		{"CR", strings.ReplaceAll(chunk(0)+chunk(1)+doneChunk, "\n", "\r"), true, 2},
		{"no end of line", "data: {\"x\":1}", true, 1},
		{"one event of two lines", "event: x\ndata: {\"x\":1,\ndata: \"y\":1}\n\n", true, 1},
		{"an empty field", "data:\n\ndata: \n\n", false, 0},
		{"other fields", "event: message\nid: 1\nretry: 10\n\n", false, 0},
		{"not quite the field", "datax: 1\n data: 1\n\n", false, 0},
		{"text of a completion", data(`{"choices":[{"text":"x"}]}`), true, 1},
		{"empty text", data(`{"choices":[{"text":"","finish_reason":"stop"}]}`), false, 0},
		{"null content", data(`{"choices":[{"delta":{"content":null,"role":"assistant"}}]}`), false, 0},
		{"spaces in the JSON", data(`{ "choices" : [ { "delta" : { "content" : "x" } } ] }`), true, 1},
		{"reasoning", data(`{"choices":[{"delta":{"content":null,"reasoning_content":"hm"}}]}`), true, 1},
		{"a tool call", data(`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]}}]}`), true, 1},
		{"the second of two choices", data(`{"choices":[{"delta":{"content":""}},{"delta":{"content":"x"}}]}`), true, 1},
		{"usage alone", data(`{"choices":[],"usage":{"prompt_tokens":1}}`), false, 0},
		{"another shape", "event: content_block_delta\n" + data(`{"type":"content_block_delta","delta":{"text":"x"}}`), true, 1},
		{"no JSON", data("hello"), true, 1},
		{"a line without end", "data: " + strings.Repeat("x", httptransport.MaxLine+10) + "\n\n" + chunk(1), true, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			whole := httptransport.MeterAll(sse, []byte(c.body))
			require.Equal(t, [2]any{c.first, c.tokens}, [2]any{whole.First, whole.Tokens})
			var bytewise [][]byte
			for i := range c.body {
				bytewise = append(bytewise, []byte(c.body[i:i+1]))
			}
			require.Equal(t, whole, httptransport.MeterAll(sse, bytewise...))
		})
	}
}

func TestMeterFindsUsage(t *testing.T) {
	full := router.Usage{PromptTokens: 11, CachedTokens: 8, OutputTokens: 3}
	object := `{"prompt_tokens":11,"completion_tokens":3,"total_tokens":14,"prompt_tokens_details":{"cached_tokens":8}}`
	quoted, err := json.Marshal(`the "usage":{"prompt_tokens":99} of things`)
	require.NoError(t, err)
	long := strings.Repeat("long answer ", 4000)
	for _, c := range []struct {
		name, contentType, body string
		want                    router.Usage
	}{
		{"document", "application/json", `{"choices":[],"usage":` + object + `}`, full},
		{"document with spaces", "application/json; charset=utf-8", `{"usage" : ` + object + `}`, full},
		{"a suffix of the media type", "application/problem+json", `{"usage":` + object + `}`, full},
		{"long document", "application/json", `{"choices":[{"text":"` + long + `"}],"usage":` + object + `}`, full},
		{"the text mentions it", "application/json", `{"usage":` + object + `,"text":` + string(quoted) + `}`, full},
		{"behind it a name alike", "application/json", `{"usage":` + object + `,"model":"usage"}`, full},
		{"null", "application/json", `{"usage":null}`, router.Usage{}},
		{"none", "application/json", `{}`, router.Usage{}},
		{"too far from the end", "application/json", `{"usage":` + object + `,"text":"` + long + `"}`, router.Usage{}},
		{"broken", "application/json", `{"usage":{"prompt_tokens":1`, router.Usage{}},
		{"negative", "application/json", `{"usage":{"prompt_tokens":-1,"completion_tokens":-5,"prompt_tokens_details":{"cached_tokens":-2}}}`, router.Usage{}},
		{"the other names", "application/json", `{"usage":{"input_tokens":11,"output_tokens":3,"input_tokens_details":{"cached_tokens":8}}}`, full},
		{"no JSON", "text/plain", `{"usage":` + object + `}`, router.Usage{}},
		{"events", sse, chunk(0) + data(`{"choices":[],"usage":`+object+`}`) + doneChunk, full},
		{"events with null", sse, data(`{"choices":[],"usage":`+object+`}`) + data(`{"choices":[],"usage":null}`), full},
		{"events, the last counts", sse, data(`{"usage":{"prompt_tokens":1}}`) + data(`{"choices":[],"usage":`+object+`}`), full},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, httptransport.MeterAll(c.contentType, []byte(c.body)).Usage)
			var pieces [][]byte
			for rest := []byte(c.body); len(rest) > 0; {
				n := min(7, len(rest))
				pieces, rest = append(pieces, rest[:n]), rest[n:]
			}
			require.Equal(t, c.want, httptransport.MeterAll(c.contentType, pieces...).Usage)
		})
	}
}

func TestMeterErrorEvents(t *testing.T) {
	for _, c := range []struct {
		payload string
		fault   bool
	}{
		{`{"error": {"message": "x", "code": 500}}`, true},
		{`{ "error":{"message":"x","code":null}}`, true},
		{`{"error":"died"}`, true},
		{`{"error":{"code":"internal"}}`, true},
		{`{"error":{"code":400}}`, false},
		{`{"error":null}`, false},
		{`{"error"`, false},
		{`{"id":1,"error":{}}`, false},
		{`[{"error":{}}]`, false},
	} {
		got := httptransport.MeterAll(sse, []byte(data(c.payload)))
		require.Equal(t, c.fault, got.Fault != nil, c.payload)
	}
}

func TestMeterKnowsTheEnd(t *testing.T) {
	require.True(t, httptransport.MeterAll(sse, []byte(doneChunk)).Complete)
	require.False(t, httptransport.MeterAll(sse, []byte(chunk(0))).Complete)
	require.True(t, httptransport.MeterAll("application/json", []byte(`{"a":1}`)).Complete)
	require.False(t, httptransport.MeterAll("application/json", []byte(`{"a":1`)).Complete)
	require.False(t, httptransport.MeterAll("application/json").Complete)
	cut := []byte(strings.Repeat(" ", httptransport.TailBytes) + "1")
	require.False(t, httptransport.MeterAll("application/json", cut).Complete, "what was not kept may have been anything")
	require.False(t, httptransport.MeterAll("text/plain", []byte("x")).Complete)
}

// naiveMeter reads a whole body of small events at once.
func naiveMeter(body string) (tokens int, last bool) {
	body = strings.ReplaceAll(strings.ReplaceAll(body, "\r\n", "\n"), "\r", "\n")
	for _, event := range strings.Split(body, "\n\n") {
		counts := false
		for _, line := range strings.Split(event, "\n") {
			payload, ok := strings.CutPrefix(line, "data:")
			payload = strings.TrimSpace(payload)
			var doc struct {
				Choices []struct {
					Delta struct {
						Content string `json:"content"`
					} `json:"delta"`
				} `json:"choices"`
			}
			switch {
			case !ok || payload == "":
			case payload == "[DONE]":
				last = true
			case json.Unmarshal([]byte(payload), &doc) != nil || doc.Choices == nil:
				counts = true
			default:
				for _, choice := range doc.Choices {
					counts = counts || choice.Delta.Content != ""
				}
			}
		}
		if counts {
			tokens++
		}
	}
	return tokens, last
}

// TestMeterAgainstTheNaiveOne cuts streams anywhere.
func TestMeterAgainstTheNaiveOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.OneOf(
			rapid.Just(": comment"), rapid.Just("event: x"), rapid.Just("data:"), rapid.Just("data: [DONE]"), rapid.Just("dat"),
			rapid.Just(`data: {"choices":[]}`), rapid.Just(`data: {"choices":[{"delta":{"content":""}}]}`), rapid.Just(`data: {"other":1}`),
			rapid.Map(rapid.StringN(0, 20, -1), func(s string) string {
				content, _ := json.Marshal(s)
				return fmt.Sprintf(`data: {"choices":[{"delta":{"content":%s}}]}`, content)
			}),
		)
		end := rapid.SampledFrom([]string{"\n", "\r\n", "\r"}).Draw(t, "end")
		var b strings.Builder
		for _, l := range rapid.SliceOfN(line, 0, 20).Draw(t, "lines") {
			b.WriteString(l + end)
			if rapid.Bool().Draw(t, "blank") {
				b.WriteString(end)
			}
		}
		body := b.String()
		wantTokens, wantLast := naiveMeter(body)
		var pieces [][]byte
		for rest := []byte(body); len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		got := httptransport.MeterAll(sse, pieces...)
		if got.Tokens != wantTokens || got.Last != wantLast || got.First != (wantTokens > 0) {
			t.Fatalf("got %+v, want %d tokens, last %t, of %q", got, wantTokens, wantLast, body)
		}
	})
}

// FuzzMeter: no bytes, however cut, panic or count otherwise than in one piece.
func FuzzMeter(f *testing.F) {
	f.Add(sse, []byte(roleChunk+chunk(0)+usageChunk+doneChunk), uint8(3))
	f.Add(sse, []byte("data: {\"error\": {\"code\": 5e2}}\r\n\r\n"), uint8(1))
	f.Add("application/json", []byte(`{"usage":{"prompt_tokens":1},"x":"usage"}`), uint8(5))
	f.Add("text/plain", []byte("x"), uint8(0))
	f.Fuzz(func(t *testing.T, contentType string, body []byte, size uint8) {
		whole := httptransport.MeterAll(contentType, body)
		var pieces [][]byte
		for rest := body; len(rest) > 0; {
			n := min(int(size)+1, len(rest))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		cut := httptransport.MeterAll(contentType, pieces...)
		if len(body) <= httptransport.TailBytes { // beyond, the pieces decide how much of the end is kept
			require.Equal(t, whole, cut)
		}
		require.GreaterOrEqual(t, cut.Usage.PromptTokens, int64(0))
		require.GreaterOrEqual(t, cut.Usage.CachedTokens, int64(0))
	})
}
