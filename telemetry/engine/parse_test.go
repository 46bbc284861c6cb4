package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
)

var sent = time.Unix(5000, 0)

func payload(t testing.TB, name string) []byte {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return body
}

// text prints a reading, "-" for an unknown one.
func text(r telemetry.Reading) string {
	v, known := r.Value()
	if !known {
		return "-"
	}
	return fmt.Sprint(v)
}

// load prints waiting/running/kv of a whole engine, as a store aggregates them.
func load(s telemetry.Snapshot) string {
	store := telemetry.NewStore(telemetry.StoreConfig{})
	s.Evidence = telemetry.EvidenceVouched
	store.Observe(s.ObservedAt, s, 0)
	st := store.State()
	return strings.Join([]string{text(st.Waiting), text(st.Running), text(st.KVShare)}, "/")
}

func parse(t testing.TB, lines ...string) telemetry.Snapshot {
	t.Helper()
	s, err := engine.Parse(engine.VLLM, []byte(strings.Join(lines, "\n")+"\n"), sent)
	require.NoError(t, err)
	return s
}

func TestWholeDocuments(t *testing.T) {
	s, err := engine.Parse(engine.VLLM, payload(t, "vllm-v1.prom"), sent)
	require.NoError(t, err)
	assert.Equal(t, telemetry.Snapshot{
		ObservedAt: sent, Source: "vllm", Running: telemetry.V(17), Waiting: telemetry.V(4), KVShare: telemetry.V(0.625),
		KVCapacity: telemetry.V(80000), PrefixHitRate: telemetry.V(0.25), Asleep: telemetry.TriNo, Epoch: "1765432101.25",
	}, s)
	s, err = engine.Parse("", payload(t, "vllm-v0.prom"), sent)
	require.NoError(t, err)
	assert.Equal(t, telemetry.Snapshot{
		ObservedAt: sent, Source: "vllm", Running: telemetry.V(3), Waiting: telemetry.V(0), KVShare: telemetry.V(0.25),
		KVCapacity: telemetry.V(16000), GenerationRate: telemetry.V(41.5),
	}, s)
}

func TestLoadSignals(t *testing.T) {
	const run, wait = "vllm:num_requests_running", "vllm:num_requests_waiting"
	for name, tc := range map[string]struct {
		lines []string
		want  string
	}{
		"untyped":          {[]string{run + " 3", wait + " 4"}, "4/3/-"},
		"missing":          {[]string{wait + " 4"}, "4/-/-"},
		"timestamps":       {[]string{run + `{engine="0"} 3 1700000000000`, wait + " 4\t1700000000000"}, "4/3/-"},
		"exponent":         {[]string{"vllm:kv_cache_usage_perc 9.75e-06"}, "-/-/9.75e-06"},
		"blanks and CRLF":  {[]string{"  " + run + " {a=\"b\"}  3\r", "\r", "", wait + "\t4\r"}, "4/3/-"},
		"names alike":      {[]string{wait + "_by_reason 6", wait + "_by_reason oops", wait + "2 7", "x" + wait + " 8", wait + " 1"}, "1/-/-"},
		"name goes on":     {[]string{run + "+9", run + "-9 3", run + ".total 9", run + "/s 9", run + " 1"}, "-/1/-"},
		"created":          {[]string{run + "_created 1.7e9", wait + " 1"}, "1/-/-"},
		"newer name":       {[]string{"vllm:gpu_cache_usage_perc 0.5", "vllm:kv_cache_usage_perc 0.25"}, "-/-/0.25"},
		"older name":       {[]string{"vllm:gpu_cache_usage_perc 0.5"}, "-/-/0.5"},
		"ranks":            {[]string{run + `{engine="1"} 27`, run + `{engine="0"} 5`, wait + `{engine="1"} 2`}, "2/32/-"},
		"greatest share":   {[]string{`vllm:kv_cache_usage_perc{engine="0"} 0.2`, `vllm:kv_cache_usage_perc{engine="1"} 0.8`, `vllm:kv_cache_usage_perc{engine="2"} 0.1`}, "-/-/0.8"},
		"copies":           {[]string{run + `{engine="0",tp_rank="0"} 5`, run + `{engine="0",tp_rank="1"} 5`}, "-/5/-"},
		"models":           {[]string{run + `{model_name="a"} 5`, run + `{model_name="b"} 2`, `vllm:kv_cache_usage_perc{model_name="a"} 0.5`, `vllm:kv_cache_usage_perc{model_name="b"} 0.25`}, "-/7/0.5"},
		"odd rank labels":  {[]string{run + `{engine="x"} 5`, run + `{engine="y"} 2`, run + `{engine="0"} 1`, run + `{engine="00"} 1`}, "-/9/-"},
		"a long line":      {[]string{run + `{x="` + strings.Repeat("y", 150<<10) + `"} 3`, wait + " 4"}, "4/3/-"},
		"some unlabelled":  {[]string{run + `{engine="0"} 5`, wait + " 2"}, "2/5/-"},
		"total, no rank 0": {[]string{run + `{engine="1"} 5`, run + `{engine="2"} 4`, run + " 9", wait + " 2"}, "2/9/-"},
		"total beside":     {[]string{run + `{engine="0"} 5`, run + `{engine="1"} 4`, run + " 9", wait + " 2"}, "2/9/-"},
		"invalid":          {[]string{run + " NaN", wait + " -1", "vllm:kv_cache_usage_perc +Inf"}, "-/-/-"},
		"other exporters":  {[]string{`broken{ 1 2 3`, `{"quoted"} 1`, "go_threads", "# TYPE", run + " 3"}, "-/3/-"},
		"types repeated":   {[]string{"# TYPE " + run + " gauge", run + " 3", "# TYPE " + run + " counter", "# HELP " + run}, "-/3/-"},
		"escaped":          {[]string{run + `{model_name="a\"}\n b"} 3`}, "-/3/-"},
		"summary suffixes": {[]string{"vllm:num_requests_running_sum 9", "vllm:num_requests_running_count 8", run + " 1"}, "-/1/-"},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, load(parse(t, tc.lines...))) })
	}
}

