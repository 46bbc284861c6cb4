package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
)

// figures prints all figures that are known, in the order of Snapshot.
func figures(r telemetry.Rank) string {
	var out []string
	for _, f := range []struct {
		name string
		telemetry.Reading
	}{{"run", r.Running}, {"wait", r.Waiting}, {"wait-tokens", r.WaitingTokens}, {"used", r.KVUsed}, {"size", r.KVCapacity},
		{"kv", r.KVShare}, {"rate", r.GenerationRate}, {"hits", r.PrefixHitRate}, {"max", r.MaxRunning}} {
		if f.Known() {
			out = append(out, f.name+"="+text(f.Reading))
		}
	}
	return strings.Join(out, " ")
}

// whole prints a snapshot: its own figures, then those of its ranks.
func whole(s telemetry.Snapshot) string {
	lines := []string{figures(telemetry.Rank{Running: s.Running, Waiting: s.Waiting, WaitingTokens: s.WaitingTokens,
		KVUsed: s.KVUsed, KVCapacity: s.KVCapacity, KVShare: s.KVShare, GenerationRate: s.GenerationRate,
		PrefixHitRate: s.PrefixHitRate, MaxRunning: s.MaxRunning})}
	for _, r := range s.Ranks {
		lines = append(lines, fmt.Sprintf("%d: %s", r.ID, figures(r)))
	}
	return strings.Join(lines, "\n")
}

// payloads are the documents under testdata with what they say.
var payloads = []struct {
	name, want string
	kind       engine.Kind
	evidence   telemetry.Evidence
}{
	{"vllm-v0.prom", "run=3 wait=0 size=16000 kv=0.25 rate=41.5", engine.VLLM, telemetry.EvidenceVouched},
	{"vllm-v1.prom", "run=17 wait=4 size=80000 kv=0.625 hits=0.25", engine.VLLM, telemetry.EvidenceVouched},
	{"vllm-ray.prom", "run=6 wait=2 kv=0.5", engine.VLLM, telemetry.EvidenceVouched},
	{"sglang-dp2.prom", "\n0: run=4 wait=0 used=20000 size=100000 kv=0.2 rate=150.5 hits=0.25" +
		"\n1: run=9 wait=3 used=80000 size=100000 kv=0.8 rate=310 hits=0.75", engine.SGLang, telemetry.EvidenceVouched},
	{"sglang-decode.prom", "run=20 wait=7 size=64000 kv=0.91", engine.SGLang, telemetry.EvidenceNone},
	{"sglang-gateway.prom", "\n0: run=3 wait=0 kv=0.1\n1: run=8 wait=5 kv=0.6", engine.SGLang, telemetry.EvidenceNone},
	{"sglang-loads.json", "\n0: run=4 wait=0 wait-tokens=0 used=20000 size=100000 kv=0.2 rate=150.5 hits=0.25 max=64" +
		"\n1: run=9 wait=3 wait-tokens=4100 used=80000 size=100000 kv=0.8 rate=310 hits=0.75 max=64", engine.SGLangLoads,
		telemetry.EvidenceVouched},
	{"sglang-get-load.json", "\n0: run=7 wait=5\n1: run=7 wait=0", engine.SGLangLoads, telemetry.EvidenceVouched},
	{"triton.prom", "run=11 wait=4 used=16000 size=64000 kv=0.25 max=64", engine.Triton, telemetry.EvidenceVouched},
	{"trtllm.prom", "run=12 wait=3 size=160000 kv=0.4 hits=0.5 max=256", engine.TRTLLM, telemetry.EvidenceVouched},
	{"trtllm-iterations.json", "run=3 wait=1 used=8000 size=32000 hits=0.5 max=256", engine.TRTLLMIterations, telemetry.EvidenceVouched},
	{"tgi.prom", "run=15 wait=6", engine.TGI, telemetry.EvidenceVouched},
	{"llamacpp.prom", "run=2 wait=1", engine.LlamaCPP, telemetry.EvidenceVouched},
	{"llamacpp-fork.prom", "run=3 wait=0 used=6144 kv=0.75", engine.LlamaCPP, telemetry.EvidenceVouched},
	{"lmdeploy.prom", "\n0: run=7 wait=1 kv=0.5\n1: run=8 wait=2 kv=0.375", engine.LMDeploy, telemetry.EvidenceVouched},
	{"tokenspeed.prom", "run=5 wait=1 kv=0.5", engine.TokenSpeed, telemetry.EvidenceVouched},
}

