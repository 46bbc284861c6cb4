package router_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/admission"
	"github.com/isobar-go/isobar/reserve"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/score"
	"github.com/isobar-go/isobar/telemetry"
)

// recordRun makes n decisions on a fleet in which everything happens that a receipt has a field for, and returns the receipts with the configuration.
func recordRun(t testing.TB, cfg router.Config, n int) ([]*router.Receipt, router.Config) {
	k, c := &keeper{}, newClock()
	cfg.Receipts.Observer = k
	cfg.Caps = admission.Caps{Endpoint: 6, Waiting: 9, Aggregate: 24, Tenant: 5}
	cfg.FrozenAfter, cfg.ProbeAfter, cfg.UnobservedMax = 4, 2*time.Second, 1
	cfg.Bounds = router.Bounds{MaxWaiting: 2, MaxLead: 300 * time.Millisecond}
	cfg.Circuit = router.Circuit{Failures: 2, OpenFor: time.Second}
	p := newPool(t, c, cfg)
	h100, err := score.ProfileByName("h100-8b")
	require.NoError(t, err)
	require.NoError(t, p.SetEndpoints([]router.Endpoint{
		{ID: "a", Profile: h100}, {ID: "b", Profile: h100}, {ID: "frozen", Profile: flat}, {ID: "new"}, {ID: "m-only", Models: []string{"m"}},
		{ID: "decode", Role: router.RoleDecode}, {ID: "flaky", Profile: h100, Incarnation: "7"}, {ID: "small", Profile: score.Profile{KVCapacity: 1000}},
	}))
	r := rand.New(rand.NewPCG(cfg.Seed, 5))
	var open []*router.Lease
	for range n {
		c.advance(time.Duration(r.IntN(300_000)) * time.Microsecond)
		for _, id := range []string{"a", "b", "m-only", "flaky", "small"} {
			if r.IntN(4) == 0 {
				require.NoError(t, p.Observe(id, telemetry.Snapshot{
					ObservedAt: c.ago(time.Duration(r.IntN(3)) * 2 * time.Second), Running: telemetry.V(r.Float64() * 4), Waiting: telemetry.V(float64(r.IntN(4))),
					KVShare: telemetry.V(r.Float64()),
				}))
			}
		}
		busy(t, p, c, "frozen", 2, 1)
		req := router.Request{
			Model: []string{"", "m", "x"}[r.IntN(3)], PromptTokens: r.Int64N(2000), Prefix: long(t, r.IntN(3), 1+r.IntN(60)),
			ExpectedOutputTokens: r.Int64N(200), Tenant: []string{"", "x"}[r.IntN(2)], Session: []string{"", "s", "u"}[r.IntN(3)],
			Class: router.Class(r.IntN(5)),
		}
		if r.IntN(3) == 0 {
			req.Adapter = router.Adapter{ID: "l", Digest: "1"}
		}
		if r.IntN(3) == 0 {
			req.Exclude, req.ExcludeHard = []string{"a", "b", "flaky"}, r.IntN(2) == 0
		}
		if r.IntN(20) == 0 {
			req.Exclude, req.ExcludeHard = []string{"a", "b", "flaky", "new", "small", "m-only", "frozen"}, true
		}
		if r.IntN(20) == 0 {
			req.Deadline = c.now()
		}
		if r.IntN(15) == 0 {
			req.Deadline = c.now().Add(time.Duration(r.Int64N(int64(4 * time.Second))))
		}
		if l, err := p.Reserve(context.Background(), req); err == nil {
			open = append(open, l)
		}
		if len(open) > 0 && r.IntN(10) < 7 {
			i := r.IntN(len(open))
			if open[i].Endpoint().ID == "flaky" {
				open[i].Fail(errors.New("x"))
			} else {
				open[i].Done(router.Usage{})
			}
			open = append(open[:i], open[i+1:]...)
		}
	}
	return k.decided, cfg
}