func TestInvalidValuesReachTheStore(t *testing.T) {
	s := parse(t, "vllm:num_requests_running NaN", "vllm:num_requests_waiting -1", "vllm:kv_cache_usage_perc 55",
		`vllm:cache_config_info{kv_cache_size_tokens="9000000000000000"} 1`)
	res := telemetry.NewStore(telemetry.StoreConfig{}).Observe(sent, s, 0)
	assert.Equal(t, []string{"running", "waiting", "kv", "kv-capacity"}, res.Defects)
}

func TestRanksAreKept(t *testing.T) {
	s := parse(t,
		`vllm:num_requests_running{engine="10"} 1`, `vllm:num_requests_running{engine="2"} 2`,
		`vllm:cache_config_info{engine="2",block_size="16",num_gpu_blocks="10"} 1`,
		`vllm:prefix_cache_hits_total{engine="10"} 1`, `vllm:prefix_cache_queries_total{engine="10"} 4`)
	assert.Equal(t, []telemetry.Rank{
		{ID: 2, Running: telemetry.V(2), KVCapacity: telemetry.V(160)},
		{ID: 10, Running: telemetry.V(1), PrefixHitRate: telemetry.V(0.25)},
	}, s.Ranks)
	assert.False(t, s.Running.Known())
	one := parse(t, `vllm:num_requests_running{engine="3"} 2`)
	assert.Empty(t, one.Ranks)
	assert.Equal(t, telemetry.V(2), one.Running)
}

func TestCapacity(t *testing.T) {
	for name, tc := range map[string]struct{ labels, value, want string }{
		"product":         {`block_size="16",num_gpu_blocks="7281"`, "1.0", "116496"},
		"tokens first":    {`block_size="16",num_gpu_blocks="118",kv_cache_size_tokens="90000"`, "1", "90000"},
		"tokens not set":  {`block_size="16",num_gpu_blocks="10",kv_cache_size_tokens="None"`, "1", "160"},
		"no blocks":       {`block_size="16",num_gpu_blocks="None"`, "1", "-"},
		"no block size":   {`num_gpu_blocks="118"`, "1", "-"},
		"zero":            {`block_size="16",num_gpu_blocks="0"`, "1", "-"},
		"negative":        {`block_size="-16",num_gpu_blocks="-2"`, "1", "-"},
		"series is off":   {`block_size="16",num_gpu_blocks="10"`, "0", "-"},
		"series is a NaN": {`block_size="16",num_gpu_blocks="10"`, "NaN", "-"},
	} {
		s := parse(t, "vllm:cache_config_info{"+tc.labels+"} "+tc.value)
		assert.Equal(t, tc.want, text(s.KVCapacity), name)
	}
	s := parse(t, `vllm:num_requests_running{engine="0"} 1`, `vllm:num_requests_running{engine="1"} 1`,
		`vllm:cache_config_info{block_size="16",num_gpu_blocks="10"} 1`)
	assert.Equal(t, "-", text(s.KVCapacity), "of a rank or of the whole engine")
}

