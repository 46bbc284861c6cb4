package admission_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/admission"
)

type amount = admission.Amount

func newShares(t require.TestingT, cfg admission.SharesConfig) *admission.Shares {
	s, err := admission.NewShares(cfg)
	require.NoError(t, err)
	return s
}

func TestSharesConfig(t *testing.T) {
	require.Equal(t, time.Minute, newShares(t, admission.SharesConfig{}).Config().Memory)
	newShares(t, admission.SharesConfig{Reserve: [8]float64{0.1, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1}}) // 1, but for rounding
	_, err := admission.NewShares(admission.SharesConfig{Reserve: [8]float64{-0.5, 1.5, math.NaN()}, Memory: -1})
	for _, part := range []string{"Reserve[0] = -0.5", "Reserve[1] = 1.5", "Reserve[2] = NaN", "Memory = -1ns"} {
		require.ErrorContains(t, err, part)
	}
	_, err = admission.NewShares(admission.SharesConfig{Reserve: [8]float64{0.5, 0.6}})
	require.ErrorContains(t, err, "sum of SharesConfig.Reserve = 1.1")
}

func TestSharesKeepWhatWasUsedLately(t *testing.T) {
	const s = int64(time.Second)
	sh := newShares(t, admission.SharesConfig{Reserve: [8]float64{0.5}})
	capacity := amount{Requests: 10, Tokens: 1000}
	admitted := func(rank int, cost, now int64) (n int) {
		for sh.Admits(rank, cost, capacity, now) {
			require.NoError(t, sh.Take(rank, cost, now))
			n++
		}
		for range n {
			require.NoError(t, sh.Give(rank, cost, now))
		}
		return n
	}
	require.Equal(t, 10, admitted(2, 10, 0), "nobody else around: all of it")
	for range 3 {
		require.NoError(t, sh.Take(0, 50, 0))
	}
	require.Equal(t, 7, admitted(2, 10, 0), "in use, not kept twice")
	for range 3 {
		require.NoError(t, sh.Give(0, 50, 10*s))
	}
	require.Equal(t, amount{3, 150}, sh.Reserved(0, capacity, 10*s))
	require.Equal(t, 7, admitted(2, 10, 10*s), "kept for who was here a moment ago")
	require.Equal(t, 1, admitted(2, 850, 10*s))
	require.False(t, sh.Admits(2, 851, capacity, 10*s), "kept in tokens too")
	require.True(t, sh.Admits(0, 1000, capacity, 10*s), "a class keeps nothing from itself or from those above")
	require.Equal(t, 9, admitted(2, 10, 70*s), "3/e is about 1")
	require.Equal(t, 10, admitted(2, 10, 200*s), "and then nothing")

	require.NoError(t, sh.SetWaiting(0, amount{20, 5000}, 201*s))
	require.Equal(t, amount{5, 500}, sh.Reserved(0, capacity, 201*s), "those who wait count, up to the share")
	require.Equal(t, 5, admitted(1, 10, 201*s))
	require.Equal(t, 10, admitted(0, 10, 201*s))
	require.Equal(t, amount{5, 0}, sh.Reserved(0, amount{Requests: 10}, 201*s))
	require.True(t, sh.Admits(1, 1<<40, amount{}, 201*s), "no limit")
	require.False(t, sh.Admits(0, 1, amount{-1, -1}, 201*s))
	require.Zero(t, sh.Reserved(0, amount{-1, -1}, 201*s))
}

func TestSharesOfSmallCapacities(t *testing.T) {
	sh := newShares(t, admission.SharesConfig{Reserve: [8]float64{0.3, 0.29}})
	require.NoError(t, sh.SetWaiting(0, amount{1000, 1000}, 0))
	require.NoError(t, sh.SetWaiting(1, amount{1000, 1000}, 0))
	require.Equal(t, 0, sh.Reserved(0, amount{Requests: 3}, 0).Requests)
	require.Equal(t, 3, sh.Reserved(0, amount{Requests: 10}, 0).Requests)
	require.Equal(t, 29, sh.Reserved(1, amount{Requests: 100}, 0).Requests, "0.29 x 100 is just below 29 in floating point")
	require.True(t, sh.Admits(7, 1, amount{Requests: 3}, 0))
}

func TestSharesRefuseWhatIsWrong(t *testing.T) {
	sh := newShares(t, admission.SharesConfig{})
	require.NoError(t, sh.Take(1, 10, 0))
	require.NoError(t, sh.Take(1, 20, 0))
	for want, err := range map[string]error{
		"rank = 8 must be 0 to 7":         sh.Take(8, 1, 0),
		"cost = 0 must be 1":              sh.Take(0, 0, 0),
		"rank = -1 must be":               sh.Give(-1, 1, 0),
		"cost = 1 of rank 0 is not held":  sh.Give(0, 1, 0),
		"cost = 31 of rank 1 is not held": sh.Give(1, 31, 0),
		"cost = 30 of rank 1 is not held": sh.Give(1, 30, 0), // the other would be left without any
		"rank = 9 must be":                sh.SetWaiting(9, amount{}, 0),
		"Amount.Requests = -1":            sh.SetWaiting(0, amount{Requests: -1}, 0),
		"Amount.Tokens = -1":              sh.SetWaiting(0, amount{Tokens: -1}, 0),
	} {
		require.ErrorContains(t, err, want)
	}
	require.False(t, sh.Admits(8, 1, amount{}, 0))
	require.False(t, sh.Admits(0, 0, amount{}, 0))
	require.Zero(t, sh.Reserved(8, amount{}, 0))
	require.Zero(t, sh.Held(-1))
	require.NoError(t, sh.Give(1, 20, 0))
	require.ErrorContains(t, sh.Give(1, 9, 0), "is not held")
	require.Equal(t, amount{1, 10}, sh.Held(1))
	require.NoError(t, sh.Give(1, 10, 0))
	require.Zero(t, sh.Total())
}

