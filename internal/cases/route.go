package cases

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/isobar-go/isobar/router"
)

// tally counts the outcomes of many requests.
type tally struct {
	queued   int
	chosen   map[string]int
	rejected int
}

func (t *tally) add(l *router.Lease, err error) error {
	if t.chosen == nil {
		t.chosen = map[string]int{}
	}
	var reject *router.RejectError
	switch {
	case err == nil:
		t.chosen[l.Endpoint().ID]++
	case errors.As(err, &reject):
		t.rejected++
	default:
		return err
	}
	return nil
}

// line is the counts by endpoint, sorted, and the rejected last.
func (t *tally) line() []string {
	parts := make([]string, 0, len(t.chosen))
	for id, n := range t.chosen {
		parts = append(parts, fmt.Sprintf("%s=%d", id, n))
	}
	slices.Sort(parts)
	if t.queued > 0 {
		parts = append(parts, fmt.Sprintf("queued=%d", t.queued))
	}
	if t.rejected > 0 {
		parts = append(parts, fmt.Sprintf("reject=%d", t.rejected))
	}
	return []string{strings.Join(parts, " ")}
}

// times takes n=K; it must be given unless there is another value for its absence.
func (m *Machine) times(c *command, absent int64) int64 {
	n, given := c.count("n", 1, m.limits.requests, absent)
	if !given && absent == 0 {
		c.fail("%s: no n given", c.name)
	}
	return n
}

// reserveAll makes n requests one after the other; ended says whether each ends before the next.
func (m *Machine) reserveAll(d *demand, n int64, ended bool) (*tally, error) {
	m.forgetReceipt()
	t := &tally{}
	for range n {
		l, waits, err := m.enqueue(d)
		if waits != nil {
			t.queued++
			continue
		}
		if err := t.add(l, err); err != nil {
			return nil, err
		}
		if ended && l != nil {
			l.Done(router.Usage{})
		}
	}
	return t, nil
}

func (m *Machine) forgetReceipt() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.receipt = nil
}

func (m *Machine) route(c *command) ([]string, error) {
	n := m.times(c, -1)
	name, named := c.take("id")
	d := m.readDemand(c)
	d.request.ID = name
	switch {
	case n >= 0 && named:
		c.fail("route: id and n do not go together")
	case named && c.err == nil:
		c.err = checkName("lease", name)
		if l := m.leases[name]; l != nil && l.Live() {
			c.fail("lease %q is open already", name)
		}
		if m.findWaiter(name) != nil {
			c.fail("%q waits in the queue already", name)
		}
	}
	d.checkWork(c, max(n, 1), m.limits.work)
	if err := c.end(); err != nil {
		return nil, err
	}
	if n >= 0 {
		return counts(m.reserveAll(&d, n, false))
	}
	m.forgetReceipt()
	l, waits, err := m.enqueue(&d)
	switch {
	case err != nil:
		return rejection(err)
	case waits != nil:
		return []string{"queued"}, nil
	}
	if named {
		m.leases[name] = l
	}
	return []string{l.Endpoint().ID}, nil
}

func rejection(err error) ([]string, error) {
	var reject *router.RejectError
	if errors.As(err, &reject) {
		return []string{"reject " + reject.Code()}, nil
	}
	return nil, err
}

func counts(t *tally, err error) ([]string, error) {
	if err != nil {
		return nil, err
	}
	return t.line(), nil
}

func (m *Machine) cycle(c *command) ([]string, error) {
	n := m.times(c, 0)
	d := m.readDemand(c)
	d.checkWork(c, n, m.limits.work)
	if err := c.end(); err != nil {
		return nil, err
	}
	return counts(m.reserveAll(&d, n, true))
}

func (m *Machine) same(c *command) ([]string, error) {
	n := m.times(c, 0)
	d := m.readDemand(c)
	d.checkWork(c, n, m.limits.work)
	if err := c.end(); err != nil {
		return nil, err
	}
	t, err := m.reserveAll(&d, n, true)
	if err == nil && len(t.chosen) == 1 && t.rejected+t.queued == 0 {
		return []string{"same"}, nil
	}
	return counts(t, err)
}