func TestPayloads(t *testing.T) {
	covered := make(map[engine.Kind]bool)
	for _, tc := range payloads {
		t.Run(tc.name, func(t *testing.T) {
			covered[tc.kind] = true
			body := payload(t, tc.name)
			s, err := engine.Parse(tc.kind, body, sent)
			require.NoError(t, err)
			assert.Equal(t, tc.want, whole(s))
			assert.Equal(t, tc.evidence, s.Evidence)
			assert.Equal(t, string(tc.kind), s.Source)
			assert.Equal(t, sent, s.ObservedAt)
			assert.Empty(t, telemetry.NewStore(telemetry.StoreConfig{}).Observe(sent, s, 0).Defects)
			kind, err := engine.Detect(body)
			require.NoError(t, err)
			assert.Equal(t, tc.kind, kind)
			assert.Subset(t, engine.Signals(tc.kind), engine.Told(s), "the kind can do what it does")
			// No other kind reads anything in it.
			for _, other := range engine.Kinds() {
				if other != tc.kind {
					s, err := engine.Parse(other, body, sent)
					require.Error(t, err, other)
					require.Equal(t, telemetry.Snapshot{}, s)
				}
			}
		})
	}
	for _, kind := range engine.Kinds() {
		assert.True(t, covered[kind], kind)
	}
	files, err := os.ReadDir("testdata")
	require.NoError(t, err)
	assert.Equal(t, len(payloads), len(files)-fuzzDirs(files), "every file has a row")
}

func fuzzDirs(files []fs.DirEntry) (n int) {
	for _, f := range files {
		if f.IsDir() {
			n++
		}
	}
	return n
}

func TestNamesOfVersions(t *testing.T) {
	for name, tc := range map[string]struct {
		kind  engine.Kind
		lines []string
		want  string
	}{
		"ray, older":           {engine.VLLM, []string{`ray_vllm:num_requests_running{ReplicaId="a"} 3`, `ray_vllm:gpu_cache_usage_perc{ReplicaId="a"} 0.5`}, "-/3/0.5"},
		"ray, replicas":        {engine.VLLM, []string{`ray_vllm_num_requests_running{ReplicaId="a",engine="0"} 3`, `ray_vllm_num_requests_running{ReplicaId="b",engine="0"} 4`}, "-/7/-"},
		"ray, workers":         {engine.VLLM, []string{`ray_vllm_num_requests_running{WorkerId="a"} 3`, `ray_vllm_num_requests_running{WorkerId="b"} 4`}, "-/4/-"},
		"ray, only similar":    {engine.VLLM, []string{"ray_vllm_num_requests_running 1", "ray_vllm_num_requests_waiting_by_reason 9", "ray_num_requests_waiting 9"}, "-/1/-"},
		"two prefixes":         {engine.VLLM, []string{"vllm:num_requests_running 1", "ray_vllm_num_requests_running 1"}, "-/1/-"},
		"sglang, two prefixes": {engine.SGLang, []string{"sglang:num_running_reqs 1", "sglang_num_running_reqs 1", "sglang_num_queue_reqs 5"}, "5/1/-"},
		"sglang, name label":   {engine.SGLang, []string{`sglang:num_running_reqs{name="a"} 1`, `sglang:num_running_reqs{name="b"} 2`}, "-/3/-"},
		"sglang, copies": {engine.SGLang, []string{`sglang:num_running_reqs{tp_rank="0",pp_rank="0",pid="7"} 4`,
			`sglang:num_running_reqs{tp_rank="1",pp_rank="1",pid="8"} 4`}, "-/4/-"},
		"sglang, only queues": {engine.SGLang, []string{"sglang:num_running_reqs 1", "sglang:num_decode_prealloc_queue_reqs 4"}, "-/1/-"},
		"sglang, queues copied": {engine.SGLang, []string{"sglang:num_queue_reqs 1", `sglang:num_decode_prealloc_queue_reqs{tp_rank="0"} 4`,
			`sglang:num_decode_prealloc_queue_reqs{tp_rank="1"} 4`, "sglang:num_decode_transfer_queue_reqs 4"}, "9/-/-"},
		"sglang, queues renamed": {engine.SGLang, []string{"sglang:num_queue_reqs 1", "sglang:num_prefill_prealloc_queue_reqs 4", "sglang:num_prefill_bootstrap_queue_reqs 4"}, "5/-/-"},
		"sglang, other usages":   {engine.SGLang, []string{"sglang:num_running_reqs 1", "sglang:swa_token_usage 0.9", "sglang:token_usage_x 0.9", "sglang:num_used_tokens 5"}, "-/1/-"},
		"triton, no state":       {engine.Triton, []string{"nv_trt_llm_request_metrics 7", `nv_trt_llm_request_metrics{request_type="scheduled"} 2`}, "-/2/-"},
		"triton, two models": {engine.Triton, []string{`nv_trt_llm_request_metrics{model="a",request_type="scheduled"} 2`,
			`nv_trt_llm_request_metrics{model="b",request_type="scheduled"} 3`}, "-/5/-"},
		"llama.cpp, underscore": {engine.LlamaCPP, []string{"llamacpp_requests_processing 2"}, "-/2/-"},
		"tokenspeed, vllm names": {engine.TokenSpeed, []string{"tokenspeed:num_requests_running 2",
			`tokenspeed:num_requests_waiting{engine="0"} 3`, `tokenspeed:num_requests_waiting{engine="1"} 3`}, "6/2/-"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := engine.Parse(tc.kind, []byte(strings.Join(tc.lines, "\n")+"\n"), sent)
			require.NoError(t, err)
			assert.Equal(t, tc.want, load(s))
		})
	}
}

