package sim

import "fmt"

// EventKind says what happened to a request.
type EventKind uint8

const (
	// Preempted: the request lost its blocks at the start of the pass and waits again.
	Preempted EventKind = iota + 1
	// Admitted: the request left the waiting queue at the start of the pass. Tokens is what the cache held of it.
	Admitted
	// FirstToken: the first token of the request came at the end of the pass.
	FirstToken
	// Token: a later token came at the end of the pass.
	Token
	// Finished: the token just reported was the last. The engine has forgotten the request.
	Finished
)

// String returns the kind in lower case.
func (k EventKind) String() string {
	switch k {
	case Preempted:
		return "preempted"
	case Admitted:
		return "admitted"
	case FirstToken:
		return "first token"
	case Token:
		return "token"
	case Finished:
		return "finished"
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Event is one thing that happened in a pass. It is a plain value.
type Event struct {
	// ID is the request.
	ID uint64
	// Tokens is, for Admitted, the tokens found in the cache (for a preempted request that returns, those of its new
	// start); for all other kinds the tokens generated so far.
	Tokens int64
	// Kind is what happened. Preempted and Admitted belong to the start of the pass, the others to its end.
	Kind EventKind
}

// KVEventKind says how the set of cached blocks changed.
type KVEventKind uint8

const (
	// KVStored: a full block became findable.
	KVStored KVEventKind = iota + 1
	// KVRemoved: a cached block was reused for something else.
	KVRemoved
	// KVCleared: all cached blocks were forgotten. Hash and Parent are zero.
	KVCleared
)

// KVEvent is one change of the set of cached blocks. It is a plain value.
type KVEvent struct {
	// Hash is the block's chained hash.
	Hash uint64
	// Parent is the hash of the block before it, 0 for the first of a prompt.
	Parent uint64
	// Kind is the change.
	Kind KVEventKind
}
