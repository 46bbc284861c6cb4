package scrape

import (
	"context"
	"sync"
	"time"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
)

const (
	// syncShare is how many times its own duration passes between two readings of Targets: 1 % of a core.
	syncShare = 100
	// maxSpacing bounds that time, and so does a quarter of Every, since answers wait for the next reading.
	maxSpacing = 50 * time.Millisecond
)

// loop is one run of a poller. One goroutine owns it, and alone decides who is polled when. A poll is a goroutine that
// fetches; its result waits until Targets has been read once more, and is then delivered by another goroutine, so that
// neither a slow engine nor a slow sink holds up anybody.
type loop struct {
	*Poller
	ctx    context.Context
	polls  sync.WaitGroup
	events chan event

	waiting dueQueue // not due yet
	// ready and retry are due and wait for a place, those that failed last time apart. Endpoints that have gone are
	// dropped when their turn comes.
	ready, retry []*endpoint
	busy         int // places taken
	retrying     int // of them, by endpoints that failed last time
	arrived      []result

	former   map[string]*endpoint // of the Run before, while Targets is read for the first time
	reading  uint64               // readings of Targets
	lastSync time.Time
	spacing  time.Duration
	poked    bool // by Sync; no poll begins before Targets has been read
}

// result is what a poll has brought.
type result struct {
	*endpoint
	sent     time.Time
	took     time.Duration
	kind     engine.Kind
	snapshot telemetry.Snapshot
	err      *Error
	aborted  bool // by the poller itself: it says nothing
}

// event is what a poll tells the loop: first its result, then that it was delivered.
type event struct {
	result
	delivered bool
	failures  int // in a row
}

func (l *loop) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-timer.C:
		case <-l.poke:
			l.poked = true
		case ev := <-l.events:
			l.take(ev)
		}
		select {
		case <-l.poke: // whatever woke it up: a sink that called Sync did so before its delivery was told
			l.poked = true
		default:
		}
		now := time.Now()
		if !now.Before(l.nextSync()) {
			l.sync(now)
		}
		now = time.Now()
		if !l.poked {
			l.start(now)
		}
		timer.Reset(l.nextWake().Sub(now))
	}
}

// nextSync is when Targets is to be read again.
func (l *loop) nextSync() time.Time {
	switch {
	case l.reading == 0:
		return time.Time{}
	case len(l.arrived) > 0 || l.poked:
		return l.lastSync.Add(l.spacing)
	}
	return l.lastSync.Add(l.cfg.Every)
}

func (l *loop) nextWake() time.Time {
	at := l.nextSync()
	if !l.poked && len(l.waiting) > 0 && l.waiting[0].due.Before(at) {
		at = l.waiting[0].due
	}
	return at
}

// sync reads Targets, follows what has changed, and lets the results go that have come since.
func (l *loop) sync(now time.Time) {
	targets := l.cfg.Targets()
	l.reading++
	l.poked = false
	l.mu.Lock()
	if l.reading == 1 {
		l.former, l.endpoints = l.endpoints, make(map[string]*endpoint)
	}
	l.ignored = 0
	for _, t := range targets {
		e := l.endpoints[t.ID]
		switch {
		case t.ID == "" || e != nil && e.listed == l.reading:
			l.ignored++
			continue
		case e != nil && e.target.Incarnation == t.Incarnation:
			l.update(e, t)
		default:
			if e != nil {
				l.drop(e)
			}
			e = l.adopt(t, now)
		}
		e.listed = l.reading
	}
	if len(l.endpoints) > len(targets)-l.ignored {
		for _, e := range l.endpoints {
			if e.listed != l.reading {
				l.drop(e)
			}
		}
	}
	l.mu.Unlock()
	l.former = nil

	for _, r := range l.arrived {
		if r.gone {
			l.abandon(r.endpoint)
			continue
		}
		l.polls.Go(func() { l.deliver(r) })
	}
	clear(l.arrived)
	l.arrived = l.arrived[:0]

	l.lastSync = time.Now()
	l.spacing = min(syncShare*l.lastSync.Sub(now), l.cfg.Every/4, maxSpacing)
}

func (l *loop) adopt(t Target, now time.Time) *endpoint {
	known := new(lives)
	if old := l.former[t.ID]; old != nil && old.target.Incarnation == t.Incarnation {
		known = old.reader.lives
	}
	e := &endpoint{target: t, reader: newReader(t.Engine, l.cfg.MaxBytes, known), random: newRandom(l.cfg.Seed, t), place: -1}
	e.stats = EndpointStats{ID: t.ID, Incarnation: t.Incarnation}
	e.due = now.Add(l.cfg.firstWait(e.random))
	l.endpoints[t.ID] = e
	l.waiting.add(e)
	return e
}

// update takes over what may change in a life. The back-off was for the old URL.
func (l *loop) update(e *endpoint, t Target) {
	e.target.Parse = t.Parse
	if !e.reader.same(t.Engine) {
		e.reader = newReader(t.Engine, l.cfg.MaxBytes, e.reader.lives)
	}
	if e.target.URL == t.URL {
		return
	}
	e.target.URL, e.moved = t.URL, true
	if soon := e.began.Add(l.cfg.Every); e.place >= 0 && e.asked && soon.Before(e.due) {
		l.waiting.remove(e)
		e.due = soon
		l.waiting.add(e)
	}
}

