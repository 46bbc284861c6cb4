package workload

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestScale(t *testing.T) {
	w := Workload{{Arrival: 3 * time.Second, Think: time.Second, Deadline: time.Second}}
	got, err := Scale(w, 2)
	require.NoError(t, err)
	assert.Equal(t, Workload{{Arrival: 1500 * time.Millisecond, Think: 500 * time.Millisecond, Deadline: time.Second}}, got)
	assert.Equal(t, 3*time.Second, w[0].Arrival)
	for _, bad := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		_, err := Scale(w, bad)
		require.ErrorContains(t, err, fmt.Sprintf("workload: speed is %v", bad))
	}
	_, err = Scale(w, 1e-12)
	require.ErrorContains(t, err, "longer than 100 years")
}

func TestJitter(t *testing.T) {
	// Ticks of 3 s with 10 requests each, as a slow clock leaves them.
	var w Workload
	for i := range 3000 {
		w = append(w, Request{ID: uint64(i), Arrival: time.Duration(i/10) * 3 * time.Second, PromptTokens: 1, OutputTokens: 1})
	}
	got, err := Jitter(w, 3*time.Second, 7)
	require.NoError(t, err)
	again, err := Jitter(w, 3*time.Second, 7)
	require.NoError(t, err)
	assert.Equal(t, got, again)
	other, err := Jitter(w, 3*time.Second, 8)
	require.NoError(t, err)
	assert.NotEqual(t, got, other)
	sum := 0.0
	for i := range got {
		d := got[i].Arrival - w[got[i].ID].Arrival
		require.True(t, d >= 0 && d < 3*time.Second)
		sum += d.Seconds()
		require.True(t, i == 0 || got[i-1].Arrival <= got[i].Arrival)
	}
	assert.InDelta(t, 1.5, sum/3000, 4*3/math.Sqrt(12*3000))
	assert.InDelta(t, 2.99, Summarize(w).GapCV, 0.1)
	assert.InDelta(t, 1, Summarize(got).GapCV, 0.1)

	none, err := Jitter(w, 0, 7)
	require.NoError(t, err)
	assert.Equal(t, w, none)
	_, err = Jitter(w, -1, 7)
	require.ErrorContains(t, err, "most is -1ns")
	_, err = Jitter(Workload{{Arrival: math.MaxInt64}}, time.Hour, 7)
	require.ErrorContains(t, err, "would be too late")
}

func TestJitterMovesSessionsAsAWhole(t *testing.T) {
	w := Workload{{ID: 0, Session: 1}, {ID: 1, Session: 2}, {ID: 2, Arrival: 5, Session: 1, Turn: 1}, {ID: 3}, {ID: 4}}
	got, err := Jitter(w, time.Hour, 1)
	require.NoError(t, err)
	at := map[uint64]time.Duration{}
	for i := range got {
		at[got[i].ID] = got[i].Arrival
	}
	assert.Equal(t, at[0]+5, at[2])
	assert.NotEqual(t, at[0], at[1])
	assert.NotEqual(t, at[3], at[4])
}

func TestHeads(t *testing.T) {
	w := Workload{{ID: 0, Session: 5}, {ID: 1}, {ID: 2, Session: 6}, {ID: 3, Session: 5}, {ID: 4, Session: 7}}
	head := func(n int) []uint64 {
		got, err := Head(w, n)
		require.NoError(t, err)
		return idsOf(got)
	}
	assert.Equal(t, []uint64{}, head(0))
	assert.Equal(t, []uint64{0, 1, 2}, head(3))
	assert.Equal(t, []uint64{0, 1, 2, 3, 4}, head(9))
	got, err := HeadSessions(w, 2)
	require.NoError(t, err)
	assert.Equal(t, []uint64{0, 1, 2, 3}, idsOf(got))
	got, err = HeadSessions(w, 0)
	require.NoError(t, err)
	assert.Equal(t, []uint64{1}, idsOf(got))
	_, err = Head(w, -1)
	require.ErrorContains(t, err, "n is -1")
	_, err = HeadSessions(w, -1)
	require.ErrorContains(t, err, "n is -1")
}

func TestContexts(t *testing.T) {
	r := func(id, session uint64, in, out int64) Request {
		return Request{ID: id, Session: session, PromptTokens: in, OutputTokens: out}
	}
	w := Workload{r(0, 1, 50, 50), r(1, 0, 50, 50), r(2, 1, 51, 50), r(3, 0, 100, 1), r(4, 2, 99, 1), r(5, 1, 10, 1), r(6, 0, 10, 1)}
	got, err := FitContext(w, 100)
	require.NoError(t, err)
	assert.Equal(t, []uint64{1, 4, 6}, idsOf(got))
	got, err = CutContext(w, 100)
	require.NoError(t, err)
	assert.Equal(t, []uint64{0, 1, 4, 6}, idsOf(got))
	_, err = FitContext(w, 0)
	require.ErrorContains(t, err, "limit is 0")
	_, err = CutContext(w, 0)
	require.ErrorContains(t, err, "limit is 0")
}

