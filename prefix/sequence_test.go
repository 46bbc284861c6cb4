package prefix_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/prefix"
)

func TestSequenceWholeBlocksOnly(t *testing.T) {
	t.Parallel()
	s := scope(t, prefix.Parts{Model: "m"})
	for _, c := range []struct{ tokens, block, blocks int }{
		{0, 16, 0}, {15, 16, 0}, {16, 16, 1}, {31, 16, 1}, {33, 16, 2}, {3, 1, 3}, {7, 3, 2}, {5, math.MaxInt32, 0},
	} {
		q, err := prefix.FromTokens(s, c.block, make([]int, c.tokens))
		require.NoError(t, err)
		require.Equal(t, c.blocks, q.Blocks())
		require.Equal(t, int64(c.blocks*c.block), q.Tokens())
		require.Equal(t, c.block, q.BlockTokens())
		require.Equal(t, s, q.Scope())

		b, err := prefix.FromBytes(s, c.block, 4, make([]byte, c.tokens*4+3))
		require.NoError(t, err)
		require.GreaterOrEqual(t, b.Blocks(), c.blocks)
		require.LessOrEqual(t, b.Blocks(), (c.tokens*4+3)/4/c.block)
	}
	require.Zero(t, prefix.Sequence{}.Blocks()+prefix.Sequence{}.BlockTokens())
	require.Zero(t, prefix.Sequence{}.Fingerprint())
}

func TestSequenceErrors(t *testing.T) {
	t.Parallel()
	s := scope(t, prefix.Parts{Model: "m"})
	for _, n := range []int{0, -1, math.MinInt, math.MaxInt32 + 1} {
		_, err := prefix.FromTokens(s, n, []int{1})
		require.ErrorContains(t, err, "prefix: blockTokens is ")
		_, err = prefix.FromHashes(s, n, []uint64{1})
		require.ErrorContains(t, err, "prefix: blockTokens is ")
		_, err = prefix.FromBytes(s, n, 4, []byte("x"))
		require.ErrorContains(t, err, "prefix: blockTokens is ")
		_, err = prefix.FromBytes(s, 16, n, []byte("x"))
		require.ErrorContains(t, err, "prefix: bytesPerToken is ")
	}
	q, err := prefix.FromBytes(s, math.MaxInt32, math.MaxInt32, []byte("x"))
	require.NoError(t, err)
	require.Zero(t, q.Blocks())
}

func TestSequenceHead(t *testing.T) {
	t.Parallel()
	s := scope(t, prefix.Parts{Model: "m"})
	q, _ := prefix.FromTokens(s, 2, []int{1, 2, 3, 4, 5, 6})
	h, _ := prefix.FromTokens(s, 2, []int{1, 2, 3, 4})
	require.Equal(t, h, q.Head(2))
	require.Equal(t, h.Fingerprint(), q.Head(2).Fingerprint())
	require.Equal(t, q, q.Head(3))
	require.Equal(t, q, q.Head(math.MaxInt))
	require.Zero(t, q.Head(0).Blocks()+q.Head(-1).Blocks())
}

// Two sequences agree exactly where scope, source, block size and all values so far agree.
func TestSequencesNeverMeet(t *testing.T) {
	t.Parallel()
	m, n := scope(t, prefix.Parts{Model: "m"}), scope(t, prefix.Parts{Model: "n"})
	ids := make([]uint32, 64)
	hashes := make([]uint64, 64)
	for i := range hashes {
		hashes[i] = 0
	}
	var all []prefix.Sequence
	for _, s := range []prefix.Scope{m, n, {}} {
		for _, size := range []int{1, 2, 8, 16} { // at 2, a block of tokens is as long as a hash
			q, _ := prefix.FromTokens(s, size, ids)
			all = append(all, q)
			q, _ = prefix.FromBytes(s, size, 2, make([]byte, 128))
			all = append(all, q)
			q, _ = prefix.FromBytes(s, size, 4, make([]byte, 128))
			all = append(all, q)
			q, _ = prefix.FromHashes(s, size, hashes)
			all = append(all, q)
		}
	}
	seen := map[uint64]bool{}
	for _, q := range all {
		for i := range q.Blocks() {
			f := q.Head(i + 1).Fingerprint()
			require.False(t, seen[f])
			seen[f] = true
		}
	}
}

