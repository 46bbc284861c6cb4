package cases

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/isobar-go/isobar/router"
)

// Machine executes commands against one pool. Its clock starts at zero and moves only by the command advance. The zero
// value is not usable: make one with [NewMachine]. A Machine belongs to one goroutine.
type Machine struct {
	limits limits
	start  time.Time
	clock  time.Time

	pool      *router.Pool // nil until the first command that needs one
	endpoints map[string]*endpoint
	known     map[string]bool // every endpoint ID that there ever was
	leases    map[string]*router.Lease
	waiters   []*waiter
	unnamed   int      // requests without a name so far
	requests  uint32   // made so far: tells their padding apart
	tokens    []uint32 // scratch

	// mu guards what the observer writes.
	mu      sync.Mutex
	receipt *router.Receipt // of the last route; nil when there is none
	shadow  *router.Receipt // the last one with a shadow record
	decided []string        // ids of the requests decided by this command, in order
}

// limits bound the work of one command.
type limits struct {
	requests int64 // of one command
	tokens   int64 // of one prompt that is hashed
	work     int64 // tokens hashed by one command
	parallel int64 // tokens held at once by parallel
}

// NewMachine makes a machine without a pool, its clock at zero.
func NewMachine() *Machine {
	start := time.Unix(0, 0).UTC()
	return &Machine{
		limits:    limits{requests: 100_000, tokens: 1 << 22, work: 1 << 31, parallel: 1 << 26},
		start:     start,
		clock:     start,
		endpoints: map[string]*endpoint{},
		known:     map[string]bool{},
		leases:    map[string]*router.Lease{},
	}
}

// Run executes one command, its input lines after it, and returns the lines that it prints. A command that fails prints one
// line, which begins with "error: ", and changes nothing.
func (m *Machine) Run(line string, input ...string) []string {
	b := block{command: strings.TrimSpace(line)}
	for _, text := range input {
		if text = strings.TrimSpace(text); text != "" {
			b.input = append(b.input, inputLine{text: text})
		}
	}
	if b.command == "" {
		return errorLine(errors.New("no command given"))
	}
	return m.runBlock(&b)
}

func (m *Machine) runBlock(b *block) []string {
	c, err := parseCommand(b.command)
	if err != nil {
		return errorLine(err)
	}
	if c.name == "setup" {
		err := c.end()
		if err == nil {
			err = m.setup(b.input)
		}
		if err != nil {
			return errorLine(err)
		}
		return nil
	}
	lines, err := m.execute(c, b.input)
	settled := m.settle()
	if err != nil {
		return append(errorLine(err), settled...)
	}
	return append(lines, settled...)
}

func errorLine(err error) []string {
	return []string{"error: " + strings.Join(strings.Split(err.Error(), "\n"), "; ")}
}

// setup runs commands and stops at the first that fails. Lines of ranks belong to the observe before them.
func (m *Machine) setup(input []inputLine) error {
	for at := 0; at < len(input); {
		line := input[at].text
		next := at + 1
		c, err := parseCommand(line)
		if err == nil && c.name == "observe" {
			for next < len(input) && strings.HasPrefix(input[next].text, "rank=") {
				next++
			}
		}
		if err == nil && c.name == "setup" {
			err = errors.New("setup cannot stand in setup")
		}
		if err == nil {
			_, err = m.execute(c, input[at+1:next])
			m.settle()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
		at = next
	}
	return nil
}

// handlers are the commands but setup and pool. Each reads all arguments and checks them with command.end before it
// changes anything.
var handlers = map[string]func(*Machine, *command, []inputLine) ([]string, error){
	"endpoint":     silent((*Machine).endpoint),
	"remove":       silent((*Machine).remove),
	"drain":        silent(onEndpoint((*router.Pool).Drain)),
	"ready":        silent(onEndpoint((*router.Pool).Ready)),
	"sleep":        silent(onEndpoint((*router.Pool).Sleep)),
	"scrape-error": silent(onEndpoint(func(p *router.Pool, id string) error { return p.ScrapeFailed(id, errScrape) })),
	"observe":      (*Machine).observe,
	"advance":      silent((*Machine).advance),
	"route":        plain((*Machine).route),
	"spread":       plain((*Machine).spread),
	"cycle":        plain((*Machine).cycle),
	"same":         plain((*Machine).same),
	"parallel":     plain((*Machine).parallel),
	"score":        plain((*Machine).score),
	"explain":      plain((*Machine).explain),
	"first-token":  silent((*Machine).firstToken),
	"progress":     silent((*Machine).progress),
	"done":         silent(onLease(func(l *router.Lease) { l.Done(router.Usage{}) })),
	"fail":         silent(onLease(func(l *router.Lease) { l.Fail(errRequest) })),
	"cancel":       silent((*Machine).cancel),
	"load":         plain((*Machine).load),
	"match":        plain((*Machine).match),
	"kv-event":     silent((*Machine).kvEvent),
	"clear":        silent((*Machine).clear),
	"why":          plain((*Machine).why),
	"shadow":       plain((*Machine).shadowRecord),
}

var (
	errScrape  = errors.New("the poll failed")
	errRequest = errors.New("the request failed")
)

// plain adapts a command that takes no input lines.
func plain(f func(*Machine, *command) ([]string, error)) func(*Machine, *command, []inputLine) ([]string, error) {
	return func(m *Machine, c *command, input []inputLine) ([]string, error) {
		if len(input) > 0 {
			return nil, fmt.Errorf("%s takes no input lines, line %q", c.name, input[0].text)
		}
		return f(m, c)
	}
}

// silent adapts a command that prints nothing either.
func silent(f func(*Machine, *command) error) func(*Machine, *command, []inputLine) ([]string, error) {
	return plain(func(m *Machine, c *command) ([]string, error) { return nil, f(m, c) })
}

func (m *Machine) execute(c *command, input []inputLine) ([]string, error) {
	if c.name == "pool" {
		return silent((*Machine).makePool)(m, c, input)
	}
	f := handlers[c.name]
	if f == nil {
		return nil, fmt.Errorf("unknown command %q", c.name)
	}
	if m.pool == nil && c.name != "advance" {
		if err := m.makePool(&command{name: "pool"}); err != nil {
			return nil, err
		}
	}
	return f(m, c, input)
}

func (m *Machine) makePool(c *command) error {
	if m.pool != nil {
		return errors.New("pool must come once, before every command that needs it")
	}
	cfg, err := configure(c, router.Config{
		Now:      func() time.Time { return m.clock },
		Receipts: router.Receipts{Sample: 1, Observer: (*observer)(m)},
	})
	if err != nil {
		return err
	}
	m.pool, err = router.New(cfg)
	return err
}

// observer keeps the last receipt of a machine.
type observer Machine

func (o *observer) Decided(r *router.Receipt) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.receipt = r
	if r.RequestID != "" {
		o.decided = append(o.decided, r.RequestID)
	}
	if r.Shadow.Policy != "" {
		o.shadow = r
	}
}

