package engine

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/isobar-go/isobar/telemetry"
)

// The headers of in-band load reports (Open Request Cost Aggregation): a request that carries LoadFormatHeader, with
// LoadText or LoadJSON, asks the engine for a LoadHeader in its response.
const (
	LoadHeader       = "Endpoint-Load-Metrics"
	LoadFormatHeader = "Endpoint-Load-Metrics-Format"
	LoadText         = "TEXT"
	LoadJSON         = "JSON"
)

// LoadSource is the Source of a snapshot that ParseLoadHeader makes.
const LoadSource = "in-band"

// maxLoadHeader is the greatest size of an in-band report, in bytes. Engines send a few hundred.
const maxLoadHeader = 64 << 10

// loadNames are the names of each figure, newest first, without prefixes. They are never changed.
var loadNames = [...]struct {
	part  part
	names []string
}{
	{partRunning, []string{"num_requests_running", "num_running_reqs"}},
	{partWaiting, []string{"num_requests_waiting", "num_queue_reqs", "num_waiting_reqs"}},
	{partWaitingTokens, []string{"num_waiting_uncached_tokens"}},
	{partKVShare, []string{"kv_cache_usage_perc", "gpu_cache_usage_perc", "kv_cache_utilization", "kv_cache_usage", "token_usage"}},
	{partKVUsed, []string{"num_used_tokens"}},
	{partKVCapacity, []string{"kv_cache_size_tokens", "max_token_capacity", "max_total_num_tokens"}},
	{partGenerationRate, []string{"gen_throughput"}},
	{partMaxRunning, []string{"max_running_requests"}},
}

// inBand is an in-band report while it is being read. A better name of a figure replaces another one, a repeated one
// counts once, by the greatest.
type inBand struct {
	figures rankFigures
	name    [numFigures]int // index in loadNames[...].names of the one read
}

// ParseLoadHeader reads the value of a LoadHeader that came with a response at the given time. The value is
// "TEXT k=v, k=v", also with colons for the equals signs, or "JSON {...}"; without the word in front it is JSON if it
// begins with a brace, else text. Keys are the names of vLLM, SGLang and the Triton server, alone, behind the prefix
// "named_metrics." or "utilization." (in JSON: in the objects of that name), or with an engine's prefix ("vllm:"). Other
// keys say nothing that a snapshot can hold and are skipped, cpu_utilization, mem_utilization (of the host) and
// application_utilization (of no stated resource) among them.
//
// A report without any of the figures makes a snapshot without any, of which a store takes nothing and which makes
// nothing fresher. The error wraps ErrLoadHeader or ErrTooLarge; the snapshot is then empty. NaN, infinities and negative
// numbers are passed on for the store to reject and count. KVOccupied is not set: the engines that send the header leave out
// of KVShare what can be evicted.
func ParseLoadHeader(value string, at time.Time) (telemetry.Snapshot, error) {
	if len(value) > maxLoadHeader {
		return telemetry.Snapshot{}, fmt.Errorf("engine: load report: %w: more than %d bytes", ErrTooLarge, maxLoadHeader)
	}
	format, rest := "", strings.Trim(value, " \t")
	// The first word is a format unless it is a key or the beginning of JSON.
	end := strings.IndexAny(rest, " \t")
	if end < 0 {
		end = len(rest)
	}
	if word := rest[:end]; word != "" && !strings.ContainsAny(word, "=:{,") {
		if after := strings.Trim(rest[end:], " \t"); after == "" || after[0] != '=' && after[0] != ':' {
			format, rest = word, after
		}
	}
	var in inBand
	var err error
	switch {
	case format == "" && strings.HasPrefix(rest, "{"), strings.EqualFold(format, LoadJSON):
		err = in.readJSON(rest)
	case format == "", strings.EqualFold(format, LoadText):
		err = in.readText(rest)
	default:
		err = fmt.Errorf("%w: format %q is neither %s nor %s", ErrLoadHeader, shortened(format), LoadText, LoadJSON)
	}
	if err != nil {
		return telemetry.Snapshot{}, fmt.Errorf("engine: %w", err)
	}
	fig := in.figures.figures(0)
	return telemetry.Snapshot{
		ObservedAt: at, Source: LoadSource,
		Running: fig.Running, Waiting: fig.Waiting, WaitingTokens: fig.WaitingTokens,
		KVShare: fig.KVShare, KVUsed: fig.KVUsed, KVCapacity: fig.KVCapacity,
		GenerationRate: fig.GenerationRate, MaxRunning: fig.MaxRunning,
	}, nil
}

func (in *inBand) readText(text string) error {
	for pair := range strings.SplitSeq(text, ",") {
		pair = strings.Trim(pair, " \t")
		if pair == "" {
			continue
		}
		at := strings.LastIndexByte(pair, '=')
		if at < 0 {
			at = strings.LastIndexByte(pair, ':') // names have colons too
		}
		if at < 0 {
			return fmt.Errorf("%w: %q is no pair", ErrLoadHeader, shortened(pair))
		}
		key, number := strings.Trim(pair[:at], " \t"), strings.Trim(pair[at+1:], " \t")
		v, err := strconv.ParseFloat(number, 64)
		if err != nil && !math.IsInf(v, 0) || strings.ContainsAny(number, "pPxX_") {
			return fmt.Errorf("%w: %s is %q, no number", ErrLoadHeader, shortened(key), shortened(number))
		}
		in.take(key, v)
	}
	return nil
}

// readJSON reads numbers at the top and in the objects that hold named ones. Nulls say nothing.
func (in *inBand) readJSON(text string) error {
	if text == "" {
		return nil
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &top); err != nil {
		return fmt.Errorf("%w: %w", ErrLoadHeader, err)
	}
	for key, raw := range top {
		switch key {
		case "named_metrics", "namedMetrics", "utilization":
			var named map[string]*float64
			if err := json.Unmarshal(raw, &named); err != nil {
				return fmt.Errorf("%w: %s: %w", ErrLoadHeader, key, err)
			}
			for name, v := range named {
				if v != nil {
					in.take(name, *v)
				}
			}
			continue
		}
		if _, _, known := loadName(key); !known {
			continue
		}
		var v *float64
		if err := json.Unmarshal(raw, &v); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrLoadHeader, key, err)
		}
		if v != nil {
			in.take(key, *v)
		}
	}
	return nil
}

// take notes a figure, whatever the order of the keys.
func (in *inBand) take(key string, v float64) {
	p, n, known := loadName(key)
	if !known {
		return
	}
	if old, seen := in.figures[p].Value(); seen && n >= in.name[p] {
		if n > in.name[p] {
			return
		}
		v = max(v, old)
	}
	in.figures[p], in.name[p] = telemetry.V(v), n
}

// loadName returns the figure that a key names and the rank of that name among those of the figure.
func loadName(key string) (p part, n int, known bool) {
	key = strings.TrimPrefix(key, "named_metrics.")
	key = strings.TrimPrefix(key, "utilization.")
	if i := strings.LastIndexByte(key, ':'); i >= 0 {
		key = key[i+1:]
	}
	for i := range loadNames {
		for n, name := range loadNames[i].names {
			if key == name {
				return loadNames[i].part, n, true
			}
		}
	}
	return 0, 0, false
}

// shortened keeps error texts in bounds.
func shortened(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