// The hash is XXH64 over the block and the hash before; blocks with wide values take 8 bytes a token.
func TestTokenHashAgainstXXHash(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{1, 3, 4, 8, 16, 24, 32, 100, 128}).Draw(t, "size")
		value := rapid.OneOf(
			rapid.Int64Range(0, 200000), rapid.Int64Range(0, 200000), rapid.Int64Range(0, math.MaxUint32),
			rapid.Int64())
		if rapid.Bool().Draw(t, "ids only") {
			value = rapid.Int64Range(0, 200000)
		}
		tokens := rapid.SliceOfN(value, 0, 4*size+1).Draw(t, "tokens")
		s, _ := prefix.NewScope(prefix.Parts{Model: "m"})
		q, err := prefix.FromTokens(s, size, tokens)
		require.NoError(t, err)
		prev := prefix.ChainSeed(s, 't', size, 0)
		for i := range q.Blocks() {
			block := tokens[i*size : (i+1)*size]
			wide := false
			for _, v := range block {
				wide = wide || v < 0 || v > math.MaxUint32
			}
			var b []byte
			for _, v := range block {
				if wide {
					b = binary.LittleEndian.AppendUint64(b, uint64(v))
				} else {
					b = binary.LittleEndian.AppendUint32(b, uint32(v))
				}
			}
			prev = xxhash.Sum64(binary.LittleEndian.AppendUint64(b, prev))
			require.Equal(t, prev, q.Head(i+1).Fingerprint(), "block %d", i)
		}
	})
}

// A value outside [0, 2^32) counts wherever in the block it stands.
func TestWideTokenAtEveryPlace(t *testing.T) {
	t.Parallel()
	s := scope(t, prefix.Parts{Model: "m"})
	for at := range 32 {
		short, long, huge := make([]int32, 32), make([]int64, 32), make([]int64, 32)
		short[at], long[at], huge[at] = -1, -1, 1<<32
		unsigned := make([]uint32, 32)
		unsigned[at] = math.MaxUint32
		a, _ := prefix.FromTokens(s, 16, short)
		b, _ := prefix.FromTokens(s, 16, long)
		c, _ := prefix.FromTokens(s, 16, huge)
		d, _ := prefix.FromTokens(s, 16, unsigned)
		e, _ := prefix.FromTokens(s, 16, make([]int32, 32))
		require.Equal(t, a, b)
		prints := map[uint64]bool{}
		for _, q := range []prefix.Sequence{a, c, d, e} {
			prints[q.Fingerprint()] = true
		}
		require.Len(t, prints, 4)
	}
}

type tokenID int32

func TestTokenTypesAgree(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{1, 5, 8, 16}).Draw(t, "size")
		small := rapid.SliceOfN(rapid.Int32(), 0, 40).Draw(t, "tokens")
		s, _ := prefix.NewScope(prefix.Parts{Model: "m"})
		var wide []int64
		var word []int
		var named []tokenID
		var unsigned []uint32
		negative := false
		for _, v := range small {
			wide, word, named = append(wide, int64(v)), append(word, int(v)), append(named, tokenID(v))
			unsigned = append(unsigned, uint32(v))
			negative = negative || v < 0
		}
		want, _ := prefix.FromTokens(s, size, wide)
		for i := range 3 {
			var q prefix.Sequence
			switch i {
			case 0:
				q, _ = prefix.FromTokens(s, size, small)
			case 1:
				q, _ = prefix.FromTokens(s, size, word)
			case 2:
				q, _ = prefix.FromTokens(s, size, named)
			}
			require.Equal(t, want, q)
		}
		got, _ := prefix.FromTokens(s, size, unsigned)
		if !negative {
			require.Equal(t, want, got)
		} else if len(small)%size == 0 && len(small) > 0 {
			require.NotEqual(t, want, got, "-1 and 2^32-1 are different values")
		}
	})
}

func TestHashesAreCopiedAndChained(t *testing.T) {
	t.Parallel()
	s := scope(t, prefix.Parts{Model: "m"})
	in := []uint64{1, 2, 3}
	q, _ := prefix.FromHashes(s, 16, in)
	in[2] = 9
	again, _ := prefix.FromHashes(s, 16, []uint64{1, 2, 3})
	require.Equal(t, again, q)
	// Hashes that are not chained must not be taken for the same block at another place.
	a, _ := prefix.FromHashes(s, 16, []uint64{5, 2, 3})
	require.NotEqual(t, q.Fingerprint(), a.Fingerprint())
}

func FuzzFromBytes(f *testing.F) {
	f.Add(uint8(1), uint8(4), []byte("hello, world"), uint16(3))
	f.Add(uint8(16), uint8(4), make([]byte, 600), uint16(70))
	f.Fuzz(func(t *testing.T, block, per uint8, b []byte, at uint16) {
		s := scope(t, prefix.Parts{Model: "m"})
		q, err := prefix.FromBytes(s, int(block), int(per), b)
		if block == 0 || per == 0 {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		size := int(block) * int(per)
		require.Equal(t, len(b)/size, q.Blocks())
		if int(at) >= len(b) {
			return
		}
		// A changed byte changes its block and all behind, and none before.
		c := append([]byte(nil), b...)
		c[at]++
		r, _ := prefix.FromBytes(s, int(block), int(per), c)
		for i := range q.Blocks() {
			same := q.Head(i+1).Fingerprint() == r.Head(i+1).Fingerprint()
			require.Equal(t, i < int(at)/size, same)
		}
	})
}
