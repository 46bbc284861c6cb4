package admission

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"time"
)

const (
	// MaxClasses is the greatest number of priority classes.
	MaxClasses = 8
	// MaxWaiters is the greatest QueueConfig.Max.
	MaxWaiters = 1 << 20
	// MaxCost is the greatest cost of one waiter, in tokens: sums of costs cannot overflow.
	MaxCost = 1 << 40

	minWeight, maxWeight = 1e-6, 1e6

	// idleFlows bounds, per class, the tenants remembered while they wait for nothing.
	idleFlows = 1024
	// gapsKept is the number of gaps between grants whose mean is MeanGap.
	gapsKept = 32
	// unknownGap stands for the mean gap while none was measured.
	unknownGap = int64(time.Second)
)

// Reasons for which Push refuses a waiter whose Ask is valid. Match them with errors.Is.
var (
	// ErrFull means that the queue is full and nobody in it has to make room for the newcomer.
	ErrFull = errors.New("admission: queue is full")
	// ErrTooLarge means that the waiter alone costs more than QueueConfig.MaxTokens: it could never wait here.
	ErrTooLarge = errors.New("admission: waiter is larger than the queue")
	// ErrLate means that the latest start has passed already.
	ErrLate = errors.New("admission: latest start has passed")
)

// QueueConfig bounds a Queue and sets its order. In every field 0 is the default. A QueueConfig is a plain value; any
// number of goroutines may read it.
type QueueConfig struct {
	// Max is the number of waiters from which the queue is full, 1 to MaxWaiters. Default 1024.
	Max int
	// MaxTokens is the sum of the waiters' costs, in tokens, which the queue never exceeds. Default 0: no limit.
	MaxTokens int64
	// Timeout is the longest wait. Default 30 s.
	Timeout time.Duration
	// Classes is the number of priority classes, 1 to MaxClasses; their ranks are 0, the most important, to Classes-1.
	// Default 1.
	Classes int
	// AgeAfter is the wait from which a waiter of any class but rank 0 is aged. With AgeAfter at or above Timeout nobody
	// is. Default 10 s.
	AgeAfter time.Duration
	// AgedEvery is the number of grants of which one is offered first to the oldest aged waiter, whatever its class,
	// counted over the grants made while aged waiters wait. 1 offers every grant to them. Default 8.
	AgedEvery int
}

// Validate reports every field out of its range, all of them joined.
func (c QueueConfig) Validate() error {
	var faults []error
	check := func(name string, value any, bad bool, rule string) {
		if bad {
			faults = append(faults, fmt.Errorf("admission: QueueConfig.%s = %v must be %s", name, value, rule))
		}
	}
	check("Max", c.Max, c.Max < 0 || c.Max > MaxWaiters, fmt.Sprintf("0 to %d", MaxWaiters))
	check("MaxTokens", c.MaxTokens, c.MaxTokens < 0, "at least 0")
	check("Timeout", c.Timeout, c.Timeout < 0, "at least 0")
	check("Classes", c.Classes, c.Classes < 0 || c.Classes > MaxClasses, fmt.Sprintf("0 to %d", MaxClasses))
	check("AgeAfter", c.AgeAfter, c.AgeAfter < 0, "at least 0")
	check("AgedEvery", c.AgedEvery, c.AgedEvery < 0, "at least 0")
	return errors.Join(faults...)
}

// WithDefaults returns the settings in effect: defaults for zero values.
func (c QueueConfig) WithDefaults() QueueConfig {
	orElse(&c.Max, 1024)
	orElse(&c.Timeout, 30*time.Second)
	orElse(&c.Classes, 1)
	orElse(&c.AgeAfter, 10*time.Second)
	orElse(&c.AgedEvery, 8)
	return c
}

func orElse[N int | time.Duration](field *N, otherwise N) {
	if *field == 0 {
		*field = otherwise
	}
}

// Ask is what a waiter waits for. An Ask is a plain value; any number of goroutines may read it.
type Ask struct {
	// Rank is the priority class, 0 (the most important) to QueueConfig.Classes-1.
	Rank int
	// Tenant is a key, such as a hash, of who is served. 0 is a tenant like any other.
	Tenant uint64
	// Group is the same for requests that are alike: where one of them fits nowhere, none does.
	Group uint64
	// Cost is the size in tokens, 1 to MaxCost.
	Cost int64
	// Weight is the tenant's part relative to that of the others in its class, 1e-6 to 1e6; 0 means 1. For the choice of
	// whom to displace, a tenant has the weight of its newest waiter.
	Weight float64
	// Latest is the last moment, in nanoseconds on the caller's scale, at which a start can still meet the deadline; 0
	// means that there is none.
	Latest int64
}

