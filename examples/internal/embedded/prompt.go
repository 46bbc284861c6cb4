package embedded

import "math/bits"

// tokenBytes is the length of a token of text. English averages about four bytes.
const tokenBytes = 4

// prompt counts the tokens of a text and hashes its full blocks, each hash covering all before it. It only ever grows
// at the end: what was hashed stays.
type prompt struct {
	blockSize int64
	tokens    int64
	state     uint64
	blocks    []uint64
	numbered  bool     // numbers are kept
	numbers   []uint32 // of the tokens
}

func newPrompt(blockSize int64, salt string) *prompt {
	p := &prompt{blockSize: blockSize, state: 0x9e3779b97f4a7c15}
	for i := 0; i < len(salt); i++ {
		p.mix(uint64(salt[i]) + 1)
	}
	return p
}

func (p *prompt) mix(v uint64) {
	p.state = bits.RotateLeft64(p.state^(v*0xc2b2ae3d27d4eb4f), 31)*0x9e3779b185ebca87 + 0x165667b19e3779f9
}

// seed is a well spread hash of everything so far.
func (p *prompt) seed() uint64 { return finish(p.state) }

// finish is the last step of splitmix64.
func finish(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (p *prompt) token(v uint64) {
	p.mix(v)
	p.tokens++
	if p.numbered {
		p.numbers = append(p.numbers, number(v))
	}
	if p.tokens%p.blockSize == 0 {
		p.blocks = append(p.blocks, p.seed())
	}
}

// The kinds of tokens are kept apart by their top bits: text carries its length above its bytes, a role and the end of
// a message have a bit no text has.
const (
	roleBit = 1 << 63
	idBit   = 1 << 62
	endMark = 1 << 61
)

// number is the token id under which KV events know a token. A token that was given by its number below 2^31 keeps that;
// of the others, texts and marks, the upper half of the numbers holds a hash.
func number(v uint64) uint32 {
	if n := v &^ idBit; v>>62 == 1 && n < 1<<31 {
		return uint32(n)
	}
	return uint32(finish(v)) | 1<<31
}

// text adds s, cut into tokens of four bytes; the last may be shorter.
func (p *prompt) text(s string) {
	for len(s) > 0 {
		n := min(len(s), tokenBytes)
		v := uint64(n)
		for i := range n {
			v = v<<8 | uint64(s[i])
		}
		p.token(v)
		s = s[n:]
	}
}

// role opens a message: one token, whatever the role is called.
func (p *prompt) role(name string) {
	h := uint64(14695981039346656037) // FNV-1a
	for i := 0; i < len(name); i++ {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	p.token(h | roleBit)
}

func (p *prompt) end() { p.token(endMark) }

// id adds a token given by its number.
func (p *prompt) id(n int64) { p.token(uint64(n)&(idBit-1) | idBit) }

// words are the tokens of all answers: four bytes each, so that an answer is cut the same way when it comes back as
// part of the next prompt.
var words = [...]string{
	" air", " arc", " bar", " bay", " can", " dew", " dry", " eye", " far", " fog", " gap", " hot", " ice", " ion", " jet",
	" kin", " low", " map", " mid", " new", " out", " pan", " ray", " sea", " sky", " sun", " tor", " use", " via", " wet", " who", " yaw",
}

// word is token i of the answer to a prompt with this seed.
func word(seed uint64, i int64) string {
	return words[finish(seed+uint64(i)*0x9e3779b97f4a7c15)%uint64(len(words))]
}
