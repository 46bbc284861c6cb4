package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/examples/internal/embedded"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output may be read while the program writes to it.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// TestDemonstration: it does what it claims, writes its receipts, and ends.
func TestDemonstration(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	file := filepath.Join(t.TempDir(), "receipts.jsonl")
	out, errs, status := demonstrate(t, "-receipts", file)
	if strings.Contains(errs, "behind the schedule") {
		t.Skip("the machine is too slow at present")
	}
	require.Zero(t, status, "%s\n%s", out, errs)
	for _, want := range []string{
		"warm, saves", "burst x", "refused", "broken", "answered on try 2",
		"round-robin", "prompt tokens from cache", "engine-c is vllm: has running, waiting, ", "KV events: subscribed (tcp://",
	} {
		require.Contains(t, out, want)
	}
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	seen := 0
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r router.Receipt
		require.NoError(t, json.Unmarshal(lines.Bytes(), &r))
		require.True(t, r.Outcome != nil || r.Rejected != "")
		seen++
	}
	require.NoError(t, lines.Err())
	require.Greater(t, seen, 200)
}

// demonstrate runs the demonstration, more slowly where the machine is too slow for it.
func demonstrate(t *testing.T, args ...string) (out, errs string, status int) {
	for _, scale := range scales {
		var o, e output
		status = run(t.Context(), append([]string{"-once", "-scale", scale, "-addr", "127.0.0.1:0"}, args...), &o, &e)
		if out, errs = o.String(), e.String(); !strings.Contains(errs, "behind the schedule") {
			break
		}
		t.Logf("too slow for -scale %s", scale)
	}
	return out, errs, status
}

// TestServesOn: after the demonstration all engines are there, and Ctrl-C ends it well.
func TestServesOn(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errs output
	done := make(chan int, 1)
	go func() { done <- run(ctx, []string{"-scale", scales[0], "-addr", "127.0.0.1:0"}, &out, &errs) }()
	const says = `goes on serving the model "demo" at `
	require.Eventually(t, func() bool { return len(done) > 0 || strings.Contains(out.String(), says) }, time.Minute, 20*time.Millisecond)
	_, rest, found := strings.Cut(out.String(), says)
	if !found && strings.Contains(errs.String(), "behind the schedule") {
		t.Skip("the machine is too slow at present")
	}
	require.True(t, found, errs.String())
	base, _, _ := strings.Cut(rest, ",")
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for range 6 {
		resp, err := client.Post(base+"/completions", "application/json", strings.NewReader(`{"model":"demo","prompt":"hello","max_tokens":2}`))
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		require.Equal(t, 200, resp.StatusCode)
	}
	cancel()
	require.Zero(t, <-done, errs.String())
}

// TestOverload: all that it claims holds. That a few refusals take long is not held against it, since the machine may have
// other work. Twelve seconds are enough for shares of tenants to become even; after six the index is near its bound.
func TestOverload(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	var out, errs output
	for _, scale := range scales {
		out, errs = output{}, output{}
		status := run(t.Context(), []string{"-overload", "-overload-for", "12s", "-scale", scale, "-addr", "127.0.0.1:0"}, &out, &errs)
		if status == 0 || !strings.Contains(errs.String(), "behind the schedule") {
			break
		}
		t.Logf("too slow for -scale %s", scale)
	}
	for _, line := range strings.Split(out.String(), "\n") {
		if strings.HasPrefix(line, "DOES NOT HOLD") {
			require.Regexp(t, `a refusal takes less than a millisecond: p50 0\.\d+ ms`, line, out.String())
			t.Log(line)
		}
	}
	for _, want := range []string{"every admitted request is served", "Jain index", "takes exactly 16 again", "queue-full", "| heap MB"} {
		require.Contains(t, out.String(), want, errs.String())
	}
	require.Regexp(t, `(?m)^  12 \|`, out.String(), "a line for every second")
}

// TestBrokenOff: a demonstration that is not seen to its end has shown nothing.
func TestBrokenOff(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var out, errs output
	require.NotZero(t, run(ctx, []string{"-once", "-addr", "127.0.0.1:0"}, &out, &errs))
	ctx, cancel = context.WithTimeout(t.Context(), 600*time.Millisecond)
	defer cancel()
	require.NotZero(t, run(ctx, []string{"-overload", "-addr", "127.0.0.1:0"}, &out, &errs))
}

