package demo

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/isobar-go/isobar/router"
)

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// why says in a few words what decided.
func why(r *router.Receipt) string {
	if r.Rejected != "" {
		return r.Rejected
	}
	var words []string
	switch {
	case r.Degraded:
		words = append(words, "no usable telemetry")
	case r.Probe:
		words = append(words, "probe")
	}
	switch t := r.Terms; {
	case r.Withheld != router.NoReason:
		words = append(words, "cache not counted: "+r.Withheld.String())
	case t.Saved > 0:
		words = append(words, fmt.Sprintf("warm, saves %.0f ms", t.Saved))
	}
	switch total := r.Terms.Total(); {
	case r.RunnerUp == "":
		words = append(words, "the only one")
	case r.RunnerUpTotal > total+r.TieWindow:
		words = append(words, fmt.Sprintf("%.0f ms before %s", r.RunnerUpTotal-total, r.RunnerUp))
	case r.RunnerUpTotal >= total-r.TieWindow:
		words = append(words, "by lot")
	default: // what it would have cost the request itself was too much
		words = append(words, fmt.Sprintf("bounds rule out %s", r.RunnerUp))
	}
	return strings.Join(words, "; ")
}

// table writes one line for every request; those of the burst share a few. The first token comes at the end of a pass of
// the engine, whose own time in ms is no part of the start that the router predicts.
func table(w io.Writer, r *run, scale, pass float64) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "at s\trequest\tclass\tprompt\tendpoint\twhy\tcached: expected\tfound\tstart ms: predicted\tfound\tend")
	begin := r.results[0].sent
	var burst []result
	for _, x := range r.results {
		at := x.sent.Sub(begin).Seconds() * scale
		if x.kind != kindBurst {
			row(t, &x, r.receipts[x.id], at, pass)
			continue
		}
		if burst = append(burst, x); len(burst) == burstSize {
			burstRows(t, burst, at)
		}
	}
	return t.Flush()
}

func row(t io.Writer, x *result, receipt *router.Receipt, at, pass float64) {
	end := string(x.verdict)
	if x.attempts > 1 {
		end += fmt.Sprintf(" on try %d", x.attempts)
	}
	if receipt == nil {
		fmt.Fprintf(t, "%.2f\t%s\t%s\t\t%s\t\t\t\t\t\t%s\n", at, x.id, x.class, x.endpoint, end)
		return
	}
	endpoint := cmp.Or(receipt.Endpoint, "-")
	start := "-"
	if o := receipt.Outcome; o != nil && o.FirstTokenMS > 0 {
		start = fmt.Sprintf("%.0f", o.FirstTokenMS)
	}
	fmt.Fprintf(t, "%.2f\t%s\t%s\t%d\t%s\t%s\t%d\t%d\t%.0f\t%s\t%s\n", at, x.id, x.class, receipt.PromptTokens, endpoint, why(receipt),
		receipt.Cached, x.cached, receipt.Terms.Start()+pass, start, end)
}

func burstRows(t io.Writer, burst []result, at float64) {
	counts := map[string]int{}
	for _, x := range burst {
		counts[cmp.Or(x.endpoint, "-")+"\t"+string(x.verdict)]++
	}
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		endpoint, end, _ := strings.Cut(key, "\t")
		fmt.Fprintf(t, "%.2f\tburst x %d\t%s\t\t%s\t\t\t\t\t\t%s\n", at, counts[key], burst[0].class, endpoint, end)
	}
}

// figures sum a run up.
type figures struct {
	answered, refused, broken, lost, retries int
	startMean, startP50, startP99, endMean   float64 // ms of the clock
	cachedShare                              float64
}

func (r *run) figures() figures {
	f := figures{retries: r.retries}
	var starts []float64
	var prompt, cached int64
	for _, x := range r.results {
		switch x.verdict {
		case refused:
			f.refused++
		case broken:
			f.broken++
		case lost:
			f.lost++
		default:
			f.answered++
			starts = append(starts, ms(x.start))
			f.startMean += ms(x.start)
			f.endMean += ms(x.took)
			prompt += x.prompt
			cached += x.cached
		}
	}
	if f.answered > 0 {
		f.startMean /= float64(f.answered)
		f.endMean /= float64(f.answered)
		slices.Sort(starts)
		f.startP50, f.startP99 = starts[len(starts)/2], starts[(len(starts)-1)*99/100]
	}
	if prompt > 0 {
		f.cachedShare = float64(cached) / float64(prompt)
	}
	return f
}

func summary(w io.Writer, names [2]string, runs [2]*run) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	a, b := runs[0].figures(), runs[1].figures()
	fmt.Fprintf(t, "\t%s\t%s\t\n", names[0], names[1])
	for _, line := range []struct {
		name   string
		format string
		a, b   float64
	}{
		{"first token, mean ms", "%.0f", a.startMean, b.startMean}, {"p50", "%.0f", a.startP50, b.startP50},
		{"p99", "%.0f", a.startP99, b.startP99},
		{"whole answer, mean ms", "%.0f", a.endMean, b.endMean},
		{"prompt tokens from cache, %", "%.1f", 100 * a.cachedShare, 100 * b.cachedShare},
		{"answered", "%.0f", float64(a.answered), float64(b.answered)}, {"refused with 429", "%.0f", float64(a.refused), float64(b.refused)},
		{"broken by the kill", "%.0f", float64(a.broken), float64(b.broken)}, {"lost", "%.0f", float64(a.lost), float64(b.lost)},
		{"sent on to another engine", "%.0f", float64(a.retries), float64(b.retries)},
	} {
		fmt.Fprintf(t, "%s\t"+line.format+"\t"+line.format+"\t\n", line.name, line.a, line.b)
	}
	return t.Flush()
}

// tooLate is how far behind its schedule a run may be and still mean what it shows.
const tooLate = 50 * time.Millisecond

// check says what the demonstration claims and did not do, all of it joined. Where the policy is only there for
// comparison, it may come to its cap outside the burst, too.
func (r *run) check(compared bool) error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("demo: "+format, args...)) }
	refusals, breaks := 0, 0
	for _, x := range r.results {
		switch x.verdict {
		case lost:
			fault("request %s was lost: %v", x.id, x.err)
		case refused:
			refusals++
			if x.kind != kindBurst && !compared {
				fault("request %s was refused outside the burst", x.id)
			}
		case broken:
			breaks++
			if x.endpoint != engineC || x.sent.After(r.killed) {
				fault("request %s broke on %s, which was not killed in the middle of it: %v", x.id, x.endpoint, x.err)
			}
		}
		if x.endpoint == engineB && x.sent.After(r.drained[0]) && x.sent.Before(r.drained[1]) {
			fault("request %s went to %s while that was draining", x.id, engineB)
		}
		if x.endpoint == engineC && x.sent.After(r.killed) {
			fault("request %s was answered by %s after its end", x.id, engineC)
		}
		if x.verdict != refused && r.receipts[x.id] == nil {
			fault("request %s has no receipt", x.id)
		}
	}
	if refusals == 0 && !r.queued {
		fault("the burst of %d met no refusal at a cap of %d", burstSize, aggregate)
	}
	if breaks == 0 {
		fault("the kill broke no stream")
	}
	if len(faults) > 0 && r.late > tooLate {
		fault("the machine was up to %v behind the schedule: try a smaller -scale", r.late.Round(time.Millisecond))
	}
	return errors.Join(faults...)
}
