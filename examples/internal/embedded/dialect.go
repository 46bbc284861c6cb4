package embedded

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/isobar-go/isobar/internal/sim"
)

// dialect is how an engine reports its state.
type dialect struct {
	name, path string
	// labels are those of every sample, for a model name that is quoted already; nil = none.
	labels func(model string) string
	// write writes the metrics. Engine.mu is held.
	write func(*Engine, *exposition, sim.State)
	// pages adds other pages; nil = none.
	pages func(*Engine, *http.ServeMux)
	// kv says that the state of the KV cache is reported.
	kv bool
	// events says that engines publish KV events in the form of this package.
	events bool
}

// dialects begins with the default. It is never changed.
var dialects = [...]dialect{
	{
		name: "vllm", path: "/metrics", kv: true, events: true, write: (*Engine).vllmLocked,
		labels: func(model string) string { return `engine="0",model_name=` + model },
	}, {
		name: "sglang", path: "/metrics", kv: true, events: true, write: (*Engine).sglangLocked,
		labels: func(model string) string {
			return `dp_rank="0",engine_type="unified",model_name=` + model + `,pp_rank="0",tp_rank="0"`
		},
	}, {
		name: "trtllm", path: "/prometheus/metrics", kv: true, write: (*Engine).trtllmLocked,
		labels: func(model string) string { return `engine_type="trtllm",model_name=` + model },
		pages: func(e *Engine, mux *http.ServeMux) {
			mux.HandleFunc("/metrics", e.only(http.MethodGet, e.serveIterations))
		},
	},
	{name: "tgi", path: "/metrics", write: (*Engine).tgiLocked},
	{name: "llamacpp", path: "/metrics", write: (*Engine).llamacppLocked},
}

// Dialects returns the names that Config.Dialect can have, the default first. They are the engines' names in package
// telemetry/engine, too. The slice belongs to the caller.
func Dialects() []string {
	out := make([]string, len(dialects))
	for i := range dialects {
		out[i] = dialects[i].name
	}
	return out
}

// HasKVEvents says whether Config.KVEvents goes with a dialect; "" is the default one.
func HasKVEvents(dialect string) bool {
	d := Config{Dialect: dialect}.withDefaults().dialect()
	return d != nil && d.events
}

// dialect returns nil for an unknown name.
func (c Config) dialect() *dialect {
	for i := range dialects {
		if dialects[i].name == c.Dialect {
			return &dialects[i]
		}
	}
	return nil
}

// hitRate is the share of looked up prompt tokens that were found, 0 before there was any.
func hitRate(s sim.State) float64 {
	return float64(s.CacheHits) / float64(max(s.CacheQueries, 1))
}

func (e *Engine) sglangLocked(x *exposition, s sim.State) {
	size := e.cfg.Profile.BlockSize
	x.value("sglang:num_running_reqs", "gauge", "The number of running requests.", float64(s.Running))
	x.value("sglang:num_queue_reqs", "gauge", "The number of requests in the waiting queue.", float64(s.Waiting))
	x.value("sglang:max_running_requests", "gauge", "The maximum number of running requests.", float64(e.cfg.Profile.MaxSeqs))
	x.value("sglang:num_used_tokens", "gauge", "The number of used tokens.", float64(int64(s.UsedBlocks)*size))
	x.value("sglang:max_total_num_tokens", "gauge", "Maximum total number of tokens in the KV cache pool.", float64(int64(s.Blocks)*size))
	x.value("sglang:token_usage", "gauge", "The token usage.", s.KVUsed)
	x.value("sglang:cache_hit_rate", "gauge", "The prefix cache hit rate.", hitRate(s))
	x.value("sglang:prompt_tokens_total", "counter", "Number of prefill tokens processed.", float64(s.PromptTokens))
	x.value("sglang:generation_tokens_total", "counter", "Number of generation tokens processed.", float64(s.GeneratedTokens))
	x.value("sglang:num_requests_total", "counter", "Number of requests processed.", float64(s.Finished))
	x.histogram("sglang:time_to_first_token_seconds", "Histogram of time to first token in seconds.", &e.figures.firstToken)
	x.histogram("sglang:e2e_request_latency_seconds", "Histogram of end-to-end request latency in seconds.", &e.figures.endToEnd)
}

