package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/isobar-go/isobar/internal/experiment"
)

//go:embed page.html
var page string

// cell is one of a table.
type cell struct {
	Text string
	Best bool
}

type line struct {
	Name  string
	Aside bool
	Cells []cell
}

type grid struct {
	Title string
	Head  []string
	Lines []line
}

type section struct {
	Title  string
	Plots  []template.HTML
	Places []spot
}

// spot is a place of the grid with its tables.
type spot struct {
	Title   string
	Tables  []grid
	Classes []grid
}

type judgement struct {
	experiment.Judgement
	Passes       bool
	Value, Where string
}

// HTML writes one page that needs nothing else: no script, no network.
func (r *Report) HTML(w io.Writer) error {
	t, err := template.New("page").Parse(page)
	if err != nil {
		return err
	}
	data := struct {
		*Report
		Overview    grid
		Judged      []judgement
		Sections    []section
		Ablation    *grid
		Saturated   grid
		HasVerdicts bool
	}{Report: r, Overview: r.overviewGrid(), Saturated: r.saturationGrid(), Ablation: r.ablationGrid(), HasVerdicts: len(r.Verdicts) > 0}
	for _, j := range experiment.Judge(r.Verdicts) {
		x := judgement{Judgement: j, Passes: j.Passes()}
		if j.Places > 0 {
			x.Value = percent(j.Worst.Value) + " ± " + number(experiment.Share, j.Worst.Half)
			x.Where = j.Worst.Against + "; " + j.Worst.Group.String()
		}
		data.Judged = append(data.Judged, x)
	}
	for _, name := range r.workloads() {
		s, err := r.section(name)
		if err != nil {
			return fmt.Errorf("report: plots of %s: %w", name, err)
		}
		data.Sections = append(data.Sections, s)
	}
	return t.Execute(w, data)
}

func (r *Report) workloads() []string {
	var out []string
	for i := range r.Rows {
		if w := r.Rows[i].Workload; !slices.Contains(out, w) {
			out = append(out, w)
		}
	}
	return out
}

// section is all about one workload.
func (r *Report) section(workload string) (section, error) {
	s := section{Title: workload}
	for i := range r.Focus {
		if f := &r.Focus[i]; f.Group.Workload == workload {
			plots, err := r.plots(f)
			if err != nil {
				return s, err
			}
			s.Plots = append(s.Plots, plots...)
		}
	}
	for _, g := range r.groups() {
		if g.Workload != workload {
			continue
		}
		p := spot{Title: strings.TrimPrefix(g.String(), workload+", ")}
		p.Tables = r.figureGrids(g, "")
		for _, class := range r.classes(g) {
			for _, t := range r.figureGrids(g, class) {
				t.Title = class + ": " + t.Title
				p.Classes = append(p.Classes, t)
			}
		}
		s.Places = append(s.Places, p)
	}
	return s, nil
}

func (r *Report) classes(g experiment.Group) []string {
	var out []string
	for i := range r.Rows {
		if x := &r.Rows[i]; x.Group == g && x.Class != "" && !slices.Contains(out, x.Class) {
			out = append(out, x.Class)
		}
	}
	return out
}

// rival is the ranked policy, other than the candidate, with the best mean end-to-end time at a place.
func (r *Report) rival(g experiment.Group) string {
	name, best := "", 0.0
	for i := range r.Rows {
		x := &r.Rows[i]
		if x.Group != g || x.Class != "" || x.Policy == r.Candidate || !r.ranked(x.Policy) {
			continue
		}
		if v := x.Stat("e2e_mean").Mean; name == "" || v < best {
			name, best = x.Policy, v
		}
	}
	return name
}

// plots of a place: first what was predicted against what was observed.
func (r *Report) plots(f *Focus) ([]template.HTML, error) {
	chosen := []string{r.Candidate}
	for _, name := range []string{r.rival(f.Group), experiment.RoundRobin().Name, r.Oracle} {
		if name != "" && !slices.Contains(chosen, name) {
			chosen = append(chosen, name)
		}
	}
	var runs []*Run
	top := 0.0
	for _, name := range chosen {
		for i := range f.Runs {
			if f.Runs[i].Policy == name {
				runs = append(runs, &f.Runs[i])
			}
		}
	}
	for _, run := range runs[:min(2, len(runs))] {
		for _, l := range run.Loads {
			top = max(top, slices.Max(append([]float64{0}, l.Requests...)))
		}
	}
	var out []template.HTML
	var fault error
	add := func(h template.HTML, err error) {
		if err != nil && fault == nil {
			fault = err
		}
		out = append(out, h)
	}
	for _, run := range runs {
		if run.Policy == r.Candidate && len(run.Points) > 0 {
			add(scatter(run))
		}
	}
	for _, d := range []struct {
		title string
		of    func(*Times) []float64
	}{
		{"Time to the first token (TTFT)", func(t *Times) []float64 { return t.TTFT }},
		{"Time per output token (TPOT)", func(t *Times) []float64 { return t.TPOT }},
		{"Time to the last token (E2E)", func(t *Times) []float64 { return t.E2E }},
	} {
		add(distribution(d.title, runs, d.of))
	}
	for _, run := range runs[:min(2, len(runs))] {
		add(loads(run, top))
	}
	if r.severalLoads(f.Group) {
		for _, m := range experiment.Metrics() {
			if m.Key == "ttft_mean" || m.Key == "e2e_mean" {
				add(byLoad(r, f.Group, chosen, m))
			}
		}
	}
	return out, fault
}

