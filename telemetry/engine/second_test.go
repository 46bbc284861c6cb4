package engine_test

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
)

// The second reading of a document: no table of the package, no parser of it, and no thought of speed.

type secondKind struct {
	kind                 engine.Kind
	running, waiting, kv []string // full names in order of preference, a label condition behind a bar
	ranks, models        []string
}

var secondKinds = [...]secondKind{
	{engine.VLLM, prefixed("num_requests_running", "vllm:", "ray_vllm:", "ray_vllm_"),
		prefixed("num_requests_waiting", "vllm:", "ray_vllm:", "ray_vllm_"),
		append(prefixed("kv_cache_usage_perc", "vllm:", "ray_vllm:", "ray_vllm_"),
			prefixed("gpu_cache_usage_perc", "vllm:", "ray_vllm:", "ray_vllm_")...),
		[]string{"engine", "ReplicaId"}, []string{"model_name"}},
	{engine.SGLang, prefixed("num_running_reqs", "sglang:", "sglang_"), nil, prefixed("token_usage", "sglang:", "sglang_"),
		[]string{"dp_rank", "worker_addr"}, []string{"model_name", "name"}},
	{engine.Triton, []string{"nv_trt_llm_request_metrics|request_type=scheduled"}, []string{"nv_trt_llm_request_metrics|request_type=waiting"},
		[]string{"nv_trt_llm_kv_cache_block_metrics|kv_cache_block_type=fraction"}, nil, []string{"model"}},
	{engine.TRTLLM, []string{"trtllm_num_requests_running"}, []string{"trtllm_num_requests_waiting"},
		[]string{"trtllm_kv_cache_utilization"}, nil, []string{"model_name"}},
	{engine.TGI, []string{"tgi_batch_current_size"}, []string{"tgi_queue_size"}, nil, nil, nil},
	{engine.LlamaCPP, prefixed("requests_processing", "llamacpp:", "llamacpp_"), prefixed("requests_deferred", "llamacpp:", "llamacpp_"),
		prefixed("kv_cache_usage_ratio", "llamacpp:", "llamacpp_"), nil, []string{"model"}},
	{engine.LMDeploy, []string{"lmdeploy:num_requests_running"}, []string{"lmdeploy:num_requests_waiting"},
		[]string{"lmdeploy:gpu_cache_usage_perc"}, []string{"engine"}, []string{"model_name"}},
}

func prefixed(name string, prefixes ...string) (out []string) {
	for _, p := range prefixes {
		out = append(out, p+name)
	}
	return out
}

type secondSample struct {
	labels map[string]string
	value  float64
}

// secondLine splits a sample line that is known to be valid.
func secondLine(line string) (name string, s secondSample) {
	s.labels = make(map[string]string)
	i := 0
	skip := func() {
		for i < len(line) && (line[i] == ' ' || line[i] == '\t') {
			i++
		}
	}
	for i < len(line) && !strings.ContainsRune(" \t{", rune(line[i])) {
		i++
	}
	name = line[:i]
	skip()
	if i < len(line) && line[i] == '{' {
		i++
		for skip(); line[i] != '}'; skip() {
			if line[i] == ',' {
				i++
				continue
			}
			start := i
			for line[i] != '=' {
				i++
			}
			label := strings.TrimSpace(line[start:i])
			i++
			skip()
			i++ // the quote
			var v strings.Builder
			for ; line[i] != '"'; i++ {
				if line[i] != '\\' {
					v.WriteByte(line[i])
					continue
				}
				if i++; line[i] == 'n' {
					v.WriteByte('\n')
				} else {
					v.WriteByte(line[i])
				}
			}
			i++
			s.labels[label] = v.String()
		}
		i++
	}
	s.value, _ = strconv.ParseFloat(strings.Fields(line[i:])[0], 64)
	return name, s
}

// second returns the figure of each rank; share says that it is the greatest rather than the sum.
func second(k secondKind, samples map[string][]secondSample, names []string, share bool) map[string]float64 {
	for _, name := range names {
		name, condition, _ := strings.Cut(name, "|")
		label, value, _ := strings.Cut(condition, "=")
		byModel := make(map[string]map[string]float64)
		for _, s := range samples[name] {
			if label != "" && s.labels[label] != value {
				continue
			}
			var ranks []string
			for _, l := range k.ranks {
				if s.labels[l] != "" {
					ranks = append(ranks, s.labels[l])
				}
			}
			model := ""
			for _, l := range k.models {
				if model == "" {
					model = s.labels[l]
				}
			}
			rank := strings.Join(ranks, "/")
			if byModel[rank] == nil {
				byModel[rank] = make(map[string]float64)
			}
			if old, ok := byModel[rank][model]; ok {
				byModel[rank][model] = max(old, s.value)
			} else {
				byModel[rank][model] = s.value
			}
		}
		if len(byModel) == 0 {
			continue
		}
		out := make(map[string]float64)
		for rank, models := range byModel {
			var order []string
			for m := range models {
				order = append(order, m)
			}
			sort.Strings(order)
			out[rank] = models[order[0]]
			for _, m := range order[1:] {
				if share {
					out[rank] = max(out[rank], models[m])
				} else {
					out[rank] += models[m]
				}
			}
		}
		return out
	}
	return nil
}

