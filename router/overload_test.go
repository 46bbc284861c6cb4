package router_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
)

// An engine that says it has too much to do is avoided for a moment while there is another, used where there is none, and never
// taken for broken.
func TestARefusalIsAnOverloadMarkThatDecays(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a", "b")
	observe := func() {
		busy(t, p, c, "a", 0, 0)
		busy(t, p, c, "b", 10, 5)
	}
	at := func(r router.Request) string {
		l := mustReserve(t, p, r)
		defer l.Cancel()
		return l.Endpoint().ID
	}
	wait := time.Second
	for row := range 6 {
		observe()
		l := mustReserve(t, p, router.Request{PromptTokens: 100})
		require.Equal(t, "a", l.Endpoint().ID, "refusal %d", row)
		l.Refuse(nil)
		c.advance(wait - time.Millisecond)
		observe()
		require.Equal(t, "b", at(router.Request{PromptTokens: 100}), "refusal %d", row)
		require.Equal(t, "a", at(router.Request{PromptTokens: 100, Exclude: []string{"b"}, ExcludeHard: true}))
		c.advance(time.Millisecond)
		wait = min(2*wait, 8*time.Second)
	}
	s := p.Stats()
	require.EqualValues(t, 6, s.Refused)
	require.Zero(t, s.OpenLeases)
	require.Equal(t, "closed", s.Endpoints[0].Circuit)

	mustReserve(t, p, router.Request{PromptTokens: 100}).Done(router.Usage{})
	observe()
	l := mustReserve(t, p, router.Request{PromptTokens: 100})
	require.Equal(t, "a", l.Endpoint().ID)
	l.Refuse(nil)
	c.advance(time.Second)
	observe()
	require.Equal(t, "a", at(router.Request{PromptTokens: 100}), "a completion starts the row anew")
}

// Leases that were out before the mark are the same news: ten refusals of one burst are one.
func TestABurstOfRefusalsIsOneMark(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a")
	var burst []*router.Lease
	for range 10 {
		burst = append(burst, mustReserve(t, p, router.Request{}))
	}
	c.advance(100 * time.Millisecond)
	for _, l := range burst {
		l.Refuse(nil)
	}
	require.True(t, scored(t, p, router.Request{}).Candidates[0].Avoided)
	c.advance(time.Second)
	require.False(t, scored(t, p, router.Request{}).Candidates[0].Avoided)
}

func TestALeaseThatCameFromNowhereDoesNothing(t *testing.T) {
	p := newPool(t, newClock(), router.Config{}, "a")
	for _, l := range []*router.Lease{nil, {}} {
		l.Started()
		l.FirstToken()
		l.Progress(3)
		l.Done(router.Usage{})
		l.Fail(nil)
		l.Refuse(nil)
		l.Cancel()
		p.Release(l, router.Outcome{})
		require.False(t, l.Live())
		require.Zero(t, l.Endpoint().ID)
		require.Zero(t, l.Decision().Number)
	}
	_, err := router.Replay(nil, router.Config{})
	require.Error(t, err)
	require.Zero(t, p.Stats().Decisions)
}
