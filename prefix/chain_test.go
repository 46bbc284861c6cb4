package prefix_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/isobar-go/isobar/prefix"
)

// A prompt hashed in pieces is the prompt hashed at once, wherever it is cut between blocks.
func TestChainInPieces(t *testing.T) {
	t.Parallel()
	s := scope(t, prefix.Parts{Model: "m"})
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{1, 3, 8, 16, 64}).Draw(t, "size")
		tokens := rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64()), 0, 5*size+2).Draw(t, "tokens")
		want, err := prefix.FromTokens(s, size, tokens)
		require.NoError(t, err)
		prev, err := prefix.ChainRoot(s, size)
		require.NoError(t, err)
		var hashes []uint64
		for rest := tokens; len(rest) >= size; {
			take := size * rapid.IntRange(1, len(rest)/size).Draw(t, "take")
			hashes, err = prefix.ChainTokens(hashes, prev, size, rest[:take])
			require.NoError(t, err)
			prev = hashes[len(hashes)-1]
			rest = rest[take:]
		}
		got, err := prefix.FromChain(s, size, hashes)
		require.NoError(t, err)
		require.Equal(t, want.Blocks(), got.Blocks())
		require.Equal(t, want.Tokens(), got.Tokens())
		require.Equal(t, want.Scope(), got.Scope())
		require.Equal(t, want.BlockTokens(), got.BlockTokens())
		for i := range want.Blocks() {
			require.Equal(t, want.Head(i+1).Fingerprint(), got.Head(i+1).Fingerprint())
		}
	})
}

func TestChainSizes(t *testing.T) {
	t.Parallel()
	s := scope(t, prefix.Parts{Model: "m"})
	for _, size := range []int{0, -1, math.MaxInt32 + 1} {
		_, err := prefix.ChainRoot(s, size)
		require.ErrorContains(t, err, "prefix: blockTokens is")
		dst, err := prefix.ChainTokens([]uint64{7}, 1, size, []int{1})
		require.ErrorContains(t, err, "prefix: blockTokens is")
		require.Equal(t, []uint64{7}, dst)
		_, err = prefix.FromChain(s, size, nil)
		require.ErrorContains(t, err, "prefix: blockTokens is")
	}
	other, err := prefix.ChainRoot(scope(t, prefix.Parts{Model: "n"}), 16)
	require.NoError(t, err)
	root, err := prefix.ChainRoot(s, 16)
	require.NoError(t, err)
	require.NotEqual(t, root, other)
	dst, err := prefix.ChainTokens([]uint64{7}, root, 16, make([]int32, 15))
	require.NoError(t, err)
	require.Equal(t, []uint64{7}, dst, "no whole block")
}
