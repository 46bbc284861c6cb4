package promexport

import "github.com/prometheus/client_golang/prometheus"

// family is one metric of a pool or of an endpoint, whose state is an S.
type family[S any] struct {
	name, help string
	kind       prometheus.ValueType
	label      string // by which the samples differ; "" = there is one sample without it
	samples    []sample[S]
}

// sample is one series of a family.
type sample[S any] struct {
	label string
	value func(*S) (value float64, known bool)
}

// number is what figures come as.
type number interface {
	~int | ~int64 | ~uint64 | ~float64
}

func always[S any, N number](get func(*S) N) func(*S) (float64, bool) {
	return func(s *S) (float64, bool) { return float64(get(s)), true }
}

func gauge[S any, N number](name, help string, get func(*S) N) family[S] {
	return gaugeIfKnown(name, help, always(get))
}

func gaugeIfKnown[S any](name, help string, get func(*S) (float64, bool)) family[S] {
	return family[S]{name: name, help: help, kind: prometheus.GaugeValue, samples: []sample[S]{{value: get}}}
}

func counter[S any](name, help string, get func(*S) uint64) family[S] {
	return family[S]{name: name, help: help, kind: prometheus.CounterValue, samples: []sample[S]{{value: always(get)}}}
}

// outcomes is a counter whose series differ by outcome.
func outcomes[S any](name, help string, samples ...sample[S]) family[S] {
	return family[S]{name: name, help: help, kind: prometheus.CounterValue, label: "outcome", samples: samples}
}

func outcome[S any](name string, get func(*S) uint64) sample[S] { return sample[S]{name, always(get)} }

// oneHot shows a state as a series for each possible one: 1 for the state that get returns, 0 for the others.
func oneHot[S any](name, help, label string, get func(*S) string, states ...string) family[S] {
	f := family[S]{name: name, help: help, kind: prometheus.GaugeValue, label: label}
	for _, state := range states {
		f.samples = append(f.samples, sample[S]{state, func(s *S) (float64, bool) {
			if get(s) == state {
				return 1, true
			}
			return 0, true
		}})
	}
	return f
}
