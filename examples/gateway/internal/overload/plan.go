package overload

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/router"
)

// Kinds of requests, one of each class that waits its turn, and what may be shed.
const (
	kindInteractive = iota
	kindStandard
	kindBatch
	kindSheddable
	kinds
)

// kind is what the requests of one class are like.
type kind struct {
	class  router.Class
	share  float64 // offered output tokens, in parts of what the engines can generate
	prompt int     // tokens
	output int     // tokens
	stream bool
	// timeout is how long the client waits for the answer, in the engines' time; 0 = as long as it takes.
	timeout time.Duration
}

// offered is how much comes, in parts of what the engines can generate.
const offered = 10

// kindOf describes a kind: what is important could be served alone, and long work of others comes in heaps.
func kindOf(k int) kind {
	return [kinds]kind{
		{router.ClassInteractive, 0.4, 80, 24, true, 5 * time.Second},
		{router.ClassStandard, 0.2, 200, 64, true, 2500 * time.Millisecond},
		{router.ClassBatch, 7, 300, 96, false, 0},
		{router.ClassSheddable, offered - 0.4 - 0.2 - 7, 200, 64, false, 0},
	}[k]
}

const (
	tenants = 6
	// greedy is the part of the batch and sheddable requests that come from the first tenant alone.
	greedy = 0.5
	// texts is the number of different prompts of one kind.
	texts = 32
)

// arrival is a request of the plan, with what its client saw in the end. It belongs to the goroutine of its client.
type arrival struct {
	at     time.Duration // in the engines' time
	kind   int
	tenant int
	text   int

	result result
	fault  error
}

// capacity is what the engines generate at most under the cap on their requests, tokens a second of their time: each pass makes
// one token for each of them.
func capacity(p sim.Profile) float64 {
	return aggregate * 1000 / (p.Base + p.PerSeq*aggregate/engines)
}

// schedule is the same whenever it is made: what arrives does not depend on what was answered. Each kind comes at random times,
// at a constant rate in the mean.
func schedule(length time.Duration, capacity float64) []arrival {
	rnd := rand.New(rand.NewPCG(5, 9))
	var plan []arrival
	for k := range kinds {
		kind := kindOf(k)
		rate := kind.share * capacity / float64(kind.output) // a second
		for at := 0.0; ; {
			at += rnd.ExpFloat64() / rate
			when := time.Duration(at * float64(time.Second))
			if when >= length {
				break
			}
			tenant := rnd.IntN(tenants)
			if k >= kindBatch {
				if tenant = 0; rnd.Float64() >= greedy {
					tenant = 1 + rnd.IntN(tenants-1)
				}
			}
			plan = append(plan, arrival{at: when, kind: k, tenant: tenant, text: rnd.IntN(texts)})
		}
	}
	slices.SortStableFunc(plan, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	return plan
}
