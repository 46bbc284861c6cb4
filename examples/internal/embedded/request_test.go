package embedded

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/internal/sim"
)

func userTurns(n int) []apiMessage {
	var list []apiMessage
	for i := range n {
		content, _ := json.Marshal(strings.Repeat(fmt.Sprint("turn ", i), i*7%23))
		list = append(list, apiMessage{Role: []string{"system", "user", "assistant"}[min(i, 1+i%2)], Content: content})
	}
	return list
}

// Every prefix of a conversation, opened for an answer, shares its blocks with the whole up to that opening.
func TestConversationOnlyGrows(t *testing.T) {
	whole := newPrompt(16, "")
	require.Nil(t, whole.chat(apiRequest{Messages: userTurns(40)}))
	for n := 1; n < 40; n++ {
		part := newPrompt(16, "")
		require.Nil(t, part.chat(apiRequest{Messages: userTurns(n)}))
		same := (part.tokens - 1) / 16 // the opening is one token
		require.True(t, slices.Equal(whole.blocks[:same], part.blocks[:same]), "%d messages", n)
		require.EqualValues(t, part.tokens/16, len(part.blocks))
	}
}

// What differs anywhere differs from that block on.
func TestBlocksTellApart(t *testing.T) {
	hash := func(f func(p *prompt)) uint64 {
		p := newPrompt(1, "")
		f(p)
		return p.blocks[len(p.blocks)-1]
	}
	seen := map[uint64]string{}
	for name, f := range map[string]func(p *prompt){
		"ab|c":          func(p *prompt) { p.text("ab"); p.text("c") },
		"a|bc":          func(p *prompt) { p.text("a"); p.text("bc") },
		"abc":           func(p *prompt) { p.text("abc") },
		"abc and zero":  func(p *prompt) { p.text("abc\x00") },
		"role abc":      func(p *prompt) { p.role("abc") },
		"role abd":      func(p *prompt) { p.role("abd") },
		"end":           func(p *prompt) { p.end() },
		"id 0":          func(p *prompt) { p.id(0) },
		"id 1":          func(p *prompt) { p.id(1) },
		"one zero byte": func(p *prompt) { p.text("\x00") },
		"two of them":   func(p *prompt) { p.text("\x00\x00") },
	} {
		h := hash(f)
		require.Empty(t, seen[h], name)
		seen[h] = name
	}
	a, b := newPrompt(1, "ab"), newPrompt(1, "a")
	a.text("x")
	b.text("x")
	require.NotEqual(t, a.blocks, b.blocks, "another salt")
}

// Words are as long as a token, or an answer would be cut differently on its way back.
func TestWords(t *testing.T) {
	seen := map[string]bool{}
	for _, w := range words {
		require.Len(t, w, tokenBytes)
		require.False(t, seen[w], w)
		seen[w] = true
	}
	require.NotEqual(t, word(1, 0)+word(1, 1)+word(1, 2)+word(1, 3), word(2, 0)+word(2, 1)+word(2, 2)+word(2, 3))
}

// Whatever the bytes are, a request is refused with a proper error or the engine model takes it.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"model":"demo","messages":[{"role":"user","content":"hello there"}],"stream":true,"max_tokens":5}`,
		`{"model":"demo","messages":[{"role":"user","content":[{"type":"text","text":"x"}]},{"role":"assistant","tool_calls":[{}]}],"tools":[{}]}`,
		`{"model":"demo","prompt":[1,2,3],"max_completion_tokens":9223372036854775807,"ignore_eos":true}`,
		`{"model":"demo","prompt":["x"],"n":1,"cache_salt":"s"}`,
		`{"model":"demo","prompt":null,"stream_options":{}}`,
		`[]`, `null`, ``,
	} {
		f.Add([]byte(seed))
	}
	p, _ := sim.ProfileByName("h100-8b")
	p.KVTokens = 512
	cfg := Config{Profile: p}.withDefaults()
	f.Fuzz(func(t *testing.T, body []byte) {
		req, bad := parseRequest(body)
		for _, chat := range []bool{true, false} {
			var j job
			if bad == nil {
				j, bad = cfg.prepare(req, chat)
			}
			if bad != nil {
				require.Contains(t, []int{400, 404}, bad.status)
				require.NotEmpty(t, bad.Message)
				bad = nil
				continue
			}
			require.Contains(t, []string{"stop", "length"}, j.reason)
			e, err := sim.New(p, sim.Options{})
			require.NoError(t, err)
			require.NoError(t, e.Submit(j.request))
		}
	})
}
