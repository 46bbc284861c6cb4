package reserve

import (
	"errors"
	"fmt"
	"time"
)

const (
	defaultHorizon  = 60 * time.Second
	defaultMaxEnded = 65536
)

// Config holds the settings of a [Ledger]. The zero value is usable. It is a plain value: copies are independent and
// may be used by any goroutine.
type Config struct {
	// VisibilityLag is the time a request may need from its dispatch until the figures of its engine show it; a
	// snapshot observed at T contains only leases dispatched before T - VisibilityLag. Not negative; 0 means no lag.
	VisibilityLag time.Duration

	// Horizon is how long an event of a lease (first token, progress, end) is remembered so that an observation that
	// arrives late can still be placed before it. It is measured from the event to the newest event of the account
	// and should exceed the longest time between two observations. Not negative; 0 means 60 s.
	Horizon time.Duration

	// MaxEnded bounds the ended leases remembered per account and, on its own, the first-token and progress reports
	// remembered per account. Beyond it the oldest are forgotten and counted ([Account.Forgotten]). One entry takes
	// up to 260 bytes. Not negative; 0 means 65536.
	MaxEnded int
}

// Validate returns nil or all faults of c joined, each naming the field and its value.
func (c Config) Validate() error {
	var errs []error
	if c.VisibilityLag < 0 {
		errs = append(errs, fmt.Errorf("reserve: VisibilityLag is %v, must not be negative", c.VisibilityLag))
	}
	if c.Horizon < 0 {
		errs = append(errs, fmt.Errorf("reserve: Horizon is %v, must not be negative", c.Horizon))
	}
	if c.MaxEnded < 0 {
		errs = append(errs, fmt.Errorf("reserve: MaxEnded is %d, must not be negative", c.MaxEnded))
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	if c.Horizon == 0 {
		c.Horizon = defaultHorizon
	}
	if c.MaxEnded == 0 {
		c.MaxEnded = defaultMaxEnded
	}
	return c
}
