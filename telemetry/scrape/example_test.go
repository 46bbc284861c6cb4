package scrape_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/scrape"
)

// printer is a sink; a host gives its *router.Pool.
type printer struct{ done func() }

func (p printer) Observe(id string, s telemetry.Snapshot) error {
	running, known := s.Running.Value()
	fmt.Println(id, "running:", running, known)
	p.done()
	return nil
}

func (p printer) ScrapeFailed(_ string, cause error) error {
	fmt.Println(cause)
	p.done()
	return nil
}

// An engine is polled until the context ends. Its kind is recognised from what it says.
func ExamplePoller() {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "vllm:num_requests_running 3\n")
	}))
	defer engine.Close()

	ctx, cancel := context.WithCancel(context.Background())
	poller, err := scrape.New(scrape.Config{
		Targets: func() []scrape.Target { return []scrape.Target{{ID: "a", URL: engine.URL + "/metrics"}} },
		Sink:    printer{done: cancel},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ended:", poller.Run(ctx))
	stats, _ := poller.Endpoint("a")
	fmt.Println(stats.Kind, stats.Successes, stats.Reason == scrape.ReasonNone)
	// Output:
	// a running: 3 true
	// ended: <nil>
	// vllm 1 true
}