func (l *loop) drop(e *endpoint) {
	e.gone = true
	if e.cancel != nil {
		e.cancel()
	}
	l.waiting.remove(e)
	delete(l.endpoints, e.target.ID)
}

// start begins the polls whose time has come. A tick that is late by more than half of Every is missed, and skipped: after
// a stall of the whole process everybody goes on at the own next tick, instead of all at once. No endpoint misses two
// ticks in a row in that way, and none its first.
func (l *loop) start(now time.Time) {
	skipped := uint64(0)
	for len(l.waiting) > 0 && !l.waiting[0].due.After(now) {
		e := l.waiting.pop()
		switch {
		case e.asked && !e.skipped && now.Sub(e.due) > l.cfg.Every/2:
			skipped++
			e.skipped = true
			e.due = tickAfter(e.due, l.cfg.Every, now)
			l.waiting.add(e)
		case e.failing:
			l.retry = append(l.retry, e)
		default:
			l.ready = append(l.ready, e)
		}
	}
	if skipped > 0 {
		l.mu.Lock()
		l.totals.Skipped += skipped
		l.mu.Unlock()
	}
	for e := l.next(); e != nil; e = l.next() {
		l.poll(e, now)
	}
}

// next takes the endpoint whose turn it is out of ready or retry; nil = none, or no place for it.
func (l *loop) next() *endpoint {
	l.ready, l.retry = dropGone(l.ready), dropGone(l.retry)
	most := l.cfg.MaxConcurrent
	if most > 0 && l.busy >= most {
		return nil
	}
	from := &l.ready
	if len(l.retry) > 0 && (most == 0 || l.retrying < max(most/2, 1)) &&
		(len(l.ready) == 0 || l.retry[0].due.Before(l.ready[0].due)) {
		from = &l.retry
	}
	if len(*from) == 0 {
		return nil
	}
	e := (*from)[0]
	(*from)[0] = nil
	*from = (*from)[1:]
	return e
}

func dropGone(q []*endpoint) []*endpoint {
	for len(q) > 0 && q[0].gone {
		q[0] = nil
		q = q[1:]
	}
	return q
}

func (l *loop) poll(e *endpoint, now time.Time) {
	ctx, cancel := context.WithCancel(l.ctx)
	e.cancel, e.began = cancel, now
	e.skipped, e.moved = false, false
	e.retrying = e.failing
	l.busy++
	if e.retrying {
		l.retrying++
	}
	target, reader := e.target, e.reader // may change meanwhile
	parse := target.Parse
	if parse == nil {
		parse = l.cfg.Parse
	}
	l.polls.Go(func() {
		defer cancel()
		r := result{endpoint: e, sent: l.begin(e)}
		switch {
		case parse != nil:
			r.snapshot, r.err = l.fetch(ctx, &target, r.sent, parse)
		case reader.fault != nil:
			r.err = &Error{ID: target.ID, Reason: ReasonTarget, Err: reader.fault}
		default:
			r.snapshot, r.err = l.fetch(ctx, &target, r.sent, reader.read)
			r.kind = reader.parser.Kind
		}
		r.took = max(l.cfg.Now().Sub(r.sent), 0)
		r.aborted = ctx.Err() != nil
		select {
		case l.events <- event{result: r}:
		case <-l.ctx.Done():
			l.abandon(e)
		}
	})
}

func (l *loop) deliver(r result) {
	id := r.stats.ID // never changes
	if r.err == nil {
		r.snapshot.Incarnation, r.snapshot.Interval = r.stats.Incarnation, l.cfg.Every
		if err := l.cfg.Sink.Observe(id, r.snapshot); err != nil {
			r.err = &Error{ID: id, Reason: ReasonSink, Err: err}
		}
	} else {
		_ = l.cfg.Sink.ScrapeFailed(id, r.err)
	}
	failures := l.record(r)
	select {
	case l.events <- event{result: r, delivered: true, failures: failures}:
	case <-l.ctx.Done():
	}
}

// take follows a poll. A result frees its place; a delivery decides when the endpoint is asked again.
func (l *loop) take(ev event) {
	e := ev.endpoint
	if !ev.delivered {
		e.cancel = nil
		l.busy--
		if e.retrying {
			l.retrying--
		}
		if ev.aborted {
			l.abandon(e)
			return
		}
		l.arrived = append(l.arrived, ev.result)
		return
	}
	if e.gone {
		return
	}
	first := !e.asked
	e.asked, e.failing = true, ev.failures > 0
	now := time.Now()
	switch {
	case e.failing && !e.moved:
		e.due = now.Add(l.cfg.retryWait(ev.failures, e.random))
	default:
		e.due = tickAfter(e.began.Add(l.cfg.wait(first, e.random)), l.cfg.Every, now)
	}
	l.waiting.add(e)
}