func TestConcat(t *testing.T) {
	a := Workload{{ID: 0, Arrival: 1, Session: 1}, {ID: 1, Arrival: 9, Session: 2}}
	b := Workload{{ID: 0, Arrival: 2}, {ID: 1, Arrival: 3, Session: 1}}
	got, err := Concat(100, a, nil, b)
	require.NoError(t, err)
	assert.Equal(t, Workload{
		{ID: 0, Arrival: 1, Session: 1}, {ID: 3, Arrival: 9, Session: 4}, {ID: 2, Arrival: 111}, {ID: 5, Arrival: 112, Session: 3},
	}, got)
	_, err = Concat(-1, a)
	require.ErrorContains(t, err, "gap is -1ns")
	_, err = Concat(math.MaxInt64, a, b)
	require.ErrorContains(t, err, "too late")
	_, err = Concat(math.MaxInt64-9, a, b)
	require.ErrorContains(t, err, "too late")
}

func TestLabelled(t *testing.T) {
	w := Workload{{ID: 1}}
	assert.Equal(t, "x", Labelled(w, "x")[0].Label)
	assert.Empty(t, w[0].Label)
}

// Merge is Mix of open sources, and both are what sorting by hand gives.
func TestMergeIsMix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var parts []Workload
		var sources []Source
		var naive []string
		for k := range rapid.IntRange(1, 3).Draw(t, "parts") {
			w := Labelled(drawWorkload(t, 8), fmt.Sprint(k))
			parts = append(parts, w)
			sources = append(sources, NewOpen(w.Stream()))
			for _, r := range w {
				naive = append(naive, fmt.Sprintf("%05d %s %05d", r.Arrival/time.Second, r.Label, r.ID))
			}
		}
		slices.Sort(naive)
		m, err := NewMix(sources...)
		require.NoError(t, err)
		mixed := play(t, m)
		merged := Merge(parts...)
		require.ElementsMatch(t, mixed, merged)
		n := uint64(len(parts))
		ids, sessions := map[uint64]bool{}, map[uint64]string{}
		var got []string
		for _, r := range mixed {
			got = append(got, fmt.Sprintf("%05d %s %05d", r.Arrival/time.Second, r.Label, r.ID/n))
			require.False(t, ids[r.ID])
			ids[r.ID] = true
			if label, ok := sessions[r.Session]; ok && r.Session != 0 {
				require.Equal(t, label, r.Label, "sessions of two parts never meet")
			}
			sessions[r.Session] = r.Label
		}
		require.Equal(t, naive, got)
	})
}

func TestStartSessions(t *testing.T) {
	var w Workload
	for s := range 2000 {
		for turn := range 2 {
			w = append(w, Request{
				ID: uint64(2*s + turn), Session: uint64(s + 1), Turn: turn, Arrival: time.Second + time.Duration(turn)*time.Minute,
				PromptTokens: 1, OutputTokens: 1,
			})
		}
	}
	w = append(w, Request{ID: 9999, Arrival: 17, PromptTokens: 1, OutputTokens: 1})
	got, err := StartSessions(w, Starts{Rate: 2, Seed: 1})
	require.NoError(t, err)
	require.NoError(t, got.Check())
	require.Len(t, got, len(w))
	first := map[uint64]time.Duration{}
	starts := Workload{}
	order := []uint64{}
	for i, r := range got {
		require.True(t, i == 0 || got[i-1].Arrival <= r.Arrival)
		switch {
		case r.ID == 9999:
			assert.EqualValues(t, 17, r.Arrival)
		case r.Turn == 0:
			first[r.Session] = r.Arrival
			starts = append(starts, r)
			order = append(order, r.Session)
		default:
			require.Equal(t, first[r.Session]+time.Minute, r.Arrival)
		}
	}
	s := Summarize(starts)
	assert.InDelta(t, 2, s.Rate, 4*2/math.Sqrt(2000))
	assert.InDelta(t, 1, s.GapCV, 0.1)
	assert.True(t, slices.IsSorted(order))

	later := slices.Clone(w)
	for i := range later[:4000] {
		later[i].Arrival += time.Hour
	}
	same, err := StartSessions(later, Starts{Rate: 2, Seed: 1})
	require.NoError(t, err)
	assert.Equal(t, got, same, "whatever the session's clock shows at its start")

	mixed, err := StartSessions(w, Starts{Rate: 2, Seed: 1, Shuffle: true})
	require.NoError(t, err)
	again, err := StartSessions(w, Starts{Rate: 2, Seed: 1, Shuffle: true})
	require.NoError(t, err)
	assert.Equal(t, mixed, again)
	assert.NotEqual(t, got, mixed)
	for _, bad := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		_, err := StartSessions(w, Starts{Rate: bad})
		require.ErrorContains(t, err, "Rate is ")
	}
	_, err = StartSessions(w, Starts{Rate: 1e-12})
	require.ErrorContains(t, err, "100 years")
}

