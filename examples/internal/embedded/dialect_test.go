package embedded_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/examples/internal/embedded"
	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
)

// busy starts an engine with one request that runs and does not end, and has it ask for a report in the format.
func busy(t *testing.T, cfg embedded.Config, format string) (e *embedded.Engine, header string) {
	t.Helper()
	cfg.TimeScale = 20
	e = start(t, cfg)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.URL()+"/v1/completions",
		strings.NewReader(`{"model":"demo","prompt":"`+strings.Repeat("x", 400)+`","stream":true,"ignore_eos":true,"max_tokens":50000}`))
	require.NoError(t, err)
	req.Header.Set("Endpoint-Load-Metrics-Format", format)
	resp, err := newClient(t).Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	require.Eventually(t, func() bool { return e.Stats().Running == 1 }, 5*time.Second, time.Millisecond)
	e.SetFrozen(true)
	return e, resp.Header.Get("Endpoint-Load-Metrics")
}

// TestDialects: what an engine prints is recognised as what it claims to be, and says what it does.
func TestDialects(t *testing.T) {
	for name, want := range map[string]struct {
		path    string
		signals []engine.Signal // beside running and waiting
	}{
		"vllm":     {"/metrics", []engine.Signal{engine.SignalKV, engine.SignalKVCapacity, engine.SignalPrefixHitRate, engine.SignalEpoch}},
		"sglang":   {"/metrics", []engine.Signal{engine.SignalKV, engine.SignalKVUsed, engine.SignalKVCapacity, engine.SignalPrefixHitRate, engine.SignalMaxRunning}},
		"trtllm":   {"/prometheus/metrics", []engine.Signal{engine.SignalKV, engine.SignalKVUsed, engine.SignalKVCapacity, engine.SignalPrefixHitRate, engine.SignalMaxRunning}},
		"tgi":      {"/metrics", nil},
		"llamacpp": {"/metrics", nil},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := busy(t, embedded.Config{Dialect: name}, "")
			text := get(t, newClient(t), e.URL()+want.path)
			require.Equal(t, want.path, engine.Kind(name).Path())
			parser := expfmt.NewTextParser(model.UTF8Validation)
			_, err := parser.TextToMetricFamilies(strings.NewReader(text))
			require.NoError(t, err)
			kind, err := engine.Detect([]byte(text))
			require.NoError(t, err)
			require.Equal(t, engine.Kind(name), kind)
			s, err := engine.Parse(kind, []byte(text), time.Now())
			require.NoError(t, err)
			require.Equal(t, append([]engine.Signal{engine.SignalRunning, engine.SignalWaiting}, want.signals...), engine.Told(s))
			state := e.Stats()
			rank := telemetry.Rank{Running: s.Running, Waiting: s.Waiting, KVShare: s.KVShare, KVUsed: s.KVUsed, KVCapacity: s.KVCapacity, MaxRunning: s.MaxRunning}
			if len(s.Ranks) > 0 {
				rank = s.Ranks[0]
			}
			for _, c := range []struct {
				reading telemetry.Reading
				want    float64
			}{
				{rank.Running, 1}, {rank.Waiting, 0}, {rank.KVShare, state.KVUsed}, {rank.KVUsed, float64(16 * state.UsedBlocks)},
				{rank.KVCapacity, float64(16 * state.Blocks)}, {rank.MaxRunning, float64(e.Config().Profile.MaxSeqs)},
			} {
				if v, ok := c.reading.Value(); ok {
					require.InDelta(t, c.want, v, 1e-9)
				}
			}
		})
	}
	require.Equal(t, []string{"vllm", "sglang", "trtllm", "tgi", "llamacpp"}, embedded.Dialects())
	require.ErrorContains(t, embedded.Config{Dialect: "abacus"}.Validate(), `Config.Dialect "abacus"`)
}

// TestIterations: the list holds what has happened since it was last read.
func TestIterations(t *testing.T) {
	e, _ := busy(t, embedded.Config{Dialect: "trtllm"}, "")
	c := newClient(t)
	var text string
	require.Eventually(t, func() bool {
		last := text
		text = get(t, c, e.URL()+"/metrics")
		if text != "[]" {
			return false
		}
		kind, err := engine.Detect([]byte(last))
		require.NoError(t, err)
		require.Equal(t, engine.TRTLLMIterations, kind)
		s, err := engine.Parse(kind, []byte(last), time.Now())
		require.NoError(t, err)
		require.Equal(t, engine.Signals(kind), engine.Told(s))
		return true
	}, 5*time.Second, time.Millisecond)
}

// TestLoadReports: an answer says how busy the engine is, if it is asked to.
func TestLoadReports(t *testing.T) {
	for _, c := range []struct {
		dialect, format string
		kv              bool
	}{{"", "TEXT", true}, {"", "JSON", true}, {"tgi", "TEXT", false}, {"sglang", "JSON", true}} {
		_, header := busy(t, embedded.Config{Dialect: c.dialect}, c.format)
		require.True(t, strings.HasPrefix(header, c.format+" "), header)
		s, err := engine.ParseLoadHeader(header, time.Now())
		require.NoError(t, err)
		running, _ := s.Running.Value()
		waiting, _ := s.Waiting.Value()
		require.EqualValues(t, 1, running+waiting, header)
		require.Equal(t, c.kv, s.KVShare.Known())
	}
	for _, format := range []string{"", "XML", "text"} {
		_, header := busy(t, embedded.Config{}, format)
		require.Empty(t, header)
	}
	e := start(t, embedded.Config{TimeScale: 20})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.URL()+"/v1/completions", strings.NewReader(`{"model":"demo","prompt":"x","max_tokens":1}`))
	require.NoError(t, err)
	req.Header.Set("Endpoint-Load-Metrics-Format", "TEXT")
	resp, err := newClient(t).Do(req)
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, resp.Body)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "TEXT named_metrics.kv_cache_usage_perc=0, named_metrics.num_requests_running=0, named_metrics.num_requests_waiting=0",
		resp.Header.Get("Endpoint-Load-Metrics"), "a whole answer tells of the time after it")
}
