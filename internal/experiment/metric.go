package experiment

import (
	"slices"

	"github.com/isobar-go/isobar/internal/world"
)

// Direction says which way a figure is better.
type Direction int8

// The directions.
const (
	// Lower is better.
	Lower Direction = -1
	// Neither is better: the figure describes.
	Neither Direction = 0
	// Higher is better.
	Higher Direction = 1
)

// Unit says how a figure is to be shown.
type Unit uint8

// The units.
const (
	// Count is a number of something.
	Count Unit = iota
	// MS is a time in ms.
	MS
	// Share is a part of a whole, 0 to 1, for people in per cent.
	Share
	// Ratio is one figure over another.
	Ratio
)

// Metric is one figure of a run. A Metric is a plain value.
type Metric struct {
	// Key names it in files, Title for people.
	Key, Title string
	// Unit of its values.
	Unit Unit
	// Better is the direction in which it improves.
	Better Direction
	value  func(f *world.Figures) float64
}

// Value is the figure of one run.
func (m *Metric) Value(f *world.Figures) float64 { return m.value(f) }

// Metrics lists all figures in the order in which rows have them.
func Metrics() []Metric {
	list := []Metric{}
	dist := func(key, title string, better Direction, of func(*world.Figures) *world.Dist) {
		for _, p := range []struct {
			key string
			at  func(*world.Dist) float64
		}{
			{"mean", func(d *world.Dist) float64 { return d.Mean }}, {"p50", func(d *world.Dist) float64 { return d.P50 }},
			{"p90", func(d *world.Dist) float64 { return d.P90 }}, {"p99", func(d *world.Dist) float64 { return d.P99 }},
		} {
			list = append(list, Metric{key + "_" + p.key, title + " " + p.key, MS, better, func(f *world.Figures) float64 { return p.at(of(f)) }})
		}
	}
	dist("ttft", "TTFT", Lower, func(f *world.Figures) *world.Dist { return &f.TTFT })
	dist("tpot", "TPOT", Lower, func(f *world.Figures) *world.Dist { return &f.TPOT })
	dist("e2e", "E2E", Lower, func(f *world.Figures) *world.Dist { return &f.E2E })
	dist("start_error", "Start error", Lower, func(f *world.Figures) *world.Dist { return &f.StartError })
	return append(list,
		Metric{"start_bias", "Start bias", MS, Neither, func(f *world.Figures) float64 { return f.StartBias }},
		Metric{"goodput", "Goodput", Share, Higher, func(f *world.Figures) float64 { return f.Goodput }},
		Metric{"hit", "Prefix hit", Share, Higher, func(f *world.Figures) float64 { return f.HitShare }},
		Metric{"hit_predicted", "Hit predicted", Share, Neither, func(f *world.Figures) float64 { return f.PredictedHitShare }},
		Metric{"max_work", "Max/mean work", Ratio, Lower, func(f *world.Figures) float64 { return f.MaxWork }},
		Metric{"churn", "Route churn", Share, Lower, func(f *world.Figures) float64 { return f.Churn }},
		Metric{"jain", "Jain by tenant", Ratio, Higher, func(f *world.Figures) float64 { return f.Jain }},
		Metric{"requests", "Requests", Count, Neither, func(f *world.Figures) float64 { return float64(f.Requests) }},
		Metric{"finished", "Finished", Count, Higher, func(f *world.Figures) float64 { return float64(f.Finished) }},
		Metric{"preemptions", "Preemptions", Count, Lower, func(f *world.Figures) float64 { return float64(f.Preemptions) }},
		Metric{"rejected", "Rejected", Count, Lower, func(f *world.Figures) float64 { return float64(f.Rejected) }},
		Metric{"failed", "Failed", Count, Lower, func(f *world.Figures) float64 { return float64(f.Failed) }},
		Metric{"retries", "Retries", Count, Lower, func(f *world.Figures) float64 { return float64(f.Retries) }},
		Metric{"deadlines_missed", "Deadlines missed", Share, Lower, func(f *world.Figures) float64 {
			if f.Deadlines == 0 {
				return 0
			}
			return float64(f.Missed) / float64(f.Deadlines)
		}},
		Metric{"cold_loads", "Cold adapter loads", Count, Lower, func(f *world.Figures) float64 { return float64(f.ColdLoads) }},
		Metric{"degraded", "Degraded choices", Count, Neither, func(f *world.Figures) float64 { return float64(f.Degraded) }},
	)
}

// metricAt is the place of the figure of that key; -1 = there is none.
func metricAt(key string) int {
	return slices.IndexFunc(Metrics(), func(m Metric) bool { return m.Key == key })
}
