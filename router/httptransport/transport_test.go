package httptransport_test

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
)

// said answers with what it got: method, host, path, query and body.
func said(rw http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, _ = io.WriteString(rw, strings.Join([]string{r.Method, r.Host, r.URL.EscapedPath(), r.URL.RawQuery, string(body)}, " "))
}

func read(t testing.TB, resp *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return string(body)
}

func TestRewrite(t *testing.T) {
	s := server(t, said)
	host := strings.TrimPrefix(s.URL, "http://")
	for _, c := range []struct{ base, in, want string }{
		{"", "http://x/v1/y?q=1", "/v1/y q=1"},
		{"/", "http://x/v1/y", "/v1/y "},
		{"", "http://x", "/ "},
		{"/base", "http://x/v1/y?q=1", "/base/v1/y q=1"},
		{"/base/", "http://x/v1/y/", "/base/v1/y/ "},
		{"/base/", "http://x", "/base "},
		{"/a%2Fb", "http://x/c%2Fd/../e", "/a%2Fb/c%2Fd/../e "},
		{"/base?key=1", "http://x/y?q=1", "/base/y key=1&q=1"},
		{"?key=1", "http://x/y", "/y key=1"},
	} {
		p := pool(t, router.Config{}, s.URL+c.base)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.in, strings.NewReader("hello"))
		require.NoError(t, err)
		req.Host = "somewhere.else"
		resp, err := transport(t, p).RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, "POST "+host+" "+c.want+" hello", read(t, resp), "%+v", c)
		require.Equal(t, c.in, req.URL.String(), "the caller's request stays as it was")
		require.Equal(t, "somewhere.else", req.Host)
		ends(t, p, 1, 0, 0)
	}
}

// TestUselessAddress: the fault is in the settings; it must not look like an engine that fails.
func TestUselessAddress(t *testing.T) {
	for _, address := range []string{"", "host:8000", "/path", "ftp://host", "http://", "http://a b", ":"} {
		p := pool(t, router.Config{}, address)
		require.ErrorContains(t, httptransport.ValidateAddress(address), "Address")
		req := request(t, http.MethodPost, "x")
		closed := &closing{ReadCloser: req.Body}
		req.Body, req.GetBody = closed, nil
		_, err := transport(t, p).RoundTrip(req)
		var up *httptransport.UpstreamError
		require.ErrorAs(t, err, &up)
		require.ErrorContains(t, err, `httptransport: endpoint "a" failed (attempt 1): Address = `)
		require.True(t, closed.done.Load())
		ends(t, p, 0, 0, 1)
	}

	good := server(t, said)
	p := pool(t, router.Config{Policy: router.RoundRobin()}, "nonsense", good.URL)
	for range 4 {
		resp, err := transport(t, p).RoundTrip(request(t, http.MethodPost, "x"))
		require.NoError(t, err, "another endpoint makes up for it")
		_ = read(t, resp)
	}
	require.Zero(t, drained(t, p).Failed)
}

func TestIncompleteRequests(t *testing.T) {
	p := pool(t, router.Config{}, "http://a")
	for _, req := range []*http.Request{
		{Method: http.MethodGet, Header: http.Header{}}, {Method: http.MethodGet, URL: &url.URL{}},
	} {
		body := &closing{ReadCloser: io.NopCloser(strings.NewReader(""))}
		req.Body = body
		_, err := transport(t, p).RoundTrip(req)
		var bad *httptransport.RequestError
		require.ErrorAs(t, err, &bad)
		require.True(t, body.done.Load())
	}
	require.Zero(t, p.Stats().Decisions, "nobody was asked")
	for _, pool := range []router.Router{nil, (*router.Pool)(nil)} {
		require.ErrorContains(t, (&httptransport.Transport{Pool: pool}).Validate(), "Pool is nil")
	}
}

type closing struct {
	io.ReadCloser
	done atomic.Bool
}

func (c *closing) Close() error {
	c.done.Store(true)
	return c.ReadCloser.Close()
}

// TestNobodyCanServe: the body is closed and the rejection found.
func TestNobodyCanServe(t *testing.T) {
	p := pool(t, router.Config{})
	req := request(t, http.MethodPost, "x")
	closed := &closing{ReadCloser: req.Body}
	req.Body = closed
	_, err := transport(t, p).RoundTrip(req)
	require.ErrorIs(t, err, router.ErrNoEndpoints)
	var reject *router.RejectError
	require.ErrorAs(t, err, &reject)
	require.True(t, closed.done.Load())

	_, err = (&httptransport.Transport{}).RoundTrip(request(t, http.MethodPost, "x"))
	require.ErrorContains(t, err, "Pool")
}

