// Package demo shows a gateway at work before three engines that are models in this process: short chats, conversations
// with shared system prompts, long documents, an overload, an engine that drains and one that dies in the middle of its
// streams. The same arrivals then go to fresh engines by round robin.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
	"github.com/isobar-go/isobar/router"
)

// Config configures a demonstration. It is a plain value.
type Config struct {
	// Listener is where the gateway listens; Run closes it.
	Listener net.Listener
	// Scale is how much faster than real time the engines run, above 0.
	Scale float64
	// Dialect is in whose names the engines report, see embedded.Config; "" = the default.
	Dialect string
	// Pool says what else than the demonstration's own the pools have: a Policy in the first pass (nil = the default policy), a
	// Queue, a Limit. With a queue the overload need not meet a refusal.
	Pool router.Config
	// Once ends after the demonstration; else the gateway goes on serving until the context is done.
	Once bool
	// Out is where tables go.
	Out io.Writer
	// Gateway configures the server; see node.Config.
	Gateway gateway.Config
	// Receipts is where the receipts of the first pass and after are written; nil = nowhere.
	Receipts io.Writer
	// Log is where changes and faults are noted; nil = nowhere.
	Log *slog.Logger
}

// Run shows the demonstration. The error says what it claims and did not do, or that it was broken off.
func Run(ctx context.Context, cfg Config) (err error) {
	policy := cfg.Pool.Policy
	if policy == nil {
		policy = router.Pressure()
	}
	f, err := startFleet(fleetConfig{
		policy: policy, pool: cfg.Pool, scale: cfg.Scale, listener: cfg.Listener, gateway: cfg.Gateway, receipts: cfg.Receipts, slog: cfg.Log,
		dialect: cfg.Dialect, out: cfg.Out,
	})
	if err != nil {
		return errors.Join(err, cfg.Listener.Close())
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	fmt.Fprintf(cfg.Out, "Three engines of the profile %s at %g times real time behind %s\n\n", profileName, cfg.Scale, f.url)
	first, err := f.play(ctx)
	if err != nil {
		return err
	}
	if err := table(cfg.Out, first, cfg.Scale, f.pass); err != nil {
		return err
	}
	other := router.RoundRobin()
	fmt.Fprintf(cfg.Out, "\nThe same arrivals by %s before fresh engines ...\n\n", other.Name())
	second, err := compare(ctx, cfg, other)
	if err != nil {
		return err
	}
	if err := summary(cfg.Out, [2]string{policy.Name(), other.Name()}, [2]*run{first, second}); err != nil {
		return err
	}
	faults := []error{first.check(false), second.check(true)}
	if a, b := first.figures().cachedShare, second.figures().cachedShare; policy.Name() == router.Pressure().Name() && a <= b {
		faults = append(faults, fmt.Errorf("demo: %.1f %% of the prompt tokens came from a cache, by %s %.1f %%", 100*a, other.Name(), 100*b))
	}
	if err := errors.Join(faults...); err != nil || cfg.Once {
		return err
	}
	if err := f.revive(); err != nil {
		return err
	}
	fmt.Fprintf(cfg.Out, "\n%s is back. The gateway goes on serving the model %q at %s/v1, its state is at %s/debug/isobar; "+
		"end it with Ctrl-C.\n",
		engineC, model, f.url, f.url)
	<-ctx.Done()
	return nil
}

// compare plays the schedule against fresh engines.
func compare(ctx context.Context, cfg Config, policy router.Policy) (_ *run, err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	f, err := startFleet(fleetConfig{
		policy: policy, pool: cfg.Pool, scale: cfg.Scale, listener: ln, gateway: cfg.Gateway, dialect: cfg.Dialect,
	})
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	return f.play(ctx)
}
