package report_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/isobar-go/isobar/examples/replay/internal/report"
	"github.com/isobar-go/isobar/internal/experiment"
	"github.com/isobar-go/isobar/internal/world"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
)

var update = flag.Bool("update", false, "write the golden files")

// result is what a policy did at a place, made up: slow is how much slower than the fastest.
func result(workload string, load float64, policy string, seed uint64, slow float64) experiment.Result {
	f := world.Figures{
		Requests: 1000, Finished: 998, Rejected: 2, Goodput: 1 - slow/10, HitShare: 0.5 / slow, MaxWork: 1 + slow/10, Jain: 0.9, Churn: slow / 20,
		Preemptions: 3, Deadlines: 10, Missed: 1,
		TTFT: world.Dist{N: 998, Mean: 200 * slow, P50: 150 * slow, P90: 500 * slow, P99: 1500 * slow},
		TPOT: world.Dist{N: 998, Mean: 12.345 * slow}, E2E: world.Dist{N: 998, Mean: 3000*slow + 10*float64(seed), P99: 9000},
	}
	r := experiment.Result{
		Cell: experiment.Cell{
			Group:  experiment.Group{Workload: workload, Fleet: "2 x h100-8b", Load: load, Period: 100 * time.Millisecond, Gateways: 1},
			Policy: policy, Seed: seed, Speed: 2 * load,
		}, Figures: f,
		Classes: []experiment.ClassFigures{{Class: router.ClassInteractive, Figures: f}, {Class: router.ClassBatch, Figures: f}},
	}
	if policy == "pressure" {
		r.Regret = experiment.ChoiceRegret{Choices: 1000, Own: 0.01, Others: 0.02}
	}
	return r
}

// detail is a whole result, made up too.
func detail(slow float64) *world.Result {
	out := &world.Result{}
	for i := range 900 {
		at := time.Duration(i) * 50 * time.Millisecond
		first := at + time.Duration(slow*float64(100+i%37)*1e6)
		r := world.Record{
			Number: i, Arrival: at, Sent: at, FirstToken: first, End: first + 2*time.Second, Outcome: world.Finished, OutputTokens: 100,
			Class: []router.Class{router.ClassInteractive, router.ClassBatch}[i%2], Terms: score.Terms{Queue: float64(i % 50), Prefill: 60},
		}
		out.Records = append(out.Records, r)
	}
	for _, id := range []string{"a", "b"} {
		e := world.EngineResult{ID: id}
		for s := range 300 {
			e.Series = append(e.Series, world.Sample{At: time.Duration(s) * time.Second, Running: s % 7, Waiting: s / 100})
		}
		out.Engines = append(out.Engines, e)
	}
	return out
}

func sample() *report.Report {
	r := &report.Report{
		Title: "Policies & <others>", Facts: []report.Fact{{Name: "seeds", Value: "2"}}, Candidate: "pressure", Oracle: "oracle",
		Aside: []string{"oracle", "no interference"}, Ablations: []string{"no interference"},
		Saturations: []experiment.Saturation{{Workload: "w", Fleet: "2 x h100-8b", Speed: 2, Rate: 7.5, Unsaturated: true}},
	}
	table := experiment.NewTable("oracle")
	for _, w := range []string{"w", "v"} {
		for _, load := range []float64{0.8, 1.1} {
			focus := report.Focus{Seed: 1}
			for seed := range uint64(2) {
				for _, p := range []struct {
					name string
					slow float64
				}{{"pressure", 1}, {"round-robin", 2}, {"lpwl", 1.2}, {"oracle", 0.9}, {"no interference", 1.1}} {
					x := result(w, load, p.name, seed+1, p.slow)
					table.Add(x)
					if seed == 0 && load == 0.8 {
						x.Detail = detail(p.slow)
						focus.Group = x.Group
						focus.Runs = append(focus.Runs, report.Digest(x))
					}
				}
			}
			if load == 0.8 {
				r.Focus = append(r.Focus, focus)
			}
		}
	}
	r.Rows = table.Rows()
	r.Verdicts = experiment.Accept(r.Rows, experiment.Roles{Candidate: "pressure", Baselines: []string{"round-robin", "lpwl"}})
	return r
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got))
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, sample().Text(&b, report.Look{Full: true}))
	golden(t, "report.txt", b.Bytes())
	assert.NotContains(t, b.String(), "\x1b", "no color unless asked for")
	b.Reset()
	require.NoError(t, sample().Text(&b, report.Look{Color: true}))
	assert.Contains(t, b.String(), "\x1b[")
}

