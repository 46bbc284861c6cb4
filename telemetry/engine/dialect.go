package engine

// part is the meaning of a signal. The figures come first.
type part int

const (
	partRunning part = iota
	partWaiting
	partKVShare
	partGenerationRate
	numGauges // parts below are single numbers of a rank; those that follow are read in their own ways

	partPrefixHits     // counter, tokens
	partPrefixQueries  // counter, tokens
	partEvidence       // counter that rises once the engine works
	partCacheConfig    // labels that give the size of the KV cache
	partSleepState     // one-hot over a label
	partAdapterLoaded  // 1 for each adapter and memory level
	partAdapterRequest // lists of adapters in labels, the value is a time
	partProcessStart   // unix seconds
	numParts
)

// signal says which families carry a part. The first one that is in a document is read and the others are not: they are
// the names of other versions, and a version that prints two of them prints the same figure twice.
type signal struct {
	part     part
	families []string
}

// dialect is what one kind of engine is known to report.
type dialect struct {
	kind       Kind
	rankLabel  string // data-parallel rank
	modelLabel string
	signals    []signal
	// Labels of the families that say more by labels than by value.
	blockSize, numBlocks, sizeTokens string // partCacheConfig
	sleepState, awake                string // partSleepState: the label, and its value for an engine that serves
	adapter, level, ready, cached    string // partAdapterLoaded: two labels, and two values of level
	adapterRank                      string // partAdapterLoaded
	runningAdapters, waitingAdapters string // partAdapterRequest
}

// dialects is never changed.
var dialects = [...]dialect{{
	kind:       VLLM,
	rankLabel:  "engine",
	modelLabel: "model_name",
	signals: []signal{
		{partRunning, []string{"vllm:num_requests_running"}},
		{partWaiting, []string{"vllm:num_requests_waiting"}},
		{partKVShare, []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"}},
		{partGenerationRate, []string{"vllm:avg_generation_throughput_toks_per_s"}},
		{partPrefixHits, []string{"vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits"}},
		{partPrefixQueries, []string{"vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries"}},
		{partEvidence, []string{"vllm:generation_tokens_total", "vllm:generation_tokens"}},
		{partEvidence, []string{"vllm:prompt_tokens_total", "vllm:prompt_tokens"}},
		{partEvidence, []string{"vllm:request_success_total", "vllm:request_success"}},
		{partCacheConfig, []string{"vllm:cache_config_info"}},
		{partSleepState, []string{"vllm:engine_sleep_state"}},
		{partAdapterLoaded, []string{"vllm:lora_adapter_loaded"}},
		{partAdapterRequest, []string{"vllm:lora_requests_info"}},
		{partProcessStart, []string{processStart}},
	},
	blockSize: "block_size", numBlocks: "num_gpu_blocks", sizeTokens: "kv_cache_size_tokens",
	sleepState: "sleep_state", awake: "awake",
	adapter: "adapter_name", level: "level", ready: "gpu", cached: "cpu", adapterRank: "rank",
	runningAdapters: "running_lora_adapters", waitingAdapters: "waiting_lora_adapters",
}}

// processStart is of the exporter library, not of the engine: alone it is no sign of one.
const processStart = "process_start_time_seconds"

// knows reports whether a family is one of the dialect's.
func (d *dialect) knows(family []byte) bool {
	for i := range d.signals {
		for _, name := range d.signals[i].families {
			if string(family) == name {
				return true
			}
		}
	}
	return false
}
