package admission_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/admission"
)

type waiter = admission.Waiter[string]

// naiveQueue is Queue without any structure: a slice in order of arrival, searched from end to end for everything.
type naiveQueue struct {
	cfg       admission.QueueConfig
	now       int64
	waiting   []*naiveWaiter
	virtual   [admission.MaxClasses]float64
	start     map[[2]uint64]float64 // by rank and tenant
	weight    map[[2]uint64]float64
	sinceAged int

	gaps []int64
	last int64
	busy bool

	walking bool
	skipped map[uint64]bool
	passed  map[[2]uint64]bool // rank and group
	current *naiveWaiter
}

type naiveWaiter struct {
	*waiter
	ask           admission.Ask
	enqueued      int64
	offered, turn bool
}

func newNaiveQueue(cfg admission.QueueConfig) *naiveQueue {
	return &naiveQueue{cfg: cfg, now: math.MinInt64, start: map[[2]uint64]float64{}, weight: map[[2]uint64]float64{}}
}

func (w *naiveWaiter) flow() [2]uint64 { return [2]uint64{uint64(w.ask.Rank), w.ask.Tenant} }

func (m *naiveQueue) tokens() (sum int64) {
	for _, w := range m.waiting {
		sum += w.ask.Cost
	}
	return sum
}

func heldOf(all []*naiveWaiter, flow [2]uint64) (sum int64) {
	for _, w := range all {
		if w.flow() == flow {
			sum += w.ask.Cost
		}
	}
	return sum
}

func (m *naiveQueue) push(w *waiter, ask admission.Ask, now int64) ([]*waiter, error) {
	m.now = max(m.now, now)
	if ask.Latest != 0 && ask.Latest < m.now {
		return nil, admission.ErrLate
	}
	if m.cfg.MaxTokens > 0 && ask.Cost > m.cfg.MaxTokens {
		return nil, admission.ErrTooLarge
	}
	if ask.Weight == 0 {
		ask.Weight = 1
	}
	m.walking = false
	in := &naiveWaiter{waiter: w, ask: ask, enqueued: m.now}
	left := slices.Clone(m.waiting)
	var out []*naiveWaiter
	for !m.fits(append(slices.Clone(left), in)) {
		victim := m.victim(left, in)
		if victim < 0 {
			return nil, admission.ErrFull
		}
		out = append(out, left[victim])
		left = slices.Delete(left, victim, victim+1)
	}
	var displaced []*waiter
	for _, o := range out {
		m.remove(o)
		displaced = append(displaced, o.waiter)
	}
	if heldOf(m.waiting, in.flow()) == 0 {
		m.start[in.flow()] = max(m.start[in.flow()], m.virtual[ask.Rank])
	}
	m.weight[in.flow()] = ask.Weight
	m.waiting = append(m.waiting, in)
	return displaced, nil
}

func (m *naiveQueue) fits(all []*naiveWaiter) bool {
	n := naiveQueue{waiting: all}
	return len(all) <= m.cfg.Max && (m.cfg.MaxTokens == 0 || n.tokens() <= m.cfg.MaxTokens)
}

func (m *naiveQueue) victim(left []*naiveWaiter, in *naiveWaiter) int {
	best := -1
	for i, w := range left {
		if w.ask.Rank > in.ask.Rank && (best < 0 || w.ask.Rank >= left[best].ask.Rank) {
			best = i
		}
	}
	if best >= 0 {
		return best
	}
	most := float64(heldOf(left, in.flow())+in.ask.Cost) / in.ask.Weight
	var flow [2]uint64
	found := false
	for _, w := range left {
		if w.ask.Rank != in.ask.Rank || w.ask.Tenant == in.ask.Tenant {
			continue
		}
		held := float64(heldOf(left, w.flow())) / m.weight[w.flow()]
		if held > most || found && held == most && w.ask.Tenant < flow[1] {
			most, flow, found = held, w.flow(), true
		}
	}
	if !found {
		return -1
	}
	for i, w := range left {
		if w.flow() == flow {
			best = i
		}
	}
	return best
}