// secondReading returns the figures without a rank, then those of all ranks, sorted.
func secondReading(k secondKind, body []byte) string {
	wanted := make(map[string]bool)
	for _, n := range slices.Concat(k.running, k.waiting, k.kv) {
		name, _, _ := strings.Cut(n, "|")
		wanted[name] = true
	}
	samples := make(map[string][]secondSample)
	for _, line := range strings.Split(string(body), "\n") {
		line = strings.TrimSpace(line)
		end := strings.IndexFunc(line, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == ':')
		})
		if end > 0 && wanted[line[:end]] && strings.ContainsAny(line[end:end+1], " \t{") {
			name, s := secondLine(line)
			samples[name] = append(samples[name], s)
		}
	}
	figs := []map[string]float64{second(k, samples, k.running, false), second(k, samples, k.waiting, false), second(k, samples, k.kv, true)}
	ranks := make(map[string]bool)
	for _, f := range figs {
		for rank := range f {
			if rank != "" {
				ranks[rank] = true
			}
		}
	}
	show := func(rank string, others ...string) string {
		out := ""
		for _, f := range figs {
			v, ok := f[rank]
			for _, o := range others {
				if !ok {
					v, ok = f[o]
				}
			}
			if ok {
				out += fmt.Sprint(v)
			}
			out += "/"
		}
		return out
	}
	if len(ranks) == 1 {
		for rank := range ranks {
			return show(rank, "")
		}
	}
	var lines []string
	for rank := range ranks {
		lines = append(lines, show(rank))
	}
	sort.Strings(lines)
	for _, f := range figs {
		if len(f) > 1 {
			delete(f, "") // a total of what the ranks say
		}
	}
	return strings.Join(append([]string{show("")}, lines...), "\n")
}

// firstReading prints what the package read in the same form. Waiting is left out for SGLang, which has queues beside.
func firstReading(k secondKind, s telemetry.Snapshot) string {
	show := func(run, wait, kv telemetry.Reading) string {
		if k.waiting == nil {
			wait = telemetry.Reading{}
		}
		return strings.ReplaceAll(text(run)+"/"+text(wait)+"/"+text(kv)+"/", "-/", "/")
	}
	var lines []string
	for _, r := range s.Ranks {
		if line := show(r.Running, r.Waiting, r.KVShare); line != "///" {
			lines = append(lines, line)
		}
	}
	own := show(s.Running, s.Waiting, s.KVShare)
	if len(lines) == 1 && own == "///" {
		return lines[0]
	}
	sort.Strings(lines)
	return strings.Join(append([]string{own}, lines...), "\n")
}

func agree(t require.TestingT, k secondKind, body []byte) (read bool) {
	s, err := engine.Parse(k.kind, body, sent)
	if err != nil {
		return false
	}
	first, other := firstReading(k, s), secondReading(k, body)
	if len(s.Ranks) > 0 && strings.Count(first, "\n") != len(s.Ranks) {
		return false // other families name more ranks, so that a figure without one is of the whole engine
	}
	require.Equal(t, other, first, "%s of %q", k.kind, body)
	return true
}

// FuzzSecondReading reads every document twice.
func FuzzSecondReading(f *testing.F) {
	for _, p := range payloads {
		if strings.HasSuffix(p.name, ".prom") {
			addLines(f, p.name)
		}
	}
	f.Add([]byte("vllm:num_requests_running {engine = \"0\" , a=\"b\\\\\\\"\\n,}\",} 1e1 1700000000000\n vllm:num_requests_running{engine=\"1\"} NaN\r\n"))
	f.Add([]byte("vllm:kv_cache_usage_perc+1\nvllm:kv_cache_usage_perc 0\n"))
	f.Add([]byte("sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"1\"} 3\nsglang_num_running_reqs 4\nsglang:num_running_reqs{name=\"}\"} +Inf\n"))
	f.Add([]byte("lmdeploy:num_requests_running{engine=\"\",model_name=\"b\"} .5\nlmdeploy:num_requests_running{model_name=\"a\"} 5.\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, k := range secondKinds {
			agree(t, k, body)
		}
	})
}

