package workload

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// IncidentKind is what happens to an endpoint. The zero value is none of them.
type IncidentKind uint8

// The kinds.
const (
	// Drain: the endpoint takes no new request and finishes what it has. Routers are told, by its membership.
	Drain IncidentKind = iota + 1
	// Silent: the endpoint works on as before, and its telemetry does not come.
	Silent
	// Restart: the endpoint loses its requests and its cache, is away for the duration, and comes back with a new epoch and
	// readings that are an honest zero.
	Restart
	// Slow: every pass takes Factor times as long.
	Slow
	// Freeze: the endpoint stops working and keeps reporting the figures of the moment at which it stopped. Afterwards it
	// goes on where it was.
	Freeze
	// Dead: the endpoint loses its requests in the middle of their streams, refuses new ones and reports nothing. Routers
	// are not told. If it comes back, it does so as after Restart.
	Dead
)

var incidentNames = [...]string{"", "drain", "silent", "restart", "slow", "freeze", "dead"}

// String is the kind's name; "unknown" for a number that is none.
func (k IncidentKind) String() string {
	if k < Drain || int(k) >= len(incidentNames) {
		return "unknown"
	}
	return incidentNames[k]
}

// Incident is something that happens to one endpoint. The simulator applies it. It is a plain value.
type Incident struct {
	// Kind is what happens.
	Kind IncidentKind
	// Endpoint is the index of the endpoint, from 0.
	Endpoint int
	// At is when it begins, since the start of the workload.
	At time.Duration
	// For is how long it lasts, at least 0. 0 = until the end; a Restart with 0 is back at once.
	For time.Duration
	// Factor is how much longer a pass takes, for Slow only; above 0 and at most 1000. 0 elsewhere.
	Factor float64
}

// End is when the incident is over; false if never.
func (i Incident) End() (at time.Duration, ok bool) {
	if i.For == 0 && i.Kind != Restart {
		return 0, false
	}
	return i.At + i.For, true
}

// Validate names the first field that is out of range; endpoints is how many there are.
func (i Incident) Validate(endpoints int) error {
	switch {
	case i.Kind < Drain || int(i.Kind) >= len(incidentNames):
		return fmt.Errorf("workload: Incident.Kind is %d, it is not one of the kinds", uint8(i.Kind))
	case i.Endpoint < 0 || i.Endpoint >= endpoints:
		return fmt.Errorf("workload: Incident.Endpoint is %d, it must be in [0, %d)", i.Endpoint, endpoints)
	case i.At < 0:
		return fmt.Errorf("workload: Incident.At is %v, it must be at least 0", i.At)
	case i.For < 0 || i.For > math.MaxInt64-i.At:
		return fmt.Errorf("workload: Incident.For is %v, it must be at least 0 and end in time", i.For)
	case i.Kind == Slow && !(i.Factor > 0 && i.Factor <= 1000):
		return fmt.Errorf("workload: Incident.Factor is %v, it must be above 0 and at most 1000", i.Factor)
	case i.Kind != Slow && i.Factor != 0:
		return fmt.Errorf("workload: Incident.Factor is %v, it must be 0 for %v", i.Factor, i.Kind)
	}
	return nil
}

// ValidateIncidents joins the faults of all. Incidents of one endpoint may overlap if they are of different kinds.
func ValidateIncidents(list []Incident, endpoints int) error {
	var errs []error
	sorted := slices.Clone(list)
	slices.SortStableFunc(sorted, byBegin)
	for n, i := range sorted {
		errs = append(errs, i.Validate(endpoints))
		for _, j := range sorted[:n] {
			end, ends := j.End()
			if j.Kind == i.Kind && j.Endpoint == i.Endpoint && (!ends || i.At < end) {
				errs = append(errs, fmt.Errorf("workload: endpoint %d has two incidents %v at %v", i.Endpoint, i.Kind, i.At))
				break
			}
		}
	}
	return errors.Join(errs...)
}

func byBegin(a, b Incident) int {
	return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Endpoint, b.Endpoint), cmp.Compare(a.Kind, b.Kind))
}

