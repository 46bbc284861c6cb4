package node_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
	"github.com/isobar-go/isobar/examples/gateway/internal/node"
	"github.com/isobar-go/isobar/examples/internal/embedded"
	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/router"
	"github.com/isobar-go/isobar/router/httptransport"
	"github.com/isobar-go/isobar/score"
)

func tokenize(p httptransport.Prompt) ([]uint32, bool) { return embedded.Tokenize(p.Path, p.Body) }

// startKV is a node that listens to the KV events of its engines.
func startKV(t *testing.T, cfg node.Config, change func(*embedded.Config), names ...string) *rig {
	engines := map[string]*embedded.Engine{}
	for _, name := range names {
		conf := embedded.Config{Name: name, TimeScale: scale, OutputTokens: 16, KVEvents: true}
		if change != nil {
			change(&conf)
		}
		e, err := embedded.Start(conf)
		require.NoError(t, err)
		t.Cleanup(func() { engines[name].Kill() })
		engines[name] = e
		cfg.Endpoints = append(cfg.Endpoints, kvEndpoint(e, ""))
	}
	cfg.Gateway.Tokenize = tokenize
	r := start(t, cfg)
	r.engines = engines
	for _, name := range names {
		r.heard(name)
	}
	return r
}

// heard waits until the KV events of an engine arrive: a subscription takes a moment to come into effect, and what is missed
// in it shows with the next batch.
func (r *rig) heard(id string) {
	r.t.Helper()
	r.eventually(func() bool { return r.kv(id).State == "subscribed" }, "not subscribed")
	n := 0
	r.eventually(func() bool {
		n++
		r.post(r.engines[id].URL(), fmt.Sprintf(`{"model":"demo","max_tokens":1,"messages":[{"role":"user","content":%q}]}`,
			fmt.Sprintf("%d %d %s", n, r.kv(id).Losses, strings.Repeat("is it heard? ", 9))))
		return r.kv(id).Sequence != nil
	}, "not heard")
}

func kvEndpoint(e *embedded.Engine, incarnation string) router.Endpoint {
	return router.Endpoint{
		ID: e.Config().Name, Incarnation: incarnation, Address: e.URL(),
		Labels:  map[string]string{node.LabelKVEvents: e.KVAddr(), node.LabelKVReplay: e.KVReplayAddr()},
		Profile: score.Profile{Base: 6.8 / scale, PrefillToken: 0.03 / scale, KVCapacity: 421_011},
	}
}

// kv is how the KV events of an endpoint go, by the debug page.
func (r *rig) kv(id string) gateway.KVState {
	r.t.Helper()
	for _, s := range r.debug("?n=0").KV {
		if s.ID == id {
			return s
		}
	}
	return gateway.KVState{}
}

// talk is a conversation of some thousand tokens.
func talk(name, more string) string {
	return fmt.Sprintf(`{"model":"demo","max_tokens":2,"messages":[{"role":"user","content":%q}]%s}`,
		name+strings.Repeat(" a long beginning", 500), more)
}