func (a *Ask) check(classes int) error {
	switch {
	case a.Rank < 0 || a.Rank >= classes:
		return fmt.Errorf("admission: Ask.Rank = %d must be 0 to %d", a.Rank, classes-1)
	case a.Cost < 1 || a.Cost > MaxCost:
		return fmt.Errorf("admission: Ask.Cost = %d must be 1 to %d", a.Cost, int64(MaxCost))
	case a.Weight != 0 && !(a.Weight >= minWeight && a.Weight <= maxWeight):
		return fmt.Errorf("admission: Ask.Weight = %v must be 0 or %g to %g", a.Weight, minWeight, maxWeight)
	}
	return nil
}

// Waiter is one place in a Queue: the caller allocates it, alone or as part of something larger, and may use it again
// once it has left. Its zero value waits nowhere. It must not be copied or moved while it waits. It belongs to the
// queue's lock while it waits; Value is the caller's own.
type Waiter[T any] struct {
	// Value is for the caller; the queue does not read it.
	Value T

	ask      Ask // as pushed, with Weight filled in
	owner    *Queue[T]
	seq      uint64
	enqueued int64
	sub      *subqueue[T]
	links    [listKinds]links[T]

	latestPlace int
	offered     uint64 // the pass in which it was last offered
	turn        uint64 // the pass in which it was last offered out of order, as the oldest aged
}

// Ask returns what the waiter was last pushed with. Its Weight is the one that counts, never 0.
func (w *Waiter[T]) Ask() Ask { return w.ask }

// Enqueued returns the time of the last Push, in nanoseconds on the caller's scale.
func (w *Waiter[T]) Enqueued() int64 { return w.enqueued }

// Queue is the state of a bounded, fair queue; the package's documentation describes its order. It neither waits nor
// wakes: the caller does, and hands time in as nanoseconds on a scale of its own. A time before one handed in earlier
// counts as that one. NewQueue makes a Queue. It has no lock: one goroutine at a time may use it, with its waiters.
type Queue[T any] struct {
	cfg QueueConfig
	now int64
	seq uint64

	length  int
	tokens  int64
	classes []class[T]
	byAge   minHeap[uint64, *group[T]] // all classes but the first, by seq of the oldest waiter

	// The pass. Marks of groups and waiters that equal pass hold; a new number drops them all.
	pass    uint64
	walking bool
	rank    int        // classes before it are exhausted
	current *Waiter[T] // offered and not yet granted or passed over
	moved   []*subqueue[T]
	marked  []*group[T]

	sinceAged int // grants since the last to the oldest aged, while aged ones waited; at most AgedEvery

	gaps      [gapsKept]int64
	gapSum    int64
	gapCount  int
	gapNext   int
	lastGrant int64
	granting  bool // lastGrant is set, and the queue has not been empty since

	displaced []*Waiter[T]

	freeFlows  []*flow[T]
	freeGroups []*group[T]
	freeSubs   []*subqueue[T]
}

// NewQueue returns an empty queue, or the faults of its configuration.
func NewQueue[T any](cfg QueueConfig) (*Queue[T], error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	q := &Queue[T]{cfg: cfg.WithDefaults(), now: math.MinInt64, pass: 1}
	q.classes = make([]class[T], q.cfg.Classes)
	for rank := range q.classes {
		q.classes[rank] = class[T]{
			rank:    rank,
			waiters: waitList[T]{kind: inClass},
			flows:   make(map[uint64]*flow[T]),
			byGroup: make(map[uint64]*group[T]),
			subs:    make(map[subKey]*subqueue[T]),
		}
	}
	return q, nil
}

// Config returns the configuration with its defaults filled in.
func (q *Queue[T]) Config() QueueConfig { return q.cfg }

// Push makes w wait. If the queue is full, it takes the place of others: first of the youngest waiters of the lowest
// class below its own; then, within its class, of the youngest waiter of the tenant that holds the most tokens over its
// weight, as long as that is more than w's tenant would hold with w. They have left the queue and are returned; the
// slice is good until the next Push. Otherwise Push changes nothing and returns ErrFull, ErrTooLarge, ErrLate or the
// fault of the ask. It ends the pass, and costs O(log n) for the newcomer and for each waiter displaced.
func (q *Queue[T]) Push(w *Waiter[T], ask Ask, now int64) (displaced []*Waiter[T], err error) {
	if w == nil {
		return nil, errors.New("admission: waiter is nil")
	}
	if w.owner != nil {
		return nil, errors.New("admission: waiter waits already")
	}
	if err := ask.check(q.cfg.Classes); err != nil {
		return nil, err
	}
	now = q.advance(now)
	if ask.Latest != 0 && ask.Latest < now {
		return nil, ErrLate
	}
	if q.cfg.MaxTokens > 0 && ask.Cost > q.cfg.MaxTokens {
		return nil, ErrTooLarge
	}
	if ask.Weight == 0 {
		ask.Weight = 1
	}
	q.end()
	if !q.makeRoom(&ask) {
		return nil, ErrFull
	}

	q.seq++
	w.ask, w.owner, w.seq, w.enqueued = ask, q, q.seq, now
	w.offered, w.turn = 0, 0
	q.length++
	q.tokens += ask.Cost
	q.insert(w)
	return q.displaced, nil
}

