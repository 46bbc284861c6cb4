package workload

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func generate(tb testing.TB, g Generator) Workload {
	tb.Helper()
	w, err := g.Generate()
	require.NoError(tb, err)
	return w
}

// drawWorkload is a small workload with few different arrivals and sessions, so that ties are common.
func drawWorkload(t *rapid.T, most int) Workload {
	n := rapid.IntRange(0, most).Draw(t, "n")
	w := make(Workload, n)
	turns := map[uint64]int{}
	at := time.Duration(0)
	for i := range w {
		at += time.Duration(rapid.IntRange(0, 3).Draw(t, "gap")) * time.Second
		session := uint64(rapid.IntRange(0, 3).Draw(t, "session"))
		w[i] = Request{
			ID:           uint64(i),
			Arrival:      at,
			PromptTokens: int64(rapid.IntRange(1, 100).Draw(t, "prompt")),
			OutputTokens: int64(rapid.IntRange(1, 5).Draw(t, "output")),
			Session:      session,
			Think:        time.Duration(rapid.IntRange(0, 2).Draw(t, "think")) * time.Second,
		}
		if session != 0 {
			w[i].Turn = turns[session]
			turns[session]++
		}
	}
	return w
}

func idsOf(w Workload) []uint64 {
	ids := []uint64{}
	for i := range w {
		ids = append(ids, w[i].ID)
	}
	return ids
}

// play serves every request alone and at once, each for one second per output token, and returns what arrived when, in the
// order in which it was taken.
func play(tb require.TestingT, s Source) Workload {
	type flight struct {
		r   Request
		end time.Duration
	}
	var flights []flight
	var out Workload
	for {
		at, ok := s.Peek()
		first := -1
		for i, f := range flights {
			if first < 0 || f.end < flights[first].end || (f.end == flights[first].end && f.r.ID < flights[first].r.ID) {
				first = i
			}
		}
		// An end goes before an arrival at the same moment.
		if first >= 0 && (!ok || flights[first].end <= at) {
			f := flights[first]
			flights = append(flights[:first], flights[first+1:]...)
			s.Finished(&f.r, f.end)
			continue
		}
		if !ok {
			break
		}
		r, ok := s.Next()
		require.True(tb, ok)
		require.Equal(tb, at, r.Arrival)
		out = append(out, r)
		flights = append(flights, flight{r, r.Arrival + time.Duration(r.OutputTokens)*time.Second})
	}
	require.NoError(tb, s.Err())
	_, ok := s.Next()
	require.False(tb, ok)
	return out
}
