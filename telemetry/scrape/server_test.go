package scrape_test

import (
	"compress/gzip"
	"context"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/telemetry/scrape"
)

// live runs a poller in real time until the sink has heard n times.
func live(t *testing.T, cfg scrape.Config, n int) ([]told, *scrape.Poller) {
	t.Helper()
	heard := make(chan struct{}, 1000)
	sink := &recorder{check: func(told) error { heard <- struct{}{}; return nil }}
	cfg.Sink, cfg.Every, cfg.Jitter = sink, 2*time.Millisecond, scrape.None
	if cfg.Parse == nil {
		cfg.Parse = parse
	}
	p, err := scrape.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- p.Run(ctx) }()
	for range n {
		<-heard
	}
	cancel()
	require.NoError(t, <-stopped)
	return sink.all()[:n], p
}

func at(url string) func() []scrape.Target {
	f := newFleet()
	f.set(scrape.Target{ID: "a", URL: url})
	return f.targets
}

func serve(t *testing.T, h http.HandlerFunc, tls bool) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that fail on purpose
	if tls {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

// The poller's own client asks for gzip and keeps its connection from poll to poll, error pages included.
func TestOwnClient(t *testing.T) {
	var opened, n atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch n.Add(1) % 3 {
		case 0:
			http.Error(w, "not now", http.StatusServiceUnavailable)
		case 1:
			assert.Equal(t, "gzip", req.Header.Get("Accept-Encoding"))
			assert.Contains(t, req.Header.Get("Accept"), "text/plain")
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, strings.Repeat(" ", 10_000)+"7")
			_ = z.Close()
		case 2:
			_, _ = io.WriteString(w, "7")
		}
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	calls, _ := live(t, scrape.Config{Targets: at(s.URL)}, 9)
	for i, c := range calls {
		if i%3 == 2 {
			require.EqualError(t, c.err, `scrape: endpoint "a": status 503`)
			continue
		}
		require.NoError(t, c.err)
		require.EqualValues(t, 7, c.running())
	}
	assert.EqualValues(t, 1, opened.Load())
}

// No connection is left open when Run has returned.
func TestOwnClientCloses(t *testing.T) {
	states := make(chan http.ConnState, 10)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "7") }))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) { states <- state }
	s.Start()
	defer s.Close()
	heard := make(one, 1)
	p, err := scrape.New(scrape.Config{Targets: at(s.URL), Sink: heard, Parse: parse, Every: time.Hour, Jitter: scrape.None})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- p.Run(ctx) }()
	<-heard
	for _, want := range []http.ConnState{http.StateNew, http.StateActive, http.StateIdle} {
		require.Equal(t, want, <-states)
	}
	cancel()
	require.NoError(t, <-stopped)
	select {
	case state := <-states:
		assert.Equal(t, http.StateClosed, state)
	case <-time.After(10 * time.Second):
		t.Error("the connection is still open")
	}
}

type withHeader struct {
	http.RoundTripper
	key, value string
}

func (h withHeader) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set(h.key, h.value)
	return h.RoundTripper.RoundTrip(req)
}

