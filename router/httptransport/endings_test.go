package httptransport_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
)

func TestNormalEndReportsUsage(t *testing.T) {
	w, cfg := watched()
	s := server(t, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		send(rw, ": hello\n\n", roleChunk, chunk(0), chunk(1), chunk(2), usageChunk, doneChunk)
	})
	p := pool(t, cfg, s.URL)
	resp, err := transport(t, p).RoundTrip(request(t, http.MethodPost, "{}"))
	require.NoError(t, err)
	require.EqualValues(t, 1, p.Stats().OpenLeases, "the lease lasts as long as the stream")
	route, ok := httptransport.RouteFrom(resp.Request.Context())
	require.True(t, ok)
	require.Equal(t, "a", route.Lease.Endpoint().ID)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(body), doneChunk))
	require.NoError(t, resp.Body.Close())
	ends(t, p, 1, 0, 0)
	out := w.outcome(t)
	require.Equal(t, router.Usage{PromptTokens: 11, CachedTokens: 8, OutputTokens: 3}, out.Usage)
	require.EqualValues(t, 3, out.Tokens)
	require.Positive(t, out.StartDelayMS)
	require.Positive(t, out.FirstTokenMS)
}

func TestProgressAsTheStreamGoes(t *testing.T) {
	next := make(chan string)
	s := server(t, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		send(rw)
		for part := range next {
			send(rw, part)
		}
	})
	p := pool(t, router.Config{}, s.URL)
	tr := transport(t, p)
	tr.Describe = func(*http.Request) (router.Request, error) {
		return router.Request{PromptTokens: 100, MaxOutputTokens: 10}, nil
	}
	resp, err := tr.RoundTrip(request(t, http.MethodPost, "{}"))
	require.NoError(t, err)
	lines := bufio.NewReader(resp.Body)
	step := func(part string, prefill, decode int64) {
		t.Helper()
		next <- part
		for range strings.Count(part, "\n") {
			_, err := lines.ReadString('\n')
			require.NoError(t, err)
		}
		live := p.Stats().Endpoints[0].Own.Live
		require.Equal(t, [2]int64{prefill, decode}, [2]int64{live.Prefill, live.Decode}, "after %q", part)
	}
	step(": still alive\n\n", 100, 10)
	step(roleChunk, 100, 10)
	step(chunk(0)[:20]+"\n", 0, 9) // an event that ends early is an event all the same
	step("\n"+chunk(1)+chunk(2), 0, 7)
	close(next)
	_, err = io.Copy(io.Discard, lines)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	ends(t, p, 1, 0, 0)
}

