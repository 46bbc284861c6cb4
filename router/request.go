package router

import (
	"fmt"
	"time"

	"github.com/isobar-go/isobar/prefix"
)

// Class is the priority class of a request. The zero value is ClassStandard.
type Class uint8

// The classes. By importance they are system, interactive, standard, batch, sheddable, whatever their numbers. What they mean
// to admission is said at [Queue] and [Shares]; without these they are only recorded.
const (
	// ClassStandard: everything of which nothing else is said.
	ClassStandard Class = iota
	// ClassSystem: what the service itself cannot do without, such as health checks. It goes before all others at any time.
	ClassSystem
	// ClassInteractive: somebody waits for the answer.
	ClassInteractive
	// ClassBatch: nobody waits for the answer.
	ClassBatch
	// ClassSheddable: served at once or not at all; it never waits.
	ClassSheddable
)

var classNames = [...]string{"standard", "system", "interactive", "batch", "sheddable"}

// String is the class's name.
func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return "unknown"
}

// MarshalText writes the name.
func (c Class) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads a name; an unknown one is an error that carries it.
func (c *Class) UnmarshalText(text []byte) error {
	for i, name := range classNames {
		if name == string(text) {
			*c = Class(i)
			return nil
		}
	}
	return unknownName("class", string(text))
}

// Adapter names a LoRA adapter. Both parts matter: the same ID with another digest is another adapter. The zero value
// means the base model. An Adapter is a plain value.
type Adapter struct {
	ID     string
	Digest string
}

// Request is what a caller wants served. The zero value is a legal request of unknown size. A Request is a plain value. While it
// waits in the queue the pool keeps it, and what it points to must not change; afterwards nothing of it but ID, hashes and sizes.
type Request struct {
	// ID is for the host's use: it appears in receipts, so it must not be secret. May be empty.
	ID string
	// Model is the requested model; empty = any endpoint.
	Model string
	// Role is the phase to be served; empty = both.
	Role Role
	// PromptTokens is the length of the prompt, tokens; 0 = the length of Prefix, else unknown and counted as 0.
	PromptTokens int64
	// MaxOutputTokens is the most that it may generate, tokens; 0 = unknown.
	MaxOutputTokens int64
	// ExpectedOutputTokens is what it will probably generate, tokens; never more than MaxOutputTokens counts. 0 =
	// MaxOutputTokens, or Config.DefaultOutputTokens where that is unknown too.
	ExpectedOutputTokens int64
	// Prefix is the hashed prompt in its scope; the zero value means no affinity.
	Prefix prefix.Sequence
	// Adapter is the adapter it needs.
	Adapter Adapter
	// Tenant is who pays: for the caps of tenants, and for their turns in the queue. It is never written anywhere but as a hash. Empty
	// = nobody in particular, who has no cap, and in the queue one turn like a tenant.
	Tenant string
	// Class is its priority, for the queue and the shares. It appears in receipts and can be read by a policy; those of this package
	// do not look at it.
	Class Class
	// Deadline is when its result is worth nothing any more; zero = never. A request is rejected when its deadline has passed, or when
	// its predicted completion is later wherever it could be served; where nothing is said of its output, its first token. A deadline of
	// Reserve's ctx is another matter: it ends the wait, and nothing is refused for it.
	Deadline time.Time
	// Session ties requests together for the session-hash policy; empty = none.
	Session string
	// Exclude are endpoint ids to be avoided: entirely with ExcludeHard, else only while there is another.
	Exclude []string
	// ExcludeHard makes Exclude strict.
	ExcludeHard bool
}

// Validate names the first field that is out of range.
func (r *Request) Validate() error {
	switch {
	case r.PromptTokens < 0:
		return fmt.Errorf("router: request field PromptTokens = %d must be at least 0", r.PromptTokens)
	case r.MaxOutputTokens < 0:
		return fmt.Errorf("router: request field MaxOutputTokens = %d must be at least 0", r.MaxOutputTokens)
	case r.ExpectedOutputTokens < 0:
		return fmt.Errorf("router: request field ExpectedOutputTokens = %d must be at least 0", r.ExpectedOutputTokens)
	case int(r.Class) >= len(classNames):
		return fmt.Errorf("router: request field Class = %d is not one of the classes", r.Class)
	case !r.Role.known():
		return fmt.Errorf("router: request field Role = %q is not both, prefill or decode", string(r.Role))
	case (r.Adapter.ID == "") != (r.Adapter.Digest == ""):
		return fmt.Errorf("router: request field Adapter = {ID %q, Digest %q} needs both parts or none", r.Adapter.ID, r.Adapter.Digest)
	}
	return nil
}

// late says that the deadline has passed.
func (r *Request) late(now time.Time) bool { return !r.Deadline.IsZero() && !now.Before(r.Deadline) }

// sizes are the figures of a request that the cost model sees, tokens.
type sizes struct {
	prompt, output int64
	guessed        bool // nothing is known of the output
}

// tokens is the cost of the request where it is not that of one endpoint: nothing is known to be cached.
func (s sizes) tokens() int64 { return s.prompt + s.output }

// maxTokens bounds the token counts of one request, so that no sum of leases can overflow.
const maxTokens = 1 << 39

func (r *Request) sizes(defaultOutput int64) sizes {
	s := sizes{prompt: r.PromptTokens, output: r.ExpectedOutputTokens}
	if s.prompt == 0 {
		s.prompt = r.Prefix.Tokens()
	}
	if s.output == 0 {
		if s.output = r.MaxOutputTokens; s.output == 0 {
			s.output, s.guessed = defaultOutput, true
		}
	}
	if r.MaxOutputTokens > 0 {
		s.output = min(s.output, r.MaxOutputTokens)
	}
	s.prompt, s.output = min(s.prompt, maxTokens), min(s.output, maxTokens)
	return s
}
