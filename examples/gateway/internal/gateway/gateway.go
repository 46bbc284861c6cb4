package gateway

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
	"github.com/isobar-go/isobar/telemetry/engine"
	"github.com/isobar-go/isobar/telemetry/scrape"
)

// Names of headers.
const (
	// HeaderRequestID names a request in receipts and answers; made up where the client sends none.
	HeaderRequestID = "X-Request-Id"
	// HeaderClass is the priority class that a client asks for; read with Config.TrustClass only.
	HeaderClass = "X-Isobar-Class"
	// HeaderClientTimeout is how many seconds a client waits for its whole answer; see httptransport.OpenAI.
	HeaderClientTimeout = "X-Isobar-Timeout"
	// HeaderEndpoint is the engine that answered.
	HeaderEndpoint = "X-Isobar-Endpoint"
	// HeaderAttempts is the number of engines that were tried.
	HeaderAttempts = "X-Isobar-Attempts"
)

const (
	maxHeader   = 64 << 10
	readTimeout = 5 * time.Second // of the headers of a request
	idleTimeout = 2 * time.Minute
)

// Config configures a Gateway. Only Pool is required. It is a plain value.
type Config struct {
	// Pool chooses the engines.
	Pool *router.Pool
	// Wrap is put around the pool where requests are reserved, for whoever wants to see its answers; nil = nothing is. It is
	// called once, by New.
	Wrap func(router.Router) router.Router
	// Polls tells how the polls of the engines go, for /debug/isobar; nil = not shown.
	Polls func() scrape.Stats
	// Receipts are shown by /debug/isobar; nil = none.
	Receipts *Ring
	// Tokenize gives the token ids of prompts; see httptransport.OpenAI. Whoever sets it lets tenants share affinity, as they
	// share the engines' caches: KV events, which it is for, do not say whose prompt a block is of. A request with a
	// cache_salt shares neither. nil = prompts are described by their bytes, each tenant's apart.
	Tokenize func(httptransport.Prompt) ([]uint32, bool)
	// BlockTokens is the engines' block size, tokens. Default 16.
	BlockTokens int
	// KV tells how the KV events of the engines go, for /debug/isobar; nil = not shown.
	KV func() []KVState
	// MaxBody is the largest request body, bytes. Default 8 MiB.
	MaxBody int64
	// BodyTimeout is how long a client may take to send its body. Default 30 s.
	BodyTimeout time.Duration
	// StallTimeout is how long a client may leave a part of its answer untaken. Default 30 s.
	StallTimeout time.Duration
	// HeaderTimeout is how long an engine may take until its response headers, the wait in its queue and, without
	// streaming, the whole answer included. Default 10 min.
	HeaderTimeout time.Duration
	// Grace is how long open streams may go on after a stop. Requests that wait for an engine are served for half of it, and
	// then refused. Default 30 s.
	Grace time.Duration
	// DebugAny answers /debug/isobar to everybody.
	DebugAny bool
	// TrustClass takes the priority class of a request from its X-Isobar-Class header. Set it only where clients are trusted
	// or the header is set in front: anybody could call his requests system.
	TrustClass bool
	// Log is where faults are noted; nil = nowhere.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.MaxBody == 0 {
		c.MaxBody = httptransport.DefaultMaxBody
	}
	if c.BlockTokens == 0 {
		c.BlockTokens = httptransport.DefaultBlockTokens
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.BodyTimeout, 30 * time.Second}, {&c.StallTimeout, 30 * time.Second}, {&c.HeaderTimeout, 10 * time.Minute},
		{&c.Grace, 30 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Receipts == nil {
		c.Receipts = NewRing(0)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate reports every field that is out of range, all of them joined.
func (c Config) Validate() error {
	var faults []error
	if c.Pool == nil {
		faults = append(faults, errors.New("gateway: Config.Pool is nil"))
	}
	if c.BlockTokens < 0 {
		faults = append(faults, fmt.Errorf("gateway: Config.BlockTokens = %d must be at least 0", c.BlockTokens))
	}
	if c.MaxBody < 0 {
		faults = append(faults, fmt.Errorf("gateway: Config.MaxBody = %d must be at least 0", c.MaxBody))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"BodyTimeout", c.BodyTimeout}, {"StallTimeout", c.StallTimeout}, {"HeaderTimeout", c.HeaderTimeout}, {"Grace", c.Grace}} {
		if d.value < 0 {
			faults = append(faults, fmt.Errorf("gateway: Config.%s = %v must be at least 0", d.name, d.value))
		}
	}
	return errors.Join(faults...)
}

// Gateway is the server. Any number of goroutines may use it.
type Gateway struct {
	cfg      Config
	base     *http.Transport
	handler  http.Handler
	stopping atomic.Bool
	open     sync.RWMutex // held for reading by every request under way
	errors   tally
	closed   context.Context // done = nobody waits for an engine any more
	close    context.CancelFunc
}

// New makes a gateway that does not listen yet.
func New(cfg Config) (*Gateway, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.Proxy = nil // engines are reached directly
	base.MaxIdleConnsPerHost, base.MaxIdleConns = 256, 0
	base.ResponseHeaderTimeout = cfg.HeaderTimeout
	base.DialContext = (&net.Dialer{Timeout: 2 * time.Second}).DialContext
	g := &Gateway{cfg: cfg, base: base}
	g.closed, g.close = context.WithCancel(context.Background())
	g.handler = g.routes()
	return g, nil
}

// ServeHTTP answers a request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.open.RLock()
	defer g.open.RUnlock()
	g.handler.ServeHTTP(w, r)
}

