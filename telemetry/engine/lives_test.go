package engine_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
)

// life reads a report of the kind that was requested n seconds after the first and applies l to it.
func life(t require.TestingT, l *engine.Lives, kind engine.Kind, n int, body string) string {
	rep, err := engine.Parser{Kind: kind}.Report(strings.NewReader(body), sent.Add(time.Duration(n)*time.Second))
	require.NoError(t, err)
	l.Apply(&rep)
	return rep.Snapshot.Epoch
}

func TestLives(t *testing.T) {
	type step struct{ body, want string }
	tgi := func(requests, success string) string {
		return "tgi_queue_size 0\ntgi_request_count " + requests + "\ntgi_request_success " + success + "\n"
	}
	rank := func(rank string, tokens int) string {
		return fmt.Sprintf("sglang:num_running_reqs 1\nsglang:generation_tokens_total{dp_rank=%q} %d\n", rank, tokens)
	}
	for name, tc := range map[string]struct {
		kind  engine.Kind
		steps []step
	}{
		"rising":         {engine.TGI, []step{{tgi("5", "4"), "life-1"}, {tgi("5", "4"), "life-1"}, {tgi("6", "4"), "life-1"}}},
		"restarts":       {engine.TGI, []step{{tgi("5", "4"), "life-1"}, {tgi("0", "0"), "life-2"}, {tgi("3", "0"), "life-2"}, {tgi("1", "1"), "life-3"}}},
		"one of several": {engine.TGI, []step{{tgi("5", "4"), "life-1"}, {tgi("6", "3"), "life-2"}}},
		"from zero":      {engine.TGI, []step{{tgi("0", "0"), "life-1"}, {tgi("7", "0"), "life-1"}}},
		"not a number":   {engine.TGI, []step{{tgi("5", "4"), "life-1"}, {tgi("NaN", "4"), "life-1"}, {tgi("4", "4"), "life-2"}}},
		"no count":       {engine.TGI, []step{{tgi("5", "4"), "life-1"}, {tgi("+Inf", "4"), "life-1"}, {tgi("-1", "4"), "life-1"}, {tgi("6", "4"), "life-1"}}},
		"no counters":    {engine.TGI, []step{{"tgi_queue_size 0\n", ""}, {tgi("5", "4"), "life-1"}, {"tgi_queue_size 0\n", "life-1"}, {tgi("1", "1"), "life-2"}}},
		"a rank away":    {engine.SGLang, []step{{rank("0", 90) + rank("1", 5), "life-1"}, {rank("1", 6), "life-1"}, {rank("0", 10) + rank("1", 6), "life-2"}}},
		"a rank late":    {engine.SGLang, []step{{rank("0", 90) + rank("1", 5), "life-1"}, {rank("1", 3), "life-2"}, {rank("0", 10) + rank("1", 4), "life-2"}}},
		"a rank fresh":   {engine.SGLang, []step{{rank("0", 90), "life-1"}, {rank("0", 90) + rank("1", 1), "life-1"}}},
		"start time": {engine.VLLM, []step{{"vllm:num_requests_running 1\nvllm:prompt_tokens_total 7\nprocess_start_time_seconds 12\n", "12"},
			{"vllm:num_requests_running 1\nvllm:prompt_tokens_total 3\n", ""}}},
		"iterations": {engine.TRTLLMIterations, []step{{`[{"iter": 7, "numActiveRequests": 1}]`, "life-1"},
			{`[{"iter": 8, "numActiveRequests": 1}]`, "life-1"}, {`[{"iter": -1, "numActiveRequests": 1}]`, "life-1"}, {`[{"iter": 1, "numActiveRequests": 1}]`, "life-2"}}},
		"loads have no counters": {engine.SGLangLoads, []step{{`[{"num_running_reqs": 1}]`, ""}, {`[{"num_running_reqs": 0}]`, ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			var l engine.Lives
			for i, s := range tc.steps {
				require.Equal(t, s.want, life(t, &l, tc.kind, i, s.body), "step %d", i)
			}
		})
	}
}

func TestLivesInWrongOrder(t *testing.T) {
	var l engine.Lives
	count := func(n int) string { return fmt.Sprintf("tgi_queue_size 0\ntgi_request_count %d\n", n) }
	assert.Equal(t, "life-1", life(t, &l, engine.TGI, 5, count(50)))
	assert.Empty(t, life(t, &l, engine.TGI, 4, count(40)), "an older report that comes late is no restart")
	assert.Equal(t, "life-1", life(t, &l, engine.TGI, 6, count(50)))
}

// A label that comes and goes with each report must not fill the memory, and no report of the present is forgotten.
func TestLivesAreBounded(t *testing.T) {
	var l engine.Lives
	for i := range 3000 {
		life(t, &l, engine.SGLang, i, fmt.Sprintf("sglang:num_running_reqs 1\nsglang:generation_tokens_total{pid=\"%d\"} 5\n", i))
	}
	assert.LessOrEqual(t, engine.LivesHeld(&l), 1025)
	assert.Equal(t, "life-1", life(t, &l, engine.SGLang, 4000, "sglang:num_running_reqs 1\nsglang:generation_tokens_total{pid=\"2999\"} 5\n"))
	assert.Equal(t, "life-2", life(t, &l, engine.SGLang, 4001, "sglang:num_running_reqs 1\nsglang:generation_tokens_total{pid=\"2999\"} 4\n"))
}

// TestLivesAgainstModel restarts an engine at known moments; a store must see exactly the restarts that any counter shows.
func TestLivesAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l engine.Lives
		store := telemetry.NewStore(telemetry.StoreConfig{})
		counts := []int{0, 0}
		before := []int{0, 0}
		restarts := uint64(0)
		for i := range rapid.IntRange(1, 30).Draw(t, "reports") {
			if rapid.IntRange(0, 4).Draw(t, "restart") == 0 {
				counts = []int{0, 0}
			}
			for j := range counts {
				counts[j] += rapid.IntRange(0, 3).Draw(t, "work")
			}
			if counts[0] < before[0] || counts[1] < before[1] {
				restarts++
			}
			copy(before, counts)
			body := fmt.Sprintf("llamacpp:requests_processing 1\nllamacpp:prompt_tokens_total %d\nllamacpp:n_decode_total %d\n", counts[0], counts[1])
			at := sent.Add(time.Duration(i) * time.Second)
			rep, err := engine.Parser{Kind: engine.LlamaCPP}.Report(strings.NewReader(body), at)
			require.NoError(t, err)
			l.Apply(&rep)
			store.Observe(at, rep.Snapshot, 0)
		}
		require.Equal(t, restarts, store.Counters().EpochChanges)
	})
}