func TestDescribe(t *testing.T) {
	w, cfg := watched()
	p := pool(t, cfg, server(t, said).URL)
	tr := transport(t, p)
	call := func(f func(*http.Request) (router.Request, error)) (string, error) {
		tr.Describe = f
		req := request(t, http.MethodPost, "hello")
		closed := &closing{ReadCloser: req.Body}
		req.Body = closed
		resp, err := tr.RoundTrip(req)
		if err != nil {
			require.True(t, closed.done.Load())
			return "", err
		}
		body := read(t, resp)
		require.True(t, closed.done.Load())
		return body, nil
	}
	body, err := call(func(r *http.Request) (router.Request, error) {
		b, _ := io.ReadAll(r.Body)
		r.Body, r.GetBody = io.NopCloser(strings.NewReader("<"+string(b)+">")), nil
		r.ContentLength = 7
		return router.Request{ID: "r1"}, nil
	})
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(body, " <hello>"))
	require.Equal(t, "r1", (<-w).RequestID)

	body, err = call(func(r *http.Request) (router.Request, error) { // a body of unknown length in place of it
		r.Body, r.GetBody, r.ContentLength = io.NopCloser(io.TeeReader(r.Body, io.Discard)), nil, -1
		return router.Request{}, nil
	})
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(body, " hello"))

	_, err = call(func(r *http.Request) (router.Request, error) { return router.Request{}, errBroken })
	var bad *httptransport.RequestError
	require.ErrorAs(t, err, &bad)
	require.ErrorIs(t, err, errBroken)
	_, err = call(func(r *http.Request) (router.Request, error) { return router.Request{PromptTokens: -1}, nil })
	require.ErrorAs(t, err, &bad)
	require.ErrorContains(t, err, "PromptTokens")
	require.EqualValues(t, 2, p.Stats().Decisions, "nothing is reserved for a faulty request")
	drained(t, p)
}

// TestDeadlineOfTheContext: it becomes the request's own, and one that has passed is told as such.
func TestDeadlineOfTheContext(t *testing.T) {
	p := pool(t, router.Config{}, "http://127.0.0.1:1")
	ctx, halt := context.WithTimeout(t.Context(), 0)
	defer halt()
	_, err := transport(t, p).RoundTrip(request(t, http.MethodGet, "").WithContext(ctx))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Zero(t, p.Stats().Decisions)

	ctx, halt = context.WithTimeout(t.Context(), time.Second)
	defer halt()
	tr := transport(t, p)
	tr.Describe = func(*http.Request) (router.Request, error) { return router.Request{MaxOutputTokens: 1 << 20}, nil }
	_, err = tr.RoundTrip(request(t, http.MethodGet, "").WithContext(ctx))
	require.ErrorIs(t, err, router.ErrDeadline, "a million tokens in a second")
	require.NoError(t, ctx.Err(), "which was told at once")
	require.Zero(t, p.Stats().Decisions)
}

// flaky answers the first requests, over all servers that share n, in its own way, then like said.
func flaky(n *atomic.Int32, faults int32, fault http.HandlerFunc) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		if n.Add(1) <= faults {
			fault(rw, r)
			return
		}
		said(rw, r)
	}
}

func status(code int) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		http.Error(rw, "not now", code)
	}
}

