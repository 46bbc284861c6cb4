package sim_test

import (
	"fmt"

	"github.com/isobar-go/isobar/internal/sim"
)

// The second turn of a conversation finds the first one in the cache.
func ExampleEngine() {
	profile, _ := sim.ProfileByName("h100-8b")
	engine, err := sim.New(profile, sim.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	history := make([]uint64, 500) // chained hashes of 16-token blocks
	for i := range history {
		history[i] = uint64(i + 1)
	}
	for turn, blocks := range []int{250, 500} {
		err := engine.Submit(sim.Request{
			ID: uint64(turn), Blocks: history[:blocks], PromptTokens: int64(blocks)*16 + 8, OutputTokens: 4,
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		now := 0.0
		for {
			ms, events := engine.Step(nil)
			if ms == 0 {
				break
			}
			now += ms
			for _, e := range events {
				switch e.Kind {
				case sim.Admitted:
					fmt.Printf("turn %d: %d tokens cached", turn+1, e.Tokens)
				case sim.FirstToken:
					fmt.Printf(", first token after %.0f ms\n", now)
				}
			}
		}
	}
	// Output:
	// turn 1: 0 tokens cached, first token after 131 ms
	// turn 2: 4000 tokens cached, first token after 150 ms
}
