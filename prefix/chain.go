package prefix

// A chain is what a Sequence of tokens is made of. These functions serve who learns of a prompt piece by piece, such as
// from an engine's events, and would otherwise have to keep all its tokens and hash them again for each piece.

// ChainRoot is what stands before the first block of a tokenized prompt in scope s: the prev of its first call of
// ChainTokens. blockTokens must be in [1, math.MaxInt32].
func ChainRoot(s Scope, blockTokens int) (uint64, error) {
	if err := checkSize("blockTokens", blockTokens); err != nil {
		return 0, err
	}
	return chainSeed(s, kindTokens, blockTokens, 0), nil
}

// ChainTokens appends to dst the hash of every whole block of tokens. prev is the hash of the block before them, or the
// ChainRoot of the scope with the same blockTokens, which must be in [1, math.MaxInt32]; with an error dst is returned as
// it was. The hashes are those of FromTokens over all tokens of the prompt at once.
func ChainTokens[T ~int | ~int32 | ~int64 | ~uint32](dst []uint64, prev uint64, blockTokens int, tokens []T) ([]uint64, error) {
	if err := checkSize("blockTokens", blockTokens); err != nil {
		return dst, err
	}
	n := len(dst)
	dst = append(dst, make([]uint64, len(tokens)/blockTokens)...)
	chain(dst[n:], prev, blockTokens, tokens)
	return dst, nil
}

// FromChain is the Sequence of the hashes that ChainTokens made from the first block of a prompt on, in scope s and with
// the same blockTokens, which must be in [1, math.MaxInt32]. It takes hashes over: nobody may change them afterwards.
// Other hashes than those would let prompts match that have nothing in common.
func FromChain(s Scope, blockTokens int, hashes []uint64) (Sequence, error) {
	if err := checkSize("blockTokens", blockTokens); err != nil {
		return Sequence{}, err
	}
	return Sequence{scope: s, block: int32(blockTokens), hashes: hashes[:len(hashes):len(hashes)]}, nil
}
