package embedded_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/examples/internal/embedded"
	"github.com/isobar-go/isobar/internal/sim"
	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/telemetry/kvevents"
)

// view is what an engine's events say that it holds.
type view struct {
	t      *testing.T
	index  *prefix.Index
	holder prefix.Holder
	events *kvevents.Applier
	subs   *kvevents.Subscriber
	stop   func()
}

func (v *view) ApplyKV(_ string, e prefix.Event) error {
	v.index.Apply(v.holder, e)
	return nil
}

func (v *view) ClearPrefixes(string) error {
	v.index.Clear(v.holder)
	return nil
}

func saltScope(t *testing.T, salt string) prefix.Scope {
	s, err := prefix.NewScope(prefix.Parts{Model: "demo", Salt: salt})
	require.NoError(t, err)
	return s
}

// watch follows an engine's events until the end of the test.
func watch(t *testing.T, e *embedded.Engine, replay bool) *view {
	index, err := prefix.New(prefix.Config{})
	require.NoError(t, err)
	v := &view{t: t, index: index, holder: index.Add(0)}
	v.events, err = kvevents.New(kvevents.Config{
		ID: "e", Sink: v, BlockTokens: int(e.Config().Profile.BlockSize), Base: saltScope(t, ""),
		Scope: func(k kvevents.Keys) (prefix.Scope, bool) {
			salt, ok := k.Extra[0].(string)
			return saltScope(t, salt), ok && len(k.Extra) == 1 && !k.Parent.Known()
		},
	})
	require.NoError(t, err)
	source := kvevents.Source{Address: e.KVAddr()}
	if replay {
		source.Replay = e.KVReplayAddr()
	}
	v.subs, err = kvevents.NewSubscriber(v.events, kvevents.SubscriberConfig{Sources: []kvevents.Source{source}, Topic: "kv-"})
	require.NoError(t, err)
	before := e.KVSubscriptions()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = v.subs.Run(ctx) })
	v.stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(v.stop)
	// What is published before the subscription has come into effect is not heard.
	eventually(t, func() bool { return v.subs.Stats().Connected == 1 && e.KVSubscriptions() > before })
	return v
}

// cached is how many leading tokens of a request's prompt the engine is known to hold.
func (v *view) cached(salt string, body any) int64 {
	raw, err := json.Marshal(body)
	require.NoError(v.t, err)
	tokens, ok := embedded.Tokenize("/v1/chat/completions", raw)
	require.True(v.t, ok)
	q, err := prefix.FromTokens(saltScope(v.t, salt), 16, tokens)
	require.NoError(v.t, err)
	return v.index.Match(q, nil)[v.holder.Slot()]
}

