package workload

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// byArrival orders requests in time, those of one moment by session, turn and ID.
func byArrival(a, b Request) int {
	return cmp.Or(cmp.Compare(a.Arrival, b.Arrival), cmp.Compare(a.Session, b.Session), cmp.Compare(a.Turn, b.Turn),
		cmp.Compare(a.ID, b.ID))
}

// sorted is w itself if it is in order of arrival, else a copy that is.
func (w Workload) sorted() Workload {
	if slices.IsSortedFunc(w, func(a, b Request) int { return cmp.Compare(a.Arrival, b.Arrival) }) {
		return w
	}
	w = slices.Clone(w)
	slices.SortFunc(w, byArrival)
	return w
}

// Filter keeps the requests for which keep returns true. IDs, turns and think times stay as they are. keep must not change
// the request.
func (w Workload) Filter(keep func(r *Request) bool) Workload {
	var out Workload
	for i := range w {
		if keep(&w[i]) {
			out = append(out, w[i])
		}
	}
	return out
}

// Scale speeds time up: arrivals and think times are divided by speed, which is above 0; 2 is twice the load. Deadlines stay.
// It fails if a time would be longer than 100 years.
func Scale(w Workload, speed float64) (Workload, error) {
	if !(speed > 0) || math.IsInf(speed, 1) {
		return nil, fmt.Errorf("workload: speed is %v, it must be above 0 and finite", speed)
	}
	out := slices.Clone(w)
	for i := range out {
		r := &out[i]
		for _, d := range [...]*time.Duration{&r.Arrival, &r.Think} {
			ns := float64(*d) / speed
			if ns > maxMillis*1e6 {
				return nil, fmt.Errorf("workload: speed is %v: a time of request %d would be longer than 100 years", speed, r.ID)
			}
			*d = time.Duration(math.Round(ns))
		}
	}
	return out, nil
}

// Jitter delays every arrival by a time of its own, uniform in [0, most). The requests of a session are delayed by the same
// time. It breaks up traces whose clock ticks slowly. The result is in order of arrival.
func Jitter(w Workload, most time.Duration, seed uint64) (Workload, error) {
	if most < 0 {
		return nil, fmt.Errorf("workload: most is %v, it must be at least 0", most)
	}
	out := slices.Clone(w)
	if most == 0 {
		return out, nil
	}
	rnd := newRand(seed, "jitter")
	delays := map[uint64]time.Duration{}
	for i := range out {
		r := &out[i]
		d, ok := delays[r.Session]
		if !ok || r.Session == 0 {
			d = time.Duration(rnd.Int64N(int64(most)))
			delays[r.Session] = d
		}
		if r.Arrival > math.MaxInt64-d {
			return nil, fmt.Errorf("workload: most is %v: the arrival of request %d would be too late", most, r.ID)
		}
		r.Arrival += d
	}
	slices.SortStableFunc(out, byArrival)
	return out, nil
}

// Head keeps the first n requests, n at least 0. A session may lose its end.
func Head(w Workload, n int) (Workload, error) {
	if n < 0 {
		return nil, fmt.Errorf("workload: n is %d, it must be at least 0", n)
	}
	n = min(n, len(w))
	return w[:n:n], nil
}

// HeadSessions keeps the requests of the first n sessions and those without a session, n at least 0.
func HeadSessions(w Workload, n int) (Workload, error) {
	if n < 0 {
		return nil, fmt.Errorf("workload: n is %d, it must be at least 0", n)
	}
	kept := map[uint64]bool{}
	return w.Filter(func(r *Request) bool {
		if r.Session == 0 {
			return true
		}
		if _, known := kept[r.Session]; !known {
			kept[r.Session] = len(kept) < n
		}
		return kept[r.Session]
	}), nil
}

// FitContext keeps what an engine with a KV capacity of limit tokens can serve: prompt and output together are at most
// limit, which is above 0. A session with a request that does not fit goes as a whole, as its client would have stopped.
func FitContext(w Workload, limit int64) (Workload, error) {
	if limit < 1 {
		return nil, fmt.Errorf("workload: limit is %d, it must be above 0", limit)
	}
	long := map[uint64]bool{}
	for i := range w {
		if !w[i].fits(limit) {
			long[w[i].Session] = true
		}
	}
	return w.Filter(func(r *Request) bool { return r.fits(limit) && (r.Session == 0 || !long[r.Session]) }), nil
}

// CutContext is FitContext that keeps of every session what comes before its first request that does not fit.
func CutContext(w Workload, limit int64) (Workload, error) {
	if limit < 1 {
		return nil, fmt.Errorf("workload: limit is %d, it must be above 0", limit)
	}
	over := map[uint64]bool{}
	return w.Filter(func(r *Request) bool {
		if !r.fits(limit) {
			over[r.Session] = r.Session != 0
		}
		return r.fits(limit) && !over[r.Session]
	}), nil
}

func (r *Request) fits(limit int64) bool { return r.PromptTokens+r.OutputTokens <= limit }

// Labelled gives every request the label.
func Labelled(w Workload, label string) Workload {
	out := slices.Clone(w)
	for i := range out {
		out[i].Label = label
	}
	return out
}

// Merge plays several workloads at once, all from the same start. IDs and sessions are numbered anew, as Mix does; block
// numbers stay, so parts that have blocks in common share them. The result is in order of arrival.
func Merge(parts ...Workload) Workload {
	var out Workload
	for k, p := range parts {
		for _, r := range p {
			renumber(&r, k, len(parts))
			out = append(out, r)
		}
	}
	slices.SortStableFunc(out, byArrival)
	return out
}

// Concat plays several workloads one after the other: each begins gap, which is at least 0, after the last arrival of the
// one before. IDs and sessions are numbered anew, as Mix does; block numbers stay.
func Concat(gap time.Duration, parts ...Workload) (Workload, error) {
	if gap < 0 {
		return nil, fmt.Errorf("workload: gap is %v, it must be at least 0", gap)
	}
	var out Workload
	start := time.Duration(0)
	for k, p := range parts {
		last := time.Duration(0)
		for _, r := range p {
			renumber(&r, k, len(parts))
			if r.Arrival > math.MaxInt64-start {
				return nil, fmt.Errorf("workload: gap is %v: request %d would arrive too late", gap, r.ID)
			}
			r.Arrival += start
			last = max(last, r.Arrival)
			out = append(out, r)
		}
		if len(p) > 0 {
			if last > math.MaxInt64-gap {
				return nil, fmt.Errorf("workload: gap is %v: parts[%d] would be too late", gap, k+1)
			}
			start = last + gap
		}
	}
	return out, nil
}

// renumber keeps the IDs and sessions of part k of n apart from those of the other parts.
func renumber(r *Request, k, n int) {
	r.ID = r.ID*uint64(n) + uint64(k)
	if r.Session != 0 {
		r.Session = (r.Session-1)*uint64(n) + uint64(k) + 1
	}
}
