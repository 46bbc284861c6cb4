package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"time"

	"github.com/isobar-go/isobar/reserve"
)

// Observer is told of sampled decisions and of how they ended. It is called by the goroutine that reserves or releases,
// outside every lock, and must be quick: a request that has waited in the queue is handed over after it was told, so that an observer
// that waits for room itself would wait for that one. A panic of it is survived and counted. Receipts are shared: do not write to
// them. See [JSONLines] and [SlogObserver] for observers that write.
type Observer interface {
	// Decided is told of a granted or rejected request.
	Decided(r *Receipt)
	// Ended is told of the end of a granted one, with the outcome joined to what was decided.
	Ended(r *Receipt)
}

// Receipt is the record of one decision. It holds no prompt, no key and no name of a tenant or session: sizes and hashes. A Receipt is a
// plain value; any number of goroutines may read it.
type Receipt struct {
	Decision

	// RequestID is the host's id of the request.
	RequestID string `json:"request_id,omitempty"`
	// Class, SizeBucket and Tenant are the cohort: priority, the power of two of the prompt's tokens (a bucket of 1024
	// holds 1024 to 2047; 0 is an unknown size), a hash of the tenant (0 = none).
	Class      Class  `json:"class"`
	SizeBucket int64  `json:"size_bucket"`
	Tenant     uint64 `json:"tenant_hash,omitempty,string"`
	// Session and Prefix are hashes of the session and of the head of the prompt; 0 = none.
	Session uint64 `json:"session_hash,omitempty,string"`
	Prefix  uint64 `json:"prefix_hash,omitempty,string"`
	// PromptTokens and OutputTokens are the sizes that were decided on; Adapter says whether one was needed.
	PromptTokens int64 `json:"prompt_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	// OutputGuessed says that OutputTokens is the pool's own guess.
	OutputGuessed bool `json:"output_guessed,omitempty"`
	Adapter       bool `json:"adapter,omitempty"`
	// TenantOpen is the number of open requests of the tenant before, where tenants are capped.
	TenantOpen int `json:"tenant_open,omitempty"`
	// TenantTokens is the sum of their tokens.
	TenantTokens int64 `json:"tenant_tokens,omitempty"`
	// OverShare says that what was left was reserved for more important classes.
	OverShare bool `json:"over_share,omitempty"`
	// RemainingMS is the time to the request's deadline, ms; 0 = it has none.
	RemainingMS float64 `json:"remaining_ms,omitempty"`
	// Config identifies the settings that decided: equal numbers, equal settings of one version of this package. Policies
	// count by name.
	Config uint64 `json:"config,string"`
	// Rejected is the code of a rejection; empty when a lease was granted.
	Rejected string `json:"rejected,omitempty"`
	// Before and After are what the pool held on the chosen endpoint.
	Before reserve.Load `json:"before"`
	After  reserve.Load `json:"after"`
	// Outcome is how it ended; nil until then.
	Outcome *OutcomeRecord `json:"outcome,omitempty"`
}

// OutcomeRecord is how a request ended, in a receipt. Times are ms since the decision; 0 where it never came to that. An
// OutcomeRecord is a plain value.
type OutcomeRecord struct {
	// Cause is how the lease ended; ErrorType is the kind of the failure: the name of a well-known error or the Go type of the
	// innermost one. Its text is never recorded.
	Cause     Cause  `json:"cause"`
	ErrorType string `json:"error_type,omitempty"`
	// StartDelayMS is when the endpoint accepted the request, FirstTokenMS when the first token came, CompletionMS when the
	// lease ended.
	StartDelayMS float64 `json:"start_delay_ms,omitempty"`
	FirstTokenMS float64 `json:"first_token_ms,omitempty"`
	CompletionMS float64 `json:"completion_ms"`
	// Tokens is the number of generated tokens: as reported by Progress, else as in Usage.
	Tokens int64 `json:"tokens"`
	// Usage is what the engine said.
	Usage Usage `json:"usage"`
}

func sizeBucket(tokens int64) int64 {
	if tokens <= 0 {
		return 0
	}
	return 1 << (bits.Len64(uint64(tokens)) - 1)
}

// receipt is what the request alone says of a decision about it.
func (p *Pool) receipt(req *Request, size sizes, d Decision) *Receipt {
	return &Receipt{
		Decision: d, RequestID: req.ID, Class: req.Class, SizeBucket: sizeBucket(size.prompt), Tenant: tenantHash(req.Tenant),
		PromptTokens: size.prompt, OutputTokens: size.output, OutputGuessed: size.guessed, Adapter: req.Adapter.ID != "", Config: p.fingerprint,
	}
}

// viewed is receipt with what the view knows.
func (p *Pool) viewed(v *View, d Decision) *Receipt {
	r := p.receipt(v.req, v.size, d)
	r.Session, r.Prefix, r.OverShare = v.session, v.lead, v.blocked
	r.TenantOpen, r.TenantTokens = v.tenant.Requests, v.tenant.Tokens
	if !math.IsInf(v.remaining, 1) {
		r.RemainingMS = v.remaining
	}
	return r
}

// decided makes the receipt of a granted lease.
func (p *Pool) decided(v *View, l *Lease) *Receipt {
	cost := l.account.Cost()
	r := p.viewed(v, l.Decision())
	r.Before = v.cands[v.at].own
	r.After = reserve.Load{
		Requests: r.Before.Requests + 1, Prefill: r.Before.Prefill + cost.Prefill, Decode: r.Before.Decode + cost.Decode,
		KV: r.Before.KV + cost.KV,
	}
	return r
}

// ended joins the outcome to the receipt and tells the observer. The receipt that was decided is shared already, so the
// join is a copy.
func (p *Pool) ended(l *Lease, out Outcome, now int64) {
	r := *l.receipt
	rec := &OutcomeRecord{Cause: out.Cause, CompletionMS: ms(time.Duration(now - l.began)), Tokens: l.tokens.Load(), Usage: out.Usage}
	if at := l.started.Load(); at > 0 {
		rec.StartDelayMS = ms(time.Duration(at - l.began))
	}
	if at := l.first.Load(); at > 0 {
		rec.FirstTokenMS = ms(time.Duration(at - l.began))
	}
	if rec.Tokens == 0 {
		rec.Tokens = out.Usage.OutputTokens
	}
	r.Outcome = rec
	p.tell(func(o Observer) {
		if out.Err != nil {
			rec.ErrorType = errorType(out.Err) // here, since the host's error may panic
		}
		o.Ended(&r)
	})
}

// errorType names the kind of a failure without its text: a well-known sentinel by name, else the type of the innermost error.
func errorType(err error) string {
	for _, known := range [...]struct {
		err  error
		name string
	}{
		{io.EOF, "EOF"}, {io.ErrUnexpectedEOF, "unexpected EOF"}, {context.DeadlineExceeded, "deadline exceeded"},
		{context.Canceled, "canceled"},
	} {
		if errors.Is(err, known.err) {
			return known.name
		}
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return fmt.Sprintf("%T", err)
}

func (p *Pool) tell(f func(Observer)) {
	if p.cfg.Receipts.Observer == nil {
		return
	}
	defer func() {
		if recover() != nil {
			p.counters.observerFaults.Add(1)
		}
	}()
	f(p.cfg.Receipts.Observer)
}
