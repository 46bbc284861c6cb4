package world_test

import (
	"fmt"
	"time"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/router"
)

// Two turns of a conversation, a minute apart, among other requests: the second turn goes where the first one is cached.
func ExampleRun() {
	history := make([]uint64, 500) // chained hashes of 16-token blocks
	for i := range history {
		history[i] = uint64(i + 1)
	}
	turn := func(at time.Duration, blocks int) world.Arrival {
		return world.Arrival{
			At: at, Ask: world.Ask{PromptTokens: int64(blocks) * 16, Session: "talk"}, Blocks: history[:blocks], OutputTokens: 100,
		}
	}
	profile, _ := sim.ProfileByName("h100-8b")
	arrivals := []world.Arrival{turn(time.Second, 250), turn(time.Minute, 500)}
	for i := range 20 {
		arrivals = append(arrivals, world.Arrival{At: time.Duration(3*i) * time.Second, Ask: world.Ask{PromptTokens: 2000}, OutputTokens: 50})
	}
	result, err := world.Run(world.Config{
		Engines: []world.Engine{{Profile: profile}, {Profile: profile}, {Profile: profile}},
		Chooser: world.PoolChooser(router.Config{}),
	}, world.NewList(arrivals))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range result.Records {
		if r.Session != "" {
			ttft, _ := r.TTFT()
			fmt.Printf("%d of %d tokens cached, first token after %v\n", r.Cached, r.PromptTokens, ttft.Round(time.Millisecond))
		}
	}
	f := result.Figures(world.SLO{})
	fmt.Printf("%d finished, goodput %.0f %%, churn %.0f %%\n", f.Finished, 100*f.Goodput, 100*f.Churn)
	// Output:
	// 0 of 4000 tokens cached, first token after 133ms
	// 4000 of 8000 tokens cached, first token after 152ms
	// 22 finished, goodput 100 %, churn 0 %
}