func (m *naiveQueue) remove(w *naiveWaiter) {
	m.waiting = slices.DeleteFunc(m.waiting, func(o *naiveWaiter) bool { return o == w })
	if m.current == w {
		m.current = nil
		if m.walking && w.turn {
			delete(m.passed, [2]uint64{uint64(w.ask.Rank), w.ask.Group})
		}
	}
	if !slices.ContainsFunc(m.waiting, func(o *naiveWaiter) bool { return o.ask.Rank == w.ask.Rank }) {
		m.virtual[w.ask.Rank] = 0
		for flow := range m.start {
			if flow[0] == uint64(w.ask.Rank) {
				delete(m.start, flow)
			}
		}
	}
	if len(m.waiting) == 0 {
		m.busy = false
	}
}

func (m *naiveQueue) aged(w *naiveWaiter) bool {
	return w.ask.Rank > 0 && m.now-w.enqueued >= int64(m.cfg.AgeAfter)
}

func (m *naiveQueue) granted(w *naiveWaiter, now int64) {
	m.now = max(m.now, now)
	if i := slices.IndexFunc(m.waiting, m.aged); i >= 0 && m.waiting[i] == w || m.walking && w.turn {
		m.sinceAged = 0
	} else if i >= 0 {
		m.sinceAged++
	}
	if m.busy {
		m.gaps = append(m.gaps, m.now-m.last)
	}
	m.busy, m.last = true, m.now
	start := max(m.start[w.flow()], m.virtual[w.ask.Rank])
	m.start[w.flow()] = start + float64(w.ask.Cost)/w.ask.Weight
	if !m.walking || !w.turn {
		m.virtual[w.ask.Rank] = start
	}
	m.remove(w)
}

func (m *naiveQueue) meanGap() int64 {
	gaps := m.gaps[max(0, len(m.gaps)-32):]
	if len(gaps) == 0 {
		return 0
	}
	var sum int64
	for _, g := range gaps {
		sum += g
	}
	return sum / int64(len(gaps))
}

func (m *naiveQueue) begin(now int64) {
	m.now = max(m.now, now)
	m.walking, m.current = true, nil
	m.skipped, m.passed = map[uint64]bool{}, map[[2]uint64]bool{}
	for _, w := range m.waiting {
		w.offered, w.turn = false, false
	}
}

func (m *naiveQueue) next() *naiveWaiter {
	m.current = nil
	if !m.walking {
		return nil
	}
	var first *naiveWaiter
	for _, w := range m.waiting {
		if w.offered || m.skipped[w.ask.Group] {
			continue
		}
		if first == nil || cmp.Or(cmp.Compare(w.ask.Rank, first.ask.Rank), cmp.Compare(m.start[w.flow()], m.start[first.flow()])) < 0 {
			first = w
		}
	}
	if first == nil {
		m.walking = false
		return nil
	}
	if w := m.turn(first.ask.Rank); w != nil {
		first, w.turn = w, true
	}
	first.offered = true
	m.current = first
	return first
}

func (m *naiveQueue) turn(reached int) *naiveWaiter {
	if m.sinceAged < m.cfg.AgedEvery-1 {
		return nil
	}
	seen := map[[2]uint64]bool{}
	for _, w := range m.waiting {
		key := [2]uint64{uint64(w.ask.Rank), w.ask.Group}
		if seen[key] || w.ask.Rank == 0 || m.skipped[w.ask.Group] || m.passed[key] {
			continue
		}
		seen[key] = true
		if !m.aged(w) {
			return nil
		}
		gap := int64(time.Second)
		if len(m.gaps) > 0 {
			gap = m.meanGap()
		}
		for _, o := range m.waiting {
			if o.ask.Rank >= reached && o.ask.Rank < w.ask.Rank && o.ask.Latest != 0 && o.ask.Latest-m.now < 2*gap {
				return nil
			}
		}
		m.passed[key] = true
		if !w.offered {
			return w
		}
	}
	return nil
}

