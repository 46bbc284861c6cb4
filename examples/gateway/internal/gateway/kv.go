package gateway

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// KVNone is KVState.State where nothing listens to an engine's KV events: because it has none that the gateway knows of, or
// for the reason in KVState.LastError.
const KVNone = "none: prefixes are what was routed"

// KVState is how the KV events of one endpoint go. It is a plain value.
type KVState struct {
	// ID and Incarnation are the endpoint's.
	ID          string `json:"id"`
	Incarnation string `json:"incarnation,omitempty"`
	// State is KVNone, "subscribed", "catching up" or "not connected".
	State string `json:"state"`
	// Address is where the events come from, and Model the one whose blocks they are about.
	Address string `json:"address,omitempty"`
	Model   string `json:"model,omitempty"`
	// Sequence is the number of the newest batch; null = none is known.
	Sequence *uint64 `json:"sequence"`
	// Blocks is how many different ones the engine is known to hold.
	Blocks int `json:"blocks"`
	// Batches were applied; Gaps were found in their numbers, with Missed batches in them; Restarts of the engine; Invalid
	// batches; Losses of what was known, for any of these reasons or a lost connection.
	Batches  int64 `json:"batches"`
	Gaps     int64 `json:"gaps"`
	Missed   int64 `json:"missed"`
	Restarts int64 `json:"restarts"`
	Invalid  int64 `json:"invalid"`
	Losses   int64 `json:"losses"`
	// Refused counts stored blocks that give no credit, by reason.
	Refused map[string]int64 `json:"refused,omitempty"`
	// LastError is the newest thing that went wrong, however long ago.
	LastError string `json:"last_error,omitempty"`
}

// String is the state in a line: what must be known to judge it.
func (s KVState) String() string {
	var b strings.Builder
	b.WriteString(s.State)
	if s.State == KVNone {
		if s.LastError != "" {
			fmt.Fprintf(&b, " (%s)", s.LastError)
		}
		return b.String()
	}
	fmt.Fprintf(&b, " (%s)", s.Address)
	if s.Sequence == nil {
		b.WriteString(", no batch yet")
	} else {
		fmt.Fprintf(&b, ", sequence %d", *s.Sequence)
	}
	fmt.Fprintf(&b, ", blocks %d, gaps %d, refused ", s.Blocks, s.Gaps)
	if len(s.Refused) == 0 {
		b.WriteString("0")
	}
	for i, reason := range slices.Sorted(maps.Keys(s.Refused)) {
		if i > 0 {
			b.WriteString(" and ")
		}
		fmt.Fprintf(&b, "%d for %s", s.Refused[reason], reason)
	}
	if s.State == "not connected" && s.LastError != "" {
		fmt.Fprintf(&b, ": %s", s.LastError)
	}
	return b.String()
}
