package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry/kvevents"
)

// Labels of an endpoint that say where its engine's KV events are. They need Config.Gateway.Tokenize. There is one socket for
// each endpoint: of an engine with several data-parallel ranks, each with a socket of its own, only one rank would be known.
const (
	// LabelKVEvents is the address of the PUB socket, such as tcp://host:5557. Without it, the endpoint's prefixes are what was
	// routed there.
	LabelKVEvents = "kv-events"
	// LabelKVReplay is that of the ROUTER socket which sends batches again; without it each gap and each broken connection
	// costs all that is known.
	LabelKVReplay = "kv-replay"
	// LabelKVModel is the model that the blocks are of, as requests call it. It is needed where an endpoint has several
	// models: the events tell adapters, whose blocks give no credit here, but not the name of the base model.
	LabelKVModel = "kv-model"
)

const (
	kvTimeout    = 2 * time.Second
	kvBackoff    = 50 * time.Millisecond
	kvMaxBackoff = 2 * time.Second
)

// feeds listens to the KV events of a pool's endpoints. Any number of goroutines may use it; run may run once at a time.
type feeds struct {
	pool        *router.Pool
	tokenized   bool // prompts are known by token ids
	blockTokens int
	every       time.Duration
	log         *slog.Logger // nil = nowhere

	mu   sync.Mutex
	live map[string]*feed // by id
}

// feedKey is what a feed depends on.
type feedKey struct{ id, incarnation, address, replay, model string }

// feed listens to one endpoint.
type feed struct {
	key        feedKey
	applier    *kvevents.Applier
	subscriber *kvevents.Subscriber
	stop       context.CancelFunc
	done       chan struct{}

	mu   sync.Mutex
	last string // error
}

// check says what is wrong with the labels of an endpoint.
func (f *feeds) check(e *router.Endpoint) error {
	if e.Labels[LabelKVEvents] == "" {
		return nil
	}
	if !f.tokenized {
		return fmt.Errorf("node: endpoint %q has KV events at %s, and Config.Gateway.Tokenize is nil: they name blocks by token ids, "+
			"which no prompt would match", e.ID, e.Labels[LabelKVEvents])
	}
	if err := subscription(keyOf(e)).Validate(); err != nil {
		return fmt.Errorf("node: endpoint %q: %w", e.ID, err)
	}
	return nil
}

func keyOf(e *router.Endpoint) feedKey {
	k := feedKey{e.ID, e.Incarnation, e.Labels[LabelKVEvents], e.Labels[LabelKVReplay], e.Labels[LabelKVModel]}
	if k.model == "" && len(e.Models) == 1 {
		k.model = e.Models[0]
	}
	return k
}

func subscription(k feedKey) kvevents.SubscriberConfig {
	return kvevents.SubscriberConfig{
		Sources: []kvevents.Source{{Address: k.address, Replay: k.replay}},
		Timeout: kvTimeout, Backoff: kvBackoff, MaxBackoff: kvMaxBackoff,
	}
}

// run listens until ctx is done, to all endpoints that the pool has meanwhile. A change of the pool is noticed within every.
func (f *feeds) run(ctx context.Context) {
	tick := time.NewTicker(f.every)
	defer tick.Stop()
	for {
		f.follow(ctx)
		select {
		case <-ctx.Done():
			f.mu.Lock()
			defer f.mu.Unlock()
			for id, l := range f.live {
				l.end()
				delete(f.live, id)
			}
			return
		case <-tick.C:
		}
	}
}

// follow ends the feeds of endpoints that are gone or others now, and begins those of new ones.
func (f *feeds) follow(ctx context.Context) {
	endpoints := f.pool.Endpoints()
	wanted := make(map[string]feedKey, len(endpoints))
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range endpoints {
		e := &endpoints[i]
		if e.Labels[LabelKVEvents] == "" || f.check(e) != nil {
			continue
		}
		k := keyOf(e)
		// An adapter that is loaded later is another model of the endpoint, and no reason to give up what is known.
		if l := f.live[e.ID]; l != nil && k.model == "" && slices.Contains(e.Models, l.key.model) {
			k.model = l.key.model
		}
		if k.model != "" {
			wanted[e.ID] = k
		}
	}
	for id, l := range f.live {
		if wanted[id] != l.key {
			l.end()
			delete(f.live, id)
		}
	}
	for id, k := range wanted {
		if f.live[id] != nil {
			continue
		}
		l, err := f.begin(ctx, k)
		if err != nil { // all of it was checked
			f.note(id, err)
			continue
		}
		f.live[id] = l
	}
}

func (f *feeds) note(id string, err error) {
	if f.log != nil {
		f.log.Info("kv events", "endpoint", id, "error", err)
	}
}

