package engine_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
)

func TestParseLoadHeader(t *testing.T) {
	for name, tc := range map[string]struct{ value, want string }{
		"text": {"TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=3, " +
			"named_metrics.num_requests_running=7", "run=7 wait=3 kv=0.25"},
		"colons":          {"TEXT named_metrics.kv_cache_usage_perc:0.25,num_requests_waiting:3", "wait=3 kv=0.25"},
		"both":            {"TEXT kv_cache_usage_perc:0.25,num_requests_waiting=3", "wait=3 kv=0.25"},
		"no word":         {"named_metrics.kv_cache_usage_perc=0.25", "kv=0.25"},
		"no word, blanks": {" kv_cache_usage_perc = 0.25 , num_requests_waiting : 3 ", "wait=3 kv=0.25"},
		"tab":             {"TEXT\tkv_cache_usage_perc=0.25", "kv=0.25"},
		"lower case":      {"text kv_cache_usage_perc=9.75e-06", "kv=9.75e-06"},
		"engine prefix":   {"TEXT vllm:kv_cache_usage_perc=0.25,vllm:num_requests_waiting:3,named_metrics.sglang:num_running_reqs=1", "run=1 wait=3 kv=0.25"},
		"utilisation":     {"TEXT cpu_utilization=0.9,mem_utilization=0.8,application_utilization=0.7,utilization.kv_cache_usage_perc=0.25,rps_fractional=4", "kv=0.25"},
		"triton":          {"TEXT named_metrics.kv_cache_utilization=0.5, named_metrics.max_token_capacity=1000", "size=1000 kv=0.5"},
		"sglang": {"TEXT num_running_reqs=1,num_queue_reqs=2,num_waiting_uncached_tokens=3,num_used_tokens=40," +
			"max_total_num_tokens=100,token_usage=0.4,gen_throughput=5,max_running_requests=6", "run=1 wait=2 wait-tokens=3 used=40 size=100 kv=0.4 rate=5 max=6"},
		"newer name first":    {"TEXT kv_cache_usage_perc=0.25,gpu_cache_usage_perc=0.5", "kv=0.25"},
		"newer name last":     {"TEXT gpu_cache_usage_perc=0.5,kv_cache_usage_perc=0.25", "kv=0.25"},
		"twice":               {"TEXT num_requests_waiting=3,num_requests_waiting=5,num_requests_waiting=4", "wait=5"},
		"names alike":         {"TEXT num_requests_waiting_by_reason=9,num_requests_waitin=8", ""},
		"zero":                {"TEXT num_requests_waiting=0", "wait=0"},
		"invalid":             {"TEXT num_requests_waiting=NaN,num_requests_running=-1,kv_cache_usage_perc=+Inf", "run=-1 wait=NaN kv=+Inf"},
		"empty pairs":         {"TEXT ,, num_requests_waiting=1,", "wait=1"},
		"empty":               {"", ""},
		"empty text":          {"TEXT", ""},
		"empty text, blank":   {"TEXT  ", ""},
		"empty json":          {"JSON {}", ""},
		"json word only":      {"JSON", ""},
		"json":                {`JSON {"named_metrics": {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 3}}`, "wait=3 kv=0.25"},
		"json, no word":       {`{"named_metrics":{"num_requests_waiting":3}}`, "wait=3"},
		"json, camel":         {`JSON {"namedMetrics": {"num_requests_waiting": 3}, "cpuUtilization": 0.5}`, "wait=3"},
		"json, top":           {`json {"num_requests_waiting": 3, "named_metrics.num_requests_running": 4, "cpu_utilization": "high", "request_cost": {"a": 1}}`, "run=4 wait=3"},
		"json, utilisation":   {`JSON {"utilization": {"kv_cache_usage_perc": 0.25, "gpu": 1}, "mem_utilization": 0.9}`, "kv=0.25"},
		"json, null":          {`JSON {"num_requests_waiting": null, "named_metrics": {"num_requests_running": null}, "utilization": null}`, ""},
		"json, engine prefix": {`JSON {"named_metrics": {"vllm:num_requests_waiting": 3}}`, "wait=3"},
	} {
		t.Run(name, func(t *testing.T) {
			for range 4 { // the keys of JSON are visited in random order
				s, err := engine.ParseLoadHeader(tc.value, sent)
				require.NoError(t, err)
				require.Equal(t, tc.want, whole(s))
				require.Equal(t, sent, s.ObservedAt)
			}
		})
	}
}