func TestPrefixHitRate(t *testing.T) {
	const hits, queries = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
	assert.Equal(t, "0.25", text(parse(t, hits+" 1", queries+" 4").PrefixHitRate))
	assert.Equal(t, "0.5", text(parse(t, "vllm:prefix_cache_hits 2", "vllm:prefix_cache_queries 4").PrefixHitRate))
	assert.Equal(t, "-", text(parse(t, hits+" 0", queries+" 0").PrefixHitRate))
	assert.Equal(t, "-", text(parse(t, hits+" 3").PrefixHitRate))
	assert.Equal(t, "-", text(parse(t, "vllm:gpu_prefix_cache_hits_total 1", queries+" 4").PrefixHitRate))
}

func TestEvidence(t *testing.T) {
	const idle = "vllm:num_requests_running 0"
	for _, line := range []string{"vllm:generation_tokens_total 1", "vllm:prompt_tokens 1", "vllm:prefix_cache_hits 8",
		"vllm:prefix_cache_queries_total 1", `vllm:request_success_total{finished_reason="stop"} 2`} {
		assert.Equal(t, telemetry.EvidenceVouched, parse(t, idle, line).Evidence, line)
	}
	for _, line := range []string{"", "vllm:generation_tokens_total 0", "vllm:generation_tokens_created 1.7e9",
		"vllm:prompt_tokens_total NaN"} {
		assert.Equal(t, telemetry.EvidenceNone, parse(t, idle, line).Evidence, line)
	}
}

func TestEpoch(t *testing.T) {
	const idle = "vllm:num_requests_running 0"
	for want, lines := range map[string]string{
		"1753795326.93": "process_start_time_seconds 1.75379532693e+09",
		"20":            "process_start_time_seconds{pid=\"1\"} 10\nprocess_start_time_seconds{pid=\"2\"} 20",
		"":              "process_start_time_seconds NaN\nprocess_start_time_seconds +Inf\nprocess_start_time_seconds -5",
	} {
		assert.Equal(t, want, parse(t, lines, idle).Epoch)
	}
	assert.Empty(t, parse(t, idle).Epoch)
}

func TestSleepState(t *testing.T) {
	line := func(rank, state string, value string) string {
		return fmt.Sprintf(`vllm:engine_sleep_state{engine=%q,sleep_state=%q} %s`, rank, state, value)
	}
	for name, tc := range map[string]struct {
		lines []string
		want  telemetry.Tri
	}{
		"awake":          {[]string{line("0", "awake", "1"), line("0", "discard_all", "0")}, telemetry.TriNo},
		"level 1":        {[]string{line("0", "awake", "0"), line("0", "weights_offloaded", "1")}, telemetry.TriYes},
		"not awake":      {[]string{line("0", "awake", "0")}, telemetry.TriYes},
		"level 2 alone":  {[]string{line("0", "discard_all", "1")}, telemetry.TriYes},
		"one of ranks":   {[]string{line("0", "awake", "1"), line("1", "awake", "0")}, telemetry.TriYes},
		"contradiction":  {[]string{line("0", "awake", "1"), line("0", "discard_all", "1")}, telemetry.TriUnknown},
		"both values":    {[]string{line("0", "awake", "1"), line("0", "awake", "0")}, telemetry.TriUnknown},
		"nothing useful": {[]string{line("0", "discard_all", "0"), line("0", "awake", "NaN")}, telemetry.TriUnknown},
	} {
		for range 8 { // ranks are visited in random order
			assert.Equal(t, tc.want, parse(t, tc.lines...).Asleep, name)
		}
	}
}

