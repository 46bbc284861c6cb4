package calibrate

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"
)

// maxColumns is the most regressors of a fit.
const maxColumns = 4

// table is a linear problem: y is about the sum of coefficients times columns, and no coefficient is negative.
type table struct {
	columns int
	x       []float64 // row after row
	y       []float64
}

func (t *table) row(i int) []float64 { return t.x[i*t.columns : (i+1)*t.columns] }

// prior pulls coefficients towards values, with the weight of that many average rows; weight 0 = none.
type prior struct {
	at     [maxColumns]float64
	weight [maxColumns]float64
}

// solution is a fit: coefficients and their standard errors, +Inf where the columns do not tell them apart.
type solution struct {
	coef, se [maxColumns]float64
}

const (
	huberK    = 1.345 // 95 % efficient for normal errors
	bisquareK = 4.685 // likewise
	steps     = 12    // of each kind, at most
	settled   = 1e-7  // relative change of coefficients at which a kind ends
	// exact is the relative error below which a fit is as good as its arithmetic.
	exact = 1e-6
	// maxCondition of the normalised normal matrix; beyond, columns are the same but for rounding.
	maxCondition = 1e9
)

// robust fits t by iterated reweighted least squares with coefficients of at least 0. Errors are taken to grow with what is
// predicted, as those of durations do. Huber's weights find the neighbourhood; Tukey's bisquare ends there, since the outliers of
// latencies are on one side and bounded weights alone would follow them. It reports false when there are not more rows than columns.
func robust(t *table, pull prior) (solution, bool) {
	n, p := len(t.y), t.columns
	if n <= p {
		return solution{}, false
	}
	floor := medianOf(n, func(i int) float64 { return math.Abs(t.y[i]) }) / 2
	if !(floor > 0) {
		floor = 1
	}
	spread := make([]float64, n) // what an error of a row is measured in
	weight := make([]float64, n)
	for i, y := range t.y {
		spread[i], weight[i] = floor+math.Abs(y), 1
	}
	var coef [maxColumns]float64
	for _, bisquare := range []bool{false, true} {
		for step := range steps {
			a, b := normal(t, spread, weight, pull)
			next := nonNegative(a, b, p)
			change := 0.0
			for j := range p {
				change = max(change, math.Abs(next[j]-coef[j])/(math.Abs(next[j])+math.Abs(coef[j])+1e-300))
			}
			coef = next
			for i := range n {
				spread[i] = floor + t.predict(i, &coef)
			}
			scale := 1.4826 * medianOf(n, func(i int) float64 { return math.Abs(t.y[i]-t.predict(i, &coef)) / spread[i] })
			if !(scale > exact) {
				scale = exact
			}
			for i := range n {
				r := math.Abs(t.y[i]-t.predict(i, &coef)) / spread[i] / scale
				weight[i] = 1
				switch {
				case bisquare && r >= bisquareK:
					weight[i] = 0
				case bisquare:
					u := r / bisquareK
					weight[i] = (1 - u*u) * (1 - u*u)
				case r > huberK:
					weight[i] = huberK / r
				}
			}
			if step > 0 && change < settled { // the first one still has the weights of before
				break
			}
		}
	}
	return solution{coef: coef, se: standardErrors(t, spread, weight, pull, &coef)}, true
}

func (t *table) predict(i int, coef *[maxColumns]float64) float64 {
	sum := 0.0
	for j, v := range t.row(i) {
		sum += v * coef[j]
	}
	return sum
}

type (
	matrix [maxColumns][maxColumns]float64
	vector [maxColumns]float64
)

// normal are the normal equations of the weighted rows and the pull.
func normal(t *table, spread, weight []float64, pull prior) (a matrix, b vector) {
	p := t.columns
	total := 0.0
	for i, y := range t.y {
		w := weight[i] / (spread[i] * spread[i])
		total += weight[i]
		row := t.row(i)
		for j := range p {
			v := w * row[j]
			b[j] += v * y
			for k := j; k < p; k++ {
				a[j][k] += v * row[k]
			}
		}
	}
	for j := range p {
		if pull.weight[j] > 0 && total > 0 {
			extra := a[j][j] / total * pull.weight[j]
			a[j][j] += extra
			b[j] += extra * pull.at[j]
		}
		for k := range j {
			a[j][k] = a[k][j]
		}
	}
	return a, b
}

