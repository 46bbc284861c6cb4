package overload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/metrics"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/reserve"
	"github.com/isobar-go/isobar/router"
)

// What is claimed.
const (
	// maxRefusal is the time that 99 of 100 refusals take at most, from the call of the pool to its return.
	maxRefusal = time.Millisecond
	// minOffered is how many times as much as the engines can generate is asked for at least.
	minOffered = 9
	// minJain is the least fairness between tenants.
	minJain = 0.9
	// maxGrowth is by how much the heap may have grown, bytes: buffers and tables that came to be used, and no trace of a request.
	maxGrowth = 4 << 20
	// minInteractive is the least part of the interactive requests that is served.
	minInteractive = 0.95
	// tooLate is how far behind its plan a run may be and still mean what it shows.
	tooLate = 50 * time.Millisecond
)

// outcome is what a run has shown. It belongs to one goroutine.
type outcome struct {
	plan          []arrival
	tally         *tally
	scale         float64
	capacity      float64       // tokens a second of the engines' time
	sent          time.Duration // from the first request to the last, in the clock's
	late          time.Duration // the most by which a request was behind the plan
	peak          int           // requests on one engine
	before, after router.Stats
	heap          [2]int64 // live bytes before and after
	unsettled     error    // nil = nothing was open and nobody waited after the last client
	refill        error    // nil = the pool takes its cap again, and no more
	goroutines    int      // more than before
}

func introduce(w io.Writer, cfg *Config, plan []arrival, p sim.Profile) {
	fmt.Fprintf(w, "%d engines of the profile %s at %g times real time, with caps of %d requests each, %d together, %d and %d tokens a "+
		"tenant,\nand a queue of %d. They generate at most %.0f tokens a second; %d times as much is asked for, for %v: %d requests.\n"+
		"Times are the engines', unless they are said to be the clock's.\n\n",
		engines, p.Name, cfg.Scale, perEngine, aggregate, perTenant, tenantTokens, queueMax, capacity(p), offered, cfg.Length, len(plan))
}

// heading names the columns: of each group one for interactive, standard, batch and sheddable requests.
const heading = "   s |        offered       |       admitted       |     waiting     |        refused       | heap MB\n" +
	"     |  int  std  bat  shed |  int  std  bat  shed |  int  std  bat  |  int  std  bat  shed |\n"

// print writes a line for every second of the engines until ctx is done.
func (s *stand) print(ctx context.Context) {
	_, _ = io.WriteString(s.cfg.Out, heading)
	tick := time.NewTicker(clock(time.Second, s.cfg.Scale))
	defer tick.Stop()
	var last sums
	for second := 1; ; second++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := s.tally.counts()
		line(s.cfg.Out, second, &last, &now, s.node.Pool.Stats().Queue.ByClass, heapNow())
		last = now
	}
}

func line(w io.Writer, second int, last, now *sums, waiting map[string]int, heap float64) {
	var b strings.Builder
	fmt.Fprintf(&b, "%4d |", second)
	group := func(now, last *[kinds]int) {
		for k := range kinds {
			fmt.Fprintf(&b, "%5d", now[k]-last[k])
		}
		b.WriteString("  |")
	}
	group(&now.offered, &last.offered)
	group(&now.admitted, &last.admitted)
	for k := range kindSheddable {
		fmt.Fprintf(&b, "%5d", waiting[kindOf(k).class.String()])
	}
	b.WriteString("  |")
	group(&now.refused, &last.refused)
	fmt.Fprintf(&b, "%7.1f\n", heap)
	_, _ = io.WriteString(w, b.String())
}

// heapNow is what the last collection has found to be live, MB: it costs nothing to read.
func heapNow() float64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return float64(s[0].Value.Uint64()) / 1e6
}

