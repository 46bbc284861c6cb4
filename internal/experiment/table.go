package experiment

import (
	"slices"

	"github.com/isobar-go/isobar/internal/world"
)

// Table gathers results into rows. Its memory grows with the rows and seeds, not with the requests. Make it with NewTable. A Table
// belongs to one goroutine at a time.
type Table struct {
	metrics []Metric
	oracle  string
	rows    []*Row
	at      map[rowKey]*Row
}

type rowKey struct {
	group  Group
	policy string
	class  string
}

// Row is the figures of one policy at one place of the grid. A Row is a plain value that belongs to its reader.
type Row struct {
	Group
	// Policy is its name; Class that of the priority class it is about, empty = all requests.
	Policy, Class string
	// Seeds are those of the values, in the order of their arrival.
	Seeds []uint64
	// Stats are the figures over the seeds, in the order of Metrics.
	Stats []Stat
	// Values are the figures of each seed: Values[i][k] is the i-th figure of the k-th seed.
	Values [][]float64
	// Regret is by what share the mean end-to-end time exceeds that of the oracle on the same arrivals, over the seeds that
	// both have; its N is 0 where there is no oracle.
	Regret Stat
	// ChoiceRegret and OthersRegret are those of single choices, where the policy is watched; see [ChoiceRegret].
	ChoiceRegret, OthersRegret Stat

	choice, others []float64
}

// NewTable makes an empty table. oracle is the name of the policy that regret is measured against; empty = no regret.
func NewTable(oracle string) *Table {
	return &Table{metrics: Metrics(), oracle: oracle, at: map[rowKey]*Row{}}
}

// Add takes the figures of a result.
func (t *Table) Add(r Result) {
	row := t.add(r.Group, r.Policy, "", r.Seed, &r.Figures)
	if r.Regret.Choices > 0 {
		row.choice, row.others = append(row.choice, r.Regret.Own), append(row.others, r.Regret.Others)
	}
	for i := range r.Classes {
		t.add(r.Group, r.Policy, r.Classes[i].Class.String(), r.Seed, &r.Classes[i].Figures)
	}
}

func (t *Table) add(g Group, policy, class string, seed uint64, f *world.Figures) *Row {
	key := rowKey{g, policy, class}
	row := t.at[key]
	if row == nil {
		row = &Row{Group: g, Policy: policy, Class: class, Values: make([][]float64, len(t.metrics))}
		t.at[key] = row
		t.rows = append(t.rows, row)
	}
	row.Seeds = append(row.Seeds, seed)
	for i := range t.metrics {
		row.Values[i] = append(row.Values[i], t.metrics[i].value(f))
	}
	return row
}

// Rows returns a row for each group, policy and class, in the order in which they first appeared.
func (t *Table) Rows() []Row {
	e2e := metricAt("e2e_mean")
	out := make([]Row, len(t.rows))
	for i, r := range t.rows {
		row := *r
		row.Seeds, row.Values, row.Stats = slices.Clone(r.Seeds), make([][]float64, len(r.Values)), make([]Stat, len(r.Values))
		row.ChoiceRegret, row.OthersRegret = NewStat(r.choice), NewStat(r.others)
		for k, v := range r.Values {
			row.Values[k], row.Stats[k] = slices.Clone(v), NewStat(v)
		}
		if o := t.at[rowKey{r.Group, t.oracle, r.Class}]; o != nil && t.oracle != "" {
			row.Regret = NewStat(paired(r, o, e2e))
		}
		out[i] = row
	}
	return out
}

// paired is by what share a figure of r exceeds that of o, for each seed that both have.
func paired(r, o *Row, metric int) []float64 {
	var out []float64
	for k, seed := range r.Seeds {
		j := slices.Index(o.Seeds, seed)
		if j >= 0 && o.Values[metric][j] > 0 {
			out = append(out, r.Values[metric][k]/o.Values[metric][j]-1)
		}
	}
	return out
}

// Stat is the figure of that key; its N is 0 where there is none.
func (r *Row) Stat(key string) Stat {
	if i := metricAt(key); i >= 0 && i < len(r.Stats) {
		return r.Stats[i]
	}
	return Stat{}
}
