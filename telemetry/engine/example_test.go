package engine_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
)

// The answer to a poll goes from the parser into the store; a wrong answer is a failed poll.
func ExampleParse() {
	store := telemetry.NewStore(telemetry.StoreConfig{})
	requested := time.Unix(1_700_000_000, 0)
	for _, body := range []string{
		"vllm:num_requests_running{engine=\"0\"} 27\nvllm:num_requests_running{engine=\"1\"} 5\n",
		`{"detail": "Not Found"}`,
	} {
		now := requested.Add(10 * time.Millisecond)
		snapshot, err := engine.Parse(engine.VLLM, []byte(body), requested)
		if err != nil {
			store.ScrapeError(now, err)
			fmt.Println(err, errors.Is(err, engine.ErrNotPrometheus))
			continue
		}
		store.Observe(now, snapshot, 0)
	}
	running, _ := store.State().Running.Value()
	fmt.Println("running:", running, "ranks:", len(store.State().Ranks))
	_, known := store.State().Waiting.Value()
	fmt.Println("waiting known:", known)
	// Output:
	// engine: not a Prometheus text document true
	// running: 32 ranks: 2
	// waiting known: false
}
