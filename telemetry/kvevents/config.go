package kvevents

import (
	"errors"
	"fmt"
	"math"

	"github.com/isobar-go/isobar/prefix"
)

// Sink takes what an Applier has found out. router.Pool is one; so is a prefix.Index behind a few lines. An Applier calls
// it from one goroutine at a time and in order, while it holds its own lock: a Sink must not call back into the Applier.
type Sink interface {
	// ApplyKV says that blocks were stored in the endpoint's cache or removed from it.
	ApplyKV(id string, e prefix.Event) error
	// ClearPrefixes says that nothing is known of the endpoint's cache any longer.
	ClearPrefixes(id string) error
}

// Keys is what an engine says about a block beside its tokens. A Keys is a plain value.
type Keys struct {
	// LoRA is the adapter.
	LoRA LoRA
	// Extra are the block's extra keys, as in Event.Extra: a cache salt appears in a prompt's first block only, what
	// stands for an image in those blocks that it reaches into, an adapter's name in all.
	Extra []any
	// Parent is the scope of the blocks before this one; the zero Scope for the first block of a prompt.
	Parent prefix.Scope
}

// Config says how an Applier reads one endpoint's events. A Config is a plain value.
type Config struct {
	// ID is the endpoint's id in the Sink; required.
	ID string
	// Sink takes the changes; required.
	Sink Sink
	// BlockTokens is the engine's KV block size in tokens, the one with which the host hashes prompts for this endpoint; in
	// [1, math.MaxInt32], required. Blocks of another size are refused.
	BlockTokens int
	// Base is the scope of blocks without adapter and extra keys. The zero Scope refuses them. An engine that does
	// not publish extra keys says nothing about the salt of a prompt: give it a Base only if none of its requests has one.
	Base prefix.Scope
	// Scope gives the scope of blocks with an adapter or extra keys, or false for none: then they are refused. It is asked
	// for the first block of a prompt, and for a later one with extra keys; that is refused unless the answer is
	// its Keys.Parent, since a prompt is in one scope. nil refuses them all. It is called under the Applier's lock and must
	// not call back into it.
	Scope func(Keys) (prefix.Scope, bool)
	// Sources is how many streams the endpoint's events come in, each with sequence numbers of its own: one for each
	// data-parallel rank with vLLM and SGLang. 0 means 1; at most MaxSources.
	Sources int
	// MaxBlocks bounds how many blocks are kept in mind, over all sources; further ones are refused until others are gone. A
	// block takes about 140 bytes with one rank. It should be above the engine's cache in blocks. 0 means 262,144
	// (4 million tokens in blocks of 16, 37 MB); at most math.MaxInt32.
	MaxBlocks int
	// Limits bound a single batch.
	Limits Limits
}

// MaxSources is the largest legal Config.Sources.
const MaxSources = 4096

// Validate joins all that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	say := func(format string, args ...any) { errs = append(errs, fmt.Errorf("kvevents: Config."+format, args...)) }
	if c.ID == "" {
		say("ID is empty")
	}
	if c.Sink == nil {
		say("Sink is nil")
	}
	if c.BlockTokens < 1 || c.BlockTokens > math.MaxInt32 {
		say("BlockTokens is %d, it must be in [1, %d]", c.BlockTokens, math.MaxInt32)
	}
	if c.Sources < 0 || c.Sources > MaxSources {
		say("Sources is %d, it must be in [0, %d]", c.Sources, MaxSources)
	}
	if c.MaxBlocks < 0 || c.MaxBlocks > math.MaxInt32 {
		say("MaxBlocks is %d, it must be in [0, %d]", c.MaxBlocks, math.MaxInt32)
	}
	if err := c.Limits.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// WithDefaults is c with its zeros replaced.
func (c Config) WithDefaults() Config {
	if c.Sources == 0 {
		c.Sources = 1
	}
	if c.MaxBlocks == 0 {
		c.MaxBlocks = 1 << 18
	}
	c.Limits = c.Limits.WithDefaults()
	return c
}