func (m *naiveQueue) expired(now int64) (*naiveWaiter, admission.Cause) {
	m.now = max(m.now, now)
	w, at, cause := m.firstExpiry()
	if w == nil || at > m.now {
		return nil, 0
	}
	m.remove(w)
	return w, cause
}

func (m *naiveQueue) firstExpiry() (first *naiveWaiter, at int64, cause admission.Cause) {
	for _, w := range m.waiting {
		t, c := w.enqueued+int64(m.cfg.Timeout), admission.TimedOut
		if w.ask.Latest != 0 && w.ask.Latest+1 < t {
			t, c = w.ask.Latest+1, admission.PastLatest
		}
		if first == nil || t < at {
			first, at, cause = w, t, c
		}
	}
	return first, at, cause
}

// queueMachine does everything to a Queue and to the naive one, in the same random order.
func queueMachine(t *rapid.T) {
	cfg := admission.QueueConfig{
		Max:       rapid.IntRange(1, 12).Draw(t, "max"),
		MaxTokens: rapid.SampledFrom([]int64{0, 0, 30, 60}).Draw(t, "maxTokens"),
		Timeout:   time.Duration(rapid.SampledFrom([]int{5, 50, 500, 5000}).Draw(t, "timeout")),
		Classes:   rapid.IntRange(1, 4).Draw(t, "classes"),
		AgeAfter:  time.Duration(rapid.IntRange(1, 60).Draw(t, "ageAfter")),
		AgedEvery: rapid.IntRange(1, 4).Draw(t, "agedEvery"),
	}
	q, err := admission.NewQueue[string](cfg)
	require.NoError(t, err)
	m := newNaiveQueue(cfg)
	now := int64(0)
	made := 0
	var spare []*waiter // were in the queue before
	var gone []*waiter

	value := func(w *naiveWaiter) *waiter {
		if w == nil {
			return nil
		}
		return w.waiter
	}
	tick := func() int64 {
		now += int64(rapid.IntRange(-1, 9).Draw(t, "dt"))
		return now
	}
	any := func() *naiveWaiter {
		if len(m.waiting) == 0 {
			t.Skip("nobody waits")
		}
		return m.waiting[rapid.IntRange(0, len(m.waiting)-1).Draw(t, "waiter")]
	}
	leave := func(w *waiter) {
		spare = append(spare, w)
		gone = append(gone, w)
	}

	push := func(t *rapid.T) {
		ask := admission.Ask{
			Rank:   rapid.IntRange(0, cfg.Classes-1).Draw(t, "rank"),
			Tenant: rapid.Uint64Range(0, 2).Draw(t, "tenant"),
			Group:  rapid.Uint64Range(0, 2).Draw(t, "group"),
			Cost:   rapid.Int64Range(1, 32).Draw(t, "cost"),
			Weight: rapid.SampledFrom([]float64{0, 0, 1, 0.5, 3}).Draw(t, "weight"),
		}
		if rapid.Bool().Draw(t, "deadline") {
			ask.Latest = now + rapid.Int64Range(-2, 80).Draw(t, "latest")
		}
		w := &waiter{}
		if len(spare) > 0 && rapid.Bool().Draw(t, "again") {
			w, spare = spare[len(spare)-1], spare[:len(spare)-1]
		} else {
			made++
			w.Value = fmt.Sprint(made)
		}
		now := tick()
		got, err := q.Push(w, ask, now)
		want, wantErr := m.push(w, ask, now)
		require.ErrorIs(t, err, wantErr)
		require.Equal(t, len(want), len(got), "displaced")
		for i := range got {
			require.Same(t, want[i], got[i], "displaced")
			leave(got[i])
		}
		if err == nil {
			gone = slices.DeleteFunc(gone, func(o *waiter) bool { return o == w })
		} else {
			spare = append(spare, w)
		}
	}
	for range rapid.IntRange(0, 12).Draw(t, "at first") {
		push(t)
	}
	begin := func(t *rapid.T) { now := tick(); q.Begin(now); m.begin(now) }
	next := func(t *rapid.T) { require.Same(t, value(m.next()), q.Next()) }
	skip := func(t *rapid.T) {
		key := rapid.Uint64Range(0, 3).Draw(t, "group")
		q.SkipGroup(key)
		if m.walking {
			m.skipped[key] = true
		}
	}
	grantCurrent := func(t *rapid.T) {
		if m.current == nil {
			t.Skip("nobody is on offer")
		}
		w, now := m.current, tick()
		require.True(t, q.Granted(w.waiter, now))
		m.granted(w, now)
		leave(w.waiter)
	}
	t.Repeat(map[string]func(*rapid.T){
		"push": push, "push2": push, "push3": push, "begin": begin, "next": next, "skip": skip, "grant current": grantCurrent,
		"pass": func(t *rapid.T) {
			begin(t)
			for {
				next(t)
				if m.current == nil {
					return
				}
				switch rapid.IntRange(0, 3).Draw(t, "deed") {
				case 0:
					grantCurrent(t)
				case 1:
					q.SkipGroup(m.current.ask.Group)
					m.skipped[m.current.ask.Group] = true
				}
			}
		},
		"grant any": func(t *rapid.T) {
			w, now := any(), tick()
			require.True(t, q.Granted(w.waiter, now))
			m.granted(w, now)
			leave(w.waiter)
		},
		"remove": func(t *rapid.T) {
			w := any()
			if m.current != nil && rapid.Bool().Draw(t, "current") {
				w = m.current
			}
			require.True(t, q.Remove(w.waiter))
			m.remove(w)
			leave(w.waiter)
		},
		"remove one that is gone": func(t *rapid.T) {
			for _, w := range gone {
				require.False(t, q.Remove(w))
				require.False(t, q.Granted(w, now))
			}
		},
		"expire": func(t *rapid.T) {
			now := tick()
			for {
				w, cause := q.Expired(now)
				want, wantCause := m.expired(now)
				require.Same(t, value(want), w)
				require.Equal(t, wantCause, cause)
				if w == nil {
					return
				}
				leave(w)
			}
		},
		"": func(t *rapid.T) {
			require.NoError(t, q.Check())
			require.Equal(t, len(m.waiting), q.Len())
			require.Equal(t, m.tokens(), q.Tokens())
			require.LessOrEqual(t, q.Len(), cfg.Max)
			require.Equal(t, m.meanGap(), int64(q.MeanGap()))
			_, wantAt, _ := m.firstExpiry()
			at, some := q.NextExpiry()
			require.Equal(t, len(m.waiting) > 0, some)
			require.Equal(t, wantAt, at)
			var all []*waiter
			for rank := range cfg.Classes {
				var want admission.ClassWaiting
				for _, w := range m.waiting {
					if w.ask.Rank == rank {
						all = append(all, w.waiter)
						want.Waiters++
						want.Tokens += w.ask.Cost
						want.Oldest = max(want.Oldest, time.Duration(m.now-w.enqueued))
					}
				}
				require.Equal(t, want, q.Class(rank, m.now))
			}
			require.Equal(t, all, slices.Collect(q.All()))
		},
	})
}

func TestQueueAgainstNaiveModel(t *testing.T) {
	for range 10 { // what matters takes several rare steps in a row
		rapid.Check(t, queueMachine)
	}
}

func FuzzQueueAgainstNaiveModel(f *testing.F) { f.Fuzz(rapid.MakeFuzz(queueMachine)) }