// Used tokens and a share that disagree are about different things, and the share is the one to go by.
func TestUsedAgainstShare(t *testing.T) {
	for name, tc := range map[string]struct{ used, share, size, want string }{
		"agree":         {"50", "0.5", "100", "used=50 size=100 kv=0.5"},
		"rounded":       {"51.5", "0.5", "100", "used=51.5 size=100 kv=0.5"},
		"disagree":      {"1", "0.4875", "100", "size=100 kv=0.4875"},
		"used is above": {"90", "0.5", "100", "size=100 kv=0.5"},
		"no size":       {"1", "0.5", "", "used=1 kv=0.5"},
		"no share":      {"1", "", "100", "used=1 size=100"},
	} {
		var lines []string
		for family, v := range map[string]string{"num_used_tokens": tc.used, "token_usage": tc.share, "max_total_num_tokens": tc.size} {
			if v != "" {
				lines = append(lines, "sglang:"+family+" "+v+"\n")
			}
		}
		s, err := engine.Parse(engine.SGLang, []byte(strings.Join(lines, "")), sent)
		require.NoError(t, err)
		assert.Equal(t, tc.want, whole(s), name)
	}
}

func TestLabelFilter(t *testing.T) {
	body := payload(t, "sglang-gateway.prom")
	p := engine.Parser{Kind: engine.SGLang, Labels: map[string]string{"worker_addr": "http://10.0.0.5:30000", "pid": "of no series"}}
	require.NoError(t, p.Validate())
	s, err := p.Parse(strings.NewReader(string(body)), sent)
	require.NoError(t, err)
	assert.Equal(t, "run=8 wait=5 kv=0.6", whole(s))
	p.Labels["worker_addr"] = "x"
	p.Model = "org/model"
	_, err = p.Parse(strings.NewReader(string(body)), sent)
	require.ErrorIs(t, err, engine.ErrNoSignals)
	assert.EqualError(t, err, `engine: no signals of the engine sglang for Model "org/model", label pid="of no series", label worker_addr="x"`)
	p.Labels[""] = "x"
	assert.EqualError(t, p.Validate(), "engine: Labels has a label without a name")
}

