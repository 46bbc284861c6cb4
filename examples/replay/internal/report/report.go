// Package report shows the outcome of an experiment: as a table for a terminal, as one self-contained page with plots, as JSON and as CSV.
package report

import (
	"math"
	"slices"

	"github.com/isobar-go/isobar/internal/experiment"
)

// Fact is something about the run, for its head. A Fact is a plain value.
type Fact struct {
	// Name of what Value tells.
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Report is all that is to be shown. A Report is a plain value.
type Report struct {
	// Title of the page.
	Title string
	// Facts about the run.
	Facts []Fact
	// Candidate is the policy that the others are compared with, Oracle the one of regret; Aside are those that are shown and are
	// not among the best of the others: oracles, parts of the candidate.
	Candidate, Oracle string
	Aside             []string
	// Ablations are the names of the candidate with one part off.
	Ablations []string
	// Saturations are what loads are shares of.
	Saturations []experiment.Saturation
	// Rows are the figures.
	Rows []experiment.Row
	// Verdicts are the candidate held against the others.
	Verdicts []experiment.Verdict
	// Focus are the runs that plots show, one place of the grid for each workload.
	Focus []Focus
}

// groups are the places of the grid, in their order.
func (r *Report) groups() []experiment.Group {
	var out []experiment.Group
	for i := range r.Rows {
		if g := r.Rows[i].Group; len(out) == 0 || !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	return out
}

// policies are the names in the order of their appearance.
func (r *Report) policies() []string {
	var out []string
	for i := range r.Rows {
		if p := r.Rows[i].Policy; !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// row is the row of a policy and class at a place; nil = there is none.
func (r *Report) row(g experiment.Group, policy, class string) *experiment.Row {
	for i := range r.Rows {
		if x := &r.Rows[i]; x.Group == g && x.Policy == policy && x.Class == class {
			return x
		}
	}
	return nil
}

// ranked says that a policy takes part where the best is marked.
func (r *Report) ranked(policy string) bool { return !slices.Contains(r.Aside, policy) }

// best is the best mean of a figure among the ranked policies at a place; NaN = nothing to rank.
func (r *Report) best(g experiment.Group, class string, m experiment.Metric) float64 {
	best := math.NaN()
	for i := range r.Rows {
		x := &r.Rows[i]
		if x.Group != g || x.Class != class || !r.ranked(x.Policy) || m.Better == experiment.Neither {
			continue
		}
		v := x.Stat(m.Key).Mean
		if math.IsNaN(best) || (m.Better == experiment.Lower) == (v < best) && v != best {
			best = v
		}
	}
	return best
}

// Overall is a policy over all places. Of times it has the geometric mean of the ratio to the candidate's, of shares the mean. An
// Overall is a plain value.
type Overall struct {
	// Policy is its name.
	Policy string `json:"policy"`
	// TTFT, P99 (of TTFT), TPOT and E2E are ratios: 1 = as the candidate, 2 = twice as long.
	TTFT float64 `json:"ttft_mean_ratio"`
	P99  float64 `json:"ttft_p99_ratio"`
	TPOT float64 `json:"tpot_mean_ratio"`
	E2E  float64 `json:"e2e_mean_ratio"`
	// Goodput, Hit and Missed are shares, Churn too.
	Goodput float64 `json:"goodput"`
	Hit     float64 `json:"hit"`
	Churn   float64 `json:"churn"`
	Missed  float64 `json:"deadlines_missed"`
	// Work is the mean of max/mean work, Jain of the index of fairness.
	Work float64 `json:"max_work"`
	Jain float64 `json:"jain"`
	// Regret is by what share E2E exceeds the oracle's.
	Regret float64 `json:"regret"`
	// Lost is the number of requests rejected or failed in a run.
	Lost float64 `json:"rejected_or_failed"`
	// Best is at how many places it has the best E2E mean of those that are ranked.
	Best int `json:"best_places"`
}

// Overview is the table of all policies, in their order.
func (r *Report) Overview() []Overall {
	groups := r.groups()
	e2e := experiment.Metric{}
	for _, m := range experiment.Metrics() {
		if m.Key == "e2e_mean" {
			e2e = m
		}
	}
	var out []Overall
	for _, policy := range r.policies() {
		o := Overall{Policy: policy}
		n := 0.0
		logs := [4]float64{}
		for _, g := range groups {
			x, base := r.row(g, policy, ""), r.row(g, r.Candidate, "")
			if x == nil || base == nil {
				continue
			}
			n++
			for i, key := range []string{"ttft_mean", "ttft_p99", "tpot_mean", "e2e_mean"} {
				if a, b := x.Stat(key).Mean, base.Stat(key).Mean; a > 0 && b > 0 {
					logs[i] += math.Log(a / b)
				}
			}
			for _, f := range []struct {
				to  *float64
				key string
			}{
				{&o.Goodput, "goodput"}, {&o.Hit, "hit"}, {&o.Churn, "churn"}, {&o.Missed, "deadlines_missed"},
				{&o.Work, "max_work"}, {&o.Jain, "jain"}, {&o.Lost, "rejected"}, {&o.Lost, "failed"},
			} {
				*f.to += x.Stat(f.key).Mean
			}
			o.Regret += x.Regret.Mean
			if r.ranked(policy) && x.Stat("e2e_mean").Mean == r.best(g, "", e2e) {
				o.Best++
			}
		}
		if n == 0 {
			continue
		}
		for i, to := range []*float64{&o.TTFT, &o.P99, &o.TPOT, &o.E2E} {
			*to = math.Exp(logs[i] / n)
		}
		for _, v := range []*float64{&o.Goodput, &o.Hit, &o.Churn, &o.Missed, &o.Work, &o.Jain, &o.Regret, &o.Lost} {
			*v /= n
		}
		out = append(out, o)
	}
	return out
}
