package admission

import (
	"errors"
	"fmt"
	"math"
	"time"
)

const (
	defaultSeedFor          = 5 * time.Second
	defaultSeedObservations = 3
	defaultSeedCooldown     = 5 * time.Second
)

// SeedConfig holds the settings of seeding. The zero value switches it off. It is a plain value: copies are independent
// and may be used by any goroutine.
//
// With Max = 2 and the defaults, a group gets at most 2 requests onto an idle endpoint, then nothing more there until 5 s,
// or 3 observations, have shown what they do, and nothing in the 5 s after that: at most 2 in any 5 s, whatever is offered.
type SeedConfig struct {
	// Max is the number of seeds in one lease, and of all seeds on one endpoint that one observation of it justifies. Not
	// negative; 0 = seeding is off and admission ordinary.
	Max int
	// For is the longest time from the first seed of a lease to its end. 0 = 5 s, in which an engine can prefill the
	// longest usual prompt (some 30,000 tokens) and report it. Not negative.
	For time.Duration
	// Observations is the number of observations made after the first seed that end a lease earlier. 0 = 3: the first may
	// come at once and show a request that has only just arrived, the other two are a full interval apart. Negative =
	// only For ends it.
	Observations int
	// Cooldown is the time after a lease in which its endpoint gets no seed of its group. 0 = 5 s, as long as the lease, so
	// that seeding takes at most half of the time. Negative = none.
	Cooldown time.Duration
	// Allowance is the number of waiting requests, reported by the pool as a whole, up to which admission is ordinary.
	// Finite, not negative; 0 means what it says.
	Allowance float64
}

// Validate returns nil or all faults of c joined, each naming the field and its value.
func (c SeedConfig) Validate() error {
	var faults []error
	if c.Max < 0 {
		faults = append(faults, fmt.Errorf("admission: SeedConfig.Max = %d must be at least 0", c.Max))
	}
	if c.For < 0 {
		faults = append(faults, fmt.Errorf("admission: SeedConfig.For = %v must not be negative", c.For))
	}
	if !(c.Allowance >= 0) || math.IsInf(c.Allowance, 1) {
		faults = append(faults, fmt.Errorf("admission: SeedConfig.Allowance = %v must be finite and at least 0", c.Allowance))
	}
	return errors.Join(faults...)
}

// WithDefaults returns the settings in effect: defaults for zero values, and -1 for whatever is negative where that is
// allowed, so that the result means the same when it is used again.
func (c SeedConfig) WithDefaults() SeedConfig {
	switch {
	case c.Observations == 0:
		c.Observations = defaultSeedObservations
	case c.Observations < 0:
		c.Observations = -1
	}
	if c.For == 0 {
		c.For = defaultSeedFor
	}
	switch {
	case c.Cooldown == 0:
		c.Cooldown = defaultSeedCooldown
	case c.Cooldown < 0:
		c.Cooldown = -1
	}
	return c
}

// SeedVerdict is the answer of a [Gate] for one endpoint. The zero value is SeedOff, which admits nothing.
type SeedVerdict uint8

// The answers of a Gate.
const (
	// SeedOff: there is no seeding.
	SeedOff SeedVerdict = iota
	// SeedOK: the request may go there as a seed.
	SeedOK
	// SeedSpent: the lease of the endpoint and group is under way and has no seed left.
	SeedSpent
	// SeedCooling: the last lease of the endpoint and group ended less than a cooldown ago.
	SeedCooling
	// SeedStale: the observation has been used up; a newer one is needed. Also an observation from after now.
	SeedStale
)

// String returns the name used in logs and receipts.
func (v SeedVerdict) String() string {
	switch v {
	case SeedOff:
		return "off"
	case SeedOK:
		return "ok"
	case SeedSpent:
		return "spent"
	case SeedCooling:
		return "cooling"
	case SeedStale:
		return "stale"
	}
	return "unknown"
}
