package embedded

import (
	"context"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isobar-go/isobar/internal/sim"
)

// Engine is a running server. All methods may be called from any goroutine.
type Engine struct {
	cfg     Config
	addr    string
	started time.Time
	ln      net.Listener
	srv     *http.Server

	draining  atomic.Bool
	frozen    atomic.Bool
	slowdown  atomic.Uint64 // bits of a float64
	wake      chan struct{} // capacity 1
	ctx       context.Context
	cancel    context.CancelFunc
	loopDone  chan struct{}
	serveDone chan struct{}
	connsDone sync.WaitGroup // one per open connection; none is added once serveDone is closed

	mu      sync.Mutex // guards what follows
	sim     *sim.Engine
	streams map[uint64]*stream
	lastID  uint64
	conns   map[net.Conn]http.ConnState
	figures figures
	read    int64     // passes that had begun when the iterations were last read
	kv      *kvEvents // nil = none
}

// Stats is what an engine knows about itself. It is a plain value.
type Stats struct {
	sim.State
	// Connections is the number of open TCP connections.
	Connections int
	// Draining says whether new requests are refused.
	Draining bool
}

// Start starts an engine and returns once it listens. It fails on a faulty Config and on an address it cannot have.
func Start(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	model, err := sim.New(cfg.Profile, sim.Options{KVEvents: cfg.KVEvents})
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("embedded: Config.Addr %q: %w", cfg.Addr, err)
	}
	var kv *kvEvents
	if cfg.KVEvents {
		if kv, err = newKVEvents(cfg); err != nil {
			_ = ln.Close()
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &Engine{
		cfg: cfg, addr: ln.Addr().String(), started: time.Now(), ln: ln,
		wake: make(chan struct{}, 1), ctx: ctx, cancel: cancel,
		loopDone: make(chan struct{}), serveDone: make(chan struct{}),
		sim: model, streams: make(map[uint64]*stream), conns: make(map[net.Conn]http.ConnState),
		figures: newFigures(), kv: kv,
	}
	e.slowdown.Store(math.Float64bits(1))
	e.srv = &http.Server{
		Handler:           e.routes(),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          log.New(io.Discard, "", 0),
		ConnState:         e.connState,
	}
	go func() {
		defer close(e.serveDone)
		// It only ever ends because Shutdown or Kill closed the listener.
		_ = e.srv.Serve(ln)
	}()
	go e.run()
	return e, nil
}

func (e *Engine) connState(c net.Conn, s http.ConnState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch s {
	case http.StateNew:
		e.conns[c] = s
		e.connsDone.Add(1)
	case http.StateClosed, http.StateHijacked:
		delete(e.conns, c)
		e.connsDone.Done()
	default:
		e.conns[c] = s
	}
}

// URL returns the base of all paths, without a slash at the end: "http://127.0.0.1:port".
func (e *Engine) URL() string { return "http://" + e.addr }

// Addr returns the address it listens on, "host:port".
func (e *Engine) Addr() string { return e.addr }

// KVAddr returns the address of the KV events, "tcp://host:port", or "" without Config.KVEvents.
func (e *Engine) KVAddr() string {
	if e.kv == nil {
		return ""
	}
	return "tcp://" + e.kv.events.addr()
}

// KVReplayAddr returns the address at which batches of KV events are sent again, "tcp://host:port", or "" without
// Config.KVEvents.
func (e *Engine) KVReplayAddr() string {
	if e.kv == nil {
		return ""
	}
	return "tcp://" + e.kv.replays.addr()
}

// Config returns the configuration with its defaults filled in.
func (e *Engine) Config() Config { return e.cfg }

// Stats returns the state of the engine now. It answers after the engine has ended, too.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Stats{State: e.sim.State(), Connections: len(e.conns), Draining: e.draining.Load()}
}

// SetDraining makes the engine refuse new requests with status 503, and fail its health check, or take that back.
// Requests inside go on.
func (e *Engine) SetDraining(on bool) { e.draining.Store(on) }

// SetFrozen stops the engine between two passes, or lets it go on. A frozen engine accepts requests and answers
// /metrics and /health, and no token comes out of it.
func (e *Engine) SetFrozen(on bool) {
	e.frozen.Store(on)
	e.poke()
}

// SetSlowdown makes passes begun from now on last factor times as long: 1 is the profile's speed. It fails, and changes
// nothing, unless factor is a positive number.
func (e *Engine) SetSlowdown(factor float64) error {
	if !(factor > 0) || math.IsInf(factor, 0) {
		return fmt.Errorf("embedded: slowdown factor %v is not a positive number", factor)
	}
	e.slowdown.Store(math.Float64bits(factor))
	return nil
}

// ClearCache forgets the prefix cache, as a cache reset of an engine does.
func (e *Engine) ClearCache() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sim.ClearCache()
	e.kv.take(e.sim)
}

// Shutdown refuses new requests, lets those inside finish and ends the engine. If ctx ends first it breaks off what is
// left, as Kill does, and returns ctx's error. After the end, and a second time, it does nothing.
func (e *Engine) Shutdown(ctx context.Context) error {
	e.draining.Store(true)
	// The server would wait seconds for connections on which nothing has been asked yet.
	e.mu.Lock()
	for c, s := range e.conns {
		if s == http.StateNew {
			_ = c.Close()
		}
	}
	e.mu.Unlock()
	err := e.srv.Shutdown(ctx)
	e.Kill()
	if err != nil {
		return fmt.Errorf("embedded: shutdown of %s: %w", e.cfg.Name, err)
	}
	return nil
}

// Kill ends the engine as a crash would: the port closes, connections are reset in the middle of their streams. It
// returns when nothing of the engine runs any more. After the end it does nothing.
func (e *Engine) Kill() {
	_ = e.ln.Close()
	e.kv.shut()
	<-e.serveDone
	// Reset first, so that a handler that gives up cannot end its response in good order.
	e.mu.Lock()
	for c := range e.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
	e.mu.Unlock()
	e.cancel()
	_ = e.srv.Close()
	<-e.loopDone
	e.connsDone.Wait()
	e.kv.close()
}

// Restart starts a new engine, with an empty cache and fresh counters, in the place of one that has ended: same
// configuration, same addresses. It fails if the address is taken, for instance because this engine still runs.
func (e *Engine) Restart() (*Engine, error) {
	cfg := e.cfg
	cfg.Addr = e.addr
	if e.kv != nil {
		cfg.KVAddr, cfg.KVReplayAddr = e.kv.events.addr(), e.kv.replays.addr()
	}
	return Start(cfg)
}