// nonNegative solves a*x = b for x >= 0 in the sense of least squares: of all sets of coefficients that are allowed to differ
// from zero, the best that comes out positive. There are at most 16. The empty one is among them, so that there is always one.
func nonNegative(a matrix, b vector, p int) vector {
	full := 1<<p - 1
	if x, ok := solve(a, b, p, full); ok && lowest(x, p) >= 0 {
		return x // the best without bounds keeps them
	}
	var best vector
	most := 0.0
	for set := 1; set < full; set++ {
		x, ok := solve(a, b, p, set)
		if !ok || lowest(x, p) < 0 {
			continue
		}
		fit := 0.0
		for j := range p {
			fit += b[j] * x[j]
		}
		if fit > most {
			best, most = x, fit
		}
	}
	return best
}

func lowest(x vector, p int) float64 { return slices.Min(x[:p]) }

// factor decomposes the part of a that set names, each column scaled to norm 1.
func factor(a matrix, p, set int) (chol mat.Cholesky, at []int, scale vector, ok bool) {
	for j := range p {
		if set>>j&1 == 0 {
			continue
		}
		if !(a[j][j] > 0) {
			return chol, nil, scale, false
		}
		scale[j] = 1 / math.Sqrt(a[j][j])
		at = append(at, j)
	}
	m := mat.NewSymDense(len(at), nil)
	for r, j := range at {
		for c := r; c < len(at); c++ {
			m.SetSym(r, c, a[j][at[c]]*scale[j]*scale[at[c]])
		}
	}
	if !chol.Factorize(m) || chol.Cond() > maxCondition {
		return chol, nil, scale, false
	}
	return chol, at, scale, true
}

func solve(a matrix, b vector, p, set int) (x vector, ok bool) {
	chol, at, scale, ok := factor(a, p, set)
	if !ok {
		return x, false
	}
	rhs := mat.NewVecDense(len(at), nil)
	for r, j := range at {
		rhs.SetVec(r, b[j]*scale[j])
	}
	var out mat.VecDense
	if err := chol.SolveVecTo(&out, rhs); err != nil {
		return x, false
	}
	for r, j := range at {
		x[j] = out.AtVec(r) * scale[j]
	}
	return x, true
}

// standardErrors are those of White's sandwich, which holds where errors differ in size.
func standardErrors(t *table, spread, weight []float64, pull prior, coef *[maxColumns]float64) (se vector) {
	p := t.columns
	for j := range p {
		se[j] = math.Inf(1)
	}
	a, _ := normal(t, spread, weight, pull)
	chol, at, scale, ok := factor(a, p, 1<<p-1)
	if !ok {
		return se
	}
	var inverse mat.SymDense
	if err := chol.InverseTo(&inverse); err != nil {
		return se
	}
	var meat matrix
	for i, y := range t.y {
		r := weight[i] * (y - t.predict(i, coef)) / (spread[i] * spread[i])
		row := t.row(i)
		for j := range p {
			for k := j; k < p; k++ {
				meat[j][k] += r * r * row[j] * row[k]
			}
		}
	}
	for j := range at {
		sum := 0.0
		for k := range at {
			for l := range at {
				sum += inverse.At(j, k) * meat[min(k, l)][max(k, l)] * scale[k] * scale[l] * inverse.At(l, j)
			}
		}
		se[j] = math.Sqrt(max(sum, 0)) * scale[j]
	}
	return se
}

// sampleSize bounds how many values a median is taken of: more change nothing that matters.
const sampleSize = 4096

// medianOf is the median of n values, of evenly spaced ones where there are many.
func medianOf(n int, value func(int) float64) float64 {
	if n == 0 {
		return 0
	}
	stride := (n + sampleSize - 1) / sampleSize
	var buf [sampleSize]float64
	values := buf[:0]
	for i := 0; i < n; i += stride {
		values = append(values, value(i))
	}
	slices.Sort(values)
	return values[len(values)/2]
}