func (e *Engine) trtllmLocked(x *exposition, s sim.State) {
	x.value("trtllm_num_requests_running", "gauge", "Number of active requests.", float64(s.Running))
	x.value("trtllm_num_requests_waiting", "gauge", "Number of queued requests.", float64(s.Waiting))
	x.value("trtllm_max_num_active_requests", "gauge", "Maximum number of active requests.", float64(e.cfg.Profile.MaxSeqs))
	x.value("trtllm_kv_cache_utilization", "gauge", "KV cache utilization.", s.KVUsed)
	x.value("trtllm_kv_cache_hit_rate", "gauge", "KV cache hit rate.", hitRate(s))
	x.value("trtllm_kv_cache_used_blocks", "gauge", "Number of used KV cache blocks.", float64(s.UsedBlocks))
	x.value("trtllm_kv_cache_max_blocks", "gauge", "Number of KV cache blocks.", float64(s.Blocks))
	x.value("trtllm_kv_cache_tokens_per_block", "gauge", "Tokens per KV cache block.", float64(e.cfg.Profile.BlockSize))
	x.value("trtllm_num_requests_completed_total", "counter", "Number of completed requests.", float64(s.Finished))
	x.head("trtllm_request_success_total", "counter", "Count of successfully processed requests.")
	x.sample("trtllm_request_success_total", `,finished_reason="stop"`, float64(e.figures.stopped))
	x.sample("trtllm_request_success_total", `,finished_reason="length"`, float64(e.figures.cut))
	x.histogram("trtllm_time_to_first_token_seconds", "Histogram of time to first token in seconds.", &e.figures.firstToken)
	x.histogram("trtllm_e2e_request_latency_seconds", "Histogram of end to end request latency in seconds.", &e.figures.endToEnd)
}

// serveIterations answers with the newest iteration, or with none if none has begun since it was last read.
func (e *Engine) serveIterations(w http.ResponseWriter, _ *http.Request) {
	list := []any{}
	e.mu.Lock()
	s := e.sim.State()
	if s.Passes > e.read {
		e.read = s.Passes
		list = append(list, map[string]any{
			"iter": s.Passes, "numActiveRequests": s.Running, "numQueuedRequests": s.Waiting,
			"maxNumActiveRequests": e.cfg.Profile.MaxSeqs,
			"kvCacheStats": map[string]any{
				"maxNumBlocks": s.Blocks, "usedNumBlocks": s.UsedBlocks, "freeNumBlocks": s.Blocks - s.UsedBlocks,
				"tokensPerBlock": e.cfg.Profile.BlockSize, "cacheHitRate": hitRate(s),
			},
		})
	}
	e.mu.Unlock()
	writeJSON(w, http.StatusOK, list)
}

func (e *Engine) tgiLocked(x *exposition, s sim.State) {
	x.value("tgi_queue_size", "gauge", "Current queue size.", float64(s.Waiting))
	x.value("tgi_batch_current_size", "gauge", "Current batch size.", float64(s.Running))
	x.value("tgi_request_count", "counter", "Number of requests.", float64(s.Submitted))
	x.value("tgi_request_success", "counter", "Number of requests that succeeded.", float64(s.Finished))
	x.histogram("tgi_request_duration", "Histogram of request durations in seconds.", &e.figures.endToEnd)
}

// llamacppLocked writes what newer versions have, which is nothing about the KV cache.
func (e *Engine) llamacppLocked(x *exposition, s sim.State) {
	x.value("llamacpp:prompt_tokens_total", "counter", "Number of prompt tokens processed.", float64(s.PromptTokens))
	x.value("llamacpp:tokens_predicted_total", "counter", "Number of generation tokens processed.", float64(s.GeneratedTokens))
	x.value("llamacpp:n_decode_total", "counter", "Total number of llama_decode() calls", float64(s.Passes))
	x.value("llamacpp:requests_processing", "gauge", "Number of requests processing.", float64(s.Running))
	x.value("llamacpp:requests_deferred", "gauge", "Number of requests deferred.", float64(s.Waiting))
}

// reportLoad puts a load report into an answer's header if the request asks for one in a known format.
func (e *Engine) reportLoad(w http.ResponseWriter, r *http.Request) {
	format := r.Header.Get("Endpoint-Load-Metrics-Format")
	if format != "TEXT" && format != "JSON" {
		return
	}
	s := e.Stats()
	named := map[string]float64{"num_requests_running": float64(s.Running), "num_requests_waiting": float64(s.Waiting)}
	if e.cfg.dialect().kv {
		named["kv_cache_usage_perc"] = s.KVUsed
	}
	report := ""
	if format == "JSON" {
		body, err := json.Marshal(map[string]any{"named_metrics": named})
		if err != nil { // numbers always marshal
			return
		}
		report = string(body)
	} else {
		for _, name := range []string{"kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"} {
			if v, ok := named[name]; ok {
				if report != "" {
					report += ", "
				}
				report += fmt.Sprintf("named_metrics.%s=%s", name, strconv.FormatFloat(v, 'g', -1, 64))
			}
		}
	}
	w.Header().Set("Endpoint-Load-Metrics", format+" "+report)
}
