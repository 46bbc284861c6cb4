package calibrate_test

import (
	"context"
	"fmt"
	"time"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/score/calibrate"
	"github.com/isobar-go/isobar/telemetry"
)

// A router believes that its engine computes 5,000 prompt tokens a second; in truth it is 10,000.
func Example() {
	believed, err := score.FromRates(5_000, 20)
	if err != nil {
		fmt.Println(err)
		return
	}
	believed.KVToken, believed.Sequence = 0, 0
	var c calibrate.Calibrator
	now := time.Unix(1000, 0)
	pool, err := router.New(router.Config{Receipts: router.Receipts{Observer: &c}, Now: func() time.Time { return now }})
	if err != nil {
		fmt.Println(err)
		return
	}
	endpoint := router.Endpoint{ID: "gpu-0", Profile: believed}
	if err := pool.SetEndpoints([]router.Endpoint{endpoint}); err != nil {
		fmt.Println(err)
		return
	}

	for i := range 400 {
		_ = pool.Observe("gpu-0", telemetry.Snapshot{
			ObservedAt: now, Running: telemetry.V(0), Waiting: telemetry.V(0), KVUsed: telemetry.V(0), KVCapacity: telemetry.V(400_000),
		})
		prompt := 500 + 37*i%4000
		lease, err := pool.Reserve(context.Background(), router.Request{PromptTokens: int64(prompt)})
		if err != nil {
			fmt.Println(err)
			return
		}
		now = now.Add(time.Duration(prompt) * 100 * time.Microsecond) // the prefill
		lease.FirstToken()
		now = now.Add(199 * 20 * time.Millisecond) // the decode
		lease.Done(router.Usage{PromptTokens: int64(prompt), OutputTokens: 200})
	}

	report, err := c.Fit(calibrate.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fit := report.Fits[0]
	fmt.Printf("prefill %v, decode %v\n", fit.Prefill, fit.Decode)
	fmt.Printf("error of the first token on held-out receipts: %.0f ms, was %.0f ms\n", fit.FirstToken.After, fit.FirstToken.Before)
	if profile, ok := report.Profiles[endpoint.ID]; ok {
		fmt.Printf("%.0f prompt tokens a second\n", 1000/profile.PrefillToken)
		endpoint.Profile = profile
		fmt.Println(pool.SetEndpoints([]router.Endpoint{endpoint}))
	}
	// Output:
	// prefill adopted, decode no-gain
	// error of the first token on held-out receipts: 0 ms, was 242 ms
	// 10000 prompt tokens a second
	// <nil>
}
