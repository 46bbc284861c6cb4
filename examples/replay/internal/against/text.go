package against

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Text writes the summary for a person.
func (s Summary) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d decisions of %s made again by %s: %d would change (%.1f %%)\n", s.Decisions, s.Was, s.Policy, s.Changed,
		100*float64(s.Changed)/float64(s.Decisions))
	if s.Open+s.Bare > 0 {
		fmt.Fprintf(&b, "left out: %d without an outcome yet, %d without candidates\n", s.Open, s.Bare)
	}
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\nendpoint\twas\tnow\tchange\t\n")
	for _, e := range s.Endpoints {
		fmt.Fprintf(t, "%s\t%d\t%d\t%+d\t\n", e.Name, e.Was, e.Now, e.Now-e.Was)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if s.Changed > 0 {
		fmt.Fprint(t, "\nreason\tdecisions\t\n")
		for _, r := range s.Reasons {
			fmt.Fprintf(t, "%s\t%d\t\n", r.Name, r.Now)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if s.Placed > 0 {
		fmt.Fprintf(t, "\npredicted for the new endpoint less the old, ms (%d decisions)\tmean\tp10\tp50\tp90\t\n", s.Placed)
		for _, d := range []struct {
			name string
			Spread
		}{{"to the first token", s.Start}, {"to the last", s.Own}, {"for everybody", s.Total}} {
			fmt.Fprintf(t, "%s\t%+.1f\t%+.1f\t%+.1f\t%+.1f\t\n", d.name, d.Mean, d.P10, d.P50, d.P90)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	for _, c := range s.Examples {
		fmt.Fprintf(&b, "\nline %d: %s instead of %s: %s (first token %+.1f ms, last %+.1f ms, everybody %+.1f ms)\n", c.Line, c.Now, c.Was,
			c.Reason, c.StartMS, c.OwnMS, c.TotalMS)
		fmt.Fprintf(&b, "was\n%snow\n%s", c.Recorded, c.Replayed)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// JSON writes the summary for a program.
func (s Summary) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(s)
}
