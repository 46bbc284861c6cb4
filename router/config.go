package router

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// None is what a duration, a count or a ratio of Config is set to where zero itself is meant, since the zero value stands for
// the default: any negative value means zero.
const None = -1

// Config configures a pool. The zero value is usable: the pressure policy with the defaults named at each field. A
// negative duration, count or ratio means zero (see [None]) unless its field says otherwise. A Config is a plain value;
// [Pool.Config] returns the one in effect, with every default filled in.
type Config struct {
	// Policy chooses among the candidates; nil = Pressure().
	Policy Policy
	// Shadow is a second policy that sees the same view at every decision; its choice is recorded and has no effect. nil =
	// none.
	Shadow Policy
	// ShadowBudget bounds the time the shadow policy may take of a decision: when a call takes longer, the following
	// decisions go without it until a hundred times the excess has passed. Default 1 ms.
	ShadowBudget time.Duration
	// Seed of the random choices among equals. Two pools with one seed and the same calls make the same choices: give gateways
	// before the same engines different seeds.
	Seed uint64
	// Now is the pool's clock, never the zero time; nil = time.Now. Called in each Score, Reserve, Observe and lease event,
	// possibly from several goroutines at once.
	Now func() time.Time

	// Replicas is the number R of gateways in front of the same engines, this one included. What this one has sent and the engines have
	// not reported yet is counted R times. Where readings are old or missing, the load of all gateways at an endpoint is taken to be
	// own + (R-1) (own/R + (1-1/R) mean of own over the endpoints): of 4 gateways, with 6 requests of its own here and 2 at the only
	// other endpoint, 6 + 3 (1.5 + 3) = 19.5. Default 1.
	Replicas int
	// VisibilityLag is the time from a dispatch to its appearance in the engine's figures. Default 50 ms.
	VisibilityLag time.Duration
	// TieWindow is how much worse than the best a candidate may be and still be drawn by lot, as a difference of total
	// costs. Default 1 ms.
	TieWindow time.Duration
	// DefaultOutputTokens is the expected output of a request that names neither an expectation nor a maximum. Default
	// 256.
	DefaultOutputTokens int64
	// MeanPromptTokens is what a waiting request is taken to have to prefill where an engine reports only a count, until
	// the pool has learned a mean of the uncached prompts of its own traffic. Default 1024.
	MeanPromptTokens int64
	// UnobservedMax is the number of leases without a first token that an endpoint which has never reported may hold beside peers that
	// have. Default 4.
	UnobservedMax int
	// FrozenAfter is the number of observations after which unmoving readings are not believed any more. Default 10; None =
	// they always are.
	FrozenAfter int
	// ProbeAfter is how long a suspect endpoint (frozen readings) goes without traffic before one request is sent there
	// to see, priced as if it were free. Default 30 s.
	ProbeAfter time.Duration
	// FailClosed rejects with ErrTelemetryIncomplete where no candidate has usable telemetry, instead of going on with
	// the ledger alone. Default off.
	FailClosed bool

	// Freshness are the ages up to which readings count.
	Freshness Freshness
	// Bounds are the pressure bounds on affinity.
	Bounds Bounds
	// Caps are the hard limits. Never do they let too many through; where a report cannot tell they may let through too few until the next:
	// a request that was sent less than VisibilityLag before a report is counted beside the report, which may contain it, and when it ends
	// the report still counts what it contained.
	Caps admission.Caps
	// Limit learns how many requests each endpoint should have at once; off by default.
	Limit Limit
	// Seeds says what is still admitted while requests wait on engines; off by default.
	Seeds admission.SeedConfig
	// Shares keeps parts of the capacity for the more important classes; none by default.
	Shares Shares
	// Queue lets requests wait for room in front of the pool; off by default.
	Queue Queue
	// Circuit is the circuit breaker of each endpoint.
	Circuit Circuit
	// Weights are the coefficients of the cost terms that are not physics.
	Weights score.Weights
	// Prefix configures the prefix index.
	Prefix Prefix
	// Receipts says which decisions are recorded and who is told.
	Receipts Receipts
}

