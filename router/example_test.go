package router_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

// must keeps the examples short; a host handles its errors.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// standing is a clock that stands still, so that the examples always print the same.
func standing() time.Time { return time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC) }

// twoEngines is a pool of an idle and a busy engine.
func twoEngines(cfg router.Config) *router.Pool {
	cfg.Now = standing
	p, err := router.New(cfg)
	must(err)
	must(p.SetEndpoints([]router.Endpoint{{ID: "idle"}, {ID: "busy"}}))
	for id, waiting := range map[string]float64{"idle": 0, "busy": 6} {
		must(p.Observe(id, telemetry.Snapshot{
			ObservedAt: standing(), Running: telemetry.V(4), Waiting: telemetry.V(waiting), KVShare: telemetry.V(0.2),
		}))
	}
	return p
}

func ExampleNew() {
	p, err := router.New(router.Config{
		Policy: router.Pressure(),
		Caps:   admission.Caps{Endpoint: 64, Tenant: 8},
	})
	must(err)
	must(p.SetEndpoints([]router.Endpoint{
		{ID: "engine-0", Address: "http://10.0.0.1:8000", Models: []string{"llama"}},
		{ID: "engine-1", Address: "http://10.0.0.2:8000", Models: []string{"llama"}},
	}))
	for _, e := range p.Endpoints() {
		fmt.Println(e.ID, e.Address)
	}

	_, err = router.New(router.Config{Circuit: router.Circuit{Window: 100}})
	fmt.Println(err)
	// Output:
	// engine-0 http://10.0.0.1:8000
	// engine-1 http://10.0.0.2:8000
	// router: Config.Circuit.Window = 100 is above 64
}

func ExamplePool_Reserve() {
	p := twoEngines(router.Config{})
	l, err := p.Reserve(context.Background(), router.Request{PromptTokens: 2000, ExpectedOutputTokens: 100})
	must(err)
	defer l.Cancel() // does nothing once the lease has ended

	fmt.Println("send to", l.Endpoint().ID)
	l.Started()
	l.FirstToken()
	l.Progress(60)
	sums, err := p.Ledger("idle")
	must(err)
	fmt.Printf("open: %d request, %d tokens of prefill, %d of decode\n", sums.Live.Requests, sums.Live.Prefill, sums.Live.Decode)
	l.Done(router.Usage{OutputTokens: 97})
	sums, err = p.Ledger("idle")
	must(err)
	fmt.Println("open:", sums.Live.Requests)
	// Output:
	// send to idle
	// open: 1 request, 0 tokens of prefill, 40 of decode
	// open: 0
}

func ExampleRejectError() {
	p := twoEngines(router.Config{Caps: admission.Caps{Aggregate: 1}})
	_, err := p.Reserve(context.Background(), router.Request{})
	var reject *router.RejectError
	if errors.As(err, &reject) && errors.Is(err, router.ErrSaturated) {
		fmt.Println(reject.Code(), "-", reject)
	}
	// Output:
	// saturated - router: every endpoint is at a cap (cap-aggregate)
}

func ExamplePool_Score() {
	p := twoEngines(router.Config{})
	d, err := p.Score(router.Request{PromptTokens: 2000, ExpectedOutputTokens: 100})
	must(err)
	fmt.Println(d.Endpoint, "before", d.RunnerUp)
	for line := range strings.Lines(d.Explain()) {
		fmt.Println(strings.Join(strings.Fields(line), " "))
	}
	fmt.Println("open leases:", p.Stats().OpenLeases)
	// Output:
	// idle before busy
	// endpoint total own queue prefill decode adapter kv uncertainty interference displacement wait notes
	// * idle 1585.2 787.6 0.0 62.4 700.2 0.0 25.0 0.0 298.4 499.2 0.0 fresh
	// busy 4072.3 983.9 184.3 62.4 712.2 0.0 25.0 0.0 746.0 499.2 1843.2 fresh
	// open leases: 0
}

// Nearest is a policy of a host: the first endpoint in its own zone, else the cheapest by its own completion.
type Nearest struct{ Prefix string }

func (Nearest) Name() string { return "nearest" }

func (n Nearest) Choose(v *router.View) int {
	best := -1
	for i := range v.Len() {
		if !v.Choosable(i) {
			continue
		}
		c := v.At(i)
		if strings.HasPrefix(c.ID, n.Prefix) {
			return i
		}
		if best < 0 || c.OwnCost < v.At(best).OwnCost {
			best = i
		}
	}
	return best
}