func TestRetry(t *testing.T) {
	breaks := func(rw http.ResponseWriter, r *http.Request) { reset(rw) }
	noGetBody := func(tr *httptransport.Transport, r *http.Request) { r.GetBody = nil }
	for _, c := range []struct {
		name      string
		faults    int32
		fault     http.HandlerFunc
		configure func(tr *httptransport.Transport, r *http.Request)
		attempts  int
		status    int // 0 = an error
	}{
		{"reset", 1, breaks, nil, 2, 200},
		{"503", 1, status(503), nil, 2, 200},
		{"429", 2, status(429), nil, 3, 200},
		{"504 too often", 9, status(504), nil, 3, 504},
		{"reset too often", 9, breaks, nil, 3, 0},
		{"500 is not retried", 1, status(500), nil, 1, 500},
		{"404 is not retried", 1, status(404), nil, 1, 404},
		{"unless told so", 1, status(404), func(tr *httptransport.Transport, r *http.Request) {
			tr.RetryStatus = func(code int) bool { return code == 404 }
		}, 2, 200},
		{"no retries", 1, status(503), func(tr *httptransport.Transport, r *http.Request) { tr.Retries = router.None }, 1, 503},
		{"no retries after a reset", 1, breaks, func(tr *httptransport.Transport, r *http.Request) { tr.Retries = router.None }, 1, 0},
		{"one retry", 2, status(503), func(tr *httptransport.Transport, r *http.Request) { tr.Retries = 1 }, 2, 503},
		{"a small body without GetBody", 1, status(503), noGetBody, 2, 200},
		{"a small body without GetBody, reset", 2, breaks, noGetBody, 3, 200},
		{"too large a body", 1, status(503), func(tr *httptransport.Transport, r *http.Request) {
			noGetBody(tr, r)
			tr.ReplayBytes = 4
		}, 1, 503},
		{"as large a body as allowed", 1, status(503), func(tr *httptransport.Transport, r *http.Request) {
			noGetBody(tr, r)
			tr.ReplayBytes = 5
		}, 2, 200},
		{"no buffering", 1, status(503), func(tr *httptransport.Transport, r *http.Request) {
			noGetBody(tr, r)
			tr.ReplayBytes = router.None
		}, 1, 503},
		{"a body of unknown length", 1, status(503), func(tr *httptransport.Transport, r *http.Request) {
			noGetBody(tr, r)
			r.ContentLength = -1
		}, 1, 503},
		{"no body", 1, status(503), func(tr *httptransport.Transport, r *http.Request) {
			r.Body, r.GetBody, r.ContentLength = nil, nil, 0
		}, 2, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			var n atomic.Int32
			h := flaky(&n, c.faults, c.fault)
			p := pool(t, router.Config{}, server(t, h).URL, server(t, h).URL, server(t, h).URL, server(t, h).URL)
			tr := transport(t, p)
			req := request(t, http.MethodPost, "hello")
			if c.configure != nil {
				c.configure(tr, req)
			}
			resp, err := tr.RoundTrip(req)
			if c.status == 0 {
				var up *httptransport.UpstreamError
				require.ErrorAs(t, err, &up)
				require.Equal(t, c.attempts, up.Attempts)
			} else {
				require.NoError(t, err)
				require.Equal(t, c.status, resp.StatusCode)
				route, _ := httptransport.RouteFrom(resp.Request.Context())
				require.Len(t, route.Failed, c.attempts-1)
				require.NotContains(t, route.Failed, route.Lease.Endpoint().ID)
				body := read(t, resp)
				if c.status == 200 && req.Body != nil {
					require.True(t, strings.HasSuffix(body, " hello"), body)
				}
			}
			require.EqualValues(t, c.attempts, n.Load())
			s := drained(t, p)
			require.EqualValues(t, c.attempts, s.Decisions)
			for _, e := range s.Endpoints {
				require.LessOrEqual(t, e.Chosen, uint64(1), "no endpoint is tried twice")
			}
		})
	}
}

func TestRetryOnRefusedConnection(t *testing.T) {
	p := pool(t, router.Config{Policy: router.RoundRobin()}, refused(t), server(t, said).URL)
	tr := transport(t, p)
	for range 4 {
		resp, err := tr.RoundTrip(request(t, http.MethodPost, "hello"))
		require.NoError(t, err)
		read(t, resp)
	}
	s := drained(t, p)
	require.EqualValues(t, 4, s.Completed)
	require.Positive(t, s.Failed)
}

// TestTheLastAnswerCounts: where no other endpoint is left, the caller sees what the last one said.
func TestTheLastAnswerCounts(t *testing.T) {
	p := pool(t, router.Config{}, server(t, status(503)).URL)
	resp, err := transport(t, p).RoundTrip(request(t, http.MethodPost, "hello"))
	require.NoError(t, err)
	require.Equal(t, 503, resp.StatusCode)
	require.Equal(t, "not now\n", read(t, resp))
	ends(t, p, 0, 1, 0)

	p = pool(t, router.Config{}, refused(t))
	_, err = transport(t, p).RoundTrip(request(t, http.MethodPost, "hello"))
	var up *httptransport.UpstreamError
	require.ErrorAs(t, err, &up)
	require.Equal(t, 1, up.Attempts)
	var refusedErr *net.OpError
	require.ErrorAs(t, err, &refusedErr)
	ends(t, p, 0, 1, 0)
}

