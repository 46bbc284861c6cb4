package report

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/isobar-go/isobar/internal/experiment"
)

// palette is that of Okabe and Ito, which people who see few colors can tell apart.
var palette = [...]color.RGBA{
	{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255}, {230, 159, 0, 255}, {86, 180, 233, 255},
	{90, 90, 90, 255}, {0, 0, 0, 255},
}

func hue(i int) color.RGBA { return palette[i%len(palette)] }

const (
	plotWidth  = 400 * vg.Length(1)
	plotHeight = 270 * vg.Length(1)
	least      = 0.1 // ms on logarithmic axes
)

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.TextStyle.Font.Variant = "Sans"
	p.Legend.TextStyle.Font.Variant = "Sans"
	p.Legend.TextStyle.Font.Size = vg.Points(9)
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Label.TextStyle.Font.Variant, a.Tick.Label.Font.Variant = "Sans", "Sans"
		a.Label.TextStyle.Font.Size, a.Tick.Label.Font.Size = vg.Points(10), vg.Points(9)
	}
	return p
}

// logarithmic makes an axis logarithmic, over whole decades around its values.
func logarithmic(a *plot.Axis, low, high float64) {
	if low > high { // nothing to show
		low, high = 1, 10
	}
	low, high = max(low, least), max(high, least)
	a.Min = math.Pow(10, math.Floor(math.Log10(low)))
	a.Max = math.Pow(10, math.Ceil(math.Log10(high*1.000001)))
	if a.Max <= a.Min {
		a.Max = 10 * a.Min
	}
	a.Scale, a.Tick.Marker = plot.LogScale{}, decades{}
}

// decades marks powers of ten and, without labels, what is between them.
type decades struct{}

// Ticks are those from min to max.
func (decades) Ticks(min, max float64) []plot.Tick {
	var out []plot.Tick
	for v := math.Pow(10, math.Floor(math.Log10(min)+0.5)); v <= max*1.0001; v *= 10 {
		label := fmt.Sprintf("%.0f", v)
		if v < 1 {
			label = fmt.Sprintf("%.1f", v)
		}
		out = append(out, plot.Tick{Value: v, Label: label})
		for k := 2; k < 10 && v*float64(k) <= max; k++ {
			out = append(out, plot.Tick{Value: v * float64(k)})
		}
	}
	return out
}

// whole marks five or so round numbers without a fraction.
type whole struct{}

// Ticks are those from min to max.
func (whole) Ticks(min, max float64) []plot.Tick {
	step := 1.0
	for k := 0; (max-min)/step > 6; k++ {
		step *= []float64{2, 2.5, 2}[k%3] // 1, 2, 5, 10
	}
	var out []plot.Tick
	for v := math.Ceil(min/step) * step; v <= max; v += step {
		out = append(out, plot.Tick{Value: v, Label: grouped(v)})
	}
	return out
}

// svg draws a plot for use inside a page: without the head of a file.
func svg(p *plot.Plot) (template.HTML, error) {
	c := vgsvg.New(plotWidth, plotHeight)
	p.Draw(draw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", err
	}
	at := bytes.Index(b.Bytes(), []byte("<svg"))
	if at < 0 {
		return "", fmt.Errorf("report: the drawing of %q is no SVG", p.Title.Text)
	}
	return template.HTML(b.Bytes()[at:]), nil
}

// scatter shows what was predicted of the start of requests against what became of it.
func scatter(run *Run) (template.HTML, error) {
	p := newPlot("Estimated work and observed start: "+run.Policy, "predicted time to the first token, ms", "observed, ms")
	low, high := math.Inf(1), 0.0
	var classes []string
	for _, x := range run.Points {
		low, high = min(low, x.Predicted, x.Observed), max(high, x.Predicted, x.Observed)
		if !slices.Contains(classes, x.Class) {
			classes = append(classes, x.Class)
		}
	}
	slices.Sort(classes)
	logarithmic(&p.X, low, high)
	logarithmic(&p.Y, low, high)
	for i, class := range classes {
		var xy plotter.XYs
		for _, x := range run.Points {
			if x.Class == class {
				xy = append(xy, plotter.XY{X: max(x.Predicted, least), Y: max(x.Observed, least)})
			}
		}
		s, err := plotter.NewScatter(xy)
		if err != nil {
			return "", err
		}
		s.Shape, s.Radius, s.Color = draw.CircleGlyph{}, vg.Points(1.3), hue(i)
		p.Add(s)
		p.Legend.Add(class, s)
	}
	right, err := plotter.NewLine(plotter.XYs{{X: p.X.Min, Y: p.X.Min}, {X: p.X.Max, Y: p.X.Max}})
	if err != nil {
		return "", err
	}
	right.Color, right.Dashes = color.Gray{140}, []vg.Length{vg.Points(3), vg.Points(3)}
	p.Add(right)
	p.Legend.Left, p.Legend.Top = true, true
	return svg(p)
}

