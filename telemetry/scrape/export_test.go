package scrape

import (
	"io"
	"math/rand/v2"
	"time"
)

// Limited is the reader that bounds a document.
func Limited(r io.Reader, most int64) io.Reader { return &limited{r: r, left: most} }

// ErrTooLarge is what it fails with.
var ErrTooLarge = errTooLarge

// Backoff, RetryWait, Wait and FirstWait are the waits of a configuration with its defaults.
func (c Config) Backoff(failures int) time.Duration                 { return c.backoff(failures) }
func (c Config) RetryWait(failures int, r *rand.Rand) time.Duration { return c.retryWait(failures, r) }
func (c Config) Wait(first bool, r *rand.Rand) time.Duration        { return c.wait(first, r) }
func (c Config) FirstWait(r *rand.Rand) time.Duration               { return c.firstWait(r) }

// NewRandom is the source of an endpoint's draws.
func NewRandom(seed uint64, t Target) *rand.Rand { return newRandom(seed, t) }

// TickAfter skips missed ticks.
func TickAfter(t time.Time, every time.Duration, now time.Time) time.Time {
	return tickAfter(t, every, now)
}