// TestOthersAreFull: there is another endpoint, but no place on it; that is what the caller is told.
func TestOthersAreFull(t *testing.T) {
	p := pool(t, router.Config{Caps: admission.Caps{Endpoint: 1}}, server(t, status(503)).URL, "http://b")
	held, err := p.Reserve(t.Context(), router.Request{Exclude: []string{"a"}, ExcludeHard: true})
	require.NoError(t, err)
	_, err = transport(t, p).RoundTrip(request(t, http.MethodPost, "hello"))
	require.ErrorIs(t, err, router.ErrSaturated)
	held.Cancel()
	ends(t, p, 0, 1, 1)
}

// TestRetryKeepsTheCallersExclusion: what the caller would rather not have is taken before nothing, and what it must not
// have is not taken at all.
func TestRetryKeepsTheCallersExclusion(t *testing.T) {
	for _, hard := range []bool{false, true} {
		bad, good := server(t, status(503)), server(t, said)
		p := pool(t, router.Config{}, bad.URL, good.URL)
		tr := transport(t, p)
		tr.Describe = func(*http.Request) (router.Request, error) {
			return router.Request{Exclude: []string{"b"}, ExcludeHard: hard}, nil
		}
		resp, err := tr.RoundTrip(request(t, http.MethodPost, "hello"))
		require.NoError(t, err)
		read(t, resp)
		if hard {
			require.Equal(t, 503, resp.StatusCode)
		} else {
			require.Equal(t, 200, resp.StatusCode)
		}
		drained(t, p)
	}
}

// TestNoRetryAfterTheFirstByte: the caller has seen a part, so it gets the error.
func TestNoRetryAfterTheFirstByte(t *testing.T) {
	h := func(rw http.ResponseWriter, r *http.Request) {
		send(rw, "part")
		reset(rw)
	}
	p := pool(t, router.Config{}, server(t, h).URL, server(t, h).URL)
	resp, err := transport(t, p).RoundTrip(request(t, http.MethodPost, "hello"))
	require.NoError(t, err)
	_, err = io.ReadAll(resp.Body)
	require.Error(t, err)
	require.NoError(t, resp.Body.Close())
	ends(t, p, 0, 1, 0)
}

// TestCancelledWhileRetrying: a request that is given up is not sent on.
func TestCancelledWhileRetrying(t *testing.T) {
	ctx, halt := context.WithCancel(t.Context())
	defer halt()
	p := pool(t, router.Config{}, "http://a", "http://b")
	body := &closing{ReadCloser: io.NopCloser(strings.NewReader("x"))}
	tr := &httptransport.Transport{Pool: p, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
		halt()
		return &http.Response{StatusCode: 503, Body: body}, nil
	})}
	_, err := tr.RoundTrip(request(t, http.MethodGet, "").WithContext(ctx))
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, body.done.Load())
	ends(t, p, 0, 1, 0)
}

// TestGzipIsPassedOn: a body that the caller asked to be compressed arrives as the engine sent it.
func TestGzipIsPassedOn(t *testing.T) {
	w, cfg := watched()
	s := server(t, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		rw.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(rw)
		_, _ = io.WriteString(z, chunk(0)+doneChunk)
		_ = z.Close()
	})
	p := pool(t, cfg, s.URL)
	req := request(t, http.MethodPost, "x")
	req.Header.Set("Accept-Encoding", "gzip")
	resp, err := transport(t, p).RoundTrip(req)
	require.NoError(t, err)
	require.Equal(t, "gzip", resp.Header.Get("Content-Encoding"))
	z, err := gzip.NewReader(resp.Body)
	require.NoError(t, err)
	text, err := io.ReadAll(z)
	require.NoError(t, err)
	require.Equal(t, chunk(0)+doneChunk, string(text))
	_, _ = io.Copy(io.Discard, resp.Body)
	require.NoError(t, resp.Body.Close())
	out := w.outcome(t)
	require.Equal(t, router.Completed, out.Cause)
	require.Positive(t, out.FirstTokenMS)
	require.Zero(t, out.Tokens)
}

