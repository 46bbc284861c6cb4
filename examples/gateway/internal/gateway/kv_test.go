package gateway_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/isobar-go/isobar/examples/gateway/internal/gateway"
)

func TestKVState(t *testing.T) {
	seven := uint64(7)
	for want, s := range map[string]gateway.KVState{
		"none: prefixes are what was routed":       {State: gateway.KVNone},
		"none: prefixes are what was routed (why)": {State: gateway.KVNone, LastError: "why", Address: "tcp://a:1"},
		"subscribed (tcp://a:1), no batch yet, blocks 0, gaps 0, refused 0": {
			State: "subscribed", Address: "tcp://a:1", LastError: "long ago",
		},
		"not connected (tcp://a:1), sequence 7, blocks 3, gaps 2, refused 1 for ambiguous and 5 for no scope: why": {
			State: "not connected", Address: "tcp://a:1", Sequence: &seven, Blocks: 3, Gaps: 2, LastError: "why",
			Refused: map[string]int64{"no scope": 5, "ambiguous": 1},
		},
	} {
		require.Equal(t, want, s.String())
	}
}
