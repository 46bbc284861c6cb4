// Package overload shows what a gateway does when ten times as much comes as its engines can do: it keeps its caps, serves what it
// admits to the end, lets a part of the rest wait in a fair queue, and refuses the others at once.
//
// Three model engines in this process are behind a gateway with tight caps. Requests of four classes and six tenants come over
// HTTP as they would anyway, whatever was answered before. Every second a line says how it goes, and at the end each claim is
// compared with what was measured.
package overload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/examples/gateway/internal/demo"
	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
	"github.com/isobar-go/isobar/examples/gateway/internal/node"
	"github.com/isobar-go/isobar/examples/internal/embedded"
	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/router"
)

// Bounds of Config.Length.
const (
	MinLength = 5 * time.Second
	MaxLength = time.Hour
)

// Config configures an overload. It is a plain value.
type Config struct {
	// Listener is where the gateway listens; Run closes it.
	Listener net.Listener
	// Scale is how much faster than real time the engines run, above 0.
	Scale float64
	// Length is how long requests come, in the engines' time, from MinLength to MaxLength.
	Length time.Duration
	// Dialect is in whose names the engines report, see embedded.Config; "" = the default.
	Dialect string
	// Policy chooses among the engines; nil = the default policy.
	Policy router.Policy
	// Out is where the lines go.
	Out io.Writer
	// Gateway configures the server; see node.Config.
	Gateway gateway.Config
	// Receipts is where receipts are written; nil = nowhere.
	Receipts io.Writer
	// Log is where changes and faults are noted; nil = nowhere.
	Log *slog.Logger
}

// The limits of the gateway. Times are the engines'.
const (
	engines      = 3
	perEngine    = 6  // requests on one engine
	aggregate    = 16 // on all: less than engines x perEngine, so that either cap matters
	perTenant    = 8
	tenantTokens = 6000
	queueMax     = 48
	queueTokens  = 24_000
	queueTimeout = 8 * time.Second
	profileName  = "rtx4090-8b"
	model        = "demo"
)

// limits are what the pool is told, in the clock's time.
func limits(scale float64) router.Config {
	return router.Config{
		Seed: 1,
		Caps: admission.Caps{Endpoint: perEngine, Aggregate: aggregate, Tenant: perTenant, TenantTokens: tenantTokens},
		Queue: router.Queue{
			Max: queueMax, MaxTokens: queueTokens, Timeout: clock(queueTimeout, scale), AgeAfter: clock(3*time.Second, scale),
		},
		Shares: router.Shares{Interactive: 0.25, Standard: 0.125, Memory: clock(time.Minute, scale)},
	}
}

// clock is a time of the engines as the clock shows it.
func clock(d time.Duration, scale float64) time.Duration { return time.Duration(float64(d) / scale) }

// stand is the gateway with its engines and its client.
type stand struct {
	cfg     Config
	engines []*embedded.Engine
	node    *node.Node
	tally   *tally
	client  *client
	url     string
	cancel  context.CancelFunc
	stopped chan error
}

// Run shows the overload. The error says what it claims and did not do, or that it was broken off.
func Run(ctx context.Context, cfg Config) error {
	profile, ok := sim.ProfileByName(profileName)
	if !ok {
		return errors.Join(fmt.Errorf("overload: no profile %q", profileName), cfg.Listener.Close())
	}
	goroutines := runtime.NumGoroutine()
	plan := schedule(cfg.Length, capacity(profile))
	s := &stand{cfg: cfg, tally: newTally(plan), url: "http://" + cfg.Listener.Addr().String(), stopped: make(chan error, 1)}
	if err := s.start(profile); err != nil {
		return errors.Join(err, cfg.Listener.Close())
	}
	introduce(cfg.Out, &cfg, plan, profile)
	out, err := s.play(ctx, plan)
	if err = errors.Join(err, s.stop()); err != nil {
		return err
	}
	out.goroutines = settledGoroutines(ctx, goroutines) - goroutines
	return out.report(cfg.Out)
}

// start starts engines and gateway. They must be stopped unless it fails.
func (s *stand) start(profile sim.Profile) error {
	endpoints := make([]router.Endpoint, 0, engines)
	for i := range engines {
		name := fmt.Sprintf("engine-%c", 'a'+i)
		e, err := embedded.Start(embedded.Config{
			Name: name, Model: model, Profile: profile, TimeScale: s.cfg.Scale, Dialect: s.cfg.Dialect,
		})
		if err != nil {
			s.killEngines()
			return err
		}
		s.engines = append(s.engines, e)
		endpoints = append(endpoints, router.Endpoint{
			ID: name, Address: e.URL(), Models: []string{model}, Profile: demo.Scaled(profile, s.cfg.Scale),
		})
	}
	pool := limits(s.cfg.Scale)
	pool.Policy, pool.Receipts.Observer = s.cfg.Policy, s.tally
	server := s.cfg.Gateway
	server.TrustClass = true // its own client names the classes
	server.Wrap = func(r router.Router) router.Router { return &timed{r, s.tally} }
	n, err := node.New(node.Config{
		Endpoints: endpoints, Pool: pool, Gateway: server, Receipts: s.cfg.Receipts, Log: s.cfg.Log,
		Every: max(clock(500*time.Millisecond, s.cfg.Scale), 40*time.Millisecond),
	})
	if err != nil {
		s.killEngines()
		return err
	}
	s.node = n
	s.client = newClient(s.url)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	n.Poll(ctx)
	go func() { s.stopped <- n.Run(ctx, s.cfg.Listener) }()
	return nil
}

