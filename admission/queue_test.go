package admission_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
)

func newQueue(t testing.TB, cfg admission.QueueConfig) *admission.Queue[string] {
	t.Helper()
	q, err := admission.NewQueue[string](cfg)
	require.NoError(t, err)
	return q
}

func push(t testing.TB, q *admission.Queue[string], name string, ask admission.Ask, now int64) *waiter {
	t.Helper()
	w := &waiter{Value: name}
	_, err := q.Push(w, ask, now)
	require.NoError(t, err)
	return w
}

func names(ws ...*waiter) (out []string) {
	for _, w := range ws {
		out = append(out, w.Value)
	}
	return out
}

// grantAll grants everybody, one a pass.
func grantAll(q *admission.Queue[string], now int64) (order []string) {
	for {
		q.Begin(now)
		w := q.Next()
		if w == nil {
			return order
		}
		q.Granted(w, now)
		order = append(order, w.Value)
	}
}

func TestQueueConfig(t *testing.T) {
	q := newQueue(t, admission.QueueConfig{})
	want := admission.QueueConfig{Max: 1024, Timeout: 30 * time.Second, Classes: 1, AgeAfter: 10 * time.Second, AgedEvery: 8}
	require.Equal(t, want, q.Config())
	bad := admission.QueueConfig{Max: -1, MaxTokens: -2, Timeout: -3, Classes: 9, AgeAfter: -4, AgedEvery: -5}
	_, err := admission.NewQueue[int](bad)
	for _, part := range []string{"Max = -1", "MaxTokens = -2", "Timeout = -3ns", "Classes = 9", "AgeAfter = -4ns", "AgedEvery = -5"} {
		require.ErrorContains(t, err, "admission: QueueConfig."+part+" must be")
	}
}

func TestQueueRefusesBadAsks(t *testing.T) {
	q := newQueue(t, admission.QueueConfig{Classes: 2, MaxTokens: 100})
	for _, tc := range []struct {
		ask  admission.Ask
		want string
	}{
		{admission.Ask{Rank: 2, Cost: 1}, "Ask.Rank = 2 must be 0 to 1"},
		{admission.Ask{Rank: -1, Cost: 1}, "Ask.Rank = -1"},
		{admission.Ask{}, "Ask.Cost = 0 must be 1"},
		{admission.Ask{Cost: admission.MaxCost + 1}, "Ask.Cost"},
		{admission.Ask{Cost: 1, Weight: -1}, "Ask.Weight = -1"},
		{admission.Ask{Cost: 1, Weight: math.NaN()}, "Ask.Weight = NaN"},
		{admission.Ask{Cost: 1, Weight: math.Inf(1)}, "Ask.Weight = +Inf"},
		{admission.Ask{Cost: 1, Weight: 1e-7}, "Ask.Weight = 1e-07"},
		{admission.Ask{Cost: 101}, admission.ErrTooLarge.Error()},
		{admission.Ask{Cost: 1, Latest: 9}, admission.ErrLate.Error()},
	} {
		_, err := q.Push(&waiter{}, tc.ask, 10)
		require.ErrorContains(t, err, tc.want)
	}
	_, err := q.Push(nil, admission.Ask{Cost: 1}, 10)
	require.ErrorContains(t, err, "waiter is nil")
	w := push(t, q, "a", admission.Ask{Cost: 1, Latest: 10}, 10)
	_, err = q.Push(w, admission.Ask{Cost: 1}, 10)
	require.ErrorContains(t, err, "waits already")
	require.Equal(t, 1, q.Len())
	require.Equal(t, admission.Ask{Cost: 1, Latest: 10, Weight: 1}, w.Ask())
	require.Equal(t, int64(10), w.Enqueued())

	other := newQueue(t, admission.QueueConfig{})
	require.False(t, other.Remove(w))
	require.False(t, other.Granted(w, 10))
	require.False(t, q.Remove(nil))
	require.False(t, q.Granted(nil, 10))
	require.Zero(t, q.Class(7, 10))
	require.Nil(t, q.Next(), "no pass was begun")
}