func TestRearrive(t *testing.T) {
	w := generate(t, TinyChats{Load: Load{Requests: 20_000}})
	for _, cv := range []float64{0, 0.5, 1, 3} {
		got, err := Rearrive(w, 7, cv, 1)
		require.NoError(t, err)
		s := Summarize(got)
		// Rate within 4 standard errors, the variation within 5 %.
		assert.InDelta(t, 7, s.Rate, 0.01+4*7*cv/math.Sqrt(20_000), "cv %v", cv)
		assert.InDelta(t, cv, s.GapCV, 1e-6+0.05*cv)
		assert.Equal(t, idsOf(w), idsOf(got))
	}
	for _, bad := range []float64{0, math.NaN(), math.Inf(1)} {
		_, err := Rearrive(w, bad, 1, 1)
		require.ErrorContains(t, err, "rate is ")
	}
	for _, bad := range []float64{-1, math.NaN(), 11} {
		_, err := Rearrive(w, 1, bad, 1)
		require.ErrorContains(t, err, "cv is ")
	}
	_, err := Rearrive(w, 1e-12, 1, 1)
	require.ErrorContains(t, err, "100 years")
	_, err = Rearrive(Workload{{ID: 4, Session: 1}}, 1, 1, 1)
	require.ErrorContains(t, err, "request 4 has a session")
}

func TestEstimates(t *testing.T) {
	w := generate(t, TinyChats{Load: Load{Requests: 20_000}})
	got, err := Estimates(w, Guess{Bias: 2, Sigma: 0.7, Share: 0.25, Seed: 1})
	require.NoError(t, err)
	require.NoError(t, got.Check())
	var logs []float64
	for i := range got {
		if got[i].ExpectedOutputTokens > 0 && got[i].OutputTokens > 50 {
			logs = append(logs, math.Log(float64(got[i].ExpectedOutputTokens)/float64(got[i].OutputTokens)))
		}
	}
	known := got.Filter(func(r *Request) bool { return r.ExpectedOutputTokens > 0 })
	assert.InDelta(t, 0.25, float64(len(known))/20_000, 4*math.Sqrt(0.25*0.75/20_000))
	assert.InDelta(t, math.Log(2), spread(logs).P50, 0.05)
	assert.InDelta(t, math.Log(2)+1.2816*0.7, spread(logs).P90, 0.1)

	got, err = Estimates(w, Guess{Max: 200, Bias: 1})
	require.NoError(t, err)
	require.NoError(t, got.Check())
	for i := range got {
		require.Equal(t, max(200, w[i].OutputTokens), got[i].MaxOutputTokens)
		require.Equal(t, w[i].OutputTokens, got[i].ExpectedOutputTokens)
	}
	for _, bias := range []float64{0.001, 1000} {
		wild, err := Estimates(w, Guess{Max: 200, Bias: bias, Sigma: 1})
		require.NoError(t, err)
		for i := range wild {
			require.True(t, 1 <= wild[i].ExpectedOutputTokens && wild[i].ExpectedOutputTokens <= wild[i].MaxOutputTokens)
		}
	}
	got, err = Estimates(got, Guess{})
	require.NoError(t, err)
	assert.Equal(t, w, got)
	for want, g := range map[string]Guess{
		"Max is -1": {Max: -1}, "Bias is NaN": {Bias: math.NaN()}, "Sigma is 5": {Sigma: 5}, "Share is 2": {Share: 2},
	} {
		_, err := Estimates(w, g)
		require.ErrorContains(t, err, "workload: "+want)
	}
}

func TestTenants(t *testing.T) {
	w := generate(t, TinyChats{Load: Load{Requests: 20_000}})
	got, err := Tenants(w, 3, 1, 1)
	require.NoError(t, err)
	count := map[string]int{}
	for i := range got {
		count[got[i].Tenant]++
	}
	for k, want := range []float64{6.0 / 11, 3.0 / 11, 2.0 / 11} {
		assert.InDelta(t, want, float64(count[fmt.Sprintf("tenant-%d", k)])/20_000, 0.015)
	}
	got, err = Tenants(generate(t, Agentic{}), 5, 0, 1)
	require.NoError(t, err)
	of := map[uint64]string{}
	for _, r := range got {
		if name, ok := of[r.Session]; ok {
			require.Equal(t, name, r.Tenant)
		}
		of[r.Session] = r.Tenant
	}
	_, err = Tenants(w, 0, 1, 1)
	require.ErrorContains(t, err, "n is 0")
	_, err = Tenants(w, 1, -1, 1)
	require.ErrorContains(t, err, "zipf is -1")
}
