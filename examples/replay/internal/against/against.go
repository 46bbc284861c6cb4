// Package against decides recorded requests again under another configuration and says what would have changed.
package against

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
)

// maxLine bounds a line, bytes: a receipt has about 1 KB for each candidate.
const maxLine = 64 << 20

// Config says how to decide again. A Config is a plain value.
type Config struct {
	// Router is the other configuration.
	Router router.Config
	// Examples is how many changed decisions are explained at most.
	Examples int
}

// Tally counts something by name. A Tally is a plain value.
type Tally struct {
	// Name of what is counted.
	Name string `json:"name"`
	// Was and Now are the numbers before and after; of reasons, Was is 0.
	Was int `json:"was"`
	Now int `json:"now"`
}

// Change is one decision that came out otherwise. A Change is a plain value.
type Change struct {
	// Line of the receipt, from 1.
	Line int `json:"line"`
	// Was and Now are the endpoints, or the code of a rejection in parentheses.
	Was string `json:"was"`
	Now string `json:"now"`
	// Reason is what made the difference.
	Reason string `json:"reason"`
	// StartMS, OwnMS and TotalMS are what the new endpoint is predicted to cost more than the old one under the new configuration, ms:
	// to the first token, to the last, and for everybody. 0 where one of them is a rejection.
	StartMS float64 `json:"start_ms"`
	OwnMS   float64 `json:"own_ms"`
	TotalMS float64 `json:"total_ms"`
	// Recorded and Replayed are both decisions in full.
	Recorded string `json:"recorded"`
	Replayed string `json:"replayed"`
}

// Spread describes a difference over all changed decisions, ms. A Spread is a plain value.
type Spread struct {
	// Mean of them; P10, P50 and P90 are the values nearest to those ranks.
	Mean float64 `json:"mean_ms"`
	P10  float64 `json:"p10_ms"`
	P50  float64 `json:"p50_ms"`
	P90  float64 `json:"p90_ms"`
}

// Summary is what would have changed. A Summary is a plain value.
type Summary struct {
	// Policy and Was name the policies that decide now and decided then; several are joined by commas.
	Policy string `json:"policy"`
	Was    string `json:"was"`
	// Decisions that were made again, and Changed ones of them. Same policy, same figures, other lots are changes too.
	Decisions int `json:"decisions"`
	Changed   int `json:"changed"`
	// Skipped receipts: Open of requests without an outcome yet, which have another line when they end, and Bare ones that hold no candidates.
	Open int `json:"skipped_open"`
	Bare int `json:"skipped_bare"`
	// Reasons for the changes, most frequent first. Endpoints by the requests they get, then rejections in parentheses.
	Reasons   []Tally `json:"reasons"`
	Endpoints []Tally `json:"endpoints"`
	// Start, Own and Total are the differences of the changed decisions that have an endpoint in both; Placed is how many that are.
	Placed int    `json:"placed"`
	Start  Spread `json:"start"`
	Own    Spread `json:"own"`
	Total  Spread `json:"total"`
	// Examples are the first changed decisions.
	Examples []Change `json:"examples"`
}

// errNothing says that no receipt could be decided again.
var errNothing = errors.New("against: no receipt could be decided again")

// Run reads receipts as JSON Lines and decides them again. A line that is not a receipt is an error with its number.
func Run(in io.Reader, cfg Config) (Summary, error) {
	if err := cfg.Router.Validate(); err != nil {
		return Summary{}, fmt.Errorf("against: %w", err)
	}
	b := &builder{cfg: cfg, reasons: map[string]int{}, was: map[string]int{}, now: map[string]int{}}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 1<<16), maxLine)
	n := 0
	for lines.Scan() {
		n++
		if len(lines.Bytes()) == 0 {
			continue
		}
		var r router.Receipt
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return Summary{}, fmt.Errorf("against: line %d: %w", n, err)
		}
		if err := b.add(n, &r); err != nil {
			return Summary{}, fmt.Errorf("against: line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return Summary{}, fmt.Errorf("against: line %d: %w", n+1, err)
	}
	if b.out.Decisions == 0 {
		return Summary{}, fmt.Errorf("%w: of %d lines, %d have no outcome and %d no candidates", errNothing, n, b.out.Open, b.out.Bare)
	}
	return b.summary(), nil
}

type builder struct {
	cfg               Config
	out               Summary
	policies          []string
	reasons, was, now map[string]int
	start, own, total []float64
}

