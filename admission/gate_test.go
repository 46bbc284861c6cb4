package admission_test

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
)

func sec(s float64) int64 { return int64(s * float64(time.Second)) }

func newGate(tb testing.TB, cfg admission.SeedConfig) *admission.Gate {
	tb.Helper()
	g, err := admission.NewGate(cfg)
	require.NoError(tb, err)
	return g
}

// Two engines of 38 places. The owner of the prefix runs 38 and has 36 waiting, its peer is idle: 74 of 76 places are
// taken. Two requests are admitted, to the peer and nowhere else; then the aggregate is reached.
func TestIncidentOwnerSaturatedPeerIdle(t *testing.T) {
	const capEndpoint, capAggregate = 38, 76
	const owner, peer, group = 1, 2, 77
	for _, max := range []int{2, 5} {
		t.Run(fmt.Sprint("max ", max), func(t *testing.T) {
			g := newGate(t, admission.SeedConfig{Max: max})
			requests := map[uint64]float64{owner: 74, peer: 0} // reported and just sent
			waiting := map[uint64]float64{owner: 36, peer: 0}  // reported
			observedAt := sec(2)
			route := func(now int64) string {
				survey := g.Config().Survey()
				var candidates []uint64
				for _, e := range []uint64{owner, peer} {
					if survey.Add(admission.SeedFacts{
						Waiting: waiting[e], Known: true, Fresh: true, Complete: true,
						BelowCap: requests[e] < capEndpoint,
					}) {
						candidates = append(candidates, e)
					}
				}
				if r := survey.Result(requests[owner]+requests[peer] >= capAggregate); r != admission.SeedsOnly {
					return r.String()
				}
				require.Len(t, candidates, 1)
				if v := g.Take(candidates[0], group, observedAt, now); v != admission.SeedOK {
					return v.String()
				}
				requests[candidates[0]]++
				return fmt.Sprint(candidates[0])
			}
			for _, want := range []string{"2", "2", "aggregate", "aggregate"} {
				require.Equal(t, want, route(sec(2.1)))
			}

			// Requests of the owner end and there are places again: for more seeds only as far as the lease goes.
			requests[owner] = 70
			want := "spent"
			if max > 2 {
				want = "2"
			}
			require.Equal(t, want, route(sec(2.5)))

			// The owner's queue is served: admission is ordinary.
			waiting[owner] = 0
			require.Equal(t, "ordinary", route(sec(2.6)))
		})
	}
}

// A step is one call: T takes a seed of the group, C checks, O observes, F forgets.
type gateStep struct {
	op       byte
	group    uint64
	observed float64 // seconds
	now      float64
	want     admission.SeedVerdict
}