// TestConnectionsAreReused: after a normal end the connection serves the next request.
func TestConnectionsAreReused(t *testing.T) {
	var conns sync.Map
	s := server(t, func(rw http.ResponseWriter, r *http.Request) {
		conns.Store(r.RemoteAddr, true)
		rw.Header().Set("Content-Type", "text/event-stream")
		send(rw, chunk(0), doneChunk)
	})
	p := pool(t, router.Config{}, s.URL)
	client := &http.Client{Transport: transport(t, p)}
	for range 20 {
		resp, err := client.Post("http://engines/v1", "application/json", strings.NewReader("{}"))
		require.NoError(t, err)
		read(t, resp)
	}
	n := 0
	conns.Range(func(any, any) bool { n++; return true })
	require.Equal(t, 1, n)
	ends(t, p, 20, 0, 0)
}

func TestHead(t *testing.T) {
	p := pool(t, router.Config{}, server(t, said).URL)
	resp, err := transport(t, p).RoundTrip(request(t, http.MethodHead, ""))
	require.NoError(t, err)
	ends(t, p, 1, 0, 0)
	require.NoError(t, resp.Body.Close())
	ends(t, p, 1, 0, 0)
}

// TestPrefixesAttract: the describer's prefix brings the second turn to where the first one was.
func TestPrefixesAttract(t *testing.T) {
	p := pool(t, router.Config{}, server(t, said).URL, server(t, said).URL, server(t, said).URL)
	tr := transport(t, p)
	scope, err := prefix.NewScope(prefix.Parts{Model: "m"})
	require.NoError(t, err)
	q, err := prefix.FromBytes(scope, 16, 4, []byte(strings.Repeat("a long prompt ", 1000)))
	require.NoError(t, err)
	tr.Describe = func(*http.Request) (router.Request, error) { return router.Request{Prefix: q}, nil }
	resp, err := tr.RoundTrip(request(t, http.MethodPost, "x"))
	require.NoError(t, err)
	route, _ := httptransport.RouteFrom(resp.Request.Context())
	read(t, resp)
	cached, err := p.Cached(route.Lease.Endpoint().ID, q)
	require.NoError(t, err)
	require.Equal(t, q.Tokens(), cached)
}

// TestErrorsSpeak: every error of the package names itself and wraps its cause.
func TestErrorsSpeak(t *testing.T) {
	cause := errors.New("cause")
	for _, c := range []struct {
		err  error
		want string
	}{
		{&httptransport.UpstreamError{Endpoint: "a", Attempts: 2, Err: cause}, `httptransport: endpoint "a" failed (attempt 2): cause`},
		{&httptransport.StatusError{Code: 503}, "httptransport: the endpoint answered 503 Service Unavailable"},
		{&httptransport.StreamError{Code: 500}, "httptransport: the stream carries an error event, code 500"},
		{&httptransport.RequestError{Message: "no", Err: cause}, "httptransport: no"},
	} {
		require.EqualError(t, c.err, c.want)
	}
	require.ErrorIs(t, &httptransport.UpstreamError{Err: cause}, cause)
	require.ErrorIs(t, &httptransport.RequestError{Err: cause}, cause)
}

// TestOtherBases: what holds for http.Transport need not for another Base.
func TestOtherBases(t *testing.T) {
	answer := func(method string, status int, length int64, body string) (*router.Pool, *http.Response) {
		p := pool(t, router.Config{}, "http://a")
		tr := &httptransport.Transport{Pool: p, Base: roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, ContentLength: length, Body: io.NopCloser(strings.NewReader(body))}, nil
		})}
		resp, err := tr.RoundTrip(request(t, method, ""))
		require.NoError(t, err)
		route, ok := httptransport.RouteFrom(resp.Request.Context())
		require.True(t, ok, "the request is there even where Base leaves it out")
		require.Equal(t, "a", route.Lease.Endpoint().ID)
		return p, resp
	}
	p, _ := answer(http.MethodHead, 200, 5, "")
	ends(t, p, 1, 0, 0)
	p, _ = answer(http.MethodGet, 204, -1, "")
	ends(t, p, 1, 0, 0)

	p, resp := answer(http.MethodGet, 200, 5, "hello")
	_, err := io.ReadFull(resp.Body, make([]byte, 5)) // the end has not been told
	require.NoError(t, err)
	require.EqualValues(t, 1, p.Stats().OpenLeases)
	require.NoError(t, resp.Body.Close())
	ends(t, p, 1, 0, 0)

	p, resp = answer(http.MethodGet, 101, -1, "hello") // switched, but to what cannot be written to
	read(t, resp)
	ends(t, p, 1, 0, 0)
}
