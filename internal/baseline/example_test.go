package baseline_test

import (
	"fmt"
	"time"

	"github.com/isobar-go/isobar/internal/baseline"
	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/internal/world"
)

// A long prompt every second, and two short ones in between, before two engines: who counts requests sends short ones behind long ones.
func ExampleByName() {
	profile, _ := sim.ProfileByName("h100-8b")
	var arrivals []world.Arrival
	for i := range 20 {
		at := time.Duration(i) * time.Second
		arrivals = append(arrivals,
			world.Arrival{At: at, Ask: world.Ask{PromptTokens: 30_000}, OutputTokens: 10},
			world.Arrival{At: at + 500*time.Millisecond, Ask: world.Ask{PromptTokens: 100}, OutputTokens: 10},
			world.Arrival{At: at + 600*time.Millisecond, Ask: world.Ask{PromptTokens: 100}, OutputTokens: 10})
	}
	for _, name := range []string{"round-robin", "least-requests", "lpwl", "oracle"} {
		maker, err := baseline.ByName(name)
		if err != nil {
			fmt.Println(err)
			return
		}
		result, err := world.Run(world.Config{
			Seed: 1, Engines: []world.Engine{{Profile: profile}, {Profile: profile}}, Chooser: maker,
		}, world.NewList(arrivals))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s: TTFT %.0f ms\n", name, result.Figures(world.SLO{}).TTFT.Mean)
	}
	// Output:
	// round-robin: TTFT 772 ms
	// least-requests: TTFT 787 ms
	// lpwl: TTFT 489 ms
	// oracle: TTFT 489 ms
}
