package demo

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
)

func TestScheduleIsAlwaysTheSame(t *testing.T) {
	a, b := schedule(), schedule()
	require.Equal(t, a, b)
	kinds := map[string]int{}
	ids := map[string]bool{}
	for _, j := range a {
		kinds[j.kind]++
		require.False(t, ids[j.id], j.id)
		ids[j.id] = true
		require.NotEmpty(t, j.messages)
		require.Positive(t, j.output)
	}
	require.Equal(t, burstSize, kinds[kindBurst])
	for _, k := range []string{kindChat, kindSession, kindDocument, kindStream} {
		require.Positive(t, kinds[k], k)
	}
	require.True(t, slices.IsSortedFunc(a, func(x, y job) int { return int(x.at - y.at) }))
}

func TestWhy(t *testing.T) {
	receipt := func(change func(r *router.Receipt)) *router.Receipt {
		r := &router.Receipt{Decision: router.Decision{RunnerUp: "b", RunnerUpTotal: 100, TieWindow: 1, Terms: score.Terms{Prefill: 40}}}
		change(r)
		return r
	}
	for want, change := range map[string]func(r *router.Receipt){
		"60 ms before b":                        func(r *router.Receipt) {},
		"by lot":                                func(r *router.Receipt) { r.RunnerUpTotal = 40.5 },
		"bounds rule out b":                     func(r *router.Receipt) { r.RunnerUpTotal = 10 },
		"the only one":                          func(r *router.Receipt) { r.RunnerUp = "" },
		"warm, saves 12 ms; 60 ms before b":     func(r *router.Receipt) { r.Terms.Saved = 12 },
		"cache not counted: kv; 60 ms before b": func(r *router.Receipt) { r.Withheld = router.WithheldKV },
		"no usable telemetry; 60 ms before b":   func(r *router.Receipt) { r.Degraded = true },
		"probe; the only one":                   func(r *router.Receipt) { r.Probe, r.RunnerUp = true, "" },
		"saturated":                             func(r *router.Receipt) { r.Rejected = "saturated" },
	} {
		want = strings.ReplaceAll(want, "counted: kv", "counted: "+router.WithheldKV.String())
		require.Equal(t, want, why(receipt(change)))
	}
}

// good is a run that does what is claimed.
func good() *run {
	begin := time.Unix(1000, 0)
	r := &run{receipts: map[string]*router.Receipt{}, drained: [2]time.Time{begin.Add(10 * time.Second), begin.Add(20 * time.Second)}, killed: begin.Add(30 * time.Second)}
	add := func(id, kind string, at time.Duration, v verdict, endpoint string) {
		r.results = append(r.results, result{job: job{id: id, kind: kind}, sent: begin.Add(at), verdict: v, endpoint: endpoint, attempts: 1,
			start: 10 * time.Millisecond, took: 20 * time.Millisecond, prompt: 100, cached: 50, output: 5})
		r.receipts[id] = &router.Receipt{Decision: router.Decision{Endpoint: endpoint}, Outcome: &router.OutcomeRecord{FirstTokenMS: 10}}
	}
	add("chat-1", kindChat, 0, answered, engineB)
	for i := range burstSize {
		v, endpoint := answered, engineA
		if i%2 == 0 {
			v, endpoint = refused, ""
		}
		add(fmt.Sprint("burst-", i), kindBurst, time.Second, v, endpoint)
	}
	add("chat-2", kindChat, 15*time.Second, answered, engineA)
	add("stream-1", kindStream, 29*time.Second, broken, engineC)
	add("chat-3", kindChat, 31*time.Second, answered, engineA)
	return r
}

func at(r *run, id string) *result {
	i := slices.IndexFunc(r.results, func(x result) bool { return x.id == id })
	return &r.results[i]
}

func TestCheck(t *testing.T) {
	require.NoError(t, good().check(false))
	for want, spoil := range map[string]func(r *run){
		"chat-1 was lost: gone":                func(r *run) { x := at(r, "chat-1"); x.verdict, x.err = lost, errors.New("gone") },
		"chat-1 was refused outside the burst": func(r *run) { at(r, "chat-1").verdict = refused },
		"chat-1 broke on engine-b":             func(r *run) { at(r, "chat-1").verdict = broken },
		"stream-1 broke on engine-c":           func(r *run) { at(r, "stream-1").sent = r.killed.Add(1) },
		"chat-2 went to engine-b while":        func(r *run) { at(r, "chat-2").endpoint = engineB },
		"chat-3 was answered by engine-c":      func(r *run) { at(r, "chat-3").endpoint = engineC },
		"chat-3 has no receipt":                func(r *run) { delete(r.receipts, "chat-3") },
		"behind the schedule":                  func(r *run) { r.late, at(r, "chat-1").verdict = time.Second, lost },
		"the kill broke no stream":             func(r *run) { at(r, "stream-1").verdict = answered },
		"met no refusal": func(r *run) {
			for i := range r.results {
				if r.results[i].verdict == refused {
					r.results[i].verdict = answered
				}
			}
		},
	} {
		r := good()
		spoil(r)
		require.ErrorContains(t, r.check(false), want)
	}
	r := good()
	for i := range r.results {
		if r.results[i].verdict == refused {
			r.results[i].verdict = answered
		}
	}
	r.queued = true
	require.NoError(t, r.check(false), "with a queue none need be refused")
	r = good()
	r.late = time.Second
	require.NoError(t, r.check(false), "late, and all the same")
	at(r, "chat-1").verdict = refused
	require.NoError(t, r.check(true))
}

func TestTableAndSummary(t *testing.T) {
	var b strings.Builder
	r := good()
	require.NoError(t, table(&b, r, 2, 8))
	text := b.String()
	require.Equal(t, 4+1+2, strings.Count(text, "\n"), text)
	require.Contains(t, text, fmt.Sprintf("burst x %d", burstSize/2))
	require.Less(t, strings.Index(text, "burst x"), strings.Index(text, "chat-2"))
	b.Reset()
	require.NoError(t, summary(&b, [2]string{"x", "y"}, [2]*run{r, r}))
	require.Contains(t, b.String(), "prompt tokens from cache, %  50.0  50.0")
	require.Equal(t, figures{}, (&run{}).figures(), "no NaN where nothing was answered")
}
