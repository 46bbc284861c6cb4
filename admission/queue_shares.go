package admission

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// goneBelow is the decayed peak, in requests, below which nobody of a class has been around lately.
const goneBelow = 0.5

// SharesConfig sets which part of the capacity is kept for which class. The zero value keeps nothing. A SharesConfig is
// a plain value; any number of goroutines may read it.
type SharesConfig struct {
	// Reserve is, by rank, the part of the capacity kept for the class against those below it, 0 to 1, with a sum of at
	// most 1. Of requests whole ones are kept, rounded down: a part worth less than one request keeps none.
	Reserve [MaxClasses]float64
	// Memory is the time in which the peak of a class's past demand decays to 1/e. Default 60 s; 0 is the default.
	Memory time.Duration
}

// Validate reports every field out of its range, all of them joined.
func (c SharesConfig) Validate() error {
	var faults []error
	sum := 0.0
	for rank, part := range c.Reserve {
		if !(part >= 0 && part <= 1) {
			faults = append(faults, fmt.Errorf("admission: SharesConfig.Reserve[%d] = %v must be 0 to 1", rank, part))
		}
		sum += part
	}
	if sum > 1+1e-9 {
		faults = append(faults, fmt.Errorf("admission: sum of SharesConfig.Reserve = %v must be at most 1", sum))
	}
	if c.Memory < 0 {
		faults = append(faults, fmt.Errorf("admission: SharesConfig.Memory = %v must be at least 0", c.Memory))
	}
	return errors.Join(faults...)
}

// WithDefaults returns the settings in effect: defaults for zero values.
func (c SharesConfig) WithDefaults() SharesConfig {
	orElse(&c.Memory, time.Minute)
	return c
}

// Amount is a number of requests and of tokens. It is a plain value; any number of goroutines may read it.
type Amount struct {
	// Requests is a number of requests, whatever their size.
	Requests int
	// Tokens is the sum of their costs.
	Tokens int64
}

// Shares keeps part of a capacity free for the more important classes, so that long work of a lower class cannot take
// what they need a moment later. What is kept for a class follows its recent use: it is the decayed peak of what the
// class held and waited for, at most its part of the capacity, and nothing once that peak is below half a request, so
// that no capacity idles for a class that is not around. Times are nanoseconds on the caller's scale; one before another
// handed in earlier to Take, Give or SetWaiting counts as that one. NewShares makes a Shares. It has no lock: one
// goroutine at a time may use it.
type Shares struct {
	cfg     SharesConfig
	now     int64
	held    Amount
	classes [MaxClasses]shareClass
}

type shareClass struct {
	held, waiting Amount
	// The peak of held + waiting, decayed up to at.
	requests, tokens float64
	at               int64
}

// NewShares returns Shares of which nothing is held, or the faults of the configuration.
func NewShares(cfg SharesConfig) (*Shares, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Shares{cfg: cfg.WithDefaults(), now: math.MinInt64}, nil
}

// Config returns the configuration with its defaults filled in.
func (s *Shares) Config() SharesConfig { return s.cfg }

// Admits says whether one more request of that rank and cost, in tokens, fits: together with all that is held, within
// the capacity less the unused reserves of the classes above its own. Each capacity is of the whole; 0 is no limit. A
// rank outside 0 to MaxClasses-1 and a cost outside 1 to MaxCost do not fit. Nothing changes.
func (s *Shares) Admits(rank int, cost int64, capacity Amount, now int64) bool {
	if checkShare(rank, cost) != nil {
		return false
	}
	var kept Amount
	for r := range rank {
		reserved, held := s.Reserved(r, capacity, now), s.classes[r].held
		kept.Requests += max(0, reserved.Requests-held.Requests)
		kept.Tokens += max(0, reserved.Tokens-held.Tokens)
	}
	return (capacity.Requests == 0 || s.held.Requests < capacity.Requests-kept.Requests) &&
		(capacity.Tokens == 0 || cost <= capacity.Tokens-kept.Tokens-s.held.Tokens)
}

