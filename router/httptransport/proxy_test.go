package httptransport_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
)

// proxy puts a reverse proxy over the transport on a real server.
func proxy(t *testing.T, tr *httptransport.Transport) *httptest.Server {
	p := &httputil.ReverseProxy{
		Rewrite: func(*httputil.ProxyRequest) {}, Transport: tr, ErrorHandler: httptransport.ErrorHandler,
		ErrorLog: log.New(io.Discard, "", 0),
	}
	return server(t, p.ServeHTTP)
}

func TestThroughAReverseProxy(t *testing.T) {
	step := make(chan struct{})
	s := server(t, func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/stream":
			rw.Header().Set("Content-Type", "text/event-stream")
			for i := range 3 {
				send(rw, chunk(i))
				<-step
			}
			send(rw, usageChunk, doneChunk)
		case "/stall":
			rw.Header().Set("Content-Type", "text/event-stream")
			send(rw, chunk(0))
			<-r.Context().Done()
		case "/reset":
			rw.Header().Set("Content-Type", "text/event-stream")
			send(rw, chunk(0))
			reset(rw)
		case "/none":
			rw.WriteHeader(http.StatusNoContent)
		case "/gone":
			reset(rw)
		default:
			said(rw, r)
		}
	})
	w, cfg := watched()
	p := pool(t, cfg, s.URL)
	front := proxy(t, transport(t, p))
	client := front.Client()
	get := func(path string) *http.Response {
		resp, err := client.Get(front.URL + path)
		require.NoError(t, err)
		return resp
	}

	t.Run("flushes every event", func(t *testing.T) {
		resp := get("/stream")
		lines := bufio.NewReader(resp.Body)
		for i := range 3 {
			line, err := lines.ReadString('\n') // would never come if it were held back: the engine waits for us
			require.NoError(t, err)
			require.Equal(t, strings.TrimSuffix(chunk(i), "\n"), line)
			_, _ = lines.ReadString('\n')
			step <- struct{}{}
		}
		_, err := io.Copy(io.Discard, lines)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		out := w.outcome(t)
		require.Equal(t, router.Completed, out.Cause)
		require.Equal(t, router.Usage{PromptTokens: 11, CachedTokens: 8, OutputTokens: 3}, out.Usage)
	})
	t.Run("client goes away", func(t *testing.T) {
		resp := get("/stall")
		_, err := resp.Body.Read(make([]byte, 10))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, router.Cancelled, w.outcome(t).Cause)
	})
	t.Run("client's deadline", func(t *testing.T) {
		ctx, halt := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer halt()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, front.URL+"/stall", nil)
		require.NoError(t, err)
		resp, err := client.Do(req)
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_ = resp.Body.Close()
		require.Equal(t, router.Cancelled, w.outcome(t).Cause)
	})
	t.Run("engine breaks", func(t *testing.T) {
		resp := get("/reset")
		_, err := io.ReadAll(resp.Body)
		require.Error(t, err)
		_ = resp.Body.Close()
		require.Equal(t, router.Failed, w.outcome(t).Cause)
	})
	t.Run("no content", func(t *testing.T) {
		resp := get("/none")
		require.Equal(t, http.StatusNoContent, resp.StatusCode)
		_ = resp.Body.Close()
		require.Equal(t, router.Completed, w.outcome(t).Cause)
	})
	t.Run("HEAD", func(t *testing.T) {
		resp, err := client.Head(front.URL + "/x")
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode)
		_ = resp.Body.Close()
		require.Equal(t, router.Completed, w.outcome(t).Cause)
	})
	t.Run("a body through it", func(t *testing.T) {
		resp, err := client.Post(front.URL+"/v1/x", "text/plain", strings.NewReader("hello"))
		require.NoError(t, err)
		require.True(t, strings.HasSuffix(read(t, resp), " hello"))
		require.Equal(t, router.Completed, w.outcome(t).Cause)
	})
	t.Run("no headers", func(t *testing.T) {
		resp := get("/gone")
		require.Equal(t, http.StatusBadGateway, resp.StatusCode)
		var body map[string]map[string]any
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&body))
		_ = resp.Body.Close()
		require.Equal(t, "upstream_failed", body["error"]["code"])
		require.Equal(t, router.Failed, w.outcome(t).Cause)
	})
	t.Run("nobody there", func(t *testing.T) {
		require.NoError(t, p.Drain("a"))
		resp := get("/x")
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		_ = resp.Body.Close()
	})
	drained(t, p)
	require.Empty(t, w)
}

// TestUpgradeThroughAReverseProxy: bytes go both ways for as long as the connection is open, and so does the lease.
func TestUpgradeThroughAReverseProxy(t *testing.T) {
	w, cfg := watched()
	p := pool(t, cfg, server(t, echo).URL)
	front := proxy(t, transport(t, p))
	conn, err := net.Dial("tcp", front.Listener.Addr().String())
	require.NoError(t, err)
	_, err = io.WriteString(conn, "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	require.NoError(t, err)
	lines := bufio.NewReader(conn)
	resp, err := http.ReadResponse(lines, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
	for range 100 {
		_, err = io.WriteString(conn, "ping\n")
		require.NoError(t, err)
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "ping\n", line)
	}
	require.EqualValues(t, 1, p.Stats().OpenLeases)
	require.NoError(t, conn.Close())
	out := w.outcome(t)
	require.Equal(t, router.Completed, out.Cause)
	require.Positive(t, out.FirstTokenMS)
	drained(t, p)
}

// TestUpgrades end as they are ended.
func TestUpgrades(t *testing.T) {
	w, cfg := watched()
	s := server(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("q") != "reset" {
			echo(rw, r)
			return
		}
		conn, _, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = conn.Read(make([]byte, 1))
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	})
	p := pool(t, cfg, s.URL)
	tr := transport(t, p)
	open := func(ctx context.Context, query string) io.ReadWriteCloser {
		req := request(t, http.MethodGet, "").WithContext(ctx)
		req.URL.RawQuery = "q=" + query
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "echo")
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		return resp.Body.(io.ReadWriteCloser)
	}
	t.Run("half closed", func(t *testing.T) {
		conn := open(t.Context(), "")
		_, err := io.WriteString(conn, "ping")
		require.NoError(t, err)
		require.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
		text, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Equal(t, "ping", string(text))
		require.EqualValues(t, 1, p.Stats().OpenLeases, "the end of one half is not the end")
		require.NoError(t, conn.Close())
		require.Equal(t, router.Completed, w.outcome(t).Cause)
	})
	t.Run("reset by the endpoint", func(t *testing.T) {
		conn := open(t.Context(), "reset")
		_, _ = io.WriteString(conn, "ping")
		_, err := io.ReadAll(conn)
		require.Error(t, err)
		_ = conn.Close()
		require.Equal(t, router.Failed, w.outcome(t).Cause)
	})
	t.Run("closed after the context", func(t *testing.T) {
		ctx, halt := context.WithCancel(t.Context())
		conn := open(ctx, "")
		halt()
		_ = conn.Close()
		require.Equal(t, router.Completed, w.outcome(t).Cause)
	})
	drained(t, p)
}
