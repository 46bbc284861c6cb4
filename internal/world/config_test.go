package world_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/internal/world"
)

func TestConfigValidate(t *testing.T) {
	good := world.Config{Engines: engines(2, small())}
	require.NoError(t, good.Validate())
	for want, change := range map[string]func(*world.Config){
		"Config.Engines = 0 engines":                      func(c *world.Config) { c.Engines = nil },
		"Config.Engines[1]: sim: Profile.Base":            func(c *world.Config) { c.Engines[1].Profile.Base = math.NaN() },
		"Config.Engines[0].Believed":                      func(c *world.Config) { c.Engines[0].Believed.Base = -1 },
		"Config.Engines[1].ID = engine-00 is there twice": func(c *world.Config) { c.Engines[1].ID = "engine-00" },
		"Config.Engines[1].Profile.BlockSize = 8":         func(c *world.Config) { c.Engines[1].Profile.BlockSize = 8 },
		"Config.Engines[0].AdapterSlots = -2":             func(c *world.Config) { c.Engines[0].AdapterSlots = -2 },
		"Config.Gateways = -1":                            func(c *world.Config) { c.Gateways = -3 },
		"Config.Spread = 7":                               func(c *world.Config) { c.Spread = 7 },
		"Config.Retries = -1":                             func(c *world.Config) { c.Retries = -1 },
		"Config.Telemetry.Loss = NaN":                     func(c *world.Config) { c.Telemetry.Loss = math.NaN() },
		"Config.Telemetry.Lag = -1ns":                     func(c *world.Config) { c.Telemetry.Lag = -1 },
		"Config.Horizon = -1ns":                           func(c *world.Config) { c.Horizon = -1 },
		"Incidents[0]: field Kind = Kind(0)":              func(c *world.Config) { c.Incidents = []world.Incident{{}} },
		"Incidents[0]: field Engine = 2":                  func(c *world.Config) { c.Incidents = []world.Incident{{Kind: world.Drain, Engine: 2}} },
		"Incidents[0]: field At = -1ns":                   func(c *world.Config) { c.Incidents = []world.Incident{{Kind: world.Drain, At: -1}} },
		"Incidents[0]: field For = -1ns":                  func(c *world.Config) { c.Incidents = []world.Incident{{Kind: world.Drain, For: -1}} },
		"Incidents[0]: field Notice = -1ns":               func(c *world.Config) { c.Incidents = []world.Incident{{Kind: world.Die, Notice: -1}} },
		"field For = 0: a freeze must end":                func(c *world.Config) { c.Incidents = []world.Incident{{Kind: world.Freeze}} },
		"field Factor = +Inf":                             func(c *world.Config) { c.Incidents = []world.Incident{{Kind: world.Slow, Factor: math.Inf(1)}} },
		"Incidents[1]: field At = 5ns: Incidents[0] is not": func(c *world.Config) {
			c.Incidents = []world.Incident{{Kind: world.Die}, {Kind: world.Restart, At: 5}}
		},
	} {
		c := good
		c.Engines = engines(2, small())
		change(&c)
		require.ErrorContains(t, c.Validate(), want)
		_, err := world.Run(c, world.NewList(nil))
		require.ErrorContains(t, err, want)
	}
	d := good.WithDefaults()
	require.Equal(t, d.Engines, d.WithDefaults().Engines, "defaults of defaults change nothing")
	require.Equal(t, [3]any{1, time.Millisecond, time.Second}, [3]any{d.Gateways, d.Net, d.Telemetry.Period})
}

// source does as it is told.
type source struct {
	world.List
	next world.Arrival
	peek time.Duration
	has  bool
	err  error
	left int
}

func (s *source) Peek() (time.Duration, bool) { return s.peek, s.left > 0 }

func (s *source) Next() (world.Arrival, bool) {
	s.left--
	return s.next, s.has
}

func (s *source) Err() error { return s.err }

