package promexport_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/router"
)

// TestFiguresOfTheQueue: who waits, for how long, and how others have left; of a pool without a queue there is none of that.
func TestFiguresOfTheQueue(t *testing.T) {
	names := []string{
		"isobar_queue_waiting", "isobar_queue_waiting_tokens", "isobar_queue_oldest_wait_seconds", "isobar_queue_left_total",
		"isobar_endpoint_request_limit",
	}
	compare(t, smallPool(t), "", names...)

	c := &clock{}
	p, err := router.New(router.Config{
		Now: c.now, Caps: admission.Caps{Aggregate: 1}, Queue: router.Queue{Max: 2, Timeout: time.Second},
		Limit: router.Limit{Adaptive: true, Learn: admission.LimitConfig{Min: 4, Max: 32}},
	})
	require.NoError(t, err)
	require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a"}}))
	enqueue := func() *router.Ticket {
		ticket, err := p.Enqueue(router.Request{PromptTokens: 90, MaxOutputTokens: 10})
		require.NoError(t, err)
		return ticket
	}
	first := enqueue()
	enqueue()
	c.advance(600 * time.Millisecond)
	enqueue()
	c.advance(500 * time.Millisecond)
	p.Tick()
	enqueue()
	l, err := first.Lease()
	require.NoError(t, err)
	l.Done(router.Usage{})
	compare(t, p, `
isobar_endpoint_request_limit{endpoint="a"} 32
isobar_queue_left_total{outcome="cancelled"} 0
isobar_queue_left_total{outcome="displaced"} 0
isobar_queue_left_total{outcome="granted"} 1
isobar_queue_left_total{outcome="missed-deadline"} 0
isobar_queue_left_total{outcome="refused"} 0
isobar_queue_left_total{outcome="timed-out"} 1
isobar_queue_oldest_wait_seconds 0
isobar_queue_waiting 1
isobar_queue_waiting_tokens 100
`, names...)
}
