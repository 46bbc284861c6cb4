package scrape_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/scrape"
)

func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return b.String()
}

// breaking is a body that ends with an error.
type breaking struct {
	io.Reader
	err error
}

func (b breaking) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		err = b.err
	}
	return n, err
}

// endless is a gzip stream of empty blocks: it never yields a byte.
type endless struct {
	head io.Reader
	n    int
}

func (e *endless) Read(p []byte) (int, error) {
	if n, err := e.head.Read(p); err == nil {
		return n, nil
	}
	for i := range p {
		p[i] = "\x00\x00\x00\xff\xff"[e.n%5]
		e.n++
	}
	return len(p), nil
}

// body makes a response of a stream.
func body(req *http.Request, r io.Reader, header ...string) *http.Response {
	resp := response(req, 200, "", header...)
	resp.Body = io.NopCloser(r)
	return resp
}

// sloppy reads one number and neither the rest nor any error.
func sloppy(r io.Reader, at time.Time) (telemetry.Snapshot, error) {
	var b [1]byte
	_, _ = r.Read(b[:])
	return telemetry.Snapshot{ObservedAt: at, Running: telemetry.V(float64(b[0] - '0'))}, nil
}

func TestAnswers(t *testing.T) {
	type answer = func(*http.Request) (*http.Response, error)
	with := func(status int, text string, header ...string) answer {
		return func(req *http.Request) (*http.Response, error) { return response(req, status, text, header...), nil }
	}
	stream := func(r io.Reader, header ...string) answer {
		return func(req *http.Request) (*http.Response, error) { return body(req, r, header...), nil }
	}
	failing := func(err error) answer {
		return func(*http.Request) (*http.Response, error) { return nil, err }
	}
	const limit = 1000
	big := strings.Repeat(" ", limit)
	reset := errors.New("connection reset")
	for _, tc := range []struct {
		name   string
		answer answer
		want   scrape.Reason // "" = running 7
		text   string        // of the error, behind the endpoint
		parse  func(io.Reader, time.Time) (telemetry.Snapshot, error)
	}{
		{name: "plain", answer: with(200, "7")},
		{name: "typed", answer: with(200, "7", "Content-Type", "text/plain; version=0.0.4; charset=utf-8")},
		{name: "JSON", answer: with(200, "7", "Content-Type", "application/json")},
		{name: "odd type", answer: with(200, "7", "Content-Type", ";;;")},
		{name: "gzip", answer: with(200, zipped("7"), "Content-Encoding", "gzip")},
		{name: "gzip by an old name", answer: with(200, zipped("7"), "Content-Encoding", " X-GZIP")},
		{name: "identity", answer: with(200, "7", "Content-Encoding", "identity")},
		{name: "as large as can be", answer: with(200, "7"+big[1:])},
		{name: "gzip, as large as can be", answer: with(200, zipped("7"+big[1:]), "Content-Encoding", "gzip")},
		{name: "rest unread by the parser", answer: with(200, "7 and more"), parse: sloppy},

		{name: "status", answer: with(503, "7"), want: scrape.ReasonStatus, text: "status 503"},
		{name: "no content", answer: with(204, ""), want: scrape.ReasonStatus, text: "status 204"},
		{name: "unauthorised", answer: with(401, "7"), want: scrape.ReasonStatus, text: "status 401"},
		{name: "not modified", answer: with(304, ""), want: scrape.ReasonStatus, text: "status 304"},
		{name: "HTML", answer: with(200, "7", "Content-Type", "text/html; charset=utf-8"), want: scrape.ReasonContent, text: "content: media type text/html"},
		{name: "event stream", answer: with(200, "7", "Content-Type", "text/event-stream"), want: scrape.ReasonContent, text: "content: media type text/event-stream"},
		{name: "brotli", answer: with(200, "7", "Content-Encoding", "br"), want: scrape.ReasonContent, text: `content: content encoding "br"`},
		{name: "twice", answer: with(200, "7", "Content-Encoding", "gzip, gzip"), want: scrape.ReasonContent, text: `content: content encoding "gzip, gzip"`},

		{name: "too large", answer: with(200, "7"+big), want: scrape.ReasonTooLarge, text: "too-large: document too large"},
		{name: "too large behind what is read", answer: with(200, "7"+big), want: scrape.ReasonTooLarge, parse: sloppy},
		{name: "gzip, too large", answer: with(200, zipped("7"+big), "Content-Encoding", "gzip"), want: scrape.ReasonTooLarge},
		{name: "gzip, much too large", answer: with(200, zipped(strings.Repeat(big, 10_000)), "Content-Encoding", "gzip"), want: scrape.ReasonTooLarge, parse: sloppy},
		{name: "gzip of nothing without end", answer: stream(&endless{head: strings.NewReader(zipped("")[:10])}, "Content-Encoding", "gzip"), want: scrape.ReasonTooLarge},
		{name: "announced too large", answer: func(req *http.Request) (*http.Response, error) {
			resp := body(req, breaking{strings.NewReader(""), errors.New("it was read")})
			resp.ContentLength = limit + 1
			return resp, nil
		}, want: scrape.ReasonTooLarge},

		{name: "broken off", answer: stream(breaking{strings.NewReader("7"), io.ErrUnexpectedEOF}), want: scrape.ReasonBody, text: "body: unexpected EOF"},
		{name: "broken off, unnoticed by the parser", answer: stream(breaking{strings.NewReader("7"), reset}), want: scrape.ReasonBody, parse: sloppy, text: "body: connection reset"},
		{name: "gzip, cut off", answer: with(200, zipped("7")[:20], "Content-Encoding", "gzip"), want: scrape.ReasonBody},
		{name: "gzip, wrong sum", answer: with(200, zipped("7")[:21]+"xxxxxxxx", "Content-Encoding", "gzip"), want: scrape.ReasonBody, parse: sloppy},
		{name: "gzip, none", answer: with(200, "7", "Content-Encoding", "gzip"), want: scrape.ReasonBody},
		{name: "gzip, empty", answer: with(200, "", "Content-Encoding", "gzip"), want: scrape.ReasonBody},
		{name: "gzip, something behind", answer: with(200, zipped("7")+"more", "Content-Encoding", "gzip"), want: scrape.ReasonBody},
		{name: "late in the body", answer: stream(breaking{strings.NewReader("7"), context.DeadlineExceeded}), want: scrape.ReasonTimeout, text: "timeout: context deadline exceeded"},

		{name: "wrong document", answer: with(200, "seven"), want: scrape.ReasonParse, text: "parse: no number"},
		{name: "empty", answer: with(200, ""), want: scrape.ReasonParse},
		{name: "parser panics", answer: with(200, "7"), want: scrape.ReasonParse, text: "parse: the parser panicked: oh", parse: func(io.Reader, time.Time) (telemetry.Snapshot, error) { panic("oh") }},

		{name: "refused", answer: failing(errors.New("connection refused")), want: scrape.ReasonConnection, text: "connection: connection refused"},
		{name: "client's own timeout", answer: failing(context.DeadlineExceeded), want: scrape.ReasonTimeout},
		{name: "redirects without end", answer: with(302, "", "Location", "/elsewhere"), want: scrape.ReasonRedirect, text: "redirect: redirect not followed: more than 3"},
		{name: "to another host", answer: with(302, "", "Location", "http://other/metrics"), want: scrape.ReasonRedirect, text: `redirect: redirect not followed: to another host, "other"`},
		{name: "to another port", answer: with(307, "", "Location", "http://a:8001/metrics"), want: scrape.ReasonRedirect, text: `redirect: redirect not followed: to another host, "a:8001"`},
		{name: "to nowhere", answer: with(302, ""), want: scrape.ReasonStatus, text: "status 302"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sink := &recorder{}
			bubble(t, func() scrape.Config {
				c := clockless(newFleet("a"), sink, tc.answer)
				c.MaxBytes = limit
				if tc.parse != nil {
					c.Parse = tc.parse
				}
				return c
			}, func(t *testing.T, p *scrape.Poller) {
				time.Sleep(500 * time.Millisecond)
				calls := sink.all()
				require.Len(t, calls, 1)
				if tc.want == scrape.ReasonNone {
					require.NoError(t, calls[0].err)
					assert.EqualValues(t, 7, calls[0].running())
					return
				}
				var failure *scrape.Error
				require.ErrorAs(t, calls[0].err, &failure)
				assert.Equal(t, tc.want, failure.Reason, "%v", failure)
				assert.Equal(t, "a", failure.ID)
				if tc.text != "" {
					want := `scrape: endpoint "a": ` + tc.text
					assert.EqualError(t, failure, want)
				}
				s, _ := p.Endpoint("a")
				assert.Equal(t, tc.want, s.Reason)
				assert.Equal(t, failure.Error(), s.Error)
				assert.Equal(t, map[scrape.Reason]uint64{tc.want: 1}, p.Stats().FailuresBy)
			})
		})
	}
}

