package sim

import "math/bits"

// table finds cached blocks by hash: chains of blocks, linked through the blocks themselves.
type table struct {
	heads []int32 // block + 1, so that the zero value is an empty chain
	shift uint    // of a mixed hash to the number of a chain
	n     int
}

// lineBits is the number of low bits of a hash that are not mixed. Hosts that number the blocks of a prompt, and mix only the
// bits above, so have neighbours in one cache line; those that hash all bits lose nothing.
const lineBits = 4

// newTable returns a table for at most n blocks. It never grows.
func newTable(n int) table {
	width := max(bits.Len(uint(n-1)), lineBits)
	return table{heads: make([]int32, 1<<width), shift: 64 - uint(width)}
}

// chain returns the chain of a hash. It mixes, since hosts may count.
func (t *table) chain(hash uint64) *int32 {
	x := hash >> lineBits
	x = (x ^ x>>32) * 0x9e3779b97f4a7c15
	x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	return &t.heads[x>>t.shift&^(1<<lineBits-1)|hash&(1<<lineBits-1)]
}

// find returns the block with that hash, or none.
func (t *table) find(blocks []block, hash uint64) int32 {
	i := *t.chain(hash) - 1
	for i != none && blocks[i].hash != hash {
		i = blocks[i].same - 1
	}
	return i
}

// put adds a block under its hash, which is not there yet, and reports true, or reports false if there is one.
func (t *table) put(blocks []block, hash uint64, b int32) bool {
	head := t.chain(hash)
	for i := *head - 1; i != none; i = blocks[i].same - 1 {
		if blocks[i].hash == hash {
			return false
		}
	}
	blocks[b].hash, blocks[b].same = hash, *head
	*head = b + 1
	t.n++
	return true
}

// remove takes out a block that is there.
func (t *table) remove(blocks []block, b int32) {
	at := t.chain(blocks[b].hash)
	for *at != b+1 {
		at = &blocks[*at-1].same
	}
	*at = blocks[b].same
	blocks[b].same = unnamed
	t.n--
}

func (t *table) clear() {
	clear(t.heads)
	t.n = 0
}