func TestQueueOrder(t *testing.T) {
	q := newQueue(t, admission.QueueConfig{Classes: 3})
	push(t, q, "batch", admission.Ask{Rank: 2, Cost: 1}, 0)
	push(t, q, "std a1", admission.Ask{Rank: 1, Tenant: 1, Group: 1, Cost: 100}, 0)
	push(t, q, "std a2", admission.Ask{Rank: 1, Tenant: 1, Group: 2, Cost: 10}, 0)
	push(t, q, "std b1", admission.Ask{Rank: 1, Tenant: 2, Group: 1, Cost: 30}, 0)
	push(t, q, "std b2", admission.Ask{Rank: 1, Tenant: 2, Group: 2, Cost: 30}, 0)
	push(t, q, "top", admission.Ask{Rank: 0, Cost: 1000}, 0)
	push(t, q, "std c1", admission.Ask{Rank: 1, Tenant: 3, Group: 1, Cost: 60, Weight: 3}, 0)
	push(t, q, "std c2", admission.Ask{Rank: 1, Tenant: 3, Group: 1, Cost: 60, Weight: 3}, 0)
	// Virtual starts: a 0, 100; b 0, 30; c 0, 20.
	require.Equal(t, []string{"top", "std a1", "std b1", "std c1", "std c2", "std b2", "std a2", "batch"}, grantAll(q, 1))
	require.NoError(t, q.Check())
}

func TestQueuePassesOverWhatDoesNotFit(t *testing.T) {
	q := newQueue(t, admission.QueueConfig{Classes: 2})
	for _, name := range []string{"a", "b", "c"} {
		push(t, q, name, admission.Ask{Group: 1, Cost: 1}, 0)
	}
	push(t, q, "d", admission.Ask{Group: 2, Cost: 1}, 0)
	push(t, q, "e", admission.Ask{Rank: 1, Group: 1, Cost: 1}, 0)
	push(t, q, "f", admission.Ask{Rank: 1, Group: 2, Cost: 1}, 0)
	pass := func(skip func(*waiter) bool) (seen []string) {
		q.Begin(0)
		for w := q.Next(); w != nil; w = q.Next() {
			seen = append(seen, w.Value)
			if skip(w) {
				q.SkipGroup(w.Ask().Group)
			}
		}
		require.Nil(t, q.Next(), "the pass has ended")
		return seen
	}
	require.Equal(t, []string{"a", "b", "c", "d", "e", "f"}, pass(func(*waiter) bool { return false }))
	require.Equal(t, []string{"a", "d"}, pass(func(*waiter) bool { return true }), "alike in any class")
	require.Equal(t, []string{"a", "b", "d", "f"}, pass(func(w *waiter) bool { return w.Value == "b" }))

	q.Begin(0)
	q.SkipGroup(1)
	w := q.Next()
	require.True(t, q.Granted(w, 0))
	require.Equal(t, "d", w.Value)
	require.False(t, q.Granted(w, 0), "once only")
	require.Equal(t, "f", q.Next().Value)
	push(t, q, "g", admission.Ask{Cost: 1}, 0)
	require.Nil(t, q.Next(), "Push ends the pass")
	require.Equal(t, []string{"a", "b", "c", "g", "e", "f"}, pass(func(*waiter) bool { return false }))
}

func TestQueueDisplaces(t *testing.T) {
	type in struct {
		name string
		ask  admission.Ask
	}
	b := func(tenant uint64, cost int64) admission.Ask {
		return admission.Ask{Rank: 1, Tenant: tenant, Cost: cost}
	}
	for _, tc := range []struct {
		name      string
		cfg       admission.QueueConfig
		waiting   []in
		ask       admission.Ask
		displaced []string
		err       error
	}{
		{"room", admission.QueueConfig{Max: 2}, []in{{"a", b(1, 1)}}, b(1, 1), nil, nil},
		{"own tenant never yields", admission.QueueConfig{Max: 2}, []in{{"a", b(1, 5)}, {"b", b(1, 5)}}, b(1, 1), nil, admission.ErrFull},
		{"the youngest of the longest", admission.QueueConfig{Max: 4},
			[]in{{"a", b(1, 5)}, {"b", b(2, 3)}, {"c", b(1, 5)}, {"d", b(2, 3)}}, b(3, 1), []string{"c"}, nil},
		{"equal holdings stay", admission.QueueConfig{Max: 2}, []in{{"a", b(1, 5)}, {"b", b(2, 5)}}, b(3, 5), nil, admission.ErrFull},
		{"weights count", admission.QueueConfig{Max: 2},
			[]in{{"a", admission.Ask{Rank: 1, Tenant: 1, Cost: 9, Weight: 9}}, {"b", b(2, 5)}}, b(3, 2), []string{"b"}, nil},
		{"own holding counts", admission.QueueConfig{Max: 2}, []in{{"a", b(1, 5)}, {"b", b(3, 5)}}, b(3, 1), nil, admission.ErrFull},
		{"several for their tokens", admission.QueueConfig{MaxTokens: 20},
			[]in{{"a", b(1, 4)}, {"b", b(1, 4)}, {"c", b(1, 4)}, {"d", b(1, 4)}, {"e", b(2, 4)}}, b(3, 7), []string{"d", "c"}, nil},
		{"nothing half done", admission.QueueConfig{MaxTokens: 20}, []in{{"a", b(1, 10)}, {"b", b(1, 10)}}, b(3, 11), nil, admission.ErrFull},
		{"lower classes first, the lowest first, youngest first", admission.QueueConfig{Max: 4, Classes: 4}, []in{
			{"a", admission.Ask{Rank: 3, Cost: 1}}, {"b", admission.Ask{Rank: 3, Cost: 1}},
			{"c", admission.Ask{Rank: 2, Cost: 1}}, {"d", admission.Ask{Rank: 2, Cost: 99}},
		}, b(1, 1), []string{"b"}, nil},
		{"then its own class", admission.QueueConfig{MaxTokens: 10, Classes: 3}, []in{
			{"a", admission.Ask{Rank: 2, Cost: 1}}, {"b", b(1, 3)}, {"c", b(1, 3)}, {"d", b(1, 3)},
		}, b(2, 3), []string{"a", "d"}, nil},
		{"a higher class never", admission.QueueConfig{Max: 1},
			[]in{{"a", admission.Ask{Rank: 0, Tenant: 1, Cost: 100}}}, b(2, 1), nil, admission.ErrFull},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.cfg.Classes == 0 {
				tc.cfg.Classes = 2
			}
			q := newQueue(t, tc.cfg)
			for _, w := range tc.waiting {
				push(t, q, w.name, w.ask, 0)
			}
			before := names(slices.Collect(q.All())...)
			w := &waiter{Value: "new"}
			displaced, err := q.Push(w, tc.ask, 0)
			require.ErrorIs(t, err, tc.err)
			require.Equal(t, tc.displaced, names(displaced...))
			require.NoError(t, q.Check())
			if err != nil {
				require.Equal(t, before, names(slices.Collect(q.All())...))
				return
			}
			for _, d := range displaced {
				require.False(t, q.Remove(d))
			}
			require.ElementsMatch(t, append(before, "new"), append(names(slices.Collect(q.All())...), tc.displaced...))
		})
	}
}

