package router_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
)

// rules are small situations of three idle or busy engines in which only one choice follows the policy's rule.
func TestRuleOfEachPolicy(t *testing.T) {
	type state struct{ running, waiting float64 }
	small := router.Request{PromptTokens: 100, ExpectedOutputTokens: 10}
	for _, c := range []struct {
		name   string
		policy router.Policy
		state  [3]state
		own    [3]int // own requests of a token each, sent before the reports
		req    router.Request
		want   string
	}{
		{"pressure: the free one", router.Pressure(), [3]state{{8, 3}, {8, 3}, {0, 0}}, [3]int{}, small, "c"},
		{"pressure: running alone counts too", router.Pressure(), [3]state{{90, 0}, {9, 0}, {90, 0}}, [3]int{}, small, "b"},
		{"least-load: shortest wait", router.LeastLoad(), [3]state{{1, 2}, {90, 1}, {1, 3}}, [3]int{}, small, "b"},
		{"least-load: equal wait, fewest requests", router.LeastLoad(), [3]state{{9, 1}, {8, 1}, {10, 1}}, [3]int{}, small, "b"},
		{"least-requests: own ones only", router.LeastRequests(), [3]state{{0, 0}, {0, 0}, {50, 50}}, [3]int{2, 1, 0}, small, "c"},
		{"queue-only: fewest waiting", router.QueueOnly(), [3]state{{0, 2}, {99, 1}, {0, 3}}, [3]int{}, small, "b"},
		{"round-robin: never chosen", router.RoundRobin(), [3]state{{0, 0}, {9, 9}, {0, 0}}, [3]int{1, 0, 1}, small, "b"},
		{"prefix-only: without any, fewest own", router.PrefixOnly(), [3]state{{0, 0}, {0, 0}, {0, 0}}, [3]int{1, 1, 0}, small, "c"},
		{"prefix-hash: without any, fewest own", router.PrefixHash(), [3]state{{0, 0}, {0, 0}, {0, 0}}, [3]int{1, 0, 1}, small, "b"},
		{"session-hash: without any, fewest own", router.SessionHash(), [3]state{{0, 0}, {0, 0}, {0, 0}}, [3]int{0, 1, 1}, small, "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(20) {
				clk := newClock()
				p := newPool(t, clk, router.Config{Policy: c.policy, Seed: seed}, "a", "b", "c")
				for i, n := range c.own {
					for range n {
						mustReserve(t, p, router.Request{PromptTokens: 1, ExpectedOutputTokens: 1, Exclude: others("abc", i), ExcludeHard: true})
					}
				}
				clk.advance(time.Second)
				for i, s := range c.state {
					busy(t, p, clk, string("abc"[i]), s.running, s.waiting)
				}
				d := scored(t, p, c.req)
				require.Equal(t, c.want, d.Endpoint, "seed %d\n%s", seed, d.Explain())
				require.Equal(t, c.want, mustReserve(t, p, c.req).Endpoint().ID)
			}
		})
	}
}

// others are the ids but the i-th.
func others(ids string, i int) (out []string) {
	for k, id := range ids {
		if k != i {
			out = append(out, string(id))
		}
	}
	return out
}

func TestPolicyNames(t *testing.T) {
	names := router.PolicyNames()
	require.Equal(t, "pressure", names[0])
	require.Len(t, names, 10)
	for _, name := range names {
		p, err := router.PolicyByName(name)
		require.NoError(t, err)
		require.Equal(t, name, p.Name())
	}
	_, err := router.PolicyByName("best")
	require.ErrorContains(t, err, `router: policy "best" is not one of [pressure `)
}

