// Package node puts a pool, a poller and a gateway together into one server.
//
// A Node may be used by any number of goroutines; Run may be called once.
package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
	"github.com/isobar-go/isobar/examples/gateway/internal/scrape"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
)

// Config configures a Node. It is a plain value.
type Config struct {
	// Endpoints are the engines. They may come later, through Node.Pool.
	Endpoints []router.Endpoint
	// Pool configures the pool. An observer in it is told of every receipt, beside the gateway's own.
	Pool router.Config
	// Gateway configures the server; its Pool, Receipts and Log are set by New.
	Gateway gateway.Config
	// Every is the time between two polls of an engine. Default that of scrape.Poller.
	Every time.Duration
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
	poller  *scrape.Poller
	lines   *router.JSONLines
	base    *http.Transport // of the poller
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
	for _, e := range cfg.Endpoints {
		if err := httptransport.ValidateAddress(e.Address); err != nil {
			return nil, fmt.Errorf("node: endpoint %q: %w", e.ID, err)
		}
	}
	pool, err := router.New(cfg.Pool)
	if err != nil {
		return nil, err
	}
	if err := pool.SetEndpoints(cfg.Endpoints); err != nil {
		return nil, err
	}
	n.Pool = pool
	g := cfg.Gateway
	g.Pool, g.Receipts, g.Log = pool, ring, cfg.Log
	if n.gateway, err = gateway.New(g); err != nil {
		return nil, err
	}
	n.base = http.DefaultTransport.(*http.Transport).Clone()
	n.base.Proxy = nil
	n.poller = &scrape.Poller{Pool: pool, Client: &http.Client{Transport: n.base}, Every: cfg.Every, Log: cfg.Log}
	return n, nil
}

// Poll asks every engine once and waits for the answers.
func (n *Node) Poll(ctx context.Context) { n.poller.Round(ctx) }

// Run serves on ln until ctx is done, and stops in good order: first the gateway, while the engines are still polled,
// then the rest.
func (n *Node) Run(ctx context.Context, ln net.Listener) error {
	defer n.base.CloseIdleConnections()
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var parts sync.WaitGroup
	var polling, writing error
	parts.Go(func() { polling = n.poller.Run(background) })
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
	return errors.Join(serving, polling, writing)
}
