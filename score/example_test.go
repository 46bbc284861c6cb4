package score_test

import (
	"fmt"

	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// A warm engine with a queue against a cold one without: what half a second of saved prefill is worth.
func Example() {
	profile, err := score.FromRates(8000, 20) // prompt tokens a second, ms per output token
	if err != nil {
		fmt.Println(err)
		return
	}
	profile = profile.WithDefaults()
	request := score.Request{Prompt: 4096, Output: 100}
	quote := score.NewModel(score.Weights{}, telemetry.Limits{}).Quote(&profile, &request)
	fresh := score.Freshness{Class: telemetry.Fresh}

	var warm, cold score.Terms
	quote.Terms(&score.Load{Requests: 20, PendingPrefill: 80_000}, fresh, score.Match{Cached: 4000}, &warm)
	quote.Terms(&score.Load{}, fresh, score.Match{}, &cold)
	fmt.Printf("warm: queue %.0f ms, prefill %.0f ms (saved %.0f)\n", warm.Queue, warm.Prefill, warm.Saved)
	fmt.Printf("cold: queue %.0f ms, prefill %.0f ms\n", cold.Queue, cold.Prefill)
	fmt.Println("cold wins:", cold.Total() < warm.Total())
	// Output:
	// warm: queue 10000 ms, prefill 12 ms (saved 500)
	// cold: queue 0 ms, prefill 512 ms
	// cold wins: true
}
