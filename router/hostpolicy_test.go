package router_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
)

// hosted is a policy of a host made of a function.
type hosted func(v *router.View) int

func (hosted) Name() string                { return "hosted" }
func (h hosted) Choose(v *router.View) int { return h(v) }

// last is a policy by value without any state.
type last struct{}

func (last) Name() string { return "last" }

func (last) Choose(v *router.View) int {
	for i := v.Len() - 1; i >= 0; i-- {
		if v.Choosable(i) {
			return i
		}
	}
	return -1
}

func TestHostPolicy(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Policy: last{}, Caps: admission.Caps{Endpoint: 2}}, "a", "b", "c")
	idle(t, p, c, "a", "b", "c")
	var got []string
	for range 6 {
		l := mustReserve(t, p, router.Request{})
		require.Equal(t, "last", l.Decision().Policy)
		got = append(got, l.Endpoint().ID)
	}
	require.Equal(t, []string{"c", "c", "b", "b", "a", "a"}, got, "capped like any other")
	rejected(t, p, router.Request{}, router.ErrSaturated)
	require.Zero(t, p.Stats().PolicyFaults)
}

func TestHostPolicySeesTheView(t *testing.T) {
	c := newClock()
	calls := 0
	p := newPool(t, c, router.Config{TieWindow: 3 * time.Millisecond, Policy: hosted(func(v *router.View) int {
		calls++
		require.Equal(t, 3, v.Len())
		require.Equal(t, []bool{true, false, true}, []bool{v.Choosable(0), v.Choosable(1), v.Choosable(2)})
		require.Equal(t, "b", v.At(1).ID)
		require.Equal(t, router.Draining, v.At(1).Excluded)
		require.EqualValues(t, 32, v.PromptTokens())
		require.EqualValues(t, 9, v.OutputTokens())
		require.NotZero(t, v.SessionHash())
		require.NotZero(t, v.PrefixHash())
		require.NotEqual(t, v.SessionHash(), v.PrefixHash())
		require.Equal(t, 3.0, v.TieWindow())
		require.False(t, v.Degraded())
		require.Zero(t, v.Draw(1))
		require.Zero(t, v.Draw(0))
		require.Zero(t, v.Draw(-3))
		require.Contains(t, []int{0, 1, 2, 3, 4}, v.Draw(5))
		require.Contains(t, []int{0, 2}, v.LeastOutstanding())
		return 2
	})}, "c", "a", "b")
	idle(t, p, c, "a", "b", "c")
	require.NoError(t, p.Drain("b"))
	l := mustReserve(t, p, router.Request{Prefix: prompt(t, 1, 2), ExpectedOutputTokens: 9, Session: "s"})
	require.Equal(t, "c", l.Endpoint().ID)
	require.Equal(t, 1, calls)
}

func TestHostPolicyThatFails(t *testing.T) {
	for _, f := range []struct {
		name   string
		choose func(v *router.View) int
	}{
		{"panic", func(*router.View) int { panic("no") }},
		{"runtime panic", func(v *router.View) int { return []int{}[v.Len()] }},
		{"none", func(*router.View) int { return -1 }},
		{"smallest int", func(*router.View) int { return -1 << 63 }},
		{"past the end", func(v *router.View) int { return v.Len() }},
		{"excluded", func(*router.View) int { return 1 }},
		{"panic at a bad index", func(v *router.View) int { return int(v.At(99).Age) }},
	} {
		t.Run(f.name, func(t *testing.T) {
			c := newClock()
			p := newPool(t, c, router.Config{Policy: hosted(f.choose)}, "a", "b", "c")
			idle(t, p, c, "a", "b", "c")
			require.NoError(t, p.Drain("b"))
			require.True(t, scored(t, p, router.Request{}).PolicyFault)
			require.Zero(t, p.Stats().PolicyFaults, "Score counts nothing")
			got := map[string]int{}
			for i := range 10 {
				l := mustReserve(t, p, router.Request{PromptTokens: 100})
				require.True(t, l.Decision().PolicyFault)
				require.EqualValues(t, i+1, p.Stats().PolicyFaults)
				got[l.Endpoint().ID]++
			}
			require.Equal(t, map[string]int{"a": 5, "c": 5}, got, "the least outstanding by the ledger")
		})
	}
}

