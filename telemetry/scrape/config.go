package scrape

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"

	"github.com/isobar-go/isobar/telemetry"
	"github.com/isobar-go/isobar/telemetry/engine"
)

// None is what Jitter, MaxBackoff and MaxRedirects are set to where zero itself is meant, since the zero value stands for
// the default. Any negative value means the same.
const None = -1

// Defaults of Config.
const (
	DefaultEvery        = 500 * time.Millisecond
	DefaultTimeout      = telemetry.DefaultFreshFor
	DefaultMaxBackoff   = telemetry.DefaultStaleAfter
	DefaultJitter       = 0.1
	DefaultMaxBytes     = 8 << 20
	DefaultMaxRedirects = 3
)

// Limits of Config.
const (
	minEvery     = time.Millisecond
	maxDuration  = 24 * time.Hour
	maxJitter    = 0.5
	maxRedirects = 10
)

// Target is one endpoint to poll. It is a plain value.
type Target struct {
	// ID names the endpoint at the sink. An entry of a list that has none, or the ID of an earlier entry, is ignored and
	// counted in Stats.Ignored.
	ID string
	// Incarnation tells lives of one ID apart. Another incarnation is another endpoint: what was still on its way from
	// the one before is thrown away, and statistics and back-off begin afresh.
	Incarnation string
	// URL is the whole address of the document, http or https, for example http://10.0.0.7:8000/metrics. A bad one fails
	// at every poll with ReasonTarget. It may change during a life; failures of the old one then delay the next poll no
	// longer.
	URL string
	// Engine says how package engine reads the document. Without a Kind, the kind is recognised from the first document and
	// then kept. Its MaxBytes, where it is set, counts beside Config.MaxBytes.
	Engine engine.Parser
	// Parse reads the document instead of Config.Parse and package engine; nil = they do.
	Parse func(body io.Reader, at time.Time) (telemetry.Snapshot, error)
}

// Sink is told what polls bring. Its methods are called from many goroutines at once, of one endpoint by one at a time.
// They must not block: the endpoint is not polled again before they return. *router.Pool is a Sink.
type Sink interface {
	// Observe takes a snapshot. An error counts as a failed poll with ReasonSink.
	Observe(id string, s telemetry.Snapshot) error
	// ScrapeFailed takes the *Error of a poll that brought nothing. What it returns is ignored.
	ScrapeFailed(id string, cause error) error
}

// Config configures a Poller. Targets and Sink are required; the zero value of any other field means its default. A Config
// is a plain value; its functions are called from many goroutines unless their field says otherwise.
type Config struct {
	// Targets returns the endpoints there are now. It is called by one goroutine at a time: when the poller starts, at
	// least once per Every, and between an answer and its delivery, so that no endpoint is given what another has said.
	// Answers wait for each other, up to 50 ms or a quarter of Every, so that it takes about 1 % of one core. The result is
	// only read, and never after the next call.
	Targets func() []Target
	// Sink is told what polls bring.
	Sink Sink
	// Client makes the calls, with the host's TLS, headers (by its Transport) and proxies. It is copied, and its
	// CheckRedirect is asked after the poller's own rules. It should keep an idle connection for every endpoint, or each
	// poll opens a new one; http.DefaultClient keeps 100. nil = a client of the poller's own: HTTP/1.1, no proxy,
	// connections kept open between polls and closed when Run returns.
	Client *http.Client
	// Parse reads a document that was requested at the given time. It cannot read more than MaxBytes of it. A panic in
	// it fails the poll. nil = package engine, by Target.Engine and with engine.Lives, so that restarts show.
	Parse func(body io.Reader, at time.Time) (telemetry.Snapshot, error)
	// Now is the clock of observation times and statistics, the same as the sink's; nil = time.Now. Polls are scheduled
	// by the runtime's own timers.
	Now func() time.Time

	// Every is the time from the start of one poll of an endpoint to the start of the next, 1 ms to 24 h. Default 500 ms:
	// half of the time in which a router's readings lose most of their weight.
	Every time.Duration
	// Timeout bounds a whole poll, from dialling to the end of the body, up to 24 h. It may be greater than Every: an
	// endpoint is polled once at a time. Default 2 s: a later answer would not be fresh any more.
	Timeout time.Duration
	// MaxBackoff bounds the wait after a failed poll, at least Every and up to 24 h. The wait is Every after the first
	// failure in a row and twice as long after each further one. Default 10 s, or Every if that is greater; None = always
	// Every.
	MaxBackoff time.Duration
	// Jitter is the share of Every by which each wait is drawn longer or shorter, up to 0.5; waits after failures only
	// become shorter. The first poll of an endpoint comes within that share of Every, and the second between half and one
	// and a half of Every after it, so that endpoints which began together spread out at once. Default 0.1; None = no
	// chance at all.
	Jitter float64
	// Seed of the draws. Each endpoint has draws of its own, by ID and Incarnation.
	Seed uint64
	// MaxConcurrent is the greatest number of polls under way. Those over it wait in the order in which they are due;
	// endpoints that failed last time get half of the places at most (and one at least), so that dead ones cannot hold
	// up the others. 0 = no bound: no endpoint ever waits for another.
	MaxConcurrent int
	// MaxBytes is the greatest size of a document, compressed or not, in bytes. Default 8 MiB.
	MaxBytes int64
	// MaxRedirects is the number of redirects that a poll follows, up to 10. One to another host or port, or from https to
	// http, is never followed: the figures would be somebody else's, and the host's headers in the wrong hands. Default 3;
	// None = none.
	MaxRedirects int
}

