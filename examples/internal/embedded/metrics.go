package embedded

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/isobar-go/isobar/internal/sim"
)

// figures are what the engine model does not count. Guarded by Engine.mu.
type figures struct {
	aborted    int64
	stopped    int64 // answers that ended by themselves
	cut        int64 // answers that ended at max_tokens
	firstToken histogram
	endToEnd   histogram
}

func newFigures() figures {
	return figures{
		firstToken: newHistogram(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160),
		endToEnd:   newHistogram(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480),
	}
}

// histogram counts observations by upper bound.
type histogram struct {
	bounds []float64
	counts []int64 // by bucket, not cumulative; one more than bounds
	sum    float64
}

func newHistogram(bounds ...float64) histogram {
	return histogram{bounds: bounds, counts: make([]int64, len(bounds)+1)}
}

func (h *histogram) observe(v float64) {
	i := 0
	for i < len(h.bounds) && v > h.bounds[i] {
		i++
	}
	h.counts[i]++
	h.sum += v
}

// exposition writes the Prometheus text format.
type exposition struct {
	bytes.Buffer
	labels string
}

func (x *exposition) head(name, kind, help string) {
	fmt.Fprintf(x, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func (x *exposition) value(name, kind, help string, v float64) {
	x.head(name, kind, help)
	x.sample(name, "", v)
}

func (x *exposition) sample(name, more string, v float64) {
	labels := strings.TrimPrefix(x.labels+more, ",")
	if labels != "" {
		labels = "{" + labels + "}"
	}
	fmt.Fprintf(x, "%s%s %s\n", name, labels, strconv.FormatFloat(v, 'g', -1, 64))
}

func (x *exposition) histogram(name, help string, h *histogram) {
	x.head(name, "histogram", help)
	total := int64(0)
	for i, n := range h.counts {
		le := "+Inf"
		if i < len(h.bounds) {
			le = strconv.FormatFloat(h.bounds[i], 'g', -1, 64)
		}
		total += n
		x.sample(name+"_bucket", `,le="`+le+`"`, float64(total))
	}
	x.sample(name+"_sum", "", h.sum)
	x.sample(name+"_count", "", float64(total))
}

func (e *Engine) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(e.metrics())
}

// metrics returns the state in the names and labels of the dialect.
func (e *Engine) metrics() []byte {
	d := e.cfg.dialect()
	x := &exposition{}
	if d.labels != nil {
		x.labels = d.labels(quoteLabel(e.cfg.Model))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	d.write(e, x, e.sim.State())
	return x.Bytes()
}

// vllmLocked writes the names of vLLM v1.
func (e *Engine) vllmLocked(x *exposition, s sim.State) {
	x.value("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", float64(s.Running))
	x.value("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", float64(s.Waiting))
	x.value("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", s.KVUsed)
	x.value("vllm:prefix_cache_queries_total", "counter", "Prefix cache queries, in terms of number of queried tokens.",
		float64(s.CacheQueries))
	x.value("vllm:prefix_cache_hits_total", "counter", "Prefix cache hits, in terms of number of cached tokens.", float64(s.CacheHits))
	x.value("vllm:num_preemptions_total", "counter", "Cumulative number of preemption from the engine.", float64(s.Preemptions))
	x.value("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", float64(s.PromptTokens))
	x.value("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", float64(s.GeneratedTokens))
	x.head("vllm:request_success_total", "counter", "Count of successfully processed requests.")
	x.sample("vllm:request_success_total", `,finished_reason="stop"`, float64(e.figures.stopped))
	x.sample("vllm:request_success_total", `,finished_reason="length"`, float64(e.figures.cut))
	x.sample("vllm:request_success_total", `,finished_reason="abort"`, float64(e.figures.aborted))
	x.histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", &e.figures.firstToken)
	x.histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", &e.figures.endToEnd)
	x.head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
	fmt.Fprintf(x, "vllm:cache_config_info{block_size=\"%d\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",engine=\"0\","+
		"num_gpu_blocks=\"%d\"} 1\n",
		e.cfg.Profile.BlockSize, s.Blocks)
	x.head("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
	fmt.Fprintf(x, "process_start_time_seconds %.3f\n", float64(e.started.UnixMilli())/1000)
}

// quoteLabel quotes a label value as the text format wants it: only backslash, quote and newline are special.
func quoteLabel(s string) string {
	out := []byte{'"'}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '\\', '"':
			out = append(out, '\\', c)
		case '\n':
			out = append(out, '\\', 'n')
		default:
			out = append(out, c)
		}
	}
	return string(append(out, '"'))
}