func TestWhoseFaultItIs(t *testing.T) {
	type fixture struct {
		t    *testing.T
		tr   *httptransport.Transport
		halt context.CancelFunc
	}
	stream := func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		send(rw, chunk(0))
		<-r.Context().Done()
	}
	readAll := func(f fixture, resp *http.Response) error {
		_, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		return err
	}
	answer := func(contentType, body string) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", contentType)
			_, _ = io.WriteString(rw, body)
		}
	}
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		use     func(f fixture, resp *http.Response) error
		want    router.Cause
		err     error // of use
	}{
		{"cancelled in mid-stream", stream, func(f fixture, resp *http.Response) error {
			_, _ = resp.Body.Read(make([]byte, 4096))
			f.halt()
			return readAll(f, resp)
		}, router.Cancelled, context.Canceled},
		{"closed early", stream, func(f fixture, resp *http.Response) error {
			_, _ = resp.Body.Read(make([]byte, 16))
			return resp.Body.Close()
		}, router.Cancelled, nil},
		{"reset in mid-stream", func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "text/event-stream")
			send(rw, chunk(0))
			reset(rw)
		}, readAll, router.Failed, syscall.ECONNRESET},
		{"shorter than its length", func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Length", "100")
			send(rw, "short")
			panic(http.ErrAbortHandler)
		}, readAll, router.Failed, io.ErrUnexpectedEOF},
		{"closed after DONE", answer("text/event-stream", chunk(0)+doneChunk+": more\n"), func(f fixture, resp *http.Response) error {
			lines := bufio.NewReaderSize(resp.Body, 16)
			for line := ""; line != strings.TrimSuffix(doneChunk, "\n"); {
				line, _ = lines.ReadString('\n')
			}
			return resp.Body.Close()
		}, router.Completed, nil},
		{"cancelled after DONE", func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "text/event-stream")
			send(rw, chunk(0), usageChunk, doneChunk)
			<-r.Context().Done()
		}, func(f fixture, resp *http.Response) error {
			_, err := io.ReadFull(resp.Body, make([]byte, len(chunk(0)+usageChunk+doneChunk)))
			require.NoError(f.t, err)
			f.halt()
			_, err = resp.Body.Read(make([]byte, 1))
			return err
		}, router.Completed, context.Canceled},
		{"reset after DONE", func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "text/event-stream")
			send(rw, chunk(0), usageChunk, doneChunk)
			reset(rw)
		}, readAll, router.Completed, syscall.ECONNRESET},
		{"closed after a JSON document", func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			send(rw, `{"usage":{"prompt_tokens":1}}`)
			<-r.Context().Done()
		}, func(f fixture, resp *http.Response) error {
			_, err := io.ReadFull(resp.Body, make([]byte, 29))
			require.NoError(f.t, err)
			return resp.Body.Close()
		}, router.Completed, nil},
		{"closed within a JSON document", func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			send(rw, `{"usage":{"prompt_tokens":1}`)
			<-r.Context().Done()
		}, func(f fixture, resp *http.Response) error {
			_, err := io.ReadFull(resp.Body, make([]byte, 28))
			require.NoError(f.t, err)
			return resp.Body.Close()
		}, router.Cancelled, nil},
		{"closed at its length", answer("text/plain", strings.Repeat("x", 5000)), func(f fixture, resp *http.Response) error {
			_, err := io.ReadFull(resp.Body, make([]byte, 5000))
			require.NoError(f.t, err)
			return resp.Body.Close()
		}, router.Completed, nil},
		{"an error event", answer("text/event-stream", chunk(0)+"data: {\"error\": {\"code\": 500}}\n\n"+doneChunk), readAll, router.Failed, nil},
		{"an error event of the caller's making", answer("text/event-stream", chunk(0)+"data: {\"error\": {\"code\": 400}}\n\n"+doneChunk), readAll, router.Completed, nil},
		{"404", func(rw http.ResponseWriter, r *http.Request) { http.Error(rw, "no", 404) }, readAll, router.Completed, nil},
		{"500", func(rw http.ResponseWriter, r *http.Request) { http.Error(rw, "no", 500) }, readAll, router.Failed, nil},
		{"429", func(rw http.ResponseWriter, r *http.Request) { http.Error(rw, "no", http.StatusTooManyRequests) }, readAll, router.Refused, nil},
		{"redirect", func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, "/y", http.StatusTemporaryRedirect)
		}, nil, router.Completed, nil},
		{"204", func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(204) }, nil, router.Completed, nil},
		{"304", func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(304) }, nil, router.Completed, nil},
		{"empty 200", func(rw http.ResponseWriter, r *http.Request) {}, nil, router.Completed, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, cfg := watched()
			p := pool(t, cfg, server(t, c.handler).URL)
			tr := transport(t, p)
			tr.Retries = router.None
			req := request(t, http.MethodPost, "{}")
			ctx, halt := context.WithCancel(req.Context())
			defer halt()
			resp, err := tr.RoundTrip(req.WithContext(ctx))
			require.NoError(t, err)
			if c.use != nil {
				require.EqualValues(t, resp.StatusCode < 429, p.Stats().OpenLeases == 1, "open while there is a body")
				if err := c.use(fixture{t, tr, halt}, resp); c.err != nil {
					require.ErrorIs(t, err, c.err)
				} else {
					require.NoError(t, err)
				}
			}
			out := w.outcome(t)
			require.Equal(t, c.want, out.Cause)
			if resp.StatusCode >= 300 {
				require.Zero(t, out.FirstTokenMS, "an error is no token")
			}
			_ = resp.Body.Close()
			halt()
			drained(t, p)
			require.Empty(t, w, "only one end")
		})
	}
}