func TestWrongLoadHeader(t *testing.T) {
	for name, tc := range map[string]struct{ value, want string }{
		"format":         {"BIN CgkJ", `engine: not a load report: format "BIN" is neither TEXT nor JSON`},
		"one word":       {"overloaded", `engine: not a load report: format "overloaded" is neither TEXT nor JSON`},
		"no pair":        {"TEXT num_requests_waiting=1, kv", `engine: not a load report: "kv" is no pair`},
		"no number":      {"TEXT num_requests_waiting=many", `engine: not a load report: num_requests_waiting is "many", no number`},
		"empty number":   {"TEXT num_requests_waiting=", `engine: not a load report: num_requests_waiting is "", no number`},
		"hexadecimal":    {"TEXT num_requests_waiting=0x1p4", `engine: not a load report: num_requests_waiting is "0x1p4", no number`},
		"broken json":    {"JSON {", "engine: not a load report: unexpected end of JSON input"},
		"json list":      {"JSON [1]", ""},
		"json text":      {`JSON {"num_requests_waiting": "3"}`, ""},
		"named text":     {`JSON {"named_metrics": {"num_requests_waiting": "3"}}`, ""},
		"named number":   {`JSON {"named_metrics": 3}`, ""},
		"half an answer": {`JSON {"num_requests_running": 3, "num_requests_waiting": true}`, ""},
		"long":           {"TEXT " + strings.Repeat("x", 1000), `engine: not a load report: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..." is no pair`},
	} {
		s, err := engine.ParseLoadHeader(tc.value, sent)
		require.ErrorIs(t, err, engine.ErrLoadHeader, name)
		assert.Equal(t, telemetry.Snapshot{}, s, name)
		if tc.want != "" {
			assert.EqualError(t, err, tc.want, name)
		}
	}
	_, err := engine.ParseLoadHeader(strings.Repeat(" ", 1<<20), sent)
	assert.ErrorIs(t, err, engine.ErrTooLarge)
}

func TestEmptyLoadHeaderRefreshesNothing(t *testing.T) {
	store := telemetry.NewStore(telemetry.StoreConfig{})
	full, err := engine.ParseLoadHeader("TEXT num_requests_waiting=3", sent)
	require.NoError(t, err)
	store.Observe(sent, full, 0)
	for _, value := range []string{"TEXT", "JSON {}", "TEXT cpu_utilization=0.5"} {
		later := sent.Add(1e9)
		empty, err := engine.ParseLoadHeader(value, later)
		require.NoError(t, err)
		assert.Nil(t, engine.Told(empty))
		assert.Equal(t, telemetry.ReasonEmpty, store.Observe(later, empty, 0).Dropped)
		assert.Equal(t, sent, store.State().Waiting.ObservedAt())
	}
	assert.Equal(t, telemetry.EvidenceVouched, full.Evidence, "an engine that answers has worked")
}

// FuzzParseLoadHeader checks that no value can break the parser, that an error comes with nothing else, and that the
// order of pairs changes nothing.
func FuzzParseLoadHeader(f *testing.F) {
	f.Add("TEXT named_metrics.kv_cache_usage_perc=0.25, num_requests_waiting:3")
	f.Add(`JSON {"named_metrics": {"kv_cache_usage_perc": 0.25}}`)
	f.Add("a=1,b:2,,num_requests_running=NaN,num_requests_running=2")
	f.Fuzz(func(t *testing.T, value string) {
		s, err := engine.ParseLoadHeader(value, sent)
		if err != nil {
			if s.Source != "" || engine.Told(s) != nil {
				t.Fatalf("error %v and %+v", err, s)
			}
			return
		}
		observe(t, s)
		text, isText := strings.CutPrefix(value, "TEXT ")
		if !isText {
			return
		}
		pairs := strings.Split(text, ",")
		for i, j := 0, len(pairs)-1; i < j; i, j = i+1, j-1 {
			pairs[i], pairs[j] = pairs[j], pairs[i]
		}
		other, err := engine.ParseLoadHeader("TEXT "+strings.Join(pairs, ","), sent)
		if err != nil || whole(s) != whole(other) {
			t.Fatalf("another order: %q and %v, was %q", whole(other), err, whole(s))
		}
	})
}
