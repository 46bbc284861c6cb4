package admission

import (
	"errors"
	"fmt"
	"math"
)

const (
	defaultLimitMin    = 8
	defaultLimitMax    = 256
	defaultLimitGain   = 0.2
	defaultLimitBlock  = 8
	defaultLimitMemory = 240

	maxLimit       = 1 << 20
	maxLimitBlock  = 1 << 10
	maxLimitMemory = 1 << 20
)

// LimitConfig holds the settings of a [Limiter]. The zero value is usable. It is a plain value: copies are independent and
// may be used by any goroutine.
type LimitConfig struct {
	// Min and Max bound the limit, in running requests. Min is 1 or more, 0 = 8 (or Max if that is less), below which no
	// usual engine is near its throughput. Max is at most 2^20 and not below Min, 0 = 256 (or Min if that is more), the usual
	// bound of an engine itself.
	Min, Max int
	// Start is the first limit, from Min to Max; the limit takes the next lower of its levels. 0 = Max: what is not known
	// is not limited.
	Start int
	// Gain is the least share by which throughput must rise per share of requests added, for the addition to be worth it:
	// at 0.2, a quarter more requests must bring 4.6 % more tokens. Above 0 and below 1; 0 = 0.2, which is where a smooth
	// curve has 80 % of what it can ever reach. At 0.5 the limit is where throughput divided by time per token is highest,
	// at half of it.
	Gain float64
	// Block is the number of observations whose mean is compared with another's, 2 to 1024. 0 = 8: noise of 10 % in each
	// observation then lets one comparison of two levels tell a gain of 0 from one of 0.2 with 90 % confidence.
	Block int
	// Memory is the number of usable observations in which what was learned loses two thirds of its weight, and after
	// which a level is tried again. Block to 2^20; 0 = 240, or 4 x Block if that is more.
	Memory int
	// ObserveOnly leaves the limit at Max and records what would have been done, from whatever the load itself varies:
	// nothing is tried.
	ObserveOnly bool
}

// Validate returns nil or all faults of c joined, each naming the field and its value.
func (c LimitConfig) Validate() error {
	var faults []error
	fault := func(ok bool, name string, value any, must string) {
		if !ok {
			faults = append(faults, fmt.Errorf("admission: LimitConfig.%s = %v must be %s", name, value, must))
		}
	}
	d := c.WithDefaults()
	fault(c.Min >= 0, "Min", c.Min, "at least 0")
	fault(c.Max >= 0 && c.Max <= maxLimit, "Max", c.Max, "from 0 to 1048576")
	fault(d.Min <= d.Max, "Min", d.Min, fmt.Sprintf("at most Max = %d", d.Max))
	fault(d.Start >= d.Min && d.Start <= d.Max, "Start", c.Start, fmt.Sprintf("0 or from Min = %d to Max = %d", d.Min, d.Max))
	fault(d.Gain > 0 && d.Gain < 1, "Gain", c.Gain, "0 or between 0 and 1")
	fault(d.Block >= 2 && d.Block <= maxLimitBlock, "Block", c.Block, "0 or from 2 to 1024")
	fault(d.Memory >= d.Block && d.Memory <= maxLimitMemory, "Memory", c.Memory, "0 or from Block to 1048576")
	return errors.Join(faults...)
}

// WithDefaults returns the settings in effect: defaults for zero values.
func (c LimitConfig) WithDefaults() LimitConfig {
	if c.Min == 0 && c.Max == 0 {
		c.Min, c.Max = defaultLimitMin, defaultLimitMax
	}
	if c.Min == 0 {
		c.Min = min(defaultLimitMin, c.Max)
	}
	if c.Max == 0 {
		c.Max = max(defaultLimitMax, c.Min)
	}
	if c.Start == 0 {
		c.Start = c.Max
	}
	if c.Gain == 0 {
		c.Gain = defaultLimitGain
	}
	if c.Block == 0 {
		c.Block = defaultLimitBlock
	}
	if c.Memory == 0 {
		c.Memory = max(defaultLimitMemory, 4*c.Block)
	}
	return c
}

// LimitReason says why a limit changed. The zero value is no change.
type LimitReason uint8

// The reasons of a change: one begins a trial, four end one, the last four are steps.
const (
	// LimitUnchanged: there was no change.
	LimitUnchanged LimitReason = iota
	// LimitExploring: one level up or down for a trial.
	LimitExploring
	// LimitConfirming: back from a trial that looked like an improvement, to compare once more.
	LimitConfirming
	// LimitNoGain: back from a trial of more requests, which brought too few tokens.
	LimitNoGain
	// LimitLoss: back from a trial of fewer requests, which lost tokens.
	LimitLoss
	// LimitNoLoad: back from a trial that the load did not fill, or that took too long to reach its level.
	LimitNoLoad
	// LimitGain: a step up, since throughput still rises there.
	LimitGain
	// LimitCeiling: such a step that reached Max.
	LimitCeiling
	// LimitKnee: a step down, since the requests given up bring time per token and no throughput.
	LimitKnee
	// LimitFloor: such a step that reached Min.
	LimitFloor
)

// String returns the name used in logs and receipts.
func (r LimitReason) String() string {
	switch r {
	case LimitUnchanged:
		return "unchanged"
	case LimitExploring:
		return "exploring"
	case LimitConfirming:
		return "confirming"
	case LimitNoGain:
		return "no-gain"
	case LimitLoss:
		return "loss"
	case LimitNoLoad:
		return "no-load"
	case LimitGain:
		return "gain"
	case LimitCeiling:
		return "ceiling"
	case LimitKnee:
		return "knee-found"
	case LimitFloor:
		return "floor"
	}
	return "unknown"
}

// Change explains one change of a limit. It is a plain value.
type Change struct {
	// At is the now of the observation that led to it.
	At int64
	// From and To are the limits before and after, in running requests; with ObserveOnly those it would have set.
	From, To int
	// Reason says why.
	Reason LimitReason
	// Running (requests), Throughput (tokens per second) and PerToken (ms per token of one request, by Little's law
	// Running / Throughput) are the means of the newest block of observations; 0 where there was none.
	Running, Throughput, PerToken float64
	// Gain is the share by which throughput was found to rise per share of requests added, between From and To; NaN where
	// that is not known.
	Gain float64
}

func newChange(now int64, from, to int, reason LimitReason, b *limitBlock) Change {
	c := Change{At: now, From: from, To: to, Reason: reason, Gain: math.NaN()}
	if b.count > 0 {
		c.Running, c.Throughput = b.running(), b.throughput()
		c.PerToken = 1000 * c.Running / c.Throughput
	}
	return c
}
