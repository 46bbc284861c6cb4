package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"time"
)

// newRand is the random stream of one purpose: streams of other purposes stay the same if this one draws more.
func newRand(seed uint64, purpose string) *rand.Rand {
	h := hashOf("stream", purpose)
	// Both words depend on the seed: with one of them alone, half of the state would be the same for all seeds.
	return rand.New(rand.NewPCG(mix64(h^seed), mix64(h+seed)))
}

// Length is a distribution of token counts: lognormal, with a share of the draws taken from a Pareto tail instead. The
// zero value stands for the default of the field it is in. Length is a plain value.
type Length struct {
	// Median of the lognormal body, in tokens, above 0.
	Median float64
	// Sigma is the standard deviation of its natural logarithm, 0 to 4; 0 = every draw is Median. The mean of the body is
	// Median*exp(Sigma^2/2).
	Sigma float64
	// Tail is the share of draws from the tail, 0 to 1.
	Tail float64
	// TailFrom is the least value of the tail, in tokens, and Alpha its shape: P(x > t) = (TailFrom/t)^Alpha. Both are
	// above 0 if Tail is. With Alpha at most 1 the mean would be infinite but for Max.
	TailFrom float64
	Alpha    float64
	// Min and Max bound every draw, in tokens. Min 0 = 1; Max 0 = MaxTokens.
	Min int64
	Max int64
}

// Validate names the first field that is out of range.
func (l Length) Validate() error {
	bad := func(field string, v any, want string) error {
		return fmt.Errorf("workload: Length.%s is %v, it must be %s", field, v, want)
	}
	lo, hi := l.bounds()
	switch {
	case !(l.Median > 0) || l.Median > MaxTokens:
		return bad("Median", l.Median, "above 0 and at most 2147483647")
	case !(l.Sigma >= 0 && l.Sigma <= 4):
		return bad("Sigma", l.Sigma, "in [0, 4]")
	case !(l.Tail >= 0 && l.Tail <= 1):
		return bad("Tail", l.Tail, "in [0, 1]")
	case l.Tail > 0 && (!(l.TailFrom > 0) || l.TailFrom > MaxTokens):
		return bad("TailFrom", l.TailFrom, "above 0 and at most 2147483647")
	case l.Tail > 0 && (!(l.Alpha > 0) || math.IsInf(l.Alpha, 1)):
		return bad("Alpha", l.Alpha, "above 0 and finite")
	case l.Min < 0:
		return bad("Min", l.Min, "at least 0")
	case hi > MaxTokens || hi < lo:
		return bad("Max", l.Max, fmt.Sprintf("0 or in [%d, 2147483647]", lo))
	}
	return nil
}

func (l Length) bounds() (lo, hi int64) {
	lo, hi = max(1, l.Min), l.Max
	if hi == 0 {
		hi = MaxTokens
	}
	return lo, hi
}

// draw always takes the same number of values from r but for the rejections inside NormFloat64.
func (l Length) draw(r *rand.Rand) int64 {
	tail, u, z := r.Float64(), 1-r.Float64(), r.NormFloat64()
	x := l.Median * math.Exp(l.Sigma*z)
	if tail < l.Tail {
		x = l.TailFrom * math.Pow(u, -1/l.Alpha)
	}
	lo, hi := l.bounds()
	if x >= float64(hi) {
		return hi
	}
	return max(lo, int64(math.Round(x)))
}

func (l Length) or(def Length) Length {
	if l == (Length{}) {
		return def
	}
	return l
}

// shares draws an index with given probabilities.
type shares struct{ cumulative []float64 }

// zipfShares gives index k the probability of 1/(k+1)^s, normalised.
func zipfShares(n int, s float64) shares {
	c := make([]float64, n)
	sum := 0.0
	for k := range c {
		sum += math.Pow(float64(k+1), -s)
		c[k] = sum
	}
	for k := range c {
		c[k] /= sum
	}
	return shares{c}
}

func (s shares) draw(r *rand.Rand) int {
	return min(sort.SearchFloat64s(s.cumulative, r.Float64()), len(s.cumulative)-1)
}

// exponential is a waiting time with the given rate per second.
func exponential(r *rand.Rand, rate float64) time.Duration {
	return toDuration(r.ExpFloat64() / rate)
}

// toDuration takes seconds; what a Duration can not hold becomes the longest one of 100 years.
func toDuration(seconds float64) time.Duration {
	const century = 100 * 365 * 24 * time.Hour
	if seconds >= century.Seconds() {
		return century
	}
	return time.Duration(math.Round(seconds * 1e9))
}

// gamma draws from the Gamma distribution with shape k > 0 and scale 1 (Marsaglia, Tsang: A Simple Method for Generating
// Gamma Variables, 2000).
func gamma(r *rand.Rand, k float64) float64 {
	if k < 1 {
		// Gamma(k) = Gamma(k+1) * U^(1/k).
		return gamma(r, k+1) * math.Pow(1-r.Float64(), 1/k)
	}
	d := k - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(1-r.Float64()) < 0.5*x*x+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}
