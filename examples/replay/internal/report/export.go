package report

import (
	"encoding/csv"
	"encoding/json"
	"io"
	"strconv"
	"time"

	"github.com/isobar-go/isobar/internal/experiment"
)

func plain(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

func place(g experiment.Group) []string {
	return []string{
		g.Workload, g.Fleet, plain(g.Load), plain(float64(g.Period) / float64(time.Millisecond)), strconv.Itoa(g.Gateways),
	}
}

// RunsCSV writes a line for each run as it comes: it keeps nothing. It belongs to one goroutine at a time.
type RunsCSV struct {
	w       *csv.Writer
	metrics []experiment.Metric
}

// NewRunsCSV writes the header.
func NewRunsCSV(w io.Writer) (*RunsCSV, error) {
	c := &RunsCSV{w: csv.NewWriter(w), metrics: experiment.Metrics()}
	head := []string{"workload", "fleet", "load", "period_ms", "gateways", "policy", "seed", "speed"}
	for _, m := range c.metrics {
		head = append(head, m.Key)
	}
	return c, c.w.Write(append(head, "choice_regret", "others_regret"))
}

// Add writes a run.
func (c *RunsCSV) Add(r experiment.Result) error {
	line := append(place(r.Group), r.Policy, strconv.FormatUint(r.Seed, 10), plain(r.Speed))
	for i := range c.metrics {
		line = append(line, plain(c.metrics[i].Value(&r.Figures)))
	}
	return c.w.Write(append(line, plain(r.Regret.Own), plain(r.Regret.Others)))
}

// Flush writes what is left.
func (c *RunsCSV) Flush() error {
	c.w.Flush()
	return c.w.Error()
}

// CSV writes a line for each figure of each row: mean and half width of the 95 % confidence interval.
func (r *Report) CSV(w io.Writer) error {
	c := csv.NewWriter(w)
	if err := c.Write([]string{
		"workload", "fleet", "load", "period_ms", "gateways", "policy", "class", "figure", "seeds", "mean", "half95",
	}); err != nil {
		return err
	}
	metrics := experiment.Metrics()
	for i := range r.Rows {
		x := &r.Rows[i]
		write := func(key string, s experiment.Stat) error {
			if s.N == 0 {
				return nil
			}
			return c.Write(append(place(x.Group), x.Policy, x.Class, key, strconv.Itoa(s.N), plain(s.Mean), plain(s.Half)))
		}
		for k := range metrics {
			if err := write(metrics[k].Key, x.Stats[k]); err != nil {
				return err
			}
		}
		for _, f := range extra(x) {
			if err := write(f.key, f.Stat); err != nil {
				return err
			}
		}
	}
	c.Flush()
	return c.Error()
}

type namedStat struct {
	key string
	experiment.Stat
}

// extra are the figures of a row beside those of Metrics.
func extra(x *experiment.Row) []namedStat {
	return []namedStat{{"regret", x.Regret}, {"choice_regret", x.ChoiceRegret}, {"others_regret", x.OthersRegret}}
}

// jsonStat is a figure in JSON.
type jsonStat struct {
	N    int     `json:"n"`
	Mean float64 `json:"mean"`
	Half float64 `json:"half95"`
}

type jsonGroup struct {
	Workload string  `json:"workload"`
	Fleet    string  `json:"fleet"`
	Load     float64 `json:"load"`
	PeriodMS float64 `json:"period_ms"`
	Gateways int     `json:"gateways"`
}

func groupOf(g experiment.Group) jsonGroup {
	return jsonGroup{g.Workload, g.Fleet, g.Load, float64(g.Period) / 1e6, g.Gateways}
}

type jsonRow struct {
	jsonGroup
	Policy  string              `json:"policy"`
	Class   string              `json:"class,omitempty"`
	Seeds   []uint64            `json:"seeds"`
	Figures map[string]jsonStat `json:"figures"`
}

type jsonVerdict struct {
	Criterion string  `json:"criterion"`
	Text      string  `json:"text"`
	Bound     float64 `json:"bound"`
	jsonGroup
	Against string  `json:"against"`
	Value   float64 `json:"value"`
	Half    float64 `json:"half95"`
	Holds   bool    `json:"holds"`
}

// JSON writes everything but the plots.
func (r *Report) JSON(w io.Writer) error {
	out := struct {
		Title       string                  `json:"title"`
		Facts       []Fact                  `json:"facts"`
		Candidate   string                  `json:"candidate"`
		Saturations []experiment.Saturation `json:"saturations"`
		Overview    []Overall               `json:"overview"`
		Verdicts    []jsonVerdict           `json:"verdicts"`
		Rows        []jsonRow               `json:"rows"`
	}{Title: r.Title, Facts: r.Facts, Candidate: r.Candidate, Saturations: r.Saturations, Overview: r.Overview()}
	for _, v := range r.Verdicts {
		out.Verdicts = append(out.Verdicts, jsonVerdict{v.Key, v.Text, v.Bound, groupOf(v.Group), v.Against, v.Value, v.Half, v.Holds})
	}
	metrics := experiment.Metrics()
	for i := range r.Rows {
		x := &r.Rows[i]
		row := jsonRow{jsonGroup: groupOf(x.Group), Policy: x.Policy, Class: x.Class, Seeds: x.Seeds, Figures: map[string]jsonStat{}}
		for k := range metrics {
			row.Figures[metrics[k].Key] = jsonStat(x.Stats[k])
		}
		for _, f := range extra(x) {
			if f.N > 0 {
				row.Figures[f.key] = jsonStat(f.Stat)
			}
		}
		out.Rows = append(out.Rows, row)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(out)
}
