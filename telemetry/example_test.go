package telemetry_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/isobar-go/isobar/telemetry"
)

// A poll brings a queue and no memory figure, then the engine cannot be reached, then a late answer arrives.
func ExampleStore() {
	store := telemetry.NewStore(telemetry.StoreConfig{})
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	sent := start.Add(time.Second)
	store.Observe(sent.Add(20*time.Millisecond), telemetry.Snapshot{
		ObservedAt: sent, Source: "poll", Running: telemetry.V(12), Waiting: telemetry.V(3),
	}, 0)
	store.ScrapeError(start.Add(4*time.Second), errors.New("connection refused"))
	late := store.Observe(start.Add(6*time.Second), telemetry.Snapshot{
		ObservedAt: start, Source: "poll", Running: telemetry.V(0), Waiting: telemetry.V(0),
	}, 0)

	state := store.State()
	now := start.Add(6 * time.Second)
	limits := telemetry.Limits{}
	waiting, known := state.Waiting.Value()
	fmt.Println("waiting:", waiting, known, limits.Of(state.Waiting, now))
	share, known := state.KVShare.Value()
	fmt.Println("KV share:", share, known, limits.Of(state.KVShare, now))
	fmt.Println("late answer dropped:", late.Dropped)
	// Output:
	// waiting: 3 true aging
	// KV share: 0 false missing
	// late answer dropped: older
}

// The figures of data-parallel ranks become those of the engine.
func ExampleSnapshot_ranks() {
	store := telemetry.NewStore(telemetry.StoreConfig{})
	store.Observe(time.Unix(10, 0), telemetry.Snapshot{Ranks: []telemetry.Rank{
		{ID: 0, Running: telemetry.V(27), KVShare: telemetry.V(0.8)},
		{ID: 1, Running: telemetry.V(5), KVShare: telemetry.V(0.1)},
	}}, 0)
	running, _ := store.State().Running.Value()
	share, _ := store.State().KVShare.Value()
	fmt.Println(running, share)
	// Output: 32 0.8
}

func ExampleLimits_Classify() {
	limits := telemetry.Limits{FreshFor: 500 * time.Millisecond}
	for _, age := range []time.Duration{100 * time.Millisecond, 3 * time.Second, time.Minute, -time.Second} {
		fmt.Println(age, limits.Classify(age))
	}
	// Output:
	// 100ms fresh
	// 3s aging
	// 1m0s stale
	// -1s stale
}
