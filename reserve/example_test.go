package reserve_test

import (
	"fmt"
	"time"

	"github.com/isobar-go/isobar/reserve"
)

// One request is dispatched, a poll is sent while it is in prefill, and its answer arrives after the first token.
func ExampleLedger() {
	ledger, err := reserve.NewLedger(reserve.Config{})
	if err != nil {
		panic(err)
	}
	account := ledger.Account("engine-7", "start-1")
	start := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	after := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }

	var lease reserve.Lease
	if err := account.Reserve(&lease, start, reserve.Cost{Prefill: 1000, Decode: 200, KV: 1200}); err != nil {
		panic(err)
	}
	fmt.Println("unobserved:", account.Sums().Unobserved)

	polled := after(50) // the engine reports 1000 tokens waiting for prefill
	lease.FirstToken(after(60))
	account.Observe(polled) // the answer comes late

	sums := account.Sums()
	fmt.Println("unobserved:", sums.Unobserved)
	fmt.Println("departed:  ", sums.Departed)
	fmt.Println("prefill now:", max(sums.Live.Prefill, 1000-sums.Departed.Prefill+sums.Unobserved.Prefill))

	fmt.Println(lease.Release(after(900)), lease.Release(after(901)))
	fmt.Println("live:", account.Sums().Live)
	// Output:
	// unobserved: {1 1000 200 1200}
	// unobserved: {0 0 0 0}
	// departed:   {0 1000 0 0}
	// prefill now: 0
	// true false
	// live: {0 0 0 0}
}

// A lease nobody has ended is reported, never reaped.
func ExampleLedger_Oldest() {
	ledger, err := reserve.NewLedger(reserve.Config{})
	if err != nil {
		panic(err)
	}
	start := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	var lease reserve.Lease
	if err := ledger.Account("engine-7", "start-1").Reserve(&lease, start, reserve.Cost{KV: 1200}); err != nil {
		panic(err)
	}
	for _, l := range ledger.Oldest(1) {
		fmt.Println(l.ID, "holds", l.Remaining.KV, "KV tokens since", l.DispatchedAt.Format(time.TimeOnly))
	}
	// Output:
	// engine-7 holds 1200 KV tokens since 12:00:00
}