func TestPowerOfTwo(t *testing.T) {
	t.Run("of two it takes the lighter, always", func(t *testing.T) {
		c := newClock()
		p := newPool(t, c, router.Config{Policy: router.PowerOfTwo()}, "a", "b")
		busy(t, p, c, "a", 0, 1)
		busy(t, p, c, "b", 5, 2)
		for _, id := range choices(t, p, 100, func(int) router.Request { return router.Request{} }) {
			require.Equal(t, "a", id)
		}
	})
	t.Run("of many equal ones it spreads, and never takes the heaviest", func(t *testing.T) {
		c := newClock()
		ids := make([]string, 10)
		for i := range ids {
			ids[i] = fmt.Sprint("e", i)
		}
		p := newPool(t, c, router.Config{Policy: router.PowerOfTwo(), Seed: 3}, ids...)
		for i, id := range ids {
			busy(t, p, c, id, 0, float64(i))
		}
		got := tally(choices(t, p, 2000, func(int) router.Request { return router.Request{} }))
		// The i-th lightest of n wins with probability 2(n-1-i)/(n(n-1)).
		for i, id := range ids {
			want := 2000 * 2 * float64(9-i) / 90
			require.InDelta(t, want, got[id], 20+3*want/10, id)
		}
		require.Zero(t, got["e9"])
	})
	t.Run("alone it takes what there is", func(t *testing.T) {
		c := newClock()
		p := newPool(t, c, router.Config{Policy: router.PowerOfTwo()}, "a")
		busy(t, p, c, "a", 3, 3)
		require.Equal(t, "a", mustReserve(t, p, router.Request{}).Endpoint().ID)
	})
	t.Run("it balances what it sends itself", func(t *testing.T) {
		c := newClock()
		p := newPool(t, c, router.Config{Policy: router.PowerOfTwo()}, "a", "b", "c", "d")
		idle(t, p, c, "a", "b", "c", "d")
		got := map[string]int{}
		for range 80 {
			got[mustReserve(t, p, router.Request{PromptTokens: 500}).Endpoint().ID]++
		}
		for _, id := range []string{"a", "b", "c", "d"} {
			require.InDelta(t, 20, got[id], 4, "%v", got)
		}
	})
}

func TestRandomIsUniform(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Policy: router.Random(), Seed: 11}, "a", "b", "c", "d", "e")
	busy(t, p, c, "a", 50, 50) // of no concern
	got := tally(choices(t, p, 5000, func(int) router.Request { return router.Request{} }))
	chi := 0.0
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		chi += float64((got[id]-1000)*(got[id]-1000)) / 1000
	}
	require.Less(t, chi, 18.5, "%v", got) // 99.9 % of 4 degrees of freedom
	require.Len(t, got, 5)
}

func TestRoundRobin(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Policy: router.RoundRobin()}, "a", "b", "c", "d")
	take := func(n int, req router.Request) []string {
		return choices(t, p, n, func(int) router.Request { return req })
	}
	require.Equal(t, []string{"a", "b", "c", "d", "a", "b"}, take(6, router.Request{}))
	t.Run("a request that leaves some out does not move the turn of the others", func(t *testing.T) {
		require.Equal(t, []string{"a", "b"}, take(2, router.Request{Exclude: []string{"c", "d"}, ExcludeHard: true}))
		require.Equal(t, []string{"c", "d", "a", "b"}, take(4, router.Request{}))
	})
	t.Run("a list that shrinks and grows favours nobody", func(t *testing.T) {
		require.NoError(t, p.Remove("b"))
		require.Equal(t, []string{"c", "d", "a", "c"}, take(4, router.Request{}))
		require.NoError(t, p.SetEndpoints(plain("d", "a", "c", "x")))
		require.Equal(t, []string{"x", "d", "a", "c", "x"}, take(5, router.Request{}))
	})
	t.Run("over lists that change all the time everybody gets a fair share", func(t *testing.T) {
		got := map[string]int{}
		for i := range 400 {
			out := string("acdx"[i%4])
			for _, id := range take(3, router.Request{Exclude: []string{out}, ExcludeHard: true}) {
				got[id]++
			}
		}
		for _, id := range []string{"a", "c", "d", "x"} {
			require.InDelta(t, 300, got[id], 1, "%v", got)
		}
	})
}

func TestPrefixOnly(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Policy: router.PrefixOnly()}, "a", "b", "c")
	idle(t, p, c, "a", "b", "c")
	only := func(id int) []string { return others("abc", id) }
	mustReserve(t, p, router.Request{Prefix: prompt(t, 1, 2), Exclude: only(0), ExcludeHard: true}).Cancel()
	mustReserve(t, p, router.Request{Prefix: prompt(t, 1, 2, 3, 4), Exclude: only(1), ExcludeHard: true}).Cancel()
	t.Run("the longest match, however much is open there", func(t *testing.T) {
		for range 10 {
			require.Equal(t, "b", mustReserve(t, p, router.Request{Prefix: prompt(t, 1, 2, 3, 9)}).Endpoint().ID)
		}
	})
	t.Run("without a match the fewest own requests", func(t *testing.T) {
		l := mustReserve(t, p, router.Request{Prefix: prompt(t, 7, 8)})
		require.NotEqual(t, "b", l.Endpoint().ID)
	})
	t.Run("what is aging counts for nothing", func(t *testing.T) {
		c.advance(3 * time.Second)
		idle(t, p, c, "a", "c")
		require.Equal(t, "a", scored(t, p, router.Request{Prefix: prompt(t, 1, 2, 3, 4)}).Endpoint)
	})
}

