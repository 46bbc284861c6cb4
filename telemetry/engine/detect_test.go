package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
)

func TestDetect(t *testing.T) {
	for name, tc := range map[string]struct {
		body string
		want engine.Kind
		err  error
	}{
		"load":                  {"tgi_queue_size 0\n", engine.TGI, nil},
		"a type":                {"# TYPE vllm:lora_adapter_loaded gauge\n", engine.VLLM, nil},
		"only alike":            {"go_threads 3\nlmdeploy:anything_bucket{le=\"1\"} 3\n", engine.LMDeploy, nil},
		"cut off":               {"llamacpp:requests_processing 0", engine.LlamaCPP, nil},
		"figure beats alike":    {"nv_trt_llm_x 1\nvllm:num_requests_running 1\n", engine.VLLM, nil},
		"triton with vllm":      {"nv_inference_request_success{model=\"vllm_model\"} 4\nvllm:num_requests_running 1\n", engine.VLLM, nil},
		"quoted name first":     {"{\"some.name\"} 1\nvllm:num_requests_running 1\n", engine.VLLM, nil},
		"older loads":           {`[{"dp_rank":0,"num_reqs":1,"num_waiting_reqs":0,"num_tokens":7}]`, engine.SGLangLoads, nil},
		"loads":                 {`{"loads": []}`, engine.SGLangLoads, nil},
		"iterations":            {`[{"iter":1,"kvCacheStats":{}}]`, engine.TRTLLMIterations, nil},
		"counter of another":    {"vllm:num_requests_running 1\nsglang:prompt_tokens_total 1\n", engine.VLLM, nil},
		"two engines":           {"vllm:num_requests_running 1\nsglang:num_running_reqs 1\n", "", engine.ErrUndetected},
		"two engines, alike":    {"vllm:x 1\nsglang:y 1\n", "", engine.ErrUndetected},
		"none":                  {"go_threads 3\n", "", engine.ErrUndetected},
		"help only":             {"# HELP vllm:num_requests_running Text.\n", "", engine.ErrUndetected},
		"the name in prose":     {"vllm:num_requests_running is missing\n", "", engine.ErrUndetected},
		"empty":                 {" \n", "", engine.ErrEmpty},
		"html":                  {"<html>vllm:num_requests_running 1</html>", "", engine.ErrMarkup},
		"empty list":            {"[]\n", "", engine.ErrNoEntries},
		"empty object":          {"{}", "", engine.ErrNoEntries},
		"other json":            {`{"detail":"Not Found"}`, "", engine.ErrUndetected},
		"other list":            {`[1, 2]`, "", engine.ErrUndetected},
		"list of nulls":         {`[null]`, "", engine.ErrUndetected},
		"prefix without a name": {"vllm: 1\n", "", engine.ErrUndetected},
	} {
		kind, err := engine.Detect([]byte(tc.body))
		assert.Equal(t, tc.want, kind, name)
		assert.ErrorIs(t, err, tc.err, name)
		if err != nil {
			assert.Regexp(t, "^engine: ", err.Error())
		}
	}
	_, err := engine.Detect([]byte("vllm:num_requests_running 1\nsglang:num_running_reqs 1\n"))
	assert.EqualError(t, err, "engine: kind of engine not recognised: it may be vllm or sglang")
}

func TestKinds(t *testing.T) {
	require.Len(t, engine.Kinds(), 10)
	for _, kind := range engine.Kinds() {
		require.NoError(t, engine.Parser{Kind: kind}.Validate())
		assert.Regexp(t, "^/", kind.Path())
		assert.NotEmpty(t, engine.Signals(kind))
	}
	assert.Equal(t, "/prometheus/metrics", engine.TRTLLM.Path())
	assert.Equal(t, "/v1/loads", engine.SGLangLoads.Path())
	unknown := engine.Kind("abacus")
	assert.Empty(t, unknown.Path())
	assert.Nil(t, engine.Signals(unknown))
	assert.Equal(t, engine.KVUnknown, unknown.KVMeaning())
}

