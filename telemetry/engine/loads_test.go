package engine_test

import (
	"errors"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
)

func TestSGLangLoads(t *testing.T) {
	for name, tc := range map[string]struct{ body, want string }{
		"one rank, no list":  {`{"num_running_reqs": 3, "num_waiting_reqs": 1}`, "run=3 wait=1"},
		"one rank of one":    {`{"loads": [{"dp_rank": 5, "num_running_reqs": 3}]}`, "run=3"},
		"bare list":          {` [{"dp_rank": 0, "num_running_reqs": 3}]`, "run=3"},
		"zero":               {`{"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0, "token_usage": 0.0}]}`, "run=0 wait=0 kv=0"},
		"null is missing":    {`{"loads": [{"num_running_reqs": null, "num_waiting_reqs": 2, "memory": null, "queues": null}]}`, "wait=2"},
		"rows without ranks": {`[{"num_running_reqs": 3}, {"num_running_reqs": 4}]`, "\n0: run=3\n1: run=4"},
		"a rank twice":       {`[{"dp_rank": 0, "num_running_reqs": 3}, {"dp_rank": 0, "num_running_reqs": 4}]`, "run=4"},
		"a rank once more":   {`[{"dp_rank": 0, "num_running_reqs": 4}, {"dp_rank": 0, "num_running_reqs": 3}]`, "run=4"},
		"sums not added":     {`{"loads": [{"num_running_reqs": 3}], "aggregate": {"total_running_reqs": 3}, "num_running_reqs": 9}`, "run=3"},
		"older form":         {`[{"dp_rank": 0, "num_reqs": 12, "num_waiting_reqs": 5, "num_tokens": 40960}]`, "run=7 wait=5"},
		"only all requests":  {`[{"num_reqs": 12, "num_running_reqs": null, "token_usage": 0.5}]`, "kv=0.5"},
		"size in memory":     {`[{"num_used_tokens": 50, "memory": {"token_capacity": 100, "weight_gb": 3.5}}]`, "used=50 size=100"},
		"share contradicted": {`[{"num_used_tokens": 5, "max_total_num_tokens": 100, "token_usage": 0.9}]`, "size=100 kv=0.9"},
		"prefill queues": {`[{"num_waiting_reqs": 5, "queues": {"waiting": 2, "grammar": 1},
			"disaggregation": {"mode": "prefill", "prefill_prealloc_queue_reqs": 3, "prefill_inflight_queue_reqs": 40}}]`, "wait=5"},
		"decode queues beside": {`[{"num_waiting_reqs": 2, "queues": {"waiting": 2}, "disaggregation": {"decode_prealloc_queue_reqs": 3,
			"decode_transfer_queue_reqs": 4, "decode_retracted_queue_reqs": 1, "prefill_prealloc_queue_reqs": 0}}]`, "wait=10"},
		"queues not told apart": {`[{"num_waiting_reqs": 6, "disaggregation": {"decode_prealloc_queue_reqs": 3}}]`, "wait=6"},
		"some queues alone":     {`[{"num_running_reqs": 1, "disaggregation": {"decode_prealloc_queue_reqs": 3}}]`, "run=1"},
		"negative":              {`[{"num_waiting_reqs": -1, "queues": {"waiting": 2}}]`, "wait=-1"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := engine.Parse(engine.SGLangLoads, []byte(tc.body), sent)
			require.NoError(t, err)
			assert.Equal(t, tc.want, whole(s))
			assert.Equal(t, telemetry.EvidenceVouched, s.Evidence)
		})
	}
	rep, err := engine.Parser{Kind: engine.SGLangLoads}.Report(strings.NewReader(string(payload(t, "sglang-loads.json"))), sent)
	require.NoError(t, err)
	assert.Equal(t, 8, rep.AdapterSlots)
	assert.Equal(t, engine.Signals(engine.SGLangLoads), rep.Signals(), "all that it can")
}

func TestIterations(t *testing.T) {
	for name, tc := range map[string]struct{ body, want string }{
		"newest first": {`[{"iter": 9, "numActiveRequests": 1}, {"iter": 8, "numActiveRequests": 2}]`, "run=1"},
		"newest last":  {`[{"iter": 8, "numActiveRequests": 2}, {"iter": 9, "numActiveRequests": 1}]`, "run=1"},
		"no number":    {`[{"numActiveRequests": 7}, {"iter": 9, "numActiveRequests": 1}]`, "run=1"},
		"one entry":    {`[{"numActiveRequests": 7}]`, "run=7"},
		"not a list":   {`{"iter": 1, "numActiveRequests": 7, "numQueuedRequests": 0}`, "run=7 wait=0"},
		"no cache":     {`[{"iter": 1, "numActiveRequests": 7, "kvCacheStats": {"maxNumBlocks": 5}}]`, "run=7"},
	} {
		s, err := engine.Parse(engine.TRTLLMIterations, []byte(tc.body), sent)
		require.NoError(t, err, name)
		assert.Equal(t, tc.want, whole(s), name)
	}
	_, err := engine.Parse(engine.TRTLLMIterations, []byte(`[{"numActiveRequests": 7}, {"numActiveRequests": 8}]`), sent)
	assert.ErrorIs(t, err, engine.ErrNoSignals, "of several without a number nobody knows the newest")
}

