package router

import (
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// circuit is the breaker of one endpoint. It opens by outcomes, lets one probe through after a while, and doubles that
// while with each probe that fails. Reading its state takes no lock.
type circuit struct {
	until atomic.Int64 // ns on the pool's scale from which a probe may go; 0 = closed

	// clean says that it is closed and the window full of successes: one more changes nothing.
	clean atomic.Bool

	mu       sync.Mutex
	row      int    // failures in a row
	window   uint64 // newest outcomes, lowest bit newest, 1 = failed
	seen     int    // outcomes in window
	openedAt int64  // leases dispatched before say nothing about its present
	failedAt int64  // newest failure that counts
	openFor  int64  // ns; doubled by each failed probe; 0 = a restart has ended it
	opened   uint64
}

// burst is for how long the failures of leases that were under way at a failure count as that one.
const burst = 100 * time.Millisecond

// record takes the outcome of a lease that was dispatched at that time, and reports whether it has opened the circuit.
func (c *circuit) record(cfg *Circuit, now, dispatched int64, probe, failed bool) bool {
	if !failed && c.clean.Load() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() {
		mask := uint64(1)<<uint(cfg.Window) - 1
		c.clean.Store(c.until.Load() == 0 && c.row == 0 && c.seen == cfg.Window && c.window&mask == 0)
	}()
	if c.until.Load() != 0 {
		switch {
		case !probe || dispatched < c.openedAt: // older than the opening: no news
		case failed:
			c.openFor = max(min(c.openFor, int64(cfg.MaxOpenFor)/2)*2, int64(cfg.OpenFor))
			c.openLocked(now)
			return true
		default:
			c.row, c.window, c.seen, c.openFor = 0, 0, 0, 0
			c.until.Store(0)
		}
		return false
	}
	if dispatched < c.openedAt { // outlived an opening that has closed since
		return false
	}
	if failed {
		// A process that dies takes all that it serves along: those are one failure, not many.
		if c.row > 0 && dispatched < c.failedAt && now-c.failedAt < int64(burst) {
			return false
		}
		c.failedAt = now
	}
	c.window <<= 1
	c.seen = min(c.seen+1, cfg.Window)
	if failed {
		c.row++
		c.window |= 1
	} else {
		c.row = 0
	}
	failures := bits.OnesCount64(c.window & (1<<uint(cfg.Window) - 1))
	if cfg.Failures > 0 && c.row >= cfg.Failures || cfg.Window > 0 && c.seen == cfg.Window && 2*failures >= cfg.Window && failed {
		c.openFor = int64(cfg.OpenFor)
		c.openLocked(now)
		return true
	}
	return false
}

// restarted tells that the engine has been started anew: what has failed before says nothing of it. An open circuit lets a probe
// through at once. at is when the new process was seen.
func (c *circuit) restarted(at, now int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.row, c.window, c.seen, c.openFor = 0, 0, 0, 0
	c.openedAt = max(c.openedAt, at) // of leases dispatched before nothing is learned any more
	c.clean.Store(false)
	if c.until.Load() != 0 {
		until := now - now%int64(tick) // decisions read the clock in whole ticks
		if until == 0 {
			until-- // which would mean closed
		}
		c.until.Store(until)
	}
}

func (c *circuit) openLocked(now int64) {
	c.openedAt = now
	c.opened++
	until := now + c.openFor
	if until < now { // beyond the end of time
		until = math.MaxInt64
	}
	c.until.Store(max(until, 1))
}

func (c *circuit) openings() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.opened
}