// hashing is run for both hashing policies: keyed makes a request for the k-th key.
func hashing(t *testing.T, run func(t *testing.T, policy router.Policy, keyed func(k int) router.Request)) {
	t.Run("session", func(t *testing.T) {
		run(t, router.SessionHash(), func(k int) router.Request { return router.Request{Session: "s" + strconv.Itoa(k)} })
	})
	t.Run("session by prefix", func(t *testing.T) {
		run(t, router.SessionHash(), func(k int) router.Request { return router.Request{Prefix: prompt(t, k, k+1)} })
	})
	t.Run("prefix", func(t *testing.T) {
		turn := 0
		run(t, router.PrefixHash(), func(k int) router.Request {
			turn++ // the third block and the session are of no concern
			return router.Request{Prefix: prompt(t, k, k+1, turn), Session: strconv.Itoa(turn)}
		})
	})
}

func TestHashingSticks(t *testing.T) {
	hashing(t, func(t *testing.T, policy router.Policy, keyed func(k int) router.Request) {
		const keys = 300
		ids := []string{"a", "b", "c", "d", "e", "f"}
		c := newClock()
		p := newPool(t, c, router.Config{Policy: policy}, ids...)
		idle(t, p, c, ids...)
		home := choices(t, p, keys, keyed)
		for id, n := range tally(home) {
			require.InDelta(t, keys/6, n, 25, "%s holds a share of the keys", id)
		}
		c.advance(30 * time.Second) // readings, seed and time are of no concern
		require.Equal(t, home, choices(t, p, keys, keyed))
		other := newPool(t, c, router.Config{Policy: policy, Seed: 99}, "f", "e", "d", "c", "b", "a")
		require.Equal(t, home, choices(t, other, keys, keyed))

		require.NoError(t, p.Drain("c"))
		moved := choices(t, p, keys, keyed)
		for k := range home {
			if home[k] == "c" {
				require.NotEqual(t, "c", moved[k])
			} else {
				require.Equal(t, home[k], moved[k], "key %d moved though its endpoint stayed", k)
			}
		}
		require.NoError(t, p.Ready("c"))
		require.Equal(t, home, choices(t, p, keys, keyed))
		require.NoError(t, p.Remove("a"))
		require.NoError(t, p.Add(router.Endpoint{ID: "a", Incarnation: "restarted"}))
		require.Equal(t, home, choices(t, p, keys, keyed), "a restart keeps the keys")
		require.NoError(t, p.Add(router.Endpoint{ID: "g"}))
		for k, id := range choices(t, p, keys, keyed) {
			require.True(t, id == home[k] || id == "g", "key %d moved from %s to %s", k, home[k], id)
		}
	})
}

func TestHashingIsBounded(t *testing.T) {
	hashing(t, func(t *testing.T, policy router.Policy, keyed func(k int) router.Request) {
		c := newClock()
		p := newPool(t, c, router.Config{Policy: policy}, "a", "b", "c", "d")
		open := map[string]int{}
		for n := 1; n <= 200; n++ { // one hot key
			open[mustReserve(t, p, keyed(1)).Endpoint().ID]++
			limit := (5*n + 15) / 16 // the ceiling of 1.25 n/4
			for id, k := range open {
				require.LessOrEqual(t, k, limit, "%s of %d", id, n)
			}
		}
		top := 0
		for _, k := range open {
			top = max(top, k)
		}
		require.Equal(t, 63, top, "the home of the key is filled to the bound")
	})
}

func TestEqualEndpointsShareByLot(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Seed: 5}, "a", "b", "c", "d")
	idle(t, p, c, "a", "b", "c", "d")
	got := tally(choices(t, p, 2000, func(int) router.Request { return router.Request{PromptTokens: 10, ExpectedOutputTokens: 1} }))
	for id, n := range got {
		require.InDelta(t, 500, n, 100, id)
	}
	require.Len(t, got, 4)
}
