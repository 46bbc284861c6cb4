package router_test

import (
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
)

// opened makes a pool of one endpoint whose circuit has opened, five seconds ago.
func opened(t *testing.T) (*router.Pool, *clock) {
	t.Helper()
	c := newClock()
	p := newPool(t, c, router.Config{Circuit: router.Circuit{Failures: 1}}, "a")
	mustReserve(t, p, router.Request{}).Fail(nil)
	rejected(t, p, router.Request{}, router.ErrNoEndpoints)
	c.advance(5 * time.Second)
	return p, c
}

func circuitOf(p *router.Pool) string { return p.Stats().Endpoints[0].Circuit }

// A probe that streams has shown that the engine works, however long its stream goes on.
func TestTheFirstTokenOfAProbeClosesTheCircuit(t *testing.T) {
	for name, sign := range map[string]func(l *router.Lease){
		"first token": (*router.Lease).FirstToken, "progress": func(l *router.Lease) { l.Progress(5) },
	} {
		t.Run(name, func(t *testing.T) {
			p, c := opened(t)
			probe := mustReserve(t, p, router.Request{})
			require.True(t, probe.Decision().Probe)
			probe.Started() // headers are no token
			rejected(t, p, router.Request{}, router.ErrNoEndpoints)
			c.advance(time.Second)
			sign(probe)
			require.Equal(t, "closed", circuitOf(p))
			require.False(t, mustReserve(t, p, router.Request{}).Decision().Probe)
			probe.Fail(nil)
			require.Equal(t, "open", circuitOf(p), "its failure later counts like any other")
			require.EqualValues(t, 2, p.Stats().Endpoints[0].Opened)
			c.advance(5 * time.Second)
			require.True(t, mustReserve(t, p, router.Request{}).Decision().Probe, "one that has ended bars no other")
			rejected(t, p, router.Request{}, router.ErrNoEndpoints)
		})
	}
}

// A probe that the host forgot, or that shows no sign of life, bars the next one for MaxOpenFor and no longer.
func TestAForgottenProbeLetsAnotherThroughAfterMaxOpenFor(t *testing.T) {
	p, c := opened(t)
	forgotten := mustReserve(t, p, router.Request{})
	for range 59 {
		c.advance(time.Second)
		rejected(t, p, router.Request{}, router.ErrNoEndpoints)
	}
	c.advance(time.Second)
	next := mustReserve(t, p, router.Request{})
	require.True(t, next.Decision().Probe)
	rejected(t, p, router.Request{}, router.ErrNoEndpoints) // one at a time again
	next.Done(router.Usage{})
	require.Equal(t, "closed", circuitOf(p))
	forgotten.Cancel()
	require.Equal(t, "closed", circuitOf(p))
	require.Zero(t, p.Stats().OpenLeases)
}

// Who says that it has too much to do is alive: the circuit closes, and the overload mark does the rest.
func TestARefusedProbeClosesTheCircuit(t *testing.T) {
	p, c := opened(t)
	mustReserve(t, p, router.Request{}).Refuse(nil)
	require.Equal(t, "closed", circuitOf(p))
	require.True(t, scored(t, p, router.Request{}).Candidates[0].Avoided)
	c.advance(time.Second)
	l := mustReserve(t, p, router.Request{})
	require.False(t, l.Decision().Probe)
	l.Refuse(nil)
	require.Equal(t, "closed", circuitOf(p), "and a refusal opens none")
}

// The circuit of the chosen endpoint opens while the policy is still thinking.
func TestNoLeaseOnACircuitThatOpenedMeanwhile(t *testing.T) {
	for _, ids := range [][]string{{"a"}, {"a", "b"}} {
		c := newClock()
		var meanwhile func()
		p := newPool(t, c, router.Config{Circuit: router.Circuit{Failures: 1}, Policy: hosted(func(v *router.View) int {
			if f := meanwhile; f != nil {
				meanwhile = nil
				f()
				return 0
			}
			for i := range v.Len() {
				if v.Choosable(i) {
					return i
				}
			}
			return -1
		})}, ids...)
		l := mustReserve(t, p, router.Request{})
		require.Equal(t, "a", l.Endpoint().ID)
		meanwhile = func() { l.Fail(nil) }
		if len(ids) == 1 {
			rejected(t, p, router.Request{}, router.ErrNoEndpoints)
			continue
		}
		require.Equal(t, "b", mustReserve(t, p, router.Request{}).Endpoint().ID)
		require.Zero(t, p.Stats().PolicyFaults)
	}
}

