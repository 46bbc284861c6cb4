package router_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

// A host that says how often it polls has readings that are fresh for two and a half polls and stale after five, from the first on.
func TestToldInterval(t *testing.T) {
	for _, x := range []struct {
		interval, fresh, stale time.Duration
	}{
		{0, 2 * time.Second, 10 * time.Second},
		{-time.Second, 2 * time.Second, 10 * time.Second},
		{100 * time.Millisecond, 2 * time.Second, 10 * time.Second},
		{4 * time.Second, 10 * time.Second, 20 * time.Second},
		{time.Hour, 75 * time.Second, 150 * time.Second}, // as if twice a minute
	} {
		c := newClock()
		p := newPool(t, c, router.Config{}, "a")
		observe(t, p, c, "a", telemetry.Snapshot{Running: telemetry.V(1), Waiting: telemetry.V(0), KVShare: telemetry.V(0.1), Interval: x.interval})
		class := func() telemetry.Class { return seen(t, p, "a").Freshness }
		c.advance(x.fresh)
		require.Equal(t, telemetry.Fresh, class(), "%v", x)
		c.advance(time.Millisecond)
		require.Equal(t, telemetry.Aging, class(), "%v", x)
		c.advance(x.stale - x.fresh - time.Millisecond)
		require.Equal(t, telemetry.Aging, class(), "%v", x)
		c.advance(time.Millisecond)
		require.Equal(t, telemetry.Stale, class(), "%v", x)
	}
}

// What is seen outweighs what was told, once there are three gaps.
func TestGapsOutweighTheInterval(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a")
	for i := range 4 {
		if i > 0 {
			c.advance(time.Second)
		}
		observe(t, p, c, "a", telemetry.Snapshot{Running: telemetry.V(1), Waiting: telemetry.V(0), KVShare: telemetry.V(0.1), Interval: 8 * time.Second})
		if i < 3 {
			c.advance(4 * time.Second)
			require.Equal(t, telemetry.Fresh, seen(t, p, "a").Freshness)
			c.advance(-4 * time.Second)
		}
	}
	c.advance(2500*time.Millisecond + time.Millisecond)
	require.Equal(t, telemetry.Aging, seen(t, p, "a").Freshness, "two and a half gaps of a second")
}

// A prefix that open requests share is in the engine's memory once; the ledger books it for each of them. What reports lack tells.
func TestSharedPrefixesCountOnce(t *testing.T) {
	for _, x := range []struct {
		name                   string
		running, waiting, used float64
		replicas               int
		want                   float64
	}{
		{"shared by all", 10, 0, 1610, 1, 14400. / 16010}, // ten of 1601 tokens, of which the engine holds 1610
		{"shared by nobody", 10, 0, 16010, 1, 0},
		{"others are there too", 12, 0, 20_000, 1, 0},
		{"others share it too", 20, 0, 1620, 2, 30400. / 32020},
		{"some wait", 10, 1, 1610, 1, 0},        // and hold nothing
		{"not all are in it", 9, 0, 1610, 1, 0}, // as after a restart
		{"not known", 10, 0, -1, 1, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			p, c, req := warm(t, router.Config{Replicas: x.replicas})
			req.Exclude, req.ExcludeHard = []string{"b"}, true
			for _, l := range reserveN(t, p, req, 10) {
				l.FirstToken()
				l.Progress(1)
			}
			c.advance(time.Second)
			s := telemetry.Snapshot{
				Running: telemetry.V(x.running), Waiting: telemetry.V(x.waiting), KVCapacity: telemetry.V(float64(flat.KVCapacity)),
			}
			if x.used >= 0 {
				s.KVUsed = telemetry.V(x.used)
			}
			observe(t, p, c, "a", s)
			before := candidate(t, scored(t, p, req), "a")
			reserveN(t, p, req, 5)
			d := scored(t, p, req)
			a := candidate(t, d, "a")
			require.InDelta(t, x.want, d.SharedPart, 1e-9)
			all := 10*1601 + 5*1600.
			if x.replicas == 2 { // the other one has half of what is here like this one, and half spread over both
				require.Equal(t, 10*1601/2., a.OwnMean.Context, "computed once in a millisecond")
				all += all/2 + a.OwnMean.Context/2
			}
			require.InDelta(t, x.want*all, a.Load.Shared, 1e-6, "what they read beyond the engine's memory")
			if x.used < 0 {
				return
			}
			r := float64(x.replicas)
			require.Zero(t, before.KVBooked)
			require.Equal(t, r*5*1600, a.KVBooked)
			require.InDelta(t, x.used+r*5*1601, a.KV.Value, 1e-6, "as booked")
			require.InDelta(t, r*5*(1601-x.want*1600), a.Load.KV-before.Load.KV, 1e-6, "what they add to it")

			c.advance(700 * time.Millisecond) // the report loses weight, and the ledger takes its place
			a = candidate(t, scored(t, p, req), "a")
			if r == 2 {
				r = 1.75 // half of the other one's is like this one's, and a fourth of it is here by lot
			}
			w, own := math.Exp(-0.7), r*(10*1601+5*1600)
			want := r*15*1601 + w*(a.KV.Value-r*15*1601) - x.want*(own+w*(a.KVBooked-own))
			require.InDelta(t, want, a.Load.KV, 1)
		})
	}
}

