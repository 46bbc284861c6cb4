package workload

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/isobar-go/isobar/router"
)

// BlockTokens is the number of tokens in a block, everywhere in this package.
const BlockTokens = 16

// MaxTokens is the longest prompt or output that is accepted, in tokens.
const MaxTokens = 1<<31 - 1

// Class is the priority class of a request, the router's.
type Class = router.Class

// The classes.
const (
	ClassStandard    = router.ClassStandard
	ClassSystem      = router.ClassSystem
	ClassInteractive = router.ClassInteractive
	ClassBatch       = router.ClassBatch
	ClassSheddable   = router.ClassSheddable
)

// Segment is a run of blocks with consecutive numbers, First to First+Blocks-1. A number stands for one block and
// everything before it. Segment is a plain value.
type Segment struct {
	// First is the number of the first block. Numbers wrap around at 2^64.
	First uint64
	// Blocks is how many there are, at least 1.
	Blocks int64
}

// Request is one request of a workload. It is a plain value; whoever copies one shares Segments, which nobody may change.
type Request struct {
	// ID names the request within its source, from 0. It does not depend on when the request arrives, so the runs of two
	// policies can be joined on it.
	ID uint64
	// Arrival is the time since the start of the workload. In a Workload that a Loop plays, only the first one of a
	// session counts; the requests that a Source returns have their actual arrival.
	Arrival time.Duration
	// PromptTokens is the length of the prompt, 1 to MaxTokens.
	PromptTokens int64
	// OutputTokens is what it will generate, 1 to MaxTokens. It is the world's secret: a router must not see it.
	OutputTokens int64
	// MaxOutputTokens is the limit that the client sent, at least OutputTokens; 0 = none.
	MaxOutputTokens int64
	// ExpectedOutputTokens is the client's guess, right or wrong; 0 = none.
	ExpectedOutputTokens int64
	// Segments are the whole blocks of the prompt from its start. They may end before the prompt does: the rest has no
	// ids and can not be cached. They may also go on after it: those blocks hold what the output will be. No segment
	// begins with the number that would continue the one before it.
	Segments []Segment
	// Session ties the requests of one conversation together, each of which begins after the one before has finished;
	// 0 = none.
	Session uint64
	// Turn is the position in the session, from 0.
	Turn int
	// Think is the time between the end of the session's previous request and the arrival of this one in a closed loop.
	Think time.Duration
	// Tenant is who pays; may be empty.
	Tenant string
	// Adapter and AdapterDigest name a LoRA adapter; both empty = the base model.
	Adapter       string
	AdapterDigest string
	// Salt keeps the blocks apart from those of requests with another salt, as a cache salt does; may be empty.
	Salt string
	// Class is the priority.
	Class Class
	// Deadline is how long after its arrival the result is worth anything; 0 = for ever.
	Deadline time.Duration
	// Label is the part of the workload that reports count the request under; may be empty.
	Label string
}

// PromptBlocks is the number of ids that AppendBlocks appends: whole blocks of the prompt that have a number.
func (r *Request) PromptBlocks() int64 {
	return min(r.PromptTokens/BlockTokens, segmentBlocks(r.Segments))
}

// AppendBlocks appends to dst the id of every numbered whole block of the prompt. It allocates only if dst is too small.
func (r *Request) AppendBlocks(dst []uint64) []uint64 {
	return r.appendIDs(dst, r.PromptTokens/BlockTokens)
}

// AppendAll is AppendBlocks followed by the ids of the blocks that the output will fill, as far as they are known. It is
// for engines; a router must not see it, as its length tells that of the output.
func (r *Request) AppendAll(dst []uint64) []uint64 {
	return r.appendIDs(dst, (r.PromptTokens+r.OutputTokens)/BlockTokens)
}

func (r *Request) appendIDs(dst []uint64, limit int64) []uint64 {
	limit = max(0, min(limit, segmentBlocks(r.Segments)))
	at := len(dst)
	dst = slices.Grow(dst, int(limit))[:at+int(limit)]
	salt := r.scope()
	for _, s := range r.Segments {
		out := dst[at:]
		if int64(len(out)) > s.Blocks {
			out = out[:s.Blocks]
		}
		for i := range out {
			out[i] = blockID(s.First + uint64(i) + salt)
		}
		if at += len(out); at == len(dst) {
			break
		}
	}
	return dst
}

