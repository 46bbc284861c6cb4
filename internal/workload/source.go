package workload

import (
	"errors"
	"fmt"
	"time"
)

// Source hands requests to a simulation in order of arrival. A Source belongs to one goroutine at a time.
type Source interface {
	// Peek is the arrival of the request that Next would return; false if there is none, for now or for ever.
	Peek() (at time.Duration, ok bool)
	// Next takes the next request; false exactly if Peek is.
	Next() (Request, bool)
	// Finished tells that a request taken from Next ended at the given time, well or not. In a closed loop it brings the
	// next request of the session, at that time or later; elsewhere it does nothing. Only ID, Session and Arrival of r are
	// looked at.
	Finished(r *Request, at time.Duration)
	// Err is what stopped the source; nil at its regular end.
	Err() error
}

// Open plays requests as they arrive, whatever becomes of them: an open loop. It belongs to one goroutine at a time.
type Open struct {
	stream Stream
	next   Request
	loaded bool
	ended  bool
	last   time.Duration
	err    error
}

// NewOpen plays a stream, which must be in order of arrival: it holds one request in memory. For a Workload, pass
// its Stream.
func NewOpen(s Stream) *Open { return &Open{stream: s} }

func (o *Open) load() bool {
	if o.loaded || o.ended {
		return o.loaded
	}
	r, ok := o.stream.Next()
	switch {
	case !ok:
		o.ended, o.err = true, o.stream.Err()
	case r.Arrival < o.last:
		o.ended = true
		o.err = fmt.Errorf("workload: request %d: Arrival is %v, before %v, that of the request before", r.ID, r.Arrival, o.last)
	default:
		o.next, o.loaded, o.last = r, true, r.Arrival
	}
	return o.loaded
}

// Peek is the next arrival.
func (o *Open) Peek() (time.Duration, bool) {
	if !o.load() {
		return 0, false
	}
	return o.next.Arrival, true
}

// Next takes the next request.
func (o *Open) Next() (Request, bool) {
	if !o.load() {
		return Request{}, false
	}
	o.loaded = false
	return o.next, true
}

// Finished does nothing.
func (o *Open) Finished(*Request, time.Duration) {}

// Err is the error of the stream, or that it was out of order.
func (o *Open) Err() error { return o.err }

// Mix plays several sources at once. IDs and sessions are numbered anew, without dependence on what happens: of n sources
// the one at index k has the IDs id*n+k and the sessions (session-1)*n+k+1. An error of one source stops all. At
// one moment, the first source goes first. A Mix belongs to one goroutine at a time, which must leave the sources alone.
type Mix struct{ parts []Source }

// NewMix mixes the sources, at least one and none of them nil.
func NewMix(parts ...Source) (*Mix, error) {
	if len(parts) == 0 {
		return nil, errors.New("workload: parts is empty, a mix needs a source")
	}
	for k, p := range parts {
		if p == nil {
			return nil, fmt.Errorf("workload: parts[%d] is nil", k)
		}
	}
	return &Mix{parts: append([]Source(nil), parts...)}, nil
}

func (m *Mix) first() (k int, at time.Duration) {
	k = -1
	for i, p := range m.parts {
		t, ok := p.Peek()
		switch {
		case !ok && p.Err() != nil:
			return -1, 0
		case ok && (k < 0 || t < at):
			k, at = i, t
		}
	}
	return k, at
}

// Peek is the first arrival of all sources.
func (m *Mix) Peek() (time.Duration, bool) {
	k, at := m.first()
	return at, k >= 0
}

// Next takes the first request of all sources.
func (m *Mix) Next() (Request, bool) {
	k, _ := m.first()
	if k < 0 {
		return Request{}, false
	}
	r, ok := m.parts[k].Next()
	renumber(&r, k, len(m.parts))
	return r, ok
}

// Finished tells the source that the request came from.
func (m *Mix) Finished(r *Request, at time.Duration) {
	n := uint64(len(m.parts))
	own := Request{ID: r.ID / n, Arrival: r.Arrival}
	if r.Session != 0 {
		own.Session = (r.Session-1)/n + 1
	}
	m.parts[r.ID%n].Finished(&own, at)
}

// Err is the first error of a source.
func (m *Mix) Err() error {
	for _, p := range m.parts {
		if err := p.Err(); err != nil {
			return err
		}
	}
	return nil
}
