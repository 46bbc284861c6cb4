package overload

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
)

// result is how a request ended, as its client saw it.
type result uint8

const (
	lost    result = iota // anything else: must not happen
	served                // with every token that was asked for
	broken                // begun, and not served to the end: must not happen
	refused               // 429: too much at once
	late                  // 504: it could not be done in time
	results
)

// client sends requests over as many connections as it takes. Any number of goroutines may use it.
type client struct {
	base   *http.Transport
	http   *http.Client
	url    string
	bodies [kinds][texts][]byte
	keys   [tenants]string
}

func newClient(url string) *client {
	base := newTransport()
	c := &client{base: base, http: &http.Client{Transport: base}, url: url + "/v1/completions"}
	for k := range kinds {
		kind := kindOf(k)
		for i := range texts {
			begin := fmt.Sprintf("%v %d: ", kind.class, i)
			text := begin + strings.Repeat("word", kind.prompt)[:4*kind.prompt-len(begin)]
			c.bodies[k][i] = fmt.Appendf(nil, `{"model":%q,"prompt":%q,"max_tokens":%d,"ignore_eos":true,"stream":%t}`,
				model, text, kind.output, kind.stream)
		}
	}
	for i := range c.keys {
		c.keys[i] = fmt.Sprintf("Bearer tenant-%d", i+1)
	}
	return c
}

func (c *client) close() { c.base.CloseIdleConnections() }

// run sends one request and takes its answer. Its timeout is in the clock's time, scaled by scale; 0 = none is sent. The error says
// what is wrong with an answer that is neither a whole one nor a refusal.
func (c *client) run(ctx context.Context, a *arrival, scale float64) (result, error) {
	kind := kindOf(a.kind)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(c.bodies[a.kind][a.text]))
	if err != nil {
		return lost, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", c.keys[a.tenant])
	req.Header.Set(gateway.HeaderClass, kind.class.String())
	if kind.timeout > 0 && scale > 0 {
		seconds := clock(kind.timeout, scale).Seconds()
		req.Header.Set(gateway.HeaderClientTimeout, strconv.FormatFloat(seconds, 'g', -1, 64))
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return lost, err
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusTooManyRequests, http.StatusGatewayTimeout:
		return refusal(resp)
	default:
		return lost, fmt.Errorf("status %d", resp.StatusCode)
	}
	n, err := tokens(resp.Body, kind.stream)
	if err == nil && n != kind.output {
		err = fmt.Errorf("%d of %d tokens", n, kind.output)
	}
	if err != nil {
		return broken, err
	}
	return served, nil
}

// refusal reads a refusal, which must be in OpenAI's shape and say when to come back, if it says it, in whole seconds from 1 to 30.
func refusal(resp *http.Response) (result, error) {
	var doc struct {
		Error struct{ Message, Type, Code string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		return lost, fmt.Errorf("status %d: %w", resp.StatusCode, err)
	}
	_, _ = io.Copy(io.Discard, resp.Body) // the connection is used again
	if doc.Error.Message == "" || doc.Error.Type == "" || doc.Error.Code == "" {
		return lost, fmt.Errorf("status %d with the error %+v", resp.StatusCode, doc.Error)
	}
	if after := resp.Header.Get("Retry-After"); after != "" {
		if n, err := strconv.Atoi(after); err != nil || n < 1 || n > 30 {
			return lost, fmt.Errorf("status %d with Retry-After %q", resp.StatusCode, after)
		}
	}
	if resp.StatusCode == http.StatusGatewayTimeout {
		return late, nil
	}
	return refused, nil
}

// tokens counts the tokens of an answer: of a stream its events with one, up to its end.
func tokens(body io.Reader, stream bool) (int, error) {
	if !stream {
		var doc struct {
			Usage struct {
				Tokens int `json:"completion_tokens"`
			}
		}
		err := json.NewDecoder(body).Decode(&doc)
		_, _ = io.Copy(io.Discard, body)
		return doc.Usage.Tokens, err
	}
	n, done := 0, false
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		switch line := lines.Bytes(); {
		case bytes.Equal(line, []byte("data: [DONE]")):
			done = true
		case bytes.HasPrefix(line, []byte(`data: {"error"`)):
			return n, fmt.Errorf("%s", line)
		case bytes.HasPrefix(line, []byte("data: ")):
			n++
		}
	}
	if err := lines.Err(); err != nil {
		return n, err
	}
	if !done {
		return n, errors.New("the stream has no end")
	}
	return n, nil
}