// TestSnapshotsSayWhatKVMeans: a figure that counts evictable prefixes is marked as such, and no other.
func TestSnapshotsSayWhatKVMeans(t *testing.T) {
	for text, want := range map[string]bool{
		"llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\nllamacpp:kv_cache_usage_ratio 0.9\n": true,
		"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.9\n":          false,
	} {
		kind, err := engine.Detect([]byte(text))
		require.NoError(t, err)
		snap, err := (&engine.Parser{Kind: kind}).Parse(strings.NewReader(text), sent)
		require.NoError(t, err)
		require.Equal(t, want, snap.KVOccupied, kind)
		require.Equal(t, want, kind.KVMeaning() == engine.KVOccupied)
		store := telemetry.NewStore(telemetry.StoreConfig{})
		store.Observe(sent, snap, 0)
		require.Equal(t, want, store.State().KVOccupied)
		other := telemetry.Snapshot{ObservedAt: sent.Add(time.Second), KVShare: telemetry.V(0.5), KVOccupied: !want}
		store.Observe(sent.Add(time.Second), other, 0)
		require.Equal(t, !want, store.State().KVOccupied, "the newest figure's meaning counts")
	}
}

func TestKVMeaning(t *testing.T) {
	assert.True(t, engine.VLLM.KVMeaning().Comparable(engine.SGLang.KVMeaning()))
	assert.False(t, engine.VLLM.KVMeaning().Comparable(engine.LlamaCPP.KVMeaning()))
	assert.False(t, engine.TGI.KVMeaning().Comparable(engine.TGI.KVMeaning()))
	for want, m := range map[string]engine.KVMeaning{"unknown": engine.KVUnknown, "held": engine.KVHeld, "occupied": engine.KVOccupied, "kv-meaning(9)": 9} {
		assert.Equal(t, want, m.String())
	}
	for _, kind := range engine.Kinds() {
		for _, s := range engine.Signals(kind) {
			if s == engine.SignalKV && kind != engine.TokenSpeed {
				assert.NotEqual(t, engine.KVUnknown, kind.KVMeaning(), kind)
			}
		}
	}
}

func TestSignals(t *testing.T) {
	assert.Equal(t, []engine.Signal{"running", "waiting"}, engine.Signals(engine.TGI))
	assert.Equal(t, []engine.Signal{"running", "waiting", "kv", "kv-used"}, engine.Signals(engine.LlamaCPP))
	assert.Equal(t, []engine.Signal{"running", "waiting", "kv", "kv-used", "kv-capacity", "max-running"}, engine.Signals(engine.Triton))
	assert.Equal(t, []engine.Signal{"running", "waiting", "kv", "epoch"}, engine.Signals(engine.LMDeploy))
	assert.Equal(t, []engine.Signal{"running", "waiting", "kv", "kv-capacity", "gen-rate", "prefix-hit-rate", "adapters",
		"adapter-activity", "adapter-slots", "asleep", "epoch"}, engine.Signals(engine.VLLM))
	assert.Equal(t, []engine.Signal{"running", "waiting", "waiting-tokens", "kv", "kv-used", "kv-capacity", "gen-rate",
		"prefix-hit-rate", "max-running", "adapter-slots"}, engine.Signals(engine.SGLang))
	engine.Signals(engine.SGLangLoads)[0] = "spoilt"
	assert.Equal(t, engine.SignalRunning, engine.Signals(engine.SGLangLoads)[0])
	assert.Len(t, engine.AllSignals(), 14)
}

func TestTold(t *testing.T) {
	assert.Nil(t, engine.Told(telemetry.Snapshot{}))
	v := telemetry.V(1)
	assert.Equal(t, engine.AllSignals()[:9], engine.Told(telemetry.Snapshot{Running: v, Waiting: v, WaitingTokens: v, KVUsed: v,
		KVCapacity: v, GenerationRate: v, PrefixHitRate: v, MaxRunning: v}), "the share follows from used and capacity")
	assert.Equal(t, []engine.Signal{"kv-used"}, engine.Told(telemetry.Snapshot{Ranks: []telemetry.Rank{{ID: 1, KVUsed: v}}}))
	assert.Equal(t, []engine.Signal{"adapters", "asleep", "epoch"}, engine.Told(telemetry.Snapshot{
		Adapters: telemetry.AdapterReport{Known: true}, Asleep: telemetry.TriNo, Epoch: "1"}))
	rep := engine.Report{Activity: engine.Activity{Known: true}, AdapterSlots: 1}
	assert.Equal(t, []engine.Signal{"adapter-activity", "adapter-slots"}, rep.Signals())
}
