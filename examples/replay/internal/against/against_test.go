package against_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/examples/replay/internal/against"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// writer is an observer that writes at once.
type writer struct {
	enc  *json.Encoder
	open bool
}

func (w *writer) Decided(r *router.Receipt) {
	if w.open || r.Rejected != "" {
		_ = w.enc.Encode(r)
	}
}

func (w *writer) Ended(r *router.Receipt) { _ = w.enc.Encode(r) }

// record lets a real pool decide n requests and returns its receipts, each with its outcome but for the last five, and the
// configuration.
func record(t *testing.T, n int, open bool, change func(*router.Config)) (*bytes.Buffer, router.Config) {
	t.Helper()
	var b bytes.Buffer
	now := time.Unix(1_700_000_000, 0)
	cfg := router.Config{
		Seed: 3, Now: func() time.Time { return now }, Receipts: router.Receipts{Observer: &writer{json.NewEncoder(&b), open}},
		Caps: admission.Caps{Endpoint: 5},
	}
	if change != nil {
		change(&cfg)
	}
	p, err := router.New(cfg)
	require.NoError(t, err)
	fast, err := score.ProfileByName("h100-8b")
	require.NoError(t, err)
	slow, err := score.ProfileByName("a100-8b")
	require.NoError(t, err)
	require.NoError(t, p.SetEndpoints([]router.Endpoint{{ID: "a", Profile: fast}, {ID: "b", Profile: fast}, {ID: "slow", Profile: slow}}))
	r := rand.New(rand.NewPCG(1, 1))
	var leases []*router.Lease
	for i := range n {
		now = now.Add(20 * time.Millisecond)
		if i%10 == 0 {
			for _, id := range []string{"a", "b", "slow"} {
				require.NoError(t, p.Observe(id, telemetry.Snapshot{
					ObservedAt: now, Running: telemetry.V(float64(r.IntN(4))), Waiting: telemetry.V(0), KVShare: telemetry.V(0.1 + 0.3*r.Float64()),
				}))
			}
		}
		l, err := p.Reserve(t.Context(), router.Request{ID: fmt.Sprint(i), PromptTokens: 100 + r.Int64N(4000), ExpectedOutputTokens: 50})
		if err == nil {
			leases = append(leases, l)
		}
		if len(leases) > 12 || err != nil && len(leases) > 0 {
			leases[0].FirstToken()
			leases[0].Done(router.Usage{OutputTokens: 50})
			leases = leases[1:]
		}
	}
	for _, l := range leases[:max(0, len(leases)-5)] {
		l.Done(router.Usage{OutputTokens: 50})
	}
	return &b, cfg
}

func TestSameConfigurationChangesNothing(t *testing.T) {
	receipts, cfg := record(t, 200, false, nil)
	s, err := against.Run(receipts, against.Config{Router: cfg, Examples: 3})
	require.NoError(t, err)
	assert.Zero(t, s.Changed)
	assert.Equal(t, 195, s.Decisions)
	assert.Equal(t, "pressure", s.Policy)
	assert.Equal(t, "pressure", s.Was)
	for _, e := range s.Endpoints {
		assert.Equal(t, e.Was, e.Now, e.Name)
	}
}