// Rolling lets the same happen to one endpoint after the other, as a rollout does: to endpoint k at what.At + k x every,
// which is above 0. endpoints is in [1, 1e6]; what.Endpoint is not looked at.
func Rolling(what Incident, endpoints int, every time.Duration) ([]Incident, error) {
	if endpoints < 1 || endpoints > 1e6 {
		return nil, fmt.Errorf("workload: endpoints is %d, it must be in [1, 1000000]", endpoints)
	}
	if every <= 0 || every.Seconds()*float64(endpoints) > maxSeconds {
		return nil, fmt.Errorf("workload: every is %v, it must be above 0 and the last one in time", every)
	}
	list := make([]Incident, endpoints)
	for k := range list {
		what.Endpoint = k
		list[k] = what
		list[k].At += time.Duration(k) * every
		if err := list[k].Validate(endpoints); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Troubles say how often what happens. It is a plain value.
type Troubles struct {
	// Seed of the times, endpoints and kinds.
	Seed uint64
	// Every is the mean time between incidents in the whole fleet, a Poisson process; above 0.
	Every time.Duration
	// For is the mean of the exponential duration, above 0.
	For time.Duration
	// Until is the last moment at which one may begin, at least 0.
	Until time.Duration
	// Kinds are chosen with equal probability; empty = all.
	Kinds []IncidentKind
	// Factor of the slow ones; 0 = 3.
	Factor float64
}

// Random makes incidents in order of their begin. One that would overlap another of the same endpoint is left out, so that
// the process is thinned where the fleet is small.
func (t Troubles) Random(endpoints int) ([]Incident, error) {
	if endpoints < 1 {
		return nil, fmt.Errorf("workload: endpoints is %d, it must be at least 1", endpoints)
	}
	err := firstOf(
		inRange("Every (s)", t.Every.Seconds(), 1e-3, maxSeconds),
		inRange("For (s)", t.For.Seconds(), 1e-3, maxSeconds/100),
		inRange("Until (s)", t.Until.Seconds(), 0, maxSeconds),
		inRange("Until/Every", t.Until.Seconds()/max(t.Every.Seconds(), 1e-9), 0, 1e6))
	if err != nil {
		return nil, err
	}
	kinds := t.Kinds
	if len(kinds) == 0 {
		kinds = []IncidentKind{Drain, Silent, Restart, Slow, Freeze, Dead}
	}
	rnd := newRand(t.Seed, "troubles")
	free := map[int]time.Duration{}
	var list []Incident
	for at := exponential(rnd, 1/t.Every.Seconds()); at <= t.Until; at += exponential(rnd, 1/t.Every.Seconds()) {
		i := Incident{
			At:       at,
			Endpoint: rnd.IntN(endpoints),
			Kind:     kinds[rnd.IntN(len(kinds))],
			For:      max(1, exponential(rnd, 1/t.For.Seconds())),
		}
		if i.Kind == Slow {
			i.Factor = orFloat(t.Factor, 3)
		}
		if err := i.Validate(endpoints); err != nil {
			return nil, err
		}
		if at < free[i.Endpoint] {
			continue
		}
		free[i.Endpoint] = at + i.For
		list = append(list, i)
	}
	return list, nil
}

// Telemetry says what gateways learn of the engines, and when. The zero value shows the present at every moment. It is
// a plain value.
type Telemetry struct {
	// Period is the time between two polls of an endpoint; 0 = before every decision.
	Period time.Duration
	// Delay is the time from the moment that a poll shows to its delivery.
	Delay time.Duration
	// Jitter is how much later than planned a poll may be sent, uniform in [0, Jitter).
	Jitter time.Duration
	// Loss is the share of polls that fail, 0 to 1.
	Loss float64
	// EventDelay is the time from a change of an engine's cache to the delivery of the event.
	EventDelay time.Duration
	// Skew is how far the clock of a gateway is ahead of the engines'; may be negative.
	Skew time.Duration
}

// Validate names the first field that is out of range.
func (t Telemetry) Validate() error {
	for _, f := range [...]struct {
		name string
		d    time.Duration
	}{{"Period", t.Period}, {"Delay", t.Delay}, {"Jitter", t.Jitter}, {"EventDelay", t.EventDelay}} {
		if f.d < 0 {
			return fmt.Errorf("workload: Telemetry.%s is %v, it must be at least 0", f.name, f.d)
		}
	}
	return inRange("Telemetry.Loss", t.Loss, 0, 1)
}