// A slow policy must not lose or exceed anything when many ask at once; it is asked again when it was overtaken.
func TestHostPolicyThatIsSlow(t *testing.T) {
	var asked atomic.Int64
	c := newClock()
	p := newPool(t, c, router.Config{Caps: admission.Caps{Endpoint: 4}, Policy: hosted(func(v *router.View) int {
		asked.Add(1)
		for range 50 {
			runtime.Gosched()
		}
		return last{}.Choose(v)
	})}, "a", "b", "c", "d")
	idle(t, p, c, "a", "b", "c", "d")
	var wg sync.WaitGroup
	var granted atomic.Int64
	for range 40 {
		wg.Go(func() {
			if _, err := p.Reserve(context.Background(), router.Request{}); err == nil {
				granted.Add(1)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 16, granted.Load())
	for _, id := range []string{"a", "b", "c", "d"} {
		s, err := p.Ledger(id)
		require.NoError(t, err)
		require.EqualValues(t, 4, s.Live.Requests)
	}
	require.Zero(t, p.Stats().PolicyFaults)
	require.GreaterOrEqual(t, asked.Load(), int64(16))
	require.LessOrEqual(t, asked.Load(), int64(40*6), "asked a bounded number of times")
}

// A policy that panics once the pool is contended, that is also under the pool's lock, leaves no lock behind.
func TestHostPolicyThatPanicsUnderContention(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Policy: hosted(func(*router.View) int { runtime.Gosched(); panic("no") })}, "a", "b")
	idle(t, p, c, "a", "b")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				l, err := p.Reserve(context.Background(), router.Request{})
				if err != nil {
					t.Error(err)
					return
				}
				l.Done(router.Usage{})
			}
		})
	}
	wg.Wait()
	s := p.Stats()
	require.EqualValues(t, 800, s.Completed)
	require.GreaterOrEqual(t, s.PolicyFaults, uint64(800))
	require.Zero(t, s.OpenLeases)
}

// walk makes n requests of mixed kinds on a pool and returns the choices; the leases end in part.
func walk(t *testing.T, cfg router.Config, n int) ([]string, *router.Pool) {
	t.Helper()
	c := newClock()
	p := newPool(t, c, cfg, "a", "b", "c", "d", "e")
	var got []string
	var open []*router.Lease
	for i := range n {
		if i%7 == 0 {
			busy(t, p, c, string("abcde"[i/7%5]), float64(i%4), float64(i%3))
		}
		l := mustReserve(t, p, router.Request{Prefix: prompt(t, i%3, i%5, i%2), ExpectedOutputTokens: int64(i % 50)})
		got = append(got, l.Endpoint().ID)
		if open = append(open, l); len(open) > 12 {
			open[0].Done(router.Usage{})
			open = open[1:]
		}
		c.advance(30 * time.Millisecond)
	}
	return got, p
}

func TestShadowChangesNothing(t *testing.T) {
	for _, policy := range []router.Policy{router.Pressure(), router.Random(), router.PowerOfTwo(), router.RoundRobin()} {
		plain, without := walk(t, router.Config{Policy: policy, Seed: 4}, 300)
		for name, shadow := range map[string]router.Policy{
			"random": router.Random(), "same": policy, "panics": hosted(func(*router.View) int { panic("no") }),
			"draws much": hosted(func(v *router.View) int {
				for range 100 {
					v.Draw(10)
				}
				return last{}.Choose(v)
			}),
		} {
			t.Run(policy.Name()+"/"+name, func(t *testing.T) {
				got, with := walk(t, router.Config{Policy: policy, Seed: 4, Shadow: shadow}, 300)
				require.Equal(t, plain, got)
				for _, id := range []string{"a", "b", "c", "d", "e"} {
					want, err := without.Ledger(id)
					require.NoError(t, err)
					sums, err := with.Ledger(id)
					require.NoError(t, err)
					require.Equal(t, want, sums, "nothing of the shadow is in the ledger")
					for i := range 5 {
						x, err := without.Cached(id, prompt(t, i%3, i, i%2))
						require.NoError(t, err)
						y, err := with.Cached(id, prompt(t, i%3, i, i%2))
						require.NoError(t, err)
						require.Equal(t, x, y, "nor in the index")
					}
				}
				s := with.Stats()
				require.EqualValues(t, 300, s.ShadowSame+s.ShadowOther+s.ShadowFaults)
				require.Equal(t, name == "panics", s.ShadowFaults == 300)
				require.Zero(t, s.PolicyFaults)
				require.Equal(t, without.Stats().Endpoints[0].Chosen, s.Endpoints[0].Chosen)
			})
		}
	}
}