func TestOtherConfiguration(t *testing.T) {
	receipts, cfg := record(t, 200, true, nil)
	cfg.Policy = router.RoundRobin()
	s, err := against.Run(receipts, against.Config{Router: cfg, Examples: 3})
	require.NoError(t, err)
	assert.Equal(t, 195, s.Decisions, "those with an outcome")
	assert.Equal(t, "round-robin", s.Policy)
	require.Positive(t, s.Changed)
	was, now, reasons := 0, 0, 0
	for _, e := range s.Endpoints {
		was, now = was+e.Was, now+e.Now
	}
	rejected := 0
	for _, e := range s.Endpoints {
		if e.Name[0] == '(' {
			rejected += e.Was
		}
	}
	assert.Equal(t, 200-rejected, s.Open, "lines without an outcome, those of the requests that never ended included")
	for _, r := range s.Reasons {
		reasons += r.Now
	}
	assert.Equal(t, []int{195, 195, s.Changed}, []int{was, now, reasons})
	assert.Equal(t, s.Changed, s.Placed)
	assert.Positive(t, s.Total.Mean, "the default has chosen what is cheapest")
	assert.LessOrEqual(t, s.Total.P10, s.Total.P50)
	require.Len(t, s.Examples, 3)
	e := s.Examples[0]
	assert.NotEqual(t, e.Was, e.Now)
	assert.Contains(t, e.Recorded, "* "+e.Was)
	assert.Contains(t, e.Replayed, "* "+e.Now)

	var text, data bytes.Buffer
	require.NoError(t, s.Text(&text))
	assert.Contains(t, text.String(), "195 decisions of pressure made again by round-robin")
	assert.Contains(t, text.String(), "not by cost: the rule of round-robin")
	require.NoError(t, s.JSON(&data))
	var back against.Summary
	require.NoError(t, json.Unmarshal(data.Bytes(), &back))
	assert.Equal(t, s, back)
}

func TestReasons(t *testing.T) {
	for _, c := range []struct {
		name         string
		record, then func(*router.Config)
		want         string
	}{
		{"weights", nil, func(c *router.Config) { c.Weights.Interference = 100 }, "cheaper in interference"},
		{"caps", func(c *router.Config) { c.Caps = admission.Caps{} }, func(c *router.Config) { c.Caps.Endpoint = 3 }, "excluded now: cap-endpoint"},
		{"rejected", func(c *router.Config) { c.Caps = admission.Caps{} }, func(c *router.Config) { c.Caps.Endpoint = 1 }, "rejected now"},
		{"placed", func(c *router.Config) { c.Caps.Endpoint = 2 }, func(c *router.Config) { c.Caps.Endpoint = 0 }, "placed now"},
		{"give-up", func(c *router.Config) { c.Bounds.GiveUp = router.GiveUp{Ratio: 1e6}; c.Weights.Interference = 1 },
			func(c *router.Config) { c.Bounds.GiveUp = router.GiveUp{Ratio: router.None, Extra: router.None} }, "give-up bound"},
		{"lots", nil, func(c *router.Config) { c.Seed++; c.TieWindow = 10 * time.Second }, "lot among equals"},
	} {
		t.Run(c.name, func(t *testing.T) {
			receipts, cfg := record(t, 120, false, c.record)
			c.then(&cfg)
			s, err := against.Run(receipts, against.Config{Router: cfg})
			require.NoError(t, err)
			var names []string
			for _, r := range s.Reasons {
				names = append(names, r.Name)
			}
			assert.Contains(t, names, c.want)
			assert.Empty(t, s.Examples)
		})
	}
}

func TestRunFails(t *testing.T) {
	receipts, cfg := record(t, 20, false, nil)
	lines := strings.SplitAfter(receipts.String(), "\n")
	for _, c := range []struct {
		name, in, want string
	}{
		{"not JSON", lines[0] + "\n{", "against: line 3: unexpected end"},
		{"not a receipt", `{"number":"x"}`, "against: line 1: json"},
		{"nothing", "\n\n", "no receipt could be decided again: of 2 lines, 0 have no outcome and 0 no candidates"},
		{"no candidates", `{"number":1,"outcome":{}}`, "of 1 lines, 0 have no outcome and 1 no candidates"},
		{"no profile", `{"number":1,"endpoint":"a","outcome":{},"candidates":[{"id":"a"}]}`, "against: line 1: router: candidate a of the receipt has no profile"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := against.Run(strings.NewReader(c.in), against.Config{Router: cfg})
			assert.ErrorContains(t, err, c.want)
		})
	}
	cfg.Circuit.Window = 65
	_, err := against.Run(strings.NewReader(lines[0]), against.Config{Router: cfg})
	assert.ErrorContains(t, err, "against: router: Config.Circuit.Window = 65")
}
