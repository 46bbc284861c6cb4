package calibrate

import (
	"errors"
	"fmt"
	"math"
)

// None is what a field of [Options] is set to where zero itself is meant, since the zero value stands for the default.
const None = -1

// Options say how much evidence a new coefficient needs. The zero value is usable. An Options is a plain value.
type Options struct {
	// Seed of the splits into halves. Same receipts, same options, same report.
	Seed uint64
	// Splits is the number of times the receipts are split into two halves. What the first one finds is what is adopted; it must
	// improve the held-out half of four in five of all. Default 5, at most 100.
	Splits int
	// MinReceipts is the number of usable receipts below which nothing is fitted, at least 20: of endpoints with one
	// profile together. Default 200.
	MinReceipts int
	// MinEndpoint is the same for a fit of a single endpoint. Default 400; None = no endpoint has a fit of its own.
	MinEndpoint int
	// Shrink is how strongly the fit of a single endpoint is pulled towards what its profile's endpoints have in
	// common: as by that many receipts of its own, and by fewer where its receipts contradict that beyond doubt. Default 50;
	// None = not at all.
	Shrink int
	// MinGain is the share of the mean error by which a fit must lower it, 0 to 1. Default 0.05; None = 0.
	MinGain float64
	// Noise is how many standard errors of itself the gain must exceed, 0 to 100. Default 3; None = 0.
	Noise float64
	// LoadUnknown uses receipts of endpoints whose load was not known at the decision, too: for pools without any
	// telemetry, where the pool's own leases are all there is. Default off.
	LoadUnknown bool
}

// least is the fewest receipts that any fit is made of, since half of them must determine four figures.
const least = 20

// WithDefaults fills in what zero fields stand for. What stands for zero stays None.
func (o Options) WithDefaults() Options {
	orDefault(&o.Splits, 5)
	orDefault(&o.MinReceipts, 200)
	orDefault(&o.MinEndpoint, 400)
	orDefault(&o.Shrink, 50)
	orDefault(&o.MinGain, 0.05)
	orDefault(&o.Noise, 3)
	return o
}

func orDefault[T int | float64](v *T, def T) {
	switch {
	case *v == 0:
		*v = def
	case *v < 0:
		*v = None
	}
}

// Validate reports every field out of range, all of them joined.
func (o Options) Validate() error {
	o = o.WithDefaults()
	var faults []error
	check := func(field string, value, low, high float64) {
		if !(value >= low && value <= high) {
			faults = append(faults, fmt.Errorf("calibrate: Options.%s = %v is not in %v to %v", field, value, low, high))
		}
	}
	check("Splits", float64(o.Splits), 1, 100)
	check("MinReceipts", float64(o.MinReceipts), least, math.MaxInt32)
	if o.MinEndpoint != None {
		check("MinEndpoint", float64(o.MinEndpoint), least, math.MaxInt32)
	}
	check("Shrink", float64(o.Shrink), None, math.MaxInt32)
	check("MinGain", o.MinGain, None, 1)
	check("Noise", o.Noise, None, 100)
	return errors.Join(faults...)
}