func TestAdapters(t *testing.T) {
	line := func(name, level, rest string) string {
		return fmt.Sprintf(`vllm:lora_adapter_loaded{adapter_name=%q,level=%q,rank="16"%s`, name, level, rest)
	}
	s := parse(t, line("b", "cpu", "} 1"), line("a", "gpu", `,pinned="false"} 1`), line("a", "cpu", "} 1"),
		line("c", "gpu", "} 0"), line("d", "disk", "} 1"), line("d", "gpu", "} 0"), line("", "gpu", "} 1"), line("e", "gpu", "} NaN"),
		line("f", "gpu", `,engine="0"} 1`), line("f", "cpu", `,engine="1"} 1`), line("g", "gpu", `,engine="1"} 1`))
	assert.Equal(t, telemetry.AdapterReport{Known: true, Adapters: []telemetry.Adapter{
		{ID: "a", State: telemetry.AdapterReady, Rank: 16}, {ID: "b", State: telemetry.AdapterCached, Rank: 16},
		{ID: "c", State: telemetry.AdapterUnloaded, Rank: 16}, {ID: "d", State: telemetry.AdapterUnknown, Rank: 16},
		{ID: "f", State: telemetry.AdapterCached, Rank: 16}, {ID: "g", State: telemetry.AdapterUnloaded, Rank: 16},
	}}, s.Adapters)
	s = parse(t, line("a", "gpu", `,engine="0"} 1`), `vllm:num_requests_running{engine="0"} 1`, `vllm:num_requests_running{engine="1"} 1`)
	assert.Equal(t, telemetry.AdapterUnloaded, s.Adapters.Adapters[0].State, "rank 1 has none")
	assert.Equal(t, telemetry.AdapterReport{Known: true}, parse(t, "# TYPE vllm:lora_adapter_loaded gauge").Adapters)
	assert.Equal(t, telemetry.AdapterReport{}, parse(t, "# HELP vllm:lora_adapter_loaded text",
		"vllm:num_requests_running 0").Adapters)
}

func TestAdapterActivityIsNotResidency(t *testing.T) {
	line := func(rank, running, waiting, value string) string {
		return fmt.Sprintf(`vllm:lora_requests_info{engine=%q,running_lora_adapters=%q,waiting_lora_adapters=%q} %s`,
			rank, running, waiting, value)
	}
	read := func(lines ...string) engine.Report {
		rep, err := engine.Parser{}.Report(strings.NewReader(strings.Join(lines, "\n")+"\n"), sent)
		require.NoError(t, err)
		return rep
	}
	rep := read(line("0", "", "", "1.7e9"), line("0", "b, a", "b", "1.7000001e9"), line("0", "c", "c", "1.70000001e9"),
		line("0", "z", "z", "NaN"), line("1", "a", "d", "1"))
	assert.Equal(t, engine.Activity{Known: true, Running: []string{"a", "b"}, Waiting: []string{"b", "d"}}, rep.Activity)
	assert.False(t, rep.Snapshot.Adapters.Known)
	assert.Equal(t, read(line("0", "a", "", "1"), line("0", "b", "", "1")).Activity,
		read(line("0", "b", "", "1"), line("0", "a", "", "1")).Activity, "equally new")
	assert.Equal(t, engine.Activity{}, read("vllm:num_requests_running 0").Activity)
}

func TestAdaptersOfRequestsAreOneSet(t *testing.T) {
	a := engine.Activity{Running: []string{"a", "c"}, Waiting: []string{"a", "b"}}
	assert.Equal(t, []string{"a", "b", "c"}, a.Active())
	assert.Equal(t, []string{"a", "c"}, a.Running, "unchanged")
	assert.Empty(t, engine.Activity{}.Active())
	rep, err := engine.Parser{}.Report(strings.NewReader(`vllm:lora_requests_info{max_lora="4",running_lora_adapters=",a,,b ,",waiting_lora_adapters=" "} 5`+"\n"), sent)
	require.NoError(t, err)
	assert.Equal(t, engine.Activity{Known: true, Running: []string{"a", "b"}}, rep.Activity)
}

func TestAdapterSlots(t *testing.T) {
	info := func(slots, value string) string {
		return fmt.Sprintf(`vllm:lora_requests_info{max_lora=%q,running_lora_adapters="",waiting_lora_adapters=""} %s`, slots, value)
	}
	for name, tc := range map[string]struct {
		lines []string
		want  int
	}{
		"in a label":   {[]string{info("4", "1.7e9")}, 4},
		"least":        {[]string{info("4", "1"), info("2", "2"), info("3", "3")}, 2},
		"own family":   {[]string{info("4", "1"), "vllm:max_gpu_lora_adapters 8"}, 8},
		"none":         {[]string{info("0", "1"), info("None", "1"), info("-1", "1")}, 0},
		"not believed": {[]string{"vllm:max_gpu_lora_adapters NaN", info("4", "1")}, 4},
		"absurd":       {[]string{"vllm:max_gpu_lora_adapters 1e30"}, 0},
	} {
		rep, err := engine.Parser{}.Report(strings.NewReader(strings.Join(tc.lines, "\n")+"\n"), sent)
		require.NoError(t, err)
		assert.Equal(t, tc.want, rep.AdapterSlots, name)
	}
}

