package telemetry_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConcurrentUse has observers deliver snapshots in which every figure tells the time, in no order, beside readers
// that check that each state is one that the rules allow.
func TestConcurrentUse(t *testing.T) {
	const observers, readers, each = 4, 3, 2000
	now := at(observers * each)
	s := newStore()
	done := make(chan struct{})
	var writing, reading sync.WaitGroup
	for w := range observers {
		writing.Go(func() {
			for i := range each {
				// A permutation of all seconds: 7919 is prime to their number.
				second := float64((i*observers + w) * 7919 % (observers * each))
				s.Observe(now, snap{ObservedAt: at(second), Running: v(second), Waiting: v(second), KVUsed: v(second),
					KVCapacity: v(observers * each), Ranks: []rank{{ID: 1, Running: v(0)}, {ID: 2, Waiting: v(0)}}}, 1)
				switch {
				case i%97 == 0:
					s.ScrapeError(now, nil)
				case i%101 == 0:
					s.Trust(now)
				case i%103 == 0:
					s.Counters()
				}
			}
		})
	}
	for range readers {
		reading.Go(func() {
			last := time.Time{}
			for {
				st := s.State()
				if st.SeenAny {
					running, known := st.Running.Value()
					waiting, _ := st.Waiting.Value()
					used, _ := st.KVUsed.Value()
					share, _ := st.KVShare.Value()
					ok := known && running == waiting && running == used && share == used/(observers*each) &&
						st.Running.ObservedAt().Equal(at(running)) && st.NewestAt.Equal(at(running)) &&
						len(st.Ranks) == 3 && st.Ranks[0].Running == st.Running
					if !assert.True(t, ok, "%+v", st) {
						return
					}
				}
				if !assert.False(t, st.NewestAt.Before(last), "time does not go back") {
					return
				}
				last = st.NewestAt
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	writing.Wait()
	close(done)
	reading.Wait()
	wantKnown(t, s.State().Running, observers*each-1, observers*each-1)
	assert.Equal(t, uint64(observers*each), s.Counters().Observations)
}