func TestBadSources(t *testing.T) {
	cfg := world.Config{Engines: engines(1, small())}
	bad := func(want string, s *source) {
		t.Helper()
		r, err := world.Run(cfg, s)
		require.ErrorContains(t, err, want)
		require.Nil(t, r)
	}
	bad("source: torn", &source{err: errors.New("torn")})
	bad("the source has no request 0", &source{left: 1})
	bad("request 0 comes at 2ns, not when", &source{left: 1, has: true, next: one(2, 1, 1)})
	bad("request 0 arrives in the past, at -1ns", &source{left: 1, has: true, peek: -1, next: one(-1, 1, 1)})
	for want, a := range map[string]world.Arrival{
		"field PromptTokens = 0":         one(0, 0, 1),
		"field OutputTokens = -5":        one(0, 1, -5),
		"field Patience = -1":            {Ask: world.Ask{PromptTokens: 1}, OutputTokens: 1, Patience: -1},
		"field Deadline = -1":            {Ask: world.Ask{PromptTokens: 1, Deadline: -1}, OutputTokens: 1},
		"field Blocks has 2 hashes, the": {Ask: world.Ask{PromptTokens: 20}, OutputTokens: 10, Blocks: []uint64{1, 2}},
	} {
		bad(want, &source{left: 1, has: true, next: a})
	}
}

// closedLoop sends the next request of a user a while after the last one has ended.
type closedLoop struct {
	world.List
	due  []world.Arrival
	left int
	ends []world.End
}

func (c *closedLoop) Peek() (time.Duration, bool) {
	if len(c.due) == 0 {
		return 0, false
	}
	return c.due[0].At, true
}

func (c *closedLoop) Next() (world.Arrival, bool) {
	a := c.due[0]
	c.due = c.due[1:]
	return a, true
}

func (c *closedLoop) Finished(e world.End) {
	c.ends = append(c.ends, e)
	if c.left--; c.left > 0 {
		a := one(e.At+time.Second, 50, 10)
		a.Key = e.Key + 1
		c.due = append(c.due, a)
	}
}

func TestClosedLoop(t *testing.T) {
	src := &closedLoop{due: []world.Arrival{one(0, 50, 10)}, left: 5}
	r, err := world.Run(world.Config{Engines: engines(1, small())}, src)
	require.NoError(t, err)
	require.Len(t, r.Records, 5)
	require.Len(t, src.ends, 5)
	for i, e := range src.ends {
		require.Equal(t, world.End{Key: int64(i), Number: i, At: r.Records[i].End, Outcome: world.Finished}, e)
		if i > 0 {
			require.Equal(t, r.Records[i-1].End+time.Second, r.Records[i].Arrival)
		}
	}
}

// Requests too long for any engine are refused; clients that lose patience are counted and leave no trace.
func TestRefusedAndGivenUp(t *testing.T) {
	list := []world.Arrival{one(0, 5000, 1), one(0, 3000, 500), one(1, 100, 400)}
	list[1].Patience, list[2].Patience = 100*time.Millisecond, 700*time.Millisecond
	r := run(t, world.Config{Engines: engines(1, small()), Chooser: only(0)}, list)
	require.Equal(t, world.Rejected, r.Records[0].Outcome)
	require.Equal(t, "too-long", r.Records[0].Reason)
	require.Equal(t, world.GaveUp, r.Records[1].Outcome)
	require.Equal(t, 100*time.Millisecond, r.Records[1].End)
	require.Equal(t, world.Never, r.Records[1].FirstToken)
	require.Positive(t, r.Records[2].FirstToken)
	require.EqualValues(t, 2, r.Engines[0].Totals.Cancelled)
	// The real router refuses by itself what no engine can hold.
	r = run(t, world.Config{Engines: engines(1, small())}, list[:1])
	require.Equal(t, "too-long", r.Records[0].Reason)
	require.Zero(t, r.Records[0].Attempts)
}

// Sessions stay at one gateway where they should, and every gateway has requests.
func TestSpread(t *testing.T) {
	cfg := world.Config{Engines: engines(2, small()), Gateways: 4, Spread: world.BySession}
	list := arrivals(1, shape{n: 300, perSecond: 50, prompt: 100, output: 5, groups: 20})
	home := map[string]int{}
	used := map[int]bool{}
	for _, rec := range run(t, cfg, list).Records {
		used[rec.Gateway] = true
		if at, known := home[rec.Session]; known {
			require.Equal(t, at, rec.Gateway)
		}
		home[rec.Session] = rec.Gateway
	}
	require.Len(t, used, 4)
	cfg.Spread = world.ByTurns
	for i, rec := range run(t, cfg, list).Records {
		require.Equal(t, i%4, rec.Gateway)
	}
}
