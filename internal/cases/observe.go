package cases

import (
	"fmt"
	"math"
	"strings"

	"github.com/isobar-go/isobar/telemetry"
)

// figures are the readings that both a whole engine and a rank of it can report.
type figures struct {
	running, waiting, waitingTokens, decodeTokens *telemetry.Reading
	kv, kvUsed, kvCapacity, genRate, maxRunning   *telemetry.Reading
}

func (f *figures) read(c *command) {
	for _, g := range []struct {
		key string
		to  *telemetry.Reading
	}{
		{"running", f.running}, {"waiting", f.waiting}, {"waiting-tokens", f.waitingTokens}, {"decode-tokens", f.decodeTokens},
		{"kv", f.kv}, {"kv-used", f.kvUsed}, {"kv-capacity", f.kvCapacity}, {"gen-rate", f.genRate}, {"max-running", f.maxRunning},
	} {
		if v, ok := c.number(g.key); ok {
			*g.to = telemetry.V(v)
		}
	}
}

func (m *Machine) observe(c *command, input []inputLine) ([]string, error) {
	id := c.word("endpoint")
	m.checkPresent(c, id)
	var s telemetry.Snapshot
	(&figures{
		&s.Running, &s.Waiting, &s.WaitingTokens, &s.DecodeTokens, &s.KVShare, &s.KVUsed, &s.KVCapacity, &s.GenerationRate, &s.MaxRunning,
	}).read(c)
	age, _ := c.duration("age")
	s.ObservedAt = m.clock.Add(-age)
	s.Source, s.Epoch = c.text("source"), c.text("epoch")
	s.Adapters = readAdapters(c)
	s.Health = readHealth(c)
	if err := c.end(); err != nil {
		return nil, err
	}
	for _, line := range input {
		r, err := readRank(line.text)
		if err != nil {
			return nil, err
		}
		s.Ranks = append(s.Ranks, r)
	}
	res, err := m.pool.Report(id, s)
	switch {
	case err != nil:
		return nil, err
	case res.Dropped != "":
		return []string{"dropped: " + string(res.Dropped)}, nil
	case len(res.Defects) > 0:
		return []string{"defect: " + strings.Join(res.Defects, " ")}, nil
	}
	return nil, nil
}

// readRank reads a further input line of observe. Rank 0 is the command line itself.
func readRank(line string) (telemetry.Rank, error) {
	var r telemetry.Rank
	c, err := parseCommand("rank " + line)
	if err != nil {
		return r, err
	}
	id, given := c.count("rank", 1, math.MaxInt32, 0)
	if !given {
		return r, fmt.Errorf("observe: input line %q has no rank", line)
	}
	r.ID = int(id)
	(&figures{
		&r.Running, &r.Waiting, &r.WaitingTokens, &r.DecodeTokens, &r.KVShare, &r.KVUsed, &r.KVCapacity, &r.GenerationRate, &r.MaxRunning,
	}).read(c)
	return r, c.end()
}

// readAdapters reads adapters=ID@DIGEST:STATE,...; an empty value is an empty list, which is known.
func readAdapters(c *command) telemetry.AdapterReport {
	v, ok := c.take("adapters")
	if !ok || v == "" {
		return telemetry.AdapterReport{Known: ok}
	}
	rep := telemetry.AdapterReport{Known: true}
	for part := range strings.SplitSeq(v, ",") {
		name, state, found := strings.Cut(part, ":")
		a := telemetry.Adapter{}
		a.ID, a.Digest, _ = strings.Cut(name, "@")
		for s := telemetry.AdapterReady; s <= telemetry.AdapterUnloaded; s++ {
			if s.String() == state {
				a.State = s
			}
		}
		if !found || a.State == telemetry.AdapterUnknown {
			c.fail("key %q: %q is not ID@DIGEST:STATE with ready, loading, cached or unloaded", "adapters", part)
		}
		rep.Adapters = append(rep.Adapters, a)
	}
	return rep
}

func readHealth(c *command) telemetry.Health {
	v, ok := c.take("health")
	if !ok {
		return telemetry.HealthUnknown
	}
	for h := telemetry.HealthOK; h <= telemetry.HealthOOM; h++ {
		if h.String() == v {
			return h
		}
	}
	c.fail("key %q: %q is not ok, error or oom", "health", v)
	return telemetry.HealthUnknown
}
