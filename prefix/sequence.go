package prefix

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/cespare/xxhash/v2"
)

// Sequence is a prompt as the index sees it: its scope, its block size and one chained 64-bit hash for every
// whole block. The hash of a block covers the block and everything before it, so two sequences with an equal hash
// at one position are equal up to there. Tokens behind the last whole block do not count, as engines cache
// whole blocks only. The zero Sequence has no block and is never recorded or matched.
//
// A Sequence is an immutable value; any number of goroutines may use one.
type Sequence struct {
	scope  Scope
	block  int32 // tokens per block
	hashes []uint64
}

// Sources of a chain. They are part of its seed, so that blocks of different meaning never meet.
const (
	kindTokens = 't'
	kindBytes  = 'b'
	kindHashes = 'h'
)

// FromTokens hashes a tokenized prompt in blocks of blockTokens tokens, the engine's KV block size (often 16).
// Any token value is legal, and the same values give the same sequence whatever their type. blockTokens
// must be in [1, math.MaxInt32].
func FromTokens[T ~int | ~int32 | ~int64 | ~uint32](s Scope, blockTokens int, tokens []T) (Sequence, error) {
	if err := checkSize("blockTokens", blockTokens); err != nil {
		return Sequence{}, err
	}
	q := Sequence{scope: s, block: int32(blockTokens)}
	if len(tokens) < blockTokens {
		return q, nil
	}
	q.hashes = make([]uint64, len(tokens)/blockTokens)
	chain(q.hashes, chainSeed(s, kindTokens, blockTokens, 0), blockTokens, tokens)
	return q, nil
}

// chain fills out with the hashes of the first len(out) blocks of tokens, behind a block with the hash prev.
func chain[T ~int | ~int32 | ~int64 | ~uint32](out []uint64, prev uint64, blockTokens int, tokens []T) {
	var stack [256]byte
	buf := stack[:0]
	for i := 0; i < len(out); i++ {
		if blockTokens%8 == 0 {
			i += hashRun(prev, out[i:], tokens[i*blockTokens:], blockTokens)
			if i == len(out) {
				break
			}
			if i > 0 {
				prev = out[i-1]
			}
		}
		buf = appendBlock(buf[:0], tokens[i*blockTokens:(i+1)*blockTokens])
		buf = binary.LittleEndian.AppendUint64(buf, prev)
		prev = xxhash.Sum64(buf)
		out[i] = prev
	}
}

// appendBlock writes every token as 4 bytes, or as 8 if one of them is outside [0, 2^32), which token ids are
// not; a wide block then differs in length from every narrow one.
func appendBlock[T ~int | ~int32 | ~int64 | ~uint32](dst []byte, block []T) []byte {
	var all uint64
	for _, t := range block {
		all |= uint64(t)
	}
	if all>>32 != 0 {
		for _, t := range block {
			dst = binary.LittleEndian.AppendUint64(dst, uint64(t))
		}
		return dst
	}
	for ; len(block) >= 2; block = block[2:] {
		// Two tokens to a store: the hash reads 8 bytes at once, and a read across two fresh stores stalls.
		dst = binary.LittleEndian.AppendUint64(dst, uint64(block[0])|uint64(block[1])<<32)
	}
	if len(block) == 1 {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(block[0]))
	}
	return dst
}

