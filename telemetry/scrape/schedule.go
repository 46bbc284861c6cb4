package scrape

import (
	"container/heap"
	"hash/fnv"
	"math/rand/v2"
	"time"
)

// newRandom returns an endpoint's own source of draws, so that they do not depend on what others do.
func newRandom(seed uint64, t Target) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(t.ID))
	_, _ = h.Write([]byte{0}) // "ab"+"c" is not "a"+"bc"
	_, _ = h.Write([]byte(t.Incarnation))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// scale returns d times a factor from low to high, drawn evenly.
func scale(d time.Duration, low, high float64, r *rand.Rand) time.Duration {
	return time.Duration(float64(d) * (low + (high-low)*r.Float64()))
}

// firstWait is the time from an endpoint's coming to its first poll.
func (c *Config) firstWait(r *rand.Rand) time.Duration {
	if c.Jitter <= 0 {
		return 0
	}
	return scale(c.Every, 0, c.Jitter, r)
}

// wait is the time from the start of a good poll to the start of the next.
func (c *Config) wait(first bool, r *rand.Rand) time.Duration {
	switch {
	case c.Jitter <= 0:
		return c.Every
	case first:
		return scale(c.Every, 0.5, 1.5, r)
	}
	return scale(c.Every, 1-c.Jitter, 1+c.Jitter, r)
}

// backoff is the longest time from the end of a failed poll to the start of the next, after that many failures in a row:
// min(MaxBackoff, Every 2^(failures-1)). It is 0 for none.
func (c *Config) backoff(failures int) time.Duration {
	if failures <= 0 {
		return 0
	}
	d := c.Every
	for range failures - 1 {
		if d >= c.MaxBackoff {
			break
		}
		d = min(2*d, c.MaxBackoff)
	}
	return d
}

// retryWait is a draw of at most backoff.
func (c *Config) retryWait(failures int, r *rand.Rand) time.Duration {
	d := c.backoff(failures)
	if c.Jitter <= 0 {
		return d
	}
	return scale(d, 1-c.Jitter, 1, r)
}

// tickAfter returns t, or where that is not after now, the first tick after now of those that follow t in steps of every.
func tickAfter(t time.Time, every time.Duration, now time.Time) time.Time {
	if late := now.Sub(t); late >= 0 {
		t = t.Add((late/every + 1) * every)
	}
	return t
}

// dueQueue holds the endpoints that wait for their time, the earliest first. Each knows its own place.
type dueQueue []*endpoint

func (q *dueQueue) add(e *endpoint) { heap.Push(q, e) }

func (q *dueQueue) remove(e *endpoint) {
	if e.place >= 0 {
		heap.Remove(q, e.place)
	}
}

func (q *dueQueue) pop() *endpoint { return heap.Pop(q).(*endpoint) }

// Len, Less, Swap, Push and Pop are for package heap.
func (q dueQueue) Len() int           { return len(q) }
func (q dueQueue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }

func (q dueQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

func (q *dueQueue) Push(x any) {
	e := x.(*endpoint)
	e.place = len(*q)
	*q = append(*q, e)
}

func (q *dueQueue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	e.place = -1
	return e
}