// Reserved returns what is kept of the capacity for the class at the moment, whether it holds it already or not: nothing
// of an unlimited one, and nothing for a rank out of range.
func (s *Shares) Reserved(rank int, capacity Amount, now int64) Amount {
	if rank < 0 || rank >= MaxClasses || s.cfg.Reserve[rank] == 0 {
		return Amount{}
	}
	requests, tokens := s.peak(rank, max(now, s.now))
	if requests < goneBelow {
		return Amount{}
	}
	part := func(capacity, peak float64) float64 {
		// 1e-9: a part of exactly so many requests must not lose one to rounding.
		return math.Floor(math.Min(s.cfg.Reserve[rank]*max(0, capacity)+1e-9, peak))
	}
	return Amount{
		Requests: int(part(float64(capacity.Requests), math.Round(requests))),
		Tokens:   int64(part(float64(capacity.Tokens), tokens)),
	}
}

// Held returns what is held of the class; nothing of one out of range.
func (s *Shares) Held(rank int) Amount {
	if rank < 0 || rank >= MaxClasses {
		return Amount{}
	}
	return s.classes[rank].held
}

// Total returns what is held of all classes.
func (s *Shares) Total() Amount { return s.held }

// Take notes that one request of that rank and cost, in tokens, is held now, whether or not Admits would admit it. An
// error names the argument out of its range, and nothing has changed.
func (s *Shares) Take(rank int, cost, now int64) error {
	if err := checkShare(rank, cost); err != nil {
		return err
	}
	if s.held.Tokens > math.MaxInt64-cost {
		return fmt.Errorf("admission: cost = %d exceeds what can be counted beside the %d tokens held", cost, s.held.Tokens)
	}
	s.change(rank, now, func(c *shareClass) {
		c.held.Requests++
		c.held.Tokens += cost
	})
	s.held.Requests++
	s.held.Tokens += cost
	return nil
}

// Give notes that one request of that rank and cost, as taken, has ended. An error says that no such request is held,
// and nothing has changed.
func (s *Shares) Give(rank int, cost, now int64) error {
	if err := checkShare(rank, cost); err != nil {
		return err
	}
	held := s.classes[rank].held
	// Every request held costs at least one token, so that what stays must be worth that much.
	left := held.Tokens - cost
	if held.Requests < 1 || left < int64(held.Requests-1) || held.Requests == 1 && left != 0 {
		return fmt.Errorf("admission: cost = %d of rank %d is not held: %d requests of %d tokens are", cost, rank, held.Requests, held.Tokens)
	}
	s.change(rank, now, func(c *shareClass) {
		c.held.Requests--
		c.held.Tokens = left
	})
	s.held.Requests--
	s.held.Tokens -= cost
	return nil
}

// SetWaiting notes how much of the class waits now: it counts as demand. An error names the argument out of its range,
// and nothing has changed.
func (s *Shares) SetWaiting(rank int, waiting Amount, now int64) error {
	switch {
	case rank < 0 || rank >= MaxClasses:
		return fmt.Errorf("admission: rank = %d must be 0 to %d", rank, MaxClasses-1)
	case waiting.Requests < 0:
		return fmt.Errorf("admission: Amount.Requests = %d must be at least 0", waiting.Requests)
	case waiting.Tokens < 0:
		return fmt.Errorf("admission: Amount.Tokens = %d must be at least 0", waiting.Tokens)
	}
	s.change(rank, now, func(c *shareClass) { c.waiting = waiting })
	return nil
}

// change takes the peak both before the change, as the demand lasted until now, and after it.
func (s *Shares) change(rank int, now int64, change func(*shareClass)) {
	s.now = max(s.now, now)
	c := &s.classes[rank]
	c.requests, c.tokens = s.peak(rank, s.now)
	change(c)
	c.at = s.now
	c.requests, c.tokens = s.peak(rank, s.now)
}

func (s *Shares) peak(rank int, now int64) (requests, tokens float64) {
	c := &s.classes[rank]
	requests = float64(c.held.Requests) + float64(c.waiting.Requests)
	tokens = float64(c.held.Tokens) + float64(c.waiting.Tokens)
	if c.requests > 0 || c.tokens > 0 {
		decay := math.Exp(-(float64(now) - float64(c.at)) / float64(s.cfg.Memory))
		requests, tokens = max(requests, c.requests*decay), max(tokens, c.tokens*decay)
	}
	return requests, tokens
}

func checkShare(rank int, cost int64) error {
	if rank < 0 || rank >= MaxClasses {
		return fmt.Errorf("admission: rank = %d must be 0 to %d", rank, MaxClasses-1)
	}
	if cost < 1 || cost > MaxCost {
		return fmt.Errorf("admission: cost = %d must be 1 to %d", cost, int64(MaxCost))
	}
	return nil
}
