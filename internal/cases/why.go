package cases

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/telemetry"
)

// why prints what was out of the ordinary in the last route. Readiness, models and what the request itself left out are
// ordinary.
func (m *Machine) why(c *command) ([]string, error) {
	if err := c.end(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	r := m.receipt
	m.mu.Unlock()
	if r == nil {
		return nil, errors.New("why: there is no receipt of the last route")
	}
	bounds := m.pool.Config().Bounds
	var lines []string
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if r.Degraded {
		say("degraded")
	}
	if r.PolicyFault {
		say("policy fault")
	}
	if r.AffinityLifted {
		say("affinity lifted")
	}
	for i := range r.Candidates {
		a := &r.Candidates[i]
		switch a.Excluded {
		case router.NoReason, router.Probing:
			if a.Suspect != "" {
				say("suspect: %s", a.ID)
			}
			if a.Withheld != router.NoReason {
				say("affinity withheld: %s (%s)", a.ID, withheld(r, a, &bounds, m.pool.Config().Freshness.FreshFor))
			}
		case router.Draining, router.Asleep, router.ModelNotServed, router.RoleNotServed, router.TooLong, router.Excluded:
		default:
			say("excluded: %s (%s)", a.ID, a.Excluded)
		}
	}
	if r.Seed {
		say("seed: %s", r.Endpoint)
	}
	if r.Waited > 0 {
		say("waited: %v", r.Waited)
	}
	if r.Probe {
		say("probe: %s", r.Endpoint)
	}
	return lines, nil
}

// withheld is the reason with the figure and the bound that it broke.
func withheld(r *router.Receipt, a *router.Candidate, b *router.Bounds, freshFor time.Duration) string {
	switch a.Withheld {
	case router.WithheldNotFresh:
		if a.Freshness == telemetry.Missing {
			return a.Withheld.String()
		}
		return fmt.Sprintf("%s %v > %v", a.Withheld, a.Age, freshFor)
	case router.WithheldWaiting:
		return fmt.Sprintf("%s %.10g > %d", a.Withheld, a.Waiting.Value, b.MaxWaiting)
	case router.WithheldKV:
		share := a.KV.Value
		if a.KVCapacity > 0 {
			share = (max(share-r.SharedPart*a.KVBooked, 0) + float64(r.PromptTokens+r.OutputTokens)) / a.KVCapacity
		}
		return fmt.Sprintf("%s %.2f > %.2f", a.Withheld, share, b.MaxKV)
	case router.WithheldQueueDelay:
		return fmt.Sprintf("%s %v > %v", a.Withheld, delay(a.Terms.Queue), b.MaxQueueDelay)
	case router.WithheldLead:
		best := math.Inf(1)
		for i := range r.Candidates {
			if o := &r.Candidates[i]; o.Excluded == router.NoReason && o.ID != a.ID {
				best = min(best, o.Terms.Queue)
			}
		}
		return fmt.Sprintf("%s %v > %v", a.Withheld, delay(a.Terms.Queue-best), b.MaxLead)
	}
	return a.Withheld.String()
}

// delay turns ms into a duration of whole ms. Terms are finite, and what does not fit is cut.
func delay(ms float64) time.Duration {
	return time.Duration(min(ms, float64(maxSpan/time.Millisecond))) * time.Millisecond
}

func (m *Machine) shadowRecord(c *command) ([]string, error) {
	delta := c.flag("delta")
	if err := c.end(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	r := m.shadow
	m.mu.Unlock()
	if r == nil {
		return nil, errors.New("shadow: there is no shadow record")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "current=%s proposed=%s", r.Endpoint, r.Shadow.Endpoint)
	switch {
	case r.Shadow.Failed:
		b.WriteString("- (failed)")
	case r.Shadow.Skipped:
		b.WriteString("- (skipped)")
	case delta:
		ms := math.Round(r.Shadow.DeltaMS*10) / 10
		fmt.Fprintf(&b, " delta=%.1fms", ms+0) // no negative zero
	}
	return []string{b.String()}, nil
}