func TestReplayOfEveryPolicy(t *testing.T) {
	saw := map[string]int{}
	for _, name := range append(router.PolicyNames(), "cheapest") {
		var policy router.Policy = cheapest{}
		if name != "cheapest" {
			var err error
			policy, err = router.PolicyByName(name)
			require.NoError(t, err)
		}
		for seed := range uint64(8) {
			cfg := router.Config{Policy: policy, Seed: seed, Shadow: router.PowerOfTwo(), Replicas: 1 + int(seed)%3}
			receipts, cfg := recordRun(t, cfg, 100)
			for _, r := range receipts {
				back := roundTrip(t, r)
				d, err := router.Replay(back, cfg)
				if r.Rejected != "" {
					var reject *router.RejectError
					require.ErrorAs(t, err, &reject)
					require.Equal(t, r.Rejected, reject.Code())
					saw["rejected "+r.Rejected]++
				} else {
					require.NoError(t, err)
				}
				sameDecision(t, r.Decision, d)
				for _, c := range r.Candidates {
					saw["excluded "+c.Excluded.String()]++
					saw["withheld "+c.Withheld.String()]++
					if c.Suspect != "" {
						saw["suspect"]++
					}
					if c.Load.Silence > 0 {
						saw["silence"]++
					}
					if c.OwnMean != nil && c.OwnMean.Prefill > 0 {
						saw["own mean"]++
					}
				}
				if r.Probe {
					saw["probe"]++
				}
				if r.AffinityLifted {
					saw["lifted"]++
				}
			}
		}
	}
	for _, what := range []string{
		"rejected saturated", "rejected no-endpoints", "rejected deadline", "excluded cap-waiting", "excluded cap-endpoint", "excluded cap-tenant",
		"excluded circuit-open", "excluded excluded", "excluded too-long", "excluded model", "excluded role", "excluded unobserved-max",
		"excluded probing", "withheld not-fresh", "withheld waiting", "withheld lead", "suspect", "probe", "lifted", "silence", "own mean",
	} {
		require.NotZero(t, saw[what], "the runs never had: %s", what)
	}
}

