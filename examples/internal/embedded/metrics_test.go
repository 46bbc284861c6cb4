package embedded_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/examples/internal/embedded"
)

// The metrics are well-formed, and their names and labels those of vLLM.
func TestMetrics(t *testing.T) {
	name := "a \"model\" \\ with\na twist"
	e := start(t, embedded.Config{Model: name, OutputTokens: 10})
	c := newClient(t)
	for range 2 {
		resp := post(t, c, e.URL()+"/v1/completions", obj{"model": name, "prompt": strings.Repeat("x", 400)})
		require.Equal(t, 200, resp.StatusCode)
	}
	post(t, c, e.URL()+"/v1/completions", obj{"model": name, "prompt": "x", "max_tokens": 3})
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(get(t, c, e.URL()+"/metrics")))
	require.NoError(t, err)

	value := func(metric string) float64 {
		f := families[metric]
		require.NotNil(t, f, metric)
		m := f.Metric[0]
		require.Equal(t, "engine", m.Label[0].GetName())
		require.Equal(t, "0", m.Label[0].GetValue())
		require.Equal(t, "model_name", m.Label[1].GetName())
		require.Equal(t, name, m.Label[1].GetValue())
		if f.GetType().String() == "GAUGE" {
			return m.GetGauge().GetValue()
		}
		return m.GetCounter().GetValue()
	}
	for metric, want := range map[string]float64{
		"vllm:num_requests_running":       0,
		"vllm:num_requests_waiting":       0,
		"vllm:kv_cache_usage_perc":        0,
		"vllm:prefix_cache_queries_total": 201,
		"vllm:prefix_cache_hits_total":    96,
		"vllm:num_preemptions_total":      0,
		"vllm:prompt_tokens_total":        201,
		"vllm:generation_tokens_total":    23,
		"vllm:request_success_total":      2,
	} {
		require.Equal(t, want, value(metric), metric)
	}
	require.EqualValues(t, 1, families["vllm:request_success_total"].Metric[1].GetCounter().GetValue(), "one cut at max_tokens")
	for _, h := range []string{"vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds"} {
		require.EqualValues(t, 3, families[h].Metric[0].GetHistogram().GetSampleCount())
		require.Positive(t, families[h].Metric[0].GetHistogram().GetSampleSum())
	}
	info := map[string]string{}
	for _, l := range families["vllm:cache_config_info"].Metric[0].Label {
		info[l.GetName()] = l.GetValue()
	}
	require.Equal(t, "16", info["block_size"])
	require.Equal(t, "26313", info["num_gpu_blocks"])
	started := families["process_start_time_seconds"].Metric[0].GetGauge().GetValue()
	require.InDelta(t, float64(time.Now().Unix()), started, 60)
}
