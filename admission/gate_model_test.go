package admission_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/admission"
)

// The naive twin keeps every seed and every observation for ever and finds each answer from the rules as they are
// written.
type gateModel struct {
	cfg    admission.SeedConfig
	clock  int64
	events map[uint64][]gateEvent // by endpoint, since it was forgotten
}

type gateEvent struct {
	seed     bool
	group    uint64
	at       int64 // of the seed, or of the observation
	observed int64 // of a seed
}

// modelSeedLease is one lease; end and byObs are filled in by gateModel.end.
type modelSeedLease struct {
	group      uint64
	first      int // index of its first seed
	began, end int64
	byObs      bool
	taken      int
}

// leases replays all events of the endpoint.
func (m *gateModel) leases(endpoint uint64) (all []*modelSeedLease) {
	events := m.events[endpoint]
	last := map[uint64]*modelSeedLease{}
	for i, e := range events {
		if !e.seed {
			continue
		}
		l := last[e.group]
		if l == nil || e.at >= m.end(endpoint, l, i).end+int64(max(0, m.cfg.Cooldown)) {
			l = &modelSeedLease{group: e.group, first: i, began: e.at}
			last[e.group] = l
			all = append(all, l)
		}
		l.taken++
	}
	for _, l := range all {
		*l = *m.end(endpoint, l, len(events))
	}
	return all
}

// end is the lease with its end, as known before event number until.
func (m *gateModel) end(endpoint uint64, l *modelSeedLease, until int) *modelSeedLease {
	out := *l
	out.end = l.began + int64(m.cfg.For)
	count := 0
	for _, e := range m.events[endpoint][l.first:until] {
		if !e.seed && e.at > l.began {
			if count++; count == m.cfg.Observations {
				out.end, out.byObs = min(out.end, e.at), true
			}
		}
	}
	return &out
}

func (m *gateModel) check(endpoint, group uint64, observedAt, now int64) admission.SeedVerdict {
	if m.cfg.Max == 0 {
		return admission.SeedOff
	}
	now = max(now, m.clock)
	leases := m.leases(endpoint)
	var own *modelSeedLease
	for _, l := range leases {
		if l.group == group {
			own = l
		}
	}
	running := own != nil && now < own.end
	if running && own.taken >= m.cfg.Max {
		return admission.SeedSpent
	}
	if own != nil && !running && now < own.end+int64(max(0, m.cfg.Cooldown)) {
		return admission.SeedCooling
	}
	if observedAt > now {
		return admission.SeedStale
	}

	// The round.
	events := m.events[endpoint]
	start, lastSeed := -1, int64(0)
	for i, e := range events {
		if e.seed {
			if start < 0 || e.observed > lastSeed {
				start = i
			}
			lastSeed = e.at
		}
	}
	if start < 0 || observedAt > lastSeed {
		return admission.SeedOK
	}
	spent := 0
	for _, e := range events[start:] {
		if e.seed {
			spent++
		}
	}
	if spent >= m.cfg.Max {
		return admission.SeedStale
	}
	if running {
		return admission.SeedOK
	}
	if now >= events[start].at+int64(m.cfg.For) {
		return admission.SeedStale
	}
	for _, l := range leases {
		if l.first >= start && l.byObs {
			return admission.SeedStale
		}
	}
	return admission.SeedOK
}

func (m *gateModel) take(endpoint, group uint64, observedAt, now int64) admission.SeedVerdict {
	if m.cfg.Max == 0 {
		return admission.SeedOff
	}
	m.clock = max(m.clock, now)
	v := m.check(endpoint, group, observedAt, now)
	if v == admission.SeedOK {
		m.events[endpoint] = append(m.events[endpoint], gateEvent{seed: true, group: group, at: m.clock, observed: observedAt})
	}
	return v
}

func (m *gateModel) observe(endpoint uint64, at int64) {
	events := m.events[endpoint]
	if len(events) == 0 {
		return // no seed, nothing to end
	}
	for _, e := range events {
		if !e.seed && e.at >= at {
			return
		}
	}
	m.events[endpoint] = append(events, gateEvent{at: at})
}

func gateMachine(t *rapid.T) {
	cfg := admission.SeedConfig{
		Max:          rapid.IntRange(0, 4).Draw(t, "max"),
		For:          time.Duration(rapid.SampledFrom([]int{3, 10}).Draw(t, "for")),
		Observations: rapid.SampledFrom([]int{-1, 1, 2, 3}).Draw(t, "observations"),
		Cooldown:     time.Duration(rapid.SampledFrom([]int{-1, 2, 6}).Draw(t, "cooldown")),
	}
	g, err := admission.NewGate(cfg)
	require.NoError(t, err)
	m := &gateModel{cfg: g.Config(), clock: math.MinInt64, events: map[uint64][]gateEvent{}}
	now := int64(0)
	endpoint := rapid.Uint64Range(1, 2)
	group := rapid.Uint64Range(1, 3)
	// Mostly a little before now, seldom after.
	moment := rapid.Custom(func(t *rapid.T) int64 { return now - rapid.Int64Range(-2, 6).Draw(t, "before") })
	t.Repeat(map[string]func(*rapid.T){
		"": func(t *rapid.T) {
			for e := range m.events {
				inRound, last := 0, int64(0)
				for _, ev := range m.events[e] {
					if !ev.seed {
						continue
					}
					if ev.observed > last {
						inRound = 0
					}
					inRound++
					last = ev.at
					require.LessOrEqual(t, inRound, cfg.Max, "seeds on one observation")
				}
			}
		},
		"advance": func(t *rapid.T) { now += rapid.Int64Range(1, 4).Draw(t, "by") },
		"back":    func(t *rapid.T) { now -= rapid.Int64Range(0, 2).Draw(t, "by") },
		"check": func(t *rapid.T) {
			e, gr, at := endpoint.Draw(t, "e"), group.Draw(t, "g"), moment.Draw(t, "at")
			require.Equal(t, m.check(e, gr, at, now), g.Check(e, gr, at, now))
		},
		"take": func(t *rapid.T) {
			e, gr, at := endpoint.Draw(t, "e"), group.Draw(t, "g"), moment.Draw(t, "at")
			require.Equal(t, m.take(e, gr, at, now), g.Take(e, gr, at, now))
		},
		"observe": func(t *rapid.T) {
			e, at := endpoint.Draw(t, "e"), moment.Draw(t, "at")
			m.observe(e, at)
			g.Observed(e, at)
		},
		"forget": func(t *rapid.T) {
			if rapid.IntRange(0, 4).Draw(t, "really") == 0 {
				e := endpoint.Draw(t, "e")
				delete(m.events, e)
				g.Forget(e)
			}
		},
	})
}

func TestGateAgainstModel(t *testing.T) {
	// Several times, since a hundred short runs miss rare orders of events.
	for range 15 {
		rapid.Check(t, gateMachine)
	}
}

func FuzzGate(f *testing.F) { f.Fuzz(rapid.MakeFuzz(gateMachine)) }