func TestShadowRecord(t *testing.T) {
	c := newClock()
	var at int
	p := newPool(t, c, router.Config{Shadow: hosted(func(v *router.View) int { return at })}, "a", "b")
	busy(t, p, c, "a", 0, 0)
	busy(t, p, c, "b", 0, 8)
	t.Run("what is predicted worse has a positive difference", func(t *testing.T) {
		at = 1
		l := mustReserve(t, p, router.Request{PromptTokens: 100})
		d := l.Decision()
		require.Equal(t, "a", d.Endpoint)
		require.Equal(t, "b", d.Shadow.Endpoint)
		require.Equal(t, "hosted", d.Shadow.Policy)
		require.InDelta(t, d.RunnerUpTotal-d.Terms.Total(), d.Shadow.DeltaMS, 1e-9)
		require.Positive(t, d.Shadow.DeltaMS)
		l.Cancel()
	})
	t.Run("the same choice has none", func(t *testing.T) {
		at = 0
		l := mustReserve(t, p, router.Request{PromptTokens: 100})
		require.Equal(t, "a", l.Decision().Shadow.Endpoint)
		require.Zero(t, l.Decision().Shadow.DeltaMS)
		l.Cancel()
	})
	t.Run("what is predicted better has a negative one", func(t *testing.T) {
		q := newPool(t, c, router.Config{Policy: last{}, Shadow: router.Pressure()}, "a", "b")
		busy(t, q, c, "a", 0, 0)
		busy(t, q, c, "b", 0, 8)
		l := mustReserve(t, q, router.Request{PromptTokens: 100})
		require.Equal(t, "b", l.Endpoint().ID)
		require.Equal(t, "a", l.Decision().Shadow.Endpoint)
		require.Negative(t, l.Decision().Shadow.DeltaMS)
	})
	t.Run("an answer that is none", func(t *testing.T) {
		at = 7
		l := mustReserve(t, p, router.Request{PromptTokens: 100})
		require.Equal(t, router.Shadow{Policy: "hosted", Failed: true}, l.Decision().Shadow)
		l.Cancel()
	})
	s := p.Stats()
	require.EqualValues(t, []uint64{1, 1, 0, 1}, []uint64{s.ShadowSame, s.ShadowOther, s.ShadowSkipped, s.ShadowFaults})
	require.Zero(t, s.OpenLeases)
	require.Zero(t, scored(t, p, router.Request{}).Shadow, "Score asks no shadow")
}

func TestShadowBudget(t *testing.T) {
	c := newClock()
	slow := 5 * time.Millisecond
	p := newPool(t, c, router.Config{ShadowBudget: 2 * time.Millisecond, Shadow: hosted(func(v *router.View) int {
		c.advance(slow)
		return 0
	})}, "a")
	idle(t, p, c, "a")
	take := func() router.Shadow {
		l := mustReserve(t, p, router.Request{})
		defer l.Cancel()
		return l.Decision().Shadow
	}
	start := c.now() // the excess of 3 ms costs 300 ms from here
	require.False(t, take().Skipped)
	slow = 2 * time.Millisecond
	require.Equal(t, router.Shadow{Policy: "hosted", Skipped: true}, take())
	c.ns.Store(int64(start.Add(300*time.Millisecond - 1).Sub(epochStart)))
	require.True(t, take().Skipped)
	c.advance(1)
	for range 5 {
		require.False(t, take().Skipped, "within the budget it is asked again, each time")
	}
	require.EqualValues(t, 2, p.Stats().ShadowSkipped)

	slow = time.Second
	require.False(t, take().Skipped)
	c.advance(time.Minute)
	require.True(t, take().Skipped)
}
