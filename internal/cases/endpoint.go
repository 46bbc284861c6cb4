package cases

import (
	"fmt"
	"math"

	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
)

// endpoint is what the commands have said about a member of the pool. A rate of 0 was not given.
type endpoint struct {
	router.Endpoint
	prefillRate float64 // tokens/s
	decodeMS    float64 // ms per token
}

func (m *Machine) endpoint(c *command) error {
	e := endpoint{Endpoint: router.Endpoint{ID: c.word("endpoint")}}
	if c.err == nil {
		c.err = checkName("endpoint", e.ID)
	}
	old := m.endpoints[e.ID]
	incarnation, given := c.take("incarnation")
	switch {
	case old == nil:
		e.Incarnation = incarnation
	case !given || incarnation == old.Incarnation:
		e = *old
	default:
		e.Incarnation = incarnation
	}
	e.read(c)
	if err := c.end(); err != nil {
		return err
	}
	if err := m.pool.Add(e.Endpoint); err != nil {
		return err
	}
	m.endpoints[e.ID], m.known[e.ID] = &e, true
	return nil
}

// read takes over the keys that are given.
func (e *endpoint) read(c *command) {
	if models, ok := c.take("model"); ok {
		e.Models = splitList(models)
	}
	rate, rateGiven := c.positive("prefill-rate")
	decode, decodeGiven := c.positive("decode-ms")
	if rateGiven {
		e.prefillRate = rate
	}
	if decodeGiven {
		e.decodeMS = decode
	}
	p := &e.Profile
	if rateGiven || decodeGiven {
		rates, err := score.FromRates(e.prefillRate, e.decodeMS)
		if err != nil {
			c.fail("%w", err)
		}
		rates.KVCapacity, rates.BlockSize, rates.MaxRunning, rates.AdapterLoad = p.KVCapacity, p.BlockSize, p.MaxRunning, p.AdapterLoad
		*p = rates
	}
	p.KVCapacity, _ = c.count("kv-capacity", 0, math.MaxInt64, p.KVCapacity)
	p.MaxRunning, _ = c.count("max-running", 0, math.MaxInt64, p.MaxRunning)
	block, _ := c.count("block", 1, math.MaxInt32, int64(p.BlockSize))
	p.BlockSize = int(block)
	if ms, ok := c.number("adapter-load-ms"); ok {
		if p.AdapterLoad = ms; ms == 0 {
			p.AdapterLoad = math.SmallestNonzeroFloat64 // 0 would be the default
		}
	}
	if role, ok := c.take("role"); ok {
		e.Role = router.Role(role)
	}
}

func (c *command) positive(key string) (float64, bool) {
	v, ok := c.number(key)
	if ok && !(v > 0) {
		c.fail("key %q: %v must be above 0", key, v)
	}
	return v, ok
}

// blockSize is the greatest size that divides the block sizes of all endpoints; 16 without endpoints.
func (m *Machine) blockSize() int {
	size := 0
	for _, e := range m.endpoints {
		a, b := size, e.Profile.BlockSize
		if b == 0 {
			b = score.DefaultBlockSize
		}
		for b != 0 {
			a, b = b, a%b
		}
		size = a
	}
	if size == 0 {
		size = score.DefaultBlockSize
	}
	return size
}

func (m *Machine) remove(c *command) error {
	id := c.word("endpoint")
	m.checkPresent(c, id)
	if err := c.end(); err != nil {
		return err
	}
	if err := m.pool.Remove(id); err != nil {
		return err
	}
	delete(m.endpoints, id)
	return nil
}

func (m *Machine) load(c *command) ([]string, error) {
	id := c.word("endpoint")
	m.checkPresent(c, id)
	if err := c.end(); err != nil {
		return nil, err
	}
	s, err := m.pool.Ledger(id)
	if err != nil {
		return nil, err
	}
	return []string{fmt.Sprintf("requests=%d prefill=%d decode=%d kv=%d unobserved=%d",
		s.Live.Requests, s.Live.Prefill, s.Live.Decode, s.Live.KV, s.Unobserved.Requests)}, nil
}
