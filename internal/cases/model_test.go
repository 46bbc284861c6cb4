package cases

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestLedgerAgainstAList drives a machine with random lease commands and compares the ledger that it prints with a plain list of
// what is open.
func TestLedgerAgainstAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type open struct{ prefill, decode, kv int64 }
		m := NewMachine()
		model := map[string]*open{}
		names := map[string]bool{}
		require.Empty(t, m.Run("pool circuit.failures=0 circuit.window=0"))
		require.Empty(t, m.Run("endpoint a"))
		name := rapid.SampledFrom([]string{"r1", "r2", "r3"})
		end := func(command string) func(*rapid.T) {
			return func(t *rapid.T) {
				n := name.Draw(t, "lease")
				printed := m.Run(command + " " + n)
				if !names[n] {
					require.Equal(t, []string{fmt.Sprintf("error: unknown lease %q", n)}, printed)
					return
				}
				require.Empty(t, printed)
				delete(model, n)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				var sum open
				for _, o := range model {
					sum.prefill, sum.decode, sum.kv = sum.prefill+o.prefill, sum.decode+o.decode, sum.kv+o.kv
				}
				n := len(model)
				require.Equal(t, []string{fmt.Sprintf("requests=%d prefill=%d decode=%d kv=%d unobserved=%d", n, sum.prefill, sum.decode, sum.kv, n)}, m.Run("load a"))
			},
			"route": func(t *rapid.T) {
				n := name.Draw(t, "lease")
				prompt, out := rapid.Int64Range(1, 500).Draw(t, "prompt"), rapid.Int64Range(1, 500).Draw(t, "out")
				printed := m.Run(fmt.Sprintf("route id=%s prompt=%d out=%d", n, prompt, out))
				if model[n] != nil {
					require.Equal(t, []string{fmt.Sprintf("error: lease %q is open already", n)}, printed)
					return
				}
				require.Equal(t, []string{"a"}, printed)
				names[n], model[n] = true, &open{prompt, out, prompt + out}
			},
			"first-token": func(t *rapid.T) {
				n := name.Draw(t, "lease")
				m.Run("first-token " + n)
				if o := model[n]; o != nil {
					o.prefill = 0
				}
			},
			"done": end("done"), "fail": end("fail"), "cancel": end("cancel"),
			"advance": func(*rapid.T) { m.Run("advance 1s") },
		})
	})
}
