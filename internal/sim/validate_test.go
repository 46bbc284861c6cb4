package sim

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// measuredRun is a recorded run of vLLM 0.19 with Llama-3.1-8B on an RTX 4090, KV memory scarce: 300 requests. Times
// are in ms from the first arrival. The engine computed every prompt token (its log adds up to all of them), so it had
// no prefix cache, and the requests carry no Blocks.
type measuredRun struct {
	requests []Request
	arrival  []float64
	first    []float64
	last     []float64
}

func openTrace(t *testing.T, name string) *gzip.Reader {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "..", "shared", "traces", name))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("trace %s is not here", name)
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	return z
}

func loadMeasuredRun(t *testing.T) measuredRun {
	t.Helper()
	var m measuredRun
	lines := bufio.NewScanner(openTrace(t, "vllm_gt_sharegpt300_workload.jsonl.gz"))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var row struct {
			Input  int64 `json:"input_length"`
			Output int64 `json:"output_length"`
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &row))
		m.requests = append(m.requests, Request{
			ID: uint64(len(m.requests)), PromptTokens: row.Input, OutputTokens: row.Output,
		})
	}
	require.NoError(t, lines.Err())
	rows, err := csv.NewReader(openTrace(t, "vllm_gt_RTX4090_llama31_8b_requests.csv.gz")).ReadAll()
	require.NoError(t, err)
	for i, row := range rows[1:] {
		num := func(col int) float64 {
			v, err := strconv.ParseFloat(row[col], 64)
			require.NoError(t, err)
			return v * 1000
		}
		require.Equal(t, "bench-"+strconv.Itoa(i), row[0])
		m.requests[i].OutputTokens = int64(num(2) / 1000)
		m.arrival = append(m.arrival, num(3))
		m.first = append(m.first, num(6))
		m.last = append(m.last, num(7))
	}
	require.Len(t, m.arrival, len(m.requests))
	return m
}

func (m measuredRun) replay(t *testing.T, p Profile) (first, last []float64, s State) {
	t.Helper()
	e, err := New(p, Options{})
	require.NoError(t, err)
	first = make([]float64, len(m.requests))
	last = make([]float64, len(m.requests))
	var events []Event
	now, next := 0.0, 0
	for {
		for next < len(m.requests) && m.arrival[next] <= now {
			require.NoError(t, e.Submit(m.requests[next]))
			next++
		}
		var ms float64
		ms, events = e.Step(events[:0])
		if ms == 0 {
			if next == len(m.requests) {
				return first, last, e.State()
			}
			now = m.arrival[next]
			continue
		}
		now += ms
		for _, ev := range events {
			switch ev.Kind {
			case FirstToken:
				first[ev.ID] = now
			case Finished:
				last[ev.ID] = now
			}
		}
	}
}

// figures are the eight the model is held to, in ms.
func (m measuredRun) figures(first, last []float64) map[string]float64 {
	var ttft, tpot, e2e []float64
	for i, at := range m.arrival {
		ttft = append(ttft, first[i]-at)
		e2e = append(e2e, last[i]-at)
		tpot = append(tpot, (last[i]-first[i])/float64(m.requests[i].OutputTokens-1))
	}
	return map[string]float64{
		"ttft mean": mean(ttft), "ttft p50": quantile(ttft, 0.5), "ttft p90": quantile(ttft, 0.9), "ttft p99": quantile(ttft, 0.99),
		"tpot mean": mean(tpot), "tpot p90": quantile(tpot, 0.9),
		"e2e mean": mean(e2e), "e2e p99": quantile(e2e, 0.99),
	}
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

func quantile(v []float64, q float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[int(math.Round(q*float64(len(v)-1)))]
}

// The model must come within 5 % of a measured engine in every figure.
func TestAgainstMeasuredRun(t *testing.T) {
	m := loadMeasuredRun(t)
	p, ok := ProfileByName("rtx4090-8b")
	require.True(t, ok)
	first, last, s := m.replay(t, p)
	require.EqualValues(t, len(m.requests), s.Finished)
	want, got := m.figures(m.first, m.last), m.figures(first, last)
	for name, w := range want {
		t.Logf("%-10s measured %9.1f ms, model %9.1f ms, %+.1f %%", name, w, got[name], 100*(got[name]/w-1))
		assert.InEpsilon(t, w, got[name], 0.05, name)
	}
}