// TestRealEngines: with -engine it serves at once, on another port where its own is taken, until it is told to stop.
func TestRealEngines(t *testing.T) {
	a, err := embedded.Start(embedded.Config{Name: "a", TimeScale: 50, KVEvents: true})
	require.NoError(t, err)
	defer a.Kill()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errs output
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, []string{"-addr", taken.Addr().String(), "-kv-events", "engine-1=" + a.KVAddr() + ",replay=" + a.KVReplayAddr(),
			"-tokenizer", "model-engine", "-engine", a.URL(), "-policy", "least-load"}, &out, &errs)
	}()
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "Serving 1 engines at ") }, 5*time.Second, 5*time.Millisecond)
	require.Contains(t, out.String(), "is taken, using")
	const introduced = "engine-1 is vllm: has running, waiting, kv, kv-capacity, epoch; lacks waiting-tokens, "
	require.Eventually(t, func() bool { return strings.Contains(out.String(), introduced) }, 5*time.Second, 5*time.Millisecond)
	require.Regexp(t, `(?m)^engine-1 is vllm: .*; KV events: subscribed \(tcp://127\.0\.0\.1:\d+\), no batch yet, blocks 0, gaps 0, refused 0$`, out.String())
	_, base, _ := strings.Cut(out.String(), "engines at ")
	base, _, _ = strings.Cut(base, "\n")
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	resp, err := client.Post(base+"/chat/completions", "application/json",
		strings.NewReader(`{"model":"demo","messages":[{"role":"user","content":"hello"}],"max_tokens":2}`))
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	require.Equal(t, 200, resp.StatusCode)
	cancel()
	require.Zero(t, <-done, errs.String())
}

func TestParseEngine(t *testing.T) {
	for _, c := range []struct{ text, kind, address string }{
		{"http://a:1/x+y", "", "http://a:1/x+y"},
		{"http://a+b:1", "", "http://a+b:1"},
		{"sglang+https://a:1", "sglang", "https://a:1"},
		{"trtllm+http://u:p+q@a", "trtllm", "http://u:p+q@a"},
	} {
		e, err := parseEngine(c.text)
		require.NoError(t, err, c.text)
		require.Equal(t, [2]string{c.kind, c.address}, [2]string{e.Labels["engine"], e.Address})
	}
}

func TestArguments(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"-h"}, 0, "-engine"},
		{[]string{"-nonsense"}, 2, "nonsense"},
		{[]string{"stray"}, 2, "stray"},
		{[]string{"-engine", "host:8000"}, 2, "must begin with http"},
		{[]string{"-engine", "vllm+host:8000"}, 2, "must begin with http"},
		{[]string{"-engine", "sglang+tgi+http://a"}, 2, "sglang+tgi+http"},
		{[]string{"-engine", "abacus+http://a"}, 2, `kind "abacus" is none of [vllm sglang`},
		{[]string{"-engine", "+http://a"}, 2, `kind "" is none of`},
		{[]string{"-scale", "0"}, 2, "-scale"},
		{[]string{"-scale", "NaN"}, 2, "-scale"},
		{[]string{"-dialect", "abacus"}, 2, `-dialect = "abacus" is none of [vllm`},
		{[]string{"-grace", "-1s"}, 2, "-grace"},
		{[]string{"-max-body", "0"}, 2, "-max-body"},
		{[]string{"-once", "-engine", "http://a"}, 2, "-once"},
		{[]string{"-engine", "http://a", "-kv-events", "engine-1=tcp://a:1"}, 2, "needs -tokenizer: events name blocks by token ids"},
		{[]string{"-engine", "http://a", "-kv-events", "a=tcp://a:1", "-tokenizer", "model-engine"}, 2, `is for "a", and there are 1 engines`},
		{[]string{"-kv-events", "engine-1=tcp://a:1", "-tokenizer", "model-engine"}, 2, "there are 0 engines"},
		{
			[]string{"-engine", "http://a", "-kv-events", "engine-1=tcp://a:1", "-kv-events", "engine-1=tcp://b:1,replay=tcp://b:2", "-tokenizer", "model-engine"},
			2, `-kv-events = "engine-1=tcp://b:1,replay=tcp://b:2" is the second one for "engine-1"`,
		},
		{[]string{"-engine", "http://a", "-kv-events", "engine-1=tcp://a:1,model=m,model=n", "-tokenizer", "model-engine"}, 2, `gives "model" twice`},
		{[]string{"-kv-events", "tcp://a:1"}, 2, "is not ENGINE=ADDRESS"},
		{[]string{"-kv-events", "engine-1=tcp://a:1,replay"}, 2, `"replay" has no value`},
		{[]string{"-kv-events", "engine-1=tcp://a:1,rank=2"}, 2, `"rank=2" is neither`},
		{[]string{"-tokenizer", "abacus"}, 2, `-tokenizer = "abacus" is none of [model-engine]`},
		{
			[]string{"-engine", "http://a", "-addr", "127.0.0.1:0", "-kv-events", "engine-1=http://a", "-tokenizer", "model-engine"}, 1,
			`address "http://a" is not tcp://host:port`,
		},
		{[]string{"-policy", "best"}, 1, "best"},
		{[]string{"-addr", "nowhere"}, 1, "-addr"},
		{[]string{"-receipts", "/nowhere/at/all"}, 1, "-receipts"},
		{[]string{"-engine", "http://a", "-addr", "127.0.0.1:0", "-profile", "abacus"}, 1, "abacus"},
		{[]string{"-engine", "http://a", "-addr", "127.0.0.1:0", "-max-requests", "-1"}, 1, "Aggregate"},
		{[]string{"-engine", "http://a", "-addr", "127.0.0.1:0", "-max-waiting", "-1"}, 1, "Waiting"},
		{[]string{"-engine", "http://a", "-addr", "127.0.0.1:0", "-max-tenant-tokens", "-1"}, 1, "TenantTokens"},
		{[]string{"-engine", "http://a", "-addr", "127.0.0.1:0", "-queue", "-1"}, 1, "QueueConfig.Max"},
		{[]string{"-engine", "http://a", "-addr", "127.0.0.1:0", "-queue", "5", "-queue-tokens", "-1"}, 1, "MaxTokens"},
		{[]string{"-engine", "http://a", "-addr", "127.0.0.1:0", "-seeds", "-1"}, 1, "SeedConfig.Max"},
		{[]string{"-engine", "http://a", "-queue-timeout", "5s"}, 2, "-queue-timeout = 5s needs -queue"},
		{[]string{"-engine", "http://a", "-queue-tokens", "5"}, 2, "-queue-tokens = 5 needs -queue"},
		{[]string{"-engine", "http://a", "-queue", "5", "-queue-timeout", "-1s"}, 2, "-queue-timeout = -1s must be at least 0"},
		{[]string{"-engine", "http://a", "-trust-class", "-interactive-share", "1.5"}, 2, "-interactive-share = 1.5 is not within"},
		{[]string{"-engine", "http://a", "-trust-class", "-interactive-share", "NaN"}, 2, "-interactive-share = NaN is not within"},
		{[]string{"-engine", "http://a", "-interactive-share", "0.5"}, 2, "-interactive-share = 0.5 needs -trust-class"},
		{[]string{"-engine", "http://a", "-limit", "maybe"}, 2, "-limit = maybe is none of off, observe, on"},
		{[]string{"-max-requests", "5"}, 2, "-max-requests = 5 is for real engines"},
		{[]string{"-seeds", "2"}, 2, "-seeds = 2 is for real engines"},
		{[]string{"-overload", "-queue", "5"}, 2, "-queue = 5 is not for -overload"},
		{[]string{"-overload", "-engine", "http://a"}, 2, "-overload is for model engines"},
		{[]string{"-overload", "-overload-for", "1s"}, 2, "-overload-for = 1s is not within 5s and 1h"},
	} {
		var out, errs output
		require.Equal(t, c.status, run(t.Context(), c.args, &out, &errs), "%v", c.args)
		require.Contains(t, errs.String(), c.says, "%v", c.args)
	}
}

