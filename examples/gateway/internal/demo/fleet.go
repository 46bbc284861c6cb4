package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
	"github.com/isobar-go/isobar/examples/gateway/internal/node"
	"github.com/isobar-go/isobar/examples/internal/embedded"
	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
	"github.com/isobar-go/isobar/score"
)

const (
	profileName = "rtx4090-8b"
	model       = "demo"
)

// names of the engines.
const (
	engineA = "engine-a"
	engineB = "engine-b" // is drained for a while
	engineC = "engine-c" // is killed
)

// fleet is three engines with a gateway before them.
type fleet struct {
	node    *node.Node
	engines map[string]*embedded.Engine
	scale   float64
	pass    float64 // the time of an engine's pass, ms of the clock
	url     string
	log     *log
	stopped chan error
	cancel  context.CancelFunc
}

// fleetConfig configures a fleet.
type fleetConfig struct {
	policy   router.Policy
	pool     router.Config // of which only Queue and Limit count
	scale    float64
	listener net.Listener
	gateway  gateway.Config
	receipts io.Writer
	slog     *slog.Logger
	dialect  string    // of the engines
	out      io.Writer // where they are introduced; nil = nowhere
}

// Scaled is the profile of an engine that runs that much faster, as a pool is told it: in the clock's time.
func Scaled(p sim.Profile, scale float64) score.Profile {
	return score.Profile{
		Base: p.Base / scale, PrefillToken: p.PerToken / scale, KVToken: p.PerContext / scale, Attention: p.PerPair / scale,
		Sequence: p.PerSeq / scale, KVCapacity: p.KVTokens, BlockSize: int(p.BlockSize), MaxRunning: int64(p.MaxSeqs),
	}
}

// Tokenize is the tokenizer of the model engines, for a gateway before them.
func Tokenize(p httptransport.Prompt) ([]uint32, bool) { return embedded.Tokenize(p.Path, p.Body) }

// startFleet starts engines and gateway. The fleet must be stopped.
func startFleet(cfg fleetConfig) (*fleet, error) {
	profile, ok := sim.ProfileByName(profileName)
	if !ok {
		return nil, fmt.Errorf("demo: no profile %q", profileName)
	}
	f := &fleet{
		engines: map[string]*embedded.Engine{}, scale: cfg.scale, pass: profile.Base / cfg.scale, url: "http://" + cfg.listener.Addr().String(),
		log: &log{receipts: map[string]*router.Receipt{}}, stopped: make(chan error, 1),
	}
	kv := embedded.HasKVEvents(cfg.dialect)
	var endpoints []router.Endpoint
	for _, name := range []string{engineA, engineB, engineC} {
		e, err := embedded.Start(embedded.Config{
			Name: name, Model: model, Profile: profile, TimeScale: cfg.scale, Dialect: cfg.dialect, KVEvents: kv,
		})
		if err != nil {
			f.killEngines()
			return nil, err
		}
		f.engines[name] = e
		endpoint := router.Endpoint{ID: name, Address: e.URL(), Models: []string{model}, Profile: Scaled(profile, cfg.scale)}
		if kv {
			endpoint.Labels = map[string]string{node.LabelKVEvents: e.KVAddr(), node.LabelKVReplay: e.KVReplayAddr()}
		}
		endpoints = append(endpoints, endpoint)
	}
	if kv { // else nothing would be known by token ids
		cfg.gateway.Tokenize, cfg.gateway.BlockTokens = Tokenize, int(profile.BlockSize)
	}
	cfg.gateway.TrustClass = true // its own client names the classes
	n, err := node.New(node.Config{
		Endpoints: endpoints, Gateway: cfg.gateway, Out: cfg.out, Receipts: cfg.receipts, Log: cfg.slog,
		Every: max(time.Duration(float64(500*time.Millisecond)/cfg.scale), 40*time.Millisecond),
		Pool: router.Config{
			Policy: cfg.policy, Seed: 1, Caps: admission.Caps{Aggregate: aggregate}, Receipts: router.Receipts{Observer: f.log},
			Queue: cfg.pool.Queue, Limit: cfg.pool.Limit,
		},
	})
	if err != nil {
		f.killEngines()
		return nil, err
	}
	f.node = n
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	n.Poll(ctx)
	go func() { f.stopped <- n.Run(ctx, cfg.listener) }()
	return f, nil
}

// stop ends gateway and engines in good order.
func (f *fleet) stop() error {
	f.cancel()
	err := <-f.stopped
	f.killEngines()
	return err
}