func TestWrongLoads(t *testing.T) {
	for name, tc := range map[string]struct {
		body string
		want error
		text string
	}{
		"empty":          {" \n", engine.ErrEmpty, "engine: empty document"},
		"html":           {"<html></html>", engine.ErrMarkup, "engine: not a JSON load document: it is markup"},
		"prometheus":     {"sglang:num_running_reqs 3\n", engine.ErrNotJSON, "engine: not a JSON load document"},
		"string":         {`"ok"`, engine.ErrNotJSON, "engine: not a JSON load document"},
		"null":           {`null`, engine.ErrNotJSON, "engine: not a JSON load document"},
		"cut off":        {`{"loads": [{"num_running_reqs": 3}`, engine.ErrNotJSON, "engine: not a JSON load document: unexpected end of JSON input"},
		"more behind":    {`[{"num_running_reqs": 3}] x`, engine.ErrNotJSON, ""},
		"no entries":     {`[]`, engine.ErrNoEntries, "engine: no entries"},
		"no loads":       {`{"loads": []}`, engine.ErrNoEntries, "engine: no entries"},
		"loads null":     {`{"loads": null}`, engine.ErrNoEntries, "engine: no entries"},
		"empty object":   {` {} `, engine.ErrNoEntries, "engine: no entries"},
		"other object":   {`{"detail": "Not Found"}`, engine.ErrNoSignals, "engine: no signals of the engine sglang-loads"},
		"empty rank":     {`[{}]`, engine.ErrNoSignals, "engine: no signals of the engine sglang-loads"},
		"loads a number": {`{"loads": 3}`, engine.ErrNotJSON, "engine: not a JSON load document: a number where a list or an object belongs"},
		"text":           {`[{"num_running_reqs": "3"}]`, engine.ErrNotJSON, "engine: not a JSON load document: num_running_reqs is a string"},
		"flag":           {`[{"queues": {"waiting": true}}]`, engine.ErrNotJSON, "engine: not a JSON load document: queues.waiting is a bool"},
		"nan":            {`[{"num_running_reqs": NaN}]`, engine.ErrNotJSON, ""},
		"too great":      {`[{"num_running_reqs": 1e999}]`, engine.ErrNotJSON, ""},
		"fraction":       {`[{"dp_rank": 0.5}]`, engine.ErrNotJSON, ""},
		"the other JSON": {`[{"iter": 1, "numActiveRequests": 0}]`, engine.ErrNoSignals, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := engine.Parse(engine.SGLangLoads, []byte(tc.body), sent)
			require.ErrorIs(t, err, tc.want)
			assert.True(t, strings.HasPrefix(err.Error(), "engine: "), "%v", err)
			if tc.text != "" {
				assert.EqualError(t, err, tc.text)
			}
			assert.Equal(t, telemetry.Snapshot{}, s)
		})
	}
	for _, body := range []string{"[]", "{}"} {
		_, err := engine.Parse(engine.TRTLLMIterations, []byte(body), sent)
		assert.ErrorIs(t, err, engine.ErrNoEntries, body)
		for _, kind := range []engine.Kind{engine.TRTLLM, engine.SGLang} {
			_, err = engine.Parse(kind, []byte(body), sent)
			assert.ErrorIs(t, err, engine.ErrNotPrometheus)
			assert.ErrorIs(t, err, engine.ErrNoEntries)
		}
	}
	body := string(payload(t, "sglang-loads.json"))
	p := engine.Parser{Kind: engine.SGLangLoads, MaxBytes: int64(len(body))}
	_, err := p.Parse(strings.NewReader(body), sent)
	require.NoError(t, err)
	p.MaxBytes--
	_, err = p.Parse(strings.NewReader(body), sent)
	require.ErrorIs(t, err, engine.ErrTooLarge)
	broken := errors.New("connection reset")
	_, err = p.Parse(iotest.ErrReader(broken), sent)
	require.ErrorIs(t, err, broken)
}

// FuzzLoads checks that no body can break the JSON readers and that what they read is acceptable to a store.
func FuzzLoads(f *testing.F) {
	f.Add([]byte(`{"loads":[{"dp_rank":0,"num_running_reqs":4,"num_waiting_reqs":1,"token_usage":0.2,"lora":{"slots_total":8}}]}`))
	f.Add([]byte(`[{"dp_rank":0,"num_reqs":12,"num_waiting_reqs":5},{"dp_rank":1,"queues":{"waiting":2}}]`))
	f.Add([]byte(`{"num_used_tokens":5,"max_total_num_tokens":9,"memory":{"token_capacity":9},"num_waiting_uncached_tokens":1}`))
	f.Add([]byte(`[{"iter":7,"numActiveRequests":3,"kvCacheStats":{"usedNumBlocks":2,"maxNumBlocks":9,"tokensPerBlock":4}}]`))
	f.Add([]byte(`{"loads": [{"dp_rank": -1, "num_waiting_reqs": 2, "disaggregation": {}}, null, {"dp_rank": 99999999999}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, kind := range []engine.Kind{engine.SGLangLoads, engine.TRTLLMIterations} {
			s, err := engine.Parse(kind, body, sent)
			if err != nil {
				if s.Source != "" || s.Ranks != nil || !s.ObservedAt.IsZero() || s.Running.Known() {
					t.Fatalf("error %v and %+v", err, s)
				}
				continue
			}
			observe(t, s)
		}
		if kind, err := engine.Detect(body); (kind == "") != (err != nil) {
			t.Fatalf("kind %q, error %v", kind, err)
		}
	})
}
