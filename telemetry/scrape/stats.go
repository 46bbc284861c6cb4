package scrape

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/isobar-go/isobar/telemetry/engine"
)

// Stats is what a poller has done. It is plain data and belongs to the caller.
type Stats struct {
	Totals
	// At is the time of the reading.
	At time.Time
	// InFlight is the number of polls under way or not yet delivered.
	InFlight int
	// Ignored is the number of entries of the newest list of targets without an ID of their own.
	Ignored int
	// FailuresBy counts failed polls by reason; reasons without any are not in it.
	FailuresBy map[Reason]uint64
	// Endpoints are those of the newest list of targets, sorted by ID.
	Endpoints []EndpointStats
}

// Totals count polls since the poller was made, those of removed endpoints included. Polls is the sum of Successes,
// Failures, Abandoned and Stats.InFlight. It is plain data.
type Totals struct {
	// Polls have been started.
	Polls uint64
	// Successes brought a snapshot that the sink took.
	Successes uint64
	// Failures brought none.
	Failures uint64
	// Abandoned polls were thrown away: the endpoint was removed or replaced, or Run ended.
	Abandoned uint64
	// Skipped is the number of ticks at which no poll was started because the process had stood still.
	Skipped uint64
}

// EndpointStats is what is known of polling one endpoint, in this life of it. It is plain data.
type EndpointStats struct {
	// ID and Incarnation are the target's.
	ID          string
	Incarnation string
	// Kind is the kind of engine, given or recognised. "" = not recognised yet, or the host parses itself.
	Kind engine.Kind

	// Polling says that a poll is under way or not yet delivered.
	Polling bool
	// LastAttempt, LastSuccess and LastFailure are when the newest poll, the newest good one and the newest failed one
	// were sent. The zero time = none yet.
	LastAttempt, LastSuccess, LastFailure time.Time
	// Age is the age of the newest snapshot, from the time its poll was sent; negative = there is none.
	Age time.Duration
	// Successes and Failures count polls.
	Successes, Failures uint64
	// ConsecutiveFailures is the number of failures since the last success.
	ConsecutiveFailures int
	// Backoff is the longest time until the next poll after these failures, from the end of the last one. 0 while the
	// endpoint answers.
	Backoff time.Duration
	// Reason and Error are those of the newest failure. They stay when later polls succeed, see ConsecutiveFailures.
	Reason Reason
	Error  string
	// LastDuration, MeanDuration and MaxDuration are how long polls took, failed ones included, parsing included.
	LastDuration, MeanDuration, MaxDuration time.Duration

	sum time.Duration // of all durations
}

// Stats returns what the poller has done so far. It takes time in proportion to the number of endpoints.
func (p *Poller) Stats() Stats {
	now := p.cfg.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{
		Totals: p.totals, At: now, InFlight: p.inFlight, Ignored: p.ignored, FailuresBy: maps.Clone(p.failures),
		Endpoints: make([]EndpointStats, 0, len(p.endpoints)),
	}
	for _, e := range p.endpoints {
		s.Endpoints = append(s.Endpoints, e.stats.at(now))
	}
	slices.SortFunc(s.Endpoints, func(a, b EndpointStats) int { return strings.Compare(a.ID, b.ID) })
	return s
}

// Endpoint returns what is known of polling one endpoint, and false if it is not polled.
func (p *Poller) Endpoint(id string) (EndpointStats, bool) {
	now := p.cfg.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.endpoints[id]
	if e == nil {
		return EndpointStats{}, false
	}
	return e.stats.at(now), true
}

func (s EndpointStats) at(now time.Time) EndpointStats {
	s.Age = -1
	if !s.LastSuccess.IsZero() {
		s.Age = max(now.Sub(s.LastSuccess), 0)
	}
	if n := s.Successes + s.Failures; n > 0 {
		s.MeanDuration = s.sum / time.Duration(n)
	}
	return s
}

// begin counts a poll and returns the time at which it is sent.
func (p *Poller) begin(e *endpoint) time.Time {
	sent := p.cfg.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.totals.Polls++
	p.inFlight++
	e.stats.Polling = true
	e.stats.LastAttempt = sent
	return sent
}

// abandon ends a poll that says nothing.
func (p *Poller) abandon(e *endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.totals.Abandoned++
	p.inFlight--
	e.stats.Polling = false
}

// record ends a poll that was delivered, and returns the number of failures in a row.
func (p *Poller) record(r result) int {
	text := ""
	if r.err != nil {
		text = r.err.Error()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &r.stats
	s.Kind = r.kind
	s.Polling = false
	s.LastDuration, s.MaxDuration = r.took, max(s.MaxDuration, r.took)
	s.sum += r.took
	p.inFlight--
	if r.err == nil {
		p.totals.Successes++
		s.LastSuccess = r.sent
		s.Successes++
		s.ConsecutiveFailures, s.Backoff = 0, 0
		return 0
	}
	p.totals.Failures++
	p.failures[r.err.Reason]++
	s.LastFailure = r.sent
	s.Failures++
	s.ConsecutiveFailures++
	s.Backoff = p.cfg.backoff(s.ConsecutiveFailures)
	s.Reason, s.Error = r.err.Reason, text
	return s.ConsecutiveFailures
}
