package world_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/internal/workload"
	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/router"
)

// A workload arrives as it is, in an open loop and in a closed one.
func TestFromWorkload(t *testing.T) {
	w := workload.Workload{
		{
			ID: 0, PromptTokens: 100, OutputTokens: 60, MaxOutputTokens: 80, ExpectedOutputTokens: 70, Session: 7,
			Segments: []workload.Segment{{First: 10, Blocks: 9}}, Tenant: "t", Class: workload.ClassBatch, Deadline: time.Minute, Label: "chat",
		},
		{ID: 1, Turn: 1, Arrival: time.Second, PromptTokens: 200, OutputTokens: 5, Session: 7, Think: 3 * time.Second, Segments: []workload.Segment{{First: 10, Blocks: 12}}},
		{ID: 2, Arrival: 2 * time.Second, PromptTokens: 30, OutputTokens: 5, Adapter: "a", AdapterDigest: "d", Class: workload.ClassSystem},
	}
	cfg := world.Config{Engines: engines(1, small())}
	var asked []world.Request
	cfg.Chooser = to(func(r *world.Request) (world.Choice, error) {
		asked = append(asked, *r)
		return world.Choice{}, nil
	})
	open, err := world.Run(cfg, world.FromWorkload(workload.NewOpen(w.Stream())))
	require.NoError(t, err)
	require.Equal(t, world.Ask{
		PromptTokens: 100, MaxOutputTokens: 80, ExpectedOutputTokens: 70, Tenant: "t", Session: "7", Class: router.ClassBatch, Deadline: time.Minute,
	}, asked[0].Ask)
	require.Equal(t, w[0].AppendBlocks(nil), asked[0].Blocks)
	require.Equal(t, router.Adapter{ID: "a", Digest: "d"}, asked[2].Adapter)
	require.Equal(t, [2]string{"chat", ""}, [2]string{open.Records[0].Label, open.Records[2].Session})
	require.Equal(t, time.Second, open.Records[1].Arrival)

	loop, err := workload.NewLoop(w, workload.LoopConfig{})
	require.NoError(t, err)
	closed, err := world.Run(cfg, world.FromWorkload(loop))
	require.NoError(t, err)
	require.Len(t, closed.Records, 3)
	second := closed.Records[2]
	require.Equal(t, closed.Records[0].End+3*time.Second, second.Arrival)
	require.EqualValues(t, 9*16, second.Cached, "the prompt of the first turn and its output")

	for c := workload.ClassStandard; c <= workload.ClassSheddable; c++ {
		require.Equal(t, c.String(), router.Class(c).String())
	}
	w[1].Arrival = 0
	w[0].Arrival = time.Second
	_, err = world.Run(cfg, world.FromWorkload(workload.NewOpen(w.Stream())))
	require.ErrorContains(t, err, "workload: request 1: Arrival")
}
