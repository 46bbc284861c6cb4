// Package watch keeps a router's pool informed about what engines say beside their metrics: their health and their models.
//
// An engine that answers its health check with 503 is drained, and taken back when it answers 200 again; one that does not
// answer at all is left to the pool's circuit breaker.
//
// A Watcher may be used by any number of goroutines.
package watch

import (
	"cmp"
	"context"
	"errors"
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
)

// modelsEvery is the number of rounds between two looks at an engine's models.
const modelsEvery = 20

// Watcher asks every endpoint of a pool. Only Pool is required. Run may be called once, by one goroutine; nobody
// may change the fields meanwhile.
type Watcher struct {
	// Pool is told what the engines say.
	Pool *router.Pool
	// Client makes the calls; nil = http.DefaultClient.
	Client *http.Client
	// Every is the time between two rounds. Default 500 ms.
	Every time.Duration
	// Timeout is the time an engine may take to answer. Default 2 s.
	Timeout time.Duration
	// Log is where changes are noted; nil = nowhere.
	Log *slog.Logger

	mu     sync.Mutex
	states map[life]*state
}

// life is one incarnation of an endpoint: what is known of one says nothing about the next.
type life struct{ id, incarnation string }

// state is what is known of one endpoint. One round at a time uses what follows busy.
type state struct {
	busy    atomic.Bool
	rounds  int
	drained bool // by this watcher
}

// Run asks until ctx is done, and returns nil then. An engine that is slow to answer does not hold up the others.
func (w *Watcher) Run(ctx context.Context) error {
	if w.Pool == nil {
		return errors.New("watch: Watcher field Pool is nil")
	}
	tick := time.NewTicker(cmp.Or(w.Every, 500*time.Millisecond))
	defer tick.Stop()
	var asked sync.WaitGroup
	defer asked.Wait()
	for {
		w.start(ctx, &asked)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Round asks every endpoint once, all at the same time, and returns when the last has answered or timed out.
func (w *Watcher) Round(ctx context.Context) {
	var asked sync.WaitGroup
	w.start(ctx, &asked)
	asked.Wait()
}

// start begins to ask every endpoint that is not being asked.
func (w *Watcher) start(ctx context.Context, asked *sync.WaitGroup) {
	endpoints := w.Pool.Endpoints()
	for i, s := range w.known(endpoints) {
		e := endpoints[i]
		if !s.busy.CompareAndSwap(false, true) {
			continue
		}
		asked.Go(func() {
			defer s.busy.Store(false)
			ctx, cancel := context.WithTimeout(ctx, cmp.Or(w.Timeout, 2*time.Second))
			defer cancel()
			w.ask(ctx, e, s)
		})
	}
}

// known returns what is known of each of the endpoints, and forgets all others.
func (w *Watcher) known(endpoints []router.Endpoint) []*state {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.states
	w.states = make(map[life]*state, len(endpoints))
	out := make([]*state, len(endpoints))
	for i, e := range endpoints {
		key := life{e.ID, e.Incarnation}
		if out[i] = old[key]; out[i] == nil {
			out[i] = &state{}
		}
		w.states[key] = out[i]
	}
	return out
}

// ask asks one engine. The pool's errors are those of an endpoint that was removed meanwhile: nothing is lost.
func (w *Watcher) ask(ctx context.Context, e router.Endpoint, s *state) {
	if !w.health(ctx, e, s) {
		return
	}
	if s.rounds%modelsEvery == 0 && !w.models(ctx, e) {
		return // again at the next round
	}
	s.rounds++
}

// health reports false if the engine does not answer.
func (w *Watcher) health(ctx context.Context, e router.Endpoint, s *state) bool {
	resp, err := gateway.Get(ctx, w.client(), e.Address, "/health")
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4096))
	_ = resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusServiceUnavailable && !s.drained:
		s.drained = w.Pool.Drain(e.ID) == nil
	case resp.StatusCode == http.StatusOK && s.drained:
		s.drained = w.Pool.Ready(e.ID) != nil
	default:
		return true
	}
	if w.Log != nil {
		w.Log.Info("health", "endpoint", e.ID, "drained", s.drained)
	}
	return true
}

// models keeps the endpoint's models up to date. It reports false if the engine did not say.
func (w *Watcher) models(ctx context.Context, e router.Endpoint) bool {
	found, err := gateway.FetchModels(ctx, w.client(), e.Address)
	if err != nil {
		return false
	}
	ids := slices.Sorted(maps.Keys(found))
	if len(ids) == 0 || slices.Equal(ids, e.Models) {
		return true
	}
	// The answer may have taken its time: the endpoint may have changed meanwhile, or be gone, and Add would bring it back.
	for _, now := range w.Pool.Endpoints() {
		if now.ID == e.ID && now.Incarnation == e.Incarnation && now.Address == e.Address {
			now.Models = ids
			return w.Pool.Add(now) == nil
		}
	}
	return false
}

func (w *Watcher) client() *http.Client {
	if w.Client == nil {
		return http.DefaultClient
	}
	return w.Client
}