func TestBeforeHeaders(t *testing.T) {
	held := func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}
	for _, c := range []struct {
		name                         string
		handler                      http.HandlerFunc
		make                         func(req *http.Request) (*http.Request, func())
		completed, failed, cancelled int
		check                        func(t *testing.T, err error)
	}{
		{"reset", func(rw http.ResponseWriter, r *http.Request) { reset(rw) }, nil, 0, 1, 0, func(t *testing.T, err error) {
			var up *httptransport.UpstreamError
			require.ErrorAs(t, err, &up)
			require.Equal(t, "a", up.Endpoint)
			require.Equal(t, 1, up.Attempts)
		}},
		{"deadline", held, func(req *http.Request) (*http.Request, func()) {
			ctx, halt := context.WithTimeout(req.Context(), 30*time.Millisecond)
			return req.WithContext(ctx), halt
		}, 0, 0, 1, func(t *testing.T, err error) { require.ErrorIs(t, err, context.DeadlineExceeded) }},
		{"cancel", held, func(req *http.Request) (*http.Request, func()) {
			ctx, halt := context.WithCancel(req.Context())
			time.AfterFunc(30*time.Millisecond, halt)
			return req.WithContext(ctx), halt
		}, 0, 0, 1, func(t *testing.T, err error) { require.ErrorIs(t, err, context.Canceled) }},
		{"the caller's body breaks", held, func(req *http.Request) (*http.Request, func()) {
			req.Body, req.GetBody, req.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader("x"), broken{})), nil, -1
			return req, func() {}
		}, 0, 0, 1, func(t *testing.T, err error) {
			var bad *httptransport.RequestError
			require.ErrorAs(t, err, &bad)
			require.ErrorIs(t, err, errBroken)
		}},
		{"the caller's body is too large", held, func(req *http.Request) (*http.Request, func()) {
			req.Body, req.GetBody, req.ContentLength = http.MaxBytesReader(nil, io.NopCloser(strings.NewReader("xxxxx")), 3), nil, 5
			return req, func() {}
		}, 0, 0, 0, func(t *testing.T, err error) {
			var bad *httptransport.RequestError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, http.StatusRequestEntityTooLarge, bad.Status)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := pool(t, router.Config{}, server(t, c.handler).URL)
			req := request(t, http.MethodPost, "{}")
			halt := func() {}
			if c.make != nil {
				req, halt = c.make(req)
			}
			defer halt()
			_, err := transport(t, p).RoundTrip(req)
			c.check(t, err)
			ends(t, p, c.completed, c.failed, c.cancelled)
		})
	}
}

var errBroken = errors.New("broken")

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errBroken }

