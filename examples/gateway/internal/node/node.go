// Package node puts a pool, a poller, a watcher and a gateway together into one server.
//
// A Node may be used by any number of goroutines; Run may be called once.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
	"github.com/isobar-go/isobar/examples/gateway/internal/watch"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
	"github.com/isobar-go/isobar/telemetry/scrape"
)

// Config configures a Node. It is a plain value.
type Config struct {
	// Endpoints are the engines, with the kind of each under LabelEngine and the addresses of its KV events under LabelKVEvents
	// where they are known. They may come later, through Node.Pool.
	//
	// KV events need Gateway.Tokenize: a function that gives the token ids which the engines make of a prompt, chat template
	// included. Without it New refuses them.
	Endpoints []router.Endpoint
	// Pool configures the pool. An observer in it is told of every receipt, beside the gateway's own.
	Pool router.Config
	// Gateway configures the server; its Pool, Polls, KV, Receipts and Log are set by New.
	Gateway gateway.Config
	// Every is the time between two polls of an engine, and between two looks at its health. Default scrape.DefaultEvery.
	Every time.Duration
	// Out is where a line is written for each engine when its first good poll has come: what it tells and what not, and how
	// its KV events go; before that, one that says why, if its first poll was none. nil = nowhere. Poll and Run write to it,
	// while they last.
	Out io.Writer
	// Receipts is where receipts are written, one JSON document a line; nil = nowhere.
	Receipts io.Writer
	// Log is where changes and faults are noted; nil = nowhere.
	Log *slog.Logger
}

// Node is a gateway that can be run. Its fields belong to the goroutine that runs it.
type Node struct {
	// Pool is its pool.
	Pool *router.Pool

	cfg     Config
	gateway *gateway.Gateway
	polls   *polls
	poller  *scrape.Poller
	watcher *watch.Watcher
	kv      *feeds
	lines   *router.JSONLines
	base    *http.Transport // of poller and watcher
}

// New makes a node; nothing runs yet.
func New(cfg Config) (*Node, error) {
	n := &Node{cfg: cfg}
	ring := gateway.NewRing(0)
	observers := gateway.Observers{ring}
	if o := cfg.Pool.Receipts.Observer; o != nil {
		observers = append(observers, o)
	}
	if cfg.Receipts != nil {
		n.lines = router.NewJSONLines(cfg.Receipts, 0)
		observers = append(observers, n.lines)
	}
	cfg.Pool.Receipts.Observer = observers
	n.kv = &feeds{
		tokenized: cfg.Gateway.Tokenize != nil, blockTokens: cmp.Or(cfg.Gateway.BlockTokens, httptransport.DefaultBlockTokens),
		every: cmp.Or(cfg.Every, scrape.DefaultEvery), log: cfg.Log, live: map[string]*feed{},
	}
	for i := range cfg.Endpoints {
		e := &cfg.Endpoints[i]
		if err := httptransport.ValidateAddress(e.Address); err != nil {
			return nil, fmt.Errorf("node: endpoint %q: %w", e.ID, err)
		}
		if err := n.kv.check(e); err != nil {
			return nil, err
		}
	}
	pool, err := router.New(cfg.Pool)
	if err != nil {
		return nil, err
	}
	if err := pool.SetEndpoints(cfg.Endpoints); err != nil {
		return nil, err
	}
	n.Pool, n.kv.pool = pool, pool
	n.base = http.DefaultTransport.(*http.Transport).Clone()
	n.base.Proxy = nil
	n.base.MaxIdleConns = 0 // one connection for each engine is kept
	client := &http.Client{Transport: n.base}
	n.watcher = &watch.Watcher{Pool: pool, Client: client, Every: cmp.Or(cfg.Every, scrape.DefaultEvery), Log: cfg.Log}
	n.polls = newPolls(pool, cfg.Log)
	n.poller, err = scrape.New(scrape.Config{
		Targets: n.polls.targets, Sink: n.polls, Client: client, Now: cfg.Pool.Now, Every: cfg.Every, Seed: cfg.Pool.Seed,
	})
	if err != nil {
		return nil, err
	}
	n.polls.sync = n.poller.Sync
	g := cfg.Gateway
	g.Pool, g.Polls, g.KV, g.Receipts, g.Log = pool, n.poller.Stats, n.kv.states, ring, cfg.Log
	if n.gateway, err = gateway.New(g); err != nil {
		return nil, err
	}
	return n, nil
}

// Poll asks every engine, as often as it takes for the pool to know of each what it says or that it fails, and tries each
// subscription to KV events, at most until ctx is done. It is for the time before Run.
func (n *Node) Poll(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { n.watcher.Round(ctx) })
	parts.Go(func() { n.polls.round(ctx, n.poller) })
	parts.Wait()
	ctx, stop := context.WithCancel(ctx)
	parts.Go(func() { n.kv.run(ctx) }) // not before the models are known
	defer parts.Wait()
	defer stop()
	await(ctx, n.kv.settled)
	var lines []introduced
	for len(n.polls.lines) > 0 { // nobody else takes any before Run
		lines = append(lines, <-n.polls.lines)
	}
	slices.SortFunc(lines, func(a, b introduced) int { return cmp.Compare(a.line, b.line) })
	for _, line := range lines {
		n.introduce(line)
	}
}

const (
	// lookEvery is the time between two looks at whether subscriptions have come about.
	lookEvery = 5 * time.Millisecond
	// introduceWithin is how long lines wait for that.
	introduceWithin = 3 * time.Second
)

// await waits for subscriptions, until ctx is done or it has taken too long.
func await(ctx context.Context, settled func() bool) {
	ctx, stop := context.WithTimeout(ctx, introduceWithin)
	defer stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for !settled() {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// introduce writes a line. That nobody can read it is no reason to stop.
func (n *Node) introduce(i introduced) {
	if n.cfg.Out != nil {
		kv, _ := n.kv.line(i.id)
		_, _ = fmt.Fprintf(n.cfg.Out, "%s; KV events: %s\n", i.line, kv)
	}
}

// introduceAll writes lines as they come, each when the state of the KV events is clear, until ctx is done.
func (n *Node) introduceAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case i := <-n.polls.lines:
			await(ctx, func() bool {
				_, settled := n.kv.line(i.id)
				return settled
			})
			n.introduce(i)
		}
	}
}

// Run serves on ln until ctx is done, and stops in good order: first the gateway, while the engines are still polled,
// then the rest.
func (n *Node) Run(ctx context.Context, ln net.Listener) error {
	defer n.base.CloseIdleConnections()
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var parts sync.WaitGroup
	var polling, watching, writing error
	parts.Go(func() { polling = n.poller.Run(background) })
	parts.Go(func() { watching = n.watcher.Run(background) })
	parts.Go(func() { n.kv.run(background) })
	parts.Go(func() { n.introduceAll(background) })
	if n.lines != nil {
		parts.Go(func() {
			if writing = n.lines.Run(background); writing != nil && n.cfg.Log != nil {
				n.cfg.Log.Error("receipts are lost from now on", "error", writing)
			}
		})
	}
	serving := n.gateway.Serve(ctx, ln)
	stop()
	parts.Wait()
	return errors.Join(serving, polling, watching, writing)
}
