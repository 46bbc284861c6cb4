package overload

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/isobar-go/isobar/router"
)

// tally is an observer of the pool that counts what it decides, by kind, from begin to end. What it keeps has its place from the
// start, so that it does not grow with the run. Any number of goroutines may use it.
type tally struct {
	mu   sync.Mutex
	runs bool
	sums
	waits    [kinds][]time.Duration // of those admitted, in the clock's time
	refusals []time.Duration        // how long the refusal of those took that did not wait
	tenants  map[uint64]int64       // tokens admitted, by the hash of the tenant
}

// sums are counts by kind since the beginning. It is a plain value.
type sums struct {
	offered, admitted, refused [kinds]int
	reasons                    [kinds]reasons
}

// reasons are refusals by their reason, in the order of router.RejectCodes. It is a plain value.
type reasons [16]int

func newTally(plan []arrival) *tally {
	t := &tally{refusals: make([]time.Duration, 0, len(plan)), tenants: make(map[uint64]int64, tenants)}
	var counts [kinds]int
	for i := range plan {
		counts[plan[i].kind]++
	}
	for k := range t.waits {
		t.waits[k] = make([]time.Duration, 0, counts[k])
	}
	return t
}

func (t *tally) begin() { t.set(true) }
func (t *tally) end()   { t.set(false) }

func (t *tally) set(runs bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.runs = runs
}

func (t *tally) offer(kind int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.offered[kind]++
}

func (t *tally) counts() sums {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sums
}

func kindOfClass(c router.Class) int {
	for k := range kinds {
		if kindOf(k).class == c {
			return k
		}
	}
	return kindStandard
}

// Decided counts a decision.
func (t *tally) Decided(r *router.Receipt) {
	k := kindOfClass(r.Class)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.runs {
		return
	}
	if r.Rejected == "" {
		t.admitted[k]++
		t.waits[k] = append(t.waits[k], r.Waited)
		t.tenants[r.Tenant] += r.PromptTokens + r.OutputTokens
		return
	}
	t.refused[k]++
	for i, code := range router.RejectCodes() {
		if code == r.Rejected {
			t.reasons[k][i]++
		}
	}
}

// Ended is of no interest: the clients say how their requests ended.
func (t *tally) Ended(*router.Receipt) {}

// timed is a router that tells a tally how long refusals take. Any number of goroutines may use it.
type timed struct {
	router.Router
	tally *tally
}

// Reserve asks the router.
func (t *timed) Reserve(ctx context.Context, req router.Request) (*router.Lease, error) {
	begin := time.Now()
	l, err := t.Router.Reserve(ctx, req)
	took := time.Since(begin)
	var reject *router.RejectError
	if errors.As(err, &reject) && reject.Decision.Waited == 0 {
		t.tally.mu.Lock()
		defer t.tally.mu.Unlock()
		if t.tally.runs {
			t.tally.refusals = append(t.tally.refusals, took)
		}
	}
	return l, err
}