// stop ends gateway and engines in good order.
func (s *stand) stop() error {
	s.client.close()
	s.cancel()
	err := <-s.stopped
	s.killEngines()
	return err
}

func (s *stand) killEngines() {
	for _, e := range s.engines {
		e.Kill()
	}
}

// play warms everything up, sends the plan, waits until nothing is open, and measures.
func (s *stand) play(ctx context.Context, plan []arrival) (*outcome, error) {
	if err := s.warmUp(ctx); err != nil {
		return nil, err
	}
	out := &outcome{plan: plan, tally: s.tally, scale: s.cfg.Scale, capacity: capacity(s.engines[0].Config().Profile)}
	if err := s.settle(ctx); err != nil {
		return nil, err
	}
	s.tally.begin()
	before := s.node.Pool.Stats()
	out.heap[0] = liveHeap()

	watching, end := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	watchers.Go(func() { s.watch(watching, out) })
	watchers.Go(func() { s.print(watching) })
	var clients sync.WaitGroup
	begin := time.Now()
	for i := range plan {
		a := &plan[i]
		at := clock(a.at, s.cfg.Scale)
		if err := sleep(ctx, at-time.Since(begin)); err != nil {
			break
		}
		out.late = max(out.late, time.Since(begin)-at)
		s.tally.offer(a.kind)
		clients.Go(func() { a.result, a.fault = s.client.run(ctx, a, s.cfg.Scale) })
	}
	out.sent = time.Since(begin)
	clients.Wait()
	end()
	watchers.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	out.unsettled = s.settle(ctx)
	s.tally.end()
	out.before, out.after = before, s.node.Pool.Stats()
	s.client.base.CloseIdleConnections()
	out.heap[1] = liveHeap()
	out.refill = s.refill(ctx)
	return out, nil
}

// warmUp has each engine serve, and opens as many connections as will be needed.
func (s *stand) warmUp(ctx context.Context) error {
	var clients sync.WaitGroup
	faults := make([]error, aggregate+queueMax)
	for i := range faults {
		clients.Go(func() {
			a := arrival{kind: kindStandard, tenant: i % tenants, text: i % texts}
			if _, err := s.client.run(ctx, &a, 0); err != nil {
				faults[i] = fmt.Errorf("overload: before it began: %w", err)
			}
		})
	}
	clients.Wait()
	return errors.Join(faults...)
}

// settle waits until no lease is open and nobody waits: a client may see the end of its stream before the gateway does.
func (s *stand) settle(ctx context.Context) error {
	var now router.Stats
	for range 500 {
		if now = s.node.Pool.Stats(); now.OpenLeases == 0 && now.Queue.Waiting == 0 {
			return nil
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("%d leases are open and %d requests wait after the last client has gone", now.OpenLeases, now.Queue.Waiting)
}

// watch looks at the engines themselves, how many requests they really have, until ctx is done.
func (s *stand) watch(ctx context.Context, out *outcome) {
	for sleep(ctx, 5*time.Millisecond) == nil {
		for _, e := range s.engines {
			now := e.Stats()
			out.peak = max(out.peak, now.Running+now.Waiting)
		}
	}
}

// refill says whether the pool takes exactly as many requests as its cap again, which it would not with anything left in a sum of
// leases, tenants or classes. Nothing of it is sent.
func (s *stand) refill(ctx context.Context) (err error) {
	for range 200 { // until the engines have said that they are idle
		if err = s.fill(); err == nil {
			return nil
		}
		if stop := sleep(ctx, 20*time.Millisecond); stop != nil {
			return stop
		}
	}
	return err
}

func (s *stand) fill() error {
	pool := s.node.Pool
	for i := range aggregate {
		t, err := pool.Enqueue(router.Request{Model: model, PromptTokens: 1, MaxOutputTokens: 1, Class: router.ClassInteractive})
		if err != nil {
			return fmt.Errorf("the empty pool refuses request %d of %d: %w", i+1, aggregate, err)
		}
		defer t.Cancel()
		if l, err := t.Lease(); l == nil {
			return fmt.Errorf("the empty pool has no room for request %d of %d: %v", i+1, aggregate, err)
		}
	}
	l, err := pool.Reserve(context.Background(), router.Request{Model: model, Class: router.ClassSheddable})
	if err == nil {
		l.Cancel()
		return fmt.Errorf("the pool takes more than %d", aggregate)
	}
	return nil
}

// liveHeap is what is reachable, bytes. The second collection frees what the first has found finalizers of.
func liveHeap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// settledGoroutines is their number when those that are ending have ended.
func settledGoroutines(ctx context.Context, before int) int {
	n := runtime.NumGoroutine()
	for i := 0; n > before && i < 200 && sleep(ctx, 10*time.Millisecond) == nil; i++ {
		n = runtime.NumGoroutine()
	}
	return n
}

// newTransport is one for many connections to the gateway.
func newTransport() *http.Transport {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.Proxy = nil
	base.MaxIdleConns, base.MaxIdleConnsPerHost = 0, 256
	return base
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