func (o *observer) Ended(*router.Receipt) {}

func (m *Machine) advance(c *command) error {
	text := c.word("duration")
	if err := c.end(); err != nil {
		return err
	}
	d, err := parseDuration(text)
	switch {
	case err != nil:
		return fmt.Errorf("advance: %w", err)
	case d < 0:
		return fmt.Errorf("advance: %v would turn the clock back", d)
	case m.clock.Sub(m.start)+d > maxSpan:
		return fmt.Errorf("advance: the clock would be above 50 years")
	}
	end := m.clock.Add(d)
	for m.pool != nil {
		next := m.pool.Tick()
		if next.IsZero() || next.After(end) || !next.After(m.clock) {
			break
		}
		m.clock = next
	}
	if m.clock = end; m.pool != nil {
		m.pool.Tick()
	}
	return nil
}

// checkKnown accepts endpoints that are or were in the pool.
func (m *Machine) checkKnown(c *command, ids []string) {
	for _, id := range ids {
		if !m.known[id] {
			c.fail("unknown endpoint %q", id)
		}
	}
}

// checkPresent accepts endpoints of the pool.
func (m *Machine) checkPresent(c *command, id string) {
	if c.err == nil && m.endpoints[id] == nil {
		c.fail("unknown endpoint %q", id)
	}
}

func onEndpoint(f func(*router.Pool, string) error) func(*Machine, *command) error {
	return func(m *Machine, c *command) error {
		id := c.word("endpoint")
		m.checkPresent(c, id)
		if err := c.end(); err != nil {
			return err
		}
		return f(m.pool, id)
	}
}

// lease takes the name of a lease, open or ended.
func (m *Machine) lease(c *command) *router.Lease { return m.leaseNamed(c, c.word("lease")) }

func (m *Machine) leaseNamed(c *command, name string) *router.Lease {
	l := m.leases[name]
	if c.err == nil && m.findWaiter(name) != nil {
		c.fail("%q waits in the queue", name)
	}
	if c.err == nil && l == nil {
		c.fail("unknown lease %q", name)
	}
	return l
}

func onLease(f func(*router.Lease)) func(*Machine, *command) error {
	return func(m *Machine, c *command) error {
		l := m.lease(c)
		if err := c.end(); err != nil {
			return err
		}
		f(l)
		return nil
	}
}

// cancel ends a lease, or takes a waiter out of the queue.
func (m *Machine) cancel(c *command) error {
	name := c.word("lease")
	waits := c.err == nil && m.findWaiter(name) != nil
	var l *router.Lease
	if !waits {
		l = m.leaseNamed(c, name)
	}
	if err := c.end(); err != nil {
		return err
	}
	if waits {
		m.leaveQueue(name)
	} else {
		l.Cancel()
	}
	return nil
}

func (m *Machine) firstToken(c *command) error { return onLease((*router.Lease).FirstToken)(m, c) }

func (m *Machine) progress(c *command) error {
	l := m.lease(c)
	n, given := c.count("tokens", 0, 1<<31-1, 0)
	if !given {
		c.fail("progress: no tokens given")
	}
	if err := c.end(); err != nil {
		return err
	}
	l.Progress(int(n))
	return nil
}

// ids returns the endpoints of the pool, sorted.
func (m *Machine) ids() []string {
	ids := make([]string, 0, len(m.endpoints))
	for id := range m.endpoints {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
