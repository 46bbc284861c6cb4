package scrape

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Poller polls endpoints. New makes one. Its methods may be called from any goroutine at any time.
type Poller struct {
	// Immutable.
	cfg    Config // with defaults
	client *http.Client
	own    *http.Transport // nil = the host's client is used

	inflaters inflaters
	poke      chan struct{}
	running   atomic.Bool

	// endpoints, by ID, is written under mu by the goroutine of Run alone, which therefore reads it without.
	endpoints map[string]*endpoint

	mu       sync.Mutex // guards what follows
	totals   Totals
	failures map[Reason]uint64
	inFlight int
	ignored  int
}

// endpoint is one life of a target. The goroutine of Run owns all but stats.
type endpoint struct {
	target Target
	reader *reader
	random *rand.Rand
	cancel context.CancelFunc // of its poll under way

	due      time.Time // of the next poll
	began    time.Time // of the last one
	place    int       // in dueQueue; -1 = not there
	asked    bool      // it has been polled
	skipped  bool      // its last tick was missed
	failing  bool      // its last poll failed
	moved    bool      // its URL has changed since its last poll began
	retrying bool      // its poll under way counts as one of a failing endpoint
	gone     bool
	listed   uint64 // the reading of Targets that last had it

	stats EndpointStats // guarded by Poller.mu
}

// New makes a poller. The error is that of [Config.Validate].
func New(cfg Config) (*Poller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &Poller{
		cfg: cfg.WithDefaults(), poke: make(chan struct{}, 1),
		endpoints: make(map[string]*endpoint), failures: make(map[Reason]uint64),
	}
	if cfg.Client != nil {
		c := *cfg.Client
		p.client = &c
	} else {
		p.own = newTransport()
		p.client = &http.Client{Transport: p.own}
	}
	p.client.CheckRedirect = redirects(max(p.cfg.MaxRedirects, 0), p.client.CheckRedirect)
	return p, nil
}

// Config returns the configuration in effect, see [Config.WithDefaults].
func (p *Poller) Config() Config { return p.cfg }

// Sync has Run read Targets soon, within 50 ms and a quarter of Every, for a host that has just changed them; polls that are
// due meanwhile begin after it. A sink that calls Sync for an endpoint while it is told of a poll has the next poll of that
// endpoint made as Targets says then. It does not wait, and does nothing more where Run is not under way.
func (p *Poller) Sync() {
	select {
	case p.poke <- struct{}{}:
	default:
	}
}

// Run polls until ctx is done, and returns nil when all its goroutines have ended. What is under way then is thrown away:
// it is no failure of an engine. While another Run is under way it returns ErrRunning at once. When called again
// afterwards it starts with new statistics of the endpoints; totals go on, and so does what is known of restarts.
func (p *Poller) Run(ctx context.Context) error {
	if !p.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer p.running.Store(false)
	ctx, cancel := context.WithCancel(ctx)
	l := &loop{Poller: p, ctx: ctx, events: make(chan event)}
	defer func() {
		cancel()
		l.polls.Wait()
		for _, r := range l.arrived {
			p.abandon(r.endpoint)
		}
		if p.own != nil {
			p.own.CloseIdleConnections()
		}
	}()
	l.run()
	return nil
}
