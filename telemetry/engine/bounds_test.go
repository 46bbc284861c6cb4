package engine_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/telemetry/engine"
)

// A short document must not become a long one in memory, nor hold up whoever gets what was read of it.
func TestTooManyEntriesAndRanks(t *testing.T) {
	ranks := func(n int, line string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, line, i)
		}
		return b.String()
	}
	list := func(n int, entry string) string { return "[" + strings.Repeat(entry+",", n-1) + entry + "]" }
	for name, tc := range map[string]struct {
		kind     engine.Kind
		body     string
		want     error
		detected bool
	}{
		"ranks":              {engine.VLLM, ranks(4096, "vllm:num_requests_running{engine=\"%d\"} 1\n"), nil, true},
		"too many":           {engine.VLLM, ranks(4097, "vllm:num_requests_running{engine=\"%d\"} 1\n"), engine.ErrTooLarge, true},
		"too many by size":   {engine.VLLM, ranks(4097, "vllm:cache_config_info{engine=\"%d\",kv_cache_size_tokens=\"9\"} 1\n"), engine.ErrTooLarge, true},
		"too many loads":     {engine.SGLangLoads, "[" + ranks(4096, `{"dp_rank":%d,"num_running_reqs":1},`) + `{"num_running_reqs":1}, {"num_running_reqs":1}]`, engine.ErrTooLarge, true},
		"entries":            {engine.TRTLLMIterations, list(1<<14, `{"iter":1,"numActiveRequests":1}`), nil, true},
		"too many entries":   {engine.TRTLLMIterations, list(1<<14+1, "{}"), engine.ErrTooLarge, false},
		"one wrong of many":  {engine.SGLangLoads, list(1<<20, "0"), engine.ErrNotJSON, false},
		"not closed":         {engine.SGLangLoads, strings.Repeat("[", 1<<20), engine.ErrNotJSON, false},
		"entries of nothing": {engine.SGLangLoads, list(1<<14, "{}"), engine.ErrNoSignals, false},
	} {
		_, err := engine.Parse(tc.kind, []byte(tc.body), sent)
		require.ErrorIs(t, err, tc.want, name)
		_, err = engine.Detect([]byte(tc.body))
		require.Equal(t, tc.detected, err == nil, "%s: %v", name, err)
	}
	body := []byte(list(2<<20, "{}"))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := engine.Parse(engine.SGLangLoads, body, sent)
	require.ErrorIs(t, err, engine.ErrTooLarge)
	_, err = engine.Detect(body)
	require.ErrorIs(t, err, engine.ErrUndetected)
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8*len(body)))
}
