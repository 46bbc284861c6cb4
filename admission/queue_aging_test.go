package admission_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
)

func TestQueueAgedTurns(t *testing.T) {
	const s = int64(time.Second)
	q := newQueue(t, admission.QueueConfig{Classes: 3, AgedEvery: 3})
	push(t, q, "batch 1", admission.Ask{Rank: 2, Group: 1, Cost: 1}, 0)
	push(t, q, "batch 2", admission.Ask{Rank: 2, Group: 2, Cost: 1}, 0)
	push(t, q, "std", admission.Ask{Rank: 1, Group: 3, Cost: 1}, 1)
	for range 20 {
		push(t, q, "top", admission.Ask{Group: 9, Cost: 1}, 1)
	}
	grant := func(now int64, skip ...uint64) string {
		q.Begin(now)
		for w := q.Next(); w != nil; w = q.Next() {
			fits := true
			for _, g := range skip {
				if w.Ask().Group == g {
					q.SkipGroup(g)
					fits = false
				}
			}
			if fits {
				q.Granted(w, now)
				return w.Value
			}
		}
		return ""
	}
	for range 5 {
		require.Equal(t, "top", grant(5*s), "nobody is aged")
	}
	require.Equal(t, "top", grant(10*s))
	require.Equal(t, "top", grant(10*s))
	require.Equal(t, "batch 2", grant(10*s, 1), "the oldest that fits")
	require.Equal(t, "top", grant(11*s))
	require.Equal(t, "top", grant(11*s))
	require.Equal(t, "top", grant(11*s, 1, 3), "none fits: the turn stays due")
	require.Equal(t, "batch 1", grant(11*s), "before the class above, which is younger")
	require.Equal(t, "top", grant(11*s))
	require.Equal(t, "top", grant(11*s))
	require.Equal(t, "std", grant(11*s))
	require.Equal(t, "top", grant(11*s))
	require.NoError(t, q.Check())
}

func TestQueueAgedTurnWaitsForNearDeadlines(t *testing.T) {
	const s = int64(time.Second)
	q := newQueue(t, admission.QueueConfig{Classes: 3, AgedEvery: 1})
	push(t, q, "batch", admission.Ask{Rank: 2, Cost: 1}, 0)
	push(t, q, "far", admission.Ask{Group: 1, Cost: 1, Latest: 22 * s}, 0)
	first := func(now int64, skip ...uint64) string {
		q.Begin(now)
		defer q.Begin(now)
		for _, g := range skip {
			q.SkipGroup(g)
		}
		return q.Next().Value
	}
	require.Equal(t, "batch", first(20*s), "two gaps of a second, none measured, are left")
	require.Equal(t, "far", first(20*s+1))
	require.Equal(t, "batch", first(20*s+1, 1), "nothing to lose: it fits nowhere")

	// Gaps of 10 ms measured: a second is far.
	for i := range int64(40) {
		w := push(t, q, "", admission.Ask{Cost: 1}, 20*s)
		q.Granted(w, 20*s+i*int64(10*time.Millisecond))
	}
	require.Equal(t, 10*time.Millisecond, q.MeanGap())
	require.Equal(t, "batch", first(21*s))
	require.Equal(t, "far", first(21*s+981*int64(time.Millisecond)))

	// A lower class's deadline postpones nothing.
	q = newQueue(t, admission.QueueConfig{Classes: 3, AgedEvery: 1})
	push(t, q, "std", admission.Ask{Rank: 1, Cost: 1}, 0)
	push(t, q, "batch", admission.Ask{Rank: 2, Cost: 1, Latest: 20 * s}, 0)
	push(t, q, "top", admission.Ask{Cost: 1}, 0)
	require.Equal(t, "std", first(20*s))
}

