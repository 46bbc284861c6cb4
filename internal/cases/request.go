package cases

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/isobar-go/isobar/prefix"
	"github.com/isobar-go/isobar/router"
)

// demand is what a route-like command asks for, any number of times.
type demand struct {
	request router.Request // without its prefix
	prompt  prompt
}

// prompt makes the hashed prompts of a demand: a common head, padded differently in each request.
type prompt struct {
	scope prefix.Scope
	block int
	head  []uint32
	// length in tokens; below 0 = no prefix was given, so that there is nothing to hash.
	length int64
}

// defaultModel is the model part of the scope where none is named. No command can write it.
const defaultModel = " "

// readDemand takes the arguments of route.
func (m *Machine) readDemand(c *command) demand {
	var d demand
	r := &d.request
	prompt, promptGiven := c.count("prompt", 0, math.MaxInt64, 0)
	r.PromptTokens = prompt
	r.MaxOutputTokens, _ = c.count("out", 0, math.MaxInt64, 0)
	r.ExpectedOutputTokens, _ = c.count("expect-out", 0, math.MaxInt64, 0)
	r.Session = c.text("session")
	if class, ok := c.take("class"); ok {
		if err := r.Class.UnmarshalText([]byte(class)); err != nil {
			c.fail("key %q: %w", "class", err)
		}
	}
	if in, ok := c.duration("deadline"); ok {
		r.Deadline = m.clock.Add(in)
	}
	r.Exclude = splitList(c.text("exclude"))
	m.checkKnown(c, r.Exclude)
	r.ExcludeHard = c.flag("hard")
	if r.ExcludeHard && r.Exclude == nil {
		c.fail("hard needs exclude")
	}
	length := int64(-1)
	if promptGiven {
		length = prompt
	}
	d.prompt = m.readPrompt(c, r, length)
	return d
}

// readPrompt takes the keys of the prefix and of its scope, and sets the parts of the request that they name too. A
// length below 0 leaves the prompt as long as the prefix.
func (m *Machine) readPrompt(c *command, r *router.Request, length int64) prompt {
	r.Tenant, r.Model = c.text("tenant"), c.text("model")
	r.Adapter.ID, r.Adapter.Digest, _ = strings.Cut(c.text("adapter"), "@")
	p := prompt{block: m.blockSize(), length: -1}
	if scope, ok := c.take("scope"); ok && scope != "none" {
		c.fail("key %q: %q is not none", "scope", scope)
	} else if !ok {
		parts := prefix.Parts{Model: r.Model, Tenant: r.Tenant, AdapterID: r.Adapter.ID, AdapterDigest: r.Adapter.Digest}
		if parts.Model == "" {
			parts.Model = defaultModel
		}
		var err error
		if p.scope, err = prefix.NewScope(parts); err != nil {
			c.fail("%w", err)
		}
	}
	v, ok := c.take("prefix")
	if !ok || c.err != nil {
		return p
	}
	if length > m.limits.tokens {
		c.fail("key %q: %d tokens with a prefix are above %d", "prompt", length, m.limits.tokens)
		return p
	}
	for part := range strings.SplitSeq(v, "+") {
		name, count, _ := strings.Cut(part, ":")
		n, err := strconv.ParseInt(count, 10, 64)
		if err != nil || n < 0 || name == "" {
			c.fail("key %q: %q is not SEG:TOKENS", "prefix", part)
			return p
		}
		if n > m.limits.tokens-int64(len(p.head)) {
			c.fail("key %q: it has more than %d tokens", "prefix", m.limits.tokens)
			return p
		}
		p.head = appendSegment(p.head, name, int(n))
	}
	if length < 0 {
		length = int64(len(p.head))
	}
	p.head, p.length = p.head[:min(int64(len(p.head)), length)], length
	return p
}

// padding marks the tokens of no segment.
const padding = 1 << 31

// appendSegment appends the first n tokens of the endless text of that name.
func appendSegment(dst []uint32, name string, n int) []uint32 {
	seed := xxhash.Sum64String(name)
	for i := range n {
		x := (seed + uint64(i)) * 0x9e3779b97f4a7c15
		x = (x ^ x>>32) * 0xd6e8feb86659fd93
		dst = append(dst, uint32(x>>33)) // 31 bits: never padding
	}
	return dst
}

// sequence hashes the prompt of request number n. It returns the scratch memory that it used.
func (p *prompt) sequence(n uint32, scratch []uint32) (prefix.Sequence, []uint32, error) {
	if p.length < 0 || !p.scope.Known() {
		return prefix.Sequence{}, scratch, nil
	}
	scratch = append(scratch[:0], p.head...)
	for int64(len(scratch)) < p.length {
		scratch = append(scratch, padding|n)
	}
	q, err := prefix.FromTokens(p.scope, p.block, scratch)
	return q, scratch, err
}

// next makes the next request of a demand.
func (m *Machine) next(d *demand) (router.Request, error) {
	r := d.request
	var err error
	m.requests = (m.requests + 1) % padding
	r.Prefix, m.tokens, err = d.prompt.sequence(m.requests, m.tokens)
	return r, err
}

// checkWork bounds what n requests hash.
func (d *demand) checkWork(c *command, n, most int64) {
	if c.err == nil && d.prompt.length > 0 && n > most/d.prompt.length {
		c.err = fmt.Errorf("%s: %d prompts of %d tokens are above %d tokens in all", c.name, n, d.prompt.length, most)
	}
}