func TestGateRules(t *testing.T) {
	const ok, spent, cooling, stale = admission.SeedOK, admission.SeedSpent, admission.SeedCooling, admission.SeedStale
	for _, tc := range []struct {
		name  string
		cfg   admission.SeedConfig
		steps []gateStep
	}{
		{"off", admission.SeedConfig{}, []gateStep{{'C', 1, 0, 1, admission.SeedOff}, {'T', 1, 0, 1, admission.SeedOff}, {op: 'O', now: 2}}},
		{"the leased number, then the lease, then the cooldown", admission.SeedConfig{Max: 2, Observations: -1}, []gateStep{
			{'T', 1, 0, 1, ok}, {'T', 1, 0, 1, ok}, {'T', 1, 0, 1, spent}, {'T', 1, 5.9, 5.99, spent},
			{'T', 1, 5.9, 6, cooling}, {'T', 1, 10, 10.99, cooling}, {'T', 1, 10, 11, ok},
		}},
		{"no cooldown", admission.SeedConfig{Max: 1, Observations: -1, Cooldown: -1}, []gateStep{
			{'T', 1, 0, 1, ok}, {'T', 1, 5, 5.99, spent}, {'T', 1, 5, 6, ok}, {'T', 1, 5, 6, spent},
		}},
		{"observations end the lease, those made after its first seed", admission.SeedConfig{Max: 1}, []gateStep{
			{'T', 1, 0, 1, ok},
			{op: 'O', now: 0.9}, {op: 'O', now: 1}, // sent before the seed, or with it
			{op: 'O', now: 1.5}, {op: 'O', now: 1.5}, {op: 'O', now: 1.4}, {op: 'O', now: 2},
			{'T', 1, 2, 2.5, spent}, {op: 'O', now: 3}, {'T', 1, 3, 3.1, cooling}, {'T', 1, 7, 7.99, cooling}, {'T', 1, 7, 8, ok},
		}},
		{"a second burst follows the first inside the lease", admission.SeedConfig{Max: 3}, []gateStep{
			{'T', 1, 0, 1, ok}, {'T', 1, 0, 3, ok}, {op: 'O', now: 4}, {'T', 1, 4, 5, ok}, {'T', 1, 4, 5, spent},
		}},
		{"a second burst on a newer observation, while another group used up the old one", admission.SeedConfig{Max: 2}, []gateStep{
			{'T', 1, 0, 1, ok}, {'T', 2, 0, 1, ok}, {'T', 1, 0, 2, stale}, {'T', 1, 1, 2, stale}, {'T', 1, 1.5, 2, ok}, {'T', 1, 1.5, 2, spent},
			{'T', 2, 1.5, 2, ok}, {'T', 3, 1.5, 2, stale},
		}},
		{"groups share an observation", admission.SeedConfig{Max: 2}, []gateStep{
			{'T', 1, 0, 1, ok}, {'T', 2, 0, 1, ok}, {'T', 3, 0, 1, stale}, {'C', 3, 1, 1.5, stale}, {'C', 3, 1.1, 1.5, ok},
		}},
		{"an observation opens no lease once one of its leases is over in time", admission.SeedConfig{Max: 2, Cooldown: -1}, []gateStep{
			{'T', 1, 0, 1, ok}, {'C', 2, 0, 5.99, ok}, {'C', 2, 0, 6, stale}, {'C', 1, 0, 6, stale}, {'T', 1, 0, 60, stale}, {'T', 1, 1.01, 60, ok},
		}},
		{"a lease of an earlier round that is over does not matter", admission.SeedConfig{Max: 2, Observations: 2}, []gateStep{
			{'T', 1, 0, 1, ok}, {op: 'O', now: 1.5}, {'T', 2, 1.5, 3, ok}, {op: 'O', now: 2}, {'C', 3, 2, 3.1, ok}, {'C', 1, 2, 3.1, cooling},
		}},
		{"a long time without observations", admission.SeedConfig{Max: 2, Observations: 1}, []gateStep{
			{'T', 1, 0, 1, ok}, {'T', 2, 0, 1, ok}, {'T', 3, 50, 60, ok}, {'T', 4, 50, 61, ok}, {op: 'O', now: 60.5},
			{'C', 3, 60.5, 61, cooling}, {'T', 4, 60.5, 62, stale}, {'T', 4, 61.5, 62, ok}, {op: 'O', now: 62}, {'C', 4, 62, 62.1, cooling},
		}},
		{"nor once one is over by observations", admission.SeedConfig{Max: 2, Observations: 1}, []gateStep{
			{'T', 1, 0, 1, ok}, {op: 'O', now: 2}, {'C', 2, 0, 2.1, stale}, {'C', 2, 2, 2.1, ok},
		}},
		{"an observation from after now", admission.SeedConfig{Max: 2}, []gateStep{{'T', 1, 2, 1, stale}, {'T', 1, 2, 2, ok}}},
		{"time going back stands still", admission.SeedConfig{Max: 1, Observations: -1}, []gateStep{
			{'T', 1, 0, 10, ok}, {'C', 1, 0, 2, spent}, {'T', 2, 10.5, 11, ok}, {'C', 1, 0, 2, spent},
		}},
		{"forgotten", admission.SeedConfig{Max: 1}, []gateStep{{'T', 1, 0, 1, ok}, {'T', 1, 0, 1, spent}, {op: 'F'}, {op: 'F'}, {'T', 1, 0, 1, ok}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newGate(t, tc.cfg)
			for i, s := range tc.steps {
				switch s.op {
				case 'O':
					g.Observed(9, sec(s.now))
				case 'F':
					g.Forget(9)
				case 'C':
					require.Equal(t, s.want, g.Check(9, s.group, sec(s.observed), sec(s.now)), "step %d %+v", i, s)
				case 'T':
					require.Equal(t, s.want, g.Check(9, s.group, sec(s.observed), sec(s.now)), "check before step %d %+v", i, s)
					require.Equal(t, s.want, g.Take(9, s.group, sec(s.observed), sec(s.now)), "step %d %+v", i, s)
				}
				// Another endpoint is not concerned.
				if tc.cfg.Max > 0 {
					require.Equal(t, admission.SeedOK, g.Check(8, s.group, math.MinInt64, sec(s.now)))
				}
			}
		})
	}
}