// FuzzReplay feeds Replay with receipts that no pool has made: an answer or an error, and no panic.
func FuzzReplay(f *testing.F) {
	receipts, _ := recordRun(f, router.Config{}, 40)
	for i, r := range receipts {
		if i%5 == 0 {
			text, err := json.Marshal(r)
			require.NoError(f, err)
			f.Add(text)
		}
	}
	f.Add([]byte(`{"number":18446744073709551615,"candidates":[{"id":"a","freshness":"fresh","age_ns":-9000000000000000000,
		"requests":{"class":"fresh","value":-1e308,"age_ns":-5000000000},"profile":{"base_ms":-1e308,"block_size":-4}}]}`))
	f.Add([]byte(`{"prompt_tokens":-1,"output_tokens":-9223372036854775808,"candidates":[
		{"id":"a","freshness":"aging","requests":{"class":"stale","value":1e308},"kv_capacity":-1,"cached":-5,"profile":{}},
		{"id":"a","excluded":"unhealthy","profile":{}}]}`))
	f.Add([]byte(`{"rejected":"saturated","candidates":[{"excluded":"waiting","withheld":"model","probe_due":true,"half_open":true,"suspect":"frozen","profile":{"prefill_ms_per_token":1e308}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var r router.Receipt
		if json.Unmarshal(text, &r) != nil {
			return
		}
		for _, name := range router.PolicyNames() {
			policy, err := router.PolicyByName(name)
			require.NoError(t, err)
			d, err := router.Replay(&r, router.Config{Policy: policy})
			if err != nil {
				continue
			}
			require.NotEqual(t, -1, indexOf(d, d.Endpoint), "%q is none of the candidates", d.Endpoint)
			total := d.Terms.Total()
			require.False(t, math.IsNaN(total), "total %v", total)
		}
	})
}

// A receipt is a host's data and may hold anything: an answer or an error, and no panic.
func TestReplayOfNonsense(t *testing.T) {
	figure := rapid.SampledFrom([]float64{0, 1, 3, -1, 1e15, -1e308, 1e308, math.NaN(), math.Inf(1), math.Inf(-1)})
	whole := rapid.SampledFrom([]int64{0, 1, 2, -1, 5, 1 << 40, math.MinInt64, math.MaxInt64})
	rapid.Check(t, func(t *rapid.T) {
		age := func(name string) time.Duration { return time.Duration(whole.Draw(t, name)) }
		class := func(name string) telemetry.Class { return telemetry.Class(rapid.Uint8Range(0, 5).Draw(t, name)) }
		fig := func(name string) router.Figure {
			return router.Figure{Class: class(name + " class"), Value: figure.Draw(t, name), Age: age(name + " age")}
		}
		r := &router.Receipt{PromptTokens: whole.Draw(t, "prompt"), OutputTokens: whole.Draw(t, "output"), Adapter: rapid.Bool().Draw(t, "adapter")}
		r.Number, r.Session, r.TenantOpen = rapid.Uint64().Draw(t, "number"), rapid.Uint64().Draw(t, "session"), int(whole.Draw(t, "tenant"))
		for range rapid.IntRange(1, 4).Draw(t, "candidates") {
			r.Candidates = append(r.Candidates, router.Candidate{
				ID:       rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "id"),
				Excluded: router.Reason(rapid.Uint8Range(0, 22).Draw(t, "excluded")), Avoided: rapid.Bool().Draw(t, "avoided"),
				HalfOpen: rapid.Bool().Draw(t, "half"), ProbeDue: rapid.Bool().Draw(t, "due"), Observed: rapid.Bool().Draw(t, "observed"),
				Suspect: rapid.SampledFrom([]telemetry.SuspectReason{"", "frozen", "?"}).Draw(t, "suspect"), Freshness: class("freshness"), Age: age("age"),
				Requests: fig("requests"), Waiting: fig("waiting"), Pending: fig("pending"), KV: fig("kv"), KVCapacity: figure.Draw(t, "capacity"),
				Cached: whole.Draw(t, "cached"), AdapterNeeded: figure.Draw(t, "needed"), LastChosen: rapid.Uint64().Draw(t, "last"),
				Own:     reserve.Load{Requests: whole.Draw(t, "own"), Prefill: whole.Draw(t, "prefill"), Decode: whole.Draw(t, "decode"), KV: whole.Draw(t, "own kv")},
				Profile: &score.Profile{Base: figure.Draw(t, "base"), PrefillToken: figure.Draw(t, "token"), BlockSize: int(whole.Draw(t, "block"))},
			})
		}
		for _, name := range router.PolicyNames() {
			policy, err := router.PolicyByName(name)
			require.NoError(t, err)
			d, err := router.Replay(r, router.Config{Policy: policy, Caps: admission.Caps{Tenant: 1, Waiting: 2}})
			if err == nil {
				require.GreaterOrEqual(t, indexOf(d, d.Endpoint), 0)
			}
		}
	})
}

func indexOf(d router.Decision, id string) int {
	for i, c := range d.Candidates {
		if c.ID == id {
			return i
		}
	}
	return -1
}

// FuzzText reads names of reasons, classes and causes.
func FuzzText(f *testing.F) {
	for _, name := range []string{"", "draining", "batch", "failed", "unknown", "model\x00"} {
		f.Add([]byte(name))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var r router.Reason
		var class router.Class
		var cause router.Cause
		for _, x := range []interface {
			UnmarshalText([]byte) error
			String() string
		}{&r, &class, &cause} {
			if err := x.UnmarshalText(text); err == nil {
				require.Equal(t, string(text), x.String())
			} else {
				require.ErrorContains(t, err, "router: unknown ")
			}
		}
	})
}