// post has a server answer, and returns what is found in its engine's cache.
func (r *rig) post(base, body string, header ...string) (resp *http.Response, found int64) {
	r.t.Helper()
	req, err := http.NewRequest(http.MethodPost, base+"/v1/chat/completions", strings.NewReader(body))
	require.NoError(r.t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err = r.http.Do(req)
	require.NoError(r.t, err)
	require.Equal(r.t, http.StatusOK, resp.StatusCode)
	var doc struct {
		Usage struct {
			Details struct {
				Cached int64 `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	require.NoError(r.t, json.Unmarshal([]byte(read(r.t, resp)), &doc))
	return resp, doc.Usage.Details.Cached
}

// request is what the gateway makes of a body.
func request(t *testing.T, body string) router.Request {
	req, err := http.NewRequest(http.MethodPost, "http://x/v1/chat/completions", strings.NewReader(body))
	require.NoError(t, err)
	out, err := httptransport.OpenAI{Tokenize: tokenize, SharedPrefixes: true}.Describe(req)
	require.NoError(t, err)
	return out
}

// cached is what an engine is believed to hold of a prompt, in tokens.
func (r *rig) cached(id, body string) int64 {
	r.t.Helper()
	n, err := r.node.Pool.Cached(id, request(r.t, body).Prefix)
	require.NoError(r.t, err)
	return n
}

// repelled says that a prompt would be drawn nowhere.
func (r *rig) repelled(body string) {
	r.t.Helper()
	d, err := r.node.Pool.Score(request(r.t, body))
	require.NoError(r.t, err)
	require.Zero(r.t, d.Cached)
	require.Zero(r.t, d.Terms.Saved)
}

// TestKVAttracts: what an engine holds draws requests, though the gateway has sent it nothing.
func TestKVAttracts(t *testing.T) {
	var out lines
	r := startKV(t, node.Config{Out: &out}, nil, "a", "b", "c")
	require.Len(t, out.all(), 3)
	for _, line := range out.all() {
		require.Contains(t, string(line), "; KV events: subscribed (tcp://127.0.0.1:")
	}
	for i := range 9 {
		id := []string{"c", "a", "b"}[i%3]
		body := talk(fmt.Sprint("talk ", i), "")
		r.repelled(body)
		_, found := r.post(r.engines[id].URL(), body)
		require.Zero(t, found)
		r.eventually(func() bool { return r.cached(id, body) > 2000 }, "not told")
		resp, found := r.post(r.url, body, "Authorization", fmt.Sprint("Bearer ", i))
		require.Equal(t, id, resp.Header.Get(gateway.HeaderEndpoint))
		require.Greater(t, found, int64(2000))
		r.drained()
	}
	s := r.kv("b")
	require.Equal(t, "demo", s.Model)
	require.Greater(t, s.Blocks, 300)
	require.Positive(t, *s.Sequence)
	require.Zero(t, s.Gaps+s.Missed+s.Invalid+s.Restarts)
	require.Empty(t, s.Refused)
	receipts := r.debug("?n=9").Receipts
	require.Len(t, receipts, 9)
	for _, receipt := range receipts {
		require.Greater(t, receipt.Cached, int64(2000))
		require.Equal(t, receipt.Cached, receipt.Outcome.Usage.CachedTokens, "what was expected is what was found")
	}
}

// TestKVSalt: who gives another salt is not drawn, and learns nothing.
func TestKVSalt(t *testing.T) {
	r := startKV(t, node.Config{}, nil, "a", "b")
	salted := talk("x", `,"cache_salt":"s"`)
	r.post(r.engines["b"].URL(), salted)
	r.eventually(func() bool { return r.cached("b", salted) > 2000 }, "not told")
	r.repelled(talk("x", ""))
	r.repelled(talk("x", `,"cache_salt":"t"`))
	resp, found := r.post(r.url, salted)
	require.Equal(t, "b", resp.Header.Get(gateway.HeaderEndpoint))
	require.Greater(t, found, int64(2000))
	r.drained()
}

// TestKVGone: what was evicted or cleared draws nobody any more.
func TestKVGone(t *testing.T) {
	p, ok := sim.ProfileByName("h100-8b")
	require.True(t, ok)
	p.KVTokens = 5000
	r := startKV(t, node.Config{}, func(c *embedded.Config) { c.Profile = p }, "a", "b")
	body, other := talk("x", ""), talk("other", "")
	r.post(r.engines["a"].URL(), body)
	r.eventually(func() bool { return r.cached("a", body) > 2000 }, "not told")
	r.post(r.engines["a"].URL(), talk("y", ""))
	r.post(r.engines["a"].URL(), talk("z", ""))
	r.post(r.engines["a"].URL(), other)
	r.eventually(func() bool { return r.cached("a", body) == 0 }, "evicted, and not told")
	r.repelled(body)
	require.Greater(t, r.cached("a", other), int64(1000))
	r.engines["a"].ClearCache()
	r.eventually(func() bool { return r.cached("a", other) == 0 && r.kv("a").Blocks == 0 }, "cleared, and not told")
	r.repelled(other)
	r.post(r.url, body)
	r.drained()
}

// TestKVEngineRestarts: an engine that is gone, or another one at its address, draws nobody by what it had.
func TestKVEngineRestarts(t *testing.T) {
	for _, replay := range []bool{true, false} {
		t.Run(fmt.Sprint("replay ", replay), func(t *testing.T) {
			r := startKV(t, node.Config{}, nil, "a", "b")
			if !replay {
				for _, e := range r.node.Pool.Endpoints() {
					delete(e.Labels, node.LabelKVReplay)
					require.NoError(t, r.node.Pool.Add(e))
				}
				r.eventually(func() bool { return r.kv("a").State == "subscribed" && r.kv("a").Batches == 0 }, "not begun again")
			}
			body := talk("x", "")
			r.heard("a")
			r.post(r.engines["a"].URL(), body)
			r.eventually(func() bool { return r.cached("a", body) > 2000 }, "not told")
			r.engines["a"].Kill()
			r.eventually(func() bool {
				s := r.kv("a")
				return s.State == "not connected" && s.LastError != "" && r.cached("a", body) == 0
			}, "not noticed")
			again, err := r.engines["a"].Restart()
			require.NoError(t, err)
			r.engines["a"] = again
			r.eventually(func() bool { return r.kv("a").State == "subscribed" }, "not subscribed again")
			require.Zero(t, r.cached("a", body))
			r.heard("a")
			require.Zero(t, r.cached("a", body))
			require.Less(t, *r.kv("a").Sequence, uint64(1000))
			r.post(again.URL(), body)
			r.eventually(func() bool { return r.cached("a", body) > 2000 }, "not told again")
		})
	}
}

// TestKVFollowsThePool: endpoints come, become others and go, and their subscriptions with them.
func TestKVFollowsThePool(t *testing.T) {
	r := startKV(t, node.Config{}, nil, "a", "b")
	body := talk("x", "")
	for _, id := range []string{"a", "b"} {
		r.post(r.engines[id].URL(), body)
		r.eventually(func() bool { return r.cached(id, body) > 2000 }, "not told")
	}
	require.NoError(t, r.node.Pool.Remove("b"))
	r.eventually(func() bool { return len(r.debug("?n=0").KV) == 1 }, "not gone")
	require.NoError(t, r.node.Pool.Add(kvEndpoint(r.engines["b"], "2")))
	r.eventually(func() bool { return r.kv("b").State == "subscribed" && r.cached("b", body) > 2000 }, "a new life is told of all there is")
	require.Equal(t, "2", r.kv("b").Incarnation)
	require.Greater(t, r.cached("a", body), int64(2000), "the others are left alone")

	e := kvEndpoint(r.engines["a"], "")
	e.Models = []string{"adapter", "demo"}
	require.NoError(t, r.node.Pool.Add(e))
	before := r.kv("a").Batches
	r.post(r.engines["a"].URL(), talk("y", ""))
	r.eventually(func() bool { return r.kv("a").Batches > before }, "an adapter is loaded, and nothing is heard any more")
	require.Greater(t, r.cached("a", body), int64(2000))
	require.NoError(t, r.stop())
	require.Zero(t, r.cached("a", body), "nobody listens any more")
}

// TestKVNotPossible: what cannot be listened to is said at once, or shown.
func TestKVNotPossible(t *testing.T) {
	endpoint := func(labels ...string) router.Endpoint {
		e := router.Endpoint{ID: "x", Address: "http://127.0.0.1:1", Labels: map[string]string{}}
		for i := 0; i < len(labels); i += 2 {
			e.Labels[labels[i]] = labels[i+1]
		}
		return e
	}
	good := endpoint(node.LabelKVEvents, "tcp://127.0.0.1:1")
	_, err := node.New(node.Config{Endpoints: []router.Endpoint{good}})
	require.ErrorContains(t, err, `node: endpoint "x" has KV events at tcp://127.0.0.1:1, and Config.Gateway.Tokenize is nil`)
	tokenized := gateway.Config{Tokenize: tokenize}
	for want, e := range map[string]router.Endpoint{
		`node: endpoint "x": kvevents: SubscriberConfig.Sources[0].Address: address "http://a:1"`: endpoint(node.LabelKVEvents, "http://a:1"),
		`SubscriberConfig.Sources[0].Replay: address "b"`:                                         endpoint(node.LabelKVEvents, "tcp://a:1", node.LabelKVReplay, "b"),
	} {
		_, err = node.New(node.Config{Endpoints: []router.Endpoint{e}, Gateway: tokenized})
		require.ErrorContains(t, err, want)
	}
	_, err = node.New(node.Config{Gateway: gateway.Config{BlockTokens: -1}})
	require.ErrorContains(t, err, "BlockTokens = -1")

	s := reports(t, map[string]string{"/metrics": vllmText, "/v1/models": `{"data":[{"id":"m"},{"id":"adapter"}]}`})
	several := endpoint(node.LabelKVEvents, "tcp://127.0.0.1:1")
	several.Address = s.URL
	named := endpoint(node.LabelKVEvents, "tcp://127.0.0.1:1", node.LabelKVModel, "m")
	named.ID = "y"
	var out lines
	plain := router.Endpoint{ID: "z", Address: s.URL}
	r := start(t, node.Config{Endpoints: []router.Endpoint{several, named, plain}, Gateway: tokenized, Out: &out})
	require.Equal(t, gateway.KVNone+" (the engine has several models: name the base model with the label kv-model)", r.kv("x").String())
	r.eventually(func() bool { return r.kv("y").State == "not connected" }, "not tried")
	require.Equal(t, gateway.KVState{ID: "z", State: gateway.KVNone}, r.kv("z"))
	r.eventually(func() bool { return len(out.all()) == 3 }, "not introduced")
	require.True(t, strings.HasPrefix(string(out.all()[1]), "y tells nothing yet: "), "%s", out.all()[1])
	require.True(t, strings.HasSuffix(string(out.all()[2]), "; KV events: none: prefixes are what was routed"), "%s", out.all()[2])

	late := start(t, node.Config{})
	require.NoError(t, late.node.Pool.Add(good))
	late.eventually(func() bool { return strings.Contains(late.kv("x").String(), "Tokenize is nil") }, "not shown")
}

// TestKVWrongBlockSize: blocks of another size give no credit, and the page says so.
func TestKVWrongBlockSize(t *testing.T) {
	r := startKV(t, node.Config{Gateway: gateway.Config{BlockTokens: 32}}, nil, "a")
	r.post(r.engines["a"].URL(), talk("x", ""))
	r.eventually(func() bool { return r.kv("a").Refused["wrong block size"] > 100 }, "not shown")
	require.Zero(t, r.kv("a").Blocks)
	require.Regexp(t, `^subscribed \(tcp://127.0.0.1:\d+\), sequence \d+, blocks 0, gaps 0, refused \d+ for wrong block size$`, r.kv("a").String())
}