// report writes what came of it, and compares it with what is claimed.
func (o *outcome) report(w io.Writer) error {
	if err := o.table(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	var faults []error
	for _, c := range o.claims() {
		verdict := "holds"
		if !c.ok {
			verdict = "DOES NOT HOLD"
			faults = append(faults, fmt.Errorf("overload: %s: %s", c.says, c.found))
		}
		fmt.Fprintf(w, "%-14s %s: %s\n", verdict, c.says, c.found)
	}
	if len(faults) > 0 && o.late > tooLate {
		faults = append(faults, fmt.Errorf("overload: the machine was up to %v behind the schedule: try a smaller -scale",
			o.late.Round(time.Millisecond)))
	}
	return errors.Join(faults...)
}

// byKind are what the clients saw.
func (o *outcome) byKind() (counts [kinds][results]int, firstFault error) {
	for i := range o.plan {
		a := &o.plan[i]
		counts[a.kind][a.result]++
		if a.fault != nil && firstFault == nil {
			firstFault = a.fault
		}
	}
	return counts, firstFault
}

func (o *outcome) table(w io.Writer) error {
	counts, _ := o.byKind()
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w)
	fmt.Fprintln(t, "\toffered\tserved\tbroken\trefused\tlate\twait ms: p50\tp99\tmax\trefused for\t")
	for k := range kinds {
		n, waits := &counts[k], o.waits(k)
		fmt.Fprintf(t, "%v\t%d\t%d\t%d\t%d\t%d\t%.0f\t%.0f\t%.0f\t%s\t\n", kindOf(k).class, o.tally.offered[k], n[served],
			n[broken]+n[lost], n[refused], n[late], quantile(waits, 0.5), quantile(waits, 0.99), quantile(waits, 1), o.why(k))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	q, was := o.after.Queue, o.before.Queue
	fmt.Fprintf(w, "\nThrough the queue went %d: %d served, %d displaced by others, %d timed out, %d had no chance to be in time.\n",
		q.Queued-was.Queued, q.Granted-was.Granted, q.Displaced-was.Displaced, q.TimedOut-was.TimedOut, q.Missed-was.Missed)
	_, err := fmt.Fprintf(w, "Tokens admitted by tenant, the most first: %v.\n", o.byTenant())
	return err
}

// waits are how long the admitted of a kind have waited, sorted, ms of the engines' time.
func (o *outcome) waits(k int) []float64 {
	out := make([]float64, 0, len(o.tally.waits[k]))
	for _, d := range o.tally.waits[k] {
		out = append(out, d.Seconds()*1000*o.scale)
	}
	slices.Sort(out)
	return out
}

func (o *outcome) why(k int) string {
	var words []string
	for i, code := range router.RejectCodes() {
		if n := o.tally.reasons[k][i]; n > 0 {
			words = append(words, fmt.Sprintf("%s %d", code, n))
		}
	}
	return strings.Join(words, ", ")
}

// byTenant is what each tenant was given, tokens, the most first.
func (o *outcome) byTenant() []int64 {
	out := make([]int64, 0, tenants)
	for _, n := range o.tally.tenants {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b int64) int { return int(b - a) })
	for len(out) < tenants {
		out = append(out, 0)
	}
	return out
}

// claim is one of those of the demonstration.
type claim struct {
	says, found string
	ok          bool
}