func TestCSV(t *testing.T) {
	var b bytes.Buffer
	r := sample()
	r.Rows = r.Rows[:1]
	require.NoError(t, r.CSV(&b))
	golden(t, "figures.csv", b.Bytes())

	b.Reset()
	c, err := report.NewRunsCSV(&b)
	require.NoError(t, err)
	require.NoError(t, c.Add(result("w, or so", 0.8, "pressure", 7, 1)))
	require.NoError(t, c.Flush())
	lines, err := csv.NewReader(&b).ReadAll()
	require.NoError(t, err)
	require.Len(t, lines, 2)
	at := func(name string) string { return lines[1][slices.Index(lines[0], name)] }
	assert.Equal(t, []string{"w, or so", "0.8", "100", "7", "1.6", "3070", "0.01"},
		[]string{at("workload"), at("load"), at("period_ms"), at("seed"), at("speed"), at("e2e_mean"), at("choice_regret")})
}

func TestJSON(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, sample().JSON(&b))
	var got struct {
		Rows []struct {
			Workload, Policy, Class string
			Seeds                   []uint64
			Figures                 map[string]struct{ N, Mean, Half95 float64 }
		}
		Overview []map[string]any
		Verdicts []map[string]any
	}
	require.NoError(t, json.Unmarshal(b.Bytes(), &got))
	require.NotEmpty(t, got.Rows)
	assert.Equal(t, "w", got.Rows[0].Workload)
	assert.Equal(t, []uint64{1, 2}, got.Rows[0].Seeds)
	assert.Equal(t, 3015.0, got.Rows[0].Figures["e2e_mean"].Mean)
	assert.InDelta(t, 12.7062*5, got.Rows[0].Figures["e2e_mean"].Half95, 1e-3)
	assert.Len(t, got.Overview, 5)
	assert.NotEmpty(t, got.Verdicts)
}

// outward are the attributes by which a page can ask for something else.
var outward = [...]string{"src", "href", "srcset", "action", "data", "poster", "background", "formaction", "ping"}

// external finds what a page would fetch.
func external(t *testing.T, page []byte) []string {
	t.Helper()
	doc, err := html.Parse(bytes.NewReader(page))
	require.NoError(t, err)
	var out []string
	style := func(s string) {
		for _, word := range []string{"url(", "@import", "src:"} {
			if strings.Contains(s, word) {
				out = append(out, word)
			}
		}
	}
	for n := range doc.Descendants() {
		if n.Type == html.TextNode && n.Parent.Data == "style" {
			style(n.Data)
		}
		if n.Type != html.ElementNode {
			continue
		}
		if slices.Contains([]string{"script", "link", "iframe", "img", "object", "embed", "image", "use", "base"}, n.Data) {
			out = append(out, n.Data)
		}
		for _, a := range n.Attr {
			if slices.Contains(outward[:], a.Key) || strings.HasPrefix(a.Key, "on") {
				out = append(out, n.Data+" "+a.Key)
			}
			style(a.Val)
		}
	}
	return out
}

func TestExternalCanFail(t *testing.T) {
	for _, bad := range []string{
		`<img src="x">`, `<link rel="stylesheet" href="x">`, `<style>@import "x";</style>`, `<p style="background: url(x)">`, `<script>1</script>`,
		`<svg><image xlink:href="x"/></svg>`, `<a href="x">`,
	} {
		assert.NotEmpty(t, external(t, []byte(bad)), bad)
	}
}

