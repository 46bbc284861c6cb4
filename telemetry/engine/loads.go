package engine

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/isobar-go/isobar/telemetry"
)

// loadReport reads a JSON document.
func (d *dialect) loadReport(in io.Reader, limit int64, at time.Time) (Report, error) {
	body, err := io.ReadAll(io.LimitReader(in, min(limit, math.MaxInt64-1)+1))
	switch {
	case err != nil:
		return Report{}, fmt.Errorf("engine: reading the document: %w", err)
	case int64(len(body)) > limit:
		return Report{}, fmt.Errorf("engine: %w: more than %d bytes", ErrTooLarge, limit)
	}
	if err := notLoads(body); err != nil {
		return Report{}, err
	}
	r := reading{dialect: d, ranks: make(map[string]*rankFigures)}
	if err := d.loads(body, &r); err != nil {
		return Report{}, fmt.Errorf("engine: %w", err)
	}
	if len(r.ranks) == 0 && r.slots == 0 {
		return Report{}, fmt.Errorf("engine: %w %s", ErrNoSignals, d.kind)
	}
	if err := r.tooManyRanks(); err != nil {
		return Report{}, err
	}
	return r.report(at), nil
}

// notLoads tells what a document is that cannot be a JSON report.
func notLoads(body []byte) error {
	text := bytes.TrimSpace(body)
	switch {
	case len(text) == 0:
		return fmt.Errorf("engine: %w", ErrEmpty)
	case text[0] == '<':
		return fmt.Errorf("engine: %w: %w", ErrNotJSON, ErrMarkup)
	case text[0] != '{' && text[0] != '[':
		return fmt.Errorf("engine: %w", ErrNotJSON)
	}
	return nil
}

// maxEntries is how many entries a JSON list may have: far more than an engine has ranks or keeps iterations, and few enough
// that a short document of empty entries cannot fill the memory.
const maxEntries = 1 << 14

// decode reads JSON strictly where it matters: a known field of another type is an error, an unknown one is skipped.
func decode(body []byte, to any) error { return jsonError(json.Unmarshal(body, to)) }

// jsonError says what is wrong with a document.
func jsonError(err error) error {
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &wrong) && wrong.Field == "":
		return fmt.Errorf("%w: a %s where a list or an object belongs", ErrNotJSON, wrong.Value)
	case errors.As(err, &wrong):
		return fmt.Errorf("%w: %s is a %s", ErrNotJSON, wrong.Field, wrong.Value)
	}
	return fmt.Errorf("%w: %w", ErrNotJSON, err)
}

// rows decodes a list, or an object as a list of one. It is an error if there is none.
func rows[T any](body []byte) ([]T, error) {
	body = bytes.TrimSpace(body)
	if len(body) > 0 && body[0] == '{' {
		out := make([]T, 1)
		return out, decode(body, &out[0])
	}
	if len(body) == 0 || body[0] != '[' || !json.Valid(body) {
		var none []T
		return nil, cmp.Or(decode(body, &none), ErrNoEntries)
	}
	in := json.NewDecoder(bytes.NewReader(body))
	_, _ = in.Token() // the bracket
	var out []T
	for in.More() {
		if len(out) == maxEntries {
			return nil, fmt.Errorf("%w: more than %d entries", ErrTooLarge, maxEntries)
		}
		var row T
		if err := in.Decode(&row); err != nil {
			return nil, jsonError(err)
		}
		out = append(out, row)
	}
	if len(out) == 0 {
		return nil, ErrNoEntries
	}
	return out, nil
}

// set notes a figure. Copies of one rank count once, by the greatest.
func (r *reading) set(rank string, p part, v *float64) {
	if v == nil {
		return
	}
	f := r.rank(rank)
	if old, known := f[p].Value(); !known || *v > old {
		f[p] = telemetry.V(*v)
	}
}

// sglangLoad is one rank of SGLang's load report. A field that is not there is nil.
type sglangLoad struct {
	Rank          *int     `json:"dp_rank"`
	Running       *float64 `json:"num_running_reqs"`
	Waiting       *float64 `json:"num_waiting_reqs"`
	Requests      *float64 `json:"num_reqs"` // older form: running and waiting
	WaitingTokens *float64 `json:"num_waiting_uncached_tokens"`
	Used          *float64 `json:"num_used_tokens"`
	Max           *float64 `json:"max_total_num_tokens"`
	Share         *float64 `json:"token_usage"`
	Throughput    *float64 `json:"gen_throughput"`
	HitRate       *float64 `json:"cache_hit_rate"`
	MaxRunning    *float64 `json:"max_running_requests"`
	Memory        *struct {
		Capacity *float64 `json:"token_capacity"`
	} `json:"memory"`
	LoRA *struct {
		Slots *float64 `json:"slots_total"`
	} `json:"lora"`
	Queues *struct {
		Waiting *float64 `json:"waiting"`
	} `json:"queues"`
	Disaggregation *struct {
		PrefillPrealloc *float64 `json:"prefill_prealloc_queue_reqs"`
		DecodePrealloc  *float64 `json:"decode_prealloc_queue_reqs"`
		DecodeTransfer  *float64 `json:"decode_transfer_queue_reqs"`
		DecodeRetracted *float64 `json:"decode_retracted_queue_reqs"`
	} `json:"disaggregation"`
}

