package calibrate

import (
	"math"

	"github.com/isobar-go/isobar/score"
)

// The timings of a profile by number.
const (
	base = iota
	prefill
	kv
	attention
	sequence
	timingCount

	none = -1 // no timing: a figure that only the fit needs
)

// timings are those of a [score.Profile], ms.
type timings [timingCount]float64

func timingsOf(p *score.Profile) timings {
	return timings{base: p.Base, prefill: p.PrefillToken, kv: p.KVToken, attention: p.Attention, sequence: p.Sequence}
}

// with returns the profile with other timings.
func (t *timings) with(p score.Profile) score.Profile {
	p.Base, p.PrefillToken, p.KVToken, p.Attention, p.Sequence = t[base], t[prefill], t[kv], t[attention], t[sequence]
	return p
}

// firstMS is what the cost model predicts for the first token, ms: Terms.Start.
func (p *point) firstMS(t *timings) float64 {
	return t[prefill]*p.pending + p.uncached*(t[prefill]+t[attention]*(p.ctx+p.uncached/2))
}

// completionMS is what it predicts for the last one, given the number of tokens, ms: Start + Decode.
func (p *point) completionMS(t *timings) float64 {
	return p.firstMS(t) + p.tokens*(t[base]+t[kv]*p.context+t[sequence]*p.batch)
}

// column is a regressor.
type column struct {
	timing int
	value  func(*point) float64
}

// maxDoubt is how large a standard error may be beside the coefficient or its old value before the data count as not having
// determined it.
const maxDoubt = 0.25

// found is what a fit of some timings says.
type found struct {
	timings
	se       timings              // 0 where kept
	kept     [timingCount]Verdict // why a timing of the fit keeps its value; zero = it does not
	free     int                  // timings that were determined
	nuisance [maxColumns]float64
}

// fitPrefill fits the timings of the prefill to first tokens. What every request pays whatever its size (network, gateway, the pass
// that it has to wait for) is a figure of its own, so that it does not end up in the price of a token, and so is what
// a pending token costs, since the number of these is an estimate.
func fitPrefill(points []point, old timings, shrink int) found {
	work := func(p *point) float64 { return p.uncached }
	pairs := column{attention, func(p *point) float64 { return p.uncached * (p.ctx + p.uncached/2) }}
	y := func(p *point) (float64, bool) { return p.first, true }
	one := column{none, func(*point) float64 { return 1 }}
	columns := []column{one, {prefill, work}, pairs, {none, func(p *point) float64 { return p.pending }}}
	f, s := determine(points, prefill, y, columns, old, shrink)
	if queue := f.nuisance[3]; !(s.se[3] <= maxDoubt*max(queue, f.timings[prefill])) {
		// The queue tells too little on its own: its tokens are taken to cost what others do, as the cost model has it.
		columns = []column{one, {prefill, func(p *point) float64 { return p.uncached + p.pending }}, pairs}
		f, _ = determine(points, prefill, y, columns, old, shrink)
		f.nuisance[3] = f.timings[prefill]
	}
	return f
}

// fitDecode fits the timings of the decode to the times from the first token to the last.
func fitDecode(points []point, old timings, shrink int) found {
	y := func(p *point) (float64, bool) { return p.completion - p.first, p.tokens >= 2 }
	columns := []column{
		{base, func(p *point) float64 { return p.tokens - 1 }},
		{kv, func(p *point) float64 { return (p.tokens - 1) * p.context }},
		{sequence, func(p *point) float64 { return (p.tokens - 1) * p.batch }},
	}
	f, _ := determine(points, base, y, columns, old, shrink)
	return f
}

// determine fits the columns and takes those out that the data do not determine, the worst first and the main one last: their
// timings keep the values that they have.
func determine(points []point, main int, y func(*point) (float64, bool), columns []column, old timings, shrink int) (found, solution) {
	f := found{timings: old}
	out := [maxColumns]bool{}
	for {
		t := table{x: make([]float64, 0, len(points)*len(columns)), y: make([]float64, 0, len(points))}
		var at []int // the column of each regressor
		for j := range columns {
			if !out[j] {
				at = append(at, j)
			}
		}
		t.columns = len(at)
		for i := range points {
			p := &points[i]
			v, ok := y(p)
			if !ok {
				continue
			}
			for j, c := range columns {
				if out[j] {
					v -= old[c.timing] * c.value(p)
				} else {
					t.x = append(t.x, c.value(p))
				}
			}
			t.y = append(t.y, v)
		}
		if t.columns == 0 {
			return f, solution{}
		}
		s, ok := robust(&t, prior{})
		if shrink > 0 && ok {
			pull := pullOf(&s, old, columns, at, float64(shrink))
			s, ok = robust(&t, pull)
		}
		worst, doubt := -1, maxDoubt
		var full solution
		for k := len(at) - 1; k >= 0; k-- {
			j := at[k]
			if full.coef[j], full.se[j] = s.coef[k], s.se[k]; !ok {
				full.se[j] = math.Inf(1)
			}
			timing := columns[j].timing
			if timing == none || timing == main && worst >= 0 {
				continue
			}
			d := s.se[k] / max(s.coef[k], old[timing])
			switch {
			case math.IsInf(full.se[j], 1):
				d = math.Inf(1)
			case s.coef[k] == 0 && old[timing] == 0: // it would be kept as it is anyway
				d = 0
			}
			if d > doubt { // of columns that are alike, the last
				worst, doubt = j, d
			}
		}
		if worst < 0 {
			for _, j := range at {
				if timing := columns[j].timing; timing != none {
					f.timings[timing], f.se[timing] = full.coef[j], full.se[j]
					f.free++
				} else {
					f.nuisance[j] = full.coef[j]
				}
			}
			return f, full
		}
		out[worst] = true
		f.kept[columns[worst].timing] = Uncertain
		if math.IsInf(doubt, 1) {
			f.kept[columns[worst].timing] = Collinear
		}
	}
}

