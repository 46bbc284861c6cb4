package telemetry

import "time"

// suspicion counts the consecutive observations that make an engine suspect. A suspicion, once earned, lasts until a
// figure shows the contrary or somebody vouches for the engine: a live lease stops the counting and proves nothing.
type suspicion struct {
	after    int // observations that make a suspicion; negative = none do
	frozen   int // observations with the same figures, busy, without own leases
	wedged   int // observations with requests waiting and none running
	isFrozen bool
	isWedged bool
	since    time.Time // zero unless suspect
}

func (p *suspicion) reason() SuspectReason {
	switch {
	case p.isWedged:
		return SuspectWedged
	case p.isFrozen:
		return SuspectFrozen
	}
	return ""
}

func (p *suspicion) clear() { *p = suspicion{after: p.after} }

// observation is what the counting needs to know of one accepted report.
type observation struct {
	load      bool // it brought at least one load figure
	moved     bool // it changed the value of at least one load figure
	queue     bool // it brought Running or Waiting
	busy      bool // running + waiting > 0 after it
	stuck     bool // waiting > 0 and running == 0 after it, both of about the same time
	ownLeases bool
}

func (p *suspicion) observe(now time.Time, o observation) {
	if !o.load || p.after < 0 {
		return
	}
	if o.moved {
		p.frozen, p.isFrozen = 0, false
	}
	if o.ownLeases || !o.busy {
		p.frozen = 0
	} else if p.frozen++; p.frozen >= p.after {
		p.frozen, p.isFrozen = p.after, true
	}
	if o.queue {
		if !o.stuck {
			p.wedged, p.isWedged = 0, false
		} else if p.wedged++; p.wedged >= p.after {
			p.wedged, p.isWedged = p.after, true
		}
	}
	switch {
	case p.reason() == "":
		p.since = time.Time{}
	case p.since.IsZero():
		p.since = now
	}
}