// The bound of the package's documentation: with k aged waiters before it, one that fits is granted within (k+1) x
// AgedEvery grants of growing old, not counting those made while a near deadline postpones the turn.
func TestQueueStarvationBound(t *testing.T) {
	const ms = int64(time.Millisecond)
	for _, near := range []bool{false, true} {
		worst, postponed, missed := 0.0, 0, 0
		for seed := range uint64(10) {
			rng := rand.New(rand.NewPCG(seed, 1))
			every := 1 + rng.IntN(8)
			cfg := admission.QueueConfig{Classes: 3, AgedEvery: every, AgeAfter: time.Second, Timeout: time.Hour}
			q := newQueue(t, cfg)
			type old struct{ before, grants int }
			aged := map[*waiter]*old{}
			now := int64(0)
			for range 1500 {
				now += 10 * ms
				// More of the top class than there are grants, all of which fit; some of it in a hurry.
				for range 1 + rng.IntN(2) {
					ask := admission.Ask{Tenant: rng.Uint64N(3), Group: 1, Cost: 1 + rng.Int64N(50)}
					if near && rng.IntN(20) == 0 {
						// A tenant that asks for little does not stand behind those that ask for much.
						ask.Tenant, ask.Group, ask.Cost, ask.Latest = 9, 4, 1, now+30*ms
					}
					push(t, q, "top", ask, now)
				}
				if rng.IntN(10) == 0 {
					ask := admission.Ask{Rank: 1 + rng.IntN(2), Tenant: rng.Uint64N(3), Group: 2 + rng.Uint64N(2), Cost: 1 + rng.Int64N(5000)}
					push(t, q, "low", ask, now)
				}
				for w, _ := q.Expired(now); w != nil; w, _ = q.Expired(now) {
					missed++
				}
				for w := range q.All() {
					if w.Ask().Rank > 0 && aged[w] == nil && now-w.Enqueued() >= int64(time.Second) {
						o := &old{}
						for v := range q.All() {
							if v.Ask().Rank > 0 && v != w && (v.Enqueued() < w.Enqueued()) {
								o.before++
							}
						}
						aged[w] = o
					}
				}
				hurry := false
				for w := range q.All() {
					l := w.Ask().Latest
					hurry = hurry || l != 0 && l-now < 2*int64(max(q.MeanGap(), time.Nanosecond))
				}
				q.Begin(now)
				w := q.Next()
				if hurry {
					postponed++
				} else {
					for _, o := range aged {
						o.grants++
					}
				}
				q.Granted(w, now)
				if o := aged[w]; o != nil {
					bound := (o.before + 1) * every
					require.LessOrEqual(t, o.grants, bound)
					worst = max(worst, float64(o.grants)/float64(bound))
					delete(aged, w)
				}
			}
			for _, o := range aged {
				require.LessOrEqual(t, o.grants, (o.before+1)*every)
			}
		}
		t.Logf("near deadlines %v: worst wait %.0f %% of the bound, %d grants while postponed, %d deadlines missed",
			near, 100*worst, postponed, missed)
		require.Greater(t, worst, 0.9, "the bound was not tried")
	}
}

// Somebody old always waits and every turn is his; each deadline is 25 ms away, and there is one grant in 10 ms.
func TestQueueAgedTurnsBreakNoDeadline(t *testing.T) {
	const ms = int64(time.Millisecond)
	rng := rand.New(rand.NewPCG(3, 3))
	q := newQueue(t, admission.QueueConfig{Classes: 2, AgedEvery: 1, Timeout: time.Hour})
	for range 1000 {
		push(t, q, "batch", admission.Ask{Rank: 1, Cost: 1}, 0)
	}
	now := int64(time.Minute)
	for range 40 { // the gap is measured
		q.Begin(now)
		q.Granted(q.Next(), now)
		now += 10 * ms
	}
	granted := map[string]int{}
	for range 1500 {
		if rng.IntN(3) > 0 {
			push(t, q, "top", admission.Ask{Cost: 1, Latest: now + 25*ms}, now)
		}
		w, _ := q.Expired(now)
		require.Nil(t, w)
		q.Begin(now)
		w = q.Next()
		q.Granted(w, now)
		granted[w.Value]++
		now += 10 * ms
	}
	require.Greater(t, granted["batch"], 400, "what the deadlines leave goes to the old")
}

// A turn out of order charges its tenant and leaves the class's time alone: the others are not charged by it.
func TestQueueAgedTurnsLeaveTheOrder(t *testing.T) {
	const s = int64(time.Second)
	q := newQueue(t, admission.QueueConfig{Classes: 2, AgedEvery: 1})
	take := func(now int64) string {
		q.Begin(now)
		w := q.Next()
		q.Granted(w, now)
		return w.Value
	}
	push(t, q, "a", admission.Ask{Rank: 1, Tenant: 1, Cost: 100}, 0)
	push(t, q, "a aged", admission.Ask{Rank: 1, Tenant: 1, Cost: 100}, 0)
	require.Equal(t, "a", take(0))
	for range 15 {
		push(t, q, "b", admission.Ask{Rank: 1, Tenant: 2, Cost: 10}, 10*s)
	}
	push(t, q, "a", admission.Ask{Rank: 1, Tenant: 1, Cost: 100}, 10*s)
	require.Equal(t, "a aged", take(10*s))
	for range 15 {
		require.Equal(t, "b", take(10*s), "a has had 200, b at most 150")
	}
	require.Equal(t, "a", take(10*s))
}