func TestGateAtTheEndsOfTime(t *testing.T) {
	g := newGate(t, admission.SeedConfig{Max: 1})
	require.Equal(t, admission.SeedOK, g.Take(2, 1, 0, math.MaxInt64-1))
	require.Equal(t, admission.SeedSpent, g.Check(2, 1, 0, math.MaxInt64-1))

	g = newGate(t, admission.SeedConfig{Max: 1})
	require.Equal(t, admission.SeedOK, g.Take(1, 1, math.MinInt64, math.MinInt64))
	require.Equal(t, admission.SeedSpent, g.Check(1, 1, math.MinInt64, math.MinInt64))
	require.Equal(t, admission.SeedOK, g.Take(1, 1, math.MaxInt64, math.MaxInt64))
	g.Observed(1, math.MaxInt64)
	require.Equal(t, admission.SeedStale, g.Check(1, 2, math.MaxInt64, math.MaxInt64))
}

// A million groups, each with a seed on a new observation: what is over is dropped.
func TestGateMemoryIsBounded(t *testing.T) {
	g := newGate(t, admission.SeedConfig{Max: 1})
	most := 0
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range int64(1_000_000) {
		now := i * int64(10*time.Millisecond)
		endpoint := uint64(i % 16)
		g.Observed(endpoint, now-1)
		if v := g.Take(endpoint, uint64(i), now-1, now); v != admission.SeedOK {
			t.Fatalf("group %d: %v", i, v)
		}
		most = max(most, g.Leases())
	}
	// Observations end a lease at the third poll of its endpoint (0.48 s), and it cools down for 5 s: 548 leases.
	require.Less(t, most, 600)
	require.Less(t, heap()-min(heap(), before), uint64(1<<20))
	for e := range uint64(16) {
		g.Forget(e)
	}
	require.Zero(t, g.Leases())
	runtime.KeepAlive(g)
}

func TestSeedConfig(t *testing.T) {
	err := admission.SeedConfig{Max: -1, For: -time.Second, Allowance: math.NaN()}.Validate()
	require.ErrorContains(t, err, "admission: SeedConfig.Max = -1")
	require.ErrorContains(t, err, "admission: SeedConfig.For = -1s")
	require.ErrorContains(t, err, "admission: SeedConfig.Allowance = NaN")
	require.ErrorContains(t, admission.SeedConfig{Allowance: math.Inf(1)}.Validate(), "Allowance = +Inf")
	require.ErrorContains(t, admission.SeedConfig{Allowance: -1}.Validate(), "Allowance = -1")
	_, err = admission.NewGate(admission.SeedConfig{Max: -1})
	require.ErrorContains(t, err, "SeedConfig.Max")

	c := admission.SeedConfig{Max: 1}.WithDefaults()
	require.Equal(t, admission.SeedConfig{Max: 1, For: 5 * time.Second, Observations: 3, Cooldown: 5 * time.Second}, c)
	none := admission.SeedConfig{Observations: -7, Cooldown: -7}.WithDefaults()
	require.Equal(t, admission.SeedConfig{For: 5 * time.Second, Observations: -1, Cooldown: -1}, none)
	require.Equal(t, none, none.WithDefaults())
}