func (m *Machine) spread(c *command) ([]string, error) {
	n := m.times(c, 0)
	tolerance, given := c.count("tolerance", 0, m.limits.requests, 0)
	if !given {
		c.fail("spread: no tolerance given")
	}
	ended := c.flag("end")
	among := splitList(c.text("among"))
	m.checkKnown(c, among)
	if among == nil {
		among = m.ids()
	}
	d := m.readDemand(c)
	d.checkWork(c, n, m.limits.work)
	if err := c.end(); err != nil {
		return nil, err
	}
	t, err := m.reserveAll(&d, n, ended)
	if err == nil && t.rejected+t.queued == 0 && t.even(among, int(tolerance)) {
		return []string{"even"}, nil
	}
	return counts(t, err)
}

func (t *tally) even(among []string, tolerance int) bool {
	if len(among) == 0 {
		return false
	}
	least, most := t.chosen[among[0]], t.chosen[among[0]]
	for _, id := range among {
		least, most = min(least, t.chosen[id]), max(most, t.chosen[id])
	}
	return most-least <= tolerance
}

func (m *Machine) parallel(c *command) ([]string, error) {
	n := m.times(c, 0)
	d := m.readDemand(c)
	d.checkWork(c, n, m.limits.parallel)
	if err := c.end(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	shadow := m.shadow
	m.mu.Unlock()
	requests := make([]router.Request, n)
	for i := range requests {
		var err error
		if requests[i], err = m.next(&d); err != nil {
			return nil, err
		}
		m.unnamed++
		requests[i].ID = fmt.Sprintf("#%d", m.unnamed)
	}
	var (
		wg    sync.WaitGroup
		start = make(chan struct{})
		mu    sync.Mutex
		t     tally
		fault error
	)
	for i := range requests {
		wg.Go(func() {
			<-start
			ticket, err := m.pool.Enqueue(requests[i])
			var l *router.Lease
			if err == nil {
				l, err = ticket.Lease()
			}
			mu.Lock()
			defer mu.Unlock()
			if l == nil && err == nil {
				t.queued++
				m.waiters = append(m.waiters, &waiter{name: requests[i].ID, ticket: ticket})
				return
			}
			if err := t.add(l, err); err != nil && fault == nil {
				fault = err
			}
		})
	}
	close(start)
	wg.Wait()
	m.mu.Lock()
	m.receipt, m.shadow = nil, shadow // which of them was the last is left to chance
	m.mu.Unlock()
	return counts(&t, fault)
}

// look is a Score with the arguments of route. Where nobody can be chosen the candidates are there all the same.
func (m *Machine) look(c *command) (router.Decision, error) {
	d := m.readDemand(c)
	d.checkWork(c, 1, m.limits.work)
	if err := c.end(); err != nil {
		return router.Decision{}, err
	}
	r, err := m.next(&d)
	if err != nil {
		return router.Decision{}, err
	}
	decision, err := m.pool.Score(r)
	var reject *router.RejectError
	if errors.As(err, &reject) && len(decision.Candidates) > 0 {
		err = nil
	}
	return decision, err
}

func (m *Machine) score(c *command) ([]string, error) {
	d, err := m.look(c)
	if err != nil {
		return rejection(err)
	}
	var able, excluded []string
	for i := range d.Candidates {
		id := d.Candidates[i].ID
		switch x := d.Candidates[i].Excluded; x {
		case router.NoReason, router.CapWaiting, router.CapEndpoint, router.CapAggregate, router.CapTenant, router.CapTenantTokens:
			// One at a cap has no room now, which excludes it from nothing: it stands behind those that have.
			able = append(able, id)
		default:
			excluded = append(excluded, fmt.Sprintf("-%s(%s)", id, x))
		}
	}
	return []string{strings.Join(append(able, excluded...), " ")}, nil
}

func (m *Machine) explain(c *command) ([]string, error) {
	d, err := m.look(c)
	if err != nil {
		return rejection(err)
	}
	var lines []string
	for _, candidate := range d.Candidates {
		lines = append(lines, candidate.String())
	}
	return lines, nil
}