func (r *Report) severalLoads(g experiment.Group) bool {
	for _, other := range r.groups() {
		same := other
		same.Load = g.Load
		if same == g && other != g {
			return true
		}
	}
	return false
}

// figureGrids are the figures of all policies at a place: times first, then the rest.
func (r *Report) figureGrids(g experiment.Group, class string) []grid {
	var parts [3][]experiment.Metric
	for _, m := range experiment.Metrics() {
		switch {
		case strings.HasPrefix(m.Key, "start_"):
			parts[2] = append(parts[2], m)
		case m.Unit == experiment.MS:
			parts[0] = append(parts[0], m)
		case class != "" && (m.Key == "max_work" || m.Key == "jain"): // of the whole run
		default:
			parts[1] = append(parts[1], m)
		}
	}
	titles := [...]string{"times, ms", "what else happened", "prediction of the start, ms, and regret"}
	var out []grid
	for k, metrics := range parts {
		t := grid{Title: titles[k], Head: []string{"policy"}}
		for _, m := range metrics {
			t.Head = append(t.Head, m.Title)
		}
		if k == 2 {
			t.Head = append(t.Head, "Regret E2E", "Regret of choices", "and for others")
		}
		for _, policy := range r.policies() {
			x := r.row(g, policy, class)
			if x == nil {
				continue
			}
			l := line{Name: policy, Aside: !r.ranked(policy)}
			for _, m := range metrics {
				s := x.Stat(m.Key)
				best := !l.Aside && m.Better != experiment.Neither && k < 2 && s.Mean == r.best(g, class, m)
				l.Cells = append(l.Cells, cell{shown(x, &m), best})
			}
			if k == 2 {
				for _, s := range extra(x) {
					l.Cells = append(l.Cells, cell{stat(experiment.Share, s.Stat), false})
				}
			}
			t.Lines = append(t.Lines, l)
		}
		out = append(out, t)
	}
	return out
}

func (r *Report) overviewGrid() grid {
	t := grid{Title: "All places together; times as multiples of " + r.Candidate, Head: []string{
		"policy", "TTFT mean", "TTFT p99", "TPOT mean", "E2E mean", "goodput", "prefix hit", "max/mean work", "churn", "Jain", "deadlines missed",
		"rejected, failed", "regret", "best E2E at",
	}}
	for _, o := range r.Overview() {
		l := line{Name: o.Policy, Aside: !r.ranked(o.Policy)}
		for _, s := range []string{
			ratio(o.TTFT), ratio(o.P99), ratio(o.TPOT), ratio(o.E2E), share(o.Goodput), share(o.Hit), ratio(o.Work), share(o.Churn), ratio(o.Jain),
			share(o.Missed), number(experiment.Count, o.Lost), r.regret(o.Regret),
		} {
			l.Cells = append(l.Cells, cell{Text: s})
		}
		wins := ""
		if !l.Aside {
			wins = fmt.Sprint(o.Best)
		}
		l.Cells = append(l.Cells, cell{Text: wins})
		t.Lines = append(t.Lines, l)
	}
	return t
}

func (r *Report) saturationGrid() grid {
	t := grid{Title: "Saturation of round robin: a load of 100 %", Head: []string{
		"workload, fleet", "speed", "requests/s", "goodput there", "at light load", "E2E mean there, ms", "at light load",
	}}
	for _, s := range r.Saturations {
		speed := ratio(s.Speed)
		if s.Unsaturated {
			speed += " (never saturated)"
		}
		l := line{Name: s.Workload + ", " + s.Fleet}
		for _, text := range []string{
			speed, ratio(s.Rate), share(s.Goodput), share(s.LightGoodput), number(experiment.MS, s.E2E), number(experiment.MS, s.LightE2E),
		} {
			l.Cells = append(l.Cells, cell{Text: text})
		}
		t.Lines = append(t.Lines, l)
	}
	return t
}

// ablationGrid is what each part of the candidate is worth: how figures change without it, at each workload over its places.
func (r *Report) ablationGrid() *grid {
	if len(r.Ablations) == 0 {
		return nil
	}
	t := &grid{
		Title: "What each part is worth: E2E mean and TTFT mean without it, as changes over all places of a workload", Head: []string{"without"},
	}
	for _, w := range r.workloads() {
		t.Head = append(t.Head, w+" E2E", w+" TTFT")
	}
	for _, name := range r.Ablations {
		l := line{Name: name}
		for _, w := range r.workloads() {
			for _, key := range []string{"e2e_mean", "ttft_mean"} {
				var changes []float64
				for _, g := range r.groups() {
					x, base := r.row(g, name, ""), r.row(g, r.Candidate, "")
					if g.Workload != w || x == nil || base == nil || base.Stat(key).Mean <= 0 {
						continue
					}
					changes = append(changes, x.Stat(key).Mean/base.Stat(key).Mean-1)
				}
				l.Cells = append(l.Cells, cell{Text: percent(experiment.NewStat(changes).Mean)})
			}
		}
		t.Lines = append(t.Lines, l)
	}
	return t
}