// scope moves the numbers of requests whose blocks must not be shared with others'. The base model without a salt stays
// where it is.
func (r *Request) scope() uint64 {
	if r.Adapter == "" && r.AdapterDigest == "" && r.Salt == "" {
		return 0
	}
	return hashOf("scope", r.Adapter, r.AdapterDigest, r.Salt)
}

// Validate names the first field that is out of range.
func (r *Request) Validate() error {
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("workload: request %d: %s is %v, it must be %s", r.ID, field, value, want)
	}
	switch {
	case r.Arrival < 0:
		return bad("Arrival", r.Arrival, "at least 0")
	case r.PromptTokens < 1 || r.PromptTokens > MaxTokens:
		return bad("PromptTokens", r.PromptTokens, "in [1, 2147483647]")
	case r.OutputTokens < 1 || r.OutputTokens > MaxTokens:
		return bad("OutputTokens", r.OutputTokens, "in [1, 2147483647]")
	case r.MaxOutputTokens != 0 && r.MaxOutputTokens < r.OutputTokens:
		return bad("MaxOutputTokens", r.MaxOutputTokens, fmt.Sprintf("0 or at least OutputTokens, %d", r.OutputTokens))
	case r.ExpectedOutputTokens < 0:
		return bad("ExpectedOutputTokens", r.ExpectedOutputTokens, "at least 0")
	case r.Turn < 0:
		return bad("Turn", r.Turn, "at least 0")
	case r.Think < 0:
		return bad("Think", r.Think, "at least 0")
	case (r.Adapter == "") != (r.AdapterDigest == ""):
		return bad("AdapterDigest", fmt.Sprintf("%q", r.AdapterDigest), fmt.Sprintf("empty exactly if Adapter is, which is %q", r.Adapter))
	case r.Class > ClassSheddable:
		return bad("Class", uint8(r.Class), "one of the classes")
	case r.Deadline < 0:
		return bad("Deadline", r.Deadline, "at least 0")
	}
	limit := (r.PromptTokens + r.OutputTokens) / BlockTokens
	blocks := int64(0)
	for i, s := range r.Segments {
		if s.Blocks < 1 || s.Blocks > limit-blocks {
			return bad(fmt.Sprintf("Segments[%d].Blocks", i), s.Blocks, fmt.Sprintf("in [1, %d]", limit-blocks))
		}
		if i > 0 && r.Segments[i-1].end() == s.First {
			return bad(fmt.Sprintf("Segments[%d].First", i), s.First, "something else: it continues the segment before")
		}
		blocks += s.Blocks
	}
	return nil
}

func (s Segment) end() uint64 { return s.First + uint64(s.Blocks) }

func segmentBlocks(segments []Segment) int64 {
	n := int64(0)
	for _, s := range segments {
		n += s.Blocks
	}
	return n
}

// appendSegment adds a run, as part of the last one of dst if it continues it. No block adds nothing.
func appendSegment(dst []Segment, s Segment) []Segment {
	if s.Blocks <= 0 {
		return dst
	}
	if n := len(dst); n > 0 && dst[n-1].end() == s.First {
		dst[n-1].Blocks += s.Blocks
		return dst
	}
	return append(dst, s)
}

// mix64 is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014), in the
// variant of Stafford. It is a bijection: two numbers never get one id.
func mix64(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// blockID is a bijection that mixes all bits of a number but the lowest four, so that the blocks of one prompt, whose numbers
// follow each other, lie side by side in the tables of an engine as they do in its memory.
func blockID(x uint64) uint64 {
	const low, mask = 4, 1<<60 - 1
	y := x>>low ^ 0x9E3779B97F4A7C1 // nothing of interest has the id 0
	y = (y ^ y>>30) * 0xBF58476D1CE4E5B9 & mask
	y = (y ^ y>>27) * 0x94D049BB133111EB & mask
	return (y^y>>31)<<low | x&(1<<low-1)
}

// hashOf digests parts, each framed by its length. It does not allocate.
func hashOf(parts ...string) uint64 {
	var d xxhash.Digest
	d.Reset()
	var n [8]byte
	for _, p := range parts {
		binary.LittleEndian.PutUint64(n[:], uint64(len(p)))
		_, _ = d.Write(n[:])
		_, _ = d.WriteString(p)
	}
	return d.Sum64()
}
