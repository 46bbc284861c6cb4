package workload

import (
	"cmp"
	"fmt"
	"slices"
)

// Workload is a list of requests in memory, in order of arrival unless a reader or StartSessions says otherwise. Functions
// of this package never change one that they are given. Any number of goroutines may read one concurrently.
type Workload []Request

// Stream reads requests one by one. A Stream belongs to one goroutine at a time.
type Stream interface {
	// Next returns the next request; false at the end and after an error.
	Next() (Request, bool)
	// Err is what stopped the stream; nil at its regular end.
	Err() error
}

// Stream reads w from its start.
func (w Workload) Stream() Stream { return &listStream{w: w} }

type listStream struct {
	w  Workload
	at int
}

func (s *listStream) Next() (Request, bool) {
	if s.at == len(s.w) {
		return Request{}, false
	}
	s.at++
	return s.w[s.at-1], true
}

func (s *listStream) Err() error { return nil }

// ReadAll reads a stream to its end. With an error it returns no requests.
func ReadAll(s Stream) (Workload, error) {
	var w Workload
	for r, ok := s.Next(); ok; r, ok = s.Next() {
		w = append(w, r)
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	return w, nil
}

// Check finds the first fault of w as a whole: a request that is not valid, an ID used twice, a session whose turns are
// out of order, numbers of blocks that are not chained. It does not ask for arrivals in order, which an Open source
// does. It takes a few hundred bytes of memory for every request.
func (w Workload) Check() error {
	ids := make(map[uint64]struct{}, len(w))
	turns := map[uint64]int{}
	for i := range w {
		r := &w[i]
		if err := r.Validate(); err != nil {
			return err
		}
		if _, dup := ids[r.ID]; dup {
			return fmt.Errorf("workload: request %d: ID is used twice", r.ID)
		}
		ids[r.ID] = struct{}{}
		if r.Session != 0 {
			if last, ok := turns[r.Session]; ok && r.Turn <= last {
				return fmt.Errorf("workload: request %d: Turn is %d, it must be above %d, the turn before in session %d",
					r.ID, r.Turn, last, r.Session)
			}
			turns[r.Session] = r.Turn
		}
	}
	return w.checkChains()
}

// before is what precedes the first block of a segment.
type before struct {
	number uint64
	root   bool // nothing: it begins the prompt
}

func (w Workload) checkChains() error {
	previous := map[uint64]before{}
	length := map[uint64]int64{}
	owner := map[uint64]uint64{}
	for i := range w {
		p := before{root: true}
		for _, s := range w[i].Segments {
			if q, ok := previous[s.First]; ok && q != p {
				return fmt.Errorf("workload: request %d: the block numbered %d does not follow what it followed in request %d",
					w[i].ID, s.First, owner[s.First])
			}
			previous[s.First] = p
			owner[s.First] = w[i].ID
			length[s.First] = max(length[s.First], s.Blocks)
			p = before{number: s.end() - 1}
		}
	}
	runs := make([]Segment, 0, len(length))
	for first, n := range length {
		runs = append(runs, Segment{first, n})
	}
	slices.SortFunc(runs, func(a, b Segment) int { return cmp.Compare(a.First, b.First) })
	for i, a := range runs {
		// The last one may reach the first, as numbers wrap around.
		if b := runs[(i+1)%len(runs)]; len(runs) > 1 && b.First-a.First < uint64(a.Blocks) {
			return fmt.Errorf("workload: request %d: the block numbered %d begins a segment and is inside one of request %d",
				owner[b.First], b.First, owner[a.First])
		}
	}
	return nil
}