// FromBytes hashes an untokenized prompt, for gateways that see only text: a block is blockTokens x
// bytesPerToken bytes of b and counts as blockTokens tokens. bytesPerToken is the mean of the traffic (about 4
// for English text); the boundaries differ from the engine's, so such a sequence suits Record and not
// engine events. Any byte string is legal. Both sizes must be in [1, math.MaxInt32].
func FromBytes(s Scope, blockTokens, bytesPerToken int, b []byte) (Sequence, error) {
	if err := checkSize("blockTokens", blockTokens); err != nil {
		return Sequence{}, err
	}
	if err := checkSize("bytesPerToken", bytesPerToken); err != nil {
		return Sequence{}, err
	}
	q := Sequence{scope: s, block: int32(blockTokens)}
	if int64(len(b)) < int64(blockTokens)*int64(bytesPerToken) {
		return q, nil
	}
	size := blockTokens * bytesPerToken
	q.hashes = make([]uint64, len(b)/size)
	prev := chainSeed(s, kindBytes, blockTokens, bytesPerToken)

	var stack [512 + 8]byte
	buf := stack[:]
	if size > 512 {
		buf = make([]byte, size+8)
	}
	buf = buf[:size+8]
	for i := range q.hashes {
		copy(buf, b[i*size:(i+1)*size])
		binary.LittleEndian.PutUint64(buf[size:], prev)
		prev = xxhash.Sum64(buf)
		q.hashes[i] = prev
	}
	return q, nil
}

// FromHashes takes the block hashes an engine reports, first block first. They are copied and folded with the
// scope and with all hashes before them, so that equal hashes under two scopes never meet. blockTokens must be in
// [1, math.MaxInt32].
func FromHashes(s Scope, blockTokens int, hashes []uint64) (Sequence, error) {
	if err := checkSize("blockTokens", blockTokens); err != nil {
		return Sequence{}, err
	}
	q := Sequence{scope: s, block: int32(blockTokens)}
	if len(hashes) == 0 {
		return q, nil
	}
	q.hashes = make([]uint64, len(hashes))
	prev := chainSeed(s, kindHashes, blockTokens, 0)
	var buf [16]byte
	for i, h := range hashes {
		binary.LittleEndian.PutUint64(buf[:8], h)
		binary.LittleEndian.PutUint64(buf[8:], prev)
		prev = xxhash.Sum64(buf[:])
		q.hashes[i] = prev
	}
	return q, nil
}

func checkSize(field string, v int) error {
	if v < 1 || v > math.MaxInt32 {
		return fmt.Errorf("prefix: %s is %d, it must be in [1, %d]", field, v, math.MaxInt32)
	}
	return nil
}

// chainSeed is what stands before the first block: it keeps scopes, sources and block sizes apart. The chain
// value is hashed behind its block, not before it: the bulk of the next block can then be hashed by the
// processor while the last steps of the previous one are still under way.
func chainSeed(s Scope, kind byte, blockTokens, bytesPerToken int) uint64 {
	var b [33]byte
	binary.LittleEndian.PutUint64(b[0:], s.hi)
	binary.LittleEndian.PutUint64(b[8:], s.lo)
	binary.LittleEndian.PutUint64(b[16:], uint64(blockTokens))
	binary.LittleEndian.PutUint64(b[24:], uint64(bytesPerToken))
	b[32] = kind
	return xxhash.Sum64(b[:])
}

// Blocks is the number of whole blocks.
func (q Sequence) Blocks() int { return len(q.hashes) }

// BlockTokens is the block size in tokens; 0 for the zero Sequence.
func (q Sequence) BlockTokens() int { return int(q.block) }

// Tokens is the number of tokens in whole blocks.
func (q Sequence) Tokens() int64 { return int64(len(q.hashes)) * int64(q.block) }

// Scope is the scope the sequence was hashed in.
func (q Sequence) Scope() Scope { return q.scope }

// Head is the sequence of the first blocks blocks; a number outside [0, Blocks()] is taken as the nearer end. It
// shares memory with q.
func (q Sequence) Head(blocks int) Sequence {
	blocks = min(max(blocks, 0), len(q.hashes))
	q.hashes = q.hashes[:blocks:blocks]
	return q
}

// Fingerprint is the chained hash of the last block, which stands for the whole sequence in its scope; 0 without
// blocks. It is no secret: whoever knows the scope and the prompt can compute it.
func (q Sequence) Fingerprint() uint64 {
	if len(q.hashes) == 0 {
		return 0
	}
	return q.hashes[len(q.hashes)-1]
}