func TestQueueExpiry(t *testing.T) {
	q := newQueue(t, admission.QueueConfig{Classes: 2, Timeout: 100})
	_, some := q.NextExpiry()
	require.False(t, some)
	push(t, q, "both", admission.Ask{Cost: 1, Latest: 99}, 0)           // at the same moment: the timeout
	push(t, q, "late", admission.Ask{Rank: 1, Cost: 1, Latest: 50}, 0)  // after 50
	push(t, q, "old", admission.Ask{Cost: 1, Latest: math.MaxInt64}, 5) // at 105
	for _, want := range []struct {
		at    int64
		name  string
		cause admission.Cause
	}{{51, "late", admission.PastLatest}, {100, "both", admission.TimedOut}, {105, "old", admission.TimedOut}} {
		at, _ := q.NextExpiry()
		require.Equal(t, want.at, at)
		w, _ := q.Expired(at - 1)
		require.Nil(t, w)
		w, cause := q.Expired(at)
		require.Equal(t, want.name, w.Value)
		require.Equal(t, want.cause, cause)
	}
	require.Zero(t, q.Len())
	require.Equal(t, "none, timed out, past latest", fmt.Sprintf("%v, %v, %v", admission.Cause(0), admission.TimedOut, admission.PastLatest))

	push(t, q, "a", admission.Ask{Cost: 1}, math.MaxInt64-1)
	at, _ := q.NextExpiry()
	require.Equal(t, int64(math.MaxInt64), at, "the scale's end")
}

func TestQueueStats(t *testing.T) {
	q := newQueue(t, admission.QueueConfig{Classes: 2})
	require.Zero(t, q.Oldest(50))
	push(t, q, "a", admission.Ask{Rank: 1, Cost: 7}, 10)
	push(t, q, "b", admission.Ask{Rank: 1, Cost: 8}, 20)
	push(t, q, "c", admission.Ask{Cost: 9}, 30)
	require.Equal(t, admission.ClassWaiting{Waiters: 2, Tokens: 15, Oldest: 40}, q.Class(1, 50))
	require.Equal(t, admission.ClassWaiting{Waiters: 1, Tokens: 9, Oldest: 20}, q.Class(0, 50))
	require.Equal(t, time.Duration(40), q.Oldest(50))
	require.Equal(t, int64(24), q.Tokens())
	for range q.All() {
		break
	}
}

func TestQueueMeanGap(t *testing.T) {
	q := newQueue(t, admission.QueueConfig{})
	a := push(t, q, "a", admission.Ask{Cost: 1}, 0)
	require.Zero(t, q.MeanGap())
	q.Granted(a, 1000)
	require.Zero(t, q.MeanGap(), "the first grant after nobody waited measures nothing")
	for i := range 40 {
		push(t, q, "b", admission.Ask{Cost: 1}, 5000)
		push(t, q, "c", admission.Ask{Cost: 1}, 5000+int64(i))
	}
	now := int64(5000)
	q.Begin(now)
	for w := q.Next(); w != nil; w = q.Next() {
		q.Granted(w, now)
		now += 10
		if q.Len() < 40 {
			break
		}
	}
	require.Equal(t, time.Duration(10), q.MeanGap())
}

