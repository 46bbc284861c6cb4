package router

import (
	"fmt"
	"math"
	"slices"
)

// Policy turns one immutable view of all candidates into a choice. A host can add its own: the pool reserves, caps,
// explains and records it like any other.
//
// A Policy is called from any number of goroutines at once and must be a pure function of the view: no state that a
// choice changes, no clock, no random source but [View.Draw]. Now and then it is called again for the same request, when
// another lease was granted meanwhile, and after four times of that with the pool's decision lock held, and for those who wait in
// a queue with its lock: calling Reserve, Enqueue, Tick, Observe, or anything that ends a lease or changes the endpoints of the pool
// that is asking may wait for itself for ever. [Pool.Stats] may be called at any time.
type Policy interface {
	// Name is the policy's name in receipts, e.g. "pressure".
	Name() string
	// Choose returns the index of a candidate that is [View.Choosable]. Any other answer, and a panic, makes the pool fall
	// back to [View.LeastOutstanding] and count the fault.
	Choose(v *View) int
}

// builtin is a policy of this package: a name and a rule.
type builtin struct {
	name   string
	choose func(v *View) int
}

func (b *builtin) Name() string       { return b.name }
func (b *builtin) Choose(v *View) int { return b.choose(v) }

// Pressure is the default policy: the lowest total cost in ms, own and external, where no candidate may win that costs
// the request itself more than Bounds.GiveUp allows; within TieWindow of the lowest, drawn by lot.
func Pressure() Policy { return &builtin{"pressure", choosePressure} }

// LeastLoad takes the shortest expected wait, then the fewest requests. It ignores what is cached.
func LeastLoad() Policy { return &builtin{"least-load", chooseLeastLoad} }

// PowerOfTwo draws two different candidates and takes the one with the shorter expected wait.
func PowerOfTwo() Policy { return &builtin{"power-of-two", choosePowerOfTwo} }

// LeastRequests takes the fewest of the pool's own open requests.
func LeastRequests() Policy { return &builtin{"least-requests", chooseLeastRequests} }

// QueueOnly takes the fewest waiting requests, reported and just sent. For comparison: it ignores their size and what is
// cached.
func QueueOnly() Policy { return &builtin{"queue-only", chooseQueueOnly} }

// RoundRobin takes the candidate that has not been chosen for longest. Since rotation is by identity and not by a position in a
// list, leaving an endpoint out of a request neither starves nor favours the others.
func RoundRobin() Policy { return &builtin{"round-robin", chooseRoundRobin} }

// Random draws a candidate, each with the same probability.
func Random() Policy { return &builtin{"random", chooseRandom} }

// PrefixOnly takes the longest cached prefix that counts, then the fewest own requests. It walks into a hot spot with open
// eyes; for comparison.
func PrefixOnly() Policy { return &builtin{"prefix-only", choosePrefixOnly} }

// PrefixHash sends prompts with the same first two blocks to the same endpoint by consistent hashing with bounded load
// (Mirrokni, Thorup, Zadimoghaddam 2016, factor 1.25; highest random weight instead of a ring).
func PrefixHash() Policy { return &builtin{"prefix-hash", choosePrefixHash} }

// SessionHash does the same by Request.Session, or by the prefix where there is no session.
func SessionHash() Policy { return &builtin{"session-hash", chooseSessionHash} }

// policies lists the built-in policies, in the order of their documentation.
func policies() []Policy {
	return []Policy{
		Pressure(), LeastLoad(), PowerOfTwo(), LeastRequests(), QueueOnly(), RoundRobin(), Random(), PrefixOnly(), PrefixHash(),
		SessionHash(),
	}
}

// PolicyNames lists the names that [PolicyByName] knows, the default first.
func PolicyNames() []string {
	var names []string
	for _, p := range policies() {
		names = append(names, p.Name())
	}
	return names
}

// PolicyByName returns the built-in policy of that name; an unknown name is an error that carries it.
func PolicyByName(name string) (Policy, error) {
	all := policies()
	if i := slices.IndexFunc(all, func(p Policy) bool { return p.Name() == name }); i >= 0 {
		return all[i], nil
	}
	return nil, fmt.Errorf("router: policy %q is not one of %v", name, PolicyNames())
}

// LeastOutstanding is the rule where no telemetry is usable: the least work by the pool's own ledger, drawn by lot within
// TieWindow; -1 when nobody can be chosen.
func (v *View) LeastOutstanding() int {
	return v.lowest(v.TieWindow(), v.outstanding)
}

// lowest draws among the choosable candidates whose key is within window of the lowest.
func (v *View) lowest(window float64, key func(i int) float64) int {
	best, n := math.Inf(1), 0
	for i := range v.cands {
		if v.Choosable(i) {
			best = min(best, key(i))
			n++
		}
	}
	if n == 0 {
		return -1
	}
	ties := 0
	for i := range v.cands {
		if v.Choosable(i) && key(i) <= best+window {
			ties++
		}
	}
	pick := v.Draw(ties)
	for i := range v.cands {
		if v.Choosable(i) && key(i) <= best+window {
			if pick == 0 {
				return i
			}
			pick--
		}
	}
	return -1
}

