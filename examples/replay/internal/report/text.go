package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/isobar-go/isobar/internal/experiment"
)

// Look says how text is written. A Look is a plain value.
type Look struct {
	// Color marks the best of each column with escape codes: for terminals only.
	Color bool
	// Full adds a table for each place of the grid.
	Full bool
}

// Text writes the table of all policies, and what came of the criteria.
func (r *Report) Text(w io.Writer, look Look) error {
	var b strings.Builder
	r.overview(&b, look)
	if look.Full {
		for _, g := range r.groups() {
			r.place(&b, g, look)
		}
	}
	r.criteria(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func newTable(b io.Writer, title string, head table.Row, leftColumns int) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(b)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.Style().Options.SeparateColumns = false
	t.Style().Title.Align = text.AlignLeft
	t.SetTitle("%s", title)
	t.AppendHeader(head)
	var columns []table.ColumnConfig
	for i := range head {
		align := text.AlignRight
		if i < leftColumns {
			align = text.AlignLeft
		}
		columns = append(columns, table.ColumnConfig{Number: i + 1, Align: align, AlignHeader: align})
	}
	t.SetColumnConfigs(columns)
	return t
}

// mark is a text in the color of the best.
func (l Look) mark(s string, best bool) string {
	if l.Color && best {
		return text.Colors{text.Bold, text.FgGreen}.Sprint(s)
	}
	return s
}

func (r *Report) overview(b io.Writer, look Look) {
	list := r.Overview()
	places := len(r.groups())
	t := newTable(b, fmt.Sprintf("All %d places together; times as multiples of %s", places, r.Candidate), table.Row{
		"policy", "TTFT", "TTFT p99", "TPOT", "E2E", "goodput", "hit", "max/mean work", "churn", "Jain", "late", "lost", "regret", "best E2E",
	}, 1)
	columns := []struct {
		of     func(o *Overall) float64
		show   func(v float64) string
		better experiment.Direction
	}{
		{func(o *Overall) float64 { return o.TTFT }, ratio, experiment.Lower},
		{func(o *Overall) float64 { return o.P99 }, ratio, experiment.Lower},
		{func(o *Overall) float64 { return o.TPOT }, ratio, experiment.Lower},
		{func(o *Overall) float64 { return o.E2E }, ratio, experiment.Lower},
		{func(o *Overall) float64 { return o.Goodput }, share, experiment.Higher},
		{func(o *Overall) float64 { return o.Hit }, share, experiment.Higher},
		{func(o *Overall) float64 { return o.Work }, ratio, experiment.Lower},
		{func(o *Overall) float64 { return o.Churn }, share, experiment.Lower},
		{func(o *Overall) float64 { return o.Jain }, ratio, experiment.Higher},
		{func(o *Overall) float64 { return o.Missed }, share, experiment.Lower},
		{func(o *Overall) float64 { return o.Lost }, func(v float64) string { return number(experiment.Count, v) }, experiment.Lower},
		{func(o *Overall) float64 { return o.Regret }, r.regret, experiment.Lower},
	}
	best := make([]string, len(columns))
	for k, c := range columns {
		top, found := 0.0, false
		for i := range list {
			v := c.of(&list[i])
			if r.ranked(list[i].Policy) && (!found || (c.better == experiment.Lower) == (v < top) && v != top) {
				top, found = v, true
			}
		}
		best[k] = c.show(top)
	}
	aside := false
	for i := range list {
		o := &list[i]
		ranked := r.ranked(o.Policy)
		if !ranked && !aside {
			t.AppendSeparator()
			aside = true
		}
		row := table.Row{o.Policy}
		for k, c := range columns {
			s := c.show(c.of(o))
			row = append(row, look.mark(s, ranked && s == best[k]))
		}
		wins := ""
		if ranked {
			wins = fmt.Sprintf("%d of %d", o.Best, places)
		}
		t.AppendRow(append(row, wins))
	}
	t.Render()
}

func ratio(v float64) string { return number(experiment.Ratio, v) }
func share(v float64) string { return number(experiment.Share, v) }

func (r *Report) regret(v float64) string {
	if r.Oracle == "" {
		return ""
	}
	return percent(v)
}

// placeFigures are those of the table of one place.
var placeFigures = [...]string{
	"ttft_mean", "ttft_p50", "ttft_p99", "tpot_mean", "e2e_mean", "e2e_p99", "goodput", "hit", "max_work", "preemptions",
	"start_error_p50",
}

func (r *Report) place(b io.Writer, g experiment.Group, look Look) {
	head := table.Row{"policy"}
	var figures []experiment.Metric
	for _, m := range experiment.Metrics() {
		for _, key := range placeFigures {
			if m.Key == key {
				figures = append(figures, m)
				head = append(head, m.Title)
			}
		}
	}
	t := newTable(b, g.String()+"; times in ms", append(head, "regret"), 1)
	aside := false
	for _, policy := range r.policies() {
		x := r.row(g, policy, "")
		if x == nil {
			continue
		}
		if !r.ranked(policy) && !aside {
			t.AppendSeparator()
			aside = true
		}
		row := table.Row{policy}
		for _, m := range figures {
			s := x.Stat(m.Key)
			row = append(row, look.mark(shown(x, &m), r.ranked(policy) && s.Mean != 0 && s.Mean == r.best(g, "", m)))
		}
		t.AppendRow(append(row, stat(experiment.Share, x.Regret)))
	}
	t.Render()
}

// criteria writes a line for each criterion.
func (r *Report) criteria(b io.Writer) {
	if len(r.Verdicts) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s against the best of the others, figure by figure and place by place:\n", r.Candidate)
	for _, j := range experiment.Judge(r.Verdicts) {
		if j.Places == 0 {
			continue
		}
		word := "holds"
		if !j.Passes() {
			word = "fails"
		}
		n := j.Places - j.Holding
		if j.Passes() {
			n = j.Holding
		}
		fmt.Fprintf(b, "  %s at %d of %d: %s; worst %s against %s (%v)\n", word, n, j.Places, j.Text, percent(j.Worst.Value), j.Worst.Against,
			j.Worst.Group)
	}
}
