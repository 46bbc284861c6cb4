package router

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/telemetry"
)

// limiter learns how many requests one endpoint should have at once. Any number of goroutines may use it.
type limiter struct {
	limit  atomic.Int64 // requests
	served atomic.Int64 // tokens of the pool's own requests: generated, and uncached ones of prompts

	mu      sync.Mutex // guards what follows
	learn   *admission.Limiter
	began   bool
	at      int64   // of the last observation, ns
	running float64 // at the last observation
	own     float64 // open leases then
	tokens  int64   // served by then
}

// newLimiter is nil where the limit is off.
func newLimiter(cfg *Config) *limiter {
	if !cfg.Limit.Adaptive {
		return nil
	}
	learn, err := admission.NewLimiter(cfg.Limit.Learn)
	if err != nil {
		return nil // cannot be: the configuration is valid
	}
	l := &limiter{learn: learn}
	l.limit.Store(int64(learn.Limit()))
	return l
}

// serve counts tokens.
func (l *limiter) serve(tokens int64) {
	if l != nil && tokens > 0 {
		l.served.Add(tokens)
	}
}

// observe takes what an engine reports of its running requests. What the pool's own requests were served stands for the rest, in
// proportion to the requests.
func (l *limiter) observe(at int64, running telemetry.Reading, own int64) {
	n, ok := running.Value()
	if l == nil || !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.began && at <= l.at {
		return // nothing new of it
	}
	served := l.served.Load()
	tokens, mean, ours := float64(served-l.tokens), (n+l.running)/2, (float64(own)+l.own)/2
	if ours > 0 && mean > ours {
		tokens *= mean / ours
	}
	if !l.began {
		tokens = math.NaN() // the first interval has no beginning
	}
	l.learn.Observe(at, mean, tokens)
	l.began, l.at, l.running, l.own, l.tokens = true, at, n, float64(own), served
	l.limit.Store(int64(l.learn.Limit()))
}

// limitOf is how many requests the endpoint may have by its limiter; 0 = no limit.
func (e *live) limitOf() int {
	if e.limiter == nil {
		return 0
	}
	return int(e.limiter.limit.Load())
}

// LimiterStats is what the adaptive limit of an endpoint has learned. A LimiterStats is a plain value.
type LimiterStats struct {
	// Limit is the limit in force, Learned the one that is held to be right, which an observe-only limiter does not enforce and a
	// trial differs from; requests.
	Limit   int `json:"limit"`
	Learned int `json:"learned"`
	// Changes are the last changes, oldest first.
	Changes []LimitChange `json:"changes,omitempty"`
}

// LimitChange is why a limit changed, or would have. A LimitChange is a plain value.
type LimitChange struct {
	// At is when, From and To the limits before and after, requests, and Reason why, see [admission.LimitReason].
	At     time.Time `json:"at"`
	From   int       `json:"from"`
	To     int       `json:"to"`
	Reason string    `json:"reason"`
	// Running (requests), Throughput (tokens a second) and PerToken (ms for a token of one request) are the means that led to
	// it; 0 = there were none.
	Running    float64 `json:"running,omitempty"`
	Throughput float64 `json:"throughput,omitempty"`
	PerToken   float64 `json:"per_token_ms,omitempty"`
	// Gain is the share by which throughput rises per share of requests added; 0 also where that is not known.
	Gain float64 `json:"gain,omitempty"`
}

// stats is nil where the limit is off.
func (l *limiter) stats(base time.Time) *LimiterStats {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	out := &LimiterStats{Limit: l.learn.Limit(), Learned: l.learn.Learned()}
	for c := range l.learn.Changes() {
		if math.IsNaN(c.Gain) || math.IsInf(c.Gain, 0) {
			c.Gain = 0
		}
		out.Changes = append(out.Changes, LimitChange{
			At: base.Add(time.Duration(c.At)), From: c.From, To: c.To, Reason: c.Reason.String(), Running: c.Running,
			Throughput: c.Throughput, PerToken: c.PerToken, Gain: c.Gain,
		})
	}
	return out
}