// Freshness are the limits by which a reading's age is judged. The load readings of an endpoint that reports regularly, but seldom, are
// fresh for two and a half of its gaps and stale after five, where that is more than FreshFor and StaleAfter: one report may get lost.
// The gap is the median of the last three; as long as there are fewer, the longest of them and of [telemetry.Snapshot] Interval. Gaps
// above 30 s count as that. A Freshness is a plain value.
type Freshness struct {
	// FreshFor is the age up to which a reading is Fresh. Default 2 s.
	FreshFor time.Duration
	// StaleAfter is the age from which a reading is Stale; between the two it is Aging. Default 10 s.
	StaleAfter time.Duration
	// Decay is tau of the weight exp(-age/tau) that a reading has beside the pool's own ledger. Default 1 s; None = a reading
	// keeps its full weight until it is stale.
	Decay time.Duration
}

// Bounds are the limits of pressure inside which a warm prefix counts. Outside any of them the candidate competes on its
// cold cost, with the reason in the receipt; when every candidate is outside, affinity counts for all again. Beside a candidate with
// fresh readings, those of others must be fresh, too; where nobody's are, affinity counts for those whose
// readings are the freshest.
// A Bounds is a plain value.
type Bounds struct {
	// MaxWaiting is the number of waiting requests, reported and just sent, up to which affinity counts. Default 128: how long they
	// take, which the two bounds on time look at, is no matter of their number.
	MaxWaiting int
	// MaxKV is the projected share of KV memory, the request included, up to which affinity counts. Default 0.95.
	MaxKV float64
	// MaxQueueDelay is the predicted time of the pending prefill up to which affinity counts. Default 10 s.
	MaxQueueDelay time.Duration
	// MaxLead is how much longer its queue may be than the best alternative's. Default 5 s.
	MaxLead time.Duration
	// GiveUp bounds what a request may give up of its own completion for the benefit of others.
	GiveUp GiveUp
}

// GiveUp is a bound of the form best*(1+Ratio) + Extra: a candidate whose own predicted completion is worse than that
// cannot win. The zero value is the default, 0.5 and 500 ms; where one part is set, the other is taken as it is. With both
// negative, which means zero, the choice is greedy. A GiveUp is a plain value.
type GiveUp struct {
	Ratio float64
	Extra time.Duration
}

// Limit is the adaptive limit of requests on each endpoint: the number beyond which more of them raise the time per token and hardly
// the tokens per second. It holds beside Caps.Endpoint. What it learns from are the tokens of the pool's own requests, so that
// the host must call [Lease.Progress] or say in [Usage] what was generated. A Limit is a plain value.
type Limit struct {
	// Adaptive switches it on.
	Adaptive bool
	// Learn says how; with its ObserveOnly nothing is limited, and [EndpointStats] shows what would have been.
	Learn admission.LimitConfig
}

// Shares are the parts of the capacity that are kept free for a class while it has been in use lately: less important ones are not
// admitted into it. A class that nobody uses keeps nothing. Capacity is what the caps allow in requests (Caps.Aggregate, else
// Caps.Endpoint by the number of endpoints), and KV memory in tokens, of which a request takes its prompt and its
// expected output; what has no limit has no shares. Each gateway keeps its part of both, by Replicas. Each part is 0 to 1, and their
// sum at most 1. A Shares is a plain value.
type Shares struct {
	// System is the part of the class system, and so on; [ClassSheddable] has none.
	System      float64
	Interactive float64
	Standard    float64
	Batch       float64
	// Memory is the time in which the peak of a class's past use decays to 1/e. Default 60 s; there is no None.
	Memory time.Duration
}