// What is told again, or with another figure, teaches nothing.
func TestSharingIsLearnedOnce(t *testing.T) {
	p, c, req := warm(t, router.Config{})
	req.Exclude, req.ExcludeHard = []string{"b"}, true
	open := reserveN(t, p, req, 10)
	for _, l := range open {
		l.FirstToken()
	}
	c.advance(time.Second)
	at := c.now()
	report := telemetry.Snapshot{ObservedAt: at, Running: telemetry.V(10), Waiting: telemetry.V(0), KVUsed: telemetry.V(16000)}
	c.advance(time.Second)
	for _, l := range open[:5] {
		l.Progress(1) // since
	}
	for _, l := range open[5:] {
		l.Done(router.Usage{})
	}
	require.NoError(t, p.Observe("a", report))
	require.Zero(t, scored(t, p, req).SharedPart, "all of it was there at the time of the report")
	for range 3 {
		c.advance(time.Second)
		mustReserve(t, p, req).FirstToken()
		require.NoError(t, p.Observe("a", telemetry.Snapshot{ObservedAt: c.now(), Asleep: telemetry.TriNo, Health: telemetry.HealthOK}))
		require.NoError(t, p.Observe("a", report))
		require.Zero(t, scored(t, p, req).SharedPart)
	}
}

// An event that tells of an empty cache may come before the report of the new process, and what it has cached since counts.
func TestRestartAfterItsEvents(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a")
	report := func(epoch string) {
		c.advance(time.Second)
		require.NoError(t, p.Observe("a", telemetry.Snapshot{ObservedAt: c.now(), Running: telemetry.V(0), Epoch: epoch}))
		c.advance(time.Second)
	}
	stored := prompt(t, 5, 6, 7)
	report("1")
	require.NoError(t, p.ApplyKV("a", prefix.Event{Kind: prefix.Cleared}))
	require.NoError(t, p.ApplyKV("a", prefix.Event{Kind: prefix.Stored, Prefix: stored}))
	report("2")
	require.EqualValues(t, 48, cachedOn(t, p, "a", stored))
	report("3")
	require.Zero(t, cachedOn(t, p, "a", stored), "the event told of the restart before")
}