// Remove takes w out, wherever it stands, without charging its tenant, and reports whether it waited here. O(log n).
func (q *Queue[T]) Remove(w *Waiter[T]) bool {
	if w == nil || w.owner != q {
		return false
	}
	q.remove(w)
	return true
}

// Granted takes w out, charges its cost to its tenant, and reports whether it waited here; if it did not, nothing
// changes. It costs O(log n) for each different group in which the tenant waits in that class.
func (q *Queue[T]) Granted(w *Waiter[T], now int64) bool {
	if w == nil || w.owner != q {
		return false
	}
	now = q.advance(now)
	inTurn := w.turn == q.pass
	if oldest := q.oldestAged(now); oldest == w || inTurn {
		q.sinceAged = 0
	} else if oldest != nil {
		q.sinceAged = min(q.sinceAged+1, q.cfg.AgedEvery)
	}
	q.measure(now)
	q.charge(w, !inTurn)
	q.remove(w)
	return true
}

func (q *Queue[T]) measure(now int64) {
	if q.granting {
		gap := now - q.lastGrant
		q.gapSum += gap - q.gaps[q.gapNext]
		q.gaps[q.gapNext] = gap
		q.gapNext = (q.gapNext + 1) % gapsKept
		q.gapCount = min(q.gapCount+1, gapsKept)
	}
	q.lastGrant, q.granting = now, true
}

// MeanGap returns the mean time between grants over the last 32 of them that were made with no empty queue in between;
// 0 means that none was measured, or that they came all at once.
func (q *Queue[T]) MeanGap() time.Duration {
	if q.gapCount == 0 {
		return 0
	}
	return time.Duration(q.gapSum / int64(q.gapCount))
}

// Len returns the number of waiters.
func (q *Queue[T]) Len() int { return q.length }

// Tokens returns the sum of the waiters' costs.
func (q *Queue[T]) Tokens() int64 { return q.tokens }

// ClassWaiting is what waits of one class. It is a plain value; any number of goroutines may read it.
type ClassWaiting struct {
	// Waiters is their number.
	Waiters int
	// Tokens is the sum of their costs.
	Tokens int64
	// Oldest is the longest wait so far; 0 if nobody waits.
	Oldest time.Duration
}

// Class returns what waits of the class; nothing does of one out of range.
func (q *Queue[T]) Class(rank int, now int64) ClassWaiting {
	if rank < 0 || rank >= len(q.classes) {
		return ClassWaiting{}
	}
	c := &q.classes[rank]
	out := ClassWaiting{Waiters: c.length, Tokens: c.tokens}
	if oldest := c.waiters.head; oldest != nil {
		out.Oldest = time.Duration(max(now, q.now) - oldest.enqueued)
	}
	return out
}

// Since returns when the one who has waited longest was pushed, in nanoseconds on the caller's scale, and false if nobody
// waits.
func (q *Queue[T]) Since() (at int64, waits bool) {
	at = math.MaxInt64
	for rank := range q.classes {
		if w := q.classes[rank].waiters.head; w != nil {
			at, waits = min(at, w.enqueued), true
		}
	}
	return at, waits
}

// Oldest returns the longest wait of anybody in the queue so far; 0 if nobody waits.
func (q *Queue[T]) Oldest(now int64) time.Duration {
	at, waits := q.Since()
	if !waits {
		return 0
	}
	return time.Duration(max(now, q.now) - at)
}

// All yields every waiter, class by class, the oldest first: for debugging. The queue must not change meanwhile.
func (q *Queue[T]) All() iter.Seq[*Waiter[T]] {
	return func(yield func(*Waiter[T]) bool) {
		for rank := range q.classes {
			for w := q.classes[rank].waiters.head; w != nil; w = w.links[inClass].next {
				if !yield(w) {
					return
				}
			}
		}
	}
}

// advance makes now the queue's time, unless a later one was handed in before, and returns the queue's time.
func (q *Queue[T]) advance(now int64) int64 {
	q.now = max(q.now, now)
	return q.now
}

// addTime is a + d, or the end of the scale.
func addTime(a, d int64) int64 {
	if d > 0 && a > math.MaxInt64-d {
		return math.MaxInt64
	}
	return a + d
}