// TestAdmissionFlags: each comes to where it counts.
func TestAdmissionFlags(t *testing.T) {
	var errs output
	o, err := parse([]string{"-engine", "http://a", "-max-requests", "1", "-max-engine-requests", "2", "-max-waiting", "3", "-max-tenant-requests", "4",
		"-max-tenant-tokens", "5", "-queue", "6", "-queue-timeout", "7s", "-queue-tokens", "8", "-trust-class", "-interactive-share", "0.5",
		"-seeds", "9", "-limit", "observe"}, &errs)
	require.NoError(t, err)
	p := o.admit.pool
	require.Equal(t, admission.Caps{Aggregate: 1, Endpoint: 2, Waiting: 3, Tenant: 4, TenantTokens: 5}, p.Caps)
	require.Equal(t, router.Queue{Max: 6, Timeout: 7 * time.Second, MaxTokens: 8}, p.Queue)
	require.Equal(t, router.Shares{Interactive: 0.5}, p.Shares)
	require.Equal(t, 9, p.Seeds.Max)
	require.True(t, p.Limit.Adaptive)
	require.True(t, p.Limit.Learn.ObserveOnly)
	require.NoError(t, p.Validate())
	o, err = parse([]string{"-queue", "6", "-limit", "on"}, &errs)
	require.NoError(t, err, "for the demonstration, too")
	require.Equal(t, router.Limit{Adaptive: true}, o.admit.pool.Limit)
	o, err = parse(nil, &errs)
	require.NoError(t, err)
	require.Equal(t, router.Config{}, o.admit.pool, "off by default")
}

// TestKVFlags: each engine gets what was said of it, beside its kind.
func TestKVFlags(t *testing.T) {
	var errs output
	o, err := parse([]string{"-kv-events", "engine-2=tcp://b:1,model=m,replay=tcp://b:2", "-tokenizer", "model-engine",
		"-engine", "http://a", "-engine", "vllm+http://b"}, &errs)
	require.NoError(t, err)
	require.Empty(t, o.engines[0].Labels)
	require.Equal(t, map[string]string{"engine": "vllm", "kv-events": "tcp://b:1", "kv-replay": "tcp://b:2", "kv-model": "m"}, o.engines[1].Labels)
	tokens, ok := o.tokenize(httptransport.Prompt{Path: "/v1/completions", Body: []byte(`{"prompt":[7]}`)})
	require.True(t, ok)
	require.Equal(t, []uint32{7}, tokens)
}
