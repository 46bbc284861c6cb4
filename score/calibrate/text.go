package calibrate

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// String is the report as a table for a terminal.
func (r *Report) String() string {
	var b strings.Builder
	_ = r.WriteText(&b) // a Builder takes everything
	return b.String()
}

// WriteText writes the report as a table for a terminal. The error is that of the writer.
func (r *Report) WriteText(to io.Writer) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%d receipts, %d used", r.Receipts, r.Used)
	sep := "; left out: "
	for _, l := range r.Left {
		fmt.Fprintf(w, "%s%d %v", sep, l.Receipts, l.Reason)
		sep = ", "
	}
	fmt.Fprintln(w)
	for i := range r.Fits {
		r.Fits[i].write(w)
	}
	if len(r.Residuals) > 0 {
		fmt.Fprint(w, "\nheld-out half, ms; off is observed less predicted\n\t\t\tfirst token\t\toff\t\t\t\tcompletion\t\toff\n"+
			"by\t\treceipts\tmean error\tmedian\tp10\tp50\tp90\tp99\tmean error\tmedian\tp10\tp50\tp90\tp99\n")
	}
	for i := range r.Residuals {
		c := &r.Residuals[i]
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\n", c.By, c.Value, c.FirstToken.Receipts, c.FirstToken.cells(), c.FirstTokenOff.cells(),
			c.Completion.cells(), c.CompletionOff.cells())
	}
	return w.Flush()
}

func (f *Fit) write(w io.Writer) {
	kind := "profile"
	if f.Single {
		kind = "endpoint"
	}
	fmt.Fprintf(w, "\n%s %s: %d receipts, %d fitted, %d held out", kind, f.Name, f.Receipts, f.Fitted, f.HeldOut)
	if !f.Single {
		fmt.Fprintf(w, ", endpoints %s", strings.Join(f.Endpoints, " "))
	}
	if len(f.Kept) > 0 {
		fmt.Fprintf(w, ", not for %s, which it makes worse", strings.Join(f.Kept, " "))
	}
	fmt.Fprintln(w)
	part := func(name string, e *Errors) {
		fmt.Fprintf(w, "  %s: mean error %.4g -> %.4g ms (%s), median %.4g -> %.4g ms, %d receipts\n", name, e.Before, e.After,
			percent(e.Before, e.After), e.MedianBefore, e.MedianAfter, e.Receipts)
	}
	part("first token", &f.FirstToken)
	part("completion", &f.Completion)
	fmt.Fprintf(w, "  prefill %v, decode %v", f.Prefill, f.Decode)
	if len(f.Coefficients) > 0 {
		fmt.Fprintf(w, "; overhead of a first token %.3g ms, price of a pending token %.3g ms", f.Overhead, f.QueueToken)
	}
	if f.PromptRatio > 0 {
		fmt.Fprintf(w, "; prompts %.2f times the router's count", f.PromptRatio)
	}
	fmt.Fprintln(w)
	if len(f.Coefficients) > 0 {
		fmt.Fprint(w, "  coefficient\told\tnew\tfound\t95 %\tverdict\n")
	}
	for _, c := range f.Coefficients {
		interval := "-"
		if c.High > 0 {
			interval = fmt.Sprintf("%.3g to %.3g", c.Low, c.High)
		}
		fmt.Fprintf(w, "  %s\t%.3g\t%.3g\t%.3g\t%s\t%v\n", c.Name, c.Old, c.New, c.Fitted, interval, c.Verdict)
	}
}

func percent(before, after float64) string {
	if before == 0 {
		return "-"
	}
	return fmt.Sprintf("%+.1f %%", 100*(after-before)/before)
}

func (e *Errors) cells() string {
	return fmt.Sprintf("%.1f -> %.1f\t%.1f -> %.1f", e.Before, e.After, e.MedianBefore, e.MedianAfter)
}

func (q *Quantiles) cells() string {
	return fmt.Sprintf("%.1f\t%.1f\t%.1f\t%.1f", q.P10, q.P50, q.P90, q.P99)
}
