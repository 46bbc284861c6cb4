package httptransport_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
)

// BenchmarkRoundTrip is what the transport itself costs a request, over a Base that answers at once.
func BenchmarkRoundTrip(b *testing.B) {
	p := pool(b, router.Config{}, "http://a", "http://b", "http://c")
	tr := &httptransport.Transport{Pool: p, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {sse}}, ContentLength: -1, Body: io.NopCloser(strings.NewReader(doneChunk))}, nil
	})}
	req := request(b, http.MethodPost, "")
	b.ReportAllocs()
	for b.Loop() {
		resp, err := tr.RoundTrip(req)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

// BenchmarkStream is what a streamed token costs: one event that is read, counted and told to the ledger.
func BenchmarkStream(b *testing.B) {
	p := pool(b, router.Config{}, "http://a")
	event := []byte("data: {\"id\":\"chatcmpl-0123456789\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\"," +
		"\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n")
	tr := &httptransport.Transport{Pool: p, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {sse}}, ContentLength: -1, Body: io.NopCloser(endless(event))}, nil
	})}
	resp, err := tr.RoundTrip(request(b, http.MethodPost, ""))
	require.NoError(b, err)
	defer resp.Body.Close()
	buf := make([]byte, len(event))
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := resp.Body.Read(buf); err != nil {
			b.Fatal(err)
		}
	}
}

type endless []byte

func (e endless) Read(p []byte) (int, error) { return copy(p, e), nil }

// BenchmarkDescribe reads a conversation of 32 KiB.
func BenchmarkDescribe(b *testing.B) {
	body, err := json.Marshal(map[string]any{"model": "m", "messages": []map[string]any{{"role": "user", "content": strings.Repeat("word ", 6500)}}})
	require.NoError(b, err)
	var o httptransport.OpenAI
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := o.Describe(post(b, string(body))); err != nil {
			b.Fatal(err)
		}
	}
}
