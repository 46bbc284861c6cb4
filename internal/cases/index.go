package cases

import (
	"fmt"
	"strings"

	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
)

// readSequence takes a prefix without padding, and its scope.
func (m *Machine) readSequence(c *command, required bool) prefix.Sequence {
	var r router.Request
	p := m.readPrompt(c, &r, -1)
	if c.err == nil && required && p.length < 0 {
		c.fail("%s: no prefix given", c.name)
	}
	if c.err != nil {
		return prefix.Sequence{}
	}
	q, _, err := p.sequence(0, nil)
	if err != nil {
		c.fail("%w", err)
	}
	return q
}

func (m *Machine) match(c *command) ([]string, error) {
	q := m.readSequence(c, true)
	if err := c.end(); err != nil {
		return nil, err
	}
	var parts []string
	for _, id := range m.ids() {
		tokens, err := m.pool.Cached(id, q)
		if err != nil {
			return nil, err
		}
		parts = append(parts, fmt.Sprintf("%s=%d", id, tokens))
	}
	if len(parts) == 0 {
		return nil, nil
	}
	return []string{strings.Join(parts, " ")}, nil
}

func (m *Machine) kvEvent(c *command) error {
	id := c.word("endpoint")
	m.checkPresent(c, id)
	var e prefix.Event
	kind := c.word("kind of event")
	for k := prefix.Stored; k <= prefix.Cleared; k++ {
		if k.String() == kind {
			e.Kind = k
		}
	}
	if e.Kind == 0 {
		c.fail("kv-event: %q is not stored, removed or cleared", kind)
	}
	e.Prefix = m.readSequence(c, e.Kind != prefix.Cleared)
	if err := c.end(); err != nil {
		return err
	}
	return m.pool.ApplyKV(id, e)
}

func (m *Machine) clear(c *command) error {
	id := c.word("endpoint")
	if id != "all" {
		m.checkPresent(c, id)
	}
	if err := c.end(); err != nil {
		return err
	}
	if id == "all" {
		m.pool.ClearAllPrefixes()
		return nil
	}
	return m.pool.ClearPrefixes(id)
}
