package httptransport_test

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
)

// server runs h on loopback until the test ends.
func server(t testing.TB, h http.HandlerFunc) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// pool makes a pool over base URLs, named a, b, c in order, whose circuits never open.
func pool(t testing.TB, cfg router.Config, urls ...string) *router.Pool {
	cfg.Circuit = router.Circuit{Failures: router.None, Window: router.None}
	p, err := router.New(cfg)
	require.NoError(t, err)
	for i, u := range urls {
		require.NoError(t, p.Add(router.Endpoint{ID: string(rune('a' + i)), Address: u}))
	}
	return p
}

// transport is one with connections of its own, closed when the test ends.
func transport(t testing.TB, p router.Router) *httptransport.Transport {
	base := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(base.CloseIdleConnections)
	return &httptransport.Transport{Pool: p, Base: base}
}

func request(t testing.TB, method, body string) *http.Request {
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://engines/v1/x?q=1", r)
	require.NoError(t, err)
	return req
}

// drained checks that nothing is open and no sum of a ledger is left.
func drained(t testing.TB, p *router.Pool) router.Stats {
	t.Helper()
	s := p.Stats()
	require.Zero(t, s.OpenLeases)
	for _, e := range s.Endpoints {
		require.Zero(t, e.Own.Live, "endpoint %s", e.ID)
	}
	return s
}

// ends checks how many leases have ended in each way.
func ends(t testing.TB, p *router.Pool, completed, failed, cancelled int) {
	t.Helper()
	s := drained(t, p)
	require.Equal(t, [3]uint64{uint64(completed), uint64(failed), uint64(cancelled)}, [3]uint64{s.Completed, s.Failed, s.Cancelled},
		"completed, failed, cancelled")
}

// watcher keeps the outcomes of a pool.
type watcher chan *router.Receipt

func (w watcher) Decided(*router.Receipt) {}
func (w watcher) Ended(r *router.Receipt) { w <- r }

func (w watcher) outcome(t testing.TB) *router.OutcomeRecord {
	t.Helper()
	select {
	case r := <-w:
		return r.Outcome
	case <-time.After(5 * time.Second):
		require.Fail(t, "no lease has ended")
		return nil
	}
}

func watched() (watcher, router.Config) {
	w := make(watcher, 4096)
	return w, router.Config{Receipts: router.Receipts{Observer: w}}
}

// reset breaks the connection of a handler, as the end of a process does.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// chunk is one streamed token in OpenAI's shape.
func chunk(i int) string {
	return fmt.Sprintf("data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"w%d\"},\"finish_reason\":null}]}\n\n", i)
}

const (
	roleChunk  = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
	usageChunk = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n"
	doneChunk  = "data: [DONE]\n\n"
)

func send(w http.ResponseWriter, parts ...string) {
	for _, p := range parts {
		_, _ = io.WriteString(w, p)
	}
	_ = http.NewResponseController(w).Flush()
}

// refused is the address of a port on which nobody listens.
func refused(t testing.TB) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	return "http://" + ln.Addr().String()
}
