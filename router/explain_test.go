package router_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/router"
)

// What is logged of a decision says what it beat, and where nothing was known.
func TestDecisionString(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a", "b")
	d := mustReserve(t, p, router.Request{PromptTokens: 100, ExpectedOutputTokens: 10, Exclude: []string{"b"}, ExcludeHard: true}).Decision()
	require.Regexp(t, `^pressure: a at [0-9.]+ ms, one of 1 endpoints; degraded: no usable telemetry$`, d.String())
	idle(t, p, c, "a", "b")
	req := router.Request{PromptTokens: 100, ExpectedOutputTokens: 10}
	d = scored(t, p, req)
	require.Regexp(t, `^pressure: b at [0-9.]+ ms, next a at [0-9.]+, one of 2 endpoints$`, d.String(), "a has got a request")
	c.advance(time.Hour)
	require.Contains(t, scored(t, p, req).Explain(), "stale 1h0m0s")
	require.Contains(t, scored(t, p, req).Explain(), "\n  degraded: no usable telemetry\n")

	p = newPool(t, c, router.Config{}, "a", "b")
	idle(t, p, c, "a", "b")
	require.Regexp(t, `^pressure: [ab] at [0-9.]+ ms, next [ab] at [0-9.]+, one of 2 endpoints$`, scored(t, p, req).String())
	require.NoError(t, p.SetEndpoints(nil))
	d, err := p.Score(req)
	require.Error(t, err)
	require.Equal(t, "pressure: no endpoint was looked at", d.String())
}

// An endpoint that has never reported has no age, and is not taken for the newest.
func TestAgeOfAnEndpointThatNeverReported(t *testing.T) {
	c := newClock()
	p := newPool(t, c, router.Config{}, "a", "b")
	idle(t, p, c, "a")
	stats := p.Stats().Endpoints
	require.Zero(t, stats[0].Age)
	require.Negative(t, stats[1].Age)
}
