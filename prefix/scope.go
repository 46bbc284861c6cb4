package prefix

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// Parts are the things that must all be equal before two prompts may share cached blocks. Every part is an
// opaque byte string: case, spaces and invalid UTF-8 count. An empty part is a value like any other, so two
// requests without a tenant share, and a request with one shares with neither.
//
// Parts is a plain value; any number of goroutines may read one.
type Parts struct {
	Model         string // name the engine serves; required
	Revision      string // weights revision or digest
	Tokenizer     string // tokenizer and chat template: other tokens, other blocks
	Tenant        string // owner of the cache, where tenants must not see each other's timing
	Salt          string // cache salt of the request
	AdapterID     string // adapter (LoRA) name; goes together with AdapterDigest
	AdapterDigest string // digest of the adapter's weights: one name may be reloaded with others
	CacheFormat   string // KV layout and precision, such as "fp8/tp2"
	Decoding      string // whatever else changes the cached tensors, such as a rope scaling
}

// Scope is the trust boundary of a prefix: the 128-bit digest of its Parts. Scopes are comparable with ==. The
// zero Scope is unknown: nothing is ever recorded or matched under it.
//
// Scope is a plain value; any number of goroutines may use one.
type Scope struct{ hi, lo uint64 }

// NewScope digests p. It fails if Model is empty or if only one of AdapterID and AdapterDigest is given; the
// Scope returned with an error is the unknown one.
//
// The parts are framed, each by its length, before they are digested, so that no two different Parts give the
// same bytes. The digest is the first half of SHA-256: a scope keeps tenants apart, and a tenant chooses its own
// name and salt, hence a hash for which nobody can construct a collision.
func NewScope(p Parts) (Scope, error) {
	if p.Model == "" {
		return Scope{}, errors.New("prefix: Model is empty, a scope needs one")
	}
	if (p.AdapterID == "") != (p.AdapterDigest == "") {
		return Scope{}, fmt.Errorf("prefix: AdapterID %q and AdapterDigest %q go together, one is empty",
			p.AdapterID, p.AdapterDigest)
	}
	var stack [512]byte
	b := append(stack[:0], "prefix scope 1\x00"...)
	for tag, part := range [...]string{
		p.Model, p.Revision, p.Tokenizer, p.Tenant, p.Salt, p.AdapterID, p.AdapterDigest, p.CacheFormat, p.Decoding,
	} {
		b = append(b, byte(tag))
		b = binary.LittleEndian.AppendUint64(b, uint64(len(part)))
		b = append(b, part...)
	}
	sum := sha256.Sum256(b)
	s := Scope{hi: binary.LittleEndian.Uint64(sum[:8]), lo: binary.LittleEndian.Uint64(sum[8:16])}
	if !s.Known() {
		s.lo = 1
	}
	return s, nil
}

// Known reports whether s was made by NewScope.
func (s Scope) Known() bool { return s != Scope{} }

// String gives the digest as 32 hexadecimal digits, or "unknown". It reveals none of the parts.
func (s Scope) String() string {
	if !s.Known() {
		return "unknown"
	}
	return fmt.Sprintf("%016x%016x", s.hi, s.lo)
}
