package kvevents

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// Kind says what an event reports. Any number of goroutines may use one.
type Kind uint8

// Kinds of events. The zero kind is none of them.
const (
	BlockStored      Kind = iota + 1 // blocks are in the cache now
	BlockRemoved                     // blocks are gone
	AllBlocksCleared                 // all blocks of the rank are gone
)

// String is the tag under which the engines send the kind.
func (k Kind) String() string {
	switch k {
	case BlockStored:
		return "BlockStored"
	case BlockRemoved:
		return "BlockRemoved"
	case AllBlocksCleared:
		return "AllBlocksCleared"
	}
	return "unknown"
}

// BlockHash is the name that an engine gives a block: an integer, or a byte string of any length, of which 127 bits of the
// SHA-256 are kept. Two different names never give the same BlockHash, as far as SHA-256 allows. It is comparable with ==,
// and its zero value is the integer 0.
//
// BlockHash is a plain value; any number of goroutines may use one.
type BlockHash struct{ hi, lo uint64 }

// hi of integers. Of byte strings it is odd.
const (
	hiNonNegative = 0
	hiNegative    = 2
)

// IntHash is the BlockHash of an integer.
func IntHash(v int64) BlockHash {
	if v < 0 {
		return BlockHash{hiNegative, uint64(v)}
	}
	return BlockHash{hiNonNegative, uint64(v)}
}

// UintHash is the BlockHash of an integer that may be above math.MaxInt64; below that it is that of IntHash.
func UintHash(v uint64) BlockHash { return BlockHash{hiNonNegative, v} }

// BytesHash is the BlockHash of a byte string.
func BytesHash(b []byte) BlockHash {
	sum := sha256.Sum256(b)
	return BlockHash{binary.BigEndian.Uint64(sum[:8]) | 1, binary.BigEndian.Uint64(sum[8:16])}
}

// String shows the integer, or what is kept of a byte string.
func (h BlockHash) String() string {
	switch h.hi {
	case hiNonNegative:
		return fmt.Sprint(h.lo)
	case hiNegative:
		return fmt.Sprint(int64(h.lo))
	}
	return fmt.Sprintf("bytes:%016x%016x", h.hi, h.lo)
}

// Event is one change of an engine's cache. Of a BlockRemoved only Hashes and Medium are set, of an AllBlocksCleared
// nothing but the Kind.
//
// Event is a plain value; any number of goroutines may read one.
type Event struct {
	// Kind is what happened.
	Kind Kind
	// Hashes names the blocks, in the order of the prompt if they were stored.
	Hashes []BlockHash
	// Parent names the block before the first one, where HasParent; without, the first one begins a prompt.
	Parent    BlockHash
	HasParent bool
	// Tokens are the tokens of all the blocks.
	Tokens []uint32
	// BlockTokens is the number of tokens in each block.
	BlockTokens int64
	// LoRA is the adapter the blocks were computed with.
	LoRA LoRA
	// Medium is where the blocks are, such as "GPU" or "CPU"; empty where the engine does not say.
	Medium string
	// Extra holds what, beside tokens and adapter, went into each block's hash, such as a cache salt or the hash of an
	// image: nil where no block has any, else one for each block, nil where that one has none. An element is nil or
	// a bool, int64, uint64 (above math.MaxInt64), float64, string, []byte or []any of such elements.
	Extra [][]any
}

// LoRA is how an event names an adapter. The zero value means the base model. It is comparable with ==.
//
// LoRA is a plain value; any number of goroutines may use one.
type LoRA struct {
	// ID is the engine's own number, where HasID; it is of one engine process and may be given to another adapter later.
	ID    int64
	HasID bool
	// Name is the name of the adapter, where HasName.
	Name    string
	HasName bool
}

// Used reports whether there is an adapter at all.
func (l LoRA) Used() bool { return l.HasID || l.HasName }

// Batch is one message of an engine. A Batch may be used by one goroutine at a time; what it holds is valid until it is
// decoded into again.
type Batch struct {
	// Time is when the engine sent it, in seconds of its own clock since 1970.
	Time float64
	// Events are the changes, in order.
	Events []Event
	// Rank is the data-parallel rank, in [0, MaxRank]; 0 where the engine does not say.
	Rank int

	// Memory used again. What an event holds points into it.
	hashes []BlockHash
	tokens []uint32
}
