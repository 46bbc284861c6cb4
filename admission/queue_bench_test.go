package admission_test

import (
	"fmt"
	"testing"

	"github.com/isobar-go/isobar/admission"
)

var benchSizes = []int{10, 1000, 100_000}

// benchQueue holds n waiters of 5 classes, 64 tenants and 8 groups; every waiter for itself a tenant if alone is set.
func benchQueue(b *testing.B, n int, alone bool) (*admission.Queue[int], []admission.Waiter[int]) {
	b.Helper()
	q, err := admission.NewQueue[int](admission.QueueConfig{Max: max(n+1, 2000), Classes: 5})
	if err != nil {
		b.Fatal(err)
	}
	ws := make([]admission.Waiter[int], n+1)
	for i := range n {
		if _, err := q.Push(&ws[i], benchAsk(i, alone), int64(i)); err != nil {
			b.Fatal(err)
		}
	}
	return q, ws
}

func benchAsk(i int, alone bool) admission.Ask {
	h := uint64(i) * 0x9e3779b97f4a7c15
	ask := admission.Ask{
		Rank: int(h>>32) % 5, Tenant: h >> 58, Group: h >> 40 % 8,
		Cost: 100 + int64(h>>20%4000), Latest: 1<<40 + int64(h>>50),
	}
	if alone {
		ask.Tenant = uint64(i)
	}
	return ask
}

// One request more, and one granted.
func BenchmarkQueuePushNextGranted(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			q, ws := benchQueue(b, n, false)
			w := &ws[n]
			b.ReportAllocs()
			for i := n; b.Loop(); i++ {
				if _, err := q.Push(w, benchAsk(i, false), int64(i)); err != nil {
					b.Fatal(err)
				}
				q.Begin(int64(i))
				w = q.Next()
				q.Granted(w, int64(i))
			}
		})
	}
}

// A whole pass in which nothing fits: every group is offered once. Each waiter is a tenant of its own.
func BenchmarkQueuePassNothingFits(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			q, _ := benchQueue(b, n, true)
			b.ReportAllocs()
			for b.Loop() {
				q.Begin(0)
				for w := q.Next(); w != nil; w = q.Next() {
					q.SkipGroup(w.Ask().Group)
				}
			}
		})
	}
}

// One request more, and one granted, where everybody is of one tenant and one class, in so many groups.
func BenchmarkQueueManyGroups(b *testing.B) {
	for _, groups := range benchSizes[:2] {
		b.Run(fmt.Sprint(groups), func(b *testing.B) {
			q, ws := benchQueue(b, 0, false)
			ws = append(ws, make([]admission.Waiter[int], groups)...)
			for i := range groups {
				if _, err := q.Push(&ws[i], admission.Ask{Group: uint64(i), Cost: 1000}, 0); err != nil {
					b.Fatal(err)
				}
			}
			w := &ws[groups]
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := q.Push(w, admission.Ask{Group: uint64(i % groups), Cost: 1000}, 0); err != nil {
					b.Fatal(err)
				}
				q.Begin(0)
				w = q.Next()
				q.Granted(w, 0)
			}
		})
	}
}

// One request that is cancelled in the middle of the queue, and comes again.
func BenchmarkQueueRemovePush(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			q, ws := benchQueue(b, n, false)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w := &ws[i*7919%n]
				q.Remove(w)
				if _, err := q.Push(w, benchAsk(i, false), int64(n)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkSharesAdmitsTakeGive(b *testing.B) {
	s, err := admission.NewShares(admission.SharesConfig{Reserve: [8]float64{0.1, 0.3, 0.2}})
	if err != nil {
		b.Fatal(err)
	}
	capacity := admission.Amount{Requests: 100, Tokens: 1 << 20}
	b.ReportAllocs()
	for i := int64(0); b.Loop(); i++ {
		rank := int(i % 5)
		if !s.Admits(rank, 1000, capacity, i) || s.Take(rank, 1000, i) != nil || s.Give(rank, 1000, i) != nil {
			b.Fatal("refused")
		}
	}
}
