// Command gateway puts isobar before LLM engines that speak the OpenAI API.
//
// Without arguments it starts three model engines in its own process, shows what it does with a mixed load, compares
// that with round robin, and goes on serving until Ctrl-C:
//
//	go run ./examples/gateway
//	go run ./examples/gateway -once
//
// With -overload it shows instead what happens when ten times as much comes as the engines can do, and ends:
//
//	go run ./examples/gateway -overload
//
// Before real engines it shows nothing and serves:
//
//	go run ./examples/gateway -addr :8080 -engine http://10.0.0.1:8000 -engine sglang+http://10.0.0.2:8000
//
// The kind of an engine, such as sglang, is recognised where it is not given; a line says what each engine reports when it
// has answered for the first time, or why it cannot be read.
//
// Where an engine publishes KV events, -kv-events has the gateway go by what the engine says that it caches, in place of what
// was sent there. That takes the engine's tokenizer, since events name blocks by token ids: see tokenizer, to which a gateway
// of your own adds that of its model.
//
// Without limits every request is sent to an engine at once. The flags -max-requests and so on set them, -queue lets requests wait
// for room, and the others say who comes first:
//
//	go run ./examples/gateway -engine http://10.0.0.1:8000 -engine http://10.0.0.2:8000 \
//		-max-engine-requests 64 -max-tenant-tokens 200000 -queue 256 -queue-timeout 10s -trust-class -interactive-share 0.25
//
// A client may say in X-Isobar-Timeout how many seconds it waits for its answer, and where classes are trusted, in X-Isobar-Class
// what it is: system, interactive, standard, batch or sheddable.
//
// The routes are /v1/chat/completions, /v1/completions, /v1/models, /healthz and
// /debug/isobar.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/isobar-go/isobar/examples/gateway/internal/demo"
	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
	"github.com/isobar-go/isobar/examples/gateway/internal/node"
	"github.com/isobar-go/isobar/examples/gateway/internal/overload"
	"github.com/isobar-go/isobar/examples/internal/embedded"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry/engine"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// options are what the flags say.
type options struct {
	addr     string
	engines  []router.Endpoint // without profile
	once     bool
	scale    float64
	dialect  string
	policy   string
	profile  string
	grace    time.Duration
	receipts string
	debugAny bool
	trust    bool
	maxBody  int64
	admit    admissionFlags
	verbose  bool
	overload bool
	length   time.Duration                               // of the overload
	tokenize func(httptransport.Prompt) ([]uint32, bool) // nil = none
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("gateway", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.addr, "addr", "127.0.0.1:8080", "address to listen on; where the port is taken, a free one is used")
	f.Func("engine", fmt.Sprintf("`[KIND+]URL` of an engine, may be repeated; KIND is one of %v, without it that is found out; "+
		"without any, model engines are started and a demonstration is shown", engine.Kinds()), func(s string) error {
		e, err := parseEngine(s)
		if err != nil {
			return err
		}
		e.ID = fmt.Sprintf("engine-%d", len(o.engines)+1)
		o.engines = append(o.engines, e)
		return nil
	})
	var events kvFlags
	f.Var(&events, "kv-events", "`ENGINE=ADDRESS[,replay=ADDRESS][,model=NAME]` of an engine's KV events, such as "+
		"engine-1=tcp://10.0.0.1:5557,replay=tcp://10.0.0.1:5558, may be repeated; the model is that of the blocks where the engine has "+
		"several; needs -tokenizer")
	tokens := f.String("tokenizer", "", fmt.Sprintf("how prompts become token ids, for -kv-events: one of %v", tokenizers()))
	f.BoolVar(&o.once, "once", false, "end after the demonstration; status 0 if it did what it claims")
	f.Float64Var(&o.scale, "scale", 2, "how much faster than real time the model engines run")
	f.StringVar(&o.dialect, "dialect", embedded.Dialects()[0],
		fmt.Sprintf("in whose names the model engines report: one of %v", embedded.Dialects()))
	f.StringVar(&o.policy, "policy", router.Pressure().Name(), fmt.Sprintf("one of %v", router.PolicyNames()))
	f.StringVar(&o.profile, "profile", score.DefaultProfile, fmt.Sprintf("what real engines can do: one of %v", score.ProfileNames()))
	f.DurationVar(&o.grace, "grace", 30*time.Second, "how long open streams may go on after a stop")
	f.StringVar(&o.receipts, "receipts", "", "file to which a receipt of every decision is added, as JSON Lines")
	f.BoolVar(&o.debugAny, "debug-any", false, "answer /debug/isobar to everybody, not to this machine alone")
	f.BoolVar(&o.trust, "trust-class", false, "take a request's priority class from X-Isobar-Class: only where clients are trusted")
	f.Int64Var(&o.maxBody, "max-body", 8<<20, "largest request body, bytes")
	o.admit.define(f)
	f.BoolVar(&o.overload, "overload", false, "show an overload of ten times what the model engines can do, and end; "+
		"status 0 if all that it claims held")
	f.DurationVar(&o.length, "overload-for", time.Minute, "how long the overload lasts, in the time of the engines")
	f.BoolVar(&o.verbose, "v", false, "log what happens to the engines")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("gateway: unexpected argument %q", f.Arg(0))
	case !(o.scale > 0 && o.scale <= 1000):
		return nil, fmt.Errorf("gateway: flag -scale = %v is not within 0 and 1000", o.scale)
	case !slices.Contains(embedded.Dialects(), o.dialect):
		return nil, fmt.Errorf("gateway: flag -dialect = %q is none of %v", o.dialect, embedded.Dialects())
	case o.grace <= 0:
		return nil, fmt.Errorf("gateway: flag -grace = %v must be above 0", o.grace)
	case o.maxBody <= 0:
		return nil, fmt.Errorf("gateway: flag -max-body = %d must be above 0", o.maxBody)
	case o.overload && len(o.engines) > 0:
		return nil, errors.New("gateway: flag -overload is for model engines, and -engine is given")
	case !(o.length >= overload.MinLength && o.length <= overload.MaxLength):
		return nil, fmt.Errorf("gateway: flag -overload-for = %v is not within %v and %v", o.length, overload.MinLength, overload.MaxLength)
	case o.once && len(o.engines) > 0:
		return nil, errors.New("gateway: flag -once is for the demonstration, and -engine shows none")
	}
	if err := o.admit.check(f, o); err != nil {
		return nil, err
	}
	var err error
	if o.tokenize, err = tokenizer(*tokens); err != nil {
		return nil, err
	}
	return o, events.apply(o)
}