func ExamplePolicy() {
	p := twoEngines(router.Config{Policy: Nearest{Prefix: "busy"}})
	l, err := p.Reserve(context.Background(), router.Request{PromptTokens: 2000})
	must(err)
	fmt.Println(l.Endpoint().ID, "by", l.Decision().Policy)
	must(p.Drain("busy"))
	l, err = p.Reserve(context.Background(), router.Request{PromptTokens: 2000})
	must(err)
	fmt.Println(l.Endpoint().ID)
	// Output:
	// busy by nearest
	// idle
}

func ExampleShadow() {
	p := twoEngines(router.Config{Policy: Nearest{Prefix: "busy"}, Shadow: router.Pressure()})
	l, err := p.Reserve(context.Background(), router.Request{PromptTokens: 2000, ExpectedOutputTokens: 100})
	must(err)
	defer l.Cancel()
	s := l.Decision().Shadow
	fmt.Printf("%s took %s; %s would have taken %s, %.0f ms\n", l.Decision().Policy, l.Endpoint().ID, s.Policy, s.Endpoint, s.DeltaMS)
	// Output:
	// nearest took busy; pressure would have taken idle, -2487 ms
}

func ExampleJSONLines() {
	var file strings.Builder // any io.Writer
	receipts := router.NewJSONLines(&file, 0)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- receipts.Run(ctx) }()

	p := twoEngines(router.Config{Receipts: router.Receipts{Observer: receipts}})
	l, err := p.Reserve(context.Background(), router.Request{ID: "r-1", PromptTokens: 900, Tenant: "acme"})
	must(err)
	l.Done(router.Usage{OutputTokens: 12})

	stop() // what is in the buffer is still written
	must(<-done)
	var r router.Receipt
	must(json.Unmarshal([]byte(file.String()), &r))
	fmt.Println(r.RequestID, r.Endpoint, r.SizeBucket, r.Outcome.Cause, r.Outcome.Tokens)
	fmt.Println("names the tenant:", strings.Contains(file.String(), "acme"))
	// Output:
	// r-1 idle 512 completed 12
	// names the tenant: false
}

func ExampleReplay() {
	kept := &keeper{}
	cfg := router.Config{Receipts: router.Receipts{Observer: kept}}
	p := twoEngines(cfg)
	l, err := p.Reserve(context.Background(), router.Request{PromptTokens: 2000, ExpectedOutputTokens: 100})
	must(err)
	l.Done(router.Usage{})

	d, err := router.Replay(kept.ended[0], cfg)
	must(err)
	fmt.Println("decided again:", d.Endpoint == l.Endpoint().ID, d.Terms == l.Decision().Terms)
	d, err = router.Replay(kept.ended[0], router.Config{Policy: Nearest{Prefix: "busy"}})
	must(err)
	fmt.Println("another policy:", d.Endpoint)
	// Output:
	// decided again: true true
	// another policy: busy
}

func ExamplePool_Reserve_affinity() {
	p := twoEngines(router.Config{})
	scope, err := prefix.NewScope(prefix.Parts{Model: "llama", Tenant: "acme"})
	must(err)
	tokens := make([]int32, 4096) // from the tokenizer
	prompt, err := prefix.FromTokens(scope, 16, tokens)
	must(err)
	req := router.Request{Prefix: prompt, ExpectedOutputTokens: 100}
	first, err := p.Reserve(context.Background(), req)
	must(err)
	first.Done(router.Usage{})

	d, err := p.Score(req)
	must(err)
	fmt.Printf("%s holds %d tokens, which saves %.0f ms\n", d.Endpoint, d.Cached, d.Terms.Saved)
	// Output:
	// idle holds 4096 tokens, which saves 133 ms
}

// A full pool with a queue: the request waits, and gets the room of the one that ends.
func ExamplePool_Enqueue() {
	now := time.Unix(0, 0)
	pool, err := router.New(router.Config{
		Now:   func() time.Time { return now },
		Caps:  admission.Caps{Aggregate: 1},
		Queue: router.Queue{Max: 2, Timeout: 10 * time.Second},
	})
	if err != nil {
		panic(err)
	}
	if err := pool.Add(router.Endpoint{ID: "a"}); err != nil {
		panic(err)
	}
	first, err := pool.Enqueue(router.Request{PromptTokens: 100})
	if err != nil {
		panic(err)
	}
	second, err := pool.Enqueue(router.Request{PromptTokens: 100})
	if err != nil {
		panic(err)
	}
	lease, _ := first.Lease()
	fmt.Println("first:", lease.Endpoint().ID)
	lease, err = second.Lease()
	fmt.Println("second waits:", lease == nil && err == nil)

	lease, _ = first.Lease()
	lease.Done(router.Usage{})
	<-second.Done()
	lease, _ = second.Lease()
	fmt.Println("second:", lease.Endpoint().ID)
	lease.Done(router.Usage{})
	// Output:
	// first: a
	// second waits: true
	// second: a
}
