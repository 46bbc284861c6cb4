package workload

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Spread describes a set of numbers. The zero value is that of an empty set. It is a plain value.
type Spread struct {
	// Mean is the arithmetic mean.
	Mean float64
	// P50, P90, P99 are quantiles by nearest rank: the least value that at least that share does not exceed.
	P50, P90, P99 float64
	// Max is the greatest value.
	Max float64
}

// Summary measures a workload. It is a plain value.
type Summary struct {
	// Requests, Sessions are numbers of requests and of different sessions other than 0.
	Requests, Sessions int
	// Span is the time from the first to the last arrival.
	Span time.Duration
	// Rate is Requests-1 over Span, per second; 0 without a span.
	Rate float64
	// Input, Output are lengths in tokens; Think is in ms, over requests that are not the first of their session.
	Input, Output, Think Spread
	// Hit is the share of input tokens, 0 to 1, that an infinite cache would hold when the requests come one after the
	// other in order of arrival: whole blocks from the start of the prompt.
	Hit float64
	// Blocks is the number of different blocks in all prompts.
	Blocks int64
	// GapCV is the standard deviation of the gaps between arrivals over their mean: 1 for Poisson arrivals, 0 for a clock.
	GapCV float64
}

// Summarize measures w, in order of arrival. Of an empty workload everything is 0. It trusts that the numbers of blocks are
// chained (Workload.Check).
func Summarize(w Workload) Summary {
	s := Summary{Requests: len(w)}
	if len(w) == 0 {
		return s
	}
	w = w.sorted()
	var in, out, think, gaps []float64
	sessions := map[uint64]struct{}{}
	cache := newInfiniteCache()
	var tokens, hits int64
	for i := range w {
		r := &w[i]
		in = append(in, float64(r.PromptTokens))
		out = append(out, float64(r.OutputTokens))
		if r.Session != 0 {
			if _, ok := sessions[r.Session]; ok {
				think = append(think, float64(r.Think)/1e6)
			}
			sessions[r.Session] = struct{}{}
		}
		if i > 0 {
			gaps = append(gaps, (r.Arrival - w[i-1].Arrival).Seconds())
		}
		tokens += r.PromptTokens
		hits += cache.add(r) * BlockTokens
	}
	s.Sessions = len(sessions)
	s.Span = w[len(w)-1].Arrival - w[0].Arrival
	if s.Span > 0 {
		s.Rate = float64(len(w)-1) / s.Span.Seconds()
	}
	s.Input, s.Output, s.Think = spread(in), spread(out), spread(think)
	s.Hit = float64(hits) / float64(tokens)
	s.Blocks = cache.blocks
	s.GapCV = variation(gaps)
	return s
}

// CountCV is the standard deviation of the number of arrivals in windows of the given length over its mean; the last,
// partial window does not count. For Poisson arrivals it is 1/sqrt(mean). It fails for a window that is not above 0, or of
// which there are more than ten million, and is 0 for less than one window.
func CountCV(w Workload, window time.Duration) (float64, error) {
	if window <= 0 {
		return 0, fmt.Errorf("workload: window is %v, it must be above 0", window)
	}
	if len(w) == 0 {
		return 0, nil
	}
	w = w.sorted()
	first := w[0].Arrival
	n := int64((w[len(w)-1].Arrival - first) / window)
	if n > 1e7 {
		return 0, fmt.Errorf("workload: window is %v, there would be %d of them", window, n)
	}
	counts := make([]float64, n)
	for i := range w {
		if k := int64((w[i].Arrival - first) / window); k < n {
			counts[k]++
		}
	}
	return variation(counts), nil
}

// String is one line for a person to read.
func (s Summary) String() string {
	return fmt.Sprintf("%d requests, %d sessions, %.0f s, %.2f/s; in %.0f/%.0f/%.0f/%.0f, out %.0f/%.0f/%.0f/%.0f (mean/p50/p90/p99); "+
		"hit %.1f%%; gap CV %.2f", s.Requests, s.Sessions, s.Span.Seconds(), s.Rate,
		s.Input.Mean, s.Input.P50, s.Input.P90, s.Input.P99, s.Output.Mean, s.Output.P50, s.Output.P90, s.Output.P99, s.Hit*100, s.GapCV)
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
	rank := func(q float64) float64 { return v[max(0, int(math.Ceil(q*float64(len(v))))-1)] }
	return Spread{Mean: sum / float64(len(v)), P50: rank(0.5), P90: rank(0.9), P99: rank(0.99), Max: v[len(v)-1]}
}

// variation is the coefficient of variation of a population; 0 without a mean.
func variation(v []float64) float64 {
	mean, sq := 0.0, 0.0
	for _, x := range v {
		mean += x / float64(len(v))
	}
	if mean == 0 || len(v) == 0 {
		return 0
	}
	for _, x := range v {
		sq += (x - mean) * (x - mean)
	}
	return math.Sqrt(sq/float64(len(v))) / mean
}

// infiniteCache knows of every run how much of it has been seen. As numbers are chained, a run always begins at the same
// number, so a map of run starts is enough; and whoever had the begin of a run had everything before it, so what is found
// of the runs of a prompt is a head of the prompt.
type infiniteCache struct {
	seen   map[run]int64
	blocks int64
}

type run struct{ scope, first uint64 }

func newInfiniteCache() *infiniteCache { return &infiniteCache{seen: map[run]int64{}} }

// add stores the prompt of r and returns how many leading blocks of it were there.
func (c *infiniteCache) add(r *Request) int64 {
	hit := int64(0)
	rest := r.PromptBlocks()
	scope := r.scope()
	for _, s := range r.Segments {
		n := min(s.Blocks, rest)
		if n == 0 {
			break
		}
		rest -= n
		k := run{scope, s.First}
		had := c.seen[k]
		hit += min(had, n)
		if n > had {
			c.seen[k] = n
			c.blocks += n - had
		}
	}
	return hit
}