func (o *outcome) claims() []claim {
	counts, fault := o.byKind()
	var all [results]int
	offeredAll, admitted, rejected := 0, 0, 0
	work := 0 // tokens
	for k := range kinds {
		for r, n := range counts[k] {
			all[r] += n
		}
		offeredAll += o.tally.offered[k]
		admitted += o.tally.admitted[k]
		rejected += o.tally.refused[k]
		work += o.tally.offered[k] * kindOf(k).output
	}
	times := float64(work) / max(o.capacity*o.sent.Seconds()*o.scale, 1)
	found := func(format string, args ...any) string { return fmt.Sprintf(format, args...) }
	broke := found("%d admitted, %d served, %d broken, %d lost", admitted, all[served], all[broken], all[lost])
	if fault != nil {
		broke += found("; the first: %v", fault)
	}
	slices.Sort(o.tally.refusals)
	p50, p99 := at(o.tally.refusals, 0.5), at(o.tally.refusals, 0.99)
	interactive, batch := o.waits(kindInteractive), o.waits(kindBatch)
	share := float64(counts[kindInteractive][served]) / float64(max(o.tally.offered[kindInteractive], 1))
	index := jain(o.byTenant())
	grown := o.heap[1] - o.heap[0]
	return []claim{
		{"far more is asked for than can be done", found("%.1f times what the engines can generate meanwhile", times), times >= minOffered},
		{"every admitted request is served to its end", broke, all[broken]+all[lost] == 0 && admitted == all[served] && admitted > 0},
		{"every other one gets an answer", found("%d offered, %d refused by the pool, %d of them told 429 and %d told 504",
			offeredAll, rejected, all[refused], all[late]), offeredAll == admitted+rejected && rejected == all[refused]+all[late]},
		{"no engine ever has more than its cap", found("at most %d of %d", o.peak, perEngine), o.peak <= perEngine && o.peak > 0},
		{"a refusal takes less than a millisecond", found("p50 %.3f ms, p99 %.3f ms of the clock, in %d without a wait",
			p50, p99, len(o.tally.refusals)), len(o.tally.refusals) > 0 && p99 < maxRefusal.Seconds()*1000},
		{"interactive requests do not suffer", found("%.1f %% served; mean wait %.0f ms, of batch %.0f ms",
			100*share, mean(interactive), mean(batch)), share >= minInteractive && len(batch) > 0 && mean(interactive) < mean(batch)},
		{"a greedy tenant gets no more than the others", found("Jain index %.3f (1 = equal; by what they ask for it would be %.3f)",
			index, jain(o.asked())), index >= minJain},
		{"memory is flat", found("%.1f MB before, %.1f MB after", float64(o.heap[0])/1e6, float64(o.heap[1])/1e6), grown < maxGrowth},
		o.sumsClaim(),
		{"no goroutine is left", found("%d more than before", max(o.goroutines, 0)), o.goroutines <= 0},
	}
}

// sumsClaim is that nothing of what was counted remains.
func (o *outcome) sumsClaim() claim {
	c := claim{says: "all sums are zero after it"}
	var own reserve.Load
	for i := range o.after.Endpoints {
		l := o.after.Endpoints[i].Own.Live
		own.Requests, own.Prefill, own.Decode, own.KV = own.Requests+l.Requests, own.Prefill+l.Prefill, own.Decode+l.Decode, own.KV+l.KV
	}
	q := o.after.Queue
	c.found = fmt.Sprintf("open leases %d, their cost %+v; in the queue %d requests, %d tokens", o.after.OpenLeases, own, q.Waiting, q.Tokens)
	c.ok = o.after.OpenLeases == 0 && own == reserve.Load{} && q.Waiting == 0 && q.Tokens == 0
	if err := errors.Join(o.unsettled, o.refill); err != nil {
		c.ok = false
		c.found += "; " + strings.ReplaceAll(err.Error(), "\n", "; ")
		return c
	}
	c.found += fmt.Sprintf("; the pool takes exactly %d again", aggregate)
	return c
}

// asked is what each tenant asked for, tokens.
func (o *outcome) asked() []int64 {
	out := make([]int64, tenants)
	for i := range o.plan {
		kind := kindOf(o.plan[i].kind)
		out[o.plan[i].tenant] += int64(kind.prompt + kind.output)
	}
	return out
}

// jain is Jain's index of fairness: (sum x)^2 / (n sum x^2), 1 where all have the same and 1/n where one has all; 0 for nothing.
// Source: Jain, Chiu and Hawe, A Quantitative Measure of Fairness and Discrimination, 1984.
func jain(x []int64) float64 {
	var sum, squares float64
	for _, v := range x {
		sum += float64(v)
		squares += float64(v) * float64(v)
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(x)) * squares)
}

func mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(max(len(x), 1))
}

// quantile is that of sorted figures; 0 for none.
func quantile(x []float64, q float64) float64 {
	if len(x) == 0 {
		return 0
	}
	return x[int(q*float64(len(x)-1))]
}

// at is a quantile of sorted times, ms.
func at(x []time.Duration, q float64) float64 {
	if len(x) == 0 {
		return 0
	}
	return x[int(q*float64(len(x)-1))].Seconds() * 1000
}