// While both wait, tokens over weight differ by no more than one request of each.
func TestQueueTenantsShareByWeight(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 0))
		q := newQueue(t, admission.QueueConfig{})
		weight := []float64{1, 3}
		largest := []int64{900, 200}
		served := [2]float64{}
		for range 10 {
			for tenant := range weight {
				push(t, q, "", admission.Ask{Tenant: uint64(tenant), Cost: 1 + rng.Int64N(largest[tenant]), Weight: weight[tenant]}, 0)
			}
		}
		bound := float64(largest[0])/weight[0] + float64(largest[1])/weight[1]
		worst := 0.0
		for range 3000 {
			q.Begin(0)
			w := q.Next()
			ask := w.Ask()
			q.Granted(w, 0)
			served[ask.Tenant] += float64(ask.Cost) / ask.Weight
			push(t, q, "", admission.Ask{Tenant: ask.Tenant, Cost: 1 + rng.Int64N(largest[ask.Tenant]), Weight: ask.Weight}, 0)
			worst = max(worst, math.Abs(served[0]-served[1]))
			require.LessOrEqual(t, worst, bound)
		}
		require.Greater(t, worst, 100.0, "the bound was not tried")
	}
}

func TestQueueNewcomersAndIdleTenants(t *testing.T) {
	q := newQueue(t, admission.QueueConfig{})
	serve := func(n int) (served map[uint64]int) {
		served = map[uint64]int{}
		for range n {
			q.Begin(0)
			w := q.Next()
			q.Granted(w, 0)
			served[w.Ask().Tenant]++
		}
		return served
	}
	fill := func(tenant uint64, n int) {
		for range n {
			push(t, q, "", admission.Ask{Tenant: tenant, Cost: 10}, 0)
		}
	}
	fill(1, 300)
	serve(100)
	fill(2, 50) // new, or idle since the start: not behind the 200 that wait, and no credit for the 100 served
	require.InDelta(t, 10, serve(20)[2], 1)
	serve(80) // 2 is done
	fill(1, 100)
	fill(2, 50) // idle for a while: the same again
	require.InDelta(t, 10, serve(20)[2], 1)
}

// A tenant keeps its debt while it waits for nothing: it cannot get ahead by asking for one request at a time.
func TestQueueRemembersDebt(t *testing.T) {
	q := newQueue(t, admission.QueueConfig{})
	for range 30 {
		push(t, q, "many", admission.Ask{Tenant: 1, Cost: 10}, 0)
	}
	got := 0
	push(t, q, "large", admission.Ask{Tenant: 2, Cost: 100}, 0)
	for range 22 {
		q.Begin(0)
		w := q.Next()
		q.Granted(w, 0)
		if w.Value == "large" {
			got++
			push(t, q, "large", admission.Ask{Tenant: 2, Cost: 100}, 0)
		}
	}
	require.Equal(t, 2, got, "20 of 10 for 2 of 100")
}

func TestQueueForgetsTenants(t *testing.T) {
	q := newQueue(t, admission.QueueConfig{Max: 10})
	push(t, q, "stays", admission.Ask{Tenant: 1 << 40, Cost: 1}, 0)
	for tenant := range uint64(3 * admission.IdleFlows) {
		w := push(t, q, "", admission.Ask{Tenant: tenant, Cost: 1}, 0)
		q.Granted(w, 0)
		require.LessOrEqual(t, q.Remembered(0), admission.IdleFlows+1)
	}
	require.NoError(t, q.Check())
	require.Equal(t, []string{"stays"}, grantAll(q, 0))
	require.Zero(t, q.Remembered(0), "nobody is left to be fair to")
}

func TestQueueSteadyStateDoesNotAllocate(t *testing.T) {
	q := newQueue(t, admission.QueueConfig{Classes: 3})
	ws := make([]waiter, 64)
	i := 0
	cycle := func() {
		w := &ws[i%len(ws)]
		if i >= len(ws) {
			q.Begin(int64(i))
			w = q.Next()
			q.Granted(w, int64(i))
		}
		if _, err := q.Push(w, admission.Ask{Rank: i % 3, Tenant: uint64(i % 7), Group: uint64(i % 5), Cost: 10}, int64(i)); err != nil {
			t.Fatal(err)
		}
		i++
	}
	for range 5000 {
		cycle()
	}
	require.Zero(t, testing.AllocsPerRun(5000, cycle))
}