// Serve answers what arrives at ln until ctx is done; then it takes no more, lets open streams end for Config.Grace, and who
// waits get an engine for half of that, breaks off what is left, and returns. It returns nil after a stop in good order. It closes ln.
func (g *Gateway) Serve(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{
		Handler: g, ReadHeaderTimeout: readTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(g.cfg.Log.Handler(), slog.LevelWarn),
	}
	defer g.base.CloseIdleConnections()
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()
	select {
	case err := <-failed:
		return fmt.Errorf("gateway: serving: %w", err)
	case <-ctx.Done():
	}
	g.stopping.Store(true)
	defer g.close()
	defer time.AfterFunc(g.cfg.Grace/2, g.close).Stop() // who is let in later has no time for a stream
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.cfg.Grace)
	defer cancel()
	err := srv.Shutdown(grace)
	<-failed
	if err != nil {
		_ = srv.Close() // closes the connections, which ends their requests and leases
		g.open.Lock()
		defer g.open.Unlock()
		return fmt.Errorf("gateway: streams were broken off after %v: %w", g.cfg.Grace, err)
	}
	return nil
}

func (g *Gateway) routes() http.Handler {
	describer := httptransport.OpenAI{
		MaxBody: g.cfg.MaxBody, BlockTokens: g.cfg.BlockTokens, Tokenize: g.cfg.Tokenize, SharedPrefixes: g.cfg.Tokenize != nil,
		TimeoutHeader: HeaderClientTimeout, Now: g.cfg.Pool.Config().Now,
	}
	if g.cfg.TrustClass {
		describer.ClassHeader = HeaderClass
	}
	var pool router.Router = g.cfg.Pool
	if g.cfg.Wrap != nil {
		pool = g.cfg.Wrap(pool)
	}
	if g.cfg.Pool.Config().Queue.Max > 0 {
		pool = &lobby{pool, g.cfg.Pool, g.closed}
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetXForwarded() },
		Transport: &httptransport.Transport{
			Pool: pool, Base: g.base, Describe: remember(describer.Describe), Log: g.cfg.Log,
			Loads: g.cfg.Pool, LoadFormat: engine.LoadText, Now: g.cfg.Pool.Config().Now,
		},
		ModifyResponse: mark,
		ErrorHandler:   g.fail,
		ErrorLog:       log.New(slogWriter{g.cfg.Log}, "", 0),
	}
	mux := http.NewServeMux()
	mux.Handle("/v1/chat/completions", only(http.MethodPost, g.bounded(proxy)))
	mux.Handle("/v1/completions", only(http.MethodPost, g.bounded(proxy)))
	mux.Handle("/v1/models", only(http.MethodGet, http.HandlerFunc(g.models)))
	mux.Handle("/healthz", only(http.MethodGet, http.HandlerFunc(g.health)))
	mux.Handle("/debug/isobar", only(http.MethodGet, http.HandlerFunc(g.debug)))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		httptransport.WriteError(w, &httptransport.RequestError{
			Status: http.StatusNotFound, Code: "unknown_url", Message: fmt.Sprintf("unknown request URL: %s %.200s", r.Method, r.URL.Path),
		})
	})
	return named(mux)
}