// pullOf draws the timings of a fit towards what they were, with the weight of that many receipts where the fit agrees with
// that, and with less the more surely it does not: by the square of the difference in standard errors, as James and Stein have
// it. An engine that is unlike the others is then left to its own receipts.
func pullOf(free *solution, old timings, columns []column, at []int, weight float64) prior {
	var pull prior
	most := 1.0
	for k, j := range at {
		if timing := columns[j].timing; timing != none && free.se[k] > 0 {
			z := (free.coef[k] - old[timing]) / free.se[k]
			most = max(most, z*z)
		}
	}
	for k, j := range at {
		if timing := columns[j].timing; timing != none {
			pull.at[k], pull.weight[k] = old[timing], weight/most
		}
	}
	return pull
}

// paired compares two predictions on the same receipts.
type paired struct {
	Errors
	gain, noise float64 // of the mean absolute error, and its standard error
}

// compare measures both by observed times.
func compare(points []point, observed func(*point) (float64, bool), before, after func(*point) float64) paired {
	var old, now []float64
	for i := range points {
		p := &points[i]
		if v, ok := observed(p); ok {
			old = append(old, math.Abs(v-before(p)))
			now = append(now, math.Abs(v-after(p)))
		}
	}
	var r paired
	if r.Receipts = len(old); r.Receipts == 0 {
		return r
	}
	gains := make([]float64, len(old))
	for i := range old {
		gains[i] = old[i] - now[i]
	}
	r.Before, r.After = mean(old), mean(now)
	r.gain, r.noise = mean(gains), batchError(gains)
	r.MedianBefore, r.MedianAfter = quantile(old, 0.5), quantile(now, 0.5)
	return r
}

// batchError is the standard error of a mean of values in the order of time. Neighbours met the same load, so they count as
// less evidence than as many strangers: it is taken between batches of them where that says more.
func batchError(values []float64) float64 {
	se := func(v []float64) float64 {
		m, sum := mean(v), 0.0
		for _, x := range v {
			sum += (x - m) * (x - m)
		}
		return math.Sqrt(sum / float64(len(v)-1) / float64(len(v)))
	}
	if len(values) < 2 {
		return math.Inf(1)
	}
	batches := min(30, len(values)/10)
	if batches < 5 {
		return se(values)
	}
	means := make([]float64, batches)
	for b := range means {
		means[b] = mean(values[b*len(values)/batches : (b+1)*len(values)/batches])
	}
	return max(se(values), se(means))
}

// better says that the error has fallen: in the mean by more than noise, and in the median.
func (r *paired) better(o *Options) bool {
	return r.Receipts > 0 && r.gain > max(o.Noise, 0)*r.noise && r.gain >= max(o.MinGain, 0)*r.Before && r.gain > 0 &&
		r.MedianAfter < r.MedianBefore
}

// worse says that it has risen by more than noise could.
func (r *paired) worse(o *Options) bool {
	return r.Receipts > 0 && r.gain < 0 && -r.gain > max(o.Noise, 1)*r.noise
}

func observedFirst(p *point) (float64, bool) { return p.first, true }

func observedCompletion(p *point) (float64, bool) { return p.completion, p.tokens > 0 }

// compareBoth measures first tokens and completions.
func compareBoth(points []point, before, after *timings) (first, completion paired) {
	first = compare(points, observedFirst,
		func(p *point) float64 { return p.firstMS(before) }, func(p *point) float64 { return p.firstMS(after) })
	completion = compare(points, observedCompletion,
		func(p *point) float64 { return p.completionMS(before) }, func(p *point) float64 { return p.completionMS(after) })
	return first, completion
}