// TestAPanicOfBaseLeavesNoLease: a lease ends whatever happens.
func TestAPanicOfBaseLeavesNoLease(t *testing.T) {
	p := pool(t, router.Config{}, "http://engine")
	tr := &httptransport.Transport{Pool: p, Base: roundTripper(func(*http.Request) (*http.Response, error) { panic("base") })}
	require.PanicsWithValue(t, "base", func() { _, _ = tr.RoundTrip(request(t, http.MethodGet, "")) })
	ends(t, p, 0, 0, 1)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestStreamsEndInEveryWay ends 2,000 streams in all the ways there are, at random moments, over real connections. Then
// nothing must be left: no lease, no cost, no goroutine.
func TestStreamsEndInEveryWay(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	streams := 2000
	if testing.Short() {
		streams = 200
	}
	const (
		normal = iota
		abort
		cancel
		early
		refuse
		empty
		head
		upgrade
		ways
	)
	handler := func(rw http.ResponseWriter, r *http.Request) {
		way, _ := strconv.Atoi(r.Header.Get("X-Way"))
		n, _ := strconv.Atoi(r.Header.Get("X-Events"))
		switch way {
		case refuse:
			reset(rw)
			return
		case empty, head:
			rw.WriteHeader(204)
			return
		case upgrade:
			echo(rw, r)
			return
		}
		rw.Header().Set("Content-Type", "text/event-stream")
		for i := range n {
			if r.Context().Err() != nil {
				return
			}
			send(rw, chunk(i))
		}
		switch way {
		case abort:
			if n%2 == 0 {
				panic(http.ErrAbortHandler)
			}
			reset(rw)
		case cancel, early:
			select { // the client ends it; a stream that nobody ends would fail the test
			case <-r.Context().Done():
			case <-time.After(10 * time.Second):
			}
		default:
			send(rw, usageChunk, doneChunk)
		}
	}
	a, b, c := server(t, handler), server(t, handler), server(t, handler)
	p := pool(t, router.Config{}, a.URL, b.URL, c.URL)
	tr := transport(t, p)
	tr.Retries = router.None

	one := func(i int) (completed, failed, cancelled int) {
		rnd := rand.New(rand.NewPCG(1, uint64(i)))
		way, n := rnd.IntN(ways), 1+rnd.IntN(12)
		ctx, halt := context.WithCancel(context.Background())
		defer halt()
		method := http.MethodPost
		if way == head {
			method = http.MethodHead
		}
		req, err := http.NewRequestWithContext(ctx, method, "http://engines/v1", nil)
		require.NoError(t, err)
		req.Header.Set("X-Way", strconv.Itoa(way))
		req.Header.Set("X-Events", strconv.Itoa(n))
		if way == upgrade {
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "echo")
		}
		resp, err := tr.RoundTrip(req)
		if way == refuse {
			require.Error(t, err)
			return 0, 1, 0
		}
		require.NoError(t, err)
		switch way {
		case cancel:
			_, _ = io.ReadFull(resp.Body, make([]byte, rnd.IntN(80)))
			if rnd.IntN(2) == 0 {
				time.AfterFunc(time.Duration(rnd.IntN(3000))*time.Microsecond, halt)
			} else {
				halt()
			}
			_, err = io.Copy(io.Discard, resp.Body)
			require.ErrorIs(t, err, context.Canceled)
			cancelled = 1
		case early:
			_, _ = io.ReadFull(resp.Body, make([]byte, rnd.IntN(80)))
			cancelled = 1
		case upgrade:
			conn := resp.Body.(io.ReadWriteCloser)
			for range n {
				_, err = io.WriteString(conn, "ping\n")
				require.NoError(t, err)
				_, err = io.ReadFull(conn, make([]byte, 5))
				require.NoError(t, err)
			}
			completed = 1
		case abort:
			_, err = io.Copy(io.Discard, resp.Body)
			require.Error(t, err)
			failed = 1
		default:
			_, err = io.Copy(io.Discard, resp.Body)
			require.NoError(t, err)
			completed = 1
		}
		// From two goroutines at once: it must end only once.
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() { _ = resp.Body.Close() })
		}
		both.Wait()
		return completed, failed, cancelled
	}

	var mu sync.Mutex
	var completed, failed, cancelled int
	var workers sync.WaitGroup
	next := make(chan int)
	for range 32 {
		workers.Go(func() {
			for i := range next {
				c, f, x := one(i)
				mu.Lock()
				completed, failed, cancelled = completed+c, failed+f, cancelled+x
				mu.Unlock()
			}
		})
	}
	for i := range streams {
		next <- i
	}
	close(next)
	workers.Wait()
	require.Equal(t, streams, completed+failed+cancelled)
	require.Positive(t, min(completed, failed, cancelled))
	ends(t, p, completed, failed, cancelled)
	tr.CloseIdleConnections()
	for _, s := range []interface{ Close() }{a, b, c} {
		s.Close()
	}
	goleak.VerifyNone(t, leaks)
}

// echo switches protocols and sends back what it gets.
func echo(rw http.ResponseWriter, _ *http.Request) {
	conn, buf, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	_, _ = io.Copy(conn, buf)
}
