package engine_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
)

// TestAgainstModel writes documents of which the answer is known by construction, in any order of lines and labels and
// among lines that must not matter.
func TestAgainstModel(t *testing.T) {
	noise := []string{
		"# HELP vllm:num_requests_running Text with \\ and \"quotes\".", "# TYPE vllm:num_requests_running gauge", "#", "",
		`vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99`, "vllm:num_requests_running_created 1.7e9",
		`vllm:gpu_prefix_cache_hits_total{engine="0"} 77`, `vllm:num_requests_swapped{engine="0"} 5`, "garbage here",
		`go_gc_duration_seconds{quantile="0.5"} 0.1`, `vllm:e2e_request_latency_seconds_bucket{le="+Inf",engine="0"} 4`,
	}
	rapid.Check(t, func(t *rapid.T) {
		ranks := rapid.IntRange(1, 4).Draw(t, "ranks")
		deprecated := rapid.Bool().Draw(t, "deprecated name beside")
		var running, waiting, share, capacity float64
		var lines []string
		emit := func(family string, rank int, more string, value any) {
			labels := []string{fmt.Sprintf(`engine="%d"`, rank), `model_name="org/model"`}
			if more != "" {
				labels = append(labels, more)
			}
			labels = rapid.Permutation(labels).Draw(t, "labels")
			lines = append(lines, fmt.Sprintf("%s{%s} %v", family, strings.Join(labels, ","), value))
		}
		for rank := range ranks {
			r, w := rapid.IntRange(0, 300).Draw(t, "running"), rapid.IntRange(0, 300).Draw(t, "waiting")
			k := rapid.Float64Range(0, 1).Draw(t, "share")
			blocks := rapid.IntRange(1, 9000).Draw(t, "blocks")
			for copies := range rapid.IntRange(1, 2).Draw(t, "copies") {
				emit("vllm:num_requests_running", rank, fmt.Sprintf(`tp_rank="%d"`, copies), r)
			}
			emit("vllm:num_requests_waiting", rank, "", w)
			emit("vllm:kv_cache_usage_perc", rank, "", k)
			if deprecated {
				emit("vllm:gpu_cache_usage_perc", rank, "", 1)
			}
			emit("vllm:cache_config_info", rank, fmt.Sprintf(`block_size="16",num_gpu_blocks="%d"`, blocks), "1.0")
			running, waiting, share = running+float64(r), waiting+float64(w), math.Max(share, k)
			capacity += float64(16 * blocks)
		}
		lines = append(lines, rapid.SliceOfN(rapid.SampledFrom(noise), 0, 6).Draw(t, "noise")...)
		lines = rapid.Permutation(lines).Draw(t, "order")
		s, err := engine.Parse(engine.VLLM, []byte(strings.Join(lines, "\n")+"\n"), sent)
		require.NoError(t, err)
		store := telemetry.NewStore(telemetry.StoreConfig{})
		s.Evidence = telemetry.EvidenceVouched
		require.Empty(t, store.Observe(sent, s, 0).Defects)
		st := store.State()
		got := []string{text(st.Running), text(st.Waiting), text(st.KVShare), text(st.KVCapacity)}
		want := []string{fmt.Sprint(running), fmt.Sprint(waiting), fmt.Sprint(share), fmt.Sprint(capacity)}
		require.Equal(t, want, got)
		if ranks > 1 {
			require.Len(t, st.Ranks, ranks)
		}
	})
}
