package experiment

import "context"

// Quantile95 is the quantile behind confidence intervals.
func Quantile95(df int) float64 { return quantile95(df) }

// Find searches with a function in place of runs.
func (s Search) Find(at func(speed float64) (goodput, e2e float64)) (Saturation, error) {
	return s.withDefaults([]uint64{1}).find(func(speed float64) (probe, error) {
		g, e := at(speed)
		return probe{goodput: g, e2e: e, rate: speed}, nil
	})
}

// InOrder is what runs cells.
func InOrder(ctx context.Context, parallel int, jobs func(yield func(int) bool), do func(int) (int, error), sink func(int) error) error {
	return inOrder(ctx, parallel, jobs, do, sink)
}