// A circuit that is to stay open for as long as time lasts does.
func TestACircuitThatOpensForEver(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{Circuit: router.Circuit{Failures: 1, OpenFor: math.MaxInt64, MaxOpenFor: math.MaxInt64}}, "a")
	c.advance(time.Second)
	mustReserve(t, p, router.Request{}).Fail(nil)
	require.Equal(t, "open", circuitOf(p))
	c.advance(24 * 365 * time.Hour)
	require.Equal(t, "open", circuitOf(p))
	require.Equal(t, 30*time.Second, rejected(t, p, router.Request{}, router.ErrNoEndpoints).RetryAfter)

	t.Run("by doubling", func(t *testing.T) {
		c := newClock()
		const most = 100 * 365 * 24 * time.Hour
		p := newPool(t, c, router.Config{Circuit: router.Circuit{Failures: 1, OpenFor: most, MaxOpenFor: math.MaxInt64}}, "a")
		mustReserve(t, p, router.Request{}).Fail(nil)
		c.advance(most)
		require.Equal(t, "half-open", circuitOf(p))
		mustReserve(t, p, router.Request{}).Fail(nil)
		require.Equal(t, "open", circuitOf(p))
	})
}

// An engine under load ends streams all the time. Those from before its refusal do not say that it takes requests again.
func TestAnOlderStreamDoesNotEndAnOverload(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a", "b")
	busy(t, p, c, "a", 0, 0)
	busy(t, p, c, "b", 10, 5)
	at := func() string {
		l := mustReserve(t, p, router.Request{PromptTokens: 100})
		defer l.Cancel()
		return l.Endpoint().ID
	}
	old, refused := mustReserve(t, p, router.Request{PromptTokens: 1}), mustReserve(t, p, router.Request{PromptTokens: 1})
	require.Equal(t, []string{"a", "a"}, []string{old.Endpoint().ID, refused.Endpoint().ID})
	c.advance(100 * time.Millisecond)
	refused.Refuse(nil)
	require.Equal(t, "b", at())
	c.advance(100 * time.Millisecond)
	old.Done(router.Usage{})
	require.Equal(t, "b", at(), "the older stream")
	young := mustReserve(t, p, router.Request{PromptTokens: 1, Exclude: []string{"b"}, ExcludeHard: true})
	young.Done(router.Usage{})
	require.Equal(t, "a", at(), "one from after the refusal")
}

// A readiness probe that flaps takes an endpoint out and in again thousands of times. That costs neither memory nor time, though a
// stream stays open through it all, and no lease is miscounted.
func TestAFlappingEndpointLeavesNothingBehind(t *testing.T) {
	const flaps = 2000
	c := newClock()
	p := newPool(t, c, router.Config{}, "a", "b")
	only := router.Request{Exclude: []string{"b"}, ExcludeHard: true}
	open := mustReserve(t, p, only)
	flap := func(n int) {
		for range n {
			c.advance(100 * time.Millisecond)
			require.NoError(t, p.Remove("a"))
			require.NoError(t, p.Add(router.Endpoint{ID: "a"}))
			mustReserve(t, p, only).Done(router.Usage{})
		}
	}
	flap(200)
	before := heapBytes()
	flap(flaps)
	grown := heapBytes() - before
	require.Less(t, grown, int64(flaps*100), "bytes, in %d flaps", flaps)
	s := p.Stats()
	require.EqualValues(t, 1, s.OpenLeases)
	require.EqualValues(t, flaps+200, s.Completed)
	sums, err := p.Ledger("a")
	require.NoError(t, err)
	require.EqualValues(t, 1, sums.Live.Requests, "the stream is still known")
	open.Done(router.Usage{})
	require.Zero(t, p.Stats().OpenLeases)
	require.EqualValues(t, flaps+201, p.Stats().Completed)
	runtime.KeepAlive(p)
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