// The recorded payloads of real servers are not a part of the module.
func TestRecordedPayloads(t *testing.T) {
	const dir = "../../../shared/metrics"
	for name, tc := range map[string]struct {
		kind engine.Kind
		want string // waiting/running/kv
	}{
		"vllm-v0-0.4":                         {engine.VLLM, "0/0/0"},
		"vllm-v1-0.10-deprecated-and-created": {engine.VLLM, "-/-/9.75010481363281e-06"},
		"vllm-v1-dp4-even":                    {engine.VLLM, "0/32/-"},
		"vllm-v1-dp4-skewed":                  {engine.VLLM, "0/32/-"},
		"vllm-v1-waiting-by-reason-wedged":    {engine.VLLM, "6/0/0"},
		"vllm-v1-sleep-state":                 {engine.VLLM, "-/-/0"},
		"vllm-lora-requests-info":             {engine.VLLM, "-/-/-"},
		"vllm-lora-residency-proposed":        {engine.VLLM, "-/-/-"},
		"vllm-simulator":                      {engine.VLLM, "0/0/-"},
		"sglang-0.3-name-label":               {engine.SGLang, "-/-/-"}, // limits only: it names no load
		"sglang-0.4-docs-overloaded":          {engine.SGLang, "2826/162/0.28"},
		"sglang-0.4.4-engine-type":            {engine.SGLang, "-/0/0"},
		"sglang-0.5-dp8":                      {engine.SGLang, "0/-/-"},
		"triton-trtllm-inflight":              {engine.Triton, "1/1/0.4875"},
		"trtllm-serve-1.3-names":              {engine.TRTLLM, "1/3/0.42"},
		"trtllm-serve-json-not-prometheus":    {engine.TRTLLMIterations, "0/1/0.0001306904813766064"},
		"tgi-2.x":                             {engine.TGI, "0/0/-"},
		"llamacpp-2025-01-load":               {engine.LlamaCPP, "0/0/-"},
		"lmdeploy-names":                      {engine.LMDeploy, "1/2/0.25"},
	} {
		t.Run(name, func(t *testing.T) {
			body, err := os.ReadFile(filepath.Join(dir, name+".txt"))
			if errors.Is(err, os.ErrNotExist) {
				t.Skip("no recorded payloads here")
			}
			require.NoError(t, err)
			if tc.kind == engine.TRTLLMIterations {
				for _, kind := range []engine.Kind{engine.TRTLLM, engine.VLLM, engine.Triton, engine.SGLang} {
					_, err := engine.Parse(kind, body, sent)
					require.ErrorIs(t, err, engine.ErrNotPrometheus)
					require.ErrorIs(t, err, engine.ErrJSON)
				}
				_, body, _ = bytes.Cut(body, []byte("\n")) // the line that tells the source
			}
			kind, err := engine.Detect(body)
			require.NoError(t, err)
			assert.Equal(t, tc.kind, kind)
			s, err := engine.Parse(tc.kind, body, sent)
			require.NoError(t, err)
			assert.Equal(t, tc.want, load(s))
			switch name {
			case "sglang-0.3-name-label":
				assert.Equal(t, "size=570979 max=2231", whole(s))
			case "triton-trtllm-inflight":
				assert.Equal(t, "run=1 wait=1 size=399296 kv=0.4875 max=512", whole(s))
			case "sglang-0.5-dp8":
				assert.Len(t, s.Ranks, 8)
			case "vllm-v1-sleep-state":
				assert.Equal(t, telemetry.TriNo, s.Asleep)
			case "vllm-lora-residency-proposed":
				assert.Equal(t, []telemetry.Adapter{{ID: "adapter-a", State: telemetry.AdapterReady, Rank: 16},
					{ID: "adapter-b", State: telemetry.AdapterCached, Rank: 16}}, s.Adapters.Adapters)
			case "vllm-lora-requests-info":
				rep, err := engine.Parser{}.Report(strings.NewReader(string(body)), sent)
				require.NoError(t, err)
				assert.Equal(t, []string{"test-lora"}, rep.Activity.Running)
				assert.Empty(t, rep.Activity.Waiting)
				assert.Equal(t, 1, rep.AdapterSlots)
				assert.False(t, s.Adapters.Known)
			}
		})
	}
}
