package workload

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tracePath is where a recorded trace may be; the test is skipped where it is not.
func tracePath(tb testing.TB, name string) string {
	tb.Helper()
	path := filepath.Join("..", "..", "..", "shared", "traces", name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		tb.Skipf("trace %s is not here", name)
	}
	return path
}

func readTrace(tb testing.TB, name string, o ReadOptions) Workload {
	tb.Helper()
	w, err := ReadFile(tracePath(tb, name), o)
	require.NoError(tb, err)
	return w
}

// near allows the rounding of published figures: half a unit, and 0.3 % where ranks are counted otherwise.
func near(t *testing.T, want, got float64, what string) {
	t.Helper()
	assert.InDelta(t, want, got, 0.5+want*0.003, what)
}

func checkLengths(t *testing.T, want [2][4]float64, s Summary) {
	t.Helper()
	for i, v := range [2]Spread{s.Input, s.Output} {
		side := []string{"input ", "output "}[i]
		near(t, want[i][0], v.Mean, side+"mean")
		near(t, want[i][1], v.P50, side+"p50")
		near(t, want[i][2], v.P90, side+"p90")
		near(t, want[i][3], v.P99, side+"p99")
	}
}

func TestMooncakeTrace(t *testing.T) {
	w := readTrace(t, "mooncake_conversation.jsonl.gz", ReadOptions{})
	require.NoError(t, w.Check())
	s := Summarize(w)
	t.Log(s)
	assert.Equal(t, 12031, s.Requests)
	assert.InDelta(t, 3537, s.Span.Seconds(), 1)
	assert.InDelta(t, 3.40, s.Rate, 0.005)
	checkLengths(t, [2][4]float64{{12035, 6909, 27367, 85401}, {343, 350, 597, 1120}}, s)
	assert.Equal(t, 126195.0, s.Input.Max)
	assert.InDelta(t, 0.374, s.Hit, 0.001)
	assert.InDelta(t, 3.03, s.GapCV, 0.01)
	for window, want := range map[time.Duration]float64{time.Second: 1.52, 10 * time.Second: 0.25, time.Minute: 0.12} {
		cv, err := CountCV(w, window)
		require.NoError(t, err)
		assert.InDelta(t, want, cv, 0.01, "count CV in %v", window)
	}
	for i := range w {
		require.Equal(t, w[i].PromptTokens/BlockTokens, w[i].PromptBlocks())
	}
}

func TestSessionsTrace(t *testing.T) {
	w := readTrace(t, "agentic_claude_sessions.jsonl.gz", ReadOptions{SeparateSessions: true})
	require.NoError(t, w.Check())
	s := Summarize(w)
	t.Log(s)
	assert.Equal(t, 44758, s.Requests)
	assert.Equal(t, 676, s.Sessions)
	checkLengths(t, [2][4]float64{{116694, 99150, 194012, 508604}, {437, 217, 878, 3694}}, s)
	assert.InDelta(t, 0.962, s.Hit, 0.001)

	shared := readTrace(t, "agentic_claude_sessions.jsonl.gz", ReadOptions{})
	require.NoError(t, shared.Check())
	require.Len(t, shared, len(w))
	with := Summarize(shared)
	t.Log(with)
	assert.Greater(t, with.Hit, s.Hit)
	assert.Less(t, with.Blocks, s.Blocks)
	segments := 0
	for i := range shared {
		require.Equal(t, w[i].PromptBlocks(), shared[i].PromptBlocks())
		segments += len(shared[i].Segments)
	}
	assert.Less(t, segments, 6*len(w), "the prompts stay small")

	// By input alone the trace has 234 sessions and 8,767 requests of at most 130,000 tokens; one of them ends beyond.
	fit, err := FitContext(w, 130_000)
	require.NoError(t, err)
	assert.Equal(t, 233, Summarize(fit).Sessions)
	assert.Len(t, fit, 8666)
}

func TestAzureTrace(t *testing.T) {
	w := readTrace(t, "azure2023_conv.csv.gz", ReadOptions{})
	require.NoError(t, w.Check())
	s := Summarize(w)
	t.Log(s)
	assert.Equal(t, 19366, s.Requests)
	assert.InDelta(t, 3502, s.Span.Seconds(), 1)
	assert.InDelta(t, 5.53, s.Rate, 0.005)
	checkLengths(t, [2][4]float64{{1155, 1020, 2735, 4142}, {211, 129, 424, 601}}, s)
	assert.Zero(t, s.Hit)
	assert.InDelta(t, 1.09, s.GapCV, 0.01)
	for window, want := range map[time.Duration]float64{10 * time.Second: 0.26, time.Minute: 0.22} {
		cv, err := CountCV(w, window)
		require.NoError(t, err)
		assert.InDelta(t, want, cv, 0.01, "count CV in %v", window)
	}
}

func TestBlocks16Trace(t *testing.T) {
	w := readTrace(t, "vllm_gt_sharegpt300_workload.jsonl.gz", ReadOptions{})
	require.NoError(t, w.Check())
	s := Summarize(w)
	t.Log(s)
	assert.Equal(t, 300, s.Requests)
	assert.InDelta(t, 29.1, s.Span.Seconds(), 0.1)
	checkLengths(t, [2][4]float64{{858, 730, 1458, 2764}, {653, 631, 770, 784}}, s)
	assert.InDelta(t, 0.076, s.Hit, 0.0005)
	assert.Equal(t, 46_926_808*time.Nanosecond, w[0].Arrival)
}
