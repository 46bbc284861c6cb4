package baseline

import (
	"math"

	"github.com/isobar-go/isobar/internal/world"
)

// prefixOnly, "prefix-only": the longest match; among equals the fewest own requests in flight.
func prefixOnly(f *fleet) pick {
	return func(_ *world.Request, among []int) int { return f.holder(among) }
}

// holder is the candidate with the longest match, among equals that with the fewest own requests.
func (f *fleet) holder(among []int) int {
	return f.least(among, func(i int) rank { return rank{-float64(f.hits[i]), float64(f.engines[i].requests)} })
}

const (
	matchedEnough  = 0.5 // share of the prompt above which the holder is taken
	spillRatio     = 1.1 // times the mean load, and
	spillDistance  = 32  // requests above it, before a holder is left
	stickyShare    = 0.8 // share of the prompt from which an engine is sticky
	stickyLead     = 18  // s that the best sticky engine may be slower than the best other one
	stickyRate     = 15928.0
	prefixWeight   = 3.0
	queueWeight    = 2.0
	kvWeight       = 2.0
	imbalanceScale = 1.0
)

// cacheAware, "gateway-cache-aware": by what was routed. The best holder of more than half of the prompt, unless its load is above
// 1.1 x mean and above mean + 32; else the fewest requests. Load is own requests in flight.
func cacheAware(f *fleet) pick {
	return func(r *world.Request, among []int) int {
		best := f.holder(among)
		load, mean := float64(f.engines[best].requests), f.meanRequests(among)
		if f.share(r, best) <= matchedEnough || load > spillRatio*mean && load > mean+spillDistance {
			return f.fewest(among)
		}
		return best
	}
}

// weighted, "weighted-3-2-2": the greatest of
//
//	3 x share of the prompt cached + 2 x (1 - reported queue, min-max normalised) + 2 x (1 - reported KV usage)
//
// Where all queues are equal, each counts as the shortest.
func weighted(f *fleet) pick {
	n := len(f.engines)
	waiting, used := make([]float64, n), make([]float64, n)
	return func(r *world.Request, among []int) int {
		f.reported(among, waiting, func(r *report) float64 { return r.waiting })
		f.reported(among, used, func(r *report) float64 { return r.share })
		low, high := math.Inf(1), math.Inf(-1)
		for _, i := range among {
			low, high = min(low, waiting[i]), max(high, waiting[i])
		}
		return f.least(among, func(i int) rank {
			queue := 0.0
			if high > low {
				queue = (waiting[i] - low) / (high - low)
			}
			return rank{-(prefixWeight*f.share(r, i) + queueWeight*(1-queue) + kvWeight*(1-used[i]))}
		})
	}
}

// sticky, "sticky-until-saturated": among the candidates with at least 0.8 of the prompt, as long as the best of them is at most
// 18 s slower to the first token than the best other one; else among all; there the fewest tokens in flight. The time to the
// first token is taken as tokens in flight / 15,928 tokens/s; tokens in flight are prompts and outputs so far of the own open requests.
func sticky(f *fleet) pick {
	var holders, others []int
	return func(r *world.Request, among []int) int {
		holders, others = holders[:0], others[:0]
		for _, i := range among {
			if f.share(r, i) >= stickyShare {
				holders = append(holders, i)
			} else {
				others = append(others, i)
			}
		}
		tokens := func(i int) rank { return rank{float64(f.engines[i].tokens)} }
		seconds := func(i int) float64 { return float64(f.engines[i].tokens) / stickyRate }
		best := f.least(holders, tokens)
		if best < 0 {
			best = f.least(others, tokens)
		} else if other := f.least(others, tokens); other >= 0 && seconds(best)-seconds(other) > stickyLead {
			best = other
		}
		f.terms.Queue = seconds(best) * 1e3
		return best
	}
}

// kvRouter, "kv-router": the fewest blocks, at temperature 0: of prompts to be computed (the own requests without a first token, and
// this one less what is cached), plus those that the own open requests hold.
func kvRouter(f *fleet) pick {
	block := float64(f.env.BlockTokens)
	return func(r *world.Request, among []int) int {
		return f.least(among, func(i int) rank {
			e := &f.engines[i]
			return rank{float64(e.pendingTokens+f.uncached(r, i))/block + float64(e.tokens)/block}
		})
	}
}

// loadAware, "loadaware": the greatest of
//
//	cached/prompt - 1.0 x (load - mean load)/max(1, mean load)
//
// with own requests in flight as the load.
func loadAware(f *fleet) pick {
	return func(r *world.Request, among []int) int {
		mean := f.meanRequests(among)
		return f.least(among, func(i int) rank {
			return rank{imbalanceScale*(float64(f.engines[i].requests)-mean)/max(1, mean) - f.share(r, i)}
		})
	}
}

// conductor, "mooncake-conductor": the least predicted time to the first token: the prefill times of the own requests without one, and
// this one's by its length and what is cached, both by the engine's profile.
func conductor(f *fleet) pick {
	return func(r *world.Request, among []int) int {
		best := f.least(among, func(i int) rank { return rank{f.engines[i].pendingMS + f.prefillMS(r, i)} })
		f.terms.Queue, f.terms.Prefill = f.engines[best].pendingMS, f.prefillMS(r, best)
		return best
	}
}