// WithDefaults returns the configuration in effect. What stands for zero is None, so that the result means the same when
// it is used as a configuration again. Nil functions but Now stay nil.
func (c Config) WithDefaults() Config {
	if c.Now == nil {
		c.Now = time.Now
	}
	orDefault(&c.Every, DefaultEvery)
	orDefault(&c.Timeout, DefaultTimeout)
	orDefault(&c.MaxBackoff, max(DefaultMaxBackoff, c.Every))
	orDefault(&c.Jitter, DefaultJitter)
	orDefault(&c.MaxBytes, DefaultMaxBytes)
	orDefault(&c.MaxRedirects, DefaultMaxRedirects)
	return c
}

// orDefault fills in a default, and None for what stands for zero.
func orDefault[T int | int64 | float64 | time.Duration](v *T, def T) {
	switch {
	case *v == 0:
		*v = def
	case *v < 0:
		*v = None
	}
}

// Validate reports every fault of the configuration, all of them joined.
func (c Config) Validate() error {
	var faults []error
	bad := func(field string, value any, want string) {
		faults = append(faults, fmt.Errorf("scrape: Config.%s = %v %s", field, value, want))
	}
	if c.Targets == nil {
		bad("Targets", "nil", "is required")
	}
	if c.Sink == nil {
		bad("Sink", "nil", "is required")
	}
	switch {
	case c.Every < 0 || c.Every > 0 && c.Every < minEvery:
		bad("Every", c.Every, fmt.Sprintf("is below %v", minEvery))
	case c.Every > maxDuration:
		bad("Every", c.Every, fmt.Sprintf("is above %v", maxDuration))
	}
	switch {
	case c.Timeout < 0:
		bad("Timeout", c.Timeout, "is negative")
	case c.Timeout > maxDuration:
		bad("Timeout", c.Timeout, fmt.Sprintf("is above %v", maxDuration))
	}
	every := c.Every
	orDefault(&every, DefaultEvery)
	switch {
	case c.MaxBackoff > 0 && c.MaxBackoff < every:
		bad("MaxBackoff", c.MaxBackoff, fmt.Sprintf("is below Every = %v", every))
	case c.MaxBackoff > maxDuration:
		bad("MaxBackoff", c.MaxBackoff, fmt.Sprintf("is above %v", maxDuration))
	}
	if c.Jitter > maxJitter || math.IsNaN(c.Jitter) {
		bad("Jitter", c.Jitter, fmt.Sprintf("is not a share up to %v", maxJitter))
	}
	if c.MaxConcurrent < 0 {
		bad("MaxConcurrent", c.MaxConcurrent, "is negative")
	}
	if c.MaxBytes < 0 {
		bad("MaxBytes", c.MaxBytes, "is negative")
	}
	if c.MaxRedirects > maxRedirects {
		bad("MaxRedirects", c.MaxRedirects, fmt.Sprintf("is above %d", maxRedirects))
	}
	return errors.Join(faults...)
}