// parseEngine reads an address with or without a kind before it.
func parseEngine(s string) (router.Endpoint, error) {
	var e router.Endpoint
	e.Address = s
	if scheme := strings.Index(s, "://"); scheme >= 0 {
		if kind, _, ok := strings.Cut(s[:scheme], "+"); ok {
			if !slices.Contains(engine.Kinds(), engine.Kind(kind)) {
				return e, fmt.Errorf("kind %q is none of %v", kind, engine.Kinds())
			}
			e.Address = s[len(kind)+1:]
			e.Labels = map[string]string{node.LabelEngine: kind}
		}
	}
	return e, httptransport.ValidateAddress(e.Address)
}

// run is the program: the status is 0 after a good end, 1 after a bad one, 2 for wrong arguments.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, err)
		return 2
	}
	err = serve(ctx, o, stdout, stderr)
	shown := o.once || o.overload // to its end, or not at all
	if interrupted := ctx.Err() != nil && errors.Is(err, context.Canceled); err != nil && (shown || !interrupted) {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, o *options, stdout, stderr io.Writer) (err error) {
	level := slog.LevelWarn
	if o.verbose {
		level = slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	policy, err := router.PolicyByName(o.policy)
	if err != nil {
		return err
	}
	var receipts io.Writer
	if o.receipts != "" {
		file, err := os.OpenFile(o.receipts, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("gateway: flag -receipts: %w", err)
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		receipts = file
	}
	ln, err := listen(o.addr, stdout)
	if err != nil {
		return err
	}
	settings := gateway.Config{Tokenize: o.tokenize, MaxBody: o.maxBody, Grace: o.grace, DebugAny: o.debugAny, TrustClass: o.trust}
	pool := o.admit.pool
	pool.Policy = policy
	if o.overload {
		return overload.Run(ctx, overload.Config{
			Listener: ln, Scale: o.scale, Length: o.length, Dialect: o.dialect, Policy: policy, Out: stdout,
			Gateway: settings, Receipts: receipts, Log: log,
		})
	}
	if len(o.engines) == 0 {
		return demo.Run(ctx, demo.Config{
			Listener: ln, Scale: o.scale, Dialect: o.dialect, Pool: pool, Once: o.once, Out: stdout,
			Gateway: settings, Receipts: receipts, Log: log,
		})
	}
	profile, err := score.ProfileByName(o.profile)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	cfg := node.Config{Gateway: settings, Out: stdout, Receipts: receipts, Log: log, Pool: pool}
	for _, e := range o.engines {
		e.Profile = profile
		cfg.Endpoints = append(cfg.Endpoints, e)
	}
	n, err := node.New(cfg)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	fmt.Fprintf(stdout, "Serving %d engines at http://%s/v1\n", len(o.engines), ln.Addr())
	return n.Run(ctx, ln)
}

// listen takes a free port where the one asked for is taken.
func listen(addr string, stdout io.Writer) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if !errors.Is(err, syscall.EADDRINUSE) {
		if err != nil {
			err = fmt.Errorf("gateway: flag -addr: %w", err)
		}
		return ln, err
	}
	host, _, splitErr := net.SplitHostPort(addr)
	if splitErr != nil {
		return nil, fmt.Errorf("gateway: flag -addr: %w", err)
	}
	if ln, err = net.Listen("tcp", net.JoinHostPort(host, "0")); err != nil {
		return nil, fmt.Errorf("gateway: flag -addr: %w", err)
	}
	fmt.Fprintf(stdout, "%s is taken, using %s instead\n", addr, ln.Addr())
	return ln, nil
}
