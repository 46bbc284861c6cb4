package router

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/isobar-go/isobar/telemetry"
)

// rank orders candidates best first: the choice, then those that could have been chosen, those barred or avoided, and the
// excluded ones, each by total cost.
func (d *Decision) rank(candidates []Candidate) {
	place := func(c *Candidate) int {
		switch {
		case c.Excluded != NoReason:
			return 3
		case c.ID == d.Endpoint:
			return 0
		case c.Barred || c.Avoided:
			return 2
		}
		return 1
	}
	slices.SortStableFunc(candidates, func(a, b Candidate) int {
		return cmp.Or(place(&a)-place(&b), cmp.Compare(a.Total, b.Total))
	})
}

// String is a short text for logs: the policy, the choice and what it cost, the best of the others, and where no candidate had usable
// telemetry.
func (d Decision) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", d.Policy)
	switch n := d.Considered + d.Excluded; {
	case d.Endpoint == "" && n == 0:
		b.WriteString("no endpoint was looked at")
	case d.Endpoint == "":
		fmt.Fprintf(&b, "none of %d endpoints", n)
	default:
		fmt.Fprintf(&b, "%s at %.1f ms", d.Endpoint, d.Terms.Total())
		if d.RunnerUp != "" {
			fmt.Fprintf(&b, ", next %s at %.1f", d.RunnerUp, d.RunnerUpTotal)
		}
		fmt.Fprintf(&b, ", one of %d endpoints", d.Considered)
	}
	if d.Degraded {
		b.WriteString("; degraded: no usable telemetry")
	}
	return b.String()
}

// Explain is the decision as a table: one line a candidate, best first, the choice marked with an asterisk, every term in ms.
// It needs the candidates, which a decision has from [Pool.Score] and where the request was sampled; else it says so.
func (d Decision) Explain() string {
	if len(d.Candidates) == 0 {
		return d.String() + "; its candidates were not recorded\n"
	}
	candidates := slices.Clone(d.Candidates)
	d.rank(candidates)
	var b strings.Builder
	fmt.Fprintf(&b, "  %-16s %9s %9s %8s %8s %8s %8s %8s %11s %12s %12s %8s  %s\n", "endpoint", "total", "own", "queue", "prefill", "decode",
		"adapter", "kv", "uncertainty", "interference", "displacement", "wait", "notes")
	for i := range candidates {
		c := &candidates[i]
		if c.Excluded != NoReason {
			fmt.Fprintf(&b, "  %-16s %s\n", c.ID, c.notes())
			continue
		}
		mark := ' '
		if c.ID == d.Endpoint {
			mark = '*'
		}
		t := &c.Terms
		fmt.Fprintf(&b, "%c %-16s %9.1f %9.1f %8.1f %8.1f %8.1f %8.1f %8.1f %11.1f %12.1f %12.1f %8.1f  %s\n", mark, c.ID, c.Total, c.OwnCost,
			t.Queue, t.Prefill, t.Decode, t.Adapter, t.KVPressure, t.Uncertainty, t.Interference, t.Displacement, t.Wait, c.notes())
	}
	if d.Degraded {
		b.WriteString("  degraded: no usable telemetry\n")
	}
	return b.String()
}

// String is the candidate in one line, every term with its name, in ms.
func (c Candidate) String() string {
	if c.Excluded != NoReason {
		return c.ID + " (" + c.notes() + ")"
	}
	t := &c.Terms
	return fmt.Sprintf("%s total=%.1f own=%.1f queue=%.1f prefill=%.1f decode=%.1f adapter=%.1f kv=%.1f uncertainty=%.1f "+
		"interference=%.1f displacement=%.1f wait=%.1f (%s)", c.ID, c.Total, c.OwnCost, t.Queue, t.Prefill, t.Decode, t.Adapter, t.KVPressure,
		t.Uncertainty, t.Interference, t.Displacement, t.Wait, c.notes())
}

// notes are what the terms do not say.
func (c *Candidate) notes() string {
	if c.Excluded != NoReason {
		return "excluded: " + c.Excluded.String()
	}
	notes := []string{c.Freshness.String()}
	if c.Freshness != telemetry.Missing && c.Age > 0 {
		notes[0] += " " + c.Age.Round(time.Millisecond).String()
	}
	add := func(yes bool, format string, args ...any) {
		if yes {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	add(c.Suspect != "", "suspect: %s", c.Suspect)
	add(c.Probe, "probe")
	add(c.Load.Silence > 0, "silent for %.1f ms longer than usual", c.Load.Silence)
	add(c.Withheld != NoReason, "affinity withheld: %s", c.Withheld)
	add(c.Native.CachedTokens > 0, "%.0f cached tokens save %.1f", c.Native.CachedTokens, c.Terms.Saved)
	add(c.Avoided, "avoided")
	add(c.Barred, "barred: asks the request to give up too much")
	return strings.Join(notes, ", ")
}