// Where an engine runs as many requests as it can, those beyond have to wait for a slot: by the outputs that the pool has seen.
func TestFullSlotsAreWaitedFor(t *testing.T) {
	c := newClock()
	p, err := router.New(router.Config{Now: c.now})
	require.NoError(t, err)
	profile := flat
	profile.MaxRunning = 4
	require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a", Profile: profile}}))
	busy(t, p, c, "a", 4, 0)
	require.Zero(t, candidate(t, scored(t, p, router.Request{PromptTokens: 10}), "a").Terms.Queue, "no output is known yet")
	for _, x := range []struct {
		cause  string
		tokens int64
		want   float64
	}{{"done", 100, 100}, {"cancelled", 900, 100}, {"failed", 900, 100}, {"done", 0, 100}, {"done", 420, 110}} {
		l := mustReserve(t, p, router.Request{PromptTokens: 10})
		switch x.cause {
		case "done":
			l.Done(router.Usage{OutputTokens: x.tokens})
		case "failed":
			l.Progress(int(x.tokens))
			l.Fail(errors.New("broken"))
		default:
			l.Progress(int(x.tokens))
			l.Cancel()
		}
		require.InDelta(t, x.want, scored(t, p, router.Request{PromptTokens: 10}).MeanOutput, 1e-9, "%v", x)
	}
	c.advance(time.Second)
	busy(t, p, c, "a", 3, 0)
	require.Zero(t, candidate(t, scored(t, p, router.Request{PromptTokens: 10}), "a").Terms.Queue, "there is one")
	c.advance(time.Second)
	busy(t, p, c, "a", 4, 0)
	a := candidate(t, scored(t, p, router.Request{PromptTokens: 10}), "a")
	require.InDelta(t, 110*profile.TokenMS(4, a.Load.KV+a.Load.Shared)/4, a.Terms.Queue, 1e-6, "a fourth of a request's time")
}

// Where failures open the circuit, what is routed to the endpoint later is not taken to find what was cached before: most come back as
// a new process, long before a report tells of it. What its own events have told stays.
func TestOpeningForgetsPrefixes(t *testing.T) {
	for _, exact := range []bool{false, true} {
		c := newClock()
		p := newPool(t, c, router.Config{}, "a")
		before, after := prompt(t, 1, 2), prompt(t, 5, 6, 7)
		report := func(epoch string) {
			require.NoError(t, p.Observe("a", telemetry.Snapshot{ObservedAt: c.now(), Running: telemetry.V(0), Epoch: epoch}))
			c.advance(100 * time.Millisecond)
		}
		report("1")
		mustReserve(t, p, router.Request{Prefix: before}).Done(router.Usage{})
		if exact {
			require.NoError(t, p.ApplyKV("a", prefix.Event{Kind: prefix.Stored, Prefix: before}))
		}
		for range 5 {
			require.EqualValues(t, 32, cachedOn(t, p, "a", before))
			mustReserve(t, p, router.Request{PromptTokens: 10}).Fail(errors.New("refused"))
		}
		if exact {
			require.EqualValues(t, 32, cachedOn(t, p, "a", before))
			continue
		}
		require.Zero(t, cachedOn(t, p, "a", before))
		c.advance(time.Second)
		l := mustReserve(t, p, router.Request{Prefix: after}) // the probe
		l.FirstToken()
		l.Done(router.Usage{})
		require.EqualValues(t, 48, cachedOn(t, p, "a", after))
		report("2")
		require.EqualValues(t, 48, cachedOn(t, p, "a", after), "of the new process already")
		report("3")
		require.Zero(t, cachedOn(t, p, "a", after))
	}
}

// Departures after a report take the memory of a prefix off only as far as the engine frees it.
func TestDepartedShare(t *testing.T) {
	p, c, req := warm(t, router.Config{})
	req.Exclude, req.ExcludeHard = []string{"b"}, true
	open := reserveN(t, p, req, 10)
	for _, l := range open {
		l.FirstToken()
		l.Progress(1)
	}
	c.advance(time.Second)
	observe(t, p, c, "a", telemetry.Snapshot{
		Running: telemetry.V(10), Waiting: telemetry.V(0), KVUsed: telemetry.V(9000), KVCapacity: telemetry.V(float64(flat.KVCapacity)),
	})
	for _, l := range open[:4] {
		l.Done(router.Usage{})
	}
	d := scored(t, p, req)
	a := candidate(t, d, "a")
	part := 7010. / 16010
	require.InDelta(t, part, d.SharedPart, 1e-9)
	require.Equal(t, -4*1601.0, a.KVBooked)
	require.InDelta(t, 9000-4*1601, a.KV.Value, 1e-6)
	require.InDelta(t, 9000-4*1601*(1-part), a.Load.KV, 1e-6)
}
