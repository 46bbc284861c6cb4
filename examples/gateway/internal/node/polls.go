package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
	"github.com/isobar-go/isobar/telemetry/scrape"
)

// LabelEngine is the label of an endpoint that names its engine.Kind. Without it the kind is recognised from what the engine
// reports, at one of the usual paths.
const LabelEngine = "engine"

// usual are the paths at which an engine of unknown kind is asked, in this order. They are never changed.
var usual = [...]string{engine.VLLM.Path(), engine.TRTLLM.Path()}

// polls tells a poller what to ask, and a pool what the engines answered. Any number of goroutines may use it.
type polls struct {
	pool *router.Pool
	log  *slog.Logger // nil = nowhere
	// lines are those about engines that have answered for the first time, or have not when they were asked first. They wait
	// here so that whoever reads them can not hold up polls.
	lines chan introduced
	told  chan struct{} // capacity 1: there is news for round
	// sync has targets read again before an engine is asked once more. It is set before anybody is asked.
	sync func()

	mu    sync.Mutex
	lives map[string]*pollLife // by id, of the newest list of targets
}

// introduced is the line about an engine.
type introduced struct{ id, line string }

// pollLife is what is known of asking one incarnation of an endpoint.
type pollLife struct {
	incarnation string
	kind        engine.Kind // given; "" = to be recognised
	path        int         // in usual, where no kind is given
	moved       bool        // has left the first path once
	better      bool        // has left it though there was something
	failures    int         // of answers that may be those of a wrong path
	settled     bool        // has answered at this path
	missed      bool        // a line says that it has not, or need not
	observed    bool        // has answered there before
	told        bool        // the pool knows what the engine says, or that it fails
	failing     bool
}

func newPolls(pool *router.Pool, log *slog.Logger) *polls {
	return &polls{
		pool: pool, log: log, lines: make(chan introduced, 1024), told: make(chan struct{}, 1), lives: map[string]*pollLife{},
	}
}

// targets lists what the poller asks, and forgets endpoints that are gone.
func (p *polls) targets() []scrape.Target {
	endpoints := p.pool.Endpoints()
	out := make([]scrape.Target, 0, len(endpoints))
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.lives
	p.lives = make(map[string]*pollLife, len(endpoints))
	for _, e := range endpoints {
		l, kind := old[e.ID], engine.Kind(e.Labels[LabelEngine])
		if l == nil || l.incarnation != e.Incarnation || l.kind != kind {
			l = &pollLife{incarnation: e.Incarnation, kind: kind}
		}
		p.lives[e.ID] = l
		path := kind.Path()
		if path == "" { // of an unknown one every poll fails anyway
			path = usual[l.path]
		}
		if l.better {
			kind = engine.TRTLLM // what was recognised before is another document
		}
		out = append(out, scrape.Target{
			ID: e.ID, Incarnation: e.Incarnation, URL: at(e.Address, path), Engine: engine.Parser{Kind: kind},
		})
	}
	return out
}

// at is a page of an engine. An address that is no base URL is left as it is, and fails as a target.
func at(address, path string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	return u.JoinPath(path).String()
}

// Observe passes a snapshot on.
func (p *polls) Observe(id string, s telemetry.Snapshot) error {
	taken, err := p.pool.Report(id, s)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lives[id]
	if l == nil {
		return nil
	}
	p.noteLocked(id, l, nil)
	if engine.Kind(s.Source) == engine.TRTLLMIterations && l.kind == "" && !l.moved {
		p.turnLocked(l, true) // the other page says more, and more often
		l.missed = true       // it has told something
		return nil
	}
	if !l.settled {
		l.settled = true
		p.say(id, introduction(id, s))
	}
	if l.observed || taken.DroppedReadings == 0 { // a first report of zeros is not believed before there is a second
		p.tellLocked(l)
	}
	l.observed = true
	return nil
}

// ScrapeFailed passes a failure on.
func (p *polls) ScrapeFailed(id string, cause error) error {
	err := p.pool.ScrapeFailed(id, cause)
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lives[id]
	if l == nil {
		return err
	}
	p.noteLocked(id, l, cause)
	if l.kind == "" && !l.settled && elsewhere(cause) {
		l.failures++
		if l.failures%2 == 1 { // the other path at once, and both again only after the poller's back-off
			p.turnLocked(l, false)
			if l.failures == 1 {
				return err
			}
		}
	}
	if !l.settled && !l.missed {
		l.missed = true
		p.say(id, fmt.Sprintf("%s tells nothing yet: %v", id, cause))
	}
	p.tellLocked(l)
	return err
}

// turnLocked has the other path asked from the next poll on: what comes from now on is not of this one.
func (p *polls) turnLocked(l *pollLife, better bool) {
	l.path, l.moved, l.better = 1-l.path, true, better
	p.sync()
}

func (p *polls) say(id, line string) {
	select {
	case p.lines <- introduced{id, line}:
	default: // nobody has taken a thousand of them
	}
}

// elsewhere says that an engine answered, but not with its metrics: they may be at another path.
func elsewhere(cause error) bool {
	var failed *scrape.Error
	if !errors.As(cause, &failed) {
		return false
	}
	switch failed.Reason {
	case scrape.ReasonStatus, scrape.ReasonContent, scrape.ReasonParse:
		return true
	}
	return false
}

func (p *polls) noteLocked(id string, l *pollLife, cause error) {
	if l.failing == (cause != nil) {
		return
	}
	l.failing = cause != nil
	if p.log != nil {
		p.log.Info("polls", "endpoint", id, "failing", l.failing, "error", cause)
	}
}

func (p *polls) tellLocked(l *pollLife) {
	l.told = true
	select {
	case p.told <- struct{}{}:
	default:
	}
}

// round has the poller run until the pool knows of every endpoint there is now what it says, or that it fails.
func (p *polls) round(ctx context.Context, poller *scrape.Poller) {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = poller.Run(ctx) }) // fails only where it runs already
	defer running.Wait()
	defer stop()
	ids := p.pool.Endpoints()
	for !p.allTold(ids) {
		select {
		case <-ctx.Done():
			return
		case <-p.told:
		}
	}
}

func (p *polls) allTold(endpoints []router.Endpoint) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range endpoints {
		if l := p.lives[endpoints[i].ID]; l == nil || !l.told {
			return false
		}
	}
	return true
}

// introduction says what an engine tells and what it does not. What no snapshot holds is left out.
func introduction(id string, s telemetry.Snapshot) string {
	kind := engine.Kind(s.Source)
	told, possible := engine.Told(s), engine.Signals(kind)
	var has, lacks, could []string
	for _, signal := range engine.AllSignals() {
		switch {
		case signal == engine.SignalAdapterActivity || signal == engine.SignalAdapterSlots:
		case slices.Contains(told, signal):
			has = append(has, string(signal))
		case slices.Contains(possible, signal):
			could = append(could, string(signal))
			fallthrough
		default:
			lacks = append(lacks, string(signal))
		}
	}
	line := fmt.Sprintf("%s is %s: has %s; lacks %s", id, kind, list(has), list(lacks))
	if len(could) > 0 {
		line += fmt.Sprintf(" (some %s engines tell %s)", kind, list(could))
	}
	return line
}

func list(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}