// TLS and headers are those of the host's client, over HTTP/2 too; the client itself is not changed.
func TestHostsClient(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("X-Key") != "mine" || req.ProtoMajor != 2 {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = io.WriteString(w, "7")
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	client := s.Client()
	client.Transport = withHeader{client.Transport, "X-Key", "mine"}
	calls, p := live(t, scrape.Config{Targets: at(s.URL), Client: client}, 3)
	for _, c := range calls {
		require.NoError(t, c.err)
	}
	assert.Nil(t, client.CheckRedirect)
	assert.Same(t, client, p.Config().Client)
	s.Client().CloseIdleConnections()
}

func TestUnknownCertificate(t *testing.T) {
	s := serve(t, func(http.ResponseWriter, *http.Request) {}, true)
	calls, _ := live(t, scrape.Config{Targets: at(s.URL)}, 1)
	var failure *scrape.Error
	require.ErrorAs(t, calls[0].err, &failure)
	assert.Equal(t, scrape.ReasonConnection, failure.Reason)
	var unknown x509.UnknownAuthorityError
	assert.ErrorAs(t, calls[0].err, &unknown)
}

// Real sockets: nobody listens, a body breaks off, a body never ends, headers never end.
func TestBrokenServers(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, nobody.Close())
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc // nil = nobody listens
		want    scrape.Reason
	}{
		{"nobody", nil, scrape.ReasonConnection},
		{"hangs up", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, scrape.ReasonConnection},
		{"breaks off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "7")
		}, scrape.ReasonBody},
		{"breaks off a chunked body", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "7")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, scrape.ReasonBody},
		{"never ends", func(w http.ResponseWriter, req *http.Request) {
			for req.Context().Err() == nil {
				_, _ = io.WriteString(w, strings.Repeat(" ", 1000))
			}
		}, scrape.ReasonTooLarge},
		{"stops in the middle", func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.WriteString(w, "7")
			_ = http.NewResponseController(w).Flush()
			<-req.Context().Done()
		}, scrape.ReasonTimeout},
		{"says nothing", func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }, scrape.ReasonTimeout},
		{"endless header", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Long", strings.Repeat("x", 100<<10)) }, scrape.ReasonConnection},
	} {
		t.Run(tc.name, func(t *testing.T) {
			url := "http://" + nobody.Addr().String()
			if tc.handler != nil {
				url = serve(t, tc.handler, false).URL
			}
			cfg := scrape.Config{Targets: at(url), MaxBytes: 1 << 20}
			if tc.want == scrape.ReasonTimeout {
				cfg.Timeout = 50 * time.Millisecond
			}
			calls, _ := live(t, cfg, 1)
			var failure *scrape.Error
			require.ErrorAs(t, calls[0].err, &failure)
			assert.Equal(t, tc.want, failure.Reason, "%v", failure)
		})
	}
}

// Everything at once, for the race detector: a changing fleet, a poller that stops and starts, readers and Sync.
func TestRace(t *testing.T) {
	f, sink := newFleet(), &recorder{}
	cfg := clockless(f, sink, func(req *http.Request) (*http.Response, error) {
		if strings.HasPrefix(req.URL.Host, "b") {
			return response(req, 500, ""), nil
		}
		return response(req, 200, vllmDocument), nil
	})
	cfg.Every, cfg.Jitter, cfg.MaxConcurrent, cfg.Parse = time.Millisecond, 0, 3, nil
	p, err := scrape.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	others.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			list := []scrape.Target{target("a", "")}
			for j := range i % 5 {
				list = append(list, target(string(rune('b'+j)), string(rune('0'+i%3))))
			}
			if i%7 == 0 {
				list[0].Engine = enginePrinter("vllm")
				list[0].URL += "?other"
			}
			f.set(list...)
			p.Sync()
			time.Sleep(50 * time.Microsecond)
		}
	})
	others.Go(func() {
		for ctx.Err() == nil {
			s := p.Stats()
			if s.Polls != s.Successes+s.Failures+s.Abandoned+uint64(s.InFlight) {
				t.Errorf("polls do not add up: %+v, %d in flight", s.Totals, s.InFlight)
			}
			p.Endpoint("a")
			time.Sleep(50 * time.Microsecond)
		}
	})
	for range 5 {
		run, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		before := len(sink.all())
		go func() { done <- p.Run(run) }()
		for len(sink.all()) < before+100 {
			time.Sleep(time.Millisecond)
		}
		stop()
		require.NoError(t, <-done)
	}
	cancel()
	others.Wait()
	s := p.Stats()
	assert.Zero(t, s.InFlight)
	assert.EqualValues(t, len(sink.all()), s.Successes+s.Failures)
}