// naiveShares keeps every lease and every demand there ever was.
type naiveShares struct {
	leases map[int][]int64
	past   map[int][]pastDemand
	wait   map[int]amount
}

type pastDemand struct {
	amount
	until int64
}

func (m *naiveShares) demand(rank int) amount {
	d := m.wait[rank]
	for _, c := range m.leases[rank] {
		d.Requests++
		d.Tokens += c
	}
	return d
}

func (m *naiveShares) peak(rank int, memory time.Duration, now int64) (requests, tokens float64) {
	d := m.demand(rank)
	requests, tokens = float64(d.Requests), float64(d.Tokens)
	for _, p := range m.past[rank] {
		decay := math.Exp(-float64(now-p.until) / float64(memory))
		requests, tokens = max(requests, float64(p.Requests)*decay), max(tokens, float64(p.Tokens)*decay)
	}
	return requests, tokens
}

func sharesMachine(t *rapid.T) {
	const classes = 3
	cfg := admission.SharesConfig{Memory: time.Duration(rapid.IntRange(1, 100).Draw(t, "memory"))}
	for r := range classes {
		cfg.Reserve[r] = rapid.SampledFrom([]float64{0, 0.1, 0.25, 1.0 / 3}).Draw(t, "reserve")
	}
	capacity := amount{rapid.IntRange(0, 20).Draw(t, "requests"), rapid.Int64Range(0, 200).Draw(t, "tokens")}
	s := newShares(t, cfg)
	m := &naiveShares{leases: map[int][]int64{}, past: map[int][]pastDemand{}, wait: map[int]amount{}}
	now := int64(0)
	rank := func(t *rapid.T) int { return rapid.IntRange(0, classes-1).Draw(t, "rank") }
	cost := func(t *rapid.T) int64 { return rapid.Int64Range(1, 40).Draw(t, "cost") }
	change := func(t *rapid.T, r int, do func()) {
		now += rapid.Int64Range(0, 20).Draw(t, "dt")
		m.past[r] = append(m.past[r], pastDemand{m.demand(r), now})
		do()
	}
	total := func() (sum amount) {
		for _, all := range m.leases {
			for _, c := range all {
				sum.Requests++
				sum.Tokens += c
			}
		}
		return sum
	}
	take := func(t *rapid.T) {
		r, c := rank(t), cost(t)
		change(t, r, func() {
			if !s.Admits(r, c, capacity, now) {
				return
			}
			require.NoError(t, s.Take(r, c, now))
			m.leases[r] = append(m.leases[r], c)
			// What the classes above have not used of their reserve is still free, and no cap is passed.
			sum := total()
			for above := range r {
				kept, held := s.Reserved(above, capacity, now), s.Held(above)
				sum.Requests += max(0, kept.Requests-held.Requests)
				sum.Tokens += max(0, kept.Tokens-held.Tokens)
			}
			require.True(t, capacity.Requests == 0 || sum.Requests <= capacity.Requests)
			require.True(t, capacity.Tokens == 0 || sum.Tokens <= capacity.Tokens)
		})
	}
	t.Repeat(map[string]func(*rapid.T){
		"take": take, "take2": take,
		"give": func(t *rapid.T) {
			r := rank(t)
			if len(m.leases[r]) == 0 {
				t.Skip("nothing held")
			}
			change(t, r, func() {
				c := m.leases[r][0]
				m.leases[r] = m.leases[r][1:]
				require.NoError(t, s.Give(r, c, now))
			})
		},
		"wait": func(t *rapid.T) {
			r, a := rank(t), amount{rapid.IntRange(0, 10).Draw(t, "n"), rapid.Int64Range(0, 100).Draw(t, "sum")}
			change(t, r, func() {
				m.wait[r] = a
				require.NoError(t, s.SetWaiting(r, a, now))
			})
		},
		"time passes": func(t *rapid.T) { now += rapid.Int64Range(0, 500).Draw(t, "dt") },
		"": func(t *rapid.T) {
			sum, free := total(), capacity
			require.Equal(t, sum, s.Total())
			for r := range classes {
				// free is what the classes above r leave.
				for _, c := range []int64{1, 10, 40} {
					want := (capacity.Requests == 0 || sum.Requests+1 <= free.Requests) && (capacity.Tokens == 0 || sum.Tokens+c <= free.Tokens)
					require.Equal(t, want, s.Admits(r, c, capacity, now), "rank %d cost %d", r, c)
				}
				kept, held := s.Reserved(r, capacity, now), s.Held(r)
				requests, tokens := m.peak(r, cfg.Memory, now)
				if math.Abs(requests-0.5) > 1e-6 { // else either is right
					if requests < 0.5 {
						requests, tokens = 0, 0
					}
					require.InDelta(t, min(cfg.Reserve[r]*float64(capacity.Requests), requests), kept.Requests, 1)
					require.InDelta(t, min(cfg.Reserve[r]*float64(capacity.Tokens), tokens), kept.Tokens, 1)
				}
				require.LessOrEqual(t, float64(kept.Requests), cfg.Reserve[r]*float64(capacity.Requests)+1e-6)
				free.Requests -= max(0, kept.Requests-held.Requests)
				free.Tokens -= max(0, kept.Tokens-held.Tokens)
			}
		},
	})
}

func TestSharesAgainstNaiveModel(t *testing.T) { rapid.Check(t, sharesMachine) }
