package telemetry

import (
	"errors"
	"fmt"
	"time"
)

// Reading is one figure that an engine reported, with the time at which it may have held. The zero value is unknown,
// which is not zero. A Reading is an immutable value: any number of goroutines may use copies of it.
type Reading struct {
	value float64
	at    time.Time
	known bool
}

// At returns a reading of v that was observed at t. A zero t stands for the ObservedAt of the snapshot it is put into.
// Any v is accepted here; the [Store] is what rejects NaN, infinities and negative figures.
func At(v float64, t time.Time) Reading { return Reading{value: v, at: t, known: true} }

// V returns a reading of v that shares the observation time of the snapshot it is put into.
func V(v float64) Reading { return Reading{value: v, known: true} }

// Value returns the figure, in the unit that the field holding the reading documents, and whether it is known. It
// returns 0, false for an unknown reading.
func (r Reading) Value() (float64, bool) { return r.value, r.known }

// Known reports whether the reading has a value.
func (r Reading) Known() bool { return r.known }

// ObservedAt returns the time at which the reading may have held. It is the zero time for a figure that was never
// reported. A figure whose newest report was invalid is unknown and has the time of that report.
func (r Reading) ObservedAt() time.Time { return r.at }

// Class says what the age of a reading allows it to be used for. The zero value is Missing.
type Class uint8

const (
	// Missing is a figure without a value: never reported, or reported with an impossible value.
	Missing Class = iota
	// Stale is older than Limits.StaleAfter, or has a time in the future: too old for any use.
	Stale
	// Aging is older than Limits.FreshFor: usable for load with a growing doubt, not for affinity.
	Aging
	// Fresh may be used as reported.
	Fresh
)

// String returns the name in lower case, "class(N)" for a value that is none of the constants.
func (c Class) String() string {
	return nameOf("class", uint8(c), "missing", "stale", "aging", "fresh")
}

// nameOf is the name of value i of a kind whose values count from 0, "kind(i)" for a value that has none.
func nameOf(kind string, i uint8, names ...string) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", kind, i)
}

// MarshalText writes the name.
func (c Class) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads a name; an unknown one is an error that carries it.
func (c *Class) UnmarshalText(text []byte) error {
	for _, known := range [...]Class{Missing, Stale, Aging, Fresh} {
		if known.String() == string(text) {
			*c = known
			return nil
		}
	}
	return fmt.Errorf("telemetry: unknown class %q", text)
}

// Defaults of Limits.
const (
	DefaultFreshFor   = 2 * time.Second
	DefaultStaleAfter = 10 * time.Second
)

// Limits are the ages at which a reading changes its Class. The zero value means the defaults. Limits is a plain value:
// any number of goroutines may use copies of it.
type Limits struct {
	// FreshFor is the greatest age of a fresh reading. 0 means DefaultFreshFor, or StaleAfter if that is set and less.
	FreshFor time.Duration
	// StaleAfter is the greatest age of an aging reading, not less than FreshFor. 0 means DefaultStaleAfter, or FreshFor
	// if that is set and more.
	StaleAfter time.Duration
}

// Effective returns the limits with the defaults filled in. A negative limit counts as not set; a StaleAfter below
// FreshFor is raised to it. Validate reports both as errors.
func (l Limits) Effective() Limits {
	fresh, stale := max(l.FreshFor, 0), max(l.StaleAfter, 0)
	switch {
	case fresh == 0 && stale == 0:
		fresh, stale = DefaultFreshFor, DefaultStaleAfter
	case fresh == 0:
		fresh = min(DefaultFreshFor, stale)
	case stale == 0:
		stale = max(DefaultStaleAfter, fresh)
	}
	return Limits{FreshFor: fresh, StaleAfter: max(stale, fresh)}
}

// Validate returns an error that joins all faults: a negative limit, or both limits set and StaleAfter below FreshFor.
func (l Limits) Validate() error {
	var errs []error
	if l.FreshFor < 0 {
		errs = append(errs, fmt.Errorf("telemetry: FreshFor %v is negative", l.FreshFor))
	}
	if l.StaleAfter < 0 {
		errs = append(errs, fmt.Errorf("telemetry: StaleAfter %v is negative", l.StaleAfter))
	}
	if l.FreshFor > 0 && l.StaleAfter > 0 && l.StaleAfter < l.FreshFor {
		errs = append(errs, fmt.Errorf("telemetry: StaleAfter %v is below FreshFor %v", l.StaleAfter, l.FreshFor))
	}
	return errors.Join(errs...)
}

// Classify returns the class of a known reading of the given age: Fresh up to and including FreshFor, Aging up to and
// including StaleAfter, then Stale. A negative age means that the clock went backwards, so nothing is known about the
// true age: Stale, never Fresh. A host that decides while others observe must load the state first and read its clock
// after that, or a report that arrives in between has a negative age.
func (l Limits) Classify(age time.Duration) Class {
	l = l.Effective()
	switch {
	case age < 0:
		return Stale
	case age <= l.FreshFor:
		return Fresh
	case age <= l.StaleAfter:
		return Aging
	}
	return Stale
}

// Of returns the class of r at the time now: Missing if r is unknown, else Classify of its age.
func (l Limits) Of(r Reading, now time.Time) Class {
	if !r.known {
		return Missing
	}
	return l.Classify(now.Sub(r.at))
}
