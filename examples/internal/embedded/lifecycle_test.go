package embedded_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/examples/internal/embedded"
	"github.com/isobar-go/isobar/internal/sim"
)

// A client that goes away takes its request out of the engine.
func TestCancel(t *testing.T) {
	e := start(t, embedded.Config{OutputTokens: 100_000, TimeScale: 1})
	c := newClient(t)
	for _, streamed := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		body, err := json.Marshal(chat("x", obj{"stream": streamed}))
		require.NoError(t, err)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL()+"/v1/chat/completions", bytes.NewReader(body))
		require.NoError(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			resp, err := c.Do(req)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}()
		eventually(t, func() bool { return e.Stats().Running == 1 })
		cancel()
		<-done
		eventually(t, func() bool { return e.Stats().Running == 0 })
	}
	s := e.Stats()
	require.EqualValues(t, 2, s.Cancelled)
	require.Zero(t, s.UsedBlocks)
	require.Contains(t, get(t, c, e.URL()+"/metrics"), `finished_reason="abort"} 2`)
}

func eventually(t *testing.T, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, 5*time.Second, time.Millisecond)
}

func get(t *testing.T, c *http.Client, url string) string {
	t.Helper()
	resp, err := c.Get(url)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(b)
}

// A killed engine breaks its streams off and closes its port; a new one takes its place.
func TestKillAndRestart(t *testing.T) {
	e := start(t, embedded.Config{OutputTokens: 100_000, TimeScale: 1})
	c := newClient(t)
	var streams []*bufio.Reader
	for range 8 {
		resp := post(t, c, e.URL()+"/v1/chat/completions", chat("x", obj{"stream": true}))
		streams = append(streams, bufio.NewReader(resp.Body))
	}
	for _, in := range streams {
		for range 6 {
			_, err := in.ReadString('\n')
			require.NoError(t, err)
		}
	}
	_, err := e.Restart()
	require.ErrorContains(t, err, "embedded: Config.Addr", "it still runs")
	e.Kill()
	require.Zero(t, e.Stats().Connections)
	for _, in := range streams {
		_, err = io.Copy(io.Discard, in)
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	_, err = c.Get(e.URL() + "/health")
	require.Error(t, err)
	e.Kill()
	require.NoError(t, e.Shutdown(t.Context()))

	again, err := e.Restart()
	require.NoError(t, err)
	t.Cleanup(again.Kill)
	require.Equal(t, e.URL(), again.URL())
	require.Equal(t, e.Addr(), again.Addr())
	require.Zero(t, again.Stats().Submitted)
	require.Empty(t, get(t, c, again.URL()+"/health"))
}

func TestShutdownLetsStreamsFinish(t *testing.T) {
	e := start(t, embedded.Config{OutputTokens: 400, TimeScale: 20})
	c := newClient(t)
	resp := post(t, c, e.URL()+"/v1/chat/completions", chat("x", obj{"stream": true}))
	ended := make(chan error, 1)
	go func() { ended <- e.Shutdown(context.Background()) }()
	list, err := events(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "[DONE]", list[len(list)-1])
	require.Len(t, list, 402)
	require.NoError(t, <-ended)
	_, err = c.Get(e.URL() + "/health")
	require.Error(t, err)
}

func TestShutdownGivesUp(t *testing.T) {
	e := start(t, embedded.Config{})
	e.SetFrozen(true)
	resp := post(t, newClient(t), e.URL()+"/v1/chat/completions", chat("x", obj{"stream": true}))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, e.Shutdown(ctx), context.DeadlineExceeded)
	_, err := io.ReadAll(resp.Body)
	require.Error(t, err)
}

// A connection on which nothing was ever asked does not hold up a shutdown.
func TestShutdownWithUnusedConnection(t *testing.T) {
	e := start(t, embedded.Config{})
	conn, err := net.Dial("tcp", e.Addr())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	eventually(t, func() bool { return e.Stats().Connections == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	require.NoError(t, e.Shutdown(ctx))
}

func TestDraining(t *testing.T) {
	e := start(t, embedded.Config{})
	c := newClient(t)
	e.SetDraining(true)
	require.True(t, e.Stats().Draining)
	resp := post(t, c, e.URL()+"/v1/chat/completions", chat("x", nil))
	require.Equal(t, 503, resp.StatusCode)
	require.Equal(t, "server_error", decode[struct{ Error obj }](t, resp.Body).Error["type"])
	require.Contains(t, get(t, c, e.URL()+"/health"), "draining")
	e.SetDraining(false)
	require.Equal(t, 200, post(t, c, e.URL()+"/v1/chat/completions", chat("x", nil)).StatusCode)
	require.Contains(t, get(t, c, e.URL()+"/v1/models"), `"id":"demo"`)
}

func TestFrozen(t *testing.T) {
	e := start(t, embedded.Config{})
	c := newClient(t)
	e.SetFrozen(true)
	resp := post(t, c, e.URL()+"/v1/chat/completions", chat("x", obj{"stream": true}))
	eventually(t, func() bool { return e.Stats().Waiting == 1 })
	require.Contains(t, get(t, c, e.URL()+"/metrics"), `vllm:num_requests_waiting{engine="0",model_name="demo"} 1`)
	e.SetFrozen(false)
	list, err := events(resp.Body)
	require.NoError(t, err)
	require.Len(t, list, 1+128+1)
}

// The pace follows the profile and the time scale.
func TestPace(t *testing.T) {
	p := sim.Profile{Base: 100, KVTokens: 1600, BlockSize: 16, MaxSeqs: 8, Budget: 512}
	e := start(t, embedded.Config{Profile: p, TimeScale: 50, OutputTokens: 60})
	c := newClient(t)
	began := time.Now()
	resp := post(t, c, e.URL()+"/v1/completions", obj{"model": "demo", "prompt": "x"})
	require.Equal(t, 200, resp.StatusCode)
	took := time.Since(began)
	require.GreaterOrEqual(t, took, 120*time.Millisecond, "60 passes of 2 ms")
	require.Less(t, took, time.Second)

	require.ErrorContains(t, e.SetSlowdown(0), "embedded: slowdown factor 0")
	require.NoError(t, e.SetSlowdown(5))
	began = time.Now()
	post(t, c, e.URL()+"/v1/completions", obj{"model": "demo", "prompt": "x", "max_tokens": 20})
	require.GreaterOrEqual(t, time.Since(began), 200*time.Millisecond, "20 passes of 10 ms")
}

func TestConfig(t *testing.T) {
	e := start(t, embedded.Config{TimeScale: 1})
	require.Equal(t, "h100-8b", e.Config().Profile.Name)
	require.EqualValues(t, 131_072, e.Config().MaxModelLen)
	_, err := embedded.Start(embedded.Config{TimeScale: -1, OutputTokens: -2, MaxModelLen: 1 << 40, Profile: sim.Profile{Base: 1, BlockSize: 16, KVTokens: 64, Budget: 1}})
	for _, want := range []string{"Config.TimeScale -1", "Config.OutputTokens -2", "Config.MaxModelLen 1099511627776", "Profile.MaxSeqs 0"} {
		require.ErrorContains(t, err, want)
	}
	_, err = embedded.Start(embedded.Config{Addr: "127.0.0.1:-1"})
	require.ErrorContains(t, err, `embedded: Config.Addr "127.0.0.1:-1"`)
}