func TestSurvey(t *testing.T) {
	idle := admission.SeedFacts{Known: true, Fresh: true, Complete: true, BelowCap: true}
	with := func(change func(*admission.SeedFacts)) admission.SeedFacts {
		f := idle
		change(&f)
		return f
	}
	busy := func(waiting float64) admission.SeedFacts {
		return with(func(f *admission.SeedFacts) { f.Waiting = waiting })
	}
	never := admission.SeedFacts{BelowCap: true}
	aging := with(func(f *admission.SeedFacts) { f.Fresh = false })
	partial := with(func(f *admission.SeedFacts) { f.Complete = false })
	capped := with(func(f *admission.SeedFacts) { f.BelowCap = false })
	facts := func(f ...admission.SeedFacts) []admission.SeedFacts { return f }
	on := admission.SeedConfig{Max: 1}
	for _, tc := range []struct {
		name       string
		cfg        admission.SeedConfig
		facts      []admission.SeedFacts
		full       bool
		want       admission.SeedsAllowed
		candidates string
	}{
		{"off", admission.SeedConfig{}, facts(busy(36), idle), false, admission.SeedsOrdinary, "-+"},
		{"no endpoints", on, nil, false, admission.SeedsOrdinary, ""},
		{"nobody waits", on, facts(idle, idle), false, admission.SeedsOrdinary, "++"},
		{"nobody is known to wait", on, facts(never, never), false, admission.SeedsOrdinary, "--"},
		{"a peer is idle", on, facts(busy(36), idle), false, admission.SeedsOnly, "-+"},
		{"within the allowance", admission.SeedConfig{Max: 1, Allowance: 5}, facts(busy(3), busy(2)), false, admission.SeedsOrdinary, "--"},
		{"beyond the allowance", admission.SeedConfig{Max: 1, Allowance: 4.5}, facts(busy(3), busy(2), idle), false, admission.SeedsOnly, "--+"},
		{"an old figure enforces, and cannot be seeded by", on, facts(with(func(f *admission.SeedFacts) { f.Waiting, f.Fresh = 9, false }), idle), false, admission.SeedsIncomplete, "-+"},
		{"a peer has never reported", on, facts(busy(36), never), false, admission.SeedsIncomplete, "--"},
		{"one of three has never reported", on, facts(busy(36), never, idle), false, admission.SeedsIncomplete, "--+"},
		{"aging", on, facts(busy(36), aging, idle), false, admission.SeedsIncomplete, "--+"},
		{"partial", on, facts(busy(36), partial), false, admission.SeedsIncomplete, "--"},
		{"NaN", on, facts(busy(36), busy(math.NaN())), false, admission.SeedsIncomplete, "--"},
		{"infinite", on, facts(busy(36), busy(math.Inf(1))), false, admission.SeedsIncomplete, "--"},
		{"negative", on, facts(busy(36), busy(-1)), false, admission.SeedsIncomplete, "--"},
		{"all wait", on, facts(busy(36), busy(1)), false, admission.SeedsSaturated, "--"},
		{"the peer is at its cap", on, facts(busy(36), capped), false, admission.SeedsSaturated, "--"},
		{"aggregate", on, facts(busy(36), idle), true, admission.SeedsAggregate, "-+"},
		{"aggregate before telemetry", on, facts(busy(36), never), true, admission.SeedsAggregate, "--"},
	} {
		s := tc.cfg.Survey()
		got := ""
		for _, f := range tc.facts {
			got += map[bool]string{true: "+", false: "-"}[s.Add(f)]
		}
		require.Equal(t, tc.want, s.Result(tc.full), tc.name)
		require.Equal(t, tc.candidates, got, tc.name)
	}
	s := on.Survey()
	s.Add(busy(36))
	s.Add(busy(math.NaN()))
	require.EqualValues(t, 36, s.Waiting())
}

func TestSeedNames(t *testing.T) {
	seen := map[string]bool{}
	for v := range admission.SeedStale + 1 {
		seen[v.String()] = true
	}
	require.Len(t, seen, 5)
	require.Equal(t, "unknown", (admission.SeedStale + 1).String())
	for r := range admission.SeedsSaturated + 1 {
		seen[r.String()] = true
	}
	require.Len(t, seen, 10)
	require.Equal(t, "unknown", (admission.SeedsSaturated + 1).String())
}