func TestModelFilter(t *testing.T) {
	body := strings.Join([]string{`vllm:num_requests_running{model_name="a"} 5`, `vllm:num_requests_running{model_name="b"} 2`,
		`vllm:gpu_cache_usage_perc{model_name="b"} 0.5`, `vllm:kv_cache_usage_perc{model_name="a"} 0.25`,
		`vllm:cache_config_info{block_size="16",num_gpu_blocks="10"} 1`, ""}, "\n")
	for model, want := range map[string]string{"a": "-/5/0.25", "b": "-/2/0.5", "": "-/7/0.25"} {
		s, err := engine.Parser{Model: model}.Parse(strings.NewReader(body), sent)
		require.NoError(t, err)
		assert.Equal(t, want, load(s))
		assert.Equal(t, "160", text(s.KVCapacity))
	}
	_, err := engine.Parser{Model: "c"}.Parse(strings.NewReader(`vllm:num_requests_running{model_name="a"} 5`+"\n"), sent)
	require.ErrorIs(t, err, engine.ErrNoSignals)
	assert.EqualError(t, err, `engine: no signals of the engine vllm for Model "c"`)
}

func TestWrongDocuments(t *testing.T) {
	for name, tc := range map[string]struct {
		body string
		want error
	}{
		"empty":                 {"", engine.ErrEmpty},
		"blank":                 {" \r\n\t\n", engine.ErrEmpty},
		"json":                  {`[{"iter": 1, "gpuMemUsage": 3, "kvCacheStats": {"usedNumBlocks": 0}}]`, engine.ErrNotPrometheus},
		"json in lines":         {"{\n  \"num_requests_running\": 3,\n  \"x\": [\n    1\n  ]\n}\n", engine.ErrNotPrometheus},
		"html":                  {"<html><body>vllm</body></html>", engine.ErrNotPrometheus},
		"html around a payload": {"\n<html><pre>\nvllm:num_requests_running 3\n</pre></html>\n", engine.ErrNotPrometheus},
		"prose":                 {"404 page not found\n", engine.ErrNotPrometheus},
		"one word":              {"Unauthorized", engine.ErrNotPrometheus},
		"comments":              {"# HELP x y\n# EOF\n", engine.ErrNotPrometheus},
		"binary":                {"\x1f\x8b\x08\x00\xff\xfe vllm:num_requests_running 3\x00", engine.ErrNotPrometheus},
		"another engine":        {"sglang:num_running_reqs{name=\"x\"} 3\n", engine.ErrNoSignals},
		"only the process":      {"process_start_time_seconds 1.7e9\n", engine.ErrNoSignals},
		"only other families":   {"vllm:num_requests_waiting_by_reason{reason=\"a\"} 3\n", engine.ErrNoSignals},
		"only a type":           {"# TYPE vllm:num_requests_running gauge\n", engine.ErrNoSignals},
		"no value":              {"vllm:num_requests_running\nvllm:num_requests_waiting 3\n", engine.ErrNotPrometheus},
		"no number":             {"vllm:num_requests_running three\n", engine.ErrNotPrometheus},
		"open label":            {"vllm:num_requests_running{engine=\"0\n", engine.ErrNotPrometheus},
		"bad label":             {"vllm:num_requests_running{engine=0} 1\n", engine.ErrNotPrometheus},
		"bad timestamp":         {"vllm:num_requests_running 1 now\n", engine.ErrNotPrometheus},
		"not utf-8":             {"vllm:num_requests_running{model_name=\"\xff\"} 1\n", engine.ErrNotPrometheus},
		"cut off":               {"vllm:num_requests_waiting 3\nvllm:num_requests_running 2", engine.ErrNotPrometheus},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := engine.Parse(engine.VLLM, []byte(tc.body), sent)
			require.ErrorIs(t, err, tc.want)
			assert.True(t, strings.HasPrefix(err.Error(), "engine: "), "%v", err)
			assert.Equal(t, telemetry.Snapshot{}, s)
		})
	}
}

