package cases

import (
	"errors"
	"fmt"
	"slices"

	"github.com/isobar-go/isobar/router"
)

// waiter is a route that waits in the queue.
type waiter struct {
	name   string // as printed, and the id of its request
	ticket *router.Ticket
}

// enqueue makes one request of a demand. The result is a lease or a waiter.
func (m *Machine) enqueue(d *demand) (*router.Lease, *waiter, error) {
	r, err := m.next(d)
	if err != nil {
		return nil, nil, err
	}
	if r.ID == "" {
		m.unnamed++
		r.ID = fmt.Sprintf("#%d", m.unnamed)
	}
	t, err := m.pool.Enqueue(r)
	if err != nil {
		return nil, nil, err
	}
	select {
	case <-t.Done():
		l, err := t.Lease()
		return l, nil, err
	default:
		w := &waiter{name: r.ID, ticket: t}
		m.waiters = append(m.waiters, w)
		return nil, w, nil
	}
}

// findWaiter returns the waiter of that name, nil if there is none.
func (m *Machine) findWaiter(name string) *waiter {
	if i := slices.IndexFunc(m.waiters, func(w *waiter) bool { return w.name == name }); i >= 0 {
		return m.waiters[i]
	}
	return nil
}

// settle returns a line for every waiter that was admitted or rejected, in the order in which that happened.
func (m *Machine) settle() []string {
	m.mu.Lock()
	decided := m.decided
	m.decided = nil
	m.mu.Unlock()
	var lines []string
	for _, id := range decided {
		w := m.findWaiter(id)
		if w == nil {
			continue
		}
		l, err := w.ticket.Lease()
		var reject *router.RejectError
		switch {
		case l != nil:
			m.leases[w.name] = l
			lines = append(lines, fmt.Sprintf("queued %s -> %s", w.name, l.Endpoint().ID))
		case errors.As(err, &reject):
			lines = append(lines, fmt.Sprintf("queued %s -> reject %s", w.name, reject.Code()))
		default:
			continue // it waits
		}
		m.waiters = slices.DeleteFunc(m.waiters, func(x *waiter) bool { return x == w })
	}
	return lines
}

// leaveQueue is the command cancel for a waiter; false when there is none of that name.
func (m *Machine) leaveQueue(name string) bool {
	w := m.findWaiter(name)
	if w == nil {
		return false
	}
	m.waiters = slices.DeleteFunc(m.waiters, func(x *waiter) bool { return x == w })
	w.ticket.Cancel()
	return true
}
