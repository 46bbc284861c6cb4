package workload

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// LoopConfig says how sessions are played. The zero value works. It is a plain value.
type LoopConfig struct {
	// Concurrent is how many sessions are under way at most, at least 0; 0 = no limit. The rest wait in order of their
	// arrival for one to end.
	Concurrent int
}

// Loop plays a workload as a closed loop: the first request of a session arrives when the workload says so, every further
// one its Think after the end of the one before. Requests without a session arrive as they are given. All at one moment
// come in order of their ID. A Loop belongs to one goroutine at a time.
type Loop struct {
	w        Workload
	sessions map[uint64]*loopSession
	waiting  []*loopSession // not begun, in order of arrival
	heap     []pending
	err      error
}

type loopSession struct {
	turns []int32 // positions in the workload
	at    int     // next of turns
	out   bool    // the one before it is in flight
}

type pending struct {
	at    time.Duration
	id    uint64
	index int32
}

func (p pending) before(q pending) bool {
	return cmp.Or(cmp.Compare(p.at, q.at), cmp.Compare(p.id, q.id)) < 0
}

// NewLoop plays w, with the turns of every session in order. It fails on an ID or a turn that is there twice, and on a
// negative Concurrent.
func NewLoop(w Workload, c LoopConfig) (*Loop, error) {
	if c.Concurrent < 0 {
		return nil, fmt.Errorf("workload: Concurrent is %d, it must be at least 0", c.Concurrent)
	}
	if len(w) > MaxTokens {
		return nil, fmt.Errorf("workload: %d requests, a loop takes at most 2147483647", len(w))
	}
	l := &Loop{w: w, sessions: map[uint64]*loopSession{}}
	ids := make(map[uint64]struct{}, len(w))
	for i := range w {
		r := &w[i]
		if _, dup := ids[r.ID]; dup {
			return nil, fmt.Errorf("workload: request %d: ID is used twice", r.ID)
		}
		ids[r.ID] = struct{}{}
		if r.Session == 0 {
			l.push(pending{r.Arrival, r.ID, int32(i)})
			continue
		}
		s := l.sessions[r.Session]
		if s == nil {
			s = &loopSession{}
			l.sessions[r.Session] = s
			l.waiting = append(l.waiting, s)
		}
		s.turns = append(s.turns, int32(i))
	}
	for _, s := range l.waiting {
		slices.SortFunc(s.turns, func(i, j int32) int { return cmp.Compare(w[i].Turn, w[j].Turn) })
		for k := 1; k < len(s.turns); k++ {
			if a, b := &w[s.turns[k-1]], &w[s.turns[k]]; a.Turn == b.Turn {
				return nil, fmt.Errorf("workload: request %d: Turn is %d, that of request %d of the same session", b.ID, b.Turn, a.ID)
			}
		}
	}
	slices.SortFunc(l.waiting, func(s, t *loopSession) int {
		a, b := &w[s.turns[0]], &w[t.turns[0]]
		return cmp.Or(cmp.Compare(a.Arrival, b.Arrival), cmp.Compare(a.ID, b.ID))
	})
	n := len(l.waiting)
	if c.Concurrent > 0 {
		n = min(n, c.Concurrent)
	}
	for range n {
		l.begin(0)
	}
	return l, nil
}

// begin lets the first waiting session in. As they wait in order of arrival, one whose arrival is still to come keeps no
// other from its place.
func (l *Loop) begin(now time.Duration) {
	if len(l.waiting) == 0 {
		return
	}
	s := l.waiting[0]
	l.waiting = l.waiting[1:]
	l.schedule(s, max(now, l.w[s.turns[0]].Arrival))
}

func (l *Loop) schedule(s *loopSession, at time.Duration) {
	i := s.turns[s.at]
	l.push(pending{at, l.w[i].ID, i})
}

// Peek is the next arrival that is known.
func (l *Loop) Peek() (time.Duration, bool) {
	if l.err != nil || len(l.heap) == 0 {
		return 0, false
	}
	return l.heap[0].at, true
}

// Next takes the next request that is known, with its actual arrival.
func (l *Loop) Next() (Request, bool) {
	if l.err != nil || len(l.heap) == 0 {
		return Request{}, false
	}
	p := l.pop()
	r := l.w[p.index]
	r.Arrival = p.at
	if r.Session != 0 {
		s := l.sessions[r.Session]
		s.at++
		s.out = true
	}
	return r, true
}

// Finished brings the next request of the session, or the next session that waits. A request that is not in flight, or
// that ends before its arrival, stops the loop with an error.
func (l *Loop) Finished(r *Request, at time.Duration) {
	if l.err != nil || r.Session == 0 {
		return
	}
	s := l.sessions[r.Session]
	switch {
	case s == nil || !s.out || l.w[s.turns[s.at-1]].ID != r.ID:
		l.err = fmt.Errorf("workload: request %d of session %d has finished and is not in flight", r.ID, r.Session)
		return
	case at < r.Arrival:
		l.err = fmt.Errorf("workload: request %d has finished at %v, before its arrival at %v", r.ID, at, r.Arrival)
		return
	}
	s.out = false
	if s.at == len(s.turns) {
		l.begin(at)
		return
	}
	l.schedule(s, at+l.w[s.turns[s.at]].Think)
}

// Err is what stopped the loop: a Finished that can not be.
func (l *Loop) Err() error { return l.err }

// Waiting is the number of sessions that have not been let in.
func (l *Loop) Waiting() int { return len(l.waiting) }

func (l *Loop) push(p pending) {
	h := append(l.heap, p)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !h[i].before(h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
	l.heap = h
}

func (l *Loop) pop() pending {
	h := l.heap
	top := h[0]
	n := len(h) - 1
	h[0] = h[n]
	h = h[:n]
	for i := 0; ; {
		child := 2*i + 1
		if child >= n {
			break
		}
		if child+1 < n && h[child+1].before(h[child]) {
			child++
		}
		if !h[child].before(h[i]) {
			break
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
	l.heap = h
	return top
}