func (b *builder) add(line int, r *router.Receipt) error {
	switch {
	case r.Rejected == "" && r.Outcome == nil:
		b.out.Open++
		return nil
	case len(r.Candidates) == 0:
		b.out.Bare++
		return nil
	}
	d, err := router.Replay(r, b.cfg.Router)
	reject := (*router.RejectError)(nil)
	if err != nil && !errors.As(err, &reject) {
		return err
	}
	b.out.Decisions++
	if !slices.Contains(b.policies, r.Policy) {
		b.policies = append(b.policies, r.Policy)
	}
	c := Change{Line: line, Was: r.Endpoint, Now: d.Endpoint}
	if r.Rejected != "" {
		c.Was = "(" + r.Rejected + ")"
	}
	if reject != nil {
		c.Now = "(" + reject.Code() + ")"
	}
	b.was[c.Was]++
	b.now[c.Now]++
	if c.Was == c.Now {
		return nil
	}
	b.out.Changed++
	c.Reason = reason(r, &d, reject != nil)
	b.reasons[c.Reason]++
	if old, next := find(d.Candidates, r.Endpoint), find(d.Candidates, d.Endpoint); old != nil && next != nil {
		c.StartMS = next.Terms.Start() - old.Terms.Start()
		c.OwnMS, c.TotalMS = next.OwnCost-old.OwnCost, next.Total-old.Total
		b.start, b.own, b.total = append(b.start, c.StartMS), append(b.own, c.OwnMS), append(b.total, c.TotalMS)
	}
	if len(b.out.Examples) < b.cfg.Examples {
		c.Recorded, c.Replayed = r.Explain(), d.Explain()
		b.out.Examples = append(b.out.Examples, c)
	}
	return nil
}

// find is the candidate of that id; nil = it is not there.
func find(list []router.Candidate, id string) *router.Candidate {
	if i := slices.IndexFunc(list, func(c router.Candidate) bool { return c.ID == id }); id != "" && i >= 0 {
		return &list[i]
	}
	return nil
}

// reason says what made the difference: what keeps the old endpoint out, or the term in which the new one is cheaper by most.
func reason(r *router.Receipt, d *router.Decision, rejected bool) string {
	switch {
	case rejected:
		return "rejected now"
	case r.Rejected != "":
		return "placed now"
	}
	old, next := find(d.Candidates, r.Endpoint), find(d.Candidates, d.Endpoint)
	if old == nil || next == nil {
		return "other endpoints"
	}
	was := find(r.Candidates, r.Endpoint)
	switch {
	case old.Excluded != router.NoReason:
		return "excluded now: " + old.Excluded.String()
	case old.Barred && (was == nil || !was.Barred):
		return "give-up bound"
	case old.Withheld != router.NoReason && (was == nil || was.Withheld == router.NoReason):
		return "affinity withheld: " + old.Withheld.String()
	case math.Abs(next.Total-old.Total) <= d.TieWindow:
		return "lot among equals"
	case next.Total > old.Total:
		return "not by cost: the rule of " + d.Policy
	}
	name, most := "", 0.0
	for _, t := range terms(&old.Terms, &next.Terms) {
		if t.gain > most {
			name, most = t.name, t.gain
		}
	}
	return "cheaper in " + name
}

type gain struct {
	name string
	gain float64
}

// terms is by how much each term is lower at the new endpoint, ms.
func terms(old, next *score.Terms) []gain {
	return []gain{
		{"queue", old.Queue - next.Queue}, {"prefill", old.Prefill - next.Prefill}, {"decode", old.Decode - next.Decode},
		{"adapter", old.Adapter - next.Adapter}, {"kv pressure", old.KVPressure - next.KVPressure},
		{"uncertainty", old.Uncertainty - next.Uncertainty}, {"interference", old.Interference - next.Interference},
		{"displacement", old.Displacement - next.Displacement}, {"wait", old.Wait - next.Wait},
	}
}

func (b *builder) summary() Summary {
	s := b.out
	policy := b.cfg.Router.WithDefaults().Policy
	s.Policy = policy.Name()
	for i, p := range b.policies {
		if i > 0 {
			s.Was += ", "
		}
		s.Was += p
	}
	for name, n := range b.reasons {
		s.Reasons = append(s.Reasons, Tally{Name: name, Now: n})
	}
	slices.SortFunc(s.Reasons, func(x, y Tally) int { return cmp.Or(y.Now-x.Now, cmp.Compare(x.Name, y.Name)) })
	for name, n := range b.was {
		s.Endpoints = append(s.Endpoints, Tally{name, n, b.now[name]})
	}
	for name, n := range b.now {
		if b.was[name] == 0 {
			s.Endpoints = append(s.Endpoints, Tally{name, 0, n})
		}
	}
	// Rejections last: '(' comes before letters.
	slices.SortFunc(s.Endpoints, func(x, y Tally) int {
		return cmp.Or(cmp.Compare(rejection(x.Name), rejection(y.Name)), cmp.Compare(x.Name, y.Name))
	})
	s.Placed = len(b.start)
	s.Start, s.Own, s.Total = spread(b.start), spread(b.own), spread(b.total)
	return s
}

func rejection(name string) int {
	if name != "" && name[0] == '(' {
		return 1
	}
	return 0
}

func spread(v []float64) Spread {
	if len(v) == 0 {
		return Spread{}
	}
	slices.Sort(v)
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	at := func(q float64) float64 { return v[int(math.Round(q*float64(len(v)-1)))] }
	return Spread{Mean: sum / float64(len(v)), P10: at(0.1), P50: at(0.5), P90: at(0.9)}
}
