package baseline

import "github.com/isobar-go/isobar/internal/world"

// roundRobin, "round-robin": each engine in its turn, by number, from one that is drawn: gateways do not march in step. One that
// cannot be chosen is passed over.
func roundRobin(f *fleet) pick {
	last := -1
	if n := len(f.engines); n > 0 {
		last = f.rng.IntN(n) - 1
	}
	return func(_ *world.Request, among []int) int {
		next := among[0]
		for _, i := range among {
			if i > last {
				next = i
				break
			}
		}
		last = next
		return next
	}
}

// random, "random": each candidate with the same probability.
func random(f *fleet) pick {
	return func(_ *world.Request, among []int) int { return f.any(among) }
}

// leastRequests, "least-requests": the fewest own requests in flight.
func leastRequests(f *fleet) pick {
	return func(_ *world.Request, among []int) int { return f.fewest(among) }
}

func (f *fleet) fewest(among []int) int {
	return f.least(among, func(i int) rank { return rank{float64(f.engines[i].requests)} })
}

// powerOfTwo, "power-of-two": of two distinct candidates drawn by lot, the one with fewer own requests in flight.
func powerOfTwo(f *fleet) pick {
	return func(_ *world.Request, among []int) int {
		if len(among) == 1 {
			return among[0]
		}
		a, b := f.rng.IntN(len(among)), f.rng.IntN(len(among)-1)
		if b >= a {
			b++
		}
		if a, b := among[a], among[b]; f.engines[b].requests < f.engines[a].requests {
			return b
		}
		return among[a]
	}
}

// queueOnly, "queue-only": the fewest waiting requests by the last report, whatever was sent since.
func queueOnly(f *fleet) pick {
	waiting := make([]float64, len(f.engines))
	return func(_ *world.Request, among []int) int {
		f.reported(among, waiting, func(r *report) float64 { return r.waiting })
		return f.least(among, func(i int) rank { return rank{waiting[i]} })
	}
}

const (
	waitingPrompt   = 1024 // tokens of a waiting request where an engine reports only how many wait
	usualThroughput = 2000 // tokens per second where an engine reports none
	memoryWeight    = 0.15 // of k/(1-k), s
	fullShare       = 0.99 // a fuller memory counts as this: the term has a pole at 1
)

// leastLoad, "gateway-least-load": the least of
//
//	(waiting tokens + tokens sent since the poll) / throughput + 0.15 k/(1-k)
//
// with 1024 tokens for a waiting request where an engine reports only their number, the throughput it reports (here: by its count of
// generated tokens) or 2000 tokens/s, and k its share of KV memory in use. What was sent counts until the next poll.
func leastLoad(f *fleet) pick {
	n := len(f.engines)
	waiting, memory := make([]float64, n), make([]float64, n)
	return func(_ *world.Request, among []int) int {
		f.reported(among, waiting, func(r *report) float64 {
			if r.waitingTokens >= 0 {
				return r.waitingTokens
			}
			return r.waiting * waitingPrompt
		})
		f.reported(among, memory, func(r *report) float64 {
			k := min(r.share, fullShare)
			return k / (1 - k)
		})
		return f.least(among, func(i int) rank {
			e := &f.engines[i]
			rate := e.report.rate
			if rate <= 0 {
				rate = usualThroughput
			}
			return rank{(waiting[i]+float64(e.sentTokens))/rate + memoryWeight*memory[i]}
		})
	}
}

// leastPendingWork, "lpwl": the fewest prompt tokens to be computed there, those of the own requests without a first token and those of
// this one that are not cached; then the fewest own requests; then the one not chosen for longest.
func leastPendingWork(f *fleet) pick {
	return func(r *world.Request, among []int) int {
		return f.least(among, func(i int) rank {
			e := &f.engines[i]
			return rank{float64(e.pendingTokens + f.uncached(r, i)), float64(e.requests), e.lastChosen}
		})
	}
}

// multiplied, "lmetric": the least product of the prompt tokens to be computed there, as in lpwl, and the batch size, this request
// included in both.
func multiplied(f *fleet) pick {
	return func(r *world.Request, among []int) int {
		return f.least(among, func(i int) rank {
			e := &f.engines[i]
			return rank{float64(e.pendingTokens+f.uncached(r, i)) * float64(e.requests+1)}
		})
	}
}
