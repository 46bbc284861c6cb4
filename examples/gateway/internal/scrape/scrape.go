// Package scrape keeps a router's pool informed about its engines: their metrics, their health and their models.
//
// A poll's figures hold from the moment it was sent, which is what the pool is told; a poll that fails is told as such
// and never becomes a reading. An engine that answers its health check with 503 is drained, and taken back when it
// answers 200 again; one that does not answer at all is left to the pool's circuit breaker.
//
// A Poller may be used by any number of goroutines.
package scrape

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry/engine"
)

// modelsEvery is the number of rounds between two looks at an engine's models.
const modelsEvery = 40

// Poller polls every endpoint of a pool. Only Pool is required. Run may be called once, by one goroutine; nobody
// may change the fields meanwhile.
type Poller struct {
	// Pool is told what the engines report.
	Pool *router.Pool
	// Client makes the calls; nil = http.DefaultClient.
	Client *http.Client
	// Every is the time between two polls of an engine. Default 250 ms.
	Every time.Duration
	// Timeout is the time a poll may take. Default 2 s.
	Timeout time.Duration
	// Log is where changes are noted; nil = nowhere.
	Log *slog.Logger

	mu     sync.Mutex
	states map[life]*state
}

// life is one incarnation of an endpoint: what is known of one says nothing about the next.
type life struct{ id, incarnation string }

// state is what is known of one endpoint. One poll at a time uses what follows busy.
type state struct {
	busy    atomic.Bool
	rounds  int
	drained bool // by this poller
	failing bool
}

// Run polls until ctx is done, and returns nil then. An engine that is slow to answer does not hold up the others.
func (p *Poller) Run(ctx context.Context) error {
	if p.Pool == nil {
		return errors.New("scrape: Poller field Pool is nil")
	}
	tick := time.NewTicker(cmp.Or(p.Every, 250*time.Millisecond))
	defer tick.Stop()
	var polls sync.WaitGroup
	defer polls.Wait()
	for {
		p.start(ctx, &polls)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Round polls every endpoint once, all at the same time, and returns when the last has answered or timed out.
func (p *Poller) Round(ctx context.Context) {
	var polls sync.WaitGroup
	p.start(ctx, &polls)
	polls.Wait()
}

// start begins a poll of every endpoint that is not being polled.
func (p *Poller) start(ctx context.Context, polls *sync.WaitGroup) {
	endpoints := p.Pool.Endpoints()
	for i, s := range p.known(endpoints) {
		e := endpoints[i]
		if !s.busy.CompareAndSwap(false, true) {
			continue
		}
		polls.Go(func() {
			defer s.busy.Store(false)
			ctx, cancel := context.WithTimeout(ctx, cmp.Or(p.Timeout, 2*time.Second))
			defer cancel()
			p.poll(ctx, e, s)
		})
	}
}

// known returns what is known of each of the endpoints, and forgets all others.
func (p *Poller) known(endpoints []router.Endpoint) []*state {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.states
	p.states = make(map[life]*state, len(endpoints))
	out := make([]*state, len(endpoints))
	for i, e := range endpoints {
		key := life{e.ID, e.Incarnation}
		if out[i] = old[key]; out[i] == nil {
			out[i] = &state{}
		}
		p.states[key] = out[i]
	}
	return out
}

// poll asks one engine. The pool's errors are those of an endpoint that was removed meanwhile: nothing is lost.
func (p *Poller) poll(ctx context.Context, e router.Endpoint, s *state) {
	log := p.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	sent := time.Now()
	err := p.metrics(ctx, e, sent)
	if ctx.Err() == context.Canceled {
		return // the poller stops: no news of the engine
	}
	if (err != nil) != s.failing {
		s.failing = err != nil
		log.Info("polls", "endpoint", e.ID, "failing", s.failing, "error", err)
	}
	if err != nil {
		_ = p.Pool.ScrapeFailed(e.ID, err)
		return
	}
	p.health(ctx, e, s, log)
	if s.rounds%modelsEvery == 0 {
		if !p.models(ctx, e) {
			s.rounds-- // again at the next round
		}
	}
	s.rounds++
}

func (p *Poller) metrics(ctx context.Context, e router.Endpoint, sent time.Time) error {
	resp, err := p.get(ctx, e, "/metrics")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("scrape: metrics of %s: status %d", e.ID, resp.StatusCode)
	}
	snapshot, err := engine.Parser{}.Parse(resp.Body, sent)
	if err != nil {
		return fmt.Errorf("scrape: metrics of %s: %w", e.ID, err)
	}
	snapshot.Source = "metrics"
	return p.Pool.Observe(e.ID, snapshot)
}

func (p *Poller) health(ctx context.Context, e router.Endpoint, s *state, log *slog.Logger) {
	resp, err := p.get(ctx, e, "/health")
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4096))
	_ = resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusServiceUnavailable && !s.drained:
		s.drained = p.Pool.Drain(e.ID) == nil
	case resp.StatusCode == http.StatusOK && s.drained:
		s.drained = p.Pool.Ready(e.ID) != nil
	default:
		return
	}
	log.Info("health", "endpoint", e.ID, "drained", s.drained)
}

// models keeps the endpoint's models up to date. It reports false if the engine did not say.
func (p *Poller) models(ctx context.Context, e router.Endpoint) bool {
	found, err := gateway.FetchModels(ctx, p.client(), e.Address)
	if err != nil {
		return false
	}
	ids := slices.Sorted(maps.Keys(found))
	if len(ids) == 0 || slices.Equal(ids, e.Models) {
		return true
	}
	// The answer may have taken its time: the endpoint may have changed meanwhile, or be gone, and Add would bring it back.
	for _, now := range p.Pool.Endpoints() {
		if now.ID == e.ID && now.Incarnation == e.Incarnation && now.Address == e.Address {
			now.Models = ids
			return p.Pool.Add(now) == nil
		}
	}
	return false
}

func (p *Poller) client() *http.Client {
	if p.Client == nil {
		return http.DefaultClient
	}
	return p.Client
}

func (p *Poller) get(ctx context.Context, e router.Endpoint, path string) (*http.Response, error) {
	resp, err := gateway.Get(ctx, p.client(), e.Address, path)
	if err != nil {
		return nil, fmt.Errorf("scrape: %s of %s: %w", path, e.ID, err)
	}
	return resp, nil
}