// TestSecondReading reads generated documents of every kind twice: shuffled lines, repeated ranks, odd labels, time
// stamps, exponents, invalid values, alias names beside each other, and a lot of what must not matter.
func TestSecondReading(t *testing.T) {
	values := []string{"0", "3", "17.0", "2.5e+01", "1E2", "NaN", "+Inf", "-Inf", "-1", "9.75010481363281e-06", ".5", "1_000"}
	escaped := []string{`a`, `0`, `1`, ``, `with \"quotes\"`, `back\\slash`, `new\nline`, `}`, `{`, `,`, `=`, ` 7 `, `ä`}
	read := 0
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.SampledFrom(secondKinds[:]).Draw(t, "kind")
		var lines []string
		for range rapid.IntRange(1, 12).Draw(t, "lines") {
			name := rapid.SampledFrom(slices.Concat(k.running, k.waiting, k.kv)).Draw(t, "name")
			name, condition, _ := strings.Cut(name, "|")
			var labels []string
			if l, v, ok := strings.Cut(condition, "="); ok {
				labels = append(labels, fmt.Sprintf("%s=%q", l, v))
			}
			for _, l := range slices.Concat(k.ranks, k.models, []string{"tp_rank", "pid"}) {
				if rapid.Bool().Draw(t, "has "+l) {
					labels = append(labels, fmt.Sprintf(`%s="%s"`, l, rapid.SampledFrom(escaped).Draw(t, l)))
				}
			}
			line := name
			if len(labels) > 0 {
				comma := rapid.SampledFrom([]string{",", " , "}).Draw(t, "comma")
				line += rapid.SampledFrom([]string{"{", " { "}).Draw(t, "brace") + strings.Join(rapid.Permutation(labels).Draw(t, "labels"), comma) +
					rapid.SampledFrom([]string{"}", ",}", " }"}).Draw(t, "end")
			}
			value := rapid.SampledFrom(values[:len(values)-1]).Draw(t, "value")
			if rapid.IntRange(0, 40).Draw(t, "broken") == 0 {
				value = "1_000"
			}
			line += " " + value + rapid.SampledFrom([]string{"", " 1700000000000", "\t-5", "\r"}).Draw(t, "behind")
			lines = append(lines, line)
			if rapid.IntRange(0, 3).Draw(t, "again") == 0 {
				lines = append(lines, line)
			}
			lines = append(lines, rapid.SampledFrom([]string{"", "# HELP x y", "# TYPE " + name + " gauge", name + "_created 1.7e9", name + "_bucket{le=\"1\"} 4",
				"x_" + name + " 9", "not a sample"}).Draw(t, "noise"))
		}
		body := strings.Join(rapid.Permutation(lines).Draw(t, "order"), "\n") + "\n"
		if agree(t, k, []byte(body)) {
			read++
		}
	})
	require.Greater(t, read, 20, "most documents can be read")
}

// TestWhatMustNotMatter changes payloads in ways that change nothing.
func TestWhatMustNotMatter(t *testing.T) {
	bodies := make(map[string][]byte)
	for _, p := range payloads {
		bodies[p.name] = payload(t, p.name)
	}
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SampledFrom(payloads).Draw(t, "payload")
		if !strings.HasSuffix(p.name, ".prom") {
			return
		}
		body := bodies[p.name]
		want, err := engine.Parse(p.kind, body, sent)
		require.NoError(t, err)
		var lines []string
		for line := range strings.Lines(string(body)) {
			line = strings.TrimSpace(line)
			lines = append(lines, line)
			if line == "" || line[0] == '#' {
				continue
			}
			at := strings.LastIndexByte(line, ' ')
			name, value := line[:at], line[at+1:]
			switch rapid.IntRange(0, 5).Draw(t, "change") {
			case 0:
				lines[len(lines)-1] += " 1700000000000"
			case 1:
				v, err := strconv.ParseFloat(value, 64)
				require.NoError(t, err)
				lines[len(lines)-1] = name + " " + strconv.FormatFloat(v, 'E', -1, 64)
			case 2: // another worker of the same rank
				more := `zz_rank="1",esc="\\ \" \n }"`
				if head, tail, labelled := strings.Cut(name, "{"); labelled {
					lines = append(lines, head+"{"+more+","+tail+" "+value)
				} else {
					lines = append(lines, name+"{"+more+"} "+value)
				}
			case 3:
				lines = append(lines, line)
			}
		}
		for range rapid.IntRange(0, 50).Draw(t, "noise") {
			lines = append(lines, fmt.Sprintf("other_exporter_bucket{le=%q} 5", strings.Repeat("9", rapid.IntRange(0, 300).Draw(t, "long"))))
		}
		lines = rapid.Permutation(lines).Draw(t, "order")
		got, err := engine.Parse(p.kind, []byte(strings.Join(lines, "\n")+"\n"), sent)
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
}
