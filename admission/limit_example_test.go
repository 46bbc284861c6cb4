package admission_test

import (
	"fmt"
	"time"

	"github.com/isobar-go/isobar/admission"
)

// An engine whose pass takes 10 ms for up to 40 requests, and time in proportion beyond: more than 40 bring no throughput.
func ExampleLimiter() {
	limiter, err := admission.NewLimiter(admission.LimitConfig{Min: 10, Max: 100})
	if err != nil {
		fmt.Println(err)
		return
	}
	for second := range int64(600) {
		running := float64(limiter.Limit()) // there is always more to do
		limiter.Observe(second*int64(time.Second), running, 1000*running/max(10, running/4))
		if c := limiter.Last(); c.At == second*int64(time.Second) && c.Reason == admission.LimitKnee {
			fmt.Printf("%d -> %d: %s, %.0f tokens/s, %.1f ms per token\n", c.From, c.To, c.Reason, c.Throughput, c.PerToken)
		}
	}
	fmt.Println(limiter.Learned())
	// Output:
	// 100 -> 76: knee-found, 4000 tokens/s, 25.0 ms per token
	// 76 -> 61: knee-found, 4000 tokens/s, 19.0 ms per token
	// 61 -> 49: knee-found, 4000 tokens/s, 15.2 ms per token
	// 49 -> 39: knee-found, 4000 tokens/s, 12.2 ms per token
	// 39
}
