package prefix

import "math/bits"

// Constants of XXH64, from its specification (xxhash.com, xxhash_spec.md).
const (
	prime1 uint64 = 0x9E3779B185EBCA87
	prime2 uint64 = 0xC2B2AE3D27D4EB4F
	prime3 uint64 = 0x165667B19E3779F9
	prime4 uint64 = 0x85EBCA77C2B2AE63
)

// hashRun chains blocks of size tokens into out: each hash is xxhash.Sum64 over the block's tokens, 4 bytes each,
// and the hash before, 8 bytes. It does so without writing those bytes down first, as packing them costs as
// much as hashing them. size must be a positive multiple of 8 tokens, that is of the 32-byte stripe. It stops before
// the first block with a token outside [0, 2^32) and returns how many blocks it has hashed.
func hashRun[T ~int | ~int32 | ~int64 | ~uint32](prev uint64, out []uint64, tokens []T, size int) int {
	p1, p2 := prime1, prime2 // variables, as the sums below are meant to wrap
	for i := range out {
		block := tokens[i*size : (i+1)*size]
		v1, v2, v3, v4 := p1+p2, p2, uint64(0), -p1
		var high uint64 // nonzero: a token is out of range
		if one := T(1); one<<31<<1 == 0 {
			// 4-byte types: the compiler joins each pair of loads into one, and only the sign can be wrong.
			for ; len(block) >= 8; block = block[8:] {
				t := (*[8]T)(block)
				w := uint64(uint32(t[0])) | uint64(uint32(t[1]))<<32
				high |= w
				v1 = round(v1, w)
				w = uint64(uint32(t[2])) | uint64(uint32(t[3]))<<32
				high |= w
				v2 = round(v2, w)
				w = uint64(uint32(t[4])) | uint64(uint32(t[5]))<<32
				high |= w
				v3 = round(v3, w)
				w = uint64(uint32(t[6])) | uint64(uint32(t[7]))<<32
				high |= w
				v4 = round(v4, w)
			}
			if ^T(0) < 0 {
				high &= 0x80000000_80000000
			} else {
				high = 0
			}
		} else {
			for ; len(block) >= 8; block = block[8:] {
				t := (*[8]T)(block)
				a, b := uint64(t[0]), uint64(t[1])
				high |= a | b
				v1 = round(v1, a|b<<32)
				a, b = uint64(t[2]), uint64(t[3])
				high |= a | b
				v2 = round(v2, a|b<<32)
				a, b = uint64(t[4]), uint64(t[5])
				high |= a | b
				v3 = round(v3, a|b<<32)
				a, b = uint64(t[6]), uint64(t[7])
				high |= a | b
				v4 = round(v4, a|b<<32)
			}
			high >>= 32
		}
		if high != 0 {
			return i
		}
		h := bits.RotateLeft64(v1, 1) + bits.RotateLeft64(v2, 7) + bits.RotateLeft64(v3, 12) + bits.RotateLeft64(v4, 18)
		h = fold(fold(fold(fold(h, v1), v2), v3), v4) + uint64(size)*4 + 8
		h ^= round(0, prev)
		h = bits.RotateLeft64(h, 27)*prime1 + prime4
		h = (h ^ h>>33) * prime2
		h = (h ^ h>>29) * prime3
		prev = h ^ h>>32
		out[i] = prev
	}
	return len(out)
}

func round(acc, input uint64) uint64 {
	return bits.RotateLeft64(acc+input*prime2, 31) * prime1
}

func fold(h, v uint64) uint64 { return (h^round(0, v))*prime1 + prime4 }
