package sim

import (
	"errors"
	"fmt"
	"math"

	"github.com/isobar-go/isobar/score"
)

// Profile holds the speed and the limits of one engine. The named ones come from Profiles; a changed copy is as good.
// It is a plain value and may be read by any number of goroutines.
type Profile struct {
	// Name says which model runs on which hardware. Free text, may be empty.
	Name string
	// Base is the time of a pass whatever it holds, in ms. Above 0.
	Base float64
	// Knee is the number of new tokens of a pass that Base already covers. 0 or more.
	Knee int64
	// PerToken is the time of one new token beyond the Knee, in ms. 0 or more.
	PerToken float64
	// PerContext is the time a decode takes for each token of its context, in ms. 0 or more.
	PerContext float64
	// PerPair is the time of attention between a prefill token and a token before it, in ms. 0 or more.
	PerPair float64
	// PerSeq is the time each sequence adds to a pass, in ms. 0 or more.
	PerSeq float64
	// KVTokens is the size of the KV cache in tokens; only whole blocks count. At least BlockSize.
	KVTokens int64
	// BlockSize is the number of tokens of a KV block. At least 1.
	BlockSize int64
	// MaxSeqs is the largest number of running requests. At least 1.
	MaxSeqs int
	// Budget is the largest number of new tokens of a pass. At least 1.
	Budget int64
}

// Profiles returns a fresh slice of the named profiles. rtx4090-8b and rtxpro6000-8b were fitted to measured runs of
// vLLM with an 8B model; the others are scaled from published figures and fit comparisons, not absolute claims.
func Profiles() []Profile {
	return []Profile{
		named("rtx4090-8b", 120, 2048), named("rtxpro6000-8b", 206, 2048), named("h100-8b", 190, 8192),
		named("h100-70b-tp4", 200, 8192), named("a100-8b", 120, 2048), named("a100-70b-tp4", 110, 2048),
	}
}

// named is a profile of package score with what only the engine itself has: the knee of a pass and its token budget.
func named(name string, knee, budget int64) Profile {
	p, err := score.ProfileByName(name)
	if err != nil {
		return Profile{Name: name} // not valid, which every user of it is told
	}
	return Profile{
		Name: name, Base: p.Base, Knee: knee, PerToken: p.PrefillToken, PerContext: p.KVToken, PerPair: p.Attention, PerSeq: p.Sequence,
		KVTokens: p.KVCapacity, BlockSize: int64(p.BlockSize), MaxSeqs: int(p.MaxRunning), Budget: budget,
	}
}

// ProfileByName returns the named profile of Profiles, and whether there is one.
func ProfileByName(name string) (Profile, bool) {
	for _, p := range Profiles() {
		if p.Name == name {
			return p, true
		}
	}
	return Profile{}, false
}

// Blocks returns the number of whole blocks the KV cache holds. It is 0 if BlockSize is not positive.
func (p Profile) Blocks() int64 {
	if p.BlockSize <= 0 {
		return 0
	}
	return p.KVTokens / p.BlockSize
}

// maxBlocks keeps block numbers inside an int32 and a mistyped profile from taking the host's memory.
const maxBlocks = 1 << 26

// Validate returns every fault of the profile, joined, or nil. Each names the field and its value.
func (p Profile) Validate() error {
	var errs []error
	num := func(name string, v float64, min float64, open bool) {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < min || (open && v == min) {
			errs = append(errs, fmt.Errorf("sim: Profile.%s %v is out of range", name, v))
		}
	}
	num("Base", p.Base, 0, true)
	num("PerToken", p.PerToken, 0, false)
	num("PerContext", p.PerContext, 0, false)
	num("PerPair", p.PerPair, 0, false)
	num("PerSeq", p.PerSeq, 0, false)
	if p.Knee < 0 {
		errs = append(errs, fmt.Errorf("sim: Profile.Knee %d is negative", p.Knee))
	}
	if p.BlockSize < 1 {
		errs = append(errs, fmt.Errorf("sim: Profile.BlockSize %d is below 1", p.BlockSize))
	} else if n := p.Blocks(); n < 1 || n > maxBlocks {
		errs = append(errs, fmt.Errorf("sim: Profile.KVTokens %d makes %d blocks, want 1 to %d", p.KVTokens, n, maxBlocks))
	}
	if p.MaxSeqs < 1 {
		errs = append(errs, fmt.Errorf("sim: Profile.MaxSeqs %d is below 1", p.MaxSeqs))
	}
	if p.Budget < 1 {
		errs = append(errs, fmt.Errorf("sim: Profile.Budget %d is below 1", p.Budget))
	}
	return errors.Join(errs...)
}

// Pass is what a pass holds, as far as its duration depends on it. It is a plain value.
type Pass struct {
	// Tokens is the number of new tokens: one per decode, the chunk length per prefill.
	Tokens int64
	// Seqs is the number of requests.
	Seqs int64
	// DecodeContext is the context of all decodes together, in tokens, each with its new token.
	DecodeContext int64
	// Pairs is the sum over prefill chunks of t*(done + t/2), in token pairs.
	Pairs float64
}

// PassTime returns the duration of a pass in ms, by the formula in the package comment. The zero Pass takes Base. Products
// are rounded by a conversion before they are added, so that every processor comes to the same last bit.
func (p Profile) PassTime(s Pass) float64 {
	return p.Base +
		float64(p.PerToken*float64(max(0, s.Tokens-p.Knee))) +
		float64(p.PerContext*float64(s.DecodeContext)) +
		float64(p.PerPair*s.Pairs) +
		float64(p.PerSeq*float64(s.Seqs))
}

// chunkPairs is the attention work of a prefill chunk of t tokens after done tokens.
func chunkPairs(done, t int64) float64 {
	return float64(float64(t) * (float64(done) + float64(t)/2))
}