// Queue configures the queue in front of the pool. A request that finds no room waits there: more important classes go first,
// within a class tenants share by tokens, and within a tenant the first come goes first, of those that fit somewhere. What
// [ClassSheddable] sends never waits. A Queue is a plain value; its functions are called from many goroutines.
type Queue struct {
	// Max is the number of waiting requests; 0 = no queue, at most [admission.MaxWaiters]. When it is full, a newcomer
	// displaces the youngest of a less important class, or of a tenant that holds more of the queue than its own would.
	Max int
	// MaxTokens is the sum of their prompts and expected outputs, tokens; 0 = no limit.
	MaxTokens int64
	// Timeout is how long a request waits at most. Default 30 s; there is no None, here or below.
	Timeout time.Duration
	// AgeAfter is the wait after which a request of a less important class gets one of AgedEvery grants before its turn, unless
	// a more important one would then miss its deadline. Default 10 s.
	AgeAfter time.Duration
	// AgedEvery is described at AgeAfter. Default 8.
	AgedEvery int
	// WaitForEndpoints lets requests wait, too, while no endpoint can serve them. Default off: they are rejected.
	WaitForEndpoints bool
	// Weight is the part of a tenant relative to that of others in its class, 1e-6 to 1e6; what is outside counts as the
	// nearer bound, and NaN as the lower. Called outside every lock, for each request that may have to wait; a panic is the
	// caller's of Reserve, who leaves nothing behind. nil = 1 for all.
	Weight func(tenant string) float64
	// Timer makes the timers of waiting callers, for a Config.Now of another speed than time.Now's; nil = time.NewTimer. What is
	// said of a panic of Weight holds for it, too. Where Now
	// moves by hand, use [Pool.Enqueue] and [Pool.Tick] instead.
	Timer func(time.Duration) *time.Timer
}

// Circuit configures the circuit breaker of each endpoint. Cancellations never count, and neither does what was dispatched before a
// restart of the engine: when telemetry shows one, an open circuit lets a probe through at once. Requests that were under way when one
// failed, and fail within 100 ms after it, before another succeeds, count as that one: a process that dies takes all it serves along.
// With each opening the adapters and prefixes that the endpoint was taken to hold are forgotten, the latter unless its own events tell
// them. A Circuit is a plain value.
type Circuit struct {
	// Failures in a row that open it. Default 5.
	Failures int
	// Window is the number of newest outcomes of which half must have failed to open it too. Default 20, at most 64.
	Window int
	// OpenFor is how long it stays open before one probe is let through; doubled by each probe that fails. Default 500 ms.
	OpenFor time.Duration
	// MaxOpenFor bounds the doubling. Default 60 s.
	MaxOpenFor time.Duration
}

// Prefix configures the index of who holds which prefix. A Prefix is a plain value.
type Prefix struct {
	// MaxBytes bounds the memory of the index, at least 64 KiB. Default 256 MiB; there is no None.
	MaxBytes int64
}

// Receipts says which decisions are recorded. A Receipts is a plain value; its Observer is called from many goroutines.
type Receipts struct {
	// Sample is the share of requests whose receipt is made, 0 to 1, drawn before scoring. 0 = all when there is an
	// Observer, else none; negative = none.
	Sample float64
	// Observer is told of sampled decisions and their outcomes; nil = nobody.
	Observer Observer
}

// orDefault fills in a default and leaves what stands for zero at None.
func orDefault[T int | int64 | float64 | time.Duration](v *T, def T) {
	switch {
	case *v == 0:
		*v = def
	case *v < 0:
		*v = None
	}
}