func TestHTML(t *testing.T) {
	var b, again bytes.Buffer
	require.NoError(t, sample().HTML(&b))
	require.NoError(t, sample().HTML(&again))
	assert.True(t, bytes.Equal(b.Bytes(), again.Bytes()), "the same report, the same page")
	assert.Empty(t, external(t, b.Bytes()))
	assert.NotContains(t, b.String(), "<?xml", "drawings are part of the page, not files")

	doc, err := html.Parse(&b)
	require.NoError(t, err)
	var heads, firsts []string
	svgs := 0
	for n := range doc.Descendants() {
		if n.Type == html.ElementNode && (n.Data == "h1" || n.Data == "h2") {
			heads = append(heads, n.FirstChild.Data)
		}
		if n.Type == html.ElementNode && n.Data == "svg" {
			svgs++
			for c := range n.Descendants() {
				if c.Type == html.TextNode && c.Parent.Data == "text" && strings.HasPrefix(c.Data, "Estimated work") {
					firsts = append(firsts, c.Data)
					assert.Equal(t, html.ElementNode, n.Parent.Type)
					assert.Equal(t, n, firstElement(n.Parent), "it is the first plot")
				}
			}
		}
	}
	assert.Equal(t, []string{"Policies & <others>", "w", "v"}, heads)
	assert.Equal(t, []string{"Estimated work and observed start: pressure", "Estimated work and observed start: pressure"}, firsts)
	assert.Equal(t, 2*8, svgs)
}

func firstElement(n *html.Node) *html.Node {
	for c := range n.ChildNodes() {
		if c.Type == html.ElementNode {
			return c
		}
	}
	return nil
}

// A report of nothing, and one of figures that are all zero, are shown all the same.
func TestDegenerate(t *testing.T) {
	zero := experiment.Result{Cell: experiment.Cell{Group: experiment.Group{Workload: "w"}, Policy: "pressure"}}
	zero.Detail = &world.Result{
		Records: []world.Record{
			{Outcome: world.Finished, Terms: score.Terms{Queue: 1}}, {Outcome: world.Finished, OutputTokens: 2}, {Outcome: world.Rejected, FirstToken: world.Never},
		},
		Engines: []world.EngineResult{{ID: "a"}, {ID: "b", Series: make([]world.Sample, 2)}},
	}
	table := experiment.NewTable("")
	table.Add(zero)
	zero.Load = 0.5
	table.Add(zero)
	for _, r := range []*report.Report{
		{}, {Candidate: "nobody", Rows: table.Rows()},
		{Candidate: "pressure", Rows: table.Rows(), Focus: []report.Focus{{Group: zero.Group, Runs: []report.Run{report.Digest(zero)}}}},
	} {
		var b bytes.Buffer
		require.NoError(t, r.Text(&b, report.Look{Full: true}))
		require.NoError(t, r.HTML(&b))
		require.NoError(t, r.JSON(&b))
		require.NoError(t, r.CSV(&b))
		assert.NotContains(t, b.String(), "NaN")
	}
}

func TestDigestIsBounded(t *testing.T) {
	x := result("w", 1, "pressure", 1, 1)
	x.Detail = detail(1)
	d := report.Digest(x)
	require.Len(t, d.Points, 700)
	assert.Equal(t, []float64{60, 60 + 898%50}, []float64{d.Points[0].Predicted, d.Points[699].Predicted}, "from the whole run")
	require.Len(t, d.Classes, 2)
	assert.Equal(t, "batch", d.Classes[0].Class)
	for _, c := range d.Classes {
		assert.Len(t, c.TTFT, 101)
		assert.True(t, slices.IsSorted(c.E2E))
		assert.Equal(t, 100.0, c.TTFT[0])
		assert.Equal(t, 136.0, c.TTFT[100])
	}
	require.Len(t, d.Loads, 2)
	assert.Len(t, d.Loads[0].At, 150)
	assert.Empty(t, report.Digest(result("w", 1, "pressure", 1, 1)).Classes)
}