// only refuses other methods; GET includes HEAD.
func only(method string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == method || method == http.MethodGet && r.Method == http.MethodHead {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Allow", method)
		httptransport.WriteError(w, &httptransport.RequestError{
			Status: http.StatusMethodNotAllowed, Code: "method_not_allowed",
			Message: fmt.Sprintf("%.20q is not allowed on %s", r.Method, r.URL.Path),
		})
	})
}

// named gives every request an id: the client's own if it is harmless, else a new one.
func named(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(HeaderRequestID)
		if !harmless(id) {
			var b [12]byte
			_, _ = rand.Read(b[:]) // never fails
			id = hex.EncodeToString(b[:])
			r.Header.Set(HeaderRequestID, id)
		}
		w.Header().Set(HeaderRequestID, id)
		next.ServeHTTP(w, r)
	})
}

func harmless(id string) bool {
	for i := range len(id) {
		switch c := id[i]; {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '-', c == '_', c == '.', c == ':':
		default:
			return false
		}
	}
	return id != "" && len(id) <= 128
}

// modelKey is where the model that a request asks for is kept for the answer to a rejection; see bounded.
type modelKey struct{}

// remember notes the model that a describer has found.
func remember(describe func(*http.Request) (router.Request, error)) func(*http.Request) (router.Request, error) {
	return func(r *http.Request) (router.Request, error) {
		req, err := describe(r)
		if model, ok := r.Context().Value(modelKey{}).(*string); ok {
			*model = req.Model
		}
		return req, err
	}
}

// unknownModel is the error of a request that was rejected for a model that no engine serves, ready or not: the client's
// mistake and no lack of engines. Else it is nil.
func (g *Gateway) unknownModel(r *http.Request, err error) error {
	model, _ := r.Context().Value(modelKey{}).(*string)
	if model == nil || *model == "" || !errors.Is(err, router.ErrNoEndpoints) {
		return nil
	}
	endpoints := g.cfg.Pool.Endpoints()
	for i := range endpoints {
		if m := endpoints[i].Models; len(m) == 0 || slices.Contains(m, *model) {
			return nil
		}
	}
	if len(endpoints) == 0 {
		return nil
	}
	return &httptransport.RequestError{
		Status: http.StatusNotFound, Param: "model", Code: "model_not_found", Message: fmt.Sprintf("the model %.100q does not exist", *model),
	}
}

// mark says in an answer where it comes from, and makes a stream that breaks end with an error event.
func mark(resp *http.Response) error {
	if route, ok := httptransport.RouteFrom(resp.Request.Context()); ok {
		resp.Header.Set(HeaderEndpoint, route.Lease.Endpoint().ID)
		resp.Header.Set(HeaderAttempts, strconv.Itoa(len(route.Failed)+1))
	}
	resp.Header.Del(HeaderRequestID) // the engine's own would stand beside ours
	if isEvents(resp.Header) {
		resp.Body = &errorEvents{ReadCloser: resp.Body, ctx: resp.Request.Context()}
	}
	return nil
}

// fail answers a request that no engine has answered.
func (g *Gateway) fail(w http.ResponseWriter, r *http.Request, err error) {
	if unknown := g.unknownModel(r, err); unknown != nil {
		err = unknown
	}
	status, _ := httptransport.ErrorBody(err)
	g.errors.add(status)
	if status == httptransport.StatusClientClosedRequest {
		g.cfg.Log.Info("client gave up", "request_id", r.Header.Get(HeaderRequestID), "status", status)
	}
	httptransport.LogErrors(g.cfg.Log)(w, r, err)
}

func (g *Gateway) health(w http.ResponseWriter, _ *http.Request) {
	if g.stopping.Load() {
		httptransport.WriteError(w, errStopping())
		return
	}
	if _, err := g.cfg.Pool.Score(router.Request{}); err != nil && !g.mayWait(err) {
		httptransport.WriteError(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n")) // fails only where the client has gone
}

// slogWriter is where the proxy's own messages go.
type slogWriter struct{ log *slog.Logger }

// Write logs one message.
func (s slogWriter) Write(p []byte) (int, error) {
	s.log.Warn("proxy", "message", string(p))
	return len(p), nil
}