// WithDefaults returns the configuration in effect: defaults for zero values. What stands for zero is None, so that the result
// means the same when it is used as a configuration again.
func (c Config) WithDefaults() Config {
	if c.Policy == nil {
		c.Policy = Pressure()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	orDefault(&c.ShadowBudget, time.Millisecond)
	orDefault(&c.Replicas, 1)
	c.Replicas = max(c.Replicas, 1)
	orDefault(&c.VisibilityLag, 50*time.Millisecond)
	orDefault(&c.TieWindow, time.Millisecond)
	orDefault(&c.DefaultOutputTokens, 256)
	orDefault(&c.MeanPromptTokens, 1024)
	orDefault(&c.UnobservedMax, 4)
	orDefault(&c.FrozenAfter, 10)
	orDefault(&c.ProbeAfter, 30*time.Second)
	orDefault(&c.Freshness.FreshFor, 2*time.Second)
	orDefault(&c.Freshness.StaleAfter, 10*time.Second)
	orDefault(&c.Freshness.Decay, time.Second)
	orDefault(&c.Bounds.MaxWaiting, 128)
	orDefault(&c.Bounds.MaxKV, 0.95)
	orDefault(&c.Bounds.MaxQueueDelay, 10*time.Second)
	orDefault(&c.Bounds.MaxLead, 5*time.Second)
	if c.Bounds.GiveUp == (GiveUp{}) {
		c.Bounds.GiveUp = GiveUp{Ratio: 0.5, Extra: 500 * time.Millisecond}
	}
	orDefault(&c.Circuit.Failures, 5)
	orDefault(&c.Circuit.Window, 20)
	orDefault(&c.Circuit.OpenFor, 500*time.Millisecond)
	orDefault(&c.Circuit.MaxOpenFor, 60*time.Second)
	if c.Prefix.MaxBytes == 0 {
		c.Prefix.MaxBytes = prefix.DefaultMaxBytes
	}
	if c.Receipts.Sample == 0 && c.Receipts.Observer != nil {
		c.Receipts.Sample = 1
	}
	c.Weights = c.Weights.WithDefaults()
	if c.Limit.Adaptive {
		c.Limit.Learn = c.Limit.Learn.WithDefaults()
	}
	if c.Seeds.Max > 0 {
		c.Seeds = c.Seeds.WithDefaults()
	}
	if c.Shares.on() {
		c.Shares.Memory = c.Shares.admission().WithDefaults().Memory
	}
	if c.Queue.Max > 0 {
		d := c.Queue.admission().WithDefaults()
		c.Queue.Timeout, c.Queue.AgeAfter, c.Queue.AgedEvery = d.Timeout, d.AgeAfter, d.AgedEvery
	}
	return c
}

// resolved is WithDefaults with None replaced by the zero that it stands for, for the pool's own use.
func (c Config) resolved() Config {
	c = c.WithDefaults()
	for _, v := range []*time.Duration{
		&c.ShadowBudget, &c.VisibilityLag, &c.TieWindow, &c.ProbeAfter, &c.Freshness.FreshFor, &c.Freshness.StaleAfter, &c.Freshness.Decay,
		&c.Bounds.MaxQueueDelay, &c.Bounds.MaxLead, &c.Bounds.GiveUp.Extra, &c.Circuit.OpenFor, &c.Circuit.MaxOpenFor,
	} {
		*v = max(*v, 0)
	}
	for _, v := range []*int{&c.UnobservedMax, &c.FrozenAfter, &c.Bounds.MaxWaiting, &c.Circuit.Failures, &c.Circuit.Window} {
		*v = max(*v, 0)
	}
	for _, v := range []*int64{&c.DefaultOutputTokens, &c.MeanPromptTokens} {
		*v = max(*v, 0)
	}
	for _, v := range []*float64{&c.Bounds.MaxKV, &c.Bounds.GiveUp.Ratio, &c.Receipts.Sample} {
		*v = max(*v, 0)
	}
	return c
}

// Validate reports every fault of the configuration, all of them joined.
func (c Config) Validate() error {
	var faults []error
	bad := func(field string, value any, want string) {
		faults = append(faults, fmt.Errorf("router: Config.%s = %v %s", field, value, want))
	}
	d := c.resolved()
	if d.Freshness.StaleAfter < d.Freshness.FreshFor {
		bad("Freshness.StaleAfter", d.Freshness.StaleAfter, fmt.Sprintf("is below Freshness.FreshFor = %v", d.Freshness.FreshFor))
	}
	type figure struct {
		name  string
		value float64
	}
	weights := []figure{
		{"Weights.Interference", c.Weights.Interference}, {"Weights.Displacement", c.Weights.Displacement},
		{"Weights.Wait", c.Weights.Wait}, {"Weights.KVPressure", c.Weights.KVPressure}, {"Weights.Uncertainty", c.Weights.Uncertainty},
	}
	for _, f := range append([]figure{
		{"Bounds.MaxKV", c.Bounds.MaxKV}, {"Bounds.GiveUp.Ratio", c.Bounds.GiveUp.Ratio}, {"Receipts.Sample", c.Receipts.Sample},
	}, weights...) {
		if math.IsNaN(f.value) || math.IsInf(f.value, 0) {
			bad(f.name, f.value, "is not a finite number")
		}
	}
	for _, f := range weights {
		if f.value > score.MaxWeight {
			bad(f.name, f.value, fmt.Sprintf("is above %g", score.MaxWeight))
		}
	}
	if c.Receipts.Sample > 1 {
		bad("Receipts.Sample", c.Receipts.Sample, "is above 1")
	}
	if c.Circuit.Window > 64 {
		bad("Circuit.Window", c.Circuit.Window, "is above 64")
	}
	if d.Circuit.MaxOpenFor < d.Circuit.OpenFor {
		bad("Circuit.MaxOpenFor", d.Circuit.MaxOpenFor, fmt.Sprintf("is below Circuit.OpenFor = %v", d.Circuit.OpenFor))
	}
	if err := (prefix.Config{MaxBytes: c.Prefix.MaxBytes}).Validate(); err != nil {
		faults = append(faults, fmt.Errorf("router: Config.Prefix: %w", err))
	}
	if err := c.Caps.Validate(); err != nil {
		faults = append(faults, fmt.Errorf("router: Config.Caps: %w", err))
	}
	if err := c.Limit.Learn.Validate(); err != nil {
		faults = append(faults, fmt.Errorf("router: Config.Limit: %w", err))
	}
	if err := c.Seeds.Validate(); err != nil {
		faults = append(faults, fmt.Errorf("router: Config.Seeds: %w", err))
	}
	if err := c.Shares.admission().Validate(); err != nil {
		faults = append(faults, fmt.Errorf("router: Config.Shares: %w", err))
	}
	if err := c.Queue.admission().Validate(); err != nil {
		faults = append(faults, fmt.Errorf("router: Config.Queue: %w", err))
	}
	return errors.Join(faults...)
}

// ranks is the number of classes, and rank the place of each, the most important first.
const ranks = len(classNames)

func (c Class) rank() int {
	switch c {
	case ClassSystem:
		return 0
	case ClassInteractive:
		return 1
	case ClassBatch:
		return 3
	case ClassSheddable:
		return 4
	}
	return 2
}

func (s Shares) admission() admission.SharesConfig {
	c := admission.SharesConfig{Memory: s.Memory}
	c.Reserve[ClassSystem.rank()], c.Reserve[ClassInteractive.rank()] = s.System, s.Interactive
	c.Reserve[ClassStandard.rank()], c.Reserve[ClassBatch.rank()] = s.Standard, s.Batch
	return c
}

// on says that anything is kept for anybody.
func (s Shares) on() bool { return s.System+s.Interactive+s.Standard+s.Batch > 0 }

func (q Queue) admission() admission.QueueConfig {
	return admission.QueueConfig{
		Max: q.Max, MaxTokens: q.MaxTokens, Timeout: q.Timeout, AgeAfter: q.AgeAfter, AgedEvery: q.AgedEvery, Classes: ranks,
	}
}

// limits are the freshness limits as package telemetry takes them, where zero stands for a default.
func (c *Config) limits() telemetry.Limits {
	return telemetry.Limits{FreshFor: max(c.Freshness.FreshFor, 1), StaleAfter: max(c.Freshness.StaleAfter, 1)}
}

// frozenAfter is the limit as package telemetry takes it, where a negative one means never.
func (c *Config) frozenAfter() int {
	if c.FrozenAfter == 0 {
		return -1
	}
	return c.FrozenAfter
}
