package admission

import "math"

// SeedFacts are what a [SeedSurvey] wants to know of one endpoint. It is a plain value.
type SeedFacts struct {
	// Waiting is the number of waiting requests by the engine's last report, without what was sent since; what was sent
	// since counts in BelowCap. Known says that there is one, not too old to be used.
	Waiting float64
	Known   bool
	// Fresh says that the load readings are fresh, Complete that none of those is missing that the caller wants of an idle
	// engine: running, waiting and KV memory.
	Fresh, Complete bool
	// BelowCap says that one more request keeps the caps of this endpoint.
	BelowCap bool
}

// SeedSurvey finds, in one pass over the endpoints of a pool, whether admission is ordinary and which endpoints may be
// seeded. The router makes one with [SeedConfig.Survey] for each decision, calls Add for each endpoint whose load the pool
// answers for (so not for one that is draining, asleep or not part of it) and then Result. It is a plain value of the
// goroutine that makes it, and allocates nothing.
type SeedSurvey struct {
	on         bool
	incomplete bool
	candidates int
	waiting    float64
	allowance  float64
}

// Survey returns a survey by c of no endpoints yet. With seeding off its result is always SeedsOrdinary.
func (c SeedConfig) Survey() SeedSurvey { return SeedSurvey{on: c.Max > 0, allowance: c.Allowance} }

// Add takes up one endpoint. It returns whether the endpoint could take a seed: observed freshly and completely, nothing
// waiting and below its cap. That counts only if Result is SeedsOnly.
//
// A Waiting that is not a number of requests (NaN, infinite, negative) is unknown.
func (s *SeedSurvey) Add(f SeedFacts) bool {
	known := f.Known && f.Waiting >= 0 && !math.IsInf(f.Waiting, 1)
	if known {
		s.waiting += f.Waiting
	}
	if !known || !f.Fresh || !f.Complete {
		s.incomplete = true
		return false
	}
	if f.Waiting > 0 || !f.BelowCap {
		return false
	}
	s.candidates++
	return true
}

// Waiting returns the number of requests known to wait, over all endpoints added.
func (s *SeedSurvey) Waiting() float64 { return s.waiting }

// Result says what may be admitted. atAggregate tells that the pool as a whole takes no more, by its aggregate cap.
//
// Where there are several reasons to refuse, the first of them in the order of the constants is given: the aggregate is
// reached whatever the unknown engines hold, and an unknown engine may be the idle one.
func (s *SeedSurvey) Result(atAggregate bool) SeedsAllowed {
	switch {
	case !s.on || s.waiting <= s.allowance:
		return SeedsOrdinary
	case atAggregate:
		return SeedsAggregate
	case s.incomplete:
		return SeedsIncomplete
	case s.candidates == 0:
		return SeedsSaturated
	}
	return SeedsOnly
}

// SeedsAllowed is the result of a [SeedSurvey]. The zero value leaves admission as it is.
type SeedsAllowed uint8

// The results of a survey; from SeedsAggregate on nothing is admitted.
const (
	// SeedsOrdinary: seeding is off, or no more wait than is allowed.
	SeedsOrdinary SeedsAllowed = iota
	// SeedsOnly: nothing is admitted but seeds, on the endpoints for which Add said so.
	SeedsOnly
	// SeedsAggregate: the pool as a whole takes no more.
	SeedsAggregate
	// SeedsIncomplete: an endpoint's telemetry is missing, old or lacks a figure, so that what the pool holds is not known.
	SeedsIncomplete
	// SeedsSaturated: on every endpoint requests wait, or it is at its cap.
	SeedsSaturated
)

// String returns the name used in logs and receipts.
func (a SeedsAllowed) String() string {
	switch a {
	case SeedsOrdinary:
		return "ordinary"
	case SeedsOnly:
		return "seeds-only"
	case SeedsAggregate:
		return "aggregate"
	case SeedsIncomplete:
		return "telemetry-incomplete"
	case SeedsSaturated:
		return "saturated"
	}
	return "unknown"
}