// distribution shows which share of requests took at most how long, by policy and class.
func distribution(title string, runs []*Run, of func(*Times) []float64) (template.HTML, error) {
	p := newPlot(title, "ms", "share of requests, %")
	low, high := math.Inf(1), 0.0
	for i, run := range runs {
		for k := range run.Classes {
			v := of(&run.Classes[k])
			if len(v) < 2 {
				continue
			}
			xy := make(plotter.XYs, len(v))
			for j, x := range v {
				xy[j] = plotter.XY{X: max(x, least), Y: 100 * float64(j) / float64(len(v)-1)}
				low, high = min(low, xy[j].X), max(high, xy[j].X)
			}
			l, err := plotter.NewLine(xy)
			if err != nil {
				return "", err
			}
			l.Color, l.Width = hue(i), vg.Points(1.2)
			name := run.Policy
			if len(run.Classes) > 1 {
				name += ", " + run.Classes[k].Class
				l.Dashes = [][]vg.Length{nil, {vg.Points(4), vg.Points(2)}, {vg.Points(1), vg.Points(2)}}[k%3]
			}
			p.Add(l)
			p.Legend.Add(name, l)
		}
	}
	logarithmic(&p.X, low, high)
	p.Y.Min, p.Y.Max = 0, 100
	p.Legend.Left, p.Legend.Top = true, true
	return svg(p)
}

// loads shows the requests at each engine over time. top makes plots of several policies comparable.
func loads(run *Run, top float64) (template.HTML, error) {
	p := newPlot("Requests at each engine: "+run.Policy, "s", "running and waiting")
	for i, l := range run.Loads {
		if len(l.At) < 2 {
			continue
		}
		xy := make(plotter.XYs, len(l.At))
		for k := range l.At {
			xy[k] = plotter.XY{X: l.At[k], Y: l.Requests[k]}
		}
		line, err := plotter.NewLine(xy)
		if err != nil {
			return "", err
		}
		line.Color, line.Width = hue(i), vg.Points(0.7)
		p.Add(line)
	}
	p.X.Min, p.Y.Min, p.Y.Max = 0, 0, max(1, top)
	p.Y.Tick.Marker = whole{}
	return svg(p)
}

// byLoad shows a figure over the loads of a workload, with the intervals of its means.
func byLoad(r *Report, g experiment.Group, policies []string, m experiment.Metric) (template.HTML, error) {
	p := newPlot(m.Title+" by load", "load, % of round robin's saturation", "ms")
	for i, policy := range policies {
		var xy plotter.XYs
		var bars yErrors
		for k := range r.Rows {
			x := &r.Rows[k]
			at := x.Group
			at.Load = g.Load
			if at != g || x.Policy != policy || x.Class != "" {
				continue
			}
			s := x.Stat(m.Key)
			xy = append(xy, plotter.XY{X: 100 * x.Load, Y: s.Mean})
			bars.XYs = append(bars.XYs, xy[len(xy)-1])
			bars.YErrors = append(bars.YErrors, struct{ Low, High float64 }{s.Half, s.Half})
		}
		if len(xy) == 0 {
			continue
		}
		line, err := plotter.NewLine(xy)
		if err != nil {
			return "", err
		}
		e, err := plotter.NewYErrorBars(bars)
		if err != nil {
			return "", err
		}
		line.Color, e.Color = hue(i), hue(i)
		p.Add(line, e)
		p.Legend.Add(policy, line)
	}
	p.Y.Min = 0
	p.Legend.Left, p.Legend.Top = true, true
	return svg(p)
}

type yErrors struct {
	plotter.XYs
	plotter.YErrors
}
