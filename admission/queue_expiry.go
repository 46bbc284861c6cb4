package admission

// Cause says why a waiter's time is over. It is a plain value; any number of goroutines may read it.
type Cause uint8

// The causes. The zero Cause is none.
const (
	// TimedOut means that the waiter has waited QueueConfig.Timeout.
	TimedOut Cause = iota + 1
	// PastLatest means that a start can no longer meet its deadline.
	PastLatest
)

// String returns "timed out", "past latest" or "none".
func (c Cause) String() string {
	switch c {
	case TimedOut:
		return "timed out"
	case PastLatest:
		return "past latest"
	default:
		return "none"
	}
}

// Expired takes out one waiter whose time is over at now, the one whose time was over first, and says why: of two causes
// the earlier. It returns nil when there is none: call it until then. O(log n).
func (q *Queue[T]) Expired(now int64) (*Waiter[T], Cause) {
	now = q.advance(now)
	w, at, cause := q.firstExpiry()
	if w == nil || at > now {
		return nil, 0
	}
	q.remove(w)
	return w, cause
}

// NextExpiry returns the earliest time at which Expired has a waiter to return, in nanoseconds on the caller's scale,
// and false if nobody waits.
func (q *Queue[T]) NextExpiry() (int64, bool) {
	w, at, _ := q.firstExpiry()
	return at, w != nil
}

func (q *Queue[T]) firstExpiry() (first *Waiter[T], at int64, cause Cause) {
	consider := func(w *Waiter[T], t int64, c Cause) {
		if first == nil || t < at || t == at && w.seq < first.seq {
			first, at, cause = w, t, c
		}
	}
	for rank := range q.classes {
		c := &q.classes[rank]
		// All have the same timeout, so that the oldest reaches it first.
		if w := c.waiters.head; w != nil {
			consider(w, addTime(w.enqueued, int64(q.cfg.Timeout)), TimedOut)
		}
		if len(c.latest) > 0 {
			consider(c.latest[0].item, addTime(c.latest[0].key, 1), PastLatest)
		}
	}
	return first, at, cause
}