func choosePressure(v *View) int {
	best, at, ties := math.Inf(1), -1, 0
	window := v.TieWindow()
	second := math.Inf(1)
	for i, g := range v.grade {
		if g != gradeIn || !v.Choosable(i) {
			continue
		}
		if t := v.total[i]; t < best {
			second, best, at = best, t, i
		} else if t < second {
			second = t
		}
	}
	if second > best+window {
		return at
	}
	tied := func(i int) bool { return v.grade[i] == gradeIn && v.total[i] <= best+window && v.Choosable(i) }
	for i := range v.grade {
		if tied(i) {
			ties++
		}
	}
	pick := v.Draw(ties)
	for i := range v.grade {
		if tied(i) {
			if pick == 0 {
				return i
			}
			pick--
		}
	}
	return at
}

// chooseLeastLoad orders by expected wait, and within a tie window of the shortest by requests.
func chooseLeastLoad(v *View) int {
	if v.degraded {
		return v.LeastOutstanding()
	}
	best := math.Inf(1)
	for i := range v.cands {
		if v.Choosable(i) {
			best = min(best, v.expectedWait(i))
		}
	}
	limit := best + v.TieWindow()
	return v.lowest(0, func(i int) float64 {
		if v.expectedWait(i) > limit {
			return math.Inf(1)
		}
		return v.cands[i].load.Requests
	})
}

func choosePowerOfTwo(v *View) int {
	if v.degraded {
		return v.LeastOutstanding()
	}
	a, b := v.drawTwo()
	if b < 0 {
		return a
	}
	x, y := v.expectedWait(a), v.expectedWait(b)
	if y < x || y == x && v.cands[b].load.Requests < v.cands[a].load.Requests {
		return b
	}
	return a
}

// drawTwo draws two different choosable candidates; the second is -1 when there is only one.
func (v *View) drawTwo() (int, int) {
	n := 0
	for i := range v.cands {
		if v.Choosable(i) {
			n++
		}
	}
	first := v.Draw(n)
	second := -1
	if n > 1 {
		if second = v.Draw(n - 1); second >= first {
			second++
		}
	}
	a, b, k := -1, -1, 0
	for i := range v.cands {
		if !v.Choosable(i) {
			continue
		}
		switch k {
		case first:
			a = i
		case second:
			b = i
		}
		k++
	}
	return a, b
}

func chooseLeastRequests(v *View) int {
	return v.lowest(0, func(i int) float64 { return float64(v.cands[i].own.Requests) })
}

func chooseQueueOnly(v *View) int {
	if v.degraded {
		return v.LeastOutstanding()
	}
	return v.lowest(0, func(i int) float64 { return v.cands[i].waiting + v.model.UncertaintyMS(v.cands[i].fresh())/1e6 })
}

func chooseRoundRobin(v *View) int {
	at := -1
	for i := range v.cands {
		if v.Choosable(i) && (at < 0 || v.cands[i].lastChosen < v.cands[at].lastChosen) {
			at = i
		}
	}
	return at
}

func chooseRandom(v *View) int { return v.lowest(math.Inf(1), func(int) float64 { return 0 }) }

func choosePrefixOnly(v *View) int {
	longest := int64(0)
	for i := range v.cands {
		if v.Choosable(i) {
			longest = max(longest, v.cands[i].counted())
		}
	}
	return v.lowest(0, func(i int) float64 {
		if v.cands[i].counted() < longest {
			return math.Inf(1)
		}
		return float64(v.cands[i].own.Requests)
	})
}

func choosePrefixHash(v *View) int { return v.hashed(v.lead) }

func chooseSessionHash(v *View) int { return v.hashed(v.SessionHash()) }

// boundedLoad is the factor over the mean load up to which a hashed choice holds.
const boundedLoad = 1.25

// hashed orders the candidates by a weight drawn from the key and their identity, and takes the first whose own requests
// stay, with this one, within boundedLoad of the mean. Without a key there is nothing to hold on to: least requests.
func (v *View) hashed(key uint64) int {
	if key == 0 {
		return chooseLeastRequests(v)
	}
	total, n := 1.0, 0.0
	for i := range v.cands {
		if v.Choosable(i) {
			total += float64(v.cands[i].own.Requests)
			n++
		}
	}
	limit := math.Ceil(boundedLoad * total / n)
	at, top := -1, uint64(0)
	for i := range v.cands {
		if !v.Choosable(i) || float64(v.cands[i].own.Requests)+1 > limit {
			continue
		}
		if w := mix(key ^ v.idHash(i)); at < 0 || w > top {
			at, top = i, w
		}
	}
	return at
}

// counted is the number of cached tokens that count.
func (c *cand) counted() int64 {
	if c.withheld != NoReason {
		return 0
	}
	return c.cached
}

// idHash is the part of candidate i's identity in consistent hashing.
func (v *View) idHash(i int) uint64 {
	if v.recorded != nil {
		return identityHash(v.recorded[i].ID)
	}
	return v.set.list[i].idHash
}