// ask has the engine answer, and returns the tokens of the prompt and those found in the cache.
func ask(t *testing.T, e *embedded.Engine, body any) (prompt, cached int64) {
	u := decode[struct {
		Usage struct {
			PromptTokens        int64 `json:"prompt_tokens"`
			PromptTokensDetails struct {
				CachedTokens int64 `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}](t, post(t, newClient(t), e.URL()+"/v1/chat/completions", body).Body).Usage
	return u.PromptTokens, u.PromptTokensDetails.CachedTokens
}

func postTo(ctx context.Context, c *http.Client, url string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return c.Do(req)
}

func long(name string) string { return name + strings.Repeat(" and so on", 200) }

// TestKVEvents: who listens knows what the engine has, salts apart, and that it is gone again.
func TestKVEvents(t *testing.T) {
	e := start(t, embedded.Config{KVEvents: true, Addr: "127.0.0.1:0"})
	v := watch(t, e, true)
	plain, salted := chat(long("a"), obj{"max_tokens": 2}), chat(long("a"), obj{"max_tokens": 2, "cache_salt": "s"})
	n, _ := ask(t, e, plain)
	eventually(t, func() bool { return v.cached("", plain) == n/16*16 })
	require.Zero(t, v.cached("s", plain))
	require.Zero(t, v.cached("", chat(long("b"), nil)))
	ask(t, e, salted)
	eventually(t, func() bool { return v.cached("s", plain) == n/16*16 })
	_, found := ask(t, e, plain)
	require.Equal(t, v.cached("", plain), found, "what is told is what is found")
	s := v.events.Stats()
	require.Equal(t, kvevents.Refusals{}, s.Refused)
	require.Zero(t, s.Gaps+s.Orphans+s.Invalid+s.Unmatched+s.Restarts)
	e.ClearCache()
	eventually(t, func() bool { return v.cached("", plain) == 0 && v.cached("s", plain) == 0 })
	require.EqualValues(t, 1, v.events.Stats().AllCleared)
}

// TestKVEventsAgree: through evictions, preemptions, cancellations and clears, the events add up to what the cache holds.
func TestKVEventsAgree(t *testing.T) {
	p, _ := sim.ProfileByName("h100-8b")
	p.KVTokens = 200 * 16
	e := start(t, embedded.Config{KVEvents: true, Profile: p, TimeScale: 1000})
	v := watch(t, e, true)
	c := newClient(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 12 {
				body, _ := json.Marshal(chat(long(fmt.Sprint(i*j%7)), obj{"max_tokens": 1 + 10*i, "ignore_eos": true, "cache_salt": []string{"", "s"}[j%2]}))
				ctx, cancel := context.WithCancel(t.Context())
				resp, err := postTo(ctx, c, e.URL()+"/v1/chat/completions", body)
				if j%5 == 4 {
					cancel()
				}
				if err == nil {
					_, _ = resp.Body.Read(make([]byte, 1<<10))
					_ = resp.Body.Close()
				}
				cancel()
				if i == 0 && j == 6 {
					e.ClearCache()
				}
			}
		})
	}
	all.Wait()
	eventually(t, func() bool { return e.Stats().Running+e.Stats().Waiting == 0 })
	ask(t, e, chat(long("0"), obj{"max_tokens": 1}))
	warm := 0
	for i := range 7 {
		for _, salt := range []string{"", "s"} {
			now := watch(t, e, true) // a replay brings it up to now
			eventually(t, func() bool { return now.subs.Stats().Healed == 1 })
			body := chat(long(fmt.Sprint(i)), obj{"max_tokens": 1, "cache_salt": salt})
			told := now.cached(salt, body)
			n, found := ask(t, e, body)
			require.GreaterOrEqual(t, found, min(told, (n-1)/16*16), "what is told is there")
			if told > 0 {
				warm++
			}
			now.stop()
			eventually(t, func() bool { return e.KVSubscriptions() == 1 })
		}
	}
	require.Positive(t, warm)
	e.ClearCache()
	n, _ := ask(t, e, chat(long("last"), obj{"max_tokens": 2}))
	eventually(t, func() bool { return v.cached("", chat(long("last"), nil)) == n/16*16 })
	s := v.events.Stats()
	require.EqualValues(t, e.Stats().CachedBlocks, s.Held)
	require.Positive(t, s.Removed)
	require.Zero(t, s.Gaps+s.Orphans+s.Invalid+s.Unmatched+s.Restarts)
	require.Equal(t, kvevents.Refusals{}, s.Refused)
}

// TestKVReplay: who comes late is told of what was before, and without the replay socket knows nothing of it.
func TestKVReplay(t *testing.T) {
	e := start(t, embedded.Config{KVEvents: true})
	body := chat(long("a"), obj{"max_tokens": 2})
	n, _ := ask(t, e, body)
	with, without := watch(t, e, true), watch(t, e, false)
	eventually(t, func() bool { return with.cached("", body) == n/16*16 })
	require.Zero(t, without.cached("", body))
	with.stop()
	require.Zero(t, with.cached("", body), "nobody listens any more")
}

// TestKVRestart: a new engine at the same addresses begins at 0, and nothing of the old one is believed.
func TestKVRestart(t *testing.T) {
	e := start(t, embedded.Config{KVEvents: true})
	v := watch(t, e, true)
	body := chat(long("a"), obj{"max_tokens": 2})
	n, _ := ask(t, e, body)
	eventually(t, func() bool { return v.cached("", body) == n/16*16 })
	e.Kill()
	eventually(t, func() bool { return v.cached("", body) == 0 })
	again, err := e.Restart()
	require.NoError(t, err)
	t.Cleanup(again.Kill)
	require.Equal(t, [2]string{e.KVAddr(), e.KVReplayAddr()}, [2]string{again.KVAddr(), again.KVReplayAddr()})
	eventually(t, func() bool { return v.subs.Stats().Connected == 1 && again.KVSubscriptions() == 1 })
	require.Zero(t, v.cached("", body))
	ask(t, again, body)
	eventually(t, func() bool { return v.cached("", body) == n/16*16 })
}

// TestKVSockets: peers that do not keep to the protocol harm nobody else, and the engine ends all the same.
func TestKVSockets(t *testing.T) {
	e := start(t, embedded.Config{KVEvents: true})
	for _, text := range []string{"", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("\xff", 64), "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f"} {
		for _, addr := range []string{e.KVAddr(), e.KVReplayAddr()} {
			c, err := net.Dial("tcp", strings.TrimPrefix(addr, "tcp://"))
			require.NoError(t, err)
			t.Cleanup(func() { _ = c.Close() })
			_, err = c.Write([]byte(text))
			require.NoError(t, err)
		}
	}
	v := watch(t, e, true)
	body := chat(long("a"), obj{"max_tokens": 2})
	n, _ := ask(t, e, body)
	eventually(t, func() bool { return v.cached("", body) == n/16*16 })
	e.Kill()
	e.Kill()
}

// TestKVLibrarySockets: the library's own SUB and DEALER sockets understand them.
func TestKVLibrarySockets(t *testing.T) {
	e := start(t, embedded.Config{KVEvents: true})
	dealer := zmq4.NewDealer(t.Context())
	defer func() { _ = dealer.Close() }()
	require.NoError(t, dealer.Dial(e.KVReplayAddr()))
	for i := range 3 {
		ask(t, e, chat(long(fmt.Sprint(i)), obj{"max_tokens": 2}))
	}
	for from, want := range map[uint64][]uint64{0: {0, 1, 2, math.MaxUint64}, 2: {2, math.MaxUint64}, 7: {math.MaxUint64}} {
		require.NoError(t, dealer.Send(zmq4.NewMsgFrom(nil, []byte("short"))), "is ignored")
		require.NoError(t, dealer.Send(zmq4.NewMsgFrom(nil, binary.BigEndian.AppendUint64(nil, from))))
		var got []uint64
		for !slices.Contains(got, math.MaxUint64) {
			msg, err := dealer.Recv()
			require.NoError(t, err)
			require.Len(t, msg.Frames, 3)
			got = append(got, binary.BigEndian.Uint64(msg.Frames[1]))
			if got[len(got)-1] == math.MaxUint64 {
				require.Empty(t, msg.Frames[2])
				continue
			}
			var b kvevents.Batch
			require.NoError(t, kvevents.Decode(&b, msg.Frames[2], kvevents.Limits{}))
			require.Len(t, b.Events, 1)
			require.Equal(t, "GPU", b.Events[0].Medium)
			require.Len(t, b.Events[0].Tokens, 16*len(b.Events[0].Hashes))
		}
		require.Equal(t, want, got)
	}
}

func TestKVConfig(t *testing.T) {
	for _, d := range embedded.Dialects() {
		err := embedded.Config{Dialect: d, KVEvents: true}.Validate()
		if embedded.HasKVEvents(d) {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, fmt.Sprintf("embedded: Config.KVEvents is on, and engines of the dialect %q publish none", d))
		}
	}
	require.True(t, embedded.HasKVEvents(""))
	require.True(t, embedded.HasKVEvents("sglang"))
	require.False(t, embedded.HasKVEvents("tgi"))
	require.False(t, embedded.HasKVEvents("abacus"))
	e := start(t, embedded.Config{})
	require.Empty(t, e.KVAddr()+e.KVReplayAddr())
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	_, err = embedded.Start(embedded.Config{KVEvents: true, KVAddr: taken.Addr().String()})
	require.ErrorContains(t, err, "embedded: Config.KVAddr")
	_, err = embedded.Start(embedded.Config{KVEvents: true, KVReplayAddr: taken.Addr().String()})
	require.ErrorContains(t, err, "embedded: Config.KVReplayAddr")
}

func TestTokenize(t *testing.T) {
	tokens, ok := embedded.Tokenize("/v1/completions", []byte(`{"model":"demo","prompt":[1,2,4294967295]}`))
	require.True(t, ok)
	require.Equal(t, []uint32{1, 2}, tokens[:2], "numbers are themselves")
	require.GreaterOrEqual(t, tokens[2], uint32(1<<31))
	text, ok := embedded.Tokenize("/v1/completions", []byte(`{"prompt":"abcdefg"}`))
	require.True(t, ok)
	require.Len(t, text, 2)
	turn, ok := embedded.Tokenize("/v1/chat/completions", []byte(`{"messages":[{"role":"user","content":"abcdefg"}]}`))
	require.True(t, ok)
	require.Len(t, turn, 5)
	require.Equal(t, text, turn[1:3])
	for _, bad := range []string{``, `[]`, `{}`, `{"prompt":7}`, `{"messages":[]}`, `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`} {
		for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
			_, ok := embedded.Tokenize(path, []byte(bad))
			require.False(t, ok, bad)
		}
	}
}
