package workload

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var (
	_ Source = (*Open)(nil)
	_ Source = (*Loop)(nil)
	_ Source = (*Mix)(nil)
	_ Stream = (*Reader)(nil)
)

func TestOpen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorkload(t, 10)
		require.Equal(t, idsOf(w), idsOf(play(t, NewOpen(w.Stream()))))
	})
	o := NewOpen(Workload{{ID: 1, Arrival: 5}, {ID: 2, Arrival: 4}, {ID: 3, Arrival: 9}}.Stream())
	_, ok := o.Next()
	require.True(t, ok)
	_, ok = o.Peek()
	require.False(t, ok)
	require.ErrorContains(t, o.Err(), "workload: request 2: Arrival is 4ns, before 5ns")
	_, ok = o.Next()
	require.False(t, ok)

	r, err := NewReader(strings.NewReader("nonsense"), ReadOptions{Format: FormatMooncake})
	require.NoError(t, err)
	m, err := NewMix(NewOpen(Workload{{}}.Stream()), NewOpen(r))
	require.NoError(t, err)
	_, ok = m.Next()
	assert.False(t, ok, "an error of one part stops all")
	require.ErrorContains(t, m.Err(), "workload: trace:1: ")
}

func TestNewMixRefuses(t *testing.T) {
	_, err := NewMix()
	require.ErrorContains(t, err, "parts is empty")
	_, err = NewMix(NewOpen(Workload{}.Stream()), nil)
	require.ErrorContains(t, err, "parts[1] is nil")
}

// naiveLoop computes the arrivals of play over a Loop by looking at all sessions again after every step.
func naiveLoop(w Workload, concurrent int) Workload {
	sessions := map[uint64]Workload{}
	var order []uint64
	var out Workload
	for _, r := range w {
		if r.Session == 0 {
			out = append(out, r)
			continue
		}
		if sessions[r.Session] == nil {
			order = append(order, r.Session)
		}
		sessions[r.Session] = append(sessions[r.Session], r)
	}
	slices.SortStableFunc(order, func(a, b uint64) int { return cmp.Compare(sessions[a][0].Arrival, sessions[b][0].Arrival) })
	if concurrent == 0 {
		concurrent = len(order)
	}
	free := make([]time.Duration, concurrent) // when each place is free again
	for _, s := range order {
		k := slices.Index(free, slices.Min(free))
		at := max(free[k], sessions[s][0].Arrival)
		for i, r := range sessions[s] {
			if i > 0 {
				at += r.Think
			}
			r.Arrival = at
			out = append(out, r)
			at += time.Duration(r.OutputTokens) * time.Second
		}
		free[k] = at
	}
	return out
}

func TestLoopAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorkload(t, 25)
		concurrent := rapid.IntRange(0, 3).Draw(t, "concurrent")
		l, err := NewLoop(w, LoopConfig{Concurrent: concurrent})
		require.NoError(t, err)
		got := play(t, l)
		require.ElementsMatch(t, naiveLoop(w, concurrent), got)
		require.True(t, slices.IsSortedFunc(got, func(a, b Request) int { return cmp.Compare(a.Arrival, b.Arrival) }))
		require.Zero(t, l.Waiting())

		m, err := NewMix(NewOpen(Workload{}.Stream()), must(NewLoop(w, LoopConfig{Concurrent: concurrent})))
		require.NoError(t, err)
		inner, err := NewMix(m)
		require.NoError(t, err)
		mixed := play(t, inner)
		require.Len(t, mixed, len(got))
		for i, r := range mixed {
			require.Equal(t, got[i].Arrival, r.Arrival)
			require.Equal(t, got[i].ID*2+1, r.ID, "Finished finds its source through mixes of mixes")
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestLoopRefuses(t *testing.T) {
	_, err := NewLoop(nil, LoopConfig{Concurrent: -1})
	require.ErrorContains(t, err, "Concurrent is -1")
	_, err = NewLoop(Workload{{ID: 1}, {ID: 1}}, LoopConfig{})
	require.ErrorContains(t, err, "request 1: ID is used twice")
	_, err = NewLoop(Workload{{ID: 1, Session: 1}, {ID: 2, Session: 1}}, LoopConfig{})
	require.ErrorContains(t, err, "request 2: Turn is 0, that of request 1")
}

func TestLoopFindsImpossibleEnds(t *testing.T) {
	w := Workload{{ID: 1, Session: 1, Arrival: 5}, {ID: 2, Session: 1, Turn: 1}, {ID: 3, Session: 2, Arrival: 9}, {ID: 4}}
	for want, spoil := range map[string]func(l *Loop, r Request){
		"request 3 of session 2 has finished and is not in flight": func(l *Loop, _ Request) { l.Finished(&Request{ID: 3, Session: 2}, 9) },
		"request 2 of session 1 has finished and is not":           func(l *Loop, _ Request) { l.Finished(&Request{ID: 2, Session: 1}, 9) },
		"request 7 of session 8 has finished and is not":           func(l *Loop, _ Request) { l.Finished(&Request{ID: 7, Session: 8}, 9) },
		"request 1 has finished at 4ns, before its arrival at 5ns": func(l *Loop, r Request) { l.Finished(&r, 4) },
		"request 1 of session 1 has finished and is not": func(l *Loop, r Request) {
			l.Finished(&r, 6)
			l.Finished(&r, 6)
		},
	} {
		l := must(NewLoop(w, LoopConfig{}))
		lone, ok := l.Next()
		require.True(t, ok)
		require.EqualValues(t, 4, lone.ID)
		l.Finished(&lone, 1)
		l.Finished(&lone, 1)
		require.NoError(t, l.Err(), "requests without a session are nobody's concern")
		r, ok := l.Next()
		require.True(t, ok)
		spoil(l, r)
		require.ErrorContains(t, l.Err(), want)
		_, ok = l.Peek()
		require.False(t, ok)
		_, ok = l.Next()
		require.False(t, ok)
	}
}

func TestLoopWaitsForFinishes(t *testing.T) {
	w := Workload{{ID: 1, Session: 1, Arrival: 5}, {ID: 2, Session: 1, Turn: 1, Arrival: 6, Think: 10}, {ID: 3, Session: 2, Arrival: 1000}}
	l := must(NewLoop(w, LoopConfig{Concurrent: 1}))
	assert.Equal(t, 1, l.Waiting())
	r, _ := l.Next()
	_, ok := l.Peek()
	assert.False(t, ok, "nothing for now")
	l.Finished(&r, 100)
	at, _ := l.Peek()
	assert.EqualValues(t, 110, at)
	r, _ = l.Next()
	assert.EqualValues(t, 110, r.Arrival)
	l.Finished(&r, 200)
	at, _ = l.Peek()
	assert.EqualValues(t, 1000, at, "not before its own arrival")
	assert.EqualValues(t, 5, w[0].Arrival)
}

func TestReadAllPassesErrors(t *testing.T) {
	broken := errors.New("broken")
	w, err := ReadAll(&badStream{broken})
	require.ErrorIs(t, err, broken)
	assert.Nil(t, w)
}

type badStream struct{ err error }

func (*badStream) Next() (Request, bool) { return Request{}, false }
func (b *badStream) Err() error          { return b.err }