func (f *feeds) begin(ctx context.Context, k feedKey) (*feed, error) {
	base, err := prefix.NewScope(prefix.Parts{Model: k.model})
	if err != nil {
		return nil, err
	}
	l := &feed{key: k, done: make(chan struct{})}
	l.applier, err = kvevents.New(kvevents.Config{
		ID: k.id, Sink: f.pool, BlockTokens: f.blockTokens, Base: base,
		Scope: func(keys kvevents.Keys) (prefix.Scope, bool) { return saltScope(k.model, keys) },
	})
	if err != nil {
		return nil, err
	}
	cfg := subscription(k)
	cfg.OnError = func(_ int, err error) {
		l.mu.Lock()
		l.last = err.Error()
		l.mu.Unlock()
		f.note(k.id, err)
	}
	if l.subscriber, err = kvevents.NewSubscriber(l.applier, cfg); err != nil {
		return nil, err
	}
	ctx, l.stop = context.WithCancel(ctx)
	go func() {
		defer close(l.done)
		_ = l.subscriber.Run(ctx) // ends with ctx
	}()
	return l, nil
}

// saltScope is the scope of blocks with extra keys: a first one whose only key is a cache_salt is in that of requests with the
// same. What stands for an image is a text too, in some versions; then the salt would have to be that, and is of no harm.
// Adapters have no scope: their names may be given to other weights.
func saltScope(model string, keys kvevents.Keys) (prefix.Scope, bool) {
	if keys.LoRA.Used() || keys.Parent.Known() || len(keys.Extra) != 1 {
		return prefix.Scope{}, false
	}
	salt, ok := keys.Extra[0].(string)
	if !ok {
		return prefix.Scope{}, false
	}
	s, err := prefix.NewScope(prefix.Parts{Model: model, Salt: salt})
	return s, err == nil
}

// end ends a feed, after which nothing is known of the endpoint's cache by it.
func (l *feed) end() {
	l.stop()
	<-l.done
}

func (l *feed) lastError() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// states are how the KV events of all endpoints go.
func (f *feeds) states() []gateway.KVState {
	endpoints := f.pool.Endpoints()
	out := make([]gateway.KVState, len(endpoints))
	for i := range endpoints {
		out[i], _ = f.state(&endpoints[i])
	}
	return out
}

// state says also whether it will not become better by waiting a little.
func (f *feeds) state(e *router.Endpoint) (s gateway.KVState, settled bool) {
	s = gateway.KVState{ID: e.ID, Incarnation: e.Incarnation, State: gateway.KVNone, Address: e.Labels[LabelKVEvents]}
	if s.Address == "" {
		return s, true
	}
	if err := f.check(e); err != nil {
		s.LastError = err.Error()
		return s, true
	}
	f.mu.Lock()
	l := f.live[e.ID]
	f.mu.Unlock()
	if l == nil || l.key.incarnation != e.Incarnation {
		if len(e.Models) > 1 && e.Labels[LabelKVModel] == "" {
			s.LastError = errSeveral.Error()
			return s, true
		}
		s.LastError = errNoModel.Error()
		return s, false
	}
	a, b := l.applier.Stats(), l.subscriber.Stats()
	s.Model, s.Blocks, s.LastError = l.key.model, a.Held, l.lastError()
	s.Batches, s.Gaps, s.Missed, s.Restarts, s.Invalid, s.Losses = a.Batches, a.Gaps, a.Missed, a.Restarts, a.Invalid, a.Losses
	for reason, n := range a.Refused {
		if n > 0 {
			if s.Refused == nil {
				s.Refused = map[string]int64{}
			}
			s.Refused[kvevents.Reason(reason).String()] = n
		}
	}
	if n, ok := l.applier.Position(0); ok {
		s.Sequence = &n
	}
	switch {
	case b.Connected == 0:
		s.State = "not connected"
		return s, s.LastError != ""
	case a.Suspended > 0 || l.key.replay != "" && b.Replays == 0:
		s.State = "catching up"
		return s, false
	}
	s.State = "subscribed"
	return s, true
}

var (
	errNoModel = errors.New("not begun: the engine's model is not known yet")
	errSeveral = errors.New("the engine has several models: name the base model with the label " + LabelKVModel)
)

// settled says whether all endpoints that are known now are.
func (f *feeds) settled() bool {
	endpoints := f.pool.Endpoints()
	for i := range endpoints {
		if _, ok := f.state(&endpoints[i]); !ok {
			return false
		}
	}
	return true
}

// line is the state of one endpoint in words, and whether it is settled.
func (f *feeds) line(id string) (string, bool) {
	endpoints := f.pool.Endpoints()
	for i := range endpoints {
		if endpoints[i].ID == id {
			s, settled := f.state(&endpoints[i])
			return s.String(), settled
		}
	}
	return gateway.KVNone, true
}