func (f *fleet) killEngines() {
	for _, e := range f.engines {
		e.Kill()
	}
}

// settle waits until no lease is open: a client may see the end of its stream before the gateway does.
func (f *fleet) settle(ctx context.Context) error {
	for range 500 {
		if f.node.Pool.Stats().OpenLeases == 0 {
			return nil
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("demo: %d leases are still open", f.node.Pool.Stats().OpenLeases)
}

// revive puts a new engine in the place of the killed one.
func (f *fleet) revive() error {
	e, err := f.engines[engineC].Restart()
	if err != nil {
		return err
	}
	f.engines[engineC] = e
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// log is an observer that keeps the last receipt of every request.
type log struct {
	mu       sync.Mutex
	receipts map[string]*router.Receipt
}

// Decided keeps rejections.
func (l *log) Decided(r *router.Receipt) {
	if r.Rejected != "" {
		l.Ended(r)
	}
}

// Ended keeps the newest decision about a request.
func (l *log) Ended(r *router.Receipt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.receipts[r.RequestID]; old == nil || old.Number <= r.Number {
		l.receipts[r.RequestID] = r
	}
}

func (l *log) all() map[string]*router.Receipt {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.receipts)
}

// run is one pass of the schedule.
type run struct {
	results  []result
	receipts map[string]*router.Receipt
	drained  [2]time.Time // from when to when the gateway knew
	killed   time.Time
	late     time.Duration // the most by which a request was behind the schedule
	retries  int
	queued   bool // what found no room waited for it
}

// play sends the schedule through the fleet while engines are drained and killed under it.
func (f *fleet) play(ctx context.Context) (*run, error) {
	jobs := schedule()
	results := make([]result, len(jobs))
	states := make([]progress, len(jobs))
	c := newClient(f.url)
	defer c.close()
	begin := time.Now()
	until := func(at time.Duration) error {
		return sleep(ctx, time.Until(begin.Add(time.Duration(float64(at)/f.scale))))
	}

	out := &run{results: results, queued: f.node.Pool.Config().Queue.Max > 0}
	var all sync.WaitGroup
	var staged error
	all.Go(func() { staged = f.stage(ctx, out, states, until) })
	for i, j := range jobs {
		if err := until(j.at); err != nil {
			break
		}
		all.Go(func() { results[i] = c.run(ctx, j, model, &states[i]) })
		out.late = max(out.late, time.Since(begin)-time.Duration(float64(j.at)/f.scale))
	}
	all.Wait()
	if err := errors.Join(ctx.Err(), staged); err != nil {
		return nil, err
	}
	if err := f.settle(ctx); err != nil {
		return nil, err
	}
	out.receipts = f.log.all()
	for _, r := range results {
		out.retries += max(r.attempts-1, 0)
	}
	return out, nil
}

// stage drains one engine for a while and kills another in the middle of its streams.
func (f *fleet) stage(ctx context.Context, out *run, states []progress, until func(time.Duration) error) error {
	if err := until(drainAt); err != nil {
		return err
	}
	f.engines[engineB].SetDraining(true)
	if err := f.await(ctx, func() bool { return f.state(engineB) == router.Draining }); err != nil {
		return fmt.Errorf("demo: the gateway did not notice that %s drains: %w", engineB, err)
	}
	out.drained[0] = time.Now()
	if err := until(readyAt); err != nil {
		return err
	}
	out.drained[1] = time.Now()
	f.engines[engineB].SetDraining(false)
	if err := until(killAt); err != nil {
		return err
	}
	streaming := func() bool {
		for i := range states {
			s := &states[i]
			if at := s.endpoint.Load(); at != nil && *at == engineC && s.chunks.Load() > 1 && !s.over.Load() {
				return true
			}
		}
		return false
	}
	if err := f.await(ctx, streaming); err != nil {
		return fmt.Errorf("demo: no stream to kill on %s: %w", engineC, err)
	}
	f.engines[engineC].Kill()
	out.killed = time.Now()
	return nil
}

func (f *fleet) state(id string) router.Reason {
	for _, e := range f.node.Pool.Stats().Endpoints {
		if e.ID == id {
			return e.State
		}
	}
	return router.NoReason
}

// await waits for something that is to come within seconds.
func (f *fleet) await(ctx context.Context, ready func() bool) error {
	for range 1000 {
		if ready() {
			return nil
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return errors.New("waited for 5 s")
}