func TestRedirects(t *testing.T) {
	hops := map[string]string{
		"http://a/metrics": "http://A:80/two", "http://A:80/two": "https://a/three", "https://a/three": "https://a:443/four",
		"http://down/metrics": "https://down/x", "https://down/x": "http://down/y",
	}
	engine := transport(func(req *http.Request) (*http.Response, error) {
		if next := hops[req.URL.String()]; next != "" {
			return response(req, http.StatusFound, "", "Location", next), nil
		}
		return response(req, 200, "7"), nil
	})
	for _, tc := range []struct {
		name, id string
		most     int
		own      func(*http.Request, []*http.Request) error
		want     scrape.Reason
	}{
		{"as many as allowed", "a", 3, nil, scrape.ReasonNone},
		{"by default", "a", 0, nil, scrape.ReasonNone},
		{"one too many", "a", 2, nil, scrape.ReasonRedirect},
		{"none", "a", scrape.None, nil, scrape.ReasonRedirect},
		{"back to plain", "down", 10, nil, scrape.ReasonRedirect},
		{"the client's rule", "a", 3, func(*http.Request, []*http.Request) error { return errors.New("no") }, scrape.ReasonRedirect},
		{"the client's own way to stop", "a", 3, func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, scrape.ReasonStatus},
	} {
		sink := &recorder{}
		bubble(t, func() scrape.Config {
			c := clockless(newFleet(tc.id), sink, engine)
			c.MaxRedirects, c.Client.CheckRedirect = tc.most, tc.own
			return c
		}, func(t *testing.T, p *scrape.Poller) {
			time.Sleep(500 * time.Millisecond)
			s, _ := p.Endpoint(tc.id)
			assert.Equal(t, tc.want, s.Reason, "%s: %s", tc.name, s.Error)
			assert.Len(t, sink.all(), 1)
		})
	}
}

// A secret in a URL does not get into errors, which hosts show and log.
func TestNoSecretInErrors(t *testing.T) {
	f, sink := newFleet(), &recorder{}
	f.set(scrape.Target{ID: "a", URL: "http://user:hunter2@a/metrics?token=hunter2"})
	var authorised string
	bubble(t, func() scrape.Config {
		return clockless(f, sink, func(req *http.Request) (*http.Response, error) {
			authorised = req.Header.Get("Authorization")
			return nil, errors.New("refused")
		})
	}, func(t *testing.T, _ *scrape.Poller) {
		time.Sleep(500 * time.Millisecond)
		require.Len(t, sink.all(), 1)
		assert.NotContains(t, sink.all()[0].err.Error(), "hunter2")
		assert.NotEmpty(t, authorised)
	})
}
