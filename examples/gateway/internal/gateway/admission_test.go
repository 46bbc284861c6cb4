package gateway_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
	"github.com/isobar-go/isobar/router"
)

// TestLobby: once it is closed, who finds room is served and nobody waits; a caller who leaves is told of his own end.
func TestLobby(t *testing.T) {
	pool, err := router.New(router.Config{Caps: admission.Caps{Aggregate: 1}, Queue: router.Queue{Max: 4}})
	require.NoError(t, err)
	require.NoError(t, pool.Add(router.Endpoint{ID: "a"}))
	closed, shut := context.WithCancel(context.Background())
	l := gateway.Lobby(pool, closed)
	held, err := l.Reserve(t.Context(), router.Request{})
	require.NoError(t, err)
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err = l.Reserve(gone, router.Request{})
	require.ErrorIs(t, err, context.Canceled)

	shut()
	_, err = l.Reserve(t.Context(), router.Request{})
	var reject *router.RejectError
	require.ErrorAs(t, err, &reject)
	require.ErrorIs(t, err, router.ErrNoEndpoints)
	require.Zero(t, pool.Stats().Queue.Waiting)
	_, err = l.Reserve(t.Context(), router.Request{Class: router.ClassSheddable})
	require.ErrorIs(t, err, router.ErrSaturated, "the pool's own refusals stay what they are")
	held.Cancel()
	last, err := l.Reserve(t.Context(), router.Request{})
	require.NoError(t, err)
	l.Release(last, router.Outcome{Cause: router.Completed})
	require.Zero(t, pool.Stats().OpenLeases)
	_, err = l.Reserve(t.Context(), router.Request{PromptTokens: -1})
	require.ErrorContains(t, err, "PromptTokens")
}