func TestWhatAWrongDocumentIs(t *testing.T) {
	for body, tc := range map[string]struct {
		want error
		text string
	}{
		`[{"iter": 1}]`:                                    {engine.ErrJSON, "engine: not a Prometheus text document: it is JSON"},
		"# a comment\n{\"a\":\n 1}":                        {engine.ErrJSON, "engine: not a Prometheus text document: it is JSON"},
		"{\n  \"x\": [\nvllm:num_requests_running 3\n]}\n": {engine.ErrJSON, "engine: not a Prometheus text document: it is JSON"},
		" []\n": {engine.ErrNoEntries, "engine: not a Prometheus text document: it is JSON with no entries"},
		"{}":    {engine.ErrJSON, "engine: not a Prometheus text document: it is JSON with no entries"},
		"\n<!DOCTYPE html>\nvllm:num_requests_running 3\n": {engine.ErrMarkup, "engine: not a Prometheus text document: it is markup"},
	} {
		for _, kind := range []engine.Kind{engine.VLLM, engine.SGLang, engine.Triton, engine.TRTLLM, engine.TGI, engine.LlamaCPP} {
			_, err := engine.Parse(kind, []byte(body), sent)
			require.ErrorIs(t, err, tc.want)
			require.ErrorIs(t, err, engine.ErrNotPrometheus)
			require.EqualError(t, err, tc.text)
		}
	}
	s, err := engine.Parse(engine.VLLM, []byte("{\"some.name\",a=\"b\"} 1\nvllm:num_requests_running 3\n"), sent)
	require.NoError(t, err, "a quoted name is no JSON")
	assert.Equal(t, "-/3/-", load(s))
}

func TestCutOffAnywhere(t *testing.T) {
	body := payload(t, "vllm-v1.prom")
	full, err := engine.Parse(engine.VLLM, body, sent)
	require.NoError(t, err)
	for n := range body {
		s, err := engine.Parse(engine.VLLM, body[:n], sent)
		if err != nil {
			continue
		}
		for i, pair := range [][2]telemetry.Reading{{s.Running, full.Running}, {s.Waiting, full.Waiting},
			{s.KVShare, full.KVShare}, {s.KVCapacity, full.KVCapacity}, {s.PrefixHitRate, full.PrefixHitRate}} {
			require.True(t, !pair[0].Known() || pair[0] == pair[1], "figure %d is %v after %d bytes", i, pair[0], n)
		}
		require.True(t, s.Epoch == "" || s.Epoch == full.Epoch)
	}
}

func TestLimits(t *testing.T) {
	body := "vllm:num_requests_running 3\n# " + strings.Repeat("x", 200<<10) + "\nvllm:num_requests_waiting 4\n"
	s, err := engine.Parser{MaxBytes: int64(len(body))}.Parse(iotest.HalfReader(strings.NewReader(body)), sent)
	require.NoError(t, err)
	assert.Equal(t, "4/3/-", load(s))
	for _, limit := range []int64{1, 100, int64(len(body) - 1)} {
		_, err = engine.Parser{MaxBytes: limit}.Parse(strings.NewReader(body), sent)
		assert.ErrorIs(t, err, engine.ErrTooLarge, "%d", limit)
	}
	_, err = engine.Parser{MaxBytes: math.MaxInt64}.Parse(strings.NewReader(body), sent)
	assert.NoError(t, err)
	_, err = engine.Parse(engine.VLLM, bytes.Repeat([]byte("a"), engine.DefaultMaxBytes+1), sent)
	assert.ErrorIs(t, err, engine.ErrTooLarge)
}

func TestReaderErrors(t *testing.T) {
	broken := errors.New("connection reset")
	_, err := engine.Parser{}.Parse(iotest.ErrReader(broken), sent)
	assert.ErrorIs(t, err, broken)
}

func TestConfiguration(t *testing.T) {
	require.NoError(t, engine.Parser{}.Validate())
	require.NoError(t, engine.Parser{Kind: engine.VLLM, MaxBytes: 1}.Validate())
	err := engine.Parser{Kind: "abacus", MaxBytes: -1}.Validate()
	require.ErrorIs(t, err, engine.ErrKind)
	assert.ErrorContains(t, err, `engine: Kind "abacus": unknown kind`)
	assert.ErrorContains(t, err, "engine: MaxBytes -1 is negative")
	_, err = engine.Parse("abacus", []byte("x 1\n"), sent)
	assert.ErrorIs(t, err, engine.ErrKind)
}