// readSGLangLoads reads the report of all ranks: an object with a list, the bare list, or one rank alone. The sums that
// the server adds to it are not read.
func readSGLangLoads(body []byte, r *reading) error {
	var whole struct {
		Loads json.RawMessage `json:"loads"`
	}
	if body = bytes.TrimSpace(body); body[0] == '{' {
		if err := decode(body, &whole); err != nil {
			return err
		}
		switch {
		case len(whole.Loads) > 0:
			body = whole.Loads
		case string(body) == "{}":
			return ErrNoEntries
		}
	}
	loads, err := rows[sglangLoad](body)
	if err != nil {
		return err
	}
	for i := range loads {
		l := &loads[i]
		rank := noRank
		switch {
		case l.Rank != nil:
			rank = strconv.Itoa(*l.Rank)
		case len(loads) > 1:
			rank = "row " + strconv.Itoa(i)
		}
		l.put(r, rank)
	}
	return nil
}

func (l *sglangLoad) put(r *reading, rank string) {
	running := l.Running
	if running == nil && l.Requests != nil && l.Waiting != nil {
		running = new(*l.Requests - *l.Waiting)
	}
	capacity := l.Max
	if capacity == nil && l.Memory != nil {
		capacity = l.Memory.Capacity
	}
	r.set(rank, partRunning, running)
	r.set(rank, partWaiting, l.waiting())
	r.set(rank, partWaitingTokens, l.WaitingTokens)
	r.set(rank, partKVUsed, l.Used)
	r.set(rank, partKVCapacity, capacity)
	r.set(rank, partKVShare, l.Share)
	r.set(rank, partGenerationRate, l.Throughput)
	r.set(rank, partHitRate, l.HitRate)
	r.set(rank, partMaxRunning, l.MaxRunning)
	if l.LoRA != nil && l.LoRA.Slots != nil {
		if n := *l.LoRA.Slots; n >= 1 && n <= math.MaxInt32 && (r.slots == 0 || int(n) < r.slots) {
			r.slots = int(n)
		}
	}
}

// waiting returns the number of requests that are not in the batch yet. The engine's own number has the queues of
// disaggregated serving in it; where the queues by themselves are more, it has not. A request of which a prefill engine
// is sending the memory away (prefill_inflight_queue_reqs) waits for no batch.
func (l *sglangLoad) waiting() *float64 {
	var sum float64
	known := false
	add := func(v *float64) {
		if v != nil {
			sum, known = sum+*v, true
		}
	}
	if l.Queues != nil {
		add(l.Queues.Waiting)
	}
	if d := l.Disaggregation; d != nil {
		add(d.PrefillPrealloc)
		add(d.DecodePrealloc)
		add(d.DecodeTransfer)
		add(d.DecodeRetracted)
	}
	switch {
	case l.Waiting != nil && (!known || *l.Waiting >= sum || *l.Waiting < 0):
		return l.Waiting
	case known && (l.Waiting != nil || l.Queues != nil && l.Queues.Waiting != nil):
		return &sum
	}
	return nil // some queues alone are not all that wait
}

// iteration is one entry of trtllm-serve's statistics. A field that is not there is nil.
type iteration struct {
	Number     *float64 `json:"iter"`
	Active     *float64 `json:"numActiveRequests"`
	Queued     *float64 `json:"numQueuedRequests"`
	MaxRunning *float64 `json:"maxNumActiveRequests"`
	KV         *struct {
		Used      *float64 `json:"usedNumBlocks"`
		Max       *float64 `json:"maxNumBlocks"`
		BlockSize *float64 `json:"tokensPerBlock"`
		HitRate   *float64 `json:"cacheHitRate"`
	} `json:"kvCacheStats"`
}

// readIterations reads the newest iteration, whatever the order of the list.
func readIterations(body []byte, r *reading) error {
	if string(bytes.TrimSpace(body)) == "{}" {
		return ErrNoEntries
	}
	list, err := rows[iteration](body)
	if err != nil {
		return err
	}
	newest := math.Inf(-1)
	for i := range list {
		if n := list[i].Number; n != nil {
			newest = max(newest, *n)
		}
	}
	for i := range list {
		if n := list[i].Number; n != nil && *n != newest || n == nil && len(list) > 1 {
			continue
		}
		it := &list[i]
		r.set(noRank, partRunning, it.Active)
		r.set(noRank, partWaiting, it.Queued)
		r.set(noRank, partMaxRunning, it.MaxRunning)
		if it.KV != nil {
			r.set(noRank, partKVUsedBlocks, it.KV.Used)
			r.set(noRank, partKVBlocks, it.KV.Max)
			r.set(noRank, partBlockSize, it.KV.BlockSize)
			r.set(noRank, partHitRate, it.KV.HitRate)
		}
	}
	r.count("iter", newest)
	return nil
}
